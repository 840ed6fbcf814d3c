//! Thousands of rounds against the model, with crashes and closes at random moments.

use forebay_sim::{Liar, Round, attempt, env, rounds};

/// Default number of rounds.
const ROUNDS: u64 = 500;

fn round(seed: u64, ops: Option<u64>) {
    Round::new(seed, ops).run();
}

#[test]
fn the_contents_of_a_pool_are_a_prefix_of_its_history() {
    rounds("what_a_pool_holds", 0, ROUNDS, round);
}

#[test]
fn the_contents_of_a_pool_are_a_prefix_of_its_history_with_other_seeds() {
    rounds("and_again", 1_000_000, ROUNDS, round);
}

/// The tests are only meaningful if they fail when durability is broken.
#[test]
fn a_store_that_lies_about_sync_is_detected() {
    const WITHIN: u64 = 60;
    let caught = (0..WITHIN).find(|seed| {
        let mut round = Round::new(*seed, None);
        round.wrap = Some(Liar::wrap);
        attempt(*seed, || round.run()).is_err()
    });
    assert!(caught.is_some(), "{WITHIN} rounds on a store that never syncs, and no data was lost");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..20 {
        assert_eq!(Round::new(seed, None).run(), Round::new(seed, None).run(), "seed {seed}");
    }
}

/// A hash table with a random seed per process, or an order by memory address, would only show here.
#[test]
fn the_same_seed_gives_the_same_run_in_another_process() {
    const SEED: &str = "FOREBAY_PRINT_TRACE_OF";
    let hash = |seed: u64| Round::new(seed, None).run();
    if let Some(seed) = env(SEED) {
        println!("trace {}", hash(seed));
        return;
    }
    for seed in 0..3u64 {
        let this = std::env::current_exe().expect("a test has a file");
        let name = "rounds::the_same_seed_gives_the_same_run_in_another_process";
        let other = std::process::Command::new(this)
            .args(["--exact", name, "--nocapture"])
            .env(SEED, seed.to_string())
            .output()
            .expect("a test can be run");
        let text = String::from_utf8_lossy(&other.stdout).into_owned();
        assert!(text.contains(&format!("trace {}\n", hash(seed))), "seed {seed}: {text}");
    }
}
