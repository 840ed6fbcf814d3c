//! Measures the policy: hit rates compared with plain LRU of the same number of blocks, on the same accesses.

use std::collections::{BTreeMap, HashMap};

use forebay_format::DiskId;

use super::*;
use crate::cache::{Owner, Rank, ReadCache};

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
        let hit = cache.get(address(n), 0, &mut out, Owner::SHARED);
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

/// Blocks of the hot set of [`Neighbours`].
const HOT: u64 = 400;

/// A disk with a small hot set, and another disk, in a cache of some 4,000 blocks.
struct Neighbours {
    cache: ReadCache,
    plain: [u8; BLOCK],
    random: Random,
    steps: u64,
    other: Owner,
}

impl Neighbours {
    const OWNER: Owner = Owner::of(DiskId(1));

    fn new(other: Owner) -> Neighbours {
        let (cache, plain) = (ReadCache::new(16 << 20), block(0));
        Neighbours { cache, plain, random: Random(5), steps: 0, other }
    }

    fn access(&self, n: u64, owner: Owner) -> bool {
        let hit = self.cache.get(address(n), 0, &mut [0; 16], owner);
        if !hit {
            self.cache.insert_as(address(n), &self.plain, Rank::Normal, owner);
        }
        hit
    }

    /// Reads of the hot set, each after `times` reads of the other disk; returns the hit rate of the former.
    fn run(&mut self, reads: u32, times: u32, other: impl Fn(u64, &mut Random) -> u64) -> f64 {
        let mut hits = 0;
        for _ in 0..reads {
            for _ in 0..times {
                let n = HOT + other(self.steps, &mut self.random);
                self.access(n, self.other);
                self.steps += 1;
            }
            let n = self.random.below(HOT);
            hits += u32::from(self.access(n, Self::OWNER));
        }
        f64::from(hits) / f64::from(reads)
    }
}

/// The hot set of one disk stays in the cache, and enters it, while another disk reads 10 or 60 times as
/// often: once, again and again, and somewhat more than the cache holds. Within one disk, the latter
/// takes a part at 10 times, and nearly all at 60: these blocks are used again, too.
#[test]
fn a_scanner_does_not_displace_the_hot_set_of_another_disk() {
    let rate = |disk, times, other: &dyn Fn(u64, &mut Random) -> u64| {
        let mut neighbours = Neighbours::new(Owner::of(DiskId(disk)));
        neighbours.run(10_000, times, other);
        neighbours.run(10_000, times, other)
    };
    for times in [10, 60] {
        for disk in [1, 2] {
            let once = rate(disk, times, &|step, _| step);
            let again = [8_000, 16_000].map(|len| rate(disk, times, &|step, _| step % len));
            let near = [4_000, 4_400, 6_000].map(|len| rate(disk, times, &|step, _| step % len));
            let random = [8_000, 16_000].map(|len| rate(disk, times, &|_, random| random.below(len)));
            println!(
                "disk 1 next to disk {disk}, x{times}: scan {once:.3}, repeated {again:.3?}, of the cache's size \
                 {near:.3?}, random {random:.3?}"
            );
            assert!(once > 0.98, "{once}");
            let (repeated, others) = match (disk, times) {
                (1, 10) => (0.98, 0.75),
                (1, _) => continue,
                _ => (0.98, 0.98),
            };
            assert!(again.iter().all(|rate| *rate > repeated), "{again:?}");
            assert!(near.iter().chain(&random).all(|rate| *rate > others), "{near:?}, {random:?}");
        }
    }
}

/// A share is that of an active disk: what is not used any more leaves the cache.
#[test]
fn an_idle_disk_does_not_keep_its_share() {
    let mut neighbours = Neighbours::new(Owner::of(DiskId(2)));
    neighbours.run(10_000, 10, |step, _| step % 8_000);
    let held = |neighbours: &Neighbours| (0..HOT).filter(|n| neighbours.cache.contains(address(*n))).count();
    assert!(held(&neighbours) > 390, "{}", held(&neighbours));
    for step in 0..60_000 {
        neighbours.access(HOT + step % 8_000, neighbours.other);
    }
    assert!(held(&neighbours) < 40, "{}", held(&neighbours));
}

/// A disk that reads rarely, and more than its share, takes little from one that reads often.
#[test]
fn a_disk_takes_no_more_than_its_share_from_a_busier_one() {
    let hit_rate = |other| {
        let (neighbours, mut random) = (Neighbours::new(other), Random(6));
        let (busy, mut hits) = (Zipf::new(20_000, 1.0), 0);
        for round in 0..200_000 {
            let hit = neighbours.access(busy.draw(&mut random), Neighbours::OWNER);
            hits += u32::from(hit && round >= 100_000);
            if round % 4 == 0 {
                neighbours.access(20_000 + random.below(8_000), neighbours.other);
            }
        }
        f64::from(hits) / 100_000.0
    };
    let (same, other) = (hit_rate(Neighbours::OWNER), hit_rate(Owner::of(DiskId(2))));
    println!("a busy disk next to one that reads much: {same:.3}, with shares {other:.3}");
    assert!(other > same - 0.1, "{other}, {same}");
}

/// Hit rate of the reads of an image of `size` blocks by 40 clones, each of which also reads blocks that it
/// does not share, and again some 80 reads later; next to `scanned` reads of a scanner for each of theirs.
fn image_rate(size: usize, scanned: u64, owner_of: impl Fn(u64) -> Owner) -> f64 {
    const CLONES: u64 = 40;
    const SCANNER: u64 = 100;
    let (neighbours, mut random, image) = (Neighbours::new(Owner::SHARED), Random(7), Zipf::new(size, 0.8));
    let (mut next, mut scan) = ([0_u64; CLONES as usize], 0);
    let (mut hits, mut reads) = (0, 0);
    for round in 0..200_000 {
        let clone = random.below(CLONES);
        if random.below(2) == 0 {
            let next = &mut next[clone as usize];
            *next += 1;
            let n = if *next % 2 == 0 { *next } else { (next.saturating_sub(80)) & !1 };
            neighbours.access(1_000_000 + clone * 100_000 + n, owner_of(clone));
        } else {
            let hit = neighbours.access(image.draw(&mut random), owner_of(clone));
            if round >= 100_000 {
                hits += u32::from(hit);
                reads += 1;
            }
        }
        for _ in 0..scanned {
            scan += 1;
            neighbours.access(500_000 + scan % 8_000, owner_of(SCANNER));
        }
    }
    f64::from(hits) / f64::from(reads)
}

/// What clones read of their image belongs to none of them. So no clone counts as one that takes too much,
/// and their image stays in the cache next to a disk that does.
#[test]
fn shares_keep_the_image_of_clones() {
    let (one, each) = (|_| Owner::of(DiskId(1)), |disk| Owner::of(DiskId(1 + disk as u32)));
    for size in [3_000, 20_000] {
        let rates = [0, 10].map(|scanned| (image_rate(size, scanned, one), image_rate(size, scanned, each)));
        let [(alone, shared), (scanned, kept)] = rates;
        println!("image of {size}: {alone:.3}, with shares {shared:.3}; scanned {scanned:.3}, {kept:.3}");
        assert!(shared > alone - 0.01, "{shared}, {alone}");
        assert!(kept > scanned + 0.05, "{kept}, {scanned}");
    }
}

/// Low-ranked blocks are used once by a sequential reader and do not displace the main queue.
#[test]
fn what_ranks_high_stays_while_what_ranks_low_passes() {
    let kept_beside = |rank| {
        let (cache, plain, mut out) = (ReadCache::new(4 << 20), block(0), [0; 16]);
        (0..500).for_each(|n| cache.insert_as(address(n), &plain, Rank::High, Owner::SHARED));
        for n in 1_000..50_000 {
            cache.insert_as(address(n), &plain, rank, Owner::SHARED);
            assert_eq!(cache.get(address(n), 0, &mut out, Owner::SHARED), rank != Rank::Never);
        }
        (0..500).filter(|n| cache.contains(address(*n))).count()
    };
    assert_eq!([Rank::Never, Rank::Low].map(kept_beside), [500; 2]);
    assert_eq!(kept_beside(Rank::Normal), 0, "all of them were used again");
    // After two uses, it is kept like any other.
    let (cache, plain, mut out) = (ReadCache::new(4 << 20), block(0), [0; 16]);
    cache.insert_as(address(0), &plain, Rank::Low, Owner::SHARED);
    assert!((0..2).all(|_| cache.get(address(0), 0, &mut out, Owner::SHARED)));
    (1..2_000).for_each(|n| cache.insert(address(n), &plain));
    assert!(cache.contains(address(0)));
}

/// Blocks of the lowest rank fill a cache, and displace nothing.
#[test]
fn spare_blocks_take_free_frames_only() {
    let (cache, plain) = (ReadCache::new(4 << 20), block(0));
    (0..5_000).for_each(|n| cache.insert_as(address(n), &plain, Rank::Spare, Owner::SHARED));
    let held = |range: std::ops::Range<u64>| range.filter(|n| cache.contains(address(*n))).count();
    let first = held(0..5_000);
    assert!((900..1_024).contains(&first), "{first}");
    (5_000..9_000).for_each(|n| cache.insert_as(address(n), &plain, Rank::Spare, Owner::SHARED));
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
