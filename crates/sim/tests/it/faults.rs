//! Stores that fail, fill up and rot: the pool stops or reports errors, and never returns data that was not
//! written.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_sim::{Rng, Round, Tolerance, rounds};
use forebay_store::{Fault, FaultyOp, FaultyStore, When};

const ROUNDS: u64 = 100;

fn failing_writes(store: &FaultyStore, rng: &mut Rng) {
    let op = *rng.pick(&[FaultyOp::Append, FaultyOp::Sync, FaultyOp::Swap]);
    let fault = *rng.pick(&[Fault::Io, Fault::Short]);
    store.inject(op, fault, When::After(rng.below(30) as u32));
}

fn no_room_anywhere(store: &FaultyStore, rng: &mut Rng) {
    for _ in 0..rng.range(1, 4) {
        let op = *rng.pick(&[FaultyOp::Append, FaultyOp::Sync, FaultyOp::Swap, FaultyOp::Delete]);
        store.inject(op, Fault::Full, When::After(rng.below(40) as u32));
    }
}

/// A store may be full at any operation. An append can be retried; a sync or swap cannot.
#[test]
fn a_store_that_is_full_at_any_operation_loses_nothing() {
    rounds("full_at_any_operation", 0, ROUNDS, |seed, ops| {
        let mut round = Round::new(seed, ops);
        round.tolerance = Tolerance { full: true, latched: true, ..Tolerance::default() };
        round.faults = Some(no_room_anywhere);
        round.run();
    });
}

/// A crash is never reported as damage to the log, and damage to it is located.
#[test]
fn damage_to_the_log_is_reported_for_a_flipped_bit_and_not_for_a_crash() {
    let reported = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    rounds("log_damage", 0, ROUNDS, |seed, ops| {
        let mut round = Round::new(seed, ops);
        round.probe = true;
        round.reported = reported.clone();
        round.run();
    });
    assert!(
        reported.load(std::sync::atomic::Ordering::Relaxed) > 0 || ROUNDS < 20,
        "no damage was ever reported"
    );
}

/// After a failed append, sync or swap, later changes are not acknowledged, and acknowledged data is present.
#[test]
fn a_failed_write_latches_the_pool() {
    rounds("a_failed_write_latches", 0, ROUNDS, |seed, ops| {
        let mut round = Round::new(seed, ops);
        round.tolerance = Tolerance { latched: true, ..Tolerance::default() };
        round.faults = Some(failing_writes);
        round.run();
    });
}

fn failing_reads(store: &FaultyStore, rng: &mut Rng) {
    store.inject(FaultyOp::Read, Fault::Io, When::PerMillion(rng.range(1_000, 100_000) as u32));
}

/// A failed read of the store is an error, and acknowledged data is unaffected.
#[test]
fn failed_reads_lose_nothing() {
    rounds("failed_reads", 0, ROUNDS, |seed, ops| {
        let mut round = Round::new(seed, ops);
        round.tolerance = Tolerance { unreadable: true, latched: true, ..Tolerance::default() };
        round.faults = Some(failing_reads);
        round.run();
    });
}

fn little_room(store: &FaultyStore, rng: &mut Rng) {
    store.set_capacity(rng.range(1, 40) * (128 << 10));
}

/// A store without space rejects writes, and keeps its data.
#[test]
fn a_full_store_rejects_writes_and_keeps_its_data() {
    rounds("a_full_store", 0, ROUNDS, |seed, ops| {
        let mut round = Round::new(seed, ops);
        round.tolerance = Tolerance { full: true, ..Tolerance::default() };
        round.faults = Some(little_room);
        round.run();
    });
}

fn hidden_quota(store: &FaultyStore, rng: &mut Rng) {
    store.set_quota(Some(rng.range(1, 40) * (128 << 10)));
}

/// The same for a store whose capacity does not show its bound.
#[test]
fn a_store_with_a_hidden_quota_rejects_writes_and_keeps_its_data() {
    rounds("a_hidden_quota", 0, ROUNDS, |seed, ops| {
        let mut round = Round::new(seed, ops);
        round.tolerance = Tolerance { full: true, ..Tolerance::default() };
        round.faults = Some(hidden_quota);
        round.run();
    });
}

/// A flipped bit anywhere in segments, batches, nodes, blocks, checkpoints.
#[test]
fn bit_rot_is_reported_and_never_returned_as_data() {
    let noticed = AtomicU64::new(0);
    rounds("rot_is_reported", 0, ROUNDS, |seed, ops| {
        let rot = |store: &FaultyStore, rng: &mut Rng| {
            for _ in 0..rng.range(1, 30) {
                store.flip_any_bit();
            }
        };
        noticed.fetch_add(u64::from(Round::new(seed, ops).rot(rot, false)), Relaxed);
    });
    assert!(noticed.load(Relaxed) > 0 || ROUNDS < 20, "no damage was detected");
}

/// One superblock copy is damaged: the other one is sufficient.
#[test]
fn one_superblock_copy_is_enough() {
    rounds("one_superblock_copy", 0, ROUNDS, |seed, ops| {
        let damage = |store: &FaultyStore, rng: &mut Rng| {
            store.flip_superblock_bit(rng.below(2) as usize);
        };
        Round::new(seed, ops).rot(damage, true);
    });
}
