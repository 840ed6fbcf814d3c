//! A pool on one slow disk, in virtual time, and guests that track their writes.
#![allow(dead_code, reason = "each test uses its part")]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{DiskHandle, Error, Host, Pool, PoolConfig, SegmentId, SyncMode, check};
use forebay_sim::{Executor, Ran, Rng, SimHost};
use forebay_store::{BoxFuture, Completion, IoBuf, MemoryStore, Store};
use parking_lot::Mutex;

pub const BLOCK: u64 = 4096;
pub const MIB: u64 = 1 << 20;
pub const LIMIT: u64 = 128 * MIB;
/// Steps of a run of a minute, with a wide margin.
const STEPS: u64 = 60_000_000;

/// A disk of 16 MiB/s: an eighth of the store per second, executing one operation at a time.
struct OneDisk {
    inner: Arc<dyn Store>,
    host: Arc<SimHost>,
    free: Mutex<Duration>,
}

impl OneDisk {
    /// Waits for the duration of an operation that moves `bytes`.
    fn serve(&self, bytes: usize) -> BoxFuture<'static, ()> {
        let cost = Duration::from_micros(100 + bytes as u64 * 1_000_000 / (16 * MIB));
        let now = self.host.now();
        let end = {
            let mut free = self.free.lock();
            *free = (*free).max(now) + cost;
            *free
        };
        self.host.sleep(end - now)
    }
}

impl Store for OneDisk {
    forebay_store::forward_store!(inner; except append, sync, read);

    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        let served = self.serve(data.len());
        let appended = self.inner.append(id, offset, data, expected);
        Completion::of(async move {
            served.await;
            appended.await
        })
    }
    fn sync(&self, id: SegmentId) -> Completion<()> {
        let served = self.serve(16 << 10);
        let synced = self.inner.sync(id);
        Completion::of(async move {
            served.await;
            synced.await
        })
    }
    fn read(&self, id: SegmentId, offset: u64, len: usize) -> Completion<IoBuf> {
        let served = self.serve(len);
        let read = self.inner.read(id, offset, len);
        Completion::of(async move {
            served.await;
            read.await
        })
    }
}

/// A pool on a disk that is limited to [`LIMIT`].
pub struct World {
    pub exec: Executor,
    store: Arc<dyn Store>,
    pub pool: Arc<Pool>,
}

impl World {
    pub fn new(seed: u64) -> World {
        World::on(seed, Arc::new(MemoryStore::with_capacity(LIMIT)))
    }

    pub fn on(seed: u64, inner: Arc<dyn Store>) -> World {
        let mut exec = Executor::new(seed);
        let host = exec.host();
        let store: Arc<dyn Store> = Arc::new(OneDisk { inner, host, free: Mutex::default() });
        let config = PoolConfig {
            read_cache: 1 << 20,
            map_cache: 4 << 20,
            write_buffer: 2 << 20,
            checkpoint_bytes: 16 << 20,
            dedup_index: 1 << 20,
            ..PoolConfig::default()
        };
        let pool = exec.finish(Pool::open(store.clone(), exec.host(), config)).expect("the pool opens");
        World { exec, store, pool }
    }

    pub fn long<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> T {
        match self.exec.run(future, STEPS) {
            Ran::Done(value) => value,
            Ran::OutOfSteps => panic!("no end at {:?}", self.exec.now()),
        }
    }

    /// Creates a volume and fills it.
    pub fn volume(&mut self, number: u64, blocks: u64) -> Writer {
        let (pool, host) = (self.pool.clone(), self.exec.host());
        self.long(async move {
            let name = format!("v{number}");
            pool.create_volume(&name, blocks * BLOCK, SyncMode::Flush, 0).await.expect("room for a name");
            let disk = pool.attach(&name).expect("it is there");
            let mut writer = Writer::new(disk, host, number, blocks);
            for block in (0..blocks).step_by(64) {
                writer.write(block, 64.min(blocks - block)).await.expect("room for the contents");
            }
            writer.disk.flush().await.expect("room for the contents");
            writer
        })
    }

    /// Creates and deletes a snapshot each second until `until`. Counts rejections.
    pub fn snapshots(&mut self, volumes: usize, until: Duration, refused: &Rc<Cell<u64>>) {
        let (pool, host, refused) = (self.pool.clone(), self.exec.host(), refused.clone());
        self.exec.spawn("snapshots", async move {
            for n in 0.. {
                let volume = format!("v{}", n % volumes);
                let made = pool.create_snapshot(&volume, "s").await;
                host.sleep(Duration::from_secs(1)).await;
                if made.is_err() || pool.delete(&format!("{volume}@s")).await.is_err() {
                    refused.set(refused.get() + 1);
                }
                if host.now() >= until {
                    return;
                }
            }
        });
    }

    pub fn check(mut self) {
        let (pool, store, host) = (self.pool.clone(), self.store.clone(), self.exec.host());
        self.long(async move { pool.close().await }).expect("a sound store");
        let report = self.long(async move { check(store, host, |_| {}).await }).expect("a pool");
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
    }
}

/// A guest that tracks its writes.
pub struct Writer {
    pub disk: Arc<DiskHandle>,
    host: Arc<SimHost>,
    pub rng: Rng,
    /// The number of the last write of each block.
    blocks: Vec<u64>,
    writes: u64,
    pub written: u64,
    /// Latency of the slowest write.
    pub longest: Duration,
}

impl Writer {
    pub fn new(disk: Arc<DiskHandle>, host: Arc<SimHost>, number: u64, blocks: u64) -> Writer {
        let (rng, blocks) = (Rng::new(number), vec![0; blocks as usize]);
        Writer { disk, host, rng, blocks, writes: number << 32, written: 0, longest: Duration::ZERO }
    }

    pub fn content(write: u64, block: u64) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK as usize];
        Rng::new(write << 16 ^ block).fill(&mut bytes);
        bytes
    }

    pub async fn write(&mut self, block: u64, count: u64) -> std::result::Result<(), Error> {
        self.writes += 1;
        let data: Vec<u8> = (block..block + count).flat_map(|b| Writer::content(self.writes, b)).collect();
        let begin = self.host.now();
        self.disk.write(block * BLOCK, &data, false).await?;
        self.longest = self.longest.max(self.host.now() - begin);
        self.blocks[block as usize..(block + count) as usize].fill(self.writes);
        self.written += count * BLOCK;
        Ok(())
    }

    /// Overwrites at random until `until`, 4 to 64 KiB at a time, and flushes after every 64 writes.
    pub async fn overwrite(&mut self, until: Duration) -> std::result::Result<(), Error> {
        while self.host.now() < until {
            for _ in 0..64 {
                let count = self.rng.range(1, 16);
                let block = self.rng.below(self.blocks.len() as u64 - count);
                self.write(block, count).await?;
            }
            self.disk.flush().await?;
        }
        Ok(())
    }

    pub async fn verify(&self) {
        let mut found = vec![0; BLOCK as usize];
        for (block, write) in (0..).zip(&self.blocks) {
            self.disk.read(block * BLOCK, &mut found).await.expect("a sound store");
            assert!(found == Writer::content(*write, block), "block {block} of {}", self.disk.name());
        }
    }
}
