//! Hosts for unit tests, and parts of the engine on a store in memory, to test one part without a pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_format::{DiskId, DiskRecord, Features, MapValue, Mark, PoolId, Role, Superblock, SyncMode};
use forebay_retained::{Identity, Retained};
use forebay_store::{MemoryStore, Metered, Store};

use crate::catalogue::Catalogue;
use crate::commit::Applier;
use crate::context::Context;
use crate::log::{Head, Log};
use crate::memory::heap;
use crate::progress::CommitProgress;
use crate::read::{Reader, StoreReader};
use crate::sync::RwLock;
use crate::sync::atomic::AtomicU64;
use crate::write_caches::WriteCaches;
use crate::{BoxFuture, Host, PoolConfig};

/// A clock that stands still, and no tasks.
pub(crate) struct StillHost;

impl Host for StillHost {
    fn now(&self) -> Duration {
        Duration::ZERO
    }
    fn unix_ms(&self) -> u64 {
        0
    }
    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
    fn spawn(&self, name: &'static str, _: BoxFuture<'static, ()>) {
        panic!("task '{name}' started without a pool");
    }
    fn random(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}

/// A clock and tasks of the present tokio runtime.
pub(crate) struct TokioHost(Instant);

impl TokioHost {
    pub fn new() -> Arc<TokioHost> {
        Arc::new(TokioHost(Instant::now()))
    }
}

impl Host for TokioHost {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
    fn unix_ms(&self) -> u64 {
        0
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
    fn spawn(&self, _: &'static str, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }
    fn random(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}

/// A reader, an applier and a log on one store in memory.
pub(crate) struct Parts {
    pub store: Arc<MemoryStore>,
    pub reader: Arc<Reader>,
    pub applier: Applier,
    pub log: Log,
}

/// The parts of an empty pool whose superblock was written.
pub(crate) async fn parts() -> Parts {
    let memory = Arc::new(MemoryStore::new());
    let store = Arc::new(Metered::new(memory.clone(), Arc::new(|| Duration::ZERO)));
    let superblock = Superblock {
        pool: PoolId([1; 16]),
        generation: 1,
        epoch: 1,
        fingerprint_key: [2; 32],
        created_ms: 0,
        segment_bytes: 1 << 20,
        seq: 0,
        chain: 0,
        blobs: Vec::new(),
        features: Features::default(),
        memory: 0,
        boot: 0,
    };
    store.swap_superblock(&superblock).await.unwrap();
    let config = PoolConfig {
        read_cache: 4 << 20,
        map_cache: 1 << 20,
        write_buffer: 1 << 20,
        ..PoolConfig::default()
    };
    let identity = Identity { pool: superblock.pool.0, boot: [0; 16] };
    let retained = Retained::create(Arc::new(heap(16 << 20)), &identity, 1, 16 << 20).unwrap();
    let cx = Context::new(Arc::new(StillHost), config, retained);
    let source = StoreReader::new(store.clone(), cx.clone(), superblock.pool);
    let reader = Arc::new(Reader::new(source, Arc::new(CommitProgress::default())));
    let catalogue = Arc::new(RwLock::new(Catalogue::new(1)));
    let caches = Arc::new(WriteCaches::new(0));
    let applier = Applier::new(reader.clone(), catalogue, caches, Arc::new(AtomicU64::new(0)));
    let log = Log::new(store, superblock, Head { seq: 0, chain: 0 }, Default::default(), 1);
    Parts { store: memory, reader, applier, log }
}

/// The record of a volume of `size` bytes.
pub(crate) fn volume(id: u32, size: u64) -> DiskRecord {
    DiskRecord {
        id: DiskId(id),
        role: Role::Volume,
        sync: SyncMode::Flush,
        name: format!("v{id}"),
        size,
        created_ms: 0,
        parent: None,
        origin: None,
        write_cache: 0,
        uuid: [0; 16],
        height: 0,
        root: MapValue::Hole,
        dedup_domain: 0,
        reset_at_disconnect: false,
        map_damaged: false,
        mark: Mark::None,
    }
}
