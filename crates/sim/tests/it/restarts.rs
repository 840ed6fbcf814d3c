//! A failure, then another process on the same machine, with the retained memory and the store that the
//! failure left. Reads fail for a second during work, and operations of any kind fail while a pool is opened.

use forebay_engine::Mutation;
use forebay_sim::{Rng, Round, Tolerance, rounds};
use forebay_store::{Fault, FaultyOp, FaultyStore, When};

use crate::detects;

/// Default number of rounds.
const ROUNDS: u64 = 60;

/// After a failure, the process ends, and usually the next process finds its memory.
fn restarting(seed: u64, ops: Option<u64>) -> Round {
    let mut round = Round::new(seed, ops);
    round.tolerance = Tolerance { full: true, latched: true, unreadable: true, ..Tolerance::default() };
    round.restart_after_latch = true;
    round
}

/// No read succeeds for 0.1 to 1.5 seconds, again and again, while appends do.
fn with_outages(seed: u64, ops: Option<u64>) -> Round {
    let mut round = restarting(seed, ops);
    round.outages = true;
    let plan = &mut round.plan;
    // Commits meet outages, and other writers of the log wait for these commits.
    (plan.lives, plan.crashes, plan.steps) = (3, 80, 12_000);
    (plan.ops, plan.reclaim_every) = (ops.unwrap_or(1_000), Some(20));
    // Commits have to read.
    (plan.pool.read_cache, plan.pool.map_cache) = (plan.pool.read_cache.min(16 << 10), 0);
    round
}

fn fault_of_an_opening(store: &FaultyStore, rng: &mut Rng) {
    let after = rng.below(3) as u32;
    let when = if rng.percent(50) { When::After(after) } else { When::From(after) };
    match rng.below(4) {
        0 => store.set_capacity(rng.range(1, 20) * (64 << 10)),
        1 => store.inject(FaultyOp::Read, *rng.pick(&[Fault::Io, Fault::NoFiles]), When::From(after)),
        _ => {
            let op = *rng.pick(&[FaultyOp::Append, FaultyOp::Create, FaultyOp::Sync, FaultyOp::Swap]);
            store.inject(op, *rng.pick(&[Fault::Io, Fault::Short, Fault::NoFiles, Fault::Full]), when);
        }
    }
}

/// Openings fail that have something to commit: interrupted imports, desktops to be reset, lost marks.
fn with_failing_openings(seed: u64, ops: Option<u64>) -> Round {
    let mut round = restarting(seed, ops);
    round.opening_faults = Some(fault_of_an_opening);
    let plan = &mut round.plan;
    (plan.lives, plan.crashes, plan.steps) = (4, 100, 6_000);
    (plan.ops, plan.disks) = (ops.unwrap_or(300), 16);
    (plan.admin, plan.imports) = (40, 25);
    round
}

#[test]
fn outages_of_reads_lose_nothing() {
    rounds("outages_of_reads", 0, ROUNDS, |seed, ops| {
        with_outages(seed, ops).run();
    });
}

#[test]
fn openings_that_fail_lose_nothing() {
    rounds("openings_that_fail", 0, ROUNDS, |seed, ops| {
        with_failing_openings(seed, ops).run();
    });
}

#[test]
fn outages_and_failing_openings_lose_nothing() {
    rounds("outages_and_failing_openings", 0, ROUNDS, |seed, ops| {
        let mut round = with_outages(seed, ops);
        round.opening_faults = Some(fault_of_an_opening);
        round.plan.imports = 25;
        round.run();
    });
}

#[test]
fn a_number_that_is_taken_by_another_group_is_detected() {
    detects(Mutation::TakeNumber, 300, with_outages);
}
