//! Measures the policy: hit rates compared with plain LRU of the same number of blocks, on the same accesses.

use std::collections::{BTreeMap, HashMap};

use super::*;
use crate::cache::{Rank, ReadCache};

/// Evicts the least recently used.
struct Lru {
    room: usize,
    now: u64,
    last_use: HashMap<u64, u64>,
    by_use: BTreeMap<u64, u64>,
}

impl Lru {
    fn new(room: usize) -> Lru {
        Lru { room, now: 0, last_use: HashMap::new(), by_use: BTreeMap::new() }
    }
    fn access(&mut self, n: u64) -> bool {
        self.now += 1;
        let before = self.last_use.insert(n, self.now);
        if let Some(before) = before {
            self.by_use.remove(&before);
        }
        self.by_use.insert(self.now, n);
        if self.last_use.len() > self.room
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.last_use.remove(&oldest);
        }
        before.is_some()
    }
}

/// Ranks with probability in proportion to 1 / rank^s.
pub(super) struct Zipf(Vec<f64>);

impl Zipf {
    pub fn new(n: usize, s: f64) -> Zipf {
        let mut sum = 0.0;
        let mut cumulative = Vec::with_capacity(n);
        for rank in 1..=n {
            sum += (rank as f64).powf(-s);
            cumulative.push(sum);
        }
        cumulative.iter_mut().for_each(|c| *c /= sum);
        Zipf(cumulative)
    }
    pub fn draw(&self, random: &mut Random) -> u64 {
        let u = random.unit();
        self.0.partition_point(|c| *c < u) as u64
    }
}

/// Hit rates of the cache and of LRU over the second half of `accesses`.
fn hit_rates(budget: u64, accesses: impl Iterator<Item = u64> + Clone) -> (f64, f64) {
    let cache = ReadCache::new(budget);
    let mut lru = Lru::new((budget / (BLOCK as u64 + 64)) as usize);
    let total = accesses.clone().count();
    let (mut hits, mut lru_hits, mut counted) = (0, 0, 0);
    let (plain, mut out) = (block(0), [0; 16]);
    for (i, n) in accesses.enumerate() {
        let hit = cache.get(address(n), 0, &mut out);
        if !hit {
            cache.insert(address(n), &plain);
        }
        let lru_hit = lru.access(n);
        if i >= total / 2 {
            hits += u64::from(hit);
            lru_hits += u64::from(lru_hit);
            counted += 1;
        }
    }
    (hits as f64 / counted as f64, lru_hits as f64 / counted as f64)
}

/// Desktops at work (skewed) while backups or virus scanners read everything once.
#[test]
fn a_scan_does_not_push_out_what_is_used_often() {
    const BLOCKS: usize = 40_000;
    let zipf = Zipf::new(BLOCKS, 0.9);
    let mut random = Random(1);
    let mut accesses = Vec::new();
    let mut scanned = BLOCKS as u64;
    for _ in 0..40 {
        accesses.extend((0..10_000).map(|_| zipf.draw(&mut random)));
        // Longer than the number of cached blocks, and never read again.
        accesses.extend(scanned..scanned + 5_000);
        scanned += 5_000;
    }
    let (ours, lru) = hit_rates(16 << 20, accesses.iter().copied());
    println!("scan + zipf: {ours:.3}, LRU {lru:.3}");
    assert!(ours > lru + 0.08, "{ours:.3} against {lru:.3} of LRU");
}

/// Hit rate of a small hot set while another reader reads ten times as often, in a cache of some 4,000
/// blocks.
fn hot_rate_with(mut other: impl FnMut(u64, &mut Random) -> u64) -> f64 {
    const HOT: u64 = 400;
    let (cache, plain, mut out) = (ReadCache::new(16 << 20), block(0), [0; 16]);
    let (mut random, mut hits, mut step) = (Random(5), 0, 0);
    let mut access = |n: u64| {
        let hit = cache.get(address(n), 0, &mut out);
        if !hit {
            cache.insert(address(n), &plain);
        }
        hit
    };
    for round in 0..20_000 {
        let hit = access((random.unit() * HOT as f64) as u64);
        hits += u32::from(hit && round >= 10_000);
        for _ in 0..10 {
            access(HOT + other(step, &mut random));
            step += 1;
        }
    }
    f64::from(hits) / 10_000.0
}

/// One tenant's scan does not displace what another one uses, once or again and again. A reader that reads
/// somewhat more than the cache holds, ten times as often, takes a part: these blocks are used again, too.
#[test]
fn a_scanner_does_not_displace_a_small_hot_set() {
    let once = hot_rate_with(|step, _| step);
    let again = [8_000, 16_000].map(|len| hot_rate_with(|step, _| step % len));
    let near = [4_000, 4_400, 6_000].map(|len| hot_rate_with(|step, _| step % len));
    let random = [8_000, 16_000].map(|len| hot_rate_with(|_, r| (r.unit() * f64::from(len)) as u64));
    println!(
        "hot set: scan {once:.3}, repeated {again:.3?}, of the cache's size {near:.3?}, random {random:.3?}"
    );
    assert!(once > 0.98 && again.iter().all(|rate| *rate > 0.98), "{once}, {again:?}");
    assert!(near.iter().chain(&random).all(|rate| *rate > 0.75), "{near:?}, {random:?}");
}

/// Low-ranked blocks are used once by a sequential reader and do not displace the main queue.
#[test]
fn what_ranks_high_stays_while_what_ranks_low_passes() {
    let kept_beside = |rank| {
        let (cache, plain, mut out) = (ReadCache::new(4 << 20), block(0), [0; 16]);
        (0..500).for_each(|n| cache.insert_as(address(n), &plain, Rank::High));
        for n in 1_000..50_000 {
            cache.insert_as(address(n), &plain, rank);
            assert_eq!(cache.get(address(n), 0, &mut out), rank != Rank::Never);
        }
        (0..500).filter(|n| cache.contains(address(*n))).count()
    };
    assert_eq!([Rank::Never, Rank::Low].map(kept_beside), [500; 2]);
    assert_eq!(kept_beside(Rank::Normal), 0, "all of them were used again");
    // After two uses, it is kept like any other.
    let (cache, plain, mut out) = (ReadCache::new(4 << 20), block(0), [0; 16]);
    cache.insert_as(address(0), &plain, Rank::Low);
    assert!((0..2).all(|_| cache.get(address(0), 0, &mut out)));
    (1..2_000).for_each(|n| cache.insert(address(n), &plain));
    assert!(cache.contains(address(0)));
}

/// Blocks of the lowest rank fill a cache, and displace nothing.
#[test]
fn spare_blocks_take_free_frames_only() {
    let (cache, plain) = (ReadCache::new(4 << 20), block(0));
    (0..5_000).for_each(|n| cache.insert_as(address(n), &plain, Rank::Spare));
    let held = |range: std::ops::Range<u64>| range.filter(|n| cache.contains(address(*n))).count();
    let first = held(0..5_000);
    assert!((900..1_024).contains(&first), "{first}");
    (5_000..9_000).for_each(|n| cache.insert_as(address(n), &plain, Rank::Spare));
    assert_eq!((held(0..5_000), held(5_000..9_000)), (first, 0));
    cache.insert(address(9_000), &plain);
    assert_eq!(held(9_000..9_001), 1);
}

/// A peek changes neither counters nor the eviction order.
#[test]
fn peeking_is_no_use() {
    let (cache, plain, mut out) = (ReadCache::new(4 << 20), block(7), [0; BLOCK]);
    cache.insert(address(0), &plain);
    assert!(cache.peek(address(0), 0, &mut out) && out == plain);
    assert!(!cache.peek(address(1), 0, &mut out));
    assert_eq!((cache.stats().hits, cache.stats().misses), (0, 0));
    (1..2_000).for_each(|n| cache.insert(address(n), &plain));
    assert!(!cache.contains(address(0)));
}

#[test]
fn on_a_plain_skewed_load_it_is_no_worse_than_lru() {
    let zipf = Zipf::new(40_000, 0.9);
    let mut random = Random(2);
    let accesses = (0..400_000).map(|_| zipf.draw(&mut random)).collect::<Vec<_>>();
    for budget in [4 << 20, 16 << 20, 64 << 20] {
        let (ours, lru) = hit_rates(budget, accesses.iter().copied());
        println!("zipf, {budget} bytes: {ours:.3}, LRU {lru:.3}");
        assert!(ours > lru - 0.005, "{ours:.3} against {lru:.3} of LRU in {budget} bytes");
    }
}

/// The hot set moves: formerly hot blocks have to make room. This is the load that LRU handles best.
#[test]
fn it_follows_a_working_set_that_moves() {
    let zipf = Zipf::new(4_000, 0.6);
    let mut random = Random(3);
    let mut accesses = Vec::new();
    for phase in 0..20 {
        accesses.extend((0..40_000).map(|_| phase * 2_000 + zipf.draw(&mut random)));
    }
    let (ours, lru) = hit_rates(16 << 20, accesses.iter().copied());
    println!("moving set: {ours:.3}, LRU {lru:.3}");
    assert!(ours > lru - 0.05, "{ours:.3} against {lru:.3} of LRU");
}
