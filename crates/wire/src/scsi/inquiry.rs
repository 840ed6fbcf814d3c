//! Standard INQUIRY data (SPC-4, "Standard INQUIRY data").

use super::Put;

/// T10 vendor identification.
pub(super) const VENDOR: &[u8; 8] = b"FOREBAY ";
/// Product identification.
const PRODUCT: &[u8; 16] = b"VOLUME          ";
/// First byte of INQUIRY data for a unit that does not exist.
const NO_UNIT: u8 = 0x7f;

/// Claimed standards (SPC-4, "Version descriptor values"): SAM-5, SPC-4, SBC-3, iSCSI.
const STANDARDS: [u16; 4] = [0x00a0, 0x0460, 0x04c0, 0x0960];

/// Standard data of a unit; with `present` false, of a unit that does not exist. The first four characters of
/// `revision` are used.
pub fn standard_inquiry(present: bool, revision: &str) -> Vec<u8> {
    let mut data = Vec::with_capacity(96);
    // A block device; not removable; SPC-4; hierarchical LUNs, format 2.
    data.extend_from_slice(&[if present { 0 } else { NO_UNIT }, 0, 6, 0x12, 0]);
    // Implicit asymmetric access, third-party copies; multiple ports; command queueing.
    data.extend_from_slice(&[0x18, 0x10, 0x02]);
    data.extend_from_slice(VENDOR);
    data.extend_from_slice(PRODUCT);
    let printable = |b: u8| if (0x20..0x7f).contains(&b) { b } else { b' ' };
    data.extend(revision.bytes().map(printable).chain(std::iter::repeat(b' ')).take(4));
    data.zeroes(58 - data.len());
    STANDARDS.iter().for_each(|s| data.put16(*s));
    data.zeroes(96 - data.len());
    super::set_length(&mut data, 4, 1);
    data
}

#[cfg(test)]
mod tests {
    #[test]
    fn standard_data() {
        let data = super::standard_inquiry(true, "0.4.12");
        assert_eq!((data.len(), data[4], data[2], data[3] & 15), (96, 91, 6, 2));
        assert_eq!(&data[8..36], b"FOREBAY VOLUME          0.4.");
        assert_eq!(data[58..60], [0, 0xa0]);
        assert_eq!(super::standard_inquiry(false, "1")[0], 0x7f);
        assert_eq!(&super::standard_inquiry(false, "1")[32..36], b"1   ");
    }
}
