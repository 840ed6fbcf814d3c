//! A pool whose threads shuttle interleaves: the freeze gate, progress of commits, the latch and the miss
//! table under thousands of schedules. Run by `make test-threads`; a failure prints the schedule that replays
//! it.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_engine::{
    BoxFuture, Coalesce, DiskHandle, Error, Fast, Host, Mutation, Pool, PoolConfig, SyncMode, commit_here,
};
use forebay_format::{SegmentId, Superblock};
use forebay_store::{Completion, IoBuf, MemoryStore, Store, StoreError};
use shuttle::future::{block_on, yield_now};
use shuttle::thread;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 4;

/// The clock advances when it is read, and a sleep yields a few times.
#[derive(Default)]
struct ShuttleHost(AtomicU64);

impl Host for ShuttleHost {
    fn now(&self) -> Duration {
        Duration::from_micros(self.0.fetch_add(1, Relaxed))
    }
    fn unix_ms(&self) -> u64 {
        0
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.fetch_add(duration.as_micros() as u64, Relaxed);
        Box::pin(async {
            for _ in 0..3 {
                yield_now().await;
            }
        })
    }
    fn spawn(&self, _: &'static str, task: BoxFuture<'static, ()>) {
        drop(shuttle::future::spawn(task));
    }
    fn random(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}

/// A store whose operations yield to other threads.
struct Slow {
    store: Arc<MemoryStore>,
    /// Number of changes that succeed before all fail.
    left: Arc<AtomicU64>,
}

impl Slow {
    fn new(store: Arc<MemoryStore>) -> Arc<Slow> {
        Arc::new(Slow { store, left: Arc::new(AtomicU64::new(u64::MAX)) })
    }

    fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(Arc<MemoryStore>) -> Completion<T> + Send + 'static,
    ) -> Completion<T> {
        let (store, left) = (self.store.clone(), self.left.clone());
        Completion::of(async move {
            yield_now().await;
            if left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err() {
                let (what, reason) = ("a change".into(), "injected failure".into());
                return Err(StoreError::Io { what, reason, errno: 5 });
            }
            let done = change(store).await;
            yield_now().await;
            done
        })
    }
}

impl Store for Slow {
    forebay_store::forward_store!(store; except append, sync, read, delete, swap_superblock);

    fn append(&self, id: SegmentId, at: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        self.change(move |store| store.append(id, at, data, expected))
    }
    fn sync(&self, id: SegmentId) -> Completion<()> {
        self.change(move |store| store.sync(id))
    }
    fn read(&self, id: SegmentId, offset: u64, len: usize) -> Completion<IoBuf> {
        let store = self.store.clone();
        Completion::of(async move {
            yield_now().await;
            store.read(id, offset, len).await
        })
    }
    fn delete(&self, id: SegmentId) -> Completion<()> {
        self.change(move |store| store.delete(id))
    }
    fn swap_superblock(&self, new: &Superblock) -> Completion<()> {
        let new = new.clone();
        self.change(move |store| store.swap_superblock(&new))
    }
}

fn config() -> PoolConfig {
    PoolConfig {
        read_cache: 0,
        map_cache: 0,
        write_buffer: 16 * BLOCK as u64,
        segment_bytes: 64 << 10,
        coalesce: Coalesce::Off,
        dedup_index: 0,
        learn_classes: false,
        ..PoolConfig::default()
    }
}

fn open(store: Arc<dyn Store>) -> Arc<Pool> {
    open_with(store, config())
}

fn open_with(store: Arc<dyn Store>, config: PoolConfig) -> Arc<Pool> {
    block_on(Pool::open(store, Arc::new(ShuttleHost::default()), config)).unwrap()
}

/// Runs a test under `schedules` random schedules.
fn check(round: impl Fn() + Send + Sync + 'static, schedules: usize) {
    let mut config = shuttle::Config::new();
    // A debug build needs much stack.
    config.stack_size = 1 << 20;
    shuttle::Runner::new(shuttle::scheduler::RandomScheduler::new(schedules), config).run(round);
}

/// A volume on a new store.
fn prepared() -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::new());
    let pool = open(store.clone());
    block_on(pool.create_volume("v", BLOCKS * BLOCK as u64, SyncMode::Flush, 0)).unwrap();
    block_on(pool.close()).unwrap();
    store
}

/// The content of a block in this version; compression and reduction have no effect on it.
fn content(version: u64) -> Vec<u8> {
    let word = |i: u64| (version << 32 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (1..=BLOCK as u64 / 8).flat_map(|i| (word(i) | 1 << 63).to_le_bytes()).collect()
}

fn version(disk: &DiskHandle, block: u64) -> u64 {
    let mut data = vec![0; BLOCK];
    block_on(disk.read(block * BLOCK as u64, &mut data)).unwrap();
    (0..16).find(|v| if *v == 0 { data.iter().all(|b| *b == 0) } else { data == content(*v) }).unwrap()
}

/// Writes versions of one block and flushes in between; returns the last version that a flush covered.
fn write_and_flush(disk: &DiskHandle, block: u64) -> u64 {
    let mut durable = 0;
    for version in 1..=4 {
        let (offset, data) = (block * BLOCK as u64, content(version));
        let fast = disk.try_write(offset, &data);
        let done = match fast {
            Ok(Fast::Wait) => block_on(disk.write(offset, &data, false)),
            other => other.map(drop),
        };
        if done.is_err() {
            return durable;
        }
        if version % 2 == 0 && block_on(disk.flush()).is_ok() {
            durable = version;
        }
    }
    durable
}

/// Concurrent writers flush, on a store that fails at some change or at none; every write that a flush
/// covered is present when the pool is opened again. With `helps`, writers make the commits they wait for.
fn flushes_cover(changes: u64, mutation: Mutation, helps: bool) {
    // For all threads: shuttle runs them on one.
    commit_here(helps);
    let store = prepared();
    let slow = Slow::new(store.clone());
    let pool = open_with(slow.clone(), PoolConfig { mutation, ..config() });
    slow.left.store(changes, Relaxed);
    let disk = match pool.attach("v") {
        Ok(disk) => disk,
        Err(e) => panic!("{e}"),
    };
    let writers: Vec<_> = (0..2)
        .map(|block| {
            let disk = disk.clone();
            thread::spawn(move || write_and_flush(&disk, block))
        })
        .collect();
    let durable: Vec<u64> = writers.into_iter().map(|w| w.join().unwrap()).collect();
    drop(disk);
    let closed = block_on(pool.close());
    let again = open(store);
    let disk = again.attach("v").unwrap();
    for (block, durable) in durable.into_iter().enumerate() {
        let found = version(&disk, block as u64);
        assert!(found >= durable, "block {block}: version {durable} was flushed, version {found} was found");
        assert!(
            closed.is_err() || found == 4,
            "block {block}: the pool was closed, version {found} was found"
        );
    }
    drop(disk);
    block_on(again.close()).unwrap();
}

#[test]
fn flushes_cover_what_was_acknowledged() {
    for helps in [false, true] {
        check(move || flushes_cover(u64::MAX, Mutation::None, helps), 3000);
    }
}

#[test]
fn a_latched_pool_acknowledges_no_flush() {
    for changes in 0..6 {
        for helps in [false, true] {
            check(move || flushes_cover(changes, Mutation::None, helps), 500);
        }
    }
}

#[test]
#[should_panic(expected = "was flushed")]
fn a_flush_that_does_not_wait_is_detected() {
    for changes in 0..20 {
        check(move || flushes_cover(changes, Mutation::FlushEarly, changes % 2 == 1), 500);
    }
}

/// A pool that is closing refuses writes that it will not commit.
#[test]
fn nothing_is_acknowledged_after_close() {
    let round = || {
        let store = prepared();
        let pool = open(Slow::new(store.clone()));
        let disk = pool.attach("v").unwrap();
        let writer = {
            let disk = disk.clone();
            thread::spawn(move || {
                let mut last = 0;
                for version in 1..=3 {
                    match disk.try_write(0, &content(version)) {
                        Ok(Fast::Done) => last = version,
                        Ok(_) => {}
                        Err(Error::Closed) => break,
                        Err(e) => panic!("{e}"),
                    }
                }
                last
            })
        };
        block_on(pool.close()).unwrap();
        let last = writer.join().unwrap();
        drop(disk);
        let again = open(store);
        assert!(version(&again.attach("v").unwrap(), 0) >= last, "version {last} was acknowledged");
        block_on(again.close()).unwrap();
    };
    check(round, 2000);
}

/// Readers of the same cold blocks, one of which gives up: all others get the data, and none waits forever.
#[test]
fn readers_share_misses() {
    let round = || {
        let store = prepared();
        {
            let pool = open(store.clone());
            let disk = pool.attach("v").unwrap();
            (0..BLOCKS).for_each(|b| block_on(disk.write(b * BLOCK as u64, &content(b + 1), false)).unwrap());
            drop(disk);
            block_on(pool.close()).unwrap();
        }
        let pool = open(Slow::new(store));
        let disk = pool.attach("v").unwrap();
        let readers: Vec<_> = (0..3u64)
            .map(|n| {
                let disk = disk.clone();
                thread::spawn(move || {
                    let gives_up = async {
                        let mut data = vec![0; BLOCK];
                        tokio::select! {
                            biased;
                            done = disk.read(0, &mut data) => done.unwrap(),
                            () = async { for _ in 0..n { yield_now().await } } => {}
                        }
                    };
                    if n > 0 {
                        block_on(gives_up);
                    }
                    for block in 0..BLOCKS {
                        let block = (block + n) % BLOCKS;
                        assert_eq!(version(&disk, block), block + 1);
                    }
                })
            })
            .collect();
        readers.into_iter().for_each(|r| r.join().unwrap());
        drop(disk);
        block_on(pool.close()).unwrap();
    };
    check(round, 2000);
}
