//! Servers that share a pool in a simulated RADOS cluster: takeovers, pauses, late requests.

use std::sync::Mutex;

use forebay_engine::Mutation;
use forebay_sim::rados::{RadosRound, Seen};
use forebay_sim::{attempt, rounds};
use forebay_store::rados::Broken;

/// Default number of rounds.
const ROUNDS: u64 = 100;

#[test]
fn what_was_acknowledged_survives_takeovers() {
    let seen = Mutex::new(Vec::new());
    rounds("what_was_acknowledged", 0, ROUNDS, |seed, ops| {
        let round = RadosRound::new(seed, ops).run();
        seen.lock().expect("no round panics with the lock").push(round);
    });
    owners_lose_the_pool_in(&seen.into_inner().expect("no round panics with the lock"));
}

/// Checks that takeovers, handovers and hanging OSDs have happened, if at least [`ROUNDS`] rounds have run.
fn owners_lose_the_pool_in(seen: &[Seen]) {
    if seen.len() < ROUNDS as usize {
        return;
    }
    let sum = |of: fn(&Seen) -> u64| seen.iter().map(of).sum::<u64>();
    let (terms, superseded, closed) = (sum(|s| s.terms), sum(|s| s.superseded), sum(|s| s.closed));
    println!("{terms} terms, {superseded} owners superseded, {closed} closed");
    assert!(terms > 150 && superseded > 15 && closed > 8);
    let (handed_over, taken_back, outdated) =
        (sum(|s| s.handed_over), sum(|s| s.taken_back), sum(|s| s.outdated));
    let failed: Vec<u64> = (0..5).map(|step| seen.iter().map(|s| s.failed_heirs[step]).sum()).collect();
    println!("{handed_over} handed over, heirs failed at each step {failed:?}, {taken_back} taken back");
    println!("{outdated} operations met a greater term");
    let hangs = sum(|s| s.hangs);
    println!("OSDs hung {hangs} times");
    assert!(hangs > 40);
    assert!(handed_over > 15 && taken_back > 2 && outdated > 0);
    assert!(failed[1..].iter().all(|count| *count > 0), "heirs fail at each step");
}

#[test]
fn the_same_seed_gives_the_same_run_of_several_servers() {
    for seed in 0..5 {
        assert_eq!(
            RadosRound::new(seed, None).run().trace,
            RadosRound::new(seed, None).run().trace,
            "{seed}"
        );
    }
}

fn caught(broken: Broken, within: u64) {
    let caught = (0..within)
        .find(|seed| attempt(*seed, || RadosRound::new(*seed, None).with_broken(broken).run()).is_err());
    println!("{broken:?} was detected by seed {caught:?}");
    assert!(caught.is_some(), "{broken:?}: {within} rounds, and no data was lost");
}

#[test]
fn a_cluster_that_breaks_rules_is_detected() {
    caught(Broken::Fences, 200);
    caught(Broken::Keys, 200);
    caught(Broken::Require, 200);
    caught(Broken::RequireAtMost, 300);
    caught(Broken::Heirs, 200);
}

#[test]
fn a_group_that_is_written_again_needs_a_higher_epoch() {
    let round = |seed| RadosRound::new(seed, None).with_mutation(Mutation::KeepEpoch);
    let caught = (0..300).find(|seed| attempt(*seed, || round(*seed).run()).is_err());
    println!("detected by seed {caught:?}");
    assert!(caught.is_some(), "no data was lost");
}
