//! The checked-in corpora of the fuzz targets, for the tests of each crate that has such targets (included by
//! path).
#![allow(dead_code, reason = "each test uses its part")]

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// A fuzz target: its name, and the function that its program calls.
type Target = (&'static str, fn(&[u8]));

/// The folder of a target's inputs.
pub fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// Runs the target on each of its inputs.
pub fn run_inputs((name, target): &Target) {
    let files = std::fs::read_dir(corpus(name)).unwrap_or_else(|e| panic!("no corpus of {name}: {e}"));
    let mut inputs: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "the corpus of {name} is empty");
    for path in inputs {
        let bytes = std::fs::read(&path).unwrap();
        // Caught, to report the name of the input.
        let passed = catch_unwind(|| target(&bytes));
        assert!(passed.is_ok(), "{} fails", path.display());
    }
}

/// Checks that each target has a program that calls it.
pub fn check_programs(targets: &[Target]) {
    let manifest = include_str!("../../../../fuzz/Cargo.toml");
    for (name, _) in targets {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "fuzz/Cargo.toml lacks {name}");
        let program = std::fs::read_to_string(corpus("../fuzz_targets").join(format!("{name}.rs"))).unwrap();
        assert!(program.contains(&format!("fuzzing::{name}(")), "{name}.rs does not call its target");
    }
}

/// Writes a generated sample, or checks that the stored one is current.
pub fn put(target: &str, name: &str, bytes: &[u8]) {
    let path = corpus(target).join(name);
    if std::env::var_os("FOREBAY_WRITE_CORPUS").is_some() {
        std::fs::create_dir_all(corpus(target)).unwrap();
        std::fs::write(path, bytes).unwrap();
    } else {
        let stored = std::fs::read(&path).unwrap_or_default();
        assert!(stored == bytes, "{} is not current: run 'cargo run -p xtask -- corpora'", path.display());
    }
}

/// Works like [`put`], also for the sample truncated and corrupted.
pub fn put_with_variants(target: &str, name: &str, bytes: &[u8]) {
    put(target, name, bytes);
    put(target, &format!("{name}-cut"), &bytes[..bytes.len() * 2 / 3]);
    let mut changed = bytes.to_vec();
    (5..changed.len()).step_by(31).for_each(|at| changed[at] ^= 0x81);
    put(target, &format!("{name}-changed"), &changed);
}
