//! Copies of cached blocks, with which another process that opens the pool fills its read cache.
//!
//! An address names the same bytes forever, so a copy is right however old it is. It carries a checksum,
//! since it passes through memory that this process does not control.

use forebay_format::{Address, BLOCK, crc32c};

/// Bytes of the address and of the flag in front of the block.
const HEAD: usize = 12;

/// A block of the read cache, with its address and whether it was used since it was inserted.
///
/// | bytes | |
/// |---|---|
/// | 8 | address |
/// | 4 | 1 if it was used |
/// | 4096 | content |
/// | 4 | CRC-32C of all before |
///
/// Integers are little-endian.
pub struct CachedBlock([u8; CachedBlock::SIZE]);

impl CachedBlock {
    /// Size of a copy in bytes.
    pub const SIZE: usize = HEAD + BLOCK + 4;

    pub(super) fn new(key: u64, is_used: bool, content: &[u8]) -> CachedBlock {
        let mut bytes = [0; CachedBlock::SIZE];
        bytes[..8].copy_from_slice(&key.to_le_bytes());
        bytes[8..HEAD].copy_from_slice(&u32::from(is_used).to_le_bytes());
        bytes[HEAD..HEAD + BLOCK].copy_from_slice(content);
        CachedBlock(bytes)
    }

    /// Computes the checksum of the copy. This is a separate step, because copies are made under the lock of
    /// a shard.
    pub(super) fn seal(&mut self) {
        let crc = crc32c(&self.0[..HEAD + BLOCK]);
        self.0[HEAD + BLOCK..].copy_from_slice(&crc.to_le_bytes());
    }

    /// The bytes of the copy.
    pub fn as_bytes(&self) -> &[u8; CachedBlock::SIZE] {
        &self.0
    }

    /// Decodes a copy into address, use and content; `None` if the copy is damaged.
    pub(super) fn decode(copy: &[u8; CachedBlock::SIZE]) -> Option<(Address, bool, &[u8; BLOCK])> {
        let (key, rest) = copy.split_first_chunk()?;
        let (used, rest) = rest.split_first_chunk()?;
        let (content, crc) = rest.split_first_chunk()?;
        let is_sound = crc32c(&copy[..HEAD + BLOCK]).to_le_bytes() == crc;
        is_sound
            .then(|| (Address::from_u64(u64::from_le_bytes(*key)), u32::from_le_bytes(*used) == 1, content))
    }
}
