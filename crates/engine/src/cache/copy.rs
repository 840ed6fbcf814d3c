//! Copies of cached blocks, with which another process that opens the pool fills its read cache.
//!
//! An address names the same bytes forever, so a copy is right however old it is. It carries a checksum,
//! since it passes through memory that this process does not control.

use forebay_format::{Address, BLOCK, crc32c};

use super::ReadCache;
use super::shard::Rank;

/// Bytes of the address and of the flag.
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
#[derive(Clone)]
pub struct CachedBlock(Box<[u8; CachedBlock::SIZE]>);

impl CachedBlock {
    /// Bytes of a copy.
    pub const SIZE: usize = HEAD + BLOCK + 4;

    pub(super) fn new(key: u64, is_used: bool, content: &[u8]) -> CachedBlock {
        let mut bytes = Box::new([0; CachedBlock::SIZE]);
        bytes[..8].copy_from_slice(&key.to_le_bytes());
        bytes[8..HEAD].copy_from_slice(&u32::from(is_used).to_le_bytes());
        bytes[HEAD..HEAD + BLOCK].copy_from_slice(content);
        CachedBlock(bytes)
    }

    /// Computes the checksum. Separate, because copies are made under the lock of a shard.
    pub(super) fn seal(&mut self) {
        let crc = crc32c(&self.0[..HEAD + BLOCK]);
        self.0[HEAD + BLOCK..].copy_from_slice(&crc.to_le_bytes());
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; CachedBlock::SIZE] {
        &self.0
    }
}

impl ReadCache {
    /// Passes a copy of each block to `receive`, until that returns false. Blocks that are inserted or evicted
    /// at the same time may be left out.
    pub fn copy_all(&self, receive: &mut dyn FnMut(&CachedBlock) -> bool) {
        let mut some = Vec::new();
        for place in &self.places {
            let mut next = Some(0);
            while let Some(from) = next {
                next = place.0.lock().copy_some(from, &mut some);
                for block in &mut some {
                    block.seal();
                    if !receive(block) {
                        return;
                    }
                }
                some.clear();
            }
        }
    }

    /// Inserts a copy, unless it is damaged, the block is held, or it would displace another one. Returns
    /// whether there is room for more.
    pub fn insert_copy(&self, copy: &[u8; CachedBlock::SIZE]) -> bool {
        if !self.has_room() {
            return false;
        }
        let (head, rest) = copy.split_at(HEAD);
        let (Some((key, used)), Some((content, crc))) =
            (head.split_first_chunk(), rest.split_first_chunk::<BLOCK>())
        else {
            return true;
        };
        let addr = Address::from_u64(u64::from_le_bytes(*key));
        if crc32c(&copy[..HEAD + BLOCK]).to_le_bytes() == crc && !self.contains(addr) {
            let rank = if used[0] == 1 { Rank::High } else { Rank::Normal };
            self.insert_as(addr, content, rank);
        }
        self.has_room()
    }
}
