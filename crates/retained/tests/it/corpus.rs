//! Runs the fuzz target on its checked-in corpus, on the stable toolchain, as a regression test.
//! `cargo run -p xtask -- corpora` writes the samples again.

#[path = "../../../format/tests/corpus/mod.rs"]
mod stored;

use std::sync::Arc;

use crate::common::*;
use forebay_retained::fuzzing::{self, Content, check_open, pack};
use forebay_retained::*;
use stored::*;

#[test]
fn every_input_of_the_corpus_passes() {
    fuzzing::TARGETS.iter().for_each(run_inputs);
}

#[test]
fn every_target_has_a_program() {
    check_programs(fuzzing::TARGETS);
}

/// Memories with little data, since inputs are best small.
fn samples() -> Vec<(&'static str, Content)> {
    let memory = Arc::new(HeapMemory::new(4));
    let retained = create(&memory);
    let empty = memory.content();
    let short = |n: u64| move |page: &mut [u8; PAGE]| page[100..108].copy_from_slice(&n.to_le_bytes());
    let pages: Vec<_> = (0..3).map(|n| retained.page(None, block(1, n), short(n))).collect();
    let newer = retained.page(None, BlockRecord { mask: 3, ..block(1, 1) }, short(9));
    // Its checksum is not corrected; see `fuzzing::correct`.
    let damaged = retained.page(None, block(2, 7), |page| page[0] = 0xff);
    let (zeroes, flag) = (retained.range(None, range(1, 0, 9)), retained.flag(3, 1));
    retained.set_cover(Cover { seq: 5, order: 2 });
    retained.set_cover(Cover { seq: 6, order: 3 });
    let full = memory.content();
    drop((pages, newer, damaged, zeroes, flag));
    let dropped = memory.content();
    let mut torn = full.clone();
    torn[2] = None;
    let mut stray = full.clone();
    stray[3] = Some(vec![0; CHUNK]);
    vec![("empty", empty), ("full", full), ("dropped", dropped), ("torn", torn), ("stray", stray)]
}

#[test]
fn samples_are_current() {
    for (name, content) in samples() {
        put_with_variants("retained_memory", name, &pack(&content));
        assert_eq!(check_open(&content), name != "torn", "{name}");
    }
}
