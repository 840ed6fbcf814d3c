//! Tests of the verdict: handwritten histories with right and wrong outcomes.

use std::collections::BTreeMap;

use forebay_engine::{Role, SyncMode};
use forebay_format::BLOCK;

use super::{Found, recover};
use crate::content::fill;
use crate::history::OpId;
use crate::model::{Change, DiskState, Model};

const B: u64 = BLOCK as u64;
const BLOCKS: u64 = 4;

fn model(names: &[&str]) -> Model {
    let mut model = Model::new();
    for name in names {
        let op = model.begin();
        model.new_era(name, op, Some(DiskState::empty(Role::Volume, BLOCKS * B, SyncMode::Flush)));
        model.acknowledge(op, true);
    }
    model
}

fn begin_write(model: &mut Model, name: &str, block: u64) -> (OpId, u32) {
    let (op, write) = (model.begin(), model.new_write());
    model.change(name, op, block * B, B, Change::Write(write));
    (op, write)
}

fn write(model: &mut Model, name: &str, block: u64) -> u32 {
    let (op, write) = begin_write(model, name, block);
    model.changed(name, op, false);
    write
}

fn flush(model: &mut Model, name: &str) {
    let begun = model.flush_begins(name);
    model.flushed(name, begun);
}

/// A disk with the given writes in its blocks.
fn disk(writes: [u32; BLOCKS as usize]) -> Found {
    let bytes = |(block, write): (usize, &u32)| {
        let mut bytes = vec![0; BLOCK];
        fill(*write, block as u64 * B, &mut bytes);
        (block as u64, bytes)
    };
    Found {
        role: Role::Volume,
        size: BLOCKS * B,
        sync: SyncMode::Flush,
        origin: None,
        desktop: false,
        resets: false,
        blocks: writes.iter().enumerate().map(bytes).collect(),
    }
}

fn verdict(mut model: Model, disks: Vec<(&str, Found)>) -> Result<(), String> {
    let found: BTreeMap<_, _> = disks.into_iter().map(|(n, f)| (n.to_owned(), f)).collect();
    recover(&mut model, &found)
}

#[test]
fn exactly_the_prefixes_of_a_history_are_accepted() {
    let all = || {
        let mut m = model(&["a"]);
        let w = [write(&mut m, "a", 0), write(&mut m, "a", 1), write(&mut m, "a", 0)];
        (m, w)
    };
    let (_, [w1, w2, w3]) = all();
    for right in [[0, 0, 0, 0], [w1, 0, 0, 0], [w1, w2, 0, 0], [w3, w2, 0, 0]] {
        verdict(all().0, vec![("a", disk(right))]).unwrap();
    }
    for wrong in [[0, w2, 0, 0], [w3, 0, 0, 0], [w2, 0, 0, 0]] {
        verdict(all().0, vec![("a", disk(wrong))]).unwrap_err();
    }
}

#[test]
fn flushed_writes_must_be_present() {
    let all = || {
        let mut m = model(&["a"]);
        let w = write(&mut m, "a", 0);
        flush(&mut m, "a");
        (m, w)
    };
    let (m, w) = all();
    verdict(m, vec![("a", disk([w, 0, 0, 0]))]).unwrap();
    verdict(all().0, vec![("a", disk([0; 4]))]).unwrap_err();
}

#[test]
fn the_cut_is_the_same_for_all_disks() {
    let all = || {
        let mut m = model(&["a", "b"]);
        let w = [write(&mut m, "a", 0), write(&mut m, "b", 0)];
        (m, w)
    };
    let (m, [a, b]) = all();
    verdict(m, vec![("a", disk([a, 0, 0, 0])), ("b", disk([0; 4]))]).unwrap();
    verdict(all().0, vec![("a", disk([0; 4])), ("b", disk([b, 0, 0, 0]))]).unwrap_err();
    // A flush of the second disk covers earlier writes to the first one.
    let (mut m, [a, b]) = all();
    flush(&mut m, "b");
    verdict(m, vec![("a", disk([a, 0, 0, 0])), ("b", disk([b, 0, 0, 0]))]).unwrap();
    let (mut m, [_, b]) = all();
    flush(&mut m, "b");
    verdict(m, vec![("a", disk([0; 4])), ("b", disk([b, 0, 0, 0]))]).unwrap_err();
}

#[test]
fn a_torn_block_is_detected() {
    let mut m = model(&["a"]);
    let w = write(&mut m, "a", 0);
    let mut torn = disk([w, 0, 0, 0]);
    torn.blocks.get_mut(&0).unwrap()[2048..].fill(0);
    verdict(m, vec![("a", torn)]).unwrap_err();
}

#[test]
fn unanswered_writes_may_be_present_or_not() {
    for there in [false, true] {
        let mut m = model(&["a"]);
        let (_, pending) = begin_write(&mut m, "a", 0);
        let w = write(&mut m, "a", 1);
        let first = if there { pending } else { 0 };
        verdict(m, vec![("a", disk([first, w, 0, 0]))]).unwrap();
    }
}

#[test]
fn a_durable_write_makes_earlier_writes_durable() {
    let all = || {
        let mut m = model(&["a"]);
        let before = write(&mut m, "a", 1);
        let (op, w) = begin_write(&mut m, "a", 0);
        m.changed("a", op, true);
        (m, before, w)
    };
    let (m, before, w) = all();
    verdict(m, vec![("a", disk([w, before, 0, 0]))]).unwrap();
    let (m, before, _) = all();
    verdict(m, vec![("a", disk([0, before, 0, 0]))]).unwrap_err();
    let (m, _, w) = all();
    verdict(m, vec![("a", disk([w, 0, 0, 0]))]).unwrap_err();
}

#[test]
fn the_catalogue_is_durable() {
    verdict(model(&["a"]), vec![]).unwrap_err();
    let mut m = model(&["a"]);
    let op = m.begin();
    m.new_era("a", op, None);
    m.acknowledge(op, true);
    verdict(m, vec![("a", disk([0; 4]))]).unwrap_err();
    verdict(model(&[]), vec![("a", disk([0; 4]))]).unwrap_err();
}

#[test]
fn clones_created_together_exist_together() {
    for wrong in [false, true] {
        let mut m = model(&[]);
        let op = m.begin();
        let empty = DiskState::empty(Role::Volume, BLOCKS * B, SyncMode::Flush);
        m.new_era("c1", op, Some(empty.clone()));
        m.new_era("c2", op, Some(empty));
        m.groups.push((op, vec!["c1".into(), "c2".into()]));
        let mut found = vec![("c1", disk([0; 4]))];
        if !wrong {
            found.push(("c2", disk([0; 4])));
        }
        assert_eq!(verdict(m, found).is_err(), wrong);
    }
}

#[test]
fn a_snapshot_is_one_moment_of_its_volume() {
    let all = || {
        let mut m = model(&["a"]);
        let op = m.begin();
        let mut snapshot = DiskState::empty(Role::Snapshot, BLOCKS * B, SyncMode::Flush);
        snapshot.taken_from = Some(m.era("a"));
        m.new_era("a@s", op, Some(snapshot));
        let w = [write(&mut m, "a", 0), write(&mut m, "a", 1)];
        (m, op, w)
    };
    let snapshot = |writes| Found { role: Role::Snapshot, ..disk(writes) };
    let (m, _, [w1, w2]) = all();
    verdict(m, vec![("a", disk([w1, w2, 0, 0])), ("a@s", snapshot([w1, 0, 0, 0]))]).unwrap();
    let (m, _, [w1, w2]) = all();
    verdict(m, vec![("a", disk([w1, w2, 0, 0])), ("a@s", snapshot([0, w2, 0, 0]))]).unwrap_err();
    // Once acknowledged, the snapshot is durable, and the volume is not older than it.
    let (mut m, op, [w1, _]) = all();
    m.acknowledge(op, true);
    let bytes = |w| disk([w; 4]).blocks;
    m.settle_taken("a@s", &[(0, bytes(w1)[&0].clone()), (1, vec![0; BLOCK])].into()).unwrap();
    verdict(m, vec![("a", disk([0; 4])), ("a@s", snapshot([w1, 0, 0, 0]))]).unwrap_err();
}
