//! Thousands of rounds against the model, with crashes and closes at random moments.

use forebay_sim::{Liar, Round, attempt, env, rounds};

/// Run by default, all tests of this file together, in a minute or so on two slow cores.
const ROUNDS: u64 = 1500;

fn round(seed: u64, ops: Option<u64>) {
    Round::new(seed, ops).run();
}

#[test]
fn what_a_pool_holds_is_what_was_written_or_a_prefix_of_it() {
    rounds("what_a_pool_holds", 0, ROUNDS, round);
}

#[test]
fn and_again_with_other_seeds() {
    rounds("and_again", 1_000_000, ROUNDS, round);
}

/// The suite is worth something only if it fails where durability is broken.
#[test]
fn a_store_that_lies_about_sync_is_found_out() {
    const WITHIN: u64 = 60;
    let caught = (0..WITHIN).find(|seed| {
        let mut round = Round::new(*seed, None);
        round.wrap = Some(Liar::wrap);
        attempt(*seed, || round.run()).is_err()
    });
    assert!(caught.is_some(), "{WITHIN} rounds on a store that never syncs, and nothing was lost");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..20 {
        assert_eq!(Round::new(seed, None).run(), Round::new(seed, None).run(), "seed {seed}");
    }
}

/// A hash table with a seed of its own process, or an order by memory address, would show only here.
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
        let name = "the_same_seed_gives_the_same_run_in_another_process";
        let other = std::process::Command::new(this)
            .args(["--exact", name, "--nocapture"])
            .env(SEED, seed.to_string())
            .output()
            .expect("a test can be run");
        let text = String::from_utf8_lossy(&other.stdout).into_owned();
        assert!(text.contains(&format!("trace {}\n", hash(seed))), "seed {seed}: {text}");
    }
}
