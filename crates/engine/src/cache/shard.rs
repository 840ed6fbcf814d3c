//! One shard of the read cache: an index, frames, and the S3-FIFO policy (Yang et al., "FIFO Queues are All
//! You Need for Cache Eviction", SOSP 2023).
//!
//! New blocks enter the *small* queue, a tenth of the frames. Blocks that are used in this queue are promoted
//! to the *main* queue. The other blocks are evicted early and remembered by the ghost; if such a block is
//! inserted again, it enters the main queue. A scan therefore passes through the small queue and does not
//! change the main queue. A hit changes only one counter: no queue is reordered.
//!
//! **Shares.** This policy favours the disk that reads most. If a busy disk repeatedly reads somewhat more
//! data than the cache holds, each of its blocks is used again. Its blocks then evict the blocks of disks
//! that read less, although those blocks are used more often. So while a disk takes more than its share
//! ([`super::share`]), the blocks of disks below their shares get two advantages. They have a separate ghost,
//! which the busy disk does not fill. And once they are used, they pass through the main queue many times. A
//! block still has to be used twice to enter the main queue, so a scan gains nothing.

use forebay_format::BLOCK;
use hashbrown::HashTable;

use super::copy::CachedBlock;
use super::frames::{CHUNK_FRAMES, Chunk, Frames, Meta, Queue};
use super::ghost::Ghost;
use super::share::{Owner, Shares};

/// Hits that are counted: 0 to 3, as in the paper.
const MAX_HITS: u8 = 3;
/// Number of times that a used block of a disk below its share passes through the main queue before it is
/// evicted: it may be used much more rarely than the blocks of busier disks.
const LAPS_BELOW_SHARE: u8 = 63;
/// Hits in the small queue that promote a block to the main queue. The paper uses two. One hit gives the same
/// hit rates on skewed loads and scans, and follows a moving working set sooner (see the tests).
const PROMOTE_HITS: u8 = 1;
/// Share of the small queue: one part in this number of the frames.
const SMALL_SHARE: usize = 10;
/// Maximum number of frames examined for one eviction, so that the lock is held briefly. The next frame is
/// then evicted even if it has hits; if its disk is below its share, twice as many frames are examined.
const MAX_STEPS: usize = 128;

/// Bytes of a shard that do not depend on its frames: the smallest index and ghosts, a chunk's record, the
/// shares.
const BASE_COST: u64 = 512 + size_of::<Shares>() as u64;
/// Maximum bytes of a frame in addition to its block: 16 bytes of metadata; at most 23 in the index (5 per
/// bucket, of which 7/8 are usable; a table in which erased buckets accumulate doubles once beyond the size
/// that its content needs); 8 in the ghosts; 17 in reserve.
const FRAME_OVERHEAD: u64 = 64;

/// Number of frames that [`Shard::copy_some`] examines.
pub(super) const COPIED_AT_ONCE: u32 = 64;

/// Like [`PROMOTE_HITS`], for blocks of [`Rank::Low`].
const PROMOTE_HITS_LOW: u8 = 2;

/// A block's priority in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// The block is not inserted.
    Never,
    /// The block is inserted only into a free frame: it does not displace another block.
    Spare,
    /// The block must be used twice before it is kept: it is not expected to be used again, or was not
    /// requested yet.
    Low,
    /// The block must be used again before it is kept.
    Normal,
    /// The block is known to be used: it enters the main queue at once, and passes through it a second time
    /// before eviction.
    High,
}

/// Spreads a key over all bits. An adversary cannot choose addresses, so no secret is mixed in.
pub(super) fn hash_of(key: u64) -> u64 {
    let wide = u128::from(key ^ 0x2d35_8dcc_aa6c_78a5) * 0x9e37_79b9_7f4a_7c15_u128;
    (wide >> 64) as u64 ^ wide as u64
}

/// Bits of a key that are below the number of its 32 KiB of a segment: see [`place_of`].
const NEIGHBOURS: u32 = 9;

/// Hash that selects the shard of a key, and the key's place in the index of that shard.
///
/// The blocks of the same 32 KiB of a segment, which were written one after the other, have adjacent places
/// in one shard: a sequential read then finds the entries of the index, the metadata and the frames of
/// neighbours in the same cache lines and pages. With independent places, each block of such a read costs
/// several cache misses, which take longer than the look-up itself.
///
/// The lowest bits are the place, and the highest seven bits are a tag by which the index tells apart keys of
/// the same place.
pub(super) fn place_of(key: u64) -> u64 {
    // Every other place: an erased entry of a full row of places stays in the index until it is rebuilt.
    let place = hash_of(key >> NEIGHBOURS).wrapping_add((key >> 5) & 15);
    let tag = (key & ((1 << NEIGHBOURS) - 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57;
    place ^ (tag << 57)
}

/// A part of the cache with a separate lock. A shard with blocks of 0 bytes simulates a cache: the policy is
/// the same, but the shard holds no contents.
pub(super) struct Shard<const BYTES: usize> {
    limit: usize,
    index: HashTable<u32>,
    frames: Frames<BYTES>,
    free: Queue,
    small: Queue,
    main: Queue,
    ghost: Ghost,
    /// Evicted blocks of disks below their share. They need a separate list, since other disks evict many
    /// blocks, so that these would soon be forgotten.
    ghost_below: Ghost,
    shares: Shares,
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
}

impl<const BYTES: usize> Default for Shard<BYTES> {
    fn default() -> Self {
        Shard {
            limit: 0,
            index: HashTable::new(),
            frames: Frames::default(),
            free: Queue::EMPTY,
            small: Queue::EMPTY,
            main: Queue::EMPTY,
            ghost: Ghost::default(),
            ghost_below: Ghost::default(),
            shares: Shares::default(),
            hits: 0,
            misses: 0,
            evictions: 0,
        }
    }
}

impl<const BYTES: usize> Shard<BYTES> {
    /// Number of frames that fit a budget.
    pub fn frames_within(budget: u64) -> usize {
        (budget.saturating_sub(BASE_COST) / (BYTES as u64 + FRAME_OVERHEAD)) as usize
    }

    /// Returns the maximum bytes that a shard of `frames` frames takes.
    pub fn cost(frames: usize) -> u64 {
        BASE_COST + frames as u64 * (BYTES as u64 + FRAME_OVERHEAD)
    }

    /// Number of blocks in the shard.
    pub fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    /// Whether the next insertion evicts a block.
    pub fn is_full(&self) -> bool {
        self.free.len() == 0 && self.frames.capacity() >= self.limit
    }

    /// Bytes on the heap, used or not.
    pub fn heap_bytes(&self) -> u64 {
        (self.frames.heap_bytes()
            + self.index.allocation_size()
            + self.ghost.heap_bytes()
            + self.ghost_below.heap_bytes()) as u64
    }

    fn find(&self, key: u64) -> Option<u32> {
        self.index.find(place_of(key), |f| self.frames.meta(*f).key == key).copied()
    }

    /// Whether the shard holds the block; not counted as a hit.
    pub fn contains(&self, key: u64) -> bool {
        self.find(key).is_some()
    }

    /// See [`super::ReadCache::is_used`].
    pub fn is_used(&self, key: u64) -> bool {
        self.find(key).is_some_and(|frame| self.frames.meta(frame).hits > 0)
    }

    /// Works like [`Shard::get`], but does not count as a use of the block.
    pub fn peek(&self, key: u64, offset: usize, out: &mut [u8]) -> bool {
        let Some(frame) = self.find(key) else { return false };
        out.copy_from_slice(&self.frames.block(frame)[offset..offset + out.len()]);
        true
    }

    /// Copies from the block to `out`, from byte `offset` on, for a disk.
    pub fn get(&mut self, key: u64, offset: usize, out: &mut [u8], reader: Owner) -> bool {
        let Some(frame) = self.find(key) else { return false };
        let (meta, block) = self.frames.hit(frame);
        meta.owner = self.shares.used_by(meta.owner, reader);
        if meta.is_main && self.shares.is_below(meta.owner) {
            meta.hits = LAPS_BELOW_SHARE;
        } else if meta.hits < MAX_HITS {
            meta.hits += 1;
        }
        out.copy_from_slice(&block[offset..offset + out.len()]);
        self.hits += 1;
        true
    }

    /// Length of the chunk that [`Shard::add`] is to receive before the next insertion, if one is due.
    pub fn wanted(&self) -> Option<usize> {
        if self.free.len() == 0 { self.frames.wanted(self.limit) } else { None }
    }

    /// Adds a chunk, unless the shard no longer needs it: the lock was not held while the chunk was
    /// allocated.
    pub fn add(&mut self, chunk: Chunk<BYTES>) {
        if self.wanted() == Some(chunk.len()) {
            for frame in self.frames.add(chunk) {
                self.free.push(&mut self.frames, frame);
            }
        }
    }

    /// Inserts a block, or overwrites the block that is held for the same key.
    pub fn insert(&mut self, key: u64, block: &[u8; BYTES], rank: Rank, owner: Owner) {
        if let Some(frame) = self.find(key) {
            self.frames.block_mut(frame).copy_from_slice(block);
            return;
        }
        if rank == Rank::Spare && self.free.len() == 0 {
            return;
        }
        let Some(frame) = self.take_frame() else { return };
        let hash = hash_of(key);
        let (is_high, is_low) = (rank == Rank::High, rank == Rank::Low);
        let is_main = self.ghost.take(hash) | self.ghost_below.take(hash) | is_high;
        self.shares.add(owner);
        let hits = if is_main { self.first_laps(owner).max(u8::from(is_high)) } else { 0 };
        *self.frames.meta_mut(frame) = Meta { key, next: 0, hits, is_low, is_main, owner };
        self.frames.block_mut(frame).copy_from_slice(block);
        let frames = &self.frames;
        self.index.insert_unique(place_of(key), frame, |f| place_of(frames.meta(*f).key));
        let queue = if is_main { &mut self.main } else { &mut self.small };
        queue.push(&mut self.frames, frame);
    }

    /// Takes a frame to fill: a free frame, or the frame of an evicted block. `None` in a shard without a
    /// budget.
    fn take_frame(&mut self) -> Option<u32> {
        if self.free.len() == 0 {
            self.evict();
        }
        if self.limit == 0 {
            return None;
        }
        self.free.pop(&self.frames)
    }

    /// Evicts one block, if the shard holds any.
    fn evict(&mut self) {
        let small_target = (self.limit / SMALL_SHARE).max(1);
        for step in 0.. {
            let patient = step < MAX_STEPS;
            if self.small.len() >= small_target || self.main.len() == 0 {
                let Some(frame) = self.small.pop(&self.frames) else { return };
                let meta = *self.frames.meta(frame);
                let wanted = if meta.is_low { PROMOTE_HITS_LOW } else { PROMOTE_HITS };
                if meta.hits < wanted || !patient {
                    let was_wanted = !meta.is_low || meta.hits > 0;
                    if was_wanted {
                        let is_below = self.shares.is_below(meta.owner);
                        let ghost = if is_below { &mut self.ghost_below } else { &mut self.ghost };
                        ghost.insert(hash_of(meta.key));
                    }
                    return self.release(frame);
                }
                let hits = self.first_laps(meta.owner);
                *self.frames.meta_mut(frame) = Meta { hits, is_main: true, ..meta };
                self.main.push(&mut self.frames, frame);
            } else {
                let Some(frame) = self.main.pop(&self.frames) else { return };
                let meta = self.frames.meta_mut(frame);
                let is_below = self.shares.is_below(meta.owner);
                // The disk may have been below its share when the block was used.
                let laps = if is_below { meta.hits } else { meta.hits.min(MAX_HITS) };
                if laps == 0 || !(patient || is_below && step < 2 * MAX_STEPS) {
                    return self.release(frame);
                }
                meta.hits = laps - 1;
                self.main.push(&mut self.frames, frame);
            }
        }
    }

    /// Number of hits with which a used block enters the main queue.
    fn first_laps(&self, owner: Owner) -> u8 {
        if self.shares.is_below(owner) { LAPS_BELOW_SHARE } else { 0 }
    }

    fn release(&mut self, frame: u32) {
        self.evictions += 1;
        let Meta { key, owner, .. } = *self.frames.meta(frame);
        self.shares.remove(owner);
        if let Ok(entry) = self.index.find_entry(place_of(key), |f| *f == frame) {
            entry.remove();
        }
        self.free.push(&mut self.frames, frame);
    }

    /// Sets the maximum number of blocks. If the limit decreases, the caller must call [`Shard::shrink`].
    pub fn set_limit(&mut self, limit: usize) {
        if limit != self.limit {
            self.limit = limit;
            self.ghost = Ghost::new(limit);
            self.ghost_below = Ghost::new(limit);
        }
    }

    /// Frees at most one chunk, after its remaining blocks were moved; returns whether there is more to free.
    /// Between two calls the caller can release the lock.
    pub fn shrink(&mut self) -> bool {
        if self.frames.capacity() <= self.limit {
            let frames = &self.frames;
            // Capacity for one more chunk: the next insertions need not reallocate.
            let room = (self.index.len() + CHUNK_FRAMES).min(self.limit);
            self.index.shrink_to(room, |f| place_of(frames.meta(*f).key));
            return false;
        }
        let first = self.frames.cut_from(self.limit);
        while self.len() > first as usize {
            self.evict();
        }
        let mut free = Queue::EMPTY;
        while let Some(frame) = self.free.pop(&self.frames) {
            if frame < first {
                free.push(&mut self.frames, frame);
            }
        }
        self.free = free;
        self.small = self.moved_below(self.small, first);
        self.main = self.moved_below(self.main, first);
        self.frames.cut(first);
        true
    }

    /// Returns the queue with every frame from `first` on replaced by a free frame below `first`.
    fn moved_below(&mut self, mut queue: Queue, first: u32) -> Queue {
        let mut kept = Queue::EMPTY;
        while let Some(frame) = queue.pop(&self.frames) {
            let mut to = frame;
            if frame >= first {
                let Some(free) = self.free.pop(&self.frames) else {
                    unreachable!("enough blocks were evicted for the others to fit")
                };
                let place = place_of(self.frames.meta(frame).key);
                self.frames.move_from_last(frame, free);
                if let Some(entry) = self.index.find_mut(place, |f| *f == frame) {
                    *entry = free;
                }
                to = free;
            }
            kept.push(&mut self.frames, to);
        }
        kept
    }
}

impl Shard<BLOCK> {
    /// Appends copies of the blocks in the next [`COPIED_AT_ONCE`] frames to `out`, from frame `from` on;
    /// returns the frame with which to continue. The number is small, so that the lock is held briefly.
    pub fn copy_some(&self, from: u32, out: &mut Vec<CachedBlock>) -> Option<u32> {
        let (capacity, until) = (self.frames.capacity() as u32, from.saturating_add(COPIED_AT_ONCE));
        for frame in from..until.min(capacity) {
            let Meta { key, hits, .. } = *self.frames.meta(frame);
            // A free frame keeps the key of its last block.
            if self.find(key) == Some(frame) {
                out.push(CachedBlock::new(key, hits > 0, self.frames.block(frame)));
            }
        }
        (until < capacity).then_some(until)
    }
}
