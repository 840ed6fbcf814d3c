//! Runs every fuzz target on its checked-in corpus, on the stable toolchain, as a regression test.
//! `cargo run -p xtask -- corpora` writes the samples again.

use std::path::{Path, PathBuf};

use crate::common::*;
use forebay_format::{BLOCK, Slot, fuzzing};

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

#[test]
fn every_input_of_the_corpus_passes() {
    for (name, target) in fuzzing::TARGETS {
        let files = std::fs::read_dir(corpus(name)).unwrap_or_else(|e| panic!("no corpus of {name}: {e}"));
        let mut inputs: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "the corpus of {name} is empty");
        for path in inputs {
            let bytes = std::fs::read(&path).unwrap();
            // Caught, to report the name of the input.
            let passed = std::panic::catch_unwind(|| target(&bytes));
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

/// Seeds: samples, complete, truncated and corrupted.
#[test]
fn samples_are_current() {
    let write = |target: &str, name: &str, bytes: &[u8]| {
        put(target, name, bytes);
        put(target, &format!("{name}-cut"), &bytes[..bytes.len() * 2 / 3]);
        let mut changed = bytes.to_vec();
        (5..changed.len()).step_by(31).for_each(|at| changed[at] ^= 0x81);
        put(target, &format!("{name}-changed"), &changed);
    };
    let mut two = superblock().encode();
    two.extend(
        forebay_format::Superblock { generation: u64::MAX, blobs: Vec::new(), ..superblock() }.encode(),
    );
    write("superblock", "sample", &two[..BLOCK]);
    write("superblock", "two-copies", &two);
    write("checkpoint", "sample", &checkpoint().encode());
    write("checkpoint", "empty", &forebay_format::Checkpoint::default().encode());
    for (n, op) in ops().into_iter().enumerate() {
        let mut bytes = Vec::new();
        op.encode(&mut bytes);
        write("catalogue_op", &format!("sample-{n}"), &bytes);
    }
    write("segment_header", "sample", &header().encode());
    let (footer, directory) = footer();
    write("segment_footer", "sample", &footer.encode(&directory));
    write("batch", "sample", &batch());
    write("batch", "empty", &encode_batch(&[], &[]));
    for (n, entry) in entries(Slot(192)).into_iter().enumerate() {
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        write("entries", &format!("sample-{n}"), &bytes);
    }
    write("relocation_map", "sample", &relocation_map().encode());
    write("checkpoint", "moved", &checkpoint_moved().encode());
    for (n, node) in nodes().into_iter().enumerate() {
        write("map_node", &format!("sample-{n}"), &node.encode());
    }
}
