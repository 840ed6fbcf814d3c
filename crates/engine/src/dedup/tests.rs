//! Tests of the index as a whole.

use std::collections::BTreeMap;

use forebay_format::{Address, Form, SlotKind};
use proptest::prelude::*;

use super::evaluation::print;
use super::*;

fn place(segment: u32, slot: u32) -> BlockRef {
    let addr = Address { segment: SegmentId(segment), slot: Slot(slot * 64) };
    BlockRef { addr, form: Form::RAW_BLOCK, crc: slot }
}

#[test]
fn domains_have_nothing_in_common() {
    let block = [3; BLOCK];
    let of = |domain| Fingerprinter::new(&[9; 32], domain).of(&block);
    assert_eq!(of(1), of(1));
    assert_ne!(of(0), of(1));
    assert_ne!(Fingerprinter::new(&[8; 32], 1).of(&block), of(1));
}

#[test]
fn a_small_pool_has_an_exact_index() {
    let mut index = Dedup::new(16 << 20, 0);
    (0..100_000).for_each(|n| index.insert(print(n), place(1 + n as u32 / 10_000, n as u32 % 10_000)));
    assert_eq!(index.sampling(), 0);
    let found = (0..100_000)
        .filter(|n| index.find(&print(*n)) == Some(place(1 + *n as u32 / 10_000, *n as u32 % 10_000)));
    assert!(found.count() > 99_500);
    // Recent fingerprints that were displaced from a full set of the table are found as well.
    let mut index = Dedup::new(16 << 20, 0);
    (0..20_000).for_each(|n| index.insert(print(n), place(1, n as u32)));
    assert!((0..20_000).all(|n| index.find(&print(n)) == Some(place(1, n as u32))));
    // Also after a start, when they are read from directories.
    let mut index = Dedup::new(16 << 20, 0);
    (0..20_000).for_each(|n| index.insert_old(print(n), place(1, n as u32)));
    assert!((0..20_000).all(|n| index.find(&print(n)) == Some(place(1, n as u32))));
}

fn entry(n: u64) -> DirectoryEntry {
    DirectoryEntry {
        slot: Slot(n as u32 * 64),
        form: Form::RAW_BLOCK,
        kind: SlotKind::Block,
        crc: n as u32,
        fingerprint: print(n),
    }
}

/// A run of duplicates is found through one sampled fingerprint and the directory to which it leads.
#[test]
fn neighbours_are_found_in_directories() {
    let mut index = Dedup::new(128 << 10, 0);
    (0..100_000).for_each(|n| index.insert_old(print(n), place(1 + n as u32 / 50_000, n as u32 % 50_000)));
    assert!((2..4).contains(&index.sampling()), "{}", index.sampling());
    let run = 5_000..6_000;
    let prints: Vec<_> = run.clone().map(print).collect();
    assert!(prints.iter().all(|print| index.find(print).is_none()), "a tag is no proof");
    let leads = index.leads(prints.iter().map(|print| (print, None)));
    assert_eq!(leads.first(), Some(&SegmentId(1)));
    let directory: Vec<_> = (0..50_000).map(entry).collect();
    let mut found = vec![None; 1_000];
    Misses::new(prints.iter().enumerate()).search(SegmentId(1), &directory, |i, at| found[i] = Some(at));
    assert!(found.iter().zip(run.clone()).all(|(at, n)| *at == Some(place(1, n as u32))));
    let hits: Vec<_> = found.iter().flatten().take(1).copied().collect();
    index.keep(SegmentId(1), &directory, &hits, 1);
    let cached = (0..50_000).filter(|n| index.find(&print(*n)).is_some()).count();
    assert!((64..1_000).contains(&cached), "{cached}");
    assert_eq!(index.find(&print(5_000)), Some(place(1, 5_000)));
    assert!(index.leads([(&print(5_000), Some(place(1, 5_000)))].into_iter()).is_empty(), "it is cached");
    index.dropped(SegmentId(1), (0..50_000).map(|n| (print(n), Slot(n as u32 * 64))));
    assert!((0..50_000).all(|n| index.find(&print(n)).is_none()));
    let all: Vec<_> = (0..50_000).map(print).collect();
    assert!(!index.leads(all.iter().map(|print| (print, None))).contains(&SegmentId(1)));
}

#[test]
fn directories_have_to_be_earned() {
    let mut index = Dedup::new(1 << 20, 3);
    let free = (1..1_000).filter(|_| index.afford(1 << 20)).count();
    assert_eq!(free as i64, CREDIT_MAX >> 20);
    let lookups = (1 << 20) / CREDIT_FOR_LOOKUP;
    (0..lookups as u64).for_each(|n| assert_eq!(index.find(&print(n)), None));
    assert!(index.afford(1 << 20));
    assert!(!index.afford(1 << 20));
}

#[test]
fn a_budget_of_nothing_works_and_finds_little() {
    let mut index = Dedup::new(0, 0);
    (0..10_000).for_each(|n| index.insert(print(n), place(1, n as u32)));
    let mut stats = ReductionStats::default();
    index.stats(&mut stats);
    assert!(stats.index_bytes < 64 << 10, "{stats:?}");
}
/// Fingerprints that no tag distinguishes.
fn alike(n: u64) -> Fingerprint {
    let mut fingerprint = Fingerprint::default();
    fingerprint.0[..8].copy_from_slice(&n.to_le_bytes());
    fingerprint.0[11] = 1;
    fingerprint
}

#[test]
fn a_tag_is_no_proof() {
    let mut index = Dedup::new(0, 1);
    index.insert_old(alike(1), place(1, 1));
    let directory = [DirectoryEntry { fingerprint: alike(1), ..entry(1) }];
    let look_up = |index: &mut Dedup, print| {
        evaluation::look_up(index, &[print], SegmentId(9), |s| (s == SegmentId(1)).then_some(&directory[..]))
    };
    assert_eq!(look_up(&mut index, alike(2)), (vec![None], vec![SegmentId(1)]));
    assert_eq!(look_up(&mut index, alike(1)), (vec![Some(place(1, 1))], vec![SegmentId(1)]));
    assert_eq!(look_up(&mut index, alike(2)), (vec![None], vec![SegmentId(1)]));
}

#[test]
fn numbers_of_freed_segments_are_used_again_without_their_hooks() {
    let mut index = Dedup::new(4 << 10, 1);
    // Far more segments than there are numbers would be needed if these were not used again.
    for segment in 1..3_000_u32 {
        (0..400)
            .for_each(|n| index.insert_old(print((u64::from(segment) << 16) | n), place(segment, n as u32)));
        index.freed(SegmentId(segment));
    }
    let hooks = index.hooks.as_ref().unwrap();
    assert!(hooks.segments.bytes() < 4 << 10, "{}", hooks.segments.bytes());
    assert_eq!(hooks.sampling(), 1, "hooks of freed segments are removed before others");
    let all: Vec<_> = (1..3_000_u64).map(|segment| print(segment << 16)).collect();
    assert!(index.leads(all.iter().map(|print| (print, None))).is_empty());
}

/// Memory stays within the budget while an exact table is converted to hooks.
#[test]
fn the_budget_is_kept_at_all_times() {
    let budget = 256 << 10;
    let mut index = Dedup::new(budget, 0);
    let (mut most, mut was_exact) = (0, 0);
    for n in 0..400_000 {
        index.insert(print(n), place(1 + n as u32 / 50_000, n as u32 % 50_000));
        let mut stats = ReductionStats::default();
        index.stats(&mut stats);
        most = most.max(stats.index_bytes);
        was_exact = if index.hooks.is_none() { n } else { was_exact };
    }
    assert!(most <= budget, "{most}");
    assert!(most >= budget / 2, "{most}");
    assert!(was_exact * 56 > budget, "{was_exact}");
    assert!(index.exact.is_none() && index.sampling() >= 3, "{}", index.sampling());
}

#[derive(Debug, Clone)]
enum Op {
    Store(Vec<u64>),
    LookUp(Vec<u64>),
    /// Drops slots of a segment that the cleaner moves: one in three, or all.
    Drop(usize, bool),
    Free(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let blocks = || proptest::collection::vec(0..600_u64, 1..120);
    prop_oneof![
        4 => blocks().prop_map(Op::Store),
        4 => blocks().prop_map(Op::LookUp),
        1 => (0..8_usize, any::<bool>()).prop_map(|(n, all)| Op::Drop(n, all)),
        1 => (0..8_usize).prop_map(Op::Free),
    ]
}

/// One block in four has a fingerprint that tags do not distinguish from others.
fn some_alike(n: u64) -> Fingerprint {
    if n.is_multiple_of(4) { alike(n) } else { print(n) }
}

proptest! {
    /// Whatever was stored, dropped and freed: a block that is found exists, and is the right one.
    #[test]
    fn only_existing_slots_are_found(
        ops in proptest::collection::vec(op(), 1..80),
        budget in prop_oneof![Just(0), Just(3_000), Just(40_000)],
        sampling in 0..2_u8,
    ) {
        let mut index = Dedup::new(budget, sampling);
        let mut pool: BTreeMap<SegmentId, Vec<DirectoryEntry>> = BTreeMap::new();
        let mut next = 1;
        for op in ops {
            match op {
                Op::Store(blocks) => {
                    let segment = SegmentId(next);
                    next += 1;
                    let stored = |(slot, n): (usize, &u64)| DirectoryEntry {
                        fingerprint: some_alike(*n),
                        crc: slot as u32,
                        ..entry(slot as u64)
                    };
                    let directory: Vec<_> = blocks.iter().enumerate().map(stored).collect();
                    directory.iter().for_each(|e| index.insert(e.fingerprint, place(segment.0, e.crc)));
                    pool.insert(segment, directory);
                }
                Op::LookUp(blocks) => {
                    let prints: Vec<_> = blocks.iter().map(|n| some_alike(*n)).collect();
                    let directory = |segment| pool.get(&segment).map(|d| &d[..]);
                    let (known, _) = evaluation::look_up(&mut index, &prints, SegmentId(next), directory);
                    for (print, known) in prints.iter().zip(known) {
                        let Some(at) = known else { continue };
                        let entries = pool.get(&at.addr.segment);
                        let slot = entries.and_then(|d| d.iter().find(|e| e.slot == at.addr.slot));
                        prop_assert_eq!(slot.map(|e| e.fingerprint), Some(*print), "{:?}", at);
                    }
                }
                Op::Drop(n, all) => {
                    let Some((segment, directory)) = pool.iter_mut().nth(n) else { continue };
                    let is_dropped = |e: &DirectoryEntry| all || e.crc.is_multiple_of(3);
                    let dropped: Vec<_> = directory.extract_if(.., |e| is_dropped(e)).collect();
                    index.dropped(*segment, dropped.iter().map(|e| (e.fingerprint, e.slot)));
                }
                Op::Free(n) => {
                    let Some(segment) = pool.keys().nth(n).copied() else { continue };
                    pool.remove(&segment);
                    index.freed(segment);
                }
            }
        }
    }
}
