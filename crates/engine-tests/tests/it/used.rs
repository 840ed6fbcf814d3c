//! The space that each disk uses: the figure agrees with a model after any history.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::*;
use forebay_engine::{DiskHandle, Pool, PoolConfig, SyncMode};
use forebay_store::MemoryStore;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Blocks of each volume at first.
const BLOCKS: u64 = 2048;

async fn open_paused(store: &Arc<MemoryStore>, config: PoolConfig) -> Arc<Pool> {
    let host = Arc::new(PausedHost(tokio::time::Instant::now()));
    Pool::open(store.clone(), host, config).await.unwrap()
}

/// The figure of a disk in blocks, when the counter has had time for all changes.
async fn used(pool: &Pool, name: &str) -> u64 {
    // On a paused clock, this returns when every other task waits for a later time.
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    pool.disk(name).unwrap().used.expect("the disk was counted") / BLOCK
}

/// A number for the content of each block; 0 is a hole.
type Contents = Vec<u64>;

struct Model {
    disks: BTreeMap<String, Contents>,
    /// The origin of each volume that has one.
    origins: BTreeMap<String, String>,
    written: u64,
}

impl Model {
    /// What a disk uses: the blocks that its origin, or that of its volume, does not have.
    fn used(&self, name: &str) -> u64 {
        let volume = name.split('@').next().unwrap();
        let origin = self.origins.get(volume).and_then(|origin| self.disks.get(origin));
        let inherited = |block: usize| origin.and_then(|origin| origin.get(block)).copied().unwrap_or(0);
        let own =
            self.disks[name].iter().enumerate().filter(|(block, of)| **of != 0 && **of != inherited(*block));
        own.count() as u64
    }

    async fn write(&mut self, disk: &DiskHandle, name: &str, first: u64, count: u64) {
        let contents = self.disks.get_mut(name).unwrap();
        let mut bytes = Vec::new();
        for block in first..first + count {
            self.written += 1;
            contents[block as usize] = self.written;
            bytes.extend(noise(self.written, BLOCK as usize));
        }
        disk.write(first * BLOCK, &bytes, false).await.unwrap();
    }

    fn clear(&mut self, name: &str, first: u64, count: u64) {
        self.disks.get_mut(name).unwrap()[first as usize..(first + count) as usize].fill(0);
    }

    async fn check(&self, pool: &Pool, when: &str) {
        pool.flush().await.unwrap();
        for name in self.disks.keys() {
            assert_eq!(used(pool, name).await, self.used(name), "{name}, {when}");
        }
    }
}

const NAMES: [&str; 3] = ["v", "a", "b"];

/// A pool with a volume without an origin and two clones, and the model of its disks.
struct World {
    pool: Arc<Pool>,
    model: Model,
    /// Those of `NAMES`.
    handles: Vec<Arc<DiskHandle>>,
    random: u64,
}

impl World {
    async fn new(pool: Arc<Pool>, seed: u64) -> World {
        let mut model = Model { disks: BTreeMap::new(), origins: BTreeMap::new(), written: seed << 32 };
        for name in ["golden", "v"] {
            pool.create_volume(name, BLOCKS * BLOCK, SyncMode::Flush, 0).await.unwrap();
            model.disks.insert(name.into(), vec![0; BLOCKS as usize]);
        }
        model.write(&pool.attach("golden").unwrap(), "golden", 200, 700).await;
        pool.create_snapshot("golden", "s").await.unwrap();
        model.disks.insert("golden@s".into(), model.disks["golden"].clone());
        // Another image, which has some blocks of the first one.
        pool.clone_disk("golden@s", &[clone("next")]).await.unwrap();
        model.disks.insert("next".into(), model.disks["golden"].clone());
        model.origins.insert("next".into(), "golden@s".into());
        model.write(&pool.attach("next").unwrap(), "next", 500, 900).await;
        pool.create_image("other", "next").await.unwrap();
        model.disks.insert("other".into(), model.disks["next"].clone());
        pool.clone_disk("golden@s", &[clone("a"), clone("b")]).await.unwrap();
        for name in ["a", "b"] {
            model.disks.insert(name.into(), model.disks["golden"].clone());
            model.origins.insert(name.into(), "golden@s".into());
        }
        let handles = NAMES.iter().map(|name| pool.attach(name).unwrap()).collect();
        World { pool, model, handles, random: seed * 977 + 1 }
    }

    fn next(&mut self, below: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    async fn change(&mut self, step: u64) {
        let n = self.next(3) as usize;
        let (name, handle) = (NAMES[n], self.handles[n].clone());
        let size = self.model.disks[name].len() as u64;
        let (first, most) = (self.next(size - 1), if self.next(4) == 0 { 300 } else { 8 });
        let count = (1 + self.next(most)).min(size - first);
        match self.next(20) {
            0..7 => self.model.write(&handle, name, first, count).await,
            7 | 8 => {
                handle.discard(first * BLOCK, count * BLOCK, false).await.unwrap();
                self.model.clear(name, first, count);
            }
            9 => {
                handle.write_zeroes(first * BLOCK, count * BLOCK, true, false).await.unwrap();
                self.model.clear(name, first, count);
            }
            10 | 11 => self.copy(n, first, count).await,
            12 => self.pool.flush().await.unwrap(),
            13 => self.pool.checkpoint().await.unwrap(),
            14..18 => {
                drop(handle);
                self.administer(n, step).await;
            }
            18 if step.is_multiple_of(4) => drop(self.pool.reclaim(&|_| {}).await.unwrap()),
            // The counter runs.
            _ => tokio::time::sleep(std::time::Duration::from_millis(1500)).await,
        }
    }

    /// Copies blocks of another volume, to the same place or to another one.
    async fn copy(&mut self, n: usize, first: u64, count: u64) {
        let from = (n + 1 + self.next(2) as usize) % 3;
        let size = self.model.disks[NAMES[n]].len() as u64;
        let len = count.min((self.model.disks[NAMES[from]].len() as u64).saturating_sub(first));
        if len == 0 {
            return;
        }
        let to = if self.next(2) == 0 { first } else { self.next(size - len) };
        let copied = self.model.disks[NAMES[from]][first as usize..][..len as usize].to_vec();
        let (handle, source) = (&self.handles[n], &self.handles[from]);
        handle.copy_from(to * BLOCK, source, first * BLOCK, len * BLOCK).await.unwrap();
        let contents = self.model.disks.get_mut(NAMES[n]).unwrap();
        contents[to as usize..][..copied.len()].copy_from_slice(&copied);
    }

    /// Resets a clone without snapshots to one of two origins.
    async fn rebase(&mut self, n: usize) {
        let (name, prefix) = (NAMES[n], format!("{}@", NAMES[n]));
        if !self.model.origins.contains_key(name)
            || self.model.disks.keys().any(|disk| disk.starts_with(&prefix))
        {
            return;
        }
        let to = ["golden@s", "other"][self.next(2) as usize];
        self.handles.remove(n);
        self.pool.reset_all_to(&[name], Some(to)).await.unwrap();
        self.model.disks.insert(name.into(), self.model.disks[to].clone());
        self.model.origins.insert(name.into(), to.into());
        self.handles.insert(n, self.pool.attach(name).unwrap());
    }

    /// Makes or deletes a snapshot, rolls back, resets, or resizes.
    async fn administer(&mut self, n: usize, step: u64) {
        let name = NAMES[n];
        let prefix = format!("{name}@");
        let mut snapshots = self.model.disks.keys().filter(|disk| disk.starts_with(&prefix)).cloned();
        let (oldest, newest) = (snapshots.next(), snapshots.next_back());
        match self.next(6) {
            4 | 5 => self.rebase(n).await,
            0 => {
                self.pool.create_snapshot(name, &format!("s{step}")).await.unwrap();
                self.model.disks.insert(format!("{name}@s{step}"), self.model.disks[name].clone());
            }
            1 => {
                if let Some(snapshot) = oldest {
                    self.pool.delete(&snapshot).await.unwrap();
                    self.model.disks.remove(&snapshot);
                }
            }
            2 => {
                if let Some(snapshot) = newest.or(oldest) {
                    self.handles.remove(n);
                    self.pool.rollback(name, snapshot.split('@').nth(1).unwrap()).await.unwrap();
                    self.model.disks.insert(name.into(), self.model.disks[&snapshot].clone());
                    self.handles.insert(n, self.pool.attach(name).unwrap());
                }
            }
            _ => {
                let blocks = 1024 + self.next(2048);
                self.handles.remove(n);
                self.pool.resize(name, blocks * BLOCK).await.unwrap();
                self.model.disks.get_mut(name).unwrap().resize(blocks as usize, 0);
                self.handles.insert(n, self.pool.attach(name).unwrap());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_used_space_is_that_of_a_model_after_any_history() {
    for seed in 0..6 {
        let store = Arc::new(MemoryStore::new());
        let config = || PoolConfig { map_cache: 64 << 10, checkpoint_bytes: 1 << 20, ..config() };
        let mut world = World::new(open_paused(&store, config()).await, seed).await;
        for step in 0..400 {
            world.change(step).await;
            if step % 100 == 99 {
                world.model.check(&world.pool, &format!("seed {seed}, step {step}")).await;
            }
        }
        let World { pool, model, handles, .. } = world;
        drop(handles);
        pool.close().await.unwrap();
        let pool = open_paused(&store, config()).await;
        model.check(&pool, &format!("seed {seed}, after reopening")).await;
        pool.checkpoint().await.unwrap();
        model.check(&pool, &format!("seed {seed}, after a checkpoint")).await;
    }
}

/// The nodes of the map from which the next count would begin are freed: the disk is counted from its origin.
#[tokio::test(start_paused = true)]
async fn a_disk_is_counted_again_if_the_known_map_was_freed() {
    let store = Arc::new(MemoryStore::new());
    let config = PoolConfig { map_cache: 0, checkpoint_bytes: 1 << 30, ..config() };
    let pool = open_paused(&store, config).await;
    pool.create_volume("v", 64 * MIB, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    for n in 0..16 {
        v.write(n * 4 * MIB, &noise(n, 64 * 4096), false).await.unwrap();
    }
    pool.checkpoint().await.unwrap();
    assert_eq!(used(&pool, "v").await, 16 * 64);
    // No pause in which the counter could run: the old nodes are gone when it does.
    for round in 0..3 {
        for n in 0..16 {
            v.write(n * 4 * MIB + (round + 1) * 4096, &noise(100 * (round + 1) + n, 256 * 4096), false)
                .await
                .unwrap();
        }
        pool.checkpoint().await.unwrap();
        pool.reclaim(&|_| {}).await.unwrap();
    }
    assert_eq!(used(&pool, "v").await, 16 * 259);
}

/// An idle pool is not counted again and again: without changes, no node is read.
#[tokio::test(start_paused = true)]
async fn nothing_is_read_while_nothing_changes() {
    let store = Arc::new(MemoryStore::new());
    let pool = open_paused(&store, cold_config()).await;
    pool.create_volume("v", 64 * MIB, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    v.write(0, &noise(1, 8 * MIB as usize), true).await.unwrap();
    pool.checkpoint().await.unwrap();
    assert_eq!(used(&pool, "v").await, 2048);
    let before = pool.stats().await.store.read.ops;
    assert_eq!(used(&pool, "v").await, 2048);
    assert_eq!(pool.stats().await.store.read.ops, before);
    // One changed leaf: a few nodes, not the map.
    v.write(MIB, &noise(2, 4096), true).await.unwrap();
    v.discard(2 * MIB, 8192, true).await.unwrap();
    assert_eq!(used(&pool, "v").await, 2046);
    let read = pool.stats().await.store.read.ops - before;
    assert!(read <= 12, "{read} reads for two changed leaves");
}

/// Measures the first count after a start, of a map that is not in the cache at first.
/// `cargo test -p forebay-engine-tests --test it -- --ignored --nocapture used_by_size`
#[tokio::test]
#[ignore = "a measurement"]
async fn used_by_size() {
    const GIB: u64 = 64;
    let store = Arc::new(MemoryStore::new());
    let config =
        || PoolConfig { map_cache: 1 << 30, segment_bytes: 64 << 20, checkpoint_bytes: 1 << 30, ..config() };
    let pool = open_with(&store, config()).await;
    pool.create_volume("v", GIB << 30, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    v.write(0, &noise(1, 64 << 20), true).await.unwrap();
    for n in 1..GIB * 16 {
        v.copy_from(n * (64 << 20), &v, 0, 64 << 20).await.unwrap();
    }
    drop(v);
    pool.close().await.unwrap();
    let pool = open_with(&store, config()).await;
    let began = std::time::Instant::now();
    while pool.disk("v").unwrap().used != Some(GIB << 30) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    println!("{GIB} GiB, {} leaves: {:?} with the pauses", GIB << 10, began.elapsed());
}
