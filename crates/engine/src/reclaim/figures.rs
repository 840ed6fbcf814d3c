//! Measures a mark: nodes read, memory and temporary data, by the size of the pool and by the number of
//! changes. `cargo test --workspace --lib --release -- --ignored --nocapture marks_by_size`

use std::sync::Arc;
use std::time::Instant;

use forebay_format::{
    Address, BLOCK, BlockRef, DiskId, Form, MapNode, MapValue, NodeEntries, SegmentId, Slot, Stream,
};
use forebay_store::MemoryStore;

use super::mark::Mark;
use super::scratch::Scratch;
use super::tests::{Rng, open};
use crate::Pool;
use crate::commit::Taken;
use crate::log::Item;
use crate::tables::Contents;
use crate::testing::volume;

/// Blocks of a segment of 64 MiB.
const SEGMENT_BLOCKS: u64 = (64 << 20) / BLOCK as u64;
/// Segments with blocks have numbers from here on; segments with map nodes have lower numbers.
const FIRST: u64 = 1 << 24;

/// The maps of a synthetic pool. Blocks have addresses, but no contents.
struct Maps {
    pool: Arc<Pool>,
    /// Number of blocks written so far, by which addresses are assigned.
    written: u64,
    /// The leaves of the map, and the levels above them.
    levels: Vec<Vec<MapValue>>,
}

impl Maps {
    fn block(&mut self) -> MapValue {
        let n = self.written;
        self.written += 1;
        let segment = SegmentId((FIRST + n / SEGMENT_BLOCKS) as u32);
        let slot = Slot((n % SEGMENT_BLOCKS) as u32 * (BLOCK / Slot::UNIT) as u32);
        MapValue::At(BlockRef { addr: Address { segment, slot }, form: Form::RAW_BLOCK, crc: n as u32 })
    }

    async fn write(&self, nodes: &[MapNode]) -> Vec<MapValue> {
        let mut written = Vec::new();
        for some in nodes.chunks(512) {
            let encoded: Vec<_> = some.iter().map(MapNode::encode).collect();
            let items: Vec<_> = encoded.iter().map(|node| Item::Node(node)).collect();
            let workers = self.pool.reclaimer().cx.host.workers();
            let mut log = self.pool.reclaimer().committer.write_log().await.unwrap();
            let refs = log.write_group(Stream::Map, &items, workers).await.unwrap();
            written.extend(refs.into_iter().map(MapValue::At));
        }
        written
    }

    /// Replaces `blocks` blocks of each of these leaves, and the nodes above the leaves.
    async fn change(&mut self, leaves: &[usize], blocks: usize, old: &mut [Vec<MapValue>]) {
        let mut nodes = Vec::new();
        for leaf in leaves {
            for entry in 0..blocks {
                old[*leaf][entry * 7 % 256] = self.block();
            }
            let entries = NodeEntries::Full(old[*leaf].clone());
            nodes.push(MapNode { level: 0, index: *leaf as u64, entries });
        }
        let mut changed: Vec<usize> = leaves.to_vec();
        for level in 0..self.levels.len() {
            for (i, value) in changed.iter().zip(self.write(&nodes).await) {
                self.levels[level][*i] = value;
            }
            changed = changed.iter().map(|i| i / 256).collect();
            changed.dedup();
            let node = |i: &usize| {
                let mut entries = vec![MapValue::Hole; 256];
                let below = &self.levels[level][i * 256..];
                entries.iter_mut().zip(below).for_each(|(entry, value)| *entry = *value);
                MapNode { level: level as u8 + 1, index: *i as u64, entries: NodeEntries::Full(entries) }
            };
            nodes = changed.iter().map(node).collect();
        }
    }

    fn taken(&self) -> Taken {
        let levels = self.levels.len();
        let blocks = 256u64.pow(levels as u32);
        let mut disk = volume(1, blocks * BLOCK as u64);
        (disk.id, disk.root, disk.height) = (DiskId(1), self.levels[levels - 1][0], levels as u8);
        let checkpoint = Contents { disks: vec![disk], ..Contents::default() };
        let head = crate::log::Head { seq: 0, chain: 0 };
        Taken { head, checkpoint, trees: Vec::new(), map_damage: Vec::new() }
    }
}

async fn measure(gib: u64, budget: u64) {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store, budget).await;
    let leaves = (gib << 30) as usize / (256 * BLOCK);
    let mut levels = vec![vec![MapValue::Hole; leaves]];
    while levels.last().is_some_and(|level| level.len() > 1) {
        levels.push(vec![MapValue::Hole; levels.last().map_or(0, Vec::len).div_ceil(256)]);
    }
    let mut maps = Maps { pool: pool.clone(), written: 0, levels };
    let mut entries = vec![vec![MapValue::Hole; 256]; leaves];
    let mut rng = Rng(1);
    let all: Vec<usize> = (0..leaves).collect();
    maps.change(&all, 256, &mut entries).await;
    let scratch = Arc::new(Scratch::new(
        pool.reclaimer().reader.clone(),
        pool.reclaimer().committer.clone(),
        256 << 10,
    ));
    let reclaimer = pool.reclaimer();
    let mark = Mark {
        reader: &reclaimer.reader,
        committer: &reclaimer.committer,
        scratch: &scratch,
        progress: &|_| (),
    };
    let (began, before) = (Instant::now(), pool.stats().await.moved_bytes);
    let mut found = mark.find(&maps.taken(), None).await.unwrap();
    let temporary = (pool.stats().await.moved_bytes - before) >> 10;
    println!(
        "{gib} GiB, budget {} KiB: full mark: {} nodes read, counts {} KiB in memory, temporary data {temporary} KiB, {:?}",
        budget >> 10,
        found.visited(),
        found.counts().bytes() >> 10,
        began.elapsed(),
    );
    for changed in [1, 10, 100, 1000] {
        let Some(counts) = found.into_counts() else { break };
        let mut some: Vec<usize> = (0..changed).map(|_| rng.below(leaves as u64) as usize).collect();
        some.sort_unstable();
        some.dedup();
        maps.change(&some, 8, &mut entries).await;
        let began = Instant::now();
        found = mark.find(&maps.taken(), Some(counts)).await.unwrap();
        let (nodes, bytes) = (found.visited(), found.counts().bytes() >> 10);
        let leaves = some.len();
        println!(
            "    {leaves} leaves changed: {nodes} nodes read, counts {bytes} KiB, {:?}",
            began.elapsed()
        );
    }
}

#[tokio::test]
#[ignore = "a measurement"]
async fn marks_by_size() {
    for gib in [4, 16, 64] {
        measure(gib, 512 << 20).await;
    }
    measure(16, 1 << 20).await;
}
