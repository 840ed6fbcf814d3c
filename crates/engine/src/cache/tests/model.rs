//! Tests the contents of the cache, and its memory use.

use std::collections::HashMap;

use forebay_format::DiskId;

use super::*;
use crate::cache::{Owner, Rank, ReadCache};

/// Random insertions, reads and budgets: a hit returns the last insertion, at any offset, and the budget
/// holds.
#[test]
fn agrees_with_a_map_under_random_operations() {
    for seed in 0..8 {
        let mut random = Random(seed);
        let cache = ReadCache::new(1 << 20);
        let mut budget = 1 << 20;
        let mut newest: HashMap<u64, u64> = HashMap::new();
        let mut out = [0; BLOCK];
        for _ in 0..20_000 {
            let n = random.below(3_000);
            match random.below(1_000) {
                0 => {
                    budget =
                        [0, 4_096, 64 << 10, 700_000, 3 << 20, 9 << 20, 40 << 20][random.below(7) as usize];
                    cache.set_budget(budget);
                }
                1..400 => {
                    let version = random.next();
                    let owner = Owner::of(DiskId(random.below(5) as u32));
                    cache.insert_as(address(n), &block(version), Rank::Normal, owner);
                    newest.insert(n, version);
                }
                _ => {
                    let offset = random.below(BLOCK as u64) as usize;
                    let len = random.below((BLOCK - offset) as u64 + 1) as usize;
                    let held = cache.contains(address(n));
                    let reader = Owner::of(DiskId(random.below(3) as u32));
                    let hit = cache.get(address(n), offset, &mut out[..len], reader);
                    assert_eq!(hit, held);
                    if hit {
                        assert!(
                            out[..len] == block(newest[&n])[offset..offset + len],
                            "seed {seed}, block {n}"
                        );
                    }
                }
            }
            let stats = cache.stats();
            assert!(stats.bytes <= budget, "seed {seed}: {} of {budget}", stats.bytes);
            assert_eq!(stats.budget, budget);
        }
    }
}

#[test]
fn a_miss_leaves_the_output_alone_and_is_counted() {
    let cache = ReadCache::new(1 << 20);
    let mut out = [7; 512];
    assert!(!cache.get(address(1), 0, &mut out, Owner::SHARED));
    assert!(!cache.probe(address(1), 0, &mut out, Owner::SHARED));
    assert_eq!(out, [7; 512]);
    cache.insert(address(1), &block(1));
    assert!(cache.get(address(1), 3584, &mut out, Owner::SHARED));
    assert!(cache.probe(address(1), 3584, &mut out, Owner::SHARED));
    assert_eq!(out, block(1)[3584..]);
    assert_eq!((cache.stats().hits, cache.stats().misses), (2, 1));
}

#[test]
fn without_a_budget_it_holds_nothing() {
    let cache = ReadCache::new(0);
    cache.insert(address(1), &block(1));
    assert!(!cache.contains(address(1)));
    assert_eq!((cache.len(), cache.stats().bytes), (0, 0));
}

#[test]
fn a_tiny_budget_holds_a_few_blocks() {
    let cache = ReadCache::new(64 << 10);
    (0..1_000).for_each(|n| cache.insert(address(n), &block(n)));
    assert!((14..=15).contains(&cache.len()), "{}", cache.len());
    assert!(cache.contains(address(999)));
    assert!(cache.stats().bytes <= 64 << 10);
}

/// At every fill level, at most 64 bytes for each block; and when full, the budget is used.
#[test]
fn overhead_is_at_most_64_bytes_for_each_block() {
    for budget in [8 << 20, 37 << 20, 64 << 20, 256 << 20] {
        let cache = ReadCache::new(budget);
        let plain = block(1);
        let fit = budget / BLOCK as u64;
        // Twice the capacity: erased buckets accumulate in the index and make it grow.
        (0..2 * fit).for_each(|n| cache.insert(address(n), &plain));
        let (held, bytes) = (cache.len() as u64, cache.stats().bytes);
        let overhead = (bytes - held * BLOCK as u64) as f64 / held as f64;
        assert!(overhead <= 64.0, "{overhead} bytes for each of {held} blocks in {budget}");
        assert!(held as f64 >= 0.96 * fit as f64, "{held} of {fit} blocks in {budget}");
    }
}

/// Shrinking keeps as many blocks as fit, intact, and frees the memory; growing provides room again.
#[test]
fn a_budget_that_shrinks_and_grows_is_followed_at_once() {
    let cache = ReadCache::new(320 << 20);
    (0..100_000).for_each(|n| cache.insert(address(n), &block(n)));
    for budget in [300 << 20, 270 << 20, 256 << 20] {
        cache.set_budget(budget);
        assert!(cache.stats().bytes <= budget);
        assert!(cache.len() as u64 * BLOCK as u64 > budget / 100 * 97, "{} in {budget}", cache.len());
        let mut out = [0; BLOCK];
        let intact = (0..100_000).filter(|n| {
            let hit = cache.get(address(*n), 0, &mut out, Owner::SHARED);
            assert!(!hit || out == block(*n));
            hit
        });
        assert_eq!(intact.count(), cache.len());
    }
    cache.set_budget(320 << 20);
    (100_000..180_000).for_each(|n| cache.insert(address(n), &block(n)));
    assert!(cache.len() > 75_000);
    cache.set_budget(0);
    assert_eq!((cache.len(), cache.stats().bytes), (0, 0));
}

/// Concurrent insertions, reads and resizes: a read never returns a block other than the requested one.
#[test]
fn threads_never_see_another_block_or_half_of_one() {
    let cache = ReadCache::new(16 << 20);
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let cache = &cache;
            scope.spawn(move || {
                let mut random = Random(seed);
                let mut out = [0; BLOCK];
                for _ in 0..30_000 {
                    let n = random.below(6_000);
                    if cache.get(address(n), 0, &mut out, Owner::SHARED) {
                        assert!(out == block(n));
                    } else {
                        cache.insert(address(n), &block(n));
                    }
                }
            });
        }
        for budget in [4 << 20, 0, 2 << 20, 16 << 20, 5 << 20].repeat(20) {
            cache.set_budget(budget);
        }
    });
    assert!(cache.stats().bytes <= 5 << 20);
}

#[test]
fn copies_fill_another_cache() {
    let (one, two) = (ReadCache::new(16 << 20), ReadCache::new(64 << 20));
    for n in 0..1000 {
        one.insert(address(n), &block(n));
    }
    let mut copies = Vec::new();
    one.copy_all(&mut |copy| {
        copies.push(*copy.as_bytes());
        true
    });
    assert_eq!(copies.len(), one.len());
    assert_eq!(copies.len(), 1000);
    // Damaged anywhere, a copy is not used.
    for (at, copy) in copies.iter_mut().enumerate().take(500) {
        copy[at * 8] ^= 1;
    }
    let inserted = || copies.iter().filter(|copy| two.insert_copy(copy)).count();
    assert_eq!(inserted(), 500);
    assert_eq!(inserted(), 0, "all are held");
    assert_eq!(two.len(), 500);
    let mut out = [0; BLOCK];
    let held: Vec<u64> =
        (0..1000).filter(|n| two.get(address(*n), 0, &mut out, Owner::SHARED) && out == block(*n)).collect();
    assert_eq!(held.len(), 500);
    // A full cache keeps what it has.
    let small = ReadCache::new(64 << 10);
    let mut n = 5000;
    while small.has_room() && n < 6000 {
        small.insert(address(n), &block(n));
        n += 1;
    }
    let before = small.len();
    assert!(!copies.iter().any(|copy| small.insert_copy(copy)));
    assert_eq!(small.len(), before);
}

#[test]
fn a_full_cache_of_several_shards_is_copied_as_a_whole() {
    let (old, new) = (ReadCache::new(64 << 20), ReadCache::new(64 << 20));
    (0..2 * (64 << 20) / BLOCK as u64).for_each(|n| old.insert(address(n), &block(n)));
    assert!(!old.has_room());
    old.copy_all(&mut |copy| {
        new.insert_copy(copy.as_bytes());
        true
    });
    assert!(new.len() * 100 >= old.len() * 99, "{} of {} blocks", new.len(), old.len());
}
