//! A store with less room than its capacity shows, as below a quota of the file system. Whatever the guests
//! have filled, deletions and a clean stop succeed, and make room for guests again; also after a crash at any
//! step of that.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{DiskHandle, Error, Host, Pool, PoolConfig, SyncMode, check};
use forebay_sim::{Executor, MemoryFate, Rng, SimHost};
use forebay_store::{Crash, FaultyStore};

const BLOCK: usize = 4096;
const QUOTA: u64 = 6 << 20;
/// Blocks of the volume that remains.
const KEPT: u64 = 256;
/// Maximum virtual time until guests may write again.
const PATIENCE: Duration = Duration::from_secs(120);
/// About as many crashes are tried.
const CRASHES: u64 = 32;

fn config() -> PoolConfig {
    PoolConfig {
        segment_bytes: 128 << 10,
        write_buffer: 256 << 10,
        checkpoint_bytes: 1 << 20,
        ..PoolConfig::default()
    }
}

/// A pool whose guests have filled the quota: "kept" has known contents, "large" the rest.
struct World {
    exec: Executor,
    store: Arc<FaultyStore>,
    pool: Arc<Pool>,
}

fn content(block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Rng::new(block).fill(&mut bytes);
    bytes
}

async fn write(disk: &DiskHandle, block: u64, seed: u64) -> Result<(), Error> {
    disk.write(block * BLOCK as u64, &content(seed), false).await?;
    disk.flush().await
}

impl World {
    fn full() -> World {
        let store = FaultyStore::new(1);
        store.set_quota(Some(QUOTA));
        let mut exec = Executor::new(1);
        let pool = exec.finish(Pool::open(store.clone(), exec.host(), config())).unwrap();
        let filled = pool.clone();
        exec.finish(async move {
            for name in ["kept", "large"] {
                filled.create_volume(name, 16 << 20, SyncMode::Flush, 0).await.unwrap();
            }
            let (kept, large) = (filled.attach("kept").unwrap(), filled.attach("large").unwrap());
            for block in 0..KEPT {
                kept.write(block * BLOCK as u64, &content(block), false).await.unwrap();
            }
            kept.flush().await.unwrap();
            let mut block = 0;
            let refused = loop {
                // Shorter ones in the end, until there is no room at all.
                let data: Vec<u8> = (block..block + 16).flat_map(|n| content(n + (1 << 32))).collect();
                let mut written = large.write(block * BLOCK as u64, &data, true).await;
                if written.is_err() {
                    written = write(&large, block, block).await;
                }
                match written {
                    Ok(()) => block += 16,
                    Err(e) => break e,
                }
            };
            assert!(matches!(refused, Error::NoSpace), "{refused}");
            assert!(block > 256, "refused after {block} blocks");
        });
        World { exec, store, pool }
    }

    /// Opens the pool again after its process or its machine has stopped.
    fn reopen(&mut self, crash: Crash) {
        self.store.crash(crash);
        self.exec.end_process(match crash {
            Crash::PowerLoss => MemoryFate::Restarted,
            Crash::Kill => MemoryFate::Kept,
        });
        self.exec.kill_tasks();
        self.store = self.store.reopen();
        let opening = Pool::open(self.store.clone(), self.exec.host(), config());
        self.pool = self.exec.finish(opening).expect("a pool without room opens");
    }

    /// Deletes the large volume, and waits until guests may write again.
    fn make_room(&mut self) -> Result<(), Error> {
        let (pool, host) = (self.pool.clone(), self.exec.host());
        self.exec.finish(async move { make_room(&pool, &host).await })
    }

    /// Verifies the volume that remains, and the pool after a clean stop.
    fn check(mut self) {
        let (pool, store, host) = (self.pool.clone(), self.store.clone(), self.exec.host());
        self.exec.finish(async move {
            let kept = pool.attach("kept").unwrap();
            for block in 0..KEPT {
                let mut found = vec![0; BLOCK];
                kept.read(block * BLOCK as u64, &mut found).await.unwrap();
                assert!(found == content(block), "block {block}");
            }
            drop(kept);
            pool.close().await.expect("a clean stop");
        });
        let report = self.exec.finish(async move { check(store, host, |_| {}).await }).unwrap();
        let of_crash = |place: &str| place.starts_with("superblock copy");
        assert!(report.problems.iter().all(|p| of_crash(&p.place)), "{:#?}", report.problems);
    }
}

/// See [`World::make_room`].
async fn make_room(pool: &Pool, host: &SimHost) -> Result<(), Error> {
    match pool.delete("large").await {
        Ok(()) | Err(Error::NotFound(_)) => {}
        Err(e) => return Err(e),
    }
    let kept = pool.attach("kept")?;
    let deadline = host.now() + PATIENCE;
    loop {
        match write(&kept, KEPT, 7).await {
            Err(Error::NoSpace) if host.now() < deadline => host.sleep(Duration::from_millis(100)).await,
            other => return other,
        }
    }
}

#[test]
fn a_deletion_and_a_stop_succeed_when_the_quota_is_used_up() {
    let mut world = World::full();
    world.make_room().expect("a deletion always works");
    world.check();
    let mut world = World::full();
    let pool = world.pool.clone();
    world.exec.finish(async move { pool.close().await }).expect("a clean stop without a deletion");
    world.reopen(Crash::Kill);
    world.make_room().expect("a deletion after a restart");
    world.check();
}

/// Zeroes that stay allocated would be entries of the map: they are refused as data is.
#[test]
fn a_full_store_refuses_zeroes_that_stay_allocated_and_accepts_discards() {
    let mut world = World::full();
    let pool = world.pool.clone();
    world.exec.finish(async move {
        let large = pool.attach("large").unwrap();
        let refused = large.write_zeroes(12 << 20, 1 << 20, true, true).await;
        assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
        large.discard(0, 1 << 20, true).await.expect("a discard makes room");
    });
    world.check();
}

/// An administrator reduces the quota while the pool is full: then the reserve is not whole for long.
#[test]
fn a_deletion_succeeds_when_the_quota_was_reduced_below_the_use() {
    let mut world = World::full();
    world.store.set_quota(Some(QUOTA - (64 << 10)));
    world.make_room().expect("a deletion always works");
    world.check();
}

#[test]
fn room_is_made_after_a_crash_at_any_step_of_making_it() {
    let mut world = World::full();
    let begin = world.store.ops();
    world.make_room().unwrap();
    let ops = world.store.ops() - begin;
    for at in (1..ops).step_by((ops / CRASHES).max(1) as usize) {
        let crash = if at % 2 == 0 { Crash::Kill } else { Crash::PowerLoss };
        let mut world = World::full();
        world.store.crash_at(world.store.ops() + at, crash);
        // Ends with an error when the machine has crashed.
        drop(world.make_room());
        world.reopen(crash);
        world.make_room().unwrap_or_else(|e| panic!("after {crash:?} at operation {at} of {ops}: {e}"));
        world.check();
    }
}
