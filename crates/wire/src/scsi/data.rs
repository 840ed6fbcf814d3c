//! Short parameter lists and data: UNMAP, GET LBA STATUS, READ CAPACITY, REPORT LUNS, REPORT TARGET PORT
//! GROUPS.

use super::*;

/// A range of a parameter list, in bytes; within the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    /// Offset of the range in bytes.
    pub offset: u64,
    /// Length of the range in bytes.
    pub len: u64,
}

/// Decodes descriptors of 16 bytes: address, number of blocks. An incomplete descriptor at the end is
/// ignored.
pub(super) fn ranges(bytes: &[u8], rules: &Rules) -> Result<Vec<BlockRange>, Sense> {
    let range = |bytes: &[u8]| {
        let (lba, blocks) = (bytes.get64(0), u64::from(bytes.get32(8)));
        match lba.checked_add(blocks) {
            Some(end) if end <= rules.blocks => {
                Ok(BlockRange { offset: lba * u64::from(BLOCK), len: blocks * u64::from(BLOCK) })
            }
            _ => Err(Sense::illegal(codes::LBA_OUT_OF_RANGE)),
        }
    };
    bytes.chunks_exact(16).map(range).collect()
}

/// The ranges of an UNMAP.
///
/// # Errors
/// The list is truncated, has too many ranges, or a range that ends beyond the unit.
pub fn unmap_list(list: &[u8], rules: &Rules) -> Result<Vec<BlockRange>, Sense> {
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let descriptors = usize::from(list.get16(2));
    let Some(bytes) = list.get(8..).and_then(|rest| rest.get(..descriptors)) else {
        return Err(Sense::length());
    };
    if descriptors / 16 > UNMAP_DESCRIPTORS_MAX as usize {
        return Err(Sense::parameter(2));
    }
    ranges(bytes, rules)
}

/// A run of blocks with the same provisioning status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LbaStatus {
    /// Length in bytes.
    pub len: u64,
    /// Whether the blocks are mapped.
    pub mapped: bool,
}

/// GET LBA STATUS data: runs from `offset` on, in bytes. A run that exceeds the field of a descriptor is
/// truncated, and is the last one.
pub fn lba_status(offset: u64, runs: impl IntoIterator<Item = LbaStatus>) -> Vec<u8> {
    let mut data = vec![0; 8];
    let mut lba = offset / u64::from(BLOCK);
    for run in runs {
        let blocks = run.len / u64::from(BLOCK);
        let reported = u32::try_from(blocks).unwrap_or(u32::MAX);
        data.put64(lba);
        data.put32(reported);
        data.extend_from_slice(&[u8::from(!run.mapped), 0, 0, 0]);
        if blocks != u64::from(reported) {
            break;
        }
        lba += blocks;
    }
    set_length(&mut data, 0, 4);
    data
}

/// READ CAPACITY(10) data of a unit with `blocks` blocks.
pub fn capacity10(blocks: u64) -> Vec<u8> {
    let mut data = Vec::with_capacity(8);
    data.put32(u32::try_from(blocks.saturating_sub(1)).unwrap_or(u32::MAX));
    data.put32(BLOCK);
    data
}

/// READ CAPACITY(16) data of a unit with `blocks` blocks.
pub fn capacity16(blocks: u64) -> Vec<u8> {
    let mut data = Vec::with_capacity(32);
    data.put64(blocks.saturating_sub(1));
    data.put32(BLOCK);
    // No protection; physical blocks, aligned at 0; LBPME and LBPRZ are set.
    data.extend_from_slice(&[0, PHYSICAL_EXPONENT, 0xc0, 0]);
    data.zeroes(16);
    data
}

/// REPORT LUNS data: peripheral device addressing below 256, flat space addressing from there on (SAM-5).
pub fn report_luns(luns: &[u16]) -> Vec<u8> {
    let mut data = vec![0; 8];
    for lun in luns {
        let [high, low] = lun.to_be_bytes();
        data.extend_from_slice(&[if high == 0 { 0 } else { 0x40 | high & 0x3f }, low, 0, 0, 0, 0, 0, 0]);
    }
    let list = (data.len() - 8) as u32;
    data[..4].copy_from_slice(&list.to_be_bytes());
    data
}

/// How a unit can be accessed through the ports of a group (SPC-4, "Target port asymmetric access states").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum AccessState {
    /// Active/optimized: without restriction.
    Optimized = 0x0,
    /// Standby: only commands that describe the unit.
    Standby = 0x2,
}

/// A group of target ports, with the one port of it that belongs to a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortGroup {
    /// Target port group identifier.
    pub group: u16,
    /// Access state of the ports of the group.
    pub state: AccessState,
    /// Relative target port identifier.
    pub relative_port: u16,
}

/// REPORT TARGET PORT GROUPS data.
pub fn target_port_groups(groups: &[PortGroup]) -> Vec<u8> {
    // Supported states: active/optimized, and standby if there is another group.
    let (supported, changed_implicitly) = if groups.len() > 1 { (0x05, 2) } else { (0x01, 0) };
    let mut data = vec![0; 4];
    for PortGroup { group, state, relative_port } in groups {
        data.extend_from_slice(&[*state as u8, supported]);
        data.put16(*group);
        data.extend_from_slice(&[0, changed_implicitly, 0, 1, 0, 0]);
        data.put16(*relative_port);
    }
    set_length(&mut data, 0, 4);
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmap() {
        let mut list = vec![0, 0x16, 0, 0x10, 0, 0, 0, 0];
        list.put64(5);
        list.put32(3);
        list.put32(0);
        let rules = Rules { blocks: 8 };
        assert_eq!(unmap_list(&list, &rules), Ok(vec![BlockRange { offset: 2560, len: 1536 }]));
        assert_eq!(unmap_list(&list, &Rules { blocks: 7 }), Err(Sense::illegal(codes::LBA_OUT_OF_RANGE)));
        for len in 1..list.len() {
            assert_eq!(unmap_list(&list[..len], &rules), Err(Sense::length()));
        }
        assert_eq!(unmap_list(&[], &rules), Ok(Vec::new()));
        let mut many = vec![0; 8 + 16 * 257];
        many[2..4].copy_from_slice(&(16u16 * 257).to_be_bytes());
        assert_eq!(unmap_list(&many, &rules), Err(Sense::parameter(2)));
        many[2..4].copy_from_slice(&(16u16 * 256).to_be_bytes());
        assert_eq!(unmap_list(&many, &rules).map(|r| r.len()), Ok(256));
    }

    #[test]
    fn status_is_truncated_to_the_field_of_a_descriptor() {
        let run = |len, mapped| LbaStatus { len, mapped };
        let data = lba_status(1024, [run(512, true), run(1 << 50, false), run(512, true)]);
        assert_eq!(data.len(), 8 + 32);
        assert_eq!(data[..4], [0, 0, 0, 36]);
        assert_eq!(data[15..21], [2, 0, 0, 0, 1, 0]);
        assert_eq!(data[31..37], [3, 255, 255, 255, 255, 1]);
    }

    #[test]
    fn capacity() {
        assert_eq!(capacity10(1 << 32), [255, 255, 255, 255, 0, 0, 2, 0]);
        assert_eq!(capacity10(5), [0, 0, 0, 4, 0, 0, 2, 0]);
        let long = capacity16(1 << 33);
        assert_eq!(long[..16], [0, 0, 0, 1, 255, 255, 255, 255, 0, 0, 2, 0, 0, 3, 0xc0, 0]);
        assert_eq!(long.len(), 32);
    }

    #[test]
    fn units_and_ports() {
        assert_eq!(report_luns(&[])[..], [0; 8]);
        let luns = report_luns(&[1, 300]);
        assert_eq!((luns[3], &luns[8..10], &luns[16..18]), (16, &[0, 1][..], &[0x41, 44][..]));
        let one = PortGroup { group: 1, state: AccessState::Optimized, relative_port: 2 };
        let groups = target_port_groups(&[one]);
        assert_eq!(groups, [0, 0, 0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2]);
        let other = PortGroup { group: 3, state: AccessState::Standby, relative_port: 0x2002 };
        let groups = target_port_groups(&[one, other]);
        let first = [0, 5, 0, 1, 0, 2, 0, 1, 0, 0, 0, 2];
        let second = [2, 5, 0, 3, 0, 2, 0, 1, 0, 0, 0x20, 2];
        assert_eq!(groups, [&[0, 0, 0, 24][..], &first, &second].concat());
    }
}
