//! Pools with changed fields and correct checksums are rejected or served, without a panic, a hang or
//! excessive memory; and a pool that ended leaves no memory. A separate test program, because it uses its own
//! allocator to measure memory.
//!
//! `FOREBAY_ROUNDS=n` forges `n` pools, `FOREBAY_SEED=n` only one.

#[path = "../../format/tests/counting/mod.rs"]
mod counting;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use counting::{Counting, kept_after, peak_of};
use forebay_sim::hostile::{Original, exercise};
use forebay_sim::rados::RadosRound;
use forebay_sim::{Rng, Round, note, rounds, trace};

/// Default number of forged pools: half a minute on two slow cores.
const POOLS: u64 = 3_000;
/// Pools from which they are forged.
const ORIGINALS: u64 = 24;
/// Limit of the additional memory for working with a small pool.
const MOST_BYTES: isize = 96 << 20;
/// Default number of rounds whose memory is compared before and after.
const KEPT_ROUNDS: u64 = 40;
/// Limit of what a round leaves in use: tables of the thread, which the next one uses.
const MOST_KEPT: isize = 256 << 10;

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
fn forged_pools_are_rejected_or_served() {
    rounds("forged_pools", 0, POOLS, |seed, _| {
        let original = original(seed % ORIGINALS);
        let image = original.forge(&mut Rng::new(seed));
        let ((), most) = peak_of(|| exercise(seed, &image));
        note!("{most} bytes at most");
        assert!(most < MOST_BYTES, "{most} bytes were held at one time");
    });
}

/// The forger covers every kind of structure, and an unchanged pool is valid.
#[test]
fn every_structure_is_forged() {
    let mut names: Vec<_> = (0..ORIGINALS).flat_map(|s| original(s).fields().collect::<Vec<_>>()).collect();
    names.sort_unstable();
    names.dedup();
    let structures: std::collections::BTreeSet<_> = names.iter().map(|(s, _)| *s).collect();
    let missing: Vec<_> =
        forebay_format::LAYOUTS.iter().map(|l| l.name).filter(|l| !structures.contains(l)).collect();
    // Block references are parts of other structures. Only a shard of a cluster has attached roots: these
    // pools are none, and `crates/format` forges such roots.
    assert_eq!(missing, ["attached root", "block reference"]);
}

/// Whatever a pool was doing when its process ended, was closed or lost it, nothing keeps its memory: a
/// server opens pools again after a failed upgrade or handover.
#[test]
fn a_pool_that_ended_leaves_no_memory() {
    let check = |round: &dyn Fn()| {
        let kept = kept_after(|| {
            round();
            trace::clear();
        });
        assert!(kept < MOST_KEPT, "{kept} bytes are still in use after the round");
    };
    rounds("a_pool_that_ended", 0, KEPT_ROUNDS, |seed, ops| {
        check(&|| _ = Round::new(seed, ops).run());
        check(&|| _ = RadosRound::new(seed, ops).run());
    });
}
