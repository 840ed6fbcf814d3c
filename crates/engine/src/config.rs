//! The configuration of a pool.

use std::time::Duration;

use forebay_guest::Policy;

use crate::Broken;
use crate::limits::{COMMIT_DELAY, MAX_DISKS, RECLAIM_PAUSE, RENEW_PAGES};

/// Whether small writes are coalesced into large ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Coalesce {
    /// Coalescing depends on the store and the guests.
    #[default]
    Adaptive,
    /// Every commit waits for the full configured delay.
    Always,
    /// Nothing is coalesced: a write is answered when it is durable.
    Off,
}

/// When boot profiles are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BootProfile {
    /// Nothing is recorded or prefetched, except on request.
    Off,
    /// The boot of the first clone is recorded; the profile is prefetched when a clone gets its first client.
    #[default]
    Auto,
    /// As `Auto`; the profile is also prefetched when the pool is opened and when clones are created or
    /// reset, before they boot.
    On,
}

/// When writes of remote clients are answered. Writes to a desktop, and to a disk whose sync mode is `never`,
/// are always answered when they are in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RemoteAnswers {
    /// A write is answered when it is durable.
    #[default]
    Durable,
    /// A write is answered when it is in memory. A client that outlives this memory is refused until an
    /// administrator accepts the loss.
    Memory,
}

/// The reaction to a loss of the memory in which writes were answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnMemoryLoss {
    /// Clients that may have seen such answers are refused, until an administrator resumes the disk.
    #[default]
    Refuse,
    /// Clients continue without the lost writes. A file system that relies on its flushes survives this as it
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
    /// Maximum time that a commit with waiting requests is delayed to coalesce further requests.
    pub commit_delay: Duration,
    /// Memory budget of the mark, for counts of references and changes of these counts. With a smaller
    /// budget, temporary data is written to the store, and marks read all maps; any size is correct.
    pub mark_memory: u64,
    /// Budget of the dedup index. A smaller index finds fewer duplicates; any size is correct.
    pub dedup_index: u64,
    /// Whether stored blocks are compressed.
    pub compress: bool,
    /// Minimum pause between two automatic reclaims. The pause is also at least four times as long as the
    /// last reclaim took, unless room is short.
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
    /// Maximum number of disks, including snapshots, images and imports under way. At this number no disk can
    /// be created; a pool that has more disks is opened.
    pub max_disks: usize,
    /// Maximum number of checkpoint pages that a reclaim stores again although they have not changed, so that
    /// the objects that hold these pages can be freed.
    #[doc(hidden)]
    pub renew_pages: usize,
    /// A rule that is violated on purpose, to test that the tests detect the violation.
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
