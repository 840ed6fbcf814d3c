//! Whole sessions of hostile clients against a running server: generated from seeds, and from the fuzz
//! corpus. [`forebay_server::fuzzing`] checks the guarantees of the server.
//!
//! `FOREBAY_SEED=n cargo test -p forebay-server --test sessions` plays the one session of a seed again;
//! `FOREBAY_SESSIONS=n` plays more of them; `cargo run -p xtask -- corpora` writes the samples of the corpus.

#![allow(clippy::unwrap_used)]

mod iscsi;
mod nbd;
mod random;
mod stall;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_server::fuzzing;
use random::Random;

/// Sessions of each kind in a run.
const SESSIONS: u64 = 1000;
/// Seeds of each kind in the corpus.
const CORPUS: u64 = 12;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// Writes a generated sample, or checks that the stored one is current.
fn put(target: &str, name: &str, bytes: &[u8]) {
    let path = corpus(target).join(name);
    if std::env::var_os("FOREBAY_WRITE_CORPUS").is_some() {
        std::fs::create_dir_all(corpus(target)).unwrap();
        std::fs::write(path, bytes).unwrap();
    } else {
        let stored = std::fs::read(&path).unwrap_or_default();
        assert!(stored == bytes, "{} is not current: run 'cargo run -p xtask -- corpora'", path.display());
    }
}

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
            "the session of seed {seed} failed; to replay: FOREBAY_SEED={seed} cargo test -p forebay-server --test sessions"
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
fn every_session_of_the_corpus_passes() {
    let _alone = alone();
    let makers: [fn(&mut Random) -> Vec<u8>; 2] = [iscsi::script, nbd::script];
    for ((name, target), make) in fuzzing::TARGETS.iter().zip(makers) {
        for seed in 0..CORPUS {
            put(name, &format!("seed-{seed:02}"), &make(&mut Random::new(seed)));
        }
        let mut inputs: Vec<_> =
            std::fs::read_dir(corpus(name)).unwrap().map(|file| file.unwrap().path()).collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "the corpus of {name} is empty");
        for path in inputs {
            let bytes = std::fs::read(&path).unwrap();
            let passed = catch_unwind(AssertUnwindSafe(|| target(&bytes)));
            assert!(passed.is_ok(), "{} fails", path.display());
        }
    }
}

/// Each fuzz target of this crate has a program that calls it.
#[test]
fn every_target_has_a_program() {
    let manifest = include_str!("../../../../fuzz/Cargo.toml");
    for (name, _) in fuzzing::TARGETS {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "fuzz/Cargo.toml lacks {name}");
        let program = std::fs::read_to_string(corpus("../fuzz_targets").join(format!("{name}.rs"))).unwrap();
        assert!(program.contains(&format!("fuzzing::{name}(")), "{name}.rs does not call its target");
    }
}
