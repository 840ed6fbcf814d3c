//! Mode pages (SPC-4, "Mode parameters"; SBC-3, "Mode parameters for direct access block devices"): control,
//! caching and informational exceptions. Two bits can be changed, D_SENSE and SWP of the control page.

use super::*;

/// The mode parameters that MODE SENSE reports and MODE SELECT changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModeState {
    /// Sense data is in descriptor format (D_SENSE).
    pub descriptor_sense: bool,
    /// Writes are refused (SWP).
    pub write_protect: bool,
    /// Writes may be acknowledged before they are durable (WCE); determined by the mapping of the unit.
    pub write_back: bool,
}

const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0a;
const EXCEPTIONS: u8 = 0x1c;
const ALL_PAGES: u8 = 0x3f;
const ALL_SUBPAGES: u8 = 0xff;
/// The pages in ascending order, in which they are returned.
const PAGES: [u8; 3] = [CACHING, CONTROL, EXCEPTIONS];

const D_SENSE: u8 = 0x04;
const SWP: u8 = 0x08;
const WCE: u8 = 0x04;

/// Returns a mode page, with its header.
fn page(code: u8, control: PageControl, state: &ModeState) -> Vec<u8> {
    let state = match control {
        PageControl::Default => ModeState { write_back: state.write_back, ..ModeState::default() },
        _ => *state,
    };
    let set = |on: bool, bit: u8| if on { bit } else { 0 };
    let mut page = match code {
        CACHING => {
            let mut page = vec![CACHING, 18, set(state.write_back, WCE)];
            page.zeroes(17);
            page
        }
        // GLTSD: no log parameters are saved. Commands may be reordered. The busy time is not limited.
        CONTROL => {
            let (sense, protect) = (set(state.descriptor_sense, D_SENSE), set(state.write_protect, SWP));
            vec![CONTROL, 10, 0x02 | sense, 0x10, protect, 0, 0, 0, 0xff, 0xff, 0, 0]
        }
        // DEXCPT: informational exceptions are disabled.
        _ => vec![EXCEPTIONS, 10, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    };
    if control == PageControl::Changeable {
        page[2..].fill(0);
        if code == CONTROL {
            (page[2], page[4]) = (D_SENSE, SWP);
        }
    }
    page
}

/// A block descriptor for direct access block devices.
fn block_descriptor(blocks: u64, long: bool, out: &mut Vec<u8>) {
    if long {
        out.put64(blocks);
        out.put32(0);
    } else {
        out.put32(u32::try_from(blocks).unwrap_or(u32::MAX));
    }
    out.put32(BLOCK);
}

/// Whether the initiator learns from the answer to a [`Request::ModeSense`] if there is a volatile write
/// cache.
pub fn reports_cache(request: &Request) -> bool {
    let Request::ModeSense { ten, long_descriptor, no_descriptor, control, page, allocation, .. } = *request
    else {
        return false;
    };
    let descriptor = match (no_descriptor, long_descriptor) {
        (true, _) => 0,
        (false, false) => 8,
        (false, true) => 16,
    };
    // The caching page is the first of all pages.
    let at = if ten { 8 } else { 4 } + descriptor + 2;
    matches!(page, CACHING | ALL_PAGES) && control == PageControl::Current && allocation > at
}

/// The complete data for a [`Request::ModeSense`]; an error for any other request. `read_only` is whether
/// writes are refused for another reason than SWP.
///
/// # Errors
/// An unsupported page; saved values.
pub fn mode_sense(
    request: &Request,
    state: &ModeState,
    read_only: bool,
    blocks: u64,
) -> Result<Vec<u8>, Sense> {
    let Request::ModeSense { ten, long_descriptor, no_descriptor, control, page: code, subpage, .. } =
        *request
    else {
        return Err(Sense::illegal(codes::INVALID_OPERATION_CODE));
    };
    if control == PageControl::Saved {
        return Err(Sense::illegal(codes::SAVING_NOT_SUPPORTED));
    }
    if subpage != 0 && subpage != ALL_SUBPAGES {
        return Err(Sense::cdb(3));
    }
    if code != ALL_PAGES && !PAGES.contains(&code) {
        return Err(Sense::cdb_bit(2, 5));
    }
    // DPOFUA: the DPO and FUA bits are supported.
    let parameter = if read_only || state.write_protect { 0x90 } else { 0x10 };
    let mut data = if ten { vec![0, 0, 0, parameter, 0, 0, 0, 0] } else { vec![0, 0, parameter, 0] };
    let header = data.len();
    if !no_descriptor {
        block_descriptor(blocks, long_descriptor, &mut data);
        data[header - 1] = (data.len() - header) as u8;
        if long_descriptor {
            data[4] = 1;
        }
    }
    for &each in PAGES.iter().filter(|p| code == ALL_PAGES || **p == code) {
        data.extend_from_slice(&page(each, control, state));
    }
    set_length(&mut data, 0, if ten { 2 } else { 1 });
    Ok(data)
}

/// The mode parameters after a MODE SELECT with this parameter list.
///
/// # Errors
/// The list is truncated, or has an unsupported page, or changes a parameter that cannot be changed.
pub fn mode_select(list: &[u8], ten: bool, state: &ModeState, blocks: u64) -> Result<ModeState, Sense> {
    let mut new = *state;
    if list.is_empty() {
        return Ok(new);
    }
    let header = if ten { 8 } else { 4 };
    if list.len() < header {
        return Err(Sense::length());
    }
    let long = ten && list[4] & 1 != 0;
    let descriptors = if ten { usize::from(list.get16(6)) } else { usize::from(list[3]) };
    if descriptors != 0 {
        check_descriptor(list, header, descriptors, long, blocks)?;
    }
    let mut at = header + descriptors;
    while at < list.len() {
        at += select_page(list, at, state, &mut new)?;
    }
    Ok(new)
}

/// Checks that the only permitted block descriptor states the current values.
fn check_descriptor(list: &[u8], at: usize, len: usize, long: bool, blocks: u64) -> Result<(), Sense> {
    if len != if long { 16 } else { 8 } {
        return Err(Sense::parameter(at as u16 - 1));
    }
    let Some(descriptor) = list.get(at..at + len) else { return Err(Sense::length()) };
    let mut current = Vec::new();
    block_descriptor(blocks, long, &mut current);
    let count = if long { 8 } else { 4 };
    let same_count = descriptor[..count] == current[..count] || descriptor[..count].iter().all(|b| *b == 0);
    if !same_count || descriptor[count..] != current[count..] {
        return Err(Sense::parameter(at as u16));
    }
    Ok(())
}

/// Applies the page at `at` to `new`; returns its length.
fn select_page(list: &[u8], at: usize, state: &ModeState, new: &mut ModeState) -> Result<usize, Sense> {
    let wrong = |byte: usize| Sense::parameter((at + byte) as u16);
    let code = list[at];
    // PS is reserved in MODE SELECT; subpages are not supported.
    if !PAGES.contains(&code) {
        return Err(wrong(0));
    }
    let current = page(code, PageControl::Current, state);
    let changeable = page(code, PageControl::Changeable, state);
    if at + 1 < list.len() && list[at + 1] != current[1] {
        return Err(wrong(1));
    }
    let Some(given) = list.get(at..at + current.len()) else { return Err(Sense::length()) };
    for byte in 2..given.len() {
        if (given[byte] ^ current[byte]) & !changeable[byte] != 0 {
            return Err(wrong(byte));
        }
    }
    if code == CONTROL {
        new.descriptor_sense = given[2] & D_SENSE != 0;
        new.write_protect = given[4] & SWP != 0;
    }
    Ok(given.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: ModeState = ModeState { descriptor_sense: false, write_protect: false, write_back: true };

    fn sense(ten: bool, control: PageControl, page: u8) -> Result<Vec<u8>, Sense> {
        let request = Request::ModeSense {
            ten,
            long_descriptor: ten,
            no_descriptor: false,
            control,
            page,
            subpage: 0,
            allocation: 255,
        };
        mode_sense(&request, &PLAIN, false, 1 << 33)
    }

    #[test]
    fn pages_and_headers() {
        let all = sense(false, PageControl::Current, 0x3f).unwrap();
        assert_eq!(all[..12], [all.len() as u8 - 1, 0, 0x10, 8, 255, 255, 255, 255, 0, 0, 2, 0]);
        assert_eq!(all.len(), 12 + 20 + 12 + 12);
        assert_eq!(all[12..15], [0x08, 18, 4]);
        let ten = sense(true, PageControl::Current, 0x0a).unwrap();
        assert_eq!(ten[..8], [0, ten.len() as u8 - 2, 0, 0x10, 1, 0, 0, 16]);
        assert_eq!(ten[8..24], [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
        let changeable = sense(false, PageControl::Changeable, 0x0a).unwrap();
        assert_eq!(changeable[12..17], [0x0a, 10, 4, 0, 8]);
        assert_eq!(sense(false, PageControl::Saved, 0x0a), Err(Sense::illegal(codes::SAVING_NOT_SUPPORTED)));
        assert_eq!(sense(false, PageControl::Current, 0x01), Err(Sense::cdb_bit(2, 5)));
    }

    #[test]
    fn sensed_pages_can_be_selected_with_changed_bits_that_are_changeable() {
        for ten in [false, true] {
            let mut list = sense(ten, PageControl::Current, 0x3f).unwrap();
            assert_eq!(mode_select(&list, ten, &PLAIN, 1 << 33), Ok(PLAIN));
            let control = list.len() - 24;
            list[control + 2] |= D_SENSE;
            list[control + 4] |= SWP;
            let changed = ModeState { descriptor_sense: true, write_protect: true, write_back: true };
            assert_eq!(mode_select(&list, ten, &PLAIN, 1 << 33), Ok(changed));
            for len in 1..list.len() {
                let cut = mode_select(&list[..len], ten, &PLAIN, 1 << 33);
                assert!(cut.is_ok_and(|new| new == PLAIN || new == changed) || cut == Err(Sense::length()));
            }
            // WCE, which cannot be changed; an unsupported page; a wrong length; an unchangeable byte.
            for (byte, bad) in [(control - 18, 0), (control, 0x19), (control + 1, 9), (control + 3, 0)] {
                let mut list = list.clone();
                list[byte] = bad;
                assert_eq!(mode_select(&list, ten, &PLAIN, 1 << 33), Err(Sense::parameter(byte as u16)));
            }
        }
    }
}
