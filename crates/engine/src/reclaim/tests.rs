//! Compares marks by difference with full marks, and with a separate walk of each disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use forebay_format::{Address, BLOCK, DiskId, SegmentId};
use forebay_store::MemoryStore;

use super::counts::Counts;
use super::mark::{Mark, MarkResult};
use super::reclaimer::Reclaimer;
use super::scratch::Scratch;
use super::table::Table;
use crate::commit::Taken;
use crate::disk::blocks;
use crate::map::{NeedNode, Ref, Tree};
use crate::read::Reader;
use crate::testing::TokioHost;
use crate::{BoxFuture, CloneRequest, Pool, PoolConfig, SyncMode};

/// SplitMix64.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// The slots that one disk reaches, with their written bytes, and the number of blocks that it maps.
#[derive(Default)]
struct Reached {
    slots: BTreeMap<Address, u64>,
    mapped: u64,
}

fn walk<'a>(reader: &'a Reader, need: NeedNode, reached: &'a mut Reached) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        reached.slots.insert(need.at.addr, need.at.form.stored_len() as u64);
        let node = reader.nodes.read_uncached(&[need]).await.remove(0).unwrap();
        let (mut blocks, mut children, mut bases) = (Vec::new(), Vec::new(), Vec::new());
        node.references(|r| match r {
            Ref::Block(block) => blocks.push(block),
            Ref::Node(child) => children.push(child),
            Ref::Base(base) => bases.push(base),
            Ref::Memory(_) => panic!("a stored node"),
        });
        for base in bases {
            reached.slots.insert(base.at.addr, base.at.form.stored_len() as u64);
            let base = reader.nodes.read_uncached(&[base]).await.remove(0).unwrap();
            node.uncovered(&base, |block| blocks.push(block));
        }
        reached.mapped += blocks.len() as u64;
        reached.slots.extend(blocks.iter().map(|b| (b.addr, b.form.stored_len() as u64)));
        for child in children {
            walk(reader, child, reached).await;
        }
    })
}

/// What each disk of a checkpoint reaches.
async fn model(reader: &Reader, taken: &Taken) -> BTreeMap<DiskId, Reached> {
    let mut all = BTreeMap::new();
    for disk in &taken.checkpoint.disks {
        let mut reached = Reached::default();
        let tree = Tree::from_record(disk.root, disk.height, blocks(disk.size)).unwrap();
        if let Some(Ref::Node(root)) = tree.root() {
            walk(reader, root, &mut reached).await;
        }
        all.insert(disk.id, reached);
    }
    all
}

/// The contents of a table.
async fn contents(table: &Table, segments: &BTreeSet<SegmentId>, scratch: &Scratch) -> Vec<[u64; 4]> {
    let mut all = Vec::new();
    for segment in segments {
        let counts = table.get(*segment, scratch).await.unwrap();
        all.extend(counts.iter().map(|c| [segment.0.into(), c.slot.into(), c.count, c.value]));
    }
    all
}

fn mark<'a>(reclaimer: &'a Reclaimer, scratch: &'a Arc<Scratch>) -> Mark<'a> {
    Mark { reader: &reclaimer.reader, committer: &reclaimer.committer, scratch, progress: &|_| () }
}

/// Compares a mark by difference with a full mark, and both with the model. Returns the counts.
async fn compare(reclaimer: &Reclaimer, kept: Option<Counts>, with_exclusive: bool) -> Option<Counts> {
    let scratch = Arc::new(Scratch::new(
        reclaimer.reader.clone(),
        reclaimer.committer.clone(),
        reclaimer.space.reserve.segment_bytes,
    ));
    let (taken, _) = reclaimer.committer.take_checkpoint(0).await.unwrap();
    let marks = kept.as_ref().map_or(0, |kept| kept.marks);
    let mark = mark(reclaimer, &scratch);
    let full = mark.find(&taken, None).await.unwrap();
    let mut found = mark.find(&taken, kept).await.unwrap();
    assert_eq!(found.counts().marks, marks + 1, "the counts of the last mark were not used");
    let segments: BTreeSet<SegmentId> = full.live().keys().chain(found.live().keys()).copied().collect();
    let (a, b) = (found.counts(), full.counts());
    assert_eq!(contents(&a.nodes, &segments, &scratch).await, contents(&b.nodes, &segments, &scratch).await);
    assert_eq!(contents(&a.slots, &segments, &scratch).await, contents(&b.slots, &segments, &scratch).await);
    assert_eq!(a.blocks, b.blocks);

    let model = model(&reclaimer.reader, &taken).await;
    let mut live: BTreeMap<SegmentId, BTreeMap<u32, u64>> = BTreeMap::new();
    for (addr, bytes) in model.values().flat_map(|reached| &reached.slots) {
        live.entry(addr.segment).or_default().insert(addr.slot.0, *bytes);
    }
    assert!(found.live().keys().eq(live.keys()));
    for (segment, slots) in &live {
        assert!(found.slots(*segment).await.unwrap().iter().eq(slots.keys().copied()), "segment {segment}");
        let totals = found.live()[segment];
        assert_eq!((totals.slots, totals.bytes), (slots.len() as u64, slots.values().sum()));
    }
    if with_exclusive {
        mark.add_up(&mut found).await.unwrap();
        check_disks(&found, &model);
    }
    found.into_counts()
}

fn check_disks(found: &MarkResult, model: &BTreeMap<DiskId, Reached>) {
    let mut holders: BTreeMap<Address, u64> = BTreeMap::new();
    for addr in model.values().flat_map(|reached| reached.slots.keys()) {
        *holders.entry(*addr).or_default() += 1;
    }
    for (id, reached) in model {
        let space = found.disks[id];
        assert_eq!(space.mapped_bytes, reached.mapped * BLOCK as u64, "{id:?}");
        let exclusive: u64 = reached.slots.iter().filter(|(a, _)| holders[a] == 1).map(|(_, len)| len).sum();
        assert_eq!(space.exclusive_bytes, exclusive, "{id:?}");
    }
}

const BLOCKS: u64 = 2000;
const SIZE: u64 = BLOCKS * BLOCK as u64;

/// One random change of the disks.
async fn change(pool: &Pool, rng: &mut Rng, names: &mut Vec<String>, number: u64) {
    let pick = |rng: &mut Rng, names: &[String]| names[rng.below(names.len() as u64) as usize].clone();
    let name = pick(rng, names);
    let writable = !name.contains('@');
    match rng.below(10) {
        0 | 1 if names.len() < 12 => {
            let clone = CloneRequest { name: format!("c{number}"), ..CloneRequest::default() };
            pool.clone_disk(&name, &[clone]).await.unwrap();
            names.push(format!("c{number}"));
        }
        2 if writable && names.len() < 12 => {
            pool.create_snapshot(&name, &format!("s{number}")).await.unwrap();
            names.push(format!("{name}@s{number}"));
        }
        // A disk that has clones or snapshots is refused.
        3 if names.len() > 2 => {
            let deleted = pool.delete(&name).await;
            names.retain(|other| deleted.is_err() || *other != name);
        }
        4 if writable => {
            let source = pick(rng, names);
            if source == name {
                return;
            }
            let source = pool.attach(&source).unwrap();
            let disk = pool.attach(&name).unwrap();
            let (from, len) = (rng.below(BLOCKS / 2), rng.below(BLOCKS / 2) + 1);
            let to = if rng.below(2) == 0 { from } else { rng.below(BLOCKS / 2) };
            let at = |block: u64| block * BLOCK as u64;
            disk.copy_from(at(to), &source, at(from), at(len)).await.unwrap();
        }
        5 if writable => {
            let disk = pool.attach(&name).unwrap();
            let first = rng.below(BLOCKS - 1);
            let len = rng.below(BLOCKS - first).min(700) + 1;
            disk.discard(first * BLOCK as u64, (len - 1) * BLOCK as u64, false).await.unwrap();
        }
        6 => {
            if let Some((volume, snapshot)) = name.split_once('@') {
                pool.rollback(volume, snapshot).await.unwrap();
            }
        }
        _ if writable => {
            let disk = pool.attach(&name).unwrap();
            for _ in 0..rng.below(150) {
                let block = rng.below(BLOCKS);
                // Some contents are equal, so that blocks are shared.
                let content: Vec<u8> = match rng.below(4) {
                    0 => vec![1 + rng.below(20) as u8; BLOCK],
                    _ => (0..BLOCK / 8).flat_map(|_| rng.below(u64::MAX).to_le_bytes()).collect(),
                };
                disk.write(block * BLOCK as u64, &content, false).await.unwrap();
            }
            disk.flush().await.unwrap();
        }
        _ => {}
    }
}

pub(super) async fn open(store: &Arc<MemoryStore>, mark_memory: u64) -> Arc<Pool> {
    let config = PoolConfig {
        read_cache: 1 << 20,
        map_cache: 0,
        write_buffer: 1 << 20,
        segment_bytes: 256 << 10,
        checkpoint_bytes: 1 << 30,
        reclaim_pause: Duration::from_secs(1 << 20),
        learn_classes: false,
        dedup_index: 1 << 20,
        mark_memory,
        ..PoolConfig::default()
    };
    Pool::open(store.clone(), TokioHost::new(), config).await.unwrap()
}

/// Random changes; after each, or some, a mark by difference equals one from nothing.
async fn random_changes(seed: u64, mark_memory: u64) {
    let store = Arc::new(MemoryStore::new());
    let mut rng = Rng(seed);
    let pool = open(&store, mark_memory).await;
    let reclaimer = pool.reclaimer();
    pool.create_volume("v", SIZE, SyncMode::Flush, 0).await.unwrap();
    let mut names = vec!["v".to_owned()];
    let v = pool.attach("v").unwrap();
    for block in 0..BLOCKS {
        v.write(block * BLOCK as u64, &[1 + (block % 251) as u8; BLOCK], false).await.unwrap();
    }
    drop(v);
    for number in 0..40 {
        change(&pool, &mut rng, &mut names, number).await;
        if rng.below(2) == 0 {
            let mut counts = reclaimer.counts.lock().await;
            let kept = counts.take();
            *counts = compare(reclaimer, kept, false).await;
            assert!(counts.is_some() || mark_memory < 1 << 20, "the counts fit into the budget");
        }
        if rng.below(4) == 0 {
            pool.reclaim(&|_| ()).await.unwrap();
        }
        if rng.below(8) == 0 {
            let mut counts = reclaimer.counts.lock().await;
            let kept = counts.take();
            *counts = compare(reclaimer, kept, false).await;
        }
    }
    pool.close().await.unwrap();
}

#[tokio::test]
async fn a_mark_by_difference_equals_one_from_nothing() {
    for seed in 0..8 {
        random_changes(seed, 64 << 20).await;
    }
}

#[tokio::test]
async fn a_mark_within_a_small_budget_equals_one_in_memory() {
    for seed in 100..103 {
        random_changes(seed, 2 << 10).await;
    }
}

/// The figures of disks, before slots are moved.
#[tokio::test]
async fn mapped_and_exclusive_space_is_what_each_disk_reaches_alone() {
    for seed in 200..204 {
        let store = Arc::new(MemoryStore::new());
        let mut rng = Rng(seed);
        let pool = open(&store, 64 << 20).await;
        pool.create_volume("v", SIZE, SyncMode::Flush, 0).await.unwrap();
        let mut names = vec!["v".to_owned()];
        let mut counts = None;
        for number in 0..30 {
            change(&pool, &mut rng, &mut names, number).await;
            if number % 3 == 0 {
                counts = compare(pool.reclaimer(), counts, true).await;
            }
        }
    }
}

/// The work of a mark follows the change, not the pool.
#[tokio::test]
async fn a_mark_reads_the_nodes_that_changed() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store, 64 << 20).await;
    const LEAVES: u64 = 600;
    pool.create_volume("v", LEAVES << 20, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    for leaf in 0..LEAVES {
        v.write(leaf << 20, &[7; BLOCK], false).await.unwrap();
    }
    pool.flush().await.unwrap();
    let scratch = Arc::new(Scratch::new(
        pool.reclaimer().reader.clone(),
        pool.reclaimer().committer.clone(),
        256 << 10,
    ));
    let mark = mark(pool.reclaimer(), &scratch);
    let (taken, _) = mark.committer.take_checkpoint(0).await.unwrap();
    let first = mark.find(&taken, None).await.unwrap();
    assert!(first.visited() > LEAVES);
    v.write(300 << 20, &[8; BLOCK], false).await.unwrap();
    pool.flush().await.unwrap();
    let (taken, _) = mark.committer.take_checkpoint(0).await.unwrap();
    let second = mark.find(&taken, first.into_counts()).await.unwrap();
    // The old and the new leaf, and the two inner nodes above each.
    assert_eq!(second.visited(), 6);
    let (taken, _) = mark.committer.take_checkpoint(0).await.unwrap();
    assert_eq!(mark.find(&taken, second.into_counts()).await.unwrap().visited(), 0);
}
