//! Whole sessions of hostile clients against a running server: generated from seeds, and from the fuzz
//! corpus. [`forebay_frontend::fuzzing`] checks the guarantees of the server.
//!
//! `FOREBAY_SEED=n cargo test -p forebay-frontend --test sessions` plays the one session of a seed again;
//! `FOREBAY_SESSIONS=n` plays more of them; `cargo run -p xtask -- corpora` writes the samples of the corpus.

#![allow(clippy::unwrap_used)]

mod iscsi;
mod nbd;
mod nvme;
mod random;
mod stall;
#[path = "../../../format/tests/corpus/mod.rs"]
mod stored;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_frontend::fuzzing;
use random::Random;
use stored::{check_programs, put, run_inputs};

/// Sessions of each kind in a run.
const SESSIONS: u64 = 1000;
/// Seeds of each kind in the corpus.
const CORPUS: u64 = 12;

/// Serialises the tests, because panics of the server are counted for the process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs generated scripts; a failure reports the seed.
fn run_scripts(make: impl Fn(&mut Random) -> Vec<u8>, target: fn(&[u8])) {
    let _alone = alone();
    let number = |name: &str| std::env::var(name).ok().map(|n| n.parse::<u64>().unwrap());
    let seeds = match number("FOREBAY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FOREBAY_SESSIONS").unwrap_or(SESSIONS),
    };
    for seed in seeds {
        let script = make(&mut Random::new(seed));
        let passed = catch_unwind(AssertUnwindSafe(|| target(&script)));
        assert!(
            passed.is_ok(),
            "the session of seed {seed} failed; to replay: FOREBAY_SEED={seed} cargo test -p forebay-frontend --test sessions"
        );
    }
}

#[test]
fn iscsi_sessions_of_any_kind_cause_no_panic() {
    run_scripts(iscsi::script, fuzzing::iscsi_session);
}

#[test]
fn nbd_sessions_of_any_kind_cause_no_panic() {
    run_scripts(nbd::script, fuzzing::nbd_session);
}

#[test]
fn nvme_sessions_of_any_kind_cause_no_panic() {
    run_scripts(nvme::script, fuzzing::nvme_session);
}

#[test]
fn every_session_of_the_corpus_passes() {
    let _alone = alone();
    let makers: [fn(&mut Random) -> Vec<u8>; 3] = [iscsi::script, nbd::script, nvme::script];
    for (target, make) in fuzzing::TARGETS.iter().zip(makers) {
        for seed in 0..CORPUS {
            put(target.0, &format!("seed-{seed:02}"), &make(&mut Random::new(seed)));
        }
        run_inputs(target);
    }
}

#[test]
fn every_target_has_a_program() {
    check_programs(fuzzing::TARGETS);
}
