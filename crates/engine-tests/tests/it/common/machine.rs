//! A machine whose processes are killed: its retained memory stays, unless a test loses it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_engine::{Host, Pool, PoolConfig, PoolId, Result};
use forebay_retained::{HeapMemory, Memory};
use forebay_store::{MemoryStore, Store};
use tokio::time::Instant;

use super::{config, left_by_crash, noise};

/// A host with memory that outlives its processes.
pub struct Machine {
    pub memory: Arc<HeapMemory>,
    pub boot: u8,
    /// Milliseconds since that boot.
    pub boot_ms: Arc<AtomicU64>,
    /// Distinguishes the random numbers of different processes.
    pub seed: u64,
    pub config: PoolConfig,
}

impl Machine {
    pub fn new() -> Machine {
        let config = PoolConfig { desktops: 8 << 20, ..config() };
        let (memory, boot_ms) = (Arc::new(HeapMemory::new(256)), Arc::new(AtomicU64::new(1000)));
        Machine { memory, boot: 1, boot_ms, seed: 1, config }
    }

    pub fn host(&self) -> Arc<dyn Host> {
        let Machine { boot, seed, .. } = *self;
        let (memory, boot_ms) = (self.memory.clone(), self.boot_ms.clone());
        Arc::new(Process { start: Instant::now(), memory, boot, boot_ms, seed })
    }

    pub async fn try_open(&self, store: &Arc<impl Store + 'static>) -> Result<Arc<Pool>> {
        Pool::open(store.clone() as Arc<dyn Store>, self.host(), self.config.clone()).await
    }

    pub async fn open(&self, store: &Arc<impl Store + 'static>) -> Arc<Pool> {
        self.try_open(store).await.unwrap()
    }

    /// The machine and its store after its process was killed at this moment.
    pub async fn kill(&self, store: &MemoryStore) -> (Machine, Arc<MemoryStore>) {
        let memory = Arc::new(self.memory.snapshot());
        let store = left_by_crash(store).await;
        let (boot_ms, config) = (self.boot_ms.clone(), self.config.clone());
        (Machine { memory, boot: self.boot, boot_ms, seed: self.seed + 1, config }, store)
    }

    /// The same, if the retained memory is lost as well.
    pub async fn lose(&self, store: &MemoryStore) -> (Machine, Arc<MemoryStore>) {
        let (mut machine, store) = self.kill(store).await;
        machine.lose_memory();
        (machine, store)
    }

    /// The next process finds a new retained memory.
    pub fn lose_memory(&mut self) {
        self.memory = Arc::new(HeapMemory::new(256));
    }

    /// The same after the machine was started again.
    pub async fn reboot(&self, store: &MemoryStore) -> (Machine, Arc<MemoryStore>) {
        let (mut machine, store) = self.lose(store).await;
        machine.boot += 1;
        machine.boot_ms = Arc::new(AtomicU64::new(1000));
        (machine, store)
    }
}

struct Process {
    start: Instant,
    memory: Arc<HeapMemory>,
    boot: u8,
    boot_ms: Arc<AtomicU64>,
    seed: u64,
}

impl Host for Process {
    super::of_runtime!(start);
    fn random(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&noise(self.seed, bytes.len().next_multiple_of(8))[..bytes.len()]);
    }
    fn boot_id(&self) -> [u8; 16] {
        [self.boot; 16]
    }
    fn boot_ms(&self) -> u64 {
        self.boot_ms.load(Relaxed)
    }
    fn memory(&self, _: PoolId, _: u64, _: u64) -> io::Result<Arc<dyn Memory>> {
        Ok(self.memory.clone())
    }
}
