//! Vital product data (SPC-4, "Vital product data parameters"; SBC-3, "Vital product data (VPD) parameters").

use super::inquiry::VENDOR;
use super::*;

/// The identity of a logical unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// UUID of the unit's disk, which never changes.
    pub uuid: [u8; 16],
}

impl Identity {
    /// The unit serial number, which also follows the vendor in the T10 designator: the UUID in hexadecimal.
    fn serial(&self) -> String {
        self.uuid.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// NAA, locally assigned (3h), because the other formats need a company identifier, which this product
    /// does not have: 60 bits of the last eight bytes of the UUID; its first bytes contain the version.
    pub fn naa(&self) -> [u8; 8] {
        let mut naa = [0; 8];
        naa.copy_from_slice(&self.uuid[8..]);
        // The format replaces the variant bits of the UUID, which are always the same.
        naa[0] = 0x30 | (naa[0] ^ self.uuid[0]) & 0x0f;
        naa
    }

    /// The designators of the unit (SPC-4, "Device Identification VPD page"), any of which a peer may use:
    /// code set, type, designator.
    pub fn designators(&self) -> [(u8, u8, Vec<u8>); 3] {
        let t10 = [&VENDOR[..], self.serial().as_bytes()].concat();
        let uuid = [&[0x10, 0][..], &self.uuid].concat();
        [(1, 0x3, self.naa().to_vec()), (2, 0x1, t10), (1, 0xa, uuid)]
    }
}

/// The target port through which a page is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortIdentity<'a> {
    /// iSCSI name of the target.
    pub target: &'a str,
    /// Target portal group tag.
    pub group: u16,
    /// Relative target port identifier.
    pub relative: u16,
}

/// The contents of the pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VpdPage<'a> {
    /// The identity of the unit.
    pub identity: Identity,
    /// The port through which it is accessed.
    pub port: PortIdentity<'a>,
    /// Whether its cache can lose acknowledged writes.
    pub volatile_cache: bool,
}

/// Supported pages, in ascending order.
const PAGES: [u8; 10] = [0x00, 0x80, 0x83, 0x85, 0x86, 0x87, 0x8f, 0xb0, 0xb1, 0xb2];

/// A page; `None` if it is not supported.
pub fn vpd_page(code: u8, of: &VpdPage<'_>) -> Option<Vec<u8>> {
    let mut page = vec![0, code, 0, 0];
    match code {
        0x00 => page.extend_from_slice(&PAGES),
        0x80 => page.extend_from_slice(of.identity.serial().as_bytes()),
        0x83 => device_identification(of, &mut page),
        // Management network addresses: none.
        0x85 => {}
        0x86 => extended_inquiry(of, &mut page),
        // Mode page policy: all pages and subpages are shared by all nexuses.
        0x87 => page.extend_from_slice(&[0x3f, 0xff, 0, 0]),
        0x8f => third_party_copy(&mut page),
        0xb0 => block_limits(&mut page),
        0xb1 => {
            // Block device characteristics: not a rotating medium.
            page.put16(1);
            page.zeroes(58);
        }
        // Logical block provisioning: UNMAP and both WRITE SAME commands unmap; unmapped blocks are zero;
        // thin.
        0xb2 => page.extend_from_slice(&[0, 0xe4, 0x02, 0]),
        _ => return None,
    }
    set_length(&mut page, 2, 2);
    Some(page)
}

fn designator(out: &mut Vec<u8>, code_set: u8, association: u8, kind: u8, bytes: &[u8]) {
    // The designators of ports and devices belong to a protocol: iSCSI (5h).
    let (protocol, valid) = if association == 0 { (0, 0) } else { (0x50, 0x80) };
    out.extend_from_slice(&[protocol | code_set, valid | association << 4 | kind, 0, bytes.len() as u8]);
    out.extend_from_slice(bytes);
}

/// A SCSI name string, null-terminated and padded to a multiple of four (SPC-4, "SCSI name string
/// designator").
fn name_string(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes()[..name.len().min(247)].to_vec();
    bytes.zeroes((bytes.len() + 1).next_multiple_of(4) - bytes.len());
    bytes
}

fn device_identification(of: &VpdPage<'_>, page: &mut Vec<u8>) {
    for (code_set, kind, bytes) in of.identity.designators() {
        designator(page, code_set, 0, kind, &bytes);
    }
    let PortIdentity { target, group, relative } = of.port;
    let two = |n: u16| [&[0, 0][..], &n.to_be_bytes()].concat();
    designator(page, 1, 1, 0x4, &two(relative));
    designator(page, 1, 1, 0x5, &two(group));
    designator(page, 3, 1, 0x8, &name_string(&format!("{target},t,0x{group:04x}")));
    designator(page, 3, 2, 0x8, &name_string(target));
}

fn extended_inquiry(of: &VpdPage<'_>, page: &mut Vec<u8>) {
    // No protection. SIMPSUP: all commands are executed as simple ones.
    page.extend_from_slice(&[0, 0x01, u8::from(of.volatile_cache)]);
    page.zeroes(57);
}

fn block_limits(page: &mut Vec<u8>) {
    let physical = 1u32 << PHYSICAL_EXPONENT;
    // WSNZ is 1: WRITE SAME of zero blocks is refused.
    page.extend_from_slice(&[1, COMPARE_MAX]);
    page.put16(physical as u16);
    page.put32(TRANSFER_MAX);
    page.put32(TRANSFER_OPTIMAL);
    page.put32(0); // PRE-FETCH: any length.
    page.put32(u32::MAX); // UNMAP: any number of blocks.
    page.put32(UNMAP_DESCRIPTORS_MAX);
    page.put32(physical);
    page.put32(0x8000_0000); // Unmap granularity alignment: 0, and valid.
    page.put64(WRITE_SAME_MAX.into());
    page.zeroes(20); // No atomic writes.
}

/// Third-party Copy (SPC-4, "Third-party Copy VPD page"; SBC-3, "Block Device ROD Token Limits").
fn third_party_copy(page: &mut Vec<u8>) {
    page.put16(0x0000); // Block device ROD token limits.
    page.put16(32);
    page.zeroes(6);
    page.put16(TOKEN_RANGES_MAX);
    page.put32(TOKEN_TIMEOUT_MAX);
    page.put32(TOKEN_TIMEOUT);
    page.put64(TOKEN_BLOCKS_MAX);
    page.put64(TOKEN_BLOCKS_MAX);

    let commands = [0x83, 3, 0x00, 0x10, 0x11, 0x84, 3, 0x00, 0x03, 0x07];
    page.put16(0x0001);
    page.put16(12);
    page.push(commands.len() as u8);
    page.extend_from_slice(&commands);
    page.push(0);

    page.put16(0x0004); // Parameter data.
    page.put16(28);
    page.zeroes(4);
    page.put16(COPY_TARGETS_MAX);
    page.put16(COPY_SEGMENTS_MAX);
    page.put32(COPY_DESCRIPTORS_MAX);
    page.zeroes(16);

    page.put16(0x0008); // Supported descriptors.
    page.put16(4);
    page.extend_from_slice(&[2, 0x02, 0xe4, 0]);

    page.put16(0x8001); // General copy operations.
    page.put16(32);
    page.put32(1);
    page.put32(1);
    page.put32(COPY_SEGMENT_BLOCKS_MAX * BLOCK);
    page.extend_from_slice(&[BLOCK.trailing_zeros() as u8, 0]);
    page.zeroes(18);
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: VpdPage<'static> = VpdPage {
        identity: Identity { uuid: [0x11, 0x22, 3, 4, 5, 6, 0x47, 8, 0x89, 10, 11, 12, 13, 14, 15, 16] },
        port: PortIdentity { target: "iqn.2026-11.example:disks", group: 1, relative: 7 },
        volatile_cache: true,
    };

    #[test]
    fn length_fields_of_pages_are_correct() {
        for code in 0..=255 {
            let Some(page) = vpd_page(code, &OF) else {
                assert!(!PAGES.contains(&code));
                continue;
            };
            assert!(PAGES.contains(&code));
            assert_eq!(usize::from(u16::from_be_bytes([page[2], page[3]])), page.len() - 4);
            assert_eq!(page[1], code);
        }
        for code in [0x86, 0xb0, 0xb1] {
            assert_eq!(vpd_page(code, &OF).unwrap().len(), 64, "{code:#x}");
        }
        assert!(PAGES.is_sorted());
    }

    #[test]
    fn designators_fill_the_page() {
        let page = vpd_page(0x83, &OF).unwrap();
        let (mut at, mut found) = (4, Vec::new());
        while at < page.len() {
            found.push((page[at + 1] >> 4 & 3, page[at + 1] & 15, page[at + 3]));
            at += 4 + usize::from(page[at + 3]);
        }
        assert_eq!(at, page.len());
        // NAA, T10, UUID; relative port, group, port name; device name.
        assert_eq!(found, [(0, 3, 8), (0, 1, 40), (0, 10, 18), (1, 4, 4), (1, 5, 4), (1, 8, 36), (2, 8, 28)]);
        assert_eq!(OF.identity.naa(), [0x38, 10, 11, 12, 13, 14, 15, 16]);
        assert_eq!(page[8..16], OF.identity.naa());
    }

    #[test]
    fn descriptors_of_third_party_copy_fill_the_page() {
        let page = vpd_page(0x8f, &OF).unwrap();
        let (mut at, mut found) = (4, Vec::new());
        while at < page.len() {
            let len = u16::from_be_bytes([page[at + 2], page[at + 3]]);
            assert!(len.is_multiple_of(4));
            found.push(u16::from_be_bytes([page[at], page[at + 1]]));
            at += 4 + usize::from(len);
        }
        assert_eq!(at, page.len());
        assert_eq!(found, [0, 1, 4, 8, 0x8001]);
    }
}
