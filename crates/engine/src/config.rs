//! The configuration of a pool.

use std::time::Duration;

use forebay_guest::Policy;

use crate::Broken;
use crate::limits::{COMMIT_DELAY, MAX_DISKS, RECLAIM_PAUSE, RENEW_PAGES};

/// Whether small writes are coalesced into large ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Coalesce {
    /// Depending on the store and the guests.
    #[default]
    Adaptive,
    /// Every commit waits for the full configured delay.
    Always,
    /// Never: a write is answered when it is durable.
    Off,
}

/// When boot profiles are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BootProfile {
    /// Nothing is recorded or prefetched, except on request.
    Off,
    /// Recorded while the first clone boots; prefetched when a clone gets its first client.
    #[default]
    Auto,
    /// As `Auto`; also prefetched when the pool is opened and when clones are created or reset, before they
    /// boot.
    On,
}

/// When writes of remote clients are answered. Those of a desktop, and of a disk whose sync mode is never,
/// are always answered in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RemoteAnswers {
    /// When they are durable.
    #[default]
    Durable,
    /// When they are in memory. A client that outlives this memory is refused until an administrator accepts
    /// the loss.
    Memory,
}

/// The reaction to a loss of the memory in which writes were answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnMemoryLoss {
    /// Clients that may have seen such answers are refused, until an administrator resumes the disk.
    #[default]
    Refuse,
    /// Clients continue, without these writes. A file system that relies on its flushes survives this as it
    /// survives a power failure, but only if its guest is restarted.
    Accept,
}

/// Configuration of a pool. All sizes in bytes.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// Budget of the read cache.
    pub read_cache: u64,
    /// Budget of the map cache.
    pub map_cache: u64,
    /// Limit on dirty data, at which writers wait.
    pub write_buffer: u64,
    /// Limit on the write caches of all desktops together.
    pub desktops: u64,
    /// Size at which new segments are sealed: 64 KiB to 1 GiB.
    pub segment_bytes: u32,
    /// Bytes appended to the log after which a checkpoint is made.
    pub checkpoint_bytes: u64,
    /// Whether small writes are coalesced into large ones.
    pub coalesce: Coalesce,
    /// Longest delay of a commit with waiting requests, to coalesce further ones.
    pub commit_delay: Duration,
    /// Budget of the mark: counts of references, and changes of them. With a smaller one, temporary data is
    /// written to the store, and marks read all maps; any size is correct.
    pub mark_memory: u64,
    /// Budget of the dedup index. A smaller index finds fewer duplicates; any size is correct.
    pub dedup_index: u64,
    /// Whether stored blocks are compressed.
    pub compress: bool,
    /// Least pause between two automatic reclaims. The pause is also at least four times as long as the last
    /// reclaim took, unless room is short.
    pub reclaim_pause: Duration,
    /// When boot profiles are used.
    pub boot_profile: BootProfile,
    /// Treatment of blocks by their class, which is determined from guests' file systems.
    pub classes: Policy,
    /// Whether disks are scanned for these classes automatically; see
    /// [`Pool::next_to_learn`](crate::Pool::next_to_learn).
    pub learn_classes: bool,
    /// When writes of remote clients are answered.
    pub remote_answers: RemoteAnswers,
    /// The reaction to a loss of the memory in which writes were answered.
    pub on_memory_loss: OnMemoryLoss,
    /// Most disks, including snapshots, images and imports under way. Beyond it none is created; a pool that
    /// has more is opened.
    pub max_disks: usize,
    /// Most pages of the tables of the checkpoint that a reclaim stores again although they have not changed,
    /// so that the objects that hold them can be freed.
    #[doc(hidden)]
    pub renew_pages: usize,
    /// A rule that is violated on purpose, to test that the tests detect it.
    #[doc(hidden)]
    pub mutation: Broken,
}

impl Default for PoolConfig {
    fn default() -> Self {
        PoolConfig {
            read_cache: 1 << 30,
            map_cache: 128 << 20,
            write_buffer: 128 << 20,
            desktops: 1 << 30,
            segment_bytes: 64 << 20,
            checkpoint_bytes: 512 << 20,
            coalesce: Coalesce::Adaptive,
            commit_delay: COMMIT_DELAY,
            mark_memory: 512 << 20,
            dedup_index: 256 << 20,
            compress: true,
            reclaim_pause: RECLAIM_PAUSE,
            boot_profile: BootProfile::default(),
            classes: Policy::default(),
            learn_classes: true,
            remote_answers: RemoteAnswers::default(),
            on_memory_loss: OnMemoryLoss::default(),
            max_disks: MAX_DISKS,
            renew_pages: RENEW_PAGES,
            mutation: Broken::default(),
        }
    }
}
