//! Runs every fuzz target on its checked-in corpus, on the stable toolchain, as a regression test.
//! `cargo run -p xtask -- corpora` writes the samples again.

#[path = "../corpus/mod.rs"]
mod stored;

use crate::common::*;
use forebay_format::{BLOCK, Slot, fuzzing};
use stored::*;

#[test]
fn every_input_of_the_corpus_passes() {
    fuzzing::TARGETS.iter().for_each(run_inputs);
}

#[test]
fn every_target_has_a_program() {
    check_programs(fuzzing::TARGETS);
}

/// Seeds: samples, complete, truncated and corrupted.
#[test]
fn samples_are_current() {
    let write = put_with_variants;
    let mut two = superblock().encode();
    two.extend(
        forebay_format::Superblock { generation: u64::MAX, blobs: Vec::new(), ..superblock() }.encode(),
    );
    write("superblock", "sample", &two[..BLOCK]);
    write("superblock", "two-copies", &two);
    write("checkpoint_root", "sample", &root().encode());
    write("checkpoint_root", "empty", &forebay_format::CheckpointRoot::default().encode());
    write("table_page", "segments", &segment_page().1);
    write("table_page", "directory", &directory_page().1);
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
    for (n, node) in nodes().into_iter().enumerate() {
        write("map_node", &format!("sample-{n}"), &node.encode());
    }
    let (header, cover, chunks, records) = retained();
    write("retained_structure", "header", &header.encode());
    write("retained_structure", "cover", &cover.encode());
    for (n, chunk) in chunks.into_iter().enumerate() {
        write("retained_structure", &format!("chunk-{n}"), &chunk.encode(3, 5));
    }
    for (n, record) in records.into_iter().enumerate() {
        write("retained_structure", &format!("record-{n}"), &record.encode());
    }
}
