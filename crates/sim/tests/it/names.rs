//! Nodes that share the names of a cluster: takeovers, pauses, late requests.

use std::sync::Mutex;

use forebay_sim::names::{NamesRound, Seen};
use forebay_sim::{attempt, rounds};
use forebay_store::rados::Broken;

/// Default number of rounds.
const ROUNDS: u64 = 300;

#[test]
fn a_name_is_in_one_shard() {
    let seen = Mutex::new(Vec::new());
    rounds("a_name_is_in_one_shard", 0, ROUNDS, |seed, _| {
        let round = NamesRound::new(seed).run();
        seen.lock().expect("no round panics with the lock").push(round);
    });
    let seen = seen.into_inner().expect("no round panics with the lock");
    if seen.len() < ROUNDS as usize {
        return;
    }
    let sum = |of: fn(&Seen) -> u64| seen.iter().map(of).sum::<u64>();
    let (done, refused, lost) = (sum(|s| s.done), sum(|s| s.refused), sum(|s| s.lost));
    let settled = [sum(|s| s.settled[0]), sum(|s| s.settled[1])];
    let (killed, paused) = (sum(|s| s.killed), sum(|s| s.paused));
    println!(
        "{done} operations, {refused} refused, {lost} lost, {settled:?} settled as done and as not done"
    );
    let (verifiable, cancelled) = (sum(|s| s.verifiable), sum(|s| s.cancelled));
    println!(
        "{killed} owners killed, {paused} paused, {cancelled} operations cancelled, {verifiable} verifiable"
    );
    assert!(done > 3_000 && lost > 300 && settled[0] > 100 && settled[1] > 100);
    assert!(killed > 300 && paused > 300 && cancelled > 300 && verifiable > 1_000);
}

#[test]
fn a_directory_that_breaks_rules_is_detected() {
    for broken in [Broken::Entries, Broken::Require] {
        let caught = (0..200)
            .find(|seed| attempt(*seed, || NamesRound::new(*seed).with_broken(broken).run()).is_err());
        println!("{broken:?} was detected by seed {caught:?}");
        assert!(caught.is_some(), "{broken:?}: no fault was found");
    }
}
