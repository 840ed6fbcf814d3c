//! The ghost: the blocks that recently left the small queue without a second use.
//!
//! A ghost hit admits a block directly to the main queue, so a false positive costs only a little hit rate.
//! This permits a set-associative table of 32-bit tags in place of an exact queue: 4 bytes per frame, one
//! cache line per look-up, first in, first out within a set.

const WAYS: usize = 8;

/// Tags of blocks that were evicted, the newest first in each set; 0 means no tag.
#[derive(Default)]
pub(super) struct Ghost {
    sets: Box<[[u32; WAYS]]>,
}

impl Ghost {
    /// Remembers about as many blocks as there are frames.
    pub fn new(frames: usize) -> Ghost {
        Ghost { sets: vec![[0; WAYS]; frames.div_ceil(WAYS)].into() }
    }

    /// Bytes of the ghost entries on the heap.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.sets)
    }

    fn set(&mut self, hash: u64) -> Option<(&mut [u32; WAYS], u32)> {
        // The shard and its index use other bits of the hash; mixing again makes set and tag independent.
        let mixed = hash.wrapping_mul(0xd6e8_feb8_6659_fd93);
        let at = ((mixed >> 32) * self.sets.len() as u64) >> 32;
        let tag = (mixed as u32 ^ (hash >> 32) as u32).max(1);
        self.sets.get_mut(at as usize).map(|set| (set, tag))
    }

    /// Remembers a block.
    pub fn insert(&mut self, hash: u64) {
        if let Some((set, tag)) = self.set(hash) {
            set.copy_within(..WAYS - 1, 1);
            set[0] = tag;
        }
    }

    /// Removes a block; returns whether it was remembered.
    pub fn take(&mut self, hash: u64) -> bool {
        let Some((set, tag)) = self.set(hash) else { return false };
        let Some(at) = set.iter().position(|t| *t == tag) else { return false };
        set.copy_within(at + 1.., at);
        set[WAYS - 1] = 0;
        true
    }
}
