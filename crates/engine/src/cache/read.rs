//! The read cache: blocks by address, in shards.

use forebay_format::{Address, BLOCK};

use super::frames::Chunk;
use super::shard::{Rank, Shard, hash_of};
use crate::CacheStats;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Most shards. Two readers meet in one with a chance of 1 in 64, for the 100 ns of a copy.
const MAX_SHARDS: usize = 64;
/// Least budget of a shard, where there are several: in smaller ones, the load of the shards would be uneven.
const MIN_SHARD_BYTES: u64 = 4 << 20;

/// A shard on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Place(Mutex<Shard>);

/// Blocks in RAM, keyed by address. See the [module](super) for what holds of them.
///
/// A small budget uses fewer shards. A change of their number empties the cache; a reader or writer that
/// still goes by the old number meets an empty shard or leaves a block where nobody looks for it, and neither
/// can be wrong, since an address has one content for ever.
pub(crate) struct ReadCache {
    places: Box<[Place]>,
    /// Shards in use, a power of two.
    active: AtomicUsize,
    budget: AtomicU64,
    /// Some shard has no frame left: what comes in pushes something out.
    full: AtomicBool,
    /// Held while the budget changes.
    resizing: Mutex<()>,
}

impl ReadCache {
    /// A cache that takes at most `budget` bytes, overhead included. With 0 it holds nothing.
    pub fn new(budget: u64) -> ReadCache {
        let cache = ReadCache {
            places: (0..MAX_SHARDS).map(|_| Place::default()).collect(),
            active: AtomicUsize::new(1),
            budget: AtomicU64::new(0),
            full: AtomicBool::new(false),
            resizing: Mutex::new(()),
        };
        cache.set_budget(budget);
        cache
    }

    fn place(&self, hash: u64) -> &Mutex<Shard> {
        // The index uses the lowest and the highest bits.
        &self.places[(hash >> 40) as usize & (self.active.load(Relaxed) - 1)].0
    }

    /// Copies bytes of the block at `addr`, from `offset_in_block` on, to `out`, and counts a hit; where it is
    /// not held, counts a miss, leaves `out` as it is, and returns `false`.
    pub fn get(&self, addr: Address, offset_in_block: usize, out: &mut [u8]) -> bool {
        let (key, hash) = (addr.to_u64(), hash_of(addr.to_u64()));
        let mut shard = self.place(hash).lock();
        let hit = shard.get(key, hash, offset_in_block, out);
        shard.misses += u64::from(!hit);
        hit
    }

    /// As [`ReadCache::get`], but counts no miss: for a caller that comes back with `get` after a miss.
    pub fn probe(&self, addr: Address, offset_in_block: usize, out: &mut [u8]) -> bool {
        let (key, hash) = (addr.to_u64(), hash_of(addr.to_u64()));
        self.place(hash).lock().get(key, hash, offset_in_block, out)
    }

    /// As [`ReadCache::get`], but leaves no trace: for a caller whose reads say nothing of what guests will read.
    pub fn peek(&self, addr: Address, offset_in_block: usize, out: &mut [u8]) -> bool {
        let (key, hash) = (addr.to_u64(), hash_of(addr.to_u64()));
        self.place(hash).lock().peek(key, hash, offset_in_block, out)
    }

    /// [`ReadCache::insert_as`] any other.
    #[cfg(test)]
    pub fn insert(&self, addr: Address, block: &[u8; BLOCK]) {
        self.insert_as(addr, block, Rank::Normal);
    }

    /// Takes in a block whose checksum was verified. Doing so again changes nothing.
    pub fn insert_as(&self, addr: Address, block: &[u8; BLOCK], rank: Rank) {
        if rank == Rank::Never {
            return;
        }
        let (key, hash) = (addr.to_u64(), hash_of(addr.to_u64()));
        let place = self.place(hash);
        let mut shard = place.lock();
        if let Some(frames) = shard.wanted() {
            drop(shard);
            let chunk = Chunk::new(frames);
            shard = place.lock();
            chunk.into_iter().for_each(|chunk| shard.add(chunk));
        }
        shard.insert(key, hash, block, rank);
        if shard.is_full() && !self.full.load(Relaxed) {
            self.full.store(true, Relaxed);
        }
    }

    /// Whether what comes in pushes nothing out.
    pub fn has_room(&self) -> bool {
        !self.full.load(Relaxed)
    }

    /// Whether the block is held; not a use of it. It may be gone a moment later.
    pub fn contains(&self, addr: Address) -> bool {
        let (key, hash) = (addr.to_u64(), hash_of(addr.to_u64()));
        self.place(hash).lock().contains(key, hash)
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
        let each = Shard::frames_within(budget / active as u64);
        self.set_limits(|at| if at < active { each } else { 0 });
        self.full.store(false, Relaxed);
    }

    fn set_limits(&self, limit: impl Fn(usize) -> usize) {
        for (at, place) in self.places.iter().enumerate() {
            place.0.lock().set_limit(limit(at));
            while place.0.lock().shrink() {}
        }
    }

    /// Hits, misses, bytes held with all overhead, budget.
    pub fn stats(&self) -> CacheStats {
        let mut stats = CacheStats { budget: self.budget.load(Relaxed), ..CacheStats::default() };
        for place in &self.places {
            let shard = place.0.lock();
            stats.hits += shard.hits;
            stats.misses += shard.misses;
            stats.bytes += shard.heap_bytes();
        }
        stats
    }

    /// Blocks held.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.places.iter().map(|place| place.0.lock().len()).sum()
    }
}
