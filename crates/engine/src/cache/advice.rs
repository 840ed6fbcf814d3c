//! Advice on the size of the read cache: how many reads of blocks from the store a larger cache would save.
//!
//! **Theory.** Miniature simulation (Waldspurger et al., "Cache Modeling and Optimization using Miniature
//! Simulations", USENIX ATC 2017). One block of N is *sampled*, chosen by a hash of its address. Caches of
//! 1/N of the frames receive the look-ups and insertions of sampled blocks, so each of them sees the same
//! pattern of reuse as a cache of full size sees on all blocks, and has about the same hit rate. The
//! miniatures are shards without contents: they run the same code as the cache. One miniature represents the
//! present size, the others represent the sizes of [`LARGER`]. The advice is the share of misses that a
//! larger miniature saves, compared with the miniature of the present size, times the misses of the cache
//! itself. The numbers of misses are not multiplied by N: a share is more exact, because all miniatures have
//! the same sample, whose error mostly cancels out.
//!
//! A list of evicted blocks would be simpler, but is right for LRU only, whose larger cache holds
//! everything that the smaller one holds. The policy here keeps a part of a loop that does not fit, and
//! evicts the rest of it again and again: in such a list, a loop that a slightly larger cache would hold
//! looks far longer.
//!
//! **Error.** With the smallest sample, the saved share of all look-ups is within 0.01 of that of an
//! exact simulation on skewed and moving loads, and within 0.05 on loops (`tests/advice.rs`). The error
//! decreases with the square root of the sample. Counting therefore begins when the miniature of the
//! present size has been filled twice, and proceeds in *rounds* of at least [`ROUND_MISSES`] of its
//! misses.
//!
//! Not counted: reads that a larger cache would save by holding blocks that are read ahead before a guest
//! requests them. Such reads are not misses.
//!
//! **Costs.** A look-up or insertion of a block that is not sampled costs one multiplication and one
//! comparison. For a sampled block, it costs a few look-ups under a lock. Memory is part of the cache's
//! budget: at most 64 bytes for each frame of the miniatures, which is under 0.4 % of the budget, and under 2
//! MiB.

use std::time::Duration;

use super::frames::Chunk;
use super::shard::{Rank, Shard, hash_of};
use super::share::Owner;
use crate::CacheAdvice;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The larger sizes of the cache, in percent of the present size.
const LARGER: [u64; 4] = [110, 125, 150, 200];
const CACHES: usize = 1 + LARGER.len();
/// Maximum number of frames of the simulated cache of the present size.
const MAX_FRAMES: usize = 4096;
/// Minimum number of these frames. Caches under 60 MiB would have fewer, and get no advice.
const MIN_FRAMES: usize = 448;
/// Minimum number of blocks of which one is sampled.
const MIN_ONE_OF: u64 = 32;
/// Minimum number of misses of the simulated cache of the present size in a round.
const ROUND_MISSES: u64 = 256;
/// Rates are means over a time between this duration and its double, or longer if a round takes longer.
const WINDOW: Duration = Duration::from_secs(60);
/// Minimum time for a rate. A rate over less time would be meaningless.
const MIN_WINDOW: Duration = Duration::from_secs(1);

/// Exclusive upper limit of the numbers that [`draw`] returns.
const DRAWS: u64 = 1 << 24;

/// A number below [`DRAWS`] for each block, independent of the bits by which shards and indexes are
/// selected.
fn draw(key: u64) -> u64 {
    hash_of(key).wrapping_mul(0xa076_1d64_78bd_642f) >> 40
}

/// Simulates larger caches next to a read cache.
#[derive(Default)]
pub(super) struct Advisor {
    /// A block is sampled if its [`draw`] is lower than this number.
    sampled_below: AtomicU64,
    simulation: Mutex<Simulation>,
}

/// A time, and the numbers of saved reads at this time.
type Mark = (Duration, [u64; LARGER.len()]);

/// The counts at the start of a round.
struct Round {
    cache_misses: u64,
    misses: u64,
    spared: [u64; LARGER.len()],
}

#[derive(Default)]
struct Simulation {
    /// Number of blocks of which one is sampled; 0 if none is sampled.
    one_of: u64,
    /// Number of frames of the simulated cache of the present size.
    frames: usize,
    /// The simulated cache of the present size, then the simulated caches of [`LARGER`].
    caches: [Shard<0>; CACHES],
    /// Misses of each simulated cache since all of them are full.
    misses: [u64; CACHES],
    /// By how many misses each larger cache has had fewer than the cache of the present size; never
    /// decreases.
    spared: [u64; LARGER.len()],
    round: Option<Round>,
    /// The advice: misses of the real cache that larger caches would have saved in all complete rounds.
    saved: [u64; LARGER.len()],
    has_advice: bool,
    /// Start of the present window of rates, and of the next window.
    marks: Option<[Mark; 2]>,
}

impl Advisor {
    /// Sets the number of frames of the real cache. Returns the maximum bytes that the simulation takes.
    pub fn set_frames(&self, frames: usize) -> u64 {
        let one_of = (frames.div_ceil(MAX_FRAMES).next_power_of_two() as u64).max(MIN_ONE_OF);
        let present = frames / one_of as usize;
        let mut simulation = self.simulation.lock();
        if present < MIN_FRAMES || one_of > DRAWS {
            self.sampled_below.store(0, Relaxed);
            *simulation = Simulation::default();
            return 0;
        }
        if simulation.one_of != one_of {
            *simulation = Simulation { one_of, ..Simulation::default() };
        }
        self.sampled_below.store(DRAWS / one_of, Relaxed);
        simulation.set_frames(present)
    }

    fn is_sampled(&self, key: u64) -> bool {
        draw(key) < self.sampled_below.load(Relaxed)
    }

    /// A guest looked up a block, which the cache held or did not hold.
    pub fn looked_up(&self, key: u64, was_held: bool, reader: Owner) {
        if self.is_sampled(key) {
            self.simulation.lock().look_up(key, was_held, reader);
        }
    }

    /// A block was inserted into the cache.
    pub fn inserted(&self, key: u64, rank: Rank, owner: Owner) {
        if self.is_sampled(key) {
            self.simulation.lock().caches.iter_mut().for_each(|cache| insert(cache, key, rank, owner));
        }
    }

    /// Completes a round, if there are enough samples. `cache_misses` is the number of misses so far.
    pub fn tick(&self, now: Duration, cache_misses: u64) {
        self.simulation.lock().tick(now, cache_misses);
    }

    /// The advice for a cache with this budget; empty until the first round is complete.
    pub fn advice(&self, now: Duration, budget: u64) -> Vec<CacheAdvice> {
        self.simulation.lock().advice(now, budget)
    }

    /// Bytes of the simulation on the heap.
    pub fn heap_bytes(&self) -> u64 {
        self.simulation.lock().caches.iter().map(Shard::heap_bytes).sum()
    }
}

fn insert(cache: &mut Shard<0>, key: u64, rank: Rank, owner: Owner) {
    if let Some(frames) = cache.wanted() {
        Chunk::new(frames).into_iter().for_each(|chunk| cache.add(chunk));
    }
    cache.insert(key, &[], rank, owner);
}

impl Simulation {
    fn set_frames(&mut self, frames: usize) -> u64 {
        self.frames = frames;
        let mut cost = 0;
        for (cache, percent) in self.caches.iter_mut().zip([100].into_iter().chain(LARGER)) {
            let limit = frames * percent as usize / 100;
            cache.set_limit(limit);
            while cache.shrink() {}
            cost += Shard::<0>::cost(limit);
        }
        cost
    }

    /// Whether the simulated caches have been filled. The smallest must have been filled twice, so that the
    /// largest, which has double its size, is full or holds all that was read.
    fn is_filled(&self) -> bool {
        self.one_of > 0 && self.caches[0].evictions >= self.frames as u64
    }

    fn look_up(&mut self, key: u64, was_held: bool, reader: Owner) {
        let counted = u64::from(self.is_filled());
        for (cache, misses) in self.caches.iter_mut().zip(&mut self.misses) {
            if !cache.get(key, 0, &mut [], reader) {
                *misses += counted;
                // If the block was not held, its insertion into the cache follows.
                if was_held {
                    insert(cache, key, Rank::Normal, reader);
                }
            }
        }
        for (spared, misses) in self.spared.iter_mut().zip(&self.misses[1..]) {
            *spared = (*spared).max(self.misses[0].saturating_sub(*misses));
        }
    }

    fn tick(&mut self, now: Duration, cache_misses: u64) {
        if !self.is_filled() {
            return;
        }
        let [old, new] = self.marks.get_or_insert([(now, self.saved); 2]);
        let begin = Round { cache_misses, misses: self.misses[0], spared: self.spared };
        let Some(round) = &self.round else {
            self.round = Some(begin);
            return;
        };
        let misses = begin.misses - round.misses;
        if misses < ROUND_MISSES {
            return;
        }
        for (at, saved) in self.saved.iter_mut().enumerate() {
            let spared = u128::from(begin.spared[at] - round.spared[at]);
            *saved += (spared * u128::from(cache_misses - round.cache_misses) / u128::from(misses)) as u64;
        }
        self.has_advice = true;
        self.round = Some(begin);
        if now.saturating_sub(new.0) >= WINDOW {
            *old = std::mem::replace(new, (now, self.saved));
        }
    }

    fn advice(&self, now: Duration, budget: u64) -> Vec<CacheAdvice> {
        let Some([(since, before), _]) = self.marks.filter(|_| self.has_advice) else { return Vec::new() };
        let time = now.saturating_sub(since);
        let of_size = |at: usize, percent| CacheAdvice {
            size: (u128::from(budget) * u128::from(percent) / 100) as u64,
            more_percent: percent - 100,
            saved_reads: self.saved[at],
            saved_reads_per_s: (time >= MIN_WINDOW)
                .then(|| (self.saved[at] - before[at]) as f64 / time.as_secs_f64()),
        };
        LARGER.into_iter().enumerate().map(|(at, percent)| of_size(at, percent)).collect()
    }
}
