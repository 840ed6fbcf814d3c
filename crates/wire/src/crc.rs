//! The CRC-32C digest of iSCSI (RFC 7143, 13.1) and of NVMe/TCP (NVMe/TCP Transport 1.0, 3.4), and CRC-32.

/// The digest of some bytes and of `padding` zeroes after them.
pub fn crc32c(bytes: &[u8], padding: usize) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(bytes);
    digest.update(&[0; 3][..padding]);
    digest.finalize() as u32
}

/// The checksum CRC-32 of ISO 3309, which keys of NVMe hosts contain.
pub fn crc32(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_7143() {
        // RFC 7143, appendix A.4; the digest is sent with its least significant byte first.
        assert_eq!(crc32c(&[0; 32], 0).to_le_bytes(), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc32c(&[0xff; 32], 0).to_le_bytes(), [0x43, 0xab, 0xa8, 0x62]);
        let up: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&up, 0).to_le_bytes(), [0x4e, 0x79, 0xdd, 0x46]);
        assert_eq!(crc32c(&[0; 29], 3), crc32c(&[0; 32], 0));
    }
}
