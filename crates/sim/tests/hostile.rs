//! Pools with damaged fields and right checksums are refused or served, and never more than that. A program of its
//! own, since it measures with its own allocator.
//!
//! `FOREBAY_ROUNDS=n` forges that many pools, `FOREBAY_SEED=n` the one.

#[path = "../../format/tests/counting/mod.rs"]
mod counting;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use counting::{Counting, peak_of};
use forebay_sim::hostile::{Original, exercise};
use forebay_sim::{Rng, note, rounds};

/// Forged by default, in half a minute on two slow cores.
const POOLS: u64 = 3_000;
/// Pools that these are made from.
const ORIGINALS: u64 = 24;
/// What the work with a small pool may take, above what is there anyway.
const MOST_BYTES: isize = 96 << 20;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static KNOWN: RefCell<BTreeMap<u64, Rc<Original>>> = RefCell::default();
}

fn original(seed: u64) -> Rc<Original> {
    KNOWN.with_borrow_mut(|known| {
        known.entry(seed).or_insert_with(|| Rc::new(Original::of_seed(seed))).clone()
    })
}

#[test]
fn forged_pools_are_refused_or_served() {
    rounds("forged_pools", 0, POOLS, |seed, _| {
        let original = original(seed % ORIGINALS);
        let image = original.forge(&mut Rng::new(seed));
        let ((), most) = peak_of(|| exercise(seed, &image));
        note!("{most} bytes at most");
        assert!(most < MOST_BYTES, "{most} bytes were held at one time");
    });
}

/// The forger leaves no kind of structure out, and a pool that it did not change is right.
#[test]
fn every_structure_is_forged() {
    let mut names: Vec<_> = (0..ORIGINALS).flat_map(|s| original(s).fields().collect::<Vec<_>>()).collect();
    names.sort_unstable();
    names.dedup();
    let structures: std::collections::BTreeSet<_> = names.iter().map(|(s, _)| *s).collect();
    let missing: Vec<_> =
        forebay_format::LAYOUTS.iter().map(|l| l.name).filter(|l| !structures.contains(l)).collect();
    // A block reference is part of others.
    assert_eq!(missing, ["block reference"]);
}
