//! Compares the advice with caches that are simulated exactly: all blocks, in each of the sizes.

use std::time::Duration;

use super::policy::Zipf;
use super::*;
use crate::CacheAdvice;
use crate::cache::frames::Chunk;
use crate::cache::shard::{Rank, Shard};
use crate::cache::{CachedBlock, Owner, ReadCache};

/// The smallest budget that gets advice, rounded up: it has the smallest sample.
const BUDGET: u64 = 64 << 20;
/// Blocks that fit it.
const FIT: u64 = 16_000;
/// Bounds on the error, as a share of all look-ups: for random loads, and for loops, in which all blocks have
/// the same distance of reuse.
const ERROR: f64 = 0.01;
const ERROR_LOOPS: f64 = 0.05;
const SHARES: [u64; 4] = [10, 25, 50, 100];

/// A cache of every block, without contents.
struct Exact(Shard<0>);

impl Exact {
    fn new(frames: usize) -> Exact {
        let mut shard = Shard::default();
        shard.set_limit(frames);
        Exact(shard)
    }

    fn access(&mut self, n: u64) {
        let key = address(n).to_u64();
        if self.0.get(key, 0, &mut [], Owner::SHARED) {
            return;
        }
        self.0.misses += 1;
        if let Some(frames) = self.0.wanted() {
            self.0.add(Chunk::new(frames).unwrap());
        }
        self.0.insert(key, &[], Rank::Normal, Owner::SHARED);
    }
}

fn access(cache: &ReadCache, n: u64) {
    let mut out = [0; 16];
    if !cache.get(address(n), 0, &mut out, Owner::SHARED) {
        cache.insert(address(n), &[0; BLOCK]);
    }
}

/// The advice, after an update.
fn advice(cache: &ReadCache, now_s: u64) -> Vec<CacheAdvice> {
    cache.tick(Duration::from_secs(now_s));
    cache.advice(Duration::from_secs(now_s))
}

fn saved(advice: &[CacheAdvice]) -> [u64; 4] {
    assert_eq!(advice.iter().map(|a| a.more_percent).collect::<Vec<_>>(), SHARES);
    [0, 1, 2, 3].map(|at| advice[at].saved_reads)
}

/// Shares of the look-ups in the second half of `accesses` that the sizes would save: as advised, and
/// exactly.
fn shares(accesses: &[u64]) -> [[f64; 4]; 2] {
    let cache = ReadCache::new(BUDGET);
    let mut exact = [0, 10, 25, 50, 100].map(|more| Exact::new((FIT * (100 + more) / 100) as usize));
    let (warm, counted) = accesses.split_at(accesses.len() / 2);
    let mut run = |part: &[u64]| {
        for n in part {
            access(&cache, *n);
            exact.iter_mut().for_each(|e| e.access(*n));
        }
        cache.tick(Duration::ZERO);
        let misses = exact.each_ref().map(|e| e.0.misses);
        [1, 2, 3, 4].map(|at| misses[0].saturating_sub(misses[at]))
    };
    let (before, after) = (run(warm), run(counted));
    let advised = saved(&cache.advice(Duration::ZERO));
    let share = |saved: u64| saved as f64 / counted.len() as f64;
    [advised.map(share), [0, 1, 2, 3].map(|at| share(after[at] - before[at]))]
}

fn agrees(what: &str, accesses: &[u64], most: f64) -> [f64; 4] {
    let [advised, exact] = shares(accesses);
    println!("{what}: advised {advised:.3?}, exact {exact:.3?}");
    for (advised, exact) in advised.iter().zip(exact) {
        assert!((advised - exact).abs() < most, "{what}: {advised:.3} instead of {exact:.3}");
    }
    exact
}

#[test]
fn skewed_loads() {
    for (seed, s) in [(1, 0.7), (2, 0.9), (3, 1.1)] {
        let (zipf, mut random) = (Zipf::new(100_000, s), Random(seed));
        let accesses = (0..800_000).map(|_| zipf.draw(&mut random)).collect::<Vec<_>>();
        agrees(&format!("zipf {s}"), &accesses, ERROR);
    }
}

/// A loop slightly longer than the cache is the case in which a little more memory saves most.
#[test]
fn loops() {
    for len in [FIT * 115 / 100, FIT * 140 / 100, FIT * 3] {
        let accesses = (0..20 * FIT).map(|n| n % len).collect::<Vec<_>>();
        let exact = agrees(&format!("loop of {len}"), &accesses, ERROR_LOOPS);
        assert!(exact[3] > 0.2, "{exact:?}");
    }
}

#[test]
fn a_skewed_load_beside_scans() {
    let (zipf, mut random) = (Zipf::new(40_000, 0.9), Random(4));
    let mut accesses = Vec::new();
    for scan in 0..30 {
        accesses.extend((0..20_000).map(|_| zipf.draw(&mut random)));
        accesses.extend((0..8_000).map(|n| 40_000 + scan * 8_000 + n));
    }
    agrees("zipf and scans", &accesses, ERROR);
}

#[test]
fn a_working_set_that_moves() {
    let (zipf, mut random) = (Zipf::new(20_000, 0.6), Random(5));
    let accesses = (0..800_000).map(|n| n / 40_000 * 6_000 + zipf.draw(&mut random)).collect::<Vec<_>>();
    agrees("moving set", &accesses, ERROR);
}

/// Without evictions nothing could be saved; with a few, nothing is certain; a small cache has no sample.
#[test]
fn there_is_no_advice_without_samples() {
    let cache = ReadCache::new(BUDGET);
    (0..FIT / 2).cycle().take(100_000).for_each(|n| access(&cache, n));
    assert_eq!(advice(&cache, 0), []);
    (0..FIT * 5 / 4).for_each(|n| access(&cache, FIT + n));
    assert_eq!(advice(&cache, 0), [], "the cache was filled once");
    (0..FIT * 3).for_each(|n| access(&cache, 3 * FIT + n));
    assert_eq!(advice(&cache, 0), [], "the first round begins");
    (0..100).for_each(|n| access(&cache, 6 * FIT + n));
    assert_eq!(advice(&cache, 0), [], "a few misses are no round");
    (0..FIT).for_each(|n| access(&cache, 7 * FIT + n));
    assert_eq!(saved(&advice(&cache, 0)), [0; 4], "nothing was read twice");
    cache.set_budget(BUDGET / 2);
    (0..FIT * 9).for_each(|n| access(&cache, n % FIT));
    assert_eq!(advice(&cache, 0), []);
}

/// A change of the budget that keeps the rate of sampling keeps the state of the simulation.
#[test]
fn sizes_follow_the_budget() {
    let cache = ReadCache::new(2 * BUDGET);
    let read = || (0..8 * FIT).for_each(|n| access(&cache, n % (FIT * 5 / 2)));
    read();
    assert_eq!(advice(&cache, 0), []);
    read();
    let before = saved(&advice(&cache, 0));
    assert!(before[1] > 0);
    cache.set_budget(BUDGET);
    let advice = cache.advice(Duration::ZERO);
    assert_eq!(saved(&advice), before);
    assert_eq!(advice.iter().map(|a| a.size).collect::<Vec<_>>(), SHARES.map(|s| BUDGET * (100 + s) / 100));
}

#[test]
fn rates_are_means_of_the_last_minutes() {
    let cache = ReadCache::new(BUDGET);
    let read = |count| (0..count).for_each(|n| access(&cache, n % (FIT * 5 / 4)));
    let last = |now_s| advice(&cache, now_s)[3];
    read(8 * FIT);
    assert_eq!(advice(&cache, 0), []);
    read(8 * FIT);
    let first = last(0);
    assert_eq!(first.saved_reads_per_s, None, "over no time");
    assert_eq!(last(10).saved_reads_per_s, Some(first.saved_reads as f64 / 10.0));
    read(8 * FIT);
    let second = last(70);
    assert_eq!(second.saved_reads_per_s, Some(second.saved_reads as f64 / 70.0));
    read(8 * FIT);
    let third = last(140);
    let since = third.saved_reads - second.saved_reads;
    assert!(since > 0);
    assert_eq!(third.saved_reads_per_s, Some(since as f64 / 70.0), "older reads no longer count");
    assert_eq!(last(490).saved_reads_per_s, Some(since as f64 / 420.0), "without reads, the rate decreases");
}

/// The simulation is within the budget, and within the bounds that are documented.
#[test]
fn its_memory_is_bounded() {
    for budget in [BUDGET, BUDGET * 5 / 2, 4 * BUDGET] {
        let cache = ReadCache::new(budget);
        (0..budget / 4096 * 3).for_each(|n| access(&cache, n));
        let stats = cache.stats();
        assert!(stats.bytes <= budget, "{} of {budget}", stats.bytes);
        let simulation = cache.advisor.heap_bytes();
        assert!(simulation > 0 && simulation <= budget / 250, "{simulation} of {budget}");
    }
    for gib in [1, 3, 10, 100, 1024, 4096] {
        let most = crate::cache::advice::Advisor::default().set_frames(gib << 18);
        assert!((500 << 10..2 << 20).contains(&most), "{most} for {gib} GiB");
    }
}

/// Threads that use the cache, resize it and ask for advice at the same time.
#[test]
fn advice_while_the_cache_is_used_and_resized() {
    let cache = ReadCache::new(BUDGET);
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let cache = &cache;
            scope.spawn(move || {
                let mut random = Random(seed);
                (0..150_000).for_each(|_| access(cache, random.below(2 * FIT)));
            });
        }
        for round in 0..30 {
            cache.set_budget(BUDGET + (round % 3) * (BUDGET / 2));
            let last = advice(&cache, round);
            assert!(last.is_empty() || last.len() == 4);
        }
    });
    cache.set_budget(BUDGET);
    let mut random = Random(9);
    for _ in 0..2 {
        (0..200_000).for_each(|_| access(&cache, random.below(2 * FIT)));
        cache.tick(Duration::from_secs(30));
    }
    let all = saved(&cache.advice(Duration::from_secs(30)));
    assert!(all.is_sorted() && all[0] > 0, "{all:?}");
    assert!(cache.stats().bytes <= BUDGET);
}

/// Blocks that another process has handed over are known to the simulation, too.
#[test]
fn copies_of_another_cache_are_inserted() {
    let (old, new) = (ReadCache::new(BUDGET), ReadCache::new(BUDGET));
    (0..FIT / 2).for_each(|n| old.insert(address(n), &[0; BLOCK]));
    let held = |cache: &ReadCache| cache.advisor.heap_bytes();
    let before = held(&new);
    old.copy_all(&mut |copy: &CachedBlock| new.insert_copy(copy.as_bytes()));
    assert_eq!(new.len(), old.len());
    assert!(held(&new) > before);
}
