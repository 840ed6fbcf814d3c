//! The difference of two disks: after any history it agrees with the contents, and its cost is in proportion
//! to what differs.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_engine::{Changed, CloneRequest, DiskHandle, Error, Export, Pool, PoolConfig, SyncMode};
use forebay_store::MemoryStore;

use crate::common::*;

const BLOCK: u64 = 4096;
/// Blocks of the volumes of most histories: three leaves, the last one partly beyond the end.
const BLOCKS: u64 = 600;
/// Blocks of the volumes of some histories: a map of three levels.
const MANY_BLOCKS: u64 = 70_000;

/// The number of histories; `FOREBAY_DIFFERENCE_SEEDS` runs more.
fn seeds() -> u64 {
    std::env::var("FOREBAY_DIFFERENCE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(200)
}

/// A number for the contents of each block; 0 is a hole or zeroes.
type Contents = Vec<u64>;

struct World {
    pool: Arc<Pool>,
    disks: BTreeMap<String, Contents>,
    handles: BTreeMap<String, Arc<DiskHandle>>,
    random: u64,
    written: u64,
    /// Whether blocks were written with contents that other blocks have as well.
    has_copies: bool,
    blocks: u64,
}

/// The changes of an export as blocks, read in pieces of `max` ranges.
async fn changes_of(export: &Export, max: usize) -> Vec<(bool, bool)> {
    let (mut blocks, mut at) = (Vec::new(), 0);
    while at < export.size() {
        let changes = export.changes(at, export.size() - at, max).await.unwrap();
        assert!(!changes.is_empty() && changes.len() <= max, "{} ranges", changes.len());
        for Changed { len, changed, zero } in changes {
            assert!(len > 0 && len % BLOCK == 0, "a range of {len} bytes");
            blocks.extend((0..len / BLOCK).map(|_| (changed, zero)));
            at += len;
        }
    }
    assert_eq!(at, export.size());
    blocks
}

impl World {
    async fn new(pool: Arc<Pool>, seed: u64) -> World {
        let blocks = if seed % 10 == 9 { MANY_BLOCKS } else { BLOCKS };
        let mut world = World {
            pool,
            disks: BTreeMap::new(),
            handles: BTreeMap::new(),
            random: seed * 977 + 1,
            written: seed << 32,
            has_copies: false,
            blocks,
        };
        world.pool.create_volume("v", blocks * BLOCK, SyncMode::Flush, 0).await.unwrap();
        world.disks.insert("v".into(), vec![0; blocks as usize]);
        world.attach("v");
        world.write("v", 200, 300).await;
        world.pool.create_image("golden", "v").await.unwrap();
        world.disks.insert("golden".into(), world.disks["v"].clone());
        world.pool.clone_disk("golden", &[clone("a")]).await.unwrap();
        world.disks.insert("a".into(), world.disks["v"].clone());
        world.attach("a");
        world
    }

    fn attach(&mut self, name: &str) {
        self.handles.insert(name.into(), self.pool.attach(name).unwrap());
    }

    fn next(&mut self, below: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    async fn write(&mut self, name: &str, first: u64, count: u64) {
        let mut bytes = Vec::new();
        for block in first..first + count {
            self.written += 1;
            self.disks.get_mut(name).unwrap()[block as usize] = self.written;
            bytes.extend(noise(self.written, BLOCK as usize));
        }
        self.handles[name].write(first * BLOCK, &bytes, false).await.unwrap();
    }

    async fn change(&mut self, step: u64) {
        let name = ["v", "a"][self.next(2) as usize];
        let handle = self.handles[name].clone();
        let size = self.disks[name].len() as u64;
        let (first, most) = (self.next(size - 1), if self.next(4) == 0 { 300 } else { 8 });
        let count = (1 + self.next(most)).min(size - first);
        match self.next(20) {
            0..7 => self.write(name, first, count).await,
            what @ 7..11 => {
                match what {
                    7 => handle.discard(first * BLOCK, count * BLOCK, false).await.unwrap(),
                    8 => {
                        handle.write(first * BLOCK, &vec![0; (count * BLOCK) as usize], false).await.unwrap()
                    }
                    _ => {
                        let allocated = what == 9;
                        handle.write_zeroes(first * BLOCK, count * BLOCK, allocated, false).await.unwrap();
                    }
                }
                self.disks.get_mut(name).unwrap()[first as usize..(first + count) as usize].fill(0);
            }
            11 => self.copy(name, first, count).await,
            12 => self.pool.flush().await.unwrap(),
            13 => self.pool.checkpoint().await.unwrap(),
            14 if step.is_multiple_of(3) => drop(self.pool.reclaim(&|_| {}).await.unwrap()),
            15..18 => {
                self.pool.create_snapshot(name, &format!("s{step}")).await.unwrap();
                self.disks.insert(format!("{name}@s{step}"), self.disks[name].clone());
            }
            _ => {
                drop(handle);
                self.administer(name).await;
            }
        }
    }

    /// Copies blocks of the other volume to the same place, by reference.
    async fn copy(&mut self, name: &str, first: u64, count: u64) {
        let from = if name == "v" { "a" } else { "v" };
        let len = count.min((self.disks[from].len() as u64).saturating_sub(first));
        if len > 0 && self.next(4) == 0 {
            self.has_copies = true;
            let copied = self.disks[from][first as usize..][..len as usize].to_vec();
            let (handle, source) = (&self.handles[name], &self.handles[from]);
            handle.copy_from(first * BLOCK, source, first * BLOCK, len * BLOCK).await.unwrap();
            self.disks.get_mut(name).unwrap()[first as usize..][..copied.len()].copy_from_slice(&copied);
        }
    }

    /// Removes a snapshot, rolls back, or resizes.
    async fn administer(&mut self, name: &str) {
        let prefix = format!("{name}@");
        let snapshots: Vec<String> =
            self.disks.keys().filter(|disk| disk.starts_with(&prefix)).cloned().collect();
        self.handles.remove(name);
        let chosen = match snapshots.len() as u64 {
            0 => None,
            count => Some(snapshots[self.next(count) as usize].clone()),
        };
        match (self.next(3), chosen) {
            (0, Some(snapshot)) if snapshots.len() > 2 => {
                self.pool.delete(&snapshot).await.unwrap();
                self.disks.remove(&snapshot);
            }
            (1, Some(snapshot)) => {
                self.pool.rollback(name, snapshot.split('@').nth(1).unwrap()).await.unwrap();
                self.disks.insert(name.into(), self.disks[&snapshot].clone());
            }
            _ => {
                let blocks = self.blocks / 2 + self.next(self.blocks);
                self.pool.resize(name, blocks * BLOCK).await.unwrap();
                self.disks.get_mut(name).unwrap().resize(blocks as usize, 0);
            }
        }
        self.attach(name);
    }

    /// Compares the difference of two disks with the model, and also with full reads if `reads`.
    async fn check(&mut self, from: Option<&str>, to: &str, reads: bool, when: &str) {
        let max = [1, 3, 1000][self.next(3) as usize];
        let export = self.pool.begin_export_since(to, from).await.unwrap();
        let found = changes_of(&export, max).await;
        let then = from.map_or(Contents::new(), |from| self.disks[from].clone());
        let now = &self.disks[to];
        assert_eq!(found.len(), now.len(), "{when}");
        for (block, ((changed, zero), now)) in found.iter().zip(now).enumerate() {
            let then = then.get(block).copied().unwrap_or(0);
            let at = || format!("block {block} of {to} since {from:?}, {when}: {then} then, {now} now");
            assert!(*changed || then == *now, "a change is missed: {}", at());
            assert!(!changed || then != *now || self.has_copies, "nothing has changed: {}", at());
            assert_eq!(*zero, *changed && *now == 0, "{}", at());
        }
        if reads {
            let from = from.map(|from| self.pool.attach(from).unwrap());
            for (block, (changed, _)) in found.iter().enumerate() {
                let (mut now, mut then) = ([0; BLOCK as usize], vec![0; BLOCK as usize]);
                let at = block as u64 * BLOCK;
                export.read(at, &mut now).await.unwrap();
                if let Some(from) = from.as_ref().filter(|from| at < from.size()) {
                    then = read(from, at, BLOCK as usize).await;
                }
                assert!(*changed || now[..] == then[..], "a read differs: block {block} of {to}, {when}");
            }
        }
        self.pool.end_export(export).await.unwrap();
    }

    async fn check_all(&mut self, when: &str) {
        let names: Vec<String> = self.disks.keys().cloned().collect();
        let fixed: Vec<Option<&str>> = names.iter().map(String::as_str).map(Some).collect();
        let mut fixed: Vec<_> =
            fixed.into_iter().filter(|name| !["v", "a"].contains(&name.unwrap())).collect();
        fixed.push(None);
        for _ in 0..3 {
            let from = fixed[self.next(fixed.len() as u64) as usize];
            let to = names[self.next(names.len() as u64) as usize].clone();
            let reads = self.blocks == BLOCKS;
            self.check(from, &to, reads, when).await;
        }
    }
}

#[tokio::test]
async fn a_difference_agrees_with_full_reads_after_any_history() {
    let config = || PoolConfig { map_cache: 0, checkpoint_bytes: 1 << 20, ..config() };
    for seed in 0..seeds() {
        let store = Arc::new(MemoryStore::new());
        let mut world = World::new(open_with(&store, config()).await, seed).await;
        for step in 0..60 {
            world.change(step).await;
            if step % 20 == 19 {
                world.check_all(&format!("seed {seed}, step {step}")).await;
            }
        }
        world.handles.clear();
        world.pool.close().await.unwrap();
        world.pool = open_with(&store, config()).await;
        world.check_all(&format!("seed {seed}, after reopening")).await;
    }
}

/// A pool that was opened again, so that no node is in memory, with a volume of 4 GiB and the snapshots `s`,
/// and `t` after writes at `changed`.
async fn large(changed: &[u64]) -> Arc<Pool> {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("v", 4 << 30, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    for leaf in 0..4096 {
        v.write(leaf << 20, &text(leaf, BLOCK as usize), false).await.unwrap();
    }
    pool.create_snapshot("v", "s").await.unwrap();
    for at in changed {
        v.write(*at, &noise(1 + at, BLOCK as usize), false).await.unwrap();
    }
    pool.create_snapshot("v", "t").await.unwrap();
    drop(v);
    pool.close().await.unwrap();
    open(&store).await
}

#[tokio::test]
async fn a_comparison_reads_nodes_in_proportion_to_the_difference() {
    for count in [0, 1, 40] {
        let changed: Vec<u64> = (0..count).map(|n| (n * 97) << 20).collect();
        let pool = large(&changed).await;
        let export = pool.begin_export_since("v@t", Some("s")).await.unwrap();
        let found = changes_of(&export, 100).await;
        let blocks: Vec<u64> = (0..found.len() as u64).filter(|n| found[*n as usize].0).collect();
        assert_eq!(blocks, changed.iter().map(|at| at / BLOCK).collect::<Vec<_>>());
        let read = export.since().unwrap().nodes_read();
        // Both leaves of each change, and the paths to them: 16 nodes of the middle level in each map.
        let most = 2 * count + if count == 0 { 0 } else { 2 * count.min(16) + 2 };
        assert!(read <= most, "{read} nodes read for {count} changed leaves of 4096");
        assert!(count == 0 || read >= count, "{read} nodes: the counter does not count");
        pool.end_export(export).await.unwrap();
        pool.close().await.unwrap();
    }
}

#[tokio::test]
async fn an_earlier_disk_is_in_use_until_the_comparison_ends() {
    let pool = open(&Arc::new(MemoryStore::new())).await;
    pool.create_volume("v", 1 << 20, SyncMode::Flush, 0).await.unwrap();
    pool.create_snapshot("v", "s").await.unwrap();
    let named = |name: &str| pool.since("v", name).map(|since| since.name());
    assert_eq!(named("s").unwrap(), "v@s");
    assert_eq!(named("v@s").unwrap(), "v@s");
    assert!(matches!(named("other"), Err(Error::NotFound(_))));
    assert!(matches!(named("v"), Err(Error::WrongKind { .. })));
    let export = pool.begin_export_since("v", Some("s")).await.unwrap();
    assert!(matches!(pool.delete("v@s").await, Err(Error::InUse { .. })));
    pool.end_export(export).await.unwrap();
    pool.delete("v@s").await.unwrap();

    // Of a snapshot and an image with one name, the snapshot is meant.
    pool.create_snapshot("v", "x").await.unwrap();
    pool.create_image("x", "v").await.unwrap();
    assert_eq!(named("x").unwrap(), "v@x");
    pool.create_volume("w", 1 << 20, SyncMode::Flush, 0).await.unwrap();
    assert_eq!(pool.since("w", "x").unwrap().name(), "x");
}

/// A live volume: the writes before a request are in its answer.
#[tokio::test]
async fn the_changes_of_a_volume_contain_its_dirty_data() {
    let pool = open(&Arc::new(MemoryStore::new())).await;
    pool.create_volume("v", 8 << 20, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    v.write(0, &noise(1, 2 << 20), false).await.unwrap();
    pool.create_snapshot("v", "s").await.unwrap();
    let since = pool.since("v", "s").unwrap();
    let runs = async |offset, len| {
        let changes = v.changes(&since, offset, len, 100).await.unwrap();
        changes.iter().map(|c| (c.len, c.changed, c.zero)).collect::<Vec<_>>()
    };
    assert_eq!(runs(0, 8 << 20).await, [(8 << 20, false, false)]);
    v.write(4096 + 512, &noise(2, 512), false).await.unwrap();
    v.discard(1 << 20, 4096, false).await.unwrap();
    v.discard(4 << 20, 4096, false).await.unwrap();
    let expected = [
        (4096, false, false),
        (4096, true, false),
        ((1 << 20) - 8192, false, false),
        (4096, true, true),
        ((7 << 20) - 4096, false, false),
    ];
    assert_eq!(runs(0, 8 << 20).await, expected);
    assert_eq!(runs(5000, 100).await, [(100, true, false)]);
    assert_eq!(runs(4095, 2).await, [(1, false, false), (1, true, false)]);
    assert_eq!(runs(100, 0).await, []);
    assert!(v.changes(&since, 8 << 20, 1, 1).await.is_err());
    // A clone is compared with the snapshot that it was made of, and with its present state.
    pool.clone_disk("v@s", &[CloneRequest { name: "c".into(), ..CloneRequest::default() }]).await.unwrap();
    let since = pool.since("c", "v@s").unwrap();
    let c = pool.attach("c").unwrap();
    assert!(!c.changes(&since, 0, 8 << 20, 9).await.unwrap()[0].changed);
}
