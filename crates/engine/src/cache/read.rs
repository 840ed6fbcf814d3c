//! The read cache: blocks by address, in shards.

use std::time::Duration;

use forebay_format::{Address, BLOCK};

use super::advice::Advisor;
use super::copy::CachedBlock;
use super::frames::Chunk;
use super::shard::{COPIED_AT_ONCE, Rank, Shard, place_of};
use super::share::Owner;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use crate::{CacheAdvice, CacheStats};

/// Maximum number of shards. Readers of different blocks seldom use the same shard, for the 100 ns of a copy.
/// While a shard rebuilds its index, which takes milliseconds for each 100,000 blocks, its readers wait.
const MAX_SHARDS: usize = 256;
/// Minimum budget of a shard if there are several shards: with less, the neighbouring blocks that share a
/// shard would make the load of the shards uneven.
const MIN_SHARD_BYTES: u64 = 16 << 20;

/// A shard on separate cache lines.
#[derive(Default)]
#[repr(align(128))]
struct PaddedShard(Mutex<Shard<BLOCK>>);

/// Blocks in RAM, keyed by address. Its invariants are in the [module documentation](super).
///
/// A small budget uses fewer shards. Changing their number empties the cache; a concurrent reader or writer
/// that still uses the old number finds an empty shard, or inserts a block where no reader looks for it. Both
/// are harmless, since an address has one content forever.
pub(crate) struct ReadCache {
    places: Box<[PaddedShard]>,
    /// Number of shards in use, a power of two.
    active: AtomicUsize,
    budget: AtomicU64,
    /// Some shard has no free frame: an insertion evicts a block.
    full: AtomicBool,
    /// Locked while the budget of the cache changes.
    resizing: Mutex<()>,
    pub(super) advisor: Advisor,
}

impl ReadCache {
    /// Makes a cache that takes at most `budget` bytes, overhead included. With a budget of 0 it holds
    /// nothing.
    pub fn new(budget: u64) -> ReadCache {
        let cache = ReadCache {
            places: (0..MAX_SHARDS).map(|_| PaddedShard::default()).collect(),
            active: AtomicUsize::new(1),
            budget: AtomicU64::new(0),
            full: AtomicBool::new(false),
            resizing: Mutex::new(()),
            advisor: Advisor::default(),
        };
        cache.set_budget(budget);
        cache
    }

    fn place(&self, key: u64) -> &Mutex<Shard<BLOCK>> {
        // The shard's index uses the lowest and the highest bits.
        &self.places[(place_of(key) >> 40) as usize & (self.active.load(Relaxed) - 1)].0
    }

    /// Copies bytes of the block at `addr`, from `offset_in_block` on, to `out`, and counts a hit for the
    /// disk `reader`. If the cache does not hold the block, counts a miss, leaves `out` unchanged, and
    /// returns `false`.
    pub fn get(&self, addr: Address, offset_in_block: usize, out: &mut [u8], reader: Owner) -> bool {
        let key = addr.to_u64();
        let mut shard = self.place(key).lock();
        let hit = shard.get(key, offset_in_block, out, reader);
        shard.misses += u64::from(!hit);
        drop(shard);
        self.advisor.looked_up(key, hit, reader);
        hit
    }

    /// Works like [`ReadCache::get`], but counts no miss: for a caller that calls `get` after a miss.
    pub fn probe(&self, addr: Address, offset_in_block: usize, out: &mut [u8], reader: Owner) -> bool {
        let key = addr.to_u64();
        let hit = self.place(key).lock().get(key, offset_in_block, out, reader);
        if hit {
            self.advisor.looked_up(key, true, reader);
        }
        hit
    }

    /// Works like [`ReadCache::get`], but counts no hit, no miss and no use: for a caller whose reads do not
    /// indicate future reads of guests.
    pub fn peek(&self, addr: Address, offset_in_block: usize, out: &mut [u8]) -> bool {
        let key = addr.to_u64();
        self.place(key).lock().peek(key, offset_in_block, out)
    }

    /// Inserts a block with [`Rank::Normal`]; see [`ReadCache::insert_as`].
    #[cfg(test)]
    pub fn insert(&self, addr: Address, block: &[u8; BLOCK]) {
        self.insert_as(addr, block, Rank::Normal, Owner::SHARED);
    }

    /// Inserts a block whose checksum was verified. Repeating an insertion changes nothing.
    pub fn insert_as(&self, addr: Address, block: &[u8; BLOCK], rank: Rank, owner: Owner) {
        // In a full cache, looking for the block would cost a long stream of writes more than its checksums.
        if rank == Rank::Never || (rank == Rank::Spare && !self.has_room()) {
            return;
        }
        let key = addr.to_u64();
        let place = self.place(key);
        let mut shard = place.lock();
        if let Some(frames) = shard.wanted() {
            drop(shard);
            let chunk = Chunk::new(frames);
            shard = place.lock();
            chunk.into_iter().for_each(|chunk| shard.add(chunk));
        }
        shard.insert(key, block, rank, owner);
        if shard.is_full() && !self.full.load(Relaxed) {
            self.full.store(true, Relaxed);
        }
        drop(shard);
        self.advisor.inserted(key, rank, owner);
    }

    /// Passes a copy of each block to `receive`, until that returns false. Blocks that are inserted or
    /// evicted at the same time may be left out.
    pub fn copy_all(&self, receive: &mut dyn FnMut(&CachedBlock) -> bool) {
        // Allocated before the loop, since no memory is allocated under the lock of a shard.
        let mut some = Vec::with_capacity(COPIED_AT_ONCE as usize);
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
    /// whether it was inserted. The other shards may have room when the shard of a copy is full.
    pub fn insert_copy(&self, copy: &[u8; CachedBlock::SIZE]) -> bool {
        let Some((addr, is_used, content)) = CachedBlock::decode(copy) else { return false };
        let key = addr.to_u64();
        let is_wanted = {
            let shard = self.place(key).lock();
            !shard.contains(key) && !shard.is_full()
        };
        if is_wanted {
            let rank = if is_used { Rank::High } else { Rank::Normal };
            self.insert_as(addr, content, rank, Owner::SHARED);
        }
        is_wanted
    }

    /// Whether the cache has room for a block without an eviction.
    pub fn has_room(&self) -> bool {
        !self.full.load(Relaxed)
    }

    /// Whether the cache holds the block; not counted as a use. The block may be evicted a moment later.
    pub fn contains(&self, addr: Address) -> bool {
        let key = addr.to_u64();
        self.place(key).lock().contains(key)
    }

    /// Whether the cache holds the block and the block counts as used: by a hit since it entered or passed
    /// through its queue, or by its rank. Not counted as a use.
    pub fn is_used(&self, addr: Address) -> bool {
        let key = addr.to_u64();
        self.place(key).lock().is_used(key)
    }

    /// Changes the budget; on return, no more than that is in use.
    pub fn set_budget(&self, budget: u64) {
        let _alone = self.resizing.lock();
        let wanted = (budget / MIN_SHARD_BYTES).clamp(1, MAX_SHARDS as u64) as usize;
        let active = 1 << wanted.ilog2();
        if active != self.active.load(Relaxed) {
            self.set_limits(|_| 0);
            self.active.store(active, Relaxed);
        }
        self.budget.store(budget, Relaxed);
        let advisor = self.advisor.set_frames(Shard::<BLOCK>::frames_within(budget));
        let each = Shard::<BLOCK>::frames_within((budget - advisor) / active as u64);
        self.set_limits(|at| if at < active { each } else { 0 });
        self.full.store(false, Relaxed);
    }

    fn set_limits(&self, limit: impl Fn(usize) -> usize) {
        for (at, place) in self.places.iter().enumerate() {
            place.0.lock().set_limit(limit(at));
            while place.0.lock().shrink() {}
        }
    }

    /// The budget of the cache in bytes.
    pub fn budget(&self) -> u64 {
        self.budget.load(Relaxed)
    }

    /// Hits, misses, bytes in use including all overhead, and the budget.
    pub fn stats(&self) -> CacheStats {
        let mut stats = CacheStats { budget: self.budget.load(Relaxed), ..CacheStats::default() };
        for place in &self.places {
            let shard = place.0.lock();
            stats.hits += shard.hits;
            stats.misses += shard.misses;
            stats.bytes += shard.heap_bytes();
        }
        stats.bytes += self.advisor.heap_bytes();
        stats
    }

    /// Number of blocks that were evicted.
    pub fn evictions(&self) -> u64 {
        self.places.iter().map(|place| place.0.lock().evictions).sum()
    }

    /// Updates the advice; to be called often, since rates are means of the time between some of the calls.
    pub fn tick(&self, now: Duration) {
        self.advisor.tick(now, self.places.iter().map(|place| place.0.lock().misses).sum());
    }

    /// The reads that larger sizes of the cache would save; empty before that is known.
    pub fn advice(&self, now: Duration) -> Vec<CacheAdvice> {
        self.advisor.advice(now, self.budget())
    }

    /// Number of blocks in the cache.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.places.iter().map(|place| place.0.lock().len()).sum()
    }
}
