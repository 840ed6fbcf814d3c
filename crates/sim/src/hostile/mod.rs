//! Hostile pools: changed fields with correct checksums. With any contents of a pool, opening it, checking
//! it, inspecting it and working with it end, in bounded memory, with results or errors, and without a panic.

mod atlas;
mod forge;

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{
    CloneRequest, Pool, PoolConfig, SyncMode, check, inspect_batches, inspect_segments, inspect_superblocks,
};
use forebay_format::BLOCK;
use forebay_store::{FaultyStore, Image, Store};

use crate::exec::Executor;
use crate::note;
use crate::rng::Rng;
use crate::round::Round;

pub(crate) use atlas::provable;
pub use forge::Original;

const B: u64 = BLOCK as u64;

impl Original {
    /// The pool of a seed: written, cloned, cleaned, crashed, with a note and a document.
    pub fn of_seed(seed: u64) -> Original {
        let mut round = Round::new(seed, Some(60));
        let plan = &mut round.plan;
        plan.pool.segment_bytes = 64 << 10;
        plan.pool.compress = !seed.is_multiple_of(3);
        plan.pool.checkpoint_bytes = [64 << 10, 1 << 30][seed as usize % 2];
        plan.reclaim_every = [None, Some(20), Some(5)][seed as usize % 3];
        plan.lives = 2;
        plan.crashes = 50;
        plan.steps = plan.steps.max(2_000);
        Original::new(round.leave(async |pool| {
            // Failures are not relevant here: a pool in any state is suitable.
            let _ = pool.set_document("document", Some(&[7; 100])).await;
            for info in pool.disks().iter().take(2) {
                if let Ok(disk) = pool.attach(&info.name) {
                    let _ = disk.set_reservations(Some(&[9; 5000])).await;
                }
            }
        }))
    }
}

/// Executes every operation that a pool supports.
pub fn exercise(seed: u64, image: &Image) {
    let mut rng = Rng::new(seed);
    let mut exec = Executor::new(rng.next());
    let store: Arc<dyn Store> = FaultyStore::of_image(rng.next(), image);
    let host = exec.host();
    let (checked, looked) = (store.clone(), store.clone());
    let report = exec.finish(async move { check(checked, host, |_| {}).await });
    note!("check: {:?}", report.map(|r| r.problems));
    exec.finish(async move { inspect(&*looked).await });
    let config = PoolConfig {
        read_cache: *rng.pick(&[0, 1 << 20]),
        map_cache: 0,
        write_buffer: 1 << 20,
        desktops: 1 << 20,
        segment_bytes: 64 << 10,
        dedup_index: 64 << 10,
        reclaim_pause: Duration::from_secs(1 << 20),
        ..PoolConfig::default()
    };
    for _ in 0..2 {
        let opening = Pool::open(store.clone(), exec.host(), config.clone());
        let opened = exec.finish(opening);
        note!("open: {:?}", opened.as_ref().err());
        let Ok(pool) = opened else { return };
        let mut rng = rng.fork();
        exec.finish(async move { work(&pool, &mut rng).await });
        exec.kill_tasks();
    }
}

async fn inspect(store: &dyn Store) {
    let _ = inspect_superblocks(store).await;
    let _ = inspect_segments(store).await;
    for object in store.list().await.unwrap_or_default() {
        let _ = inspect_batches(store, object.id).await;
    }
}

/// Reads, writes, copies, deletes, cleans, closes.
async fn work(pool: &Arc<Pool>, rng: &mut Rng) {
    let disks = pool.disks();
    for info in disks.iter().take(20) {
        read_all(pool, &info.name, info.size).await;
    }
    let _ = pool.document("document").await;
    for (i, info) in disks.iter().take(12).enumerate() {
        let name = &info.name;
        match rng.below(8) {
            0 => note!("delete {:?}", pool.delete(name).await),
            1 => note!("snapshot {:?}", pool.create_snapshot(name, &format!("new{i}")).await.err()),
            2 => {
                let request = CloneRequest { name: format!("clone{i}"), ..CloneRequest::default() };
                note!("clone {:?}", pool.clone_disk(name, &[request]).await.err());
            }
            3 => note!("resize {:?}", pool.resize(name, (rng.below(80) + 1) * B).await),
            4 => note!("reset {:?}", pool.reset(name).await),
            5 => note!("prefetch {:?}", pool.prefetch(name).await.err()),
            6 => note!("persist {:?}", pool.persist(name, SyncMode::Flush).await.err()),
            _ => note!("image {:?}", pool.create_image(&format!("image{i}"), name).await.err()),
        }
        write_some(pool, name, rng).await;
    }
    note!("flush {:?}", pool.flush().await);
    note!("reclaim {:?}", pool.reclaim(&|_| ()).await);
    note!("checkpoint {:?}", pool.checkpoint().await);
    let _ = pool.set_document("document", Some(&[8; 50])).await;
    let _ = pool.stats().await;
    note!("close {:?}", pool.close().await);
}

async fn read_all(pool: &Arc<Pool>, name: &str, size: u64) {
    let _ = pool.disk_stats(name);
    let _ = pool.classes(name);
    let _ = pool.profile(name).await;
    let Ok(disk) = pool.attach(name) else { return };
    let mut bytes = vec![0; 16 * BLOCK];
    let blocks = size.div_ceil(B);
    let ends = (0..64).step_by(16).chain([blocks.saturating_sub(16), 256, 65_536]);
    for first in ends.filter(|first| *first < blocks) {
        let len = (16 * B).min(size - first * B) as usize;
        let _ = disk.read(first * B, &mut bytes[..len]).await;
    }
    let _ = disk.extents(0, size, 1000).await;
    let _ = disk.reservations().await;
    let _ = disk.prefetch(0, size.min(1 << 20)).await;
}

async fn write_some(pool: &Arc<Pool>, name: &str, rng: &mut Rng) {
    let Ok(disk) = pool.attach(name) else { return };
    let size = disk.size();
    if size == 0 {
        return;
    }
    for _ in 0..4 {
        let offset = (rng.below(size.div_ceil(B)) * B + 512 * rng.below(2)).min(size - 1);
        let len = rng.range(1, 3 * B).min(size - offset);
        let done = match rng.below(3) {
            0 => disk.discard(offset, len, false).await,
            1 => disk.write_zeroes(offset, len, true, false).await,
            _ => disk.write(offset, &vec![5; len as usize], false).await,
        };
        note!("change of {name:?} {offset}+{len}: {done:?}");
    }
    note!("flush of {name:?}: {:?}", disk.flush().await);
}
