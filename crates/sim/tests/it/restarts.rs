//! A failure, then another process on the same machine, with the retained memory and the store that the
//! failure left. Reads fail for a second during work, and operations of any kind fail while a pool is opened.

use forebay_sim::{Rng, Round, Tolerance, rounds};
use forebay_store::{Fault, FaultyOp, FaultyStore, When};

/// Default number of rounds.
const ROUNDS: u64 = 100;

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
    // Outages and commits must meet, and other writers of the log wait for these commits.
    round.plan.lives = 3;
    round.plan.steps = round.plan.steps.max(2_000);
    round.plan.reclaim_every.get_or_insert(20);
    round
}

fn fault_of_an_opening(store: &FaultyStore, rng: &mut Rng) {
    let after = rng.below(8) as u32;
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
    round.plan.lives = 3;
    (round.plan.admin, round.plan.imports, round.plan.sessions) = (40, 30, 10);
    round.plan.disks = round.plan.disks.max(6);
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
        let mut round = with_failing_openings(seed, ops);
        (round.outages, round.plan.sessions) = (true, 0);
        round.plan.reclaim_every.get_or_insert(20);
        round.run();
    });
}
