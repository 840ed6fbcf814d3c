//! The plan of a run, derived from the seed.

use std::time::Duration;

use forebay_engine::{Coalesce, Mutation, PoolConfig, SyncMode};

use crate::rng::Rng;

/// The shape of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Number of concurrent clients.
    pub clients: u64,
    /// Number of operations in one life of the pool, of all clients together.
    pub ops: u64,
    /// Number of lives of the pool: between two of them it crashes or is closed.
    pub lives: u64,
    /// Maximum number of disks.
    pub disks: usize,
    /// Maximum number of blocks of an ordinary disk.
    pub blocks: u64,
    /// Whether writes may overlap each other.
    pub overlapping: bool,
    /// Whether some disks are huge and sparse.
    pub huge: bool,
    /// Whether some disks have maps of many leaves, in two or three levels, with writes all over.
    pub wide: bool,
    /// Number of consecutive requests of a guest that writes.
    pub scatter: u64,
    /// Whether some clones of images are desktops.
    pub desktops: bool,
    /// Percentage of administrators' operations that are sessions of a desktop's users.
    pub sessions: u64,
    /// Percentage of administrators' operations that are imports.
    pub imports: u64,
    /// Weights of [`SyncMode`] `Flush`, `Always`, `Never`.
    pub sync: [u64; 3],
    /// The options of the pool.
    pub pool: PoolConfig,
    /// Percentage of lives that end with a crash.
    pub crashes: u64,
    /// Maximum number of steps of a life before its crash.
    pub steps: u64,
    /// Maximum number of polls of a store operation after the first poll.
    pub delay: u32,
    /// Percentage of operations that change the catalogue.
    pub admin: u64,
    /// Maximum delay between a requested reclaim and the next; `None`: only administrators start reclaims.
    pub reclaim_every: Option<u64>,
}

impl Plan {
    /// The plan of a seed, with at most `ops` operations in a life.
    pub fn new(rng: &mut Rng, ops: Option<u64>) -> Plan {
        let mut pool = PoolConfig {
            // Only the largest cache has room for reading ahead.
            read_cache: *rng.pick(&[0, 16 << 10, 64 << 10, 1 << 20, 32 << 20]),
            map_cache: *rng.pick(&[0, 8 << 10, 64 << 10, 1 << 20]),
            write_buffer: *rng.pick(&[4 << 10, 32 << 10, 128 << 10, 1 << 20]),
            desktops: *rng.pick(&[0, 16 << 10, 256 << 10, 1 << 30]),
            segment_bytes: *rng.pick(&[64 << 10, 128 << 10, 256 << 10, 1 << 20]),
            checkpoint_bytes: *rng.pick(&[64 << 10, 256 << 10, 1 << 20, 1 << 30]),
            // With a minimal budget, the index is sampled, and directories are read.
            dedup_index: *rng.pick(&[0, 2 << 10, 64 << 10, 4 << 20]),
            compress: rng.percent(70),
            coalesce: *rng.pick(&[Coalesce::Adaptive, Coalesce::Adaptive, Coalesce::Always, Coalesce::Off]),
            commit_delay: Duration::from_millis(*rng.pick(&[0, 10, 300])),
            reclaim_pause: Duration::from_millis(*rng.pick(&[5, 50, 2_000])),
            // Pages of checkpoints get old.
            renew_pages: 1,
            mutation: Mutation::None,
            ..PoolConfig::default()
        };
        // With a minimal budget, a mark writes temporary data, and its counts are not kept.
        pool.mark_memory = if pool.read_cache == 0 { 1 << 10 } else { 1 << 20 };
        let planned = *rng.pick(&[20, 60, 60, 150]);
        let overlapping = rng.percent(25);
        Plan {
            clients: rng.range(1, 5),
            ops: ops.map_or(planned, |n| n.min(planned)),
            lives: rng.range(1, 4),
            disks: rng.range(2, 9) as usize,
            blocks: *rng.pick(&[2, 8, 24, 60]),
            overlapping,
            huge: !overlapping && rng.percent(15),
            wide: false,
            scatter: 1,
            desktops: true,
            sessions: 0,
            imports: 0,
            sync: *rng.pick(&[[1, 0, 0], [1, 1, 0], [2, 1, 1], [0, 1, 0]]),
            pool,
            crashes: *rng.pick(&[50, 80, 100]),
            steps: *rng.pick(&[100, 600, 2_000, 6_000]),
            delay: *rng.pick(&[0, 3, 30]),
            admin: *rng.pick(&[5, 15, 30]),
            reclaim_every: *rng.pick(&[None, Some(20), Some(20), Some(300)]),
        }
    }

    /// Makes the maps of the disks so large that the map cache evicts nodes, and checkpoints so frequent that
    /// nodes are cold.
    pub fn widen(&mut self, rng: &mut Rng) {
        self.wide = true;
        (self.overlapping, self.huge) = (false, false);
        self.scatter = *rng.pick(&[4, 12, 30]);
        self.disks = self.disks.min(5);
        self.pool.map_cache = 0;
        self.pool.checkpoint_bytes = *rng.pick(&[64 << 10, 64 << 10, 256 << 10, 1 << 30]);
        self.pool.segment_bytes = *rng.pick(&[128 << 10, 1 << 20]);
    }

    /// Returns a random durability for a new volume.
    pub fn pick_sync(&self, rng: &mut Rng) -> SyncMode {
        [SyncMode::Flush, SyncMode::Always, SyncMode::Never][rng.weighted(&self.sync)]
    }

    /// A random size for a new disk: a multiple of 512.
    pub fn pick_size(&self, rng: &mut Rng) -> u64 {
        if self.huge && rng.percent(40) {
            return *rng.pick(&[64 << 40, (64 << 40) - 512, 1 << 40, (1 << 30) + 4096]);
        }
        if self.wide && rng.percent(80) {
            let most = *rng.pick(&[6_000, 20_000, 80_000]);
            return rng.range(2_000, most) * 4096;
        }
        let blocks = rng.range(1, self.blocks) * 4096;
        match rng.below(4) {
            0 => blocks - 512 * rng.range(0, 7),
            _ => blocks,
        }
    }
}
