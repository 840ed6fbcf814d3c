//! The two checksums: CRC-32C for a block, CRC-64/NVME for structures and batches.

use crc_fast::{CrcAlgorithm, Digest, checksum};

/// CRC-32C (Castagnoli, RFC 3720 appendix B.4), used for a block's plain contents.
pub fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-64/NVME of `bytes`.
pub fn check64(bytes: &[u8]) -> u64 {
    checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

/// CRC-64/NVME over several pieces.
#[derive(Debug)]
pub struct Check64(Digest);

impl Default for Check64 {
    fn default() -> Self {
        Check64(Digest::new(CrcAlgorithm::Crc64Nvme))
    }
}

impl Check64 {
    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
    /// The checksum of all pieces.
    pub fn finish(&self) -> u64 {
        self.0.finalize()
    }
}
