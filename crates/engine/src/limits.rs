//! All limits of the engine, and the relations between them.

use std::time::Duration;

use forebay_format::{BLOCK, FANOUT, MAX_BLOBS, SECTOR, Slot};

/// Maximum size of a disk in bytes.
pub const MAX_DISK_BYTES: u64 = 64 << 40;
/// Default for the maximum number of disks of a pool, snapshots and images included. Each disk takes 2 to 3
/// KB of memory, which a server needs before it can remove any disk.
pub const MAX_DISKS: usize = 250_000;
/// Bytes of a segment of an image of the cluster, which is stored at once.
pub const IMAGE_SEGMENT_BYTES: usize = 8 << 20;
/// Maximum number of blocks of an image whose copies are remembered, so that a block that occurs again is not
/// stored again: some 48 MiB.
pub const KNOWN_COPIES: usize = 1 << 20;
/// Number of clones that are made before other tasks of the thread have their turn.
pub const CLONES_OF_STRETCH: usize = 128;
/// Limit for ids of disks when a pool is opened. Ids are never reused; 16 million are left for assignment
/// until the next opening.
pub const MAX_ID: u32 = u32::MAX - (1 << 24);
/// Limit for generation, epoch and sequence number when a pool is opened: reached at a million a second after
/// 146,000 years.
pub const MAX_COUNT: u64 = 1 << 62;
/// Maximum bytes of one batch, including header and entries, if segments are large enough.
pub const BATCH_BYTES: usize = 4 << 20;
/// Number of changes of a group (blocks, or zeroed ranges) that are prepared while the previous ones are
/// written. One batch holds that many blocks, even if none of them compresses.
pub const SLICE_CHANGES: usize = 960;
/// Blocks that one thread examines or compresses at a time: some tens of microseconds.
pub const WORKER_BLOCKS: usize = 48;
/// Maximum bytes of a group that one thread prepares: to wake another thread takes longer than it saves.
pub const GROUP_OF_ONE_THREAD: u64 = 1536 << 10;
/// Minimum size of a segment.
pub const MIN_SEGMENT_BYTES: u32 = 64 << 10;
/// Maximum size of a segment.
pub const MAX_SEGMENT_BYTES: u32 = 1 << 30;
/// A segment takes at most one part in this number of the store: each stream has one open segment,
/// preallocated as a whole, and the live shares of smaller segments differ more from the mean, which gives
/// the cleaner emptier victims.
pub const SEGMENTS_AT_LEAST: u64 = 128;
/// Maximum time that dirty data waits for a commit to begin. Together with the duration of a commit this
/// stays under the promised second.
pub const DIRTY_AGE: Duration = Duration::from_millis(500);
/// Uncompressed bytes that a desktop overflows at a time; some two megabytes after compression.
pub const OVERFLOW_BYTES: usize = 4 << 20;
/// Default limit of how long a commit with waiting requests may be delayed to coalesce.
pub const COMMIT_DELAY: Duration = Duration::from_millis(10);
/// Interval at which a commit that failed because the store was full is retried.
pub const FULL_RETRY: Duration = Duration::from_millis(200);
/// Interval at which a writer for which there is no retained memory tries again.
pub const MEMORY_RETRY: Duration = Duration::from_millis(100);
/// Minimum time between two warnings that writers wait for retained memory.
pub const MEMORY_WARNINGS: Duration = Duration::from_secs(60);
/// Retained memory beyond the budgets of the write buffers: room for one large request of each of several
/// threads.
pub const RETAINED_SLACK: u64 = 64 << 20;

/// A disk whose writes are durable keeps its mark for this long after its last change; see [`crate::marks`].
pub const MARK_IDLE: Duration = Duration::from_secs(2);
/// Number of blocks of writes to a disk that are accepted although their commit requires reads. This limits
/// the reads for which a flush waits because of one disk.
pub const COLD_BLOCKS: usize = 8;
/// Maximum concurrent reads for cold writes, for which no other request waits: equal to the reads of the
/// mark.
pub const COLD_READS: usize = NODE_READS;
/// Maximum concurrent reads for a commit, for which flushes wait.
pub const COMMIT_READS: usize = 64;
/// Maximum number of dependent reads to load what a change needs: one for each level of the map, and one for
/// a base.
pub const WARM_ROUNDS: usize = 8;
/// How long a client that attaches to a desktop waits for the reset after the previous client.
pub const ATTACH_WAIT: Duration = Duration::from_secs(10);
/// Delay before a failed reset, or the reset of a disk in use, is tried again. It doubles with each attempt
/// up to [`RESET_RETRY_MAX`].
pub const RESET_RETRY: Duration = Duration::from_millis(20);
/// Maximum of the delay that begins with [`RESET_RETRY`].
pub const RESET_RETRY_MAX: Duration = Duration::from_millis(500);
/// Minimum size of the store read for a miss, if the following blocks of the disk are contiguous on the
/// store.
pub const READAHEAD_MIN: u64 = 64 << 10;
/// Like [`READAHEAD_MIN`], for a desktop whose insertions evict nothing from the read cache: files of its
/// image are contiguous, and other desktops soon read the same blocks.
pub const READAHEAD_DESKTOP: u64 = 256 << 10;
/// Maximum bytes of concurrent reads of clients at the store. A fast disk delivers this in some milliseconds,
/// and a slow disk in the time of some seeks.
pub const READS_AT_ONCE: u64 = 8 << 20;
/// Bytes beyond [`READS_AT_ONCE`] for disks that read less than their share.
pub const READS_RESERVE: u64 = 4 << 20;
/// Maximum gap that a read-ahead skips, usually blocks that are cached already. A new start after the gap
/// would cost another read.
pub const AHEAD_GAP: u64 = 64 << 10;
/// Maximum bytes that one read of a sequential reader has, the requested bytes included.
pub const READAHEAD_MAX: u64 = 1 << 20;
/// Maximum number of streams of sequential reads that are recognized on each disk.
pub const AHEAD_STREAMS: usize = 16;
/// Number of blocks that one step of a read-ahead reads; unpacking them takes as long as [`TURN_BYTES`].
pub const AHEAD_CHUNK: u64 = CHUNK_BLOCKS as u64;
/// Maximum number of blocks that are read ahead of a stream. A fast disk delivers them in some milliseconds.
pub const AHEAD_WINDOW: u64 = 1024;
/// Maximum share of the read cache that is read ahead of one stream, as one part in this number. Several
/// streams then fit into the part of the cache that is for new blocks.
pub const AHEAD_CACHE_SHARE: u64 = 64;
/// Maximum bytes of concurrent reads ahead, for all disks together.
pub const AHEAD_AT_ONCE: u64 = 4 << 20;
/// Like [`AHEAD_AT_ONCE`], while clients of other disks read from the store.
pub const AHEAD_BESIDE_OTHERS: u64 = 1 << 20;
/// Maximum bytes that a guest's request writes or reads ahead before its task yields to other guests of the
/// thread: some ten to a hundred microseconds.
pub const TURN_BYTES: u64 = 256 << 10;
/// Like [`TURN_BYTES`], in steps through a block map: a subtree counts as one step, a leaf as [`LEAF_STEPS`].
pub const TURN_STEPS: u64 = 1024;
/// Number of [`TURN_STEPS`] that a leaf counts as.
pub const LEAF_STEPS: u64 = 8;
/// Number of blocks that are looked up in the map and the buffers at a time. It limits how long a lock is
/// held.
pub const CHUNK_BLOCKS: usize = 64;
/// How long a failed read is retried if a commit or recovery depends on it, with at least [`READ_TRIES`]
/// attempts. Commits wait for these attempts.
pub const READ_PATIENCE: Duration = Duration::from_millis(500);
/// Minimum number of attempts within [`READ_PATIENCE`]. For a disk that takes seconds to report a bad sector,
/// this number is the effective limit.
pub const READ_TRIES: u32 = 4;
/// Maximum pause between two attempts to read. The first pause is a millisecond, and each further pause is
/// twice as long as the one before.
pub const READ_PAUSE: Duration = Duration::from_millis(128);
/// Maximum number of times that a read looks its blocks up again because their segment was freed in the
/// meantime.
pub const READ_RETRIES: usize = 16;
/// Maximum number of blocks that one change to the catalogue copies by reference. This takes some ten
/// milliseconds, for which other commits wait.
pub const COPY_BLOCKS: u64 = 1 << 20;
/// Number of pieces of a copy, each at most one leaf, for which the map is locked once: some tens of
/// microseconds.
pub const COPY_STEPS: usize = 16;
/// Bytes that a copied address counts towards the next checkpoint: its size in a map node.
pub const COPY_VALUE_BYTES: u64 = 12;
/// Size of the pieces in which data is read and written that cannot be copied by reference.
pub const COPY_BYTES: u64 = 1 << 20;
/// A volume is scanned again when this many bytes were written to it outside of known files, but not sooner
/// than [`LEARN_PAUSE`] after the last scan.
pub const LEARN_BYTES: u64 = 64 << 20;
/// Minimum time between two scans of a volume; see [`LEARN_BYTES`].
pub const LEARN_PAUSE: Duration = Duration::from_secs(600);
/// Total memory of class maps above which no further volume is scanned automatically.
pub const CLASS_MAPS_BYTES: usize = 256 << 20;
/// After the pool is opened, fingerprints are read back when guests cause fewer store reads than this number
/// within [`INDEX_LOOK`], or after [`INDEX_WAIT`] in any case.
pub const INDEX_CALM: u64 = 8;
/// Interval in which store reads of guests are compared with [`INDEX_CALM`].
pub const INDEX_LOOK: Duration = Duration::from_secs(2);
/// Maximum time after which fingerprints are read back; see [`INDEX_CALM`].
pub const INDEX_WAIT: Duration = Duration::from_secs(120);
/// Bytes that a log scan reads at a time.
pub const SCAN_BYTES: usize = 8 << 20;
/// Maximum number of unreadable blocks that are located individually in a piece of [`SCAN_BYTES`].
pub const UNREADABLE_BLOCKS: usize = 16;
/// Number of segments that recovery scans concurrently: many disks reach their full rate only with several
/// readers. Each scan takes two windows of [`SCAN_BYTES`].
pub const SCANS_AT_ONCE: usize = 4;
/// Maximum number of slots that the barrier of a mark holds exactly: 32 MiB, outside of the budget of the
/// mark.
pub const BARRIER_SLOTS: u64 = 16 << 20;
/// Number of map nodes that a mark holds in memory on each level.
pub const MARK_NODES: usize = FANOUT;
/// Number of map nodes (with their blocks) that a mark visits before it yields to other tasks: some hundred
/// microseconds.
pub const MARK_TURN: usize = 8;
/// Maximum number of changes of counts that a mark sorts at once: some milliseconds.
pub const MARK_RUN: usize = 32 << 10;
/// Bytes of temporary data that a mark reads at a time.
pub const MARK_PIECE: usize = 64 << 10;
/// Number of map nodes that a mark may always read to determine the exclusive space of disks, even if it
/// needs fewer nodes for its own purpose.
pub const MARK_CREDIT: u64 = 4096;
/// Bytes of pages of the checkpoint that are written while the log is locked once: some milliseconds of a
/// disk.
pub const PIECES_BYTES: usize = 1 << 20;
/// Maximum bytes of one read of checkpoint pages when a pool is opened.
pub const PIECE_READ_BYTES: u64 = 1 << 20;
/// Number of concurrent reads of [`PIECE_READ_BYTES`].
pub const PIECE_READS: usize = 16;
/// Default of [`PoolConfig::renew_pages`](crate::PoolConfig::renew_pages). It suffices for all pages of a
/// pool of 100 TB, some 70 MB, which is little next to the map nodes that its mark reads.
pub const RENEW_PAGES: usize = 1 << 14;
/// Number of segment records, objects or changes that a loop over all of them visits before it yields to
/// other tasks: some hundred microseconds.
pub const YIELD_STEPS: usize = 2048;
/// Number of segments that a reclaim removes from the table while it holds the log's lock: some hundred
/// microseconds.
pub const DROPS_AT_A_TIME: usize = 256;
/// Maximum bytes of one read of map nodes, for operations that read many nodes. Guest reads queue behind
/// [`NODE_READS`] such reads: a megabyte, some hundred microseconds of a disk.
pub const NODE_READ_BYTES: u64 = 256 << 10;
/// Number of concurrent reads of [`NODE_READ_BYTES`].
pub const NODE_READS: usize = 4;
/// Maximum number of unneeded bytes between map nodes that are read together. A separate read would cost
/// more.
pub const NODE_GAP: u64 = 16 << 10;
/// Number of blocks of one read by the cleaner and the check, which read many blocks. All workers unpack and
/// verify them.
pub const BLOCK_RUN: usize = 64;
/// Number of concurrent reads of [`BLOCK_RUN`].
pub const BLOCK_READS: usize = 8;
/// Number of blocks that a check collects, to read them in the order in which they are stored.
pub const CHECK_BLOCKS: usize = 1 << 15;
/// Number of parts of the [`CHECK_BLOCKS`] that are read concurrently: while one part is verified, the others
/// are read.
pub const CHECK_PARTS: usize = 4;
/// Number of nodes of block maps that a check reads concurrently.
pub const CHECK_NODES: usize = 32;
/// Maximum uncompressed bytes that the cleaner reads and packs in one step, and maximum compressed bytes that
/// it writes in one step: some milliseconds of a disk, for which a commit may have to wait.
pub const MOVE_BYTES: usize = 512 << 10;
/// Number of groups of blocks that each worker packs before the engine does other work: some 0.4 ms.
pub const PACK_GROUPS: usize = 4;
/// The cleaner's share of the time while there is plenty of room, in percent. The share increases as room
/// gets short.
pub const CLEAN_DUTY: u64 = 25;
/// Like [`CLEAN_DUTY`], for a reclaim that a client requested and waits for.
pub const CLEAN_DUTY_ASKED: u64 = 50;
/// Maximum pause of the cleaner between two steps.
pub const CLEAN_PAUSE: Duration = Duration::from_millis(500);
/// Minimum interval between automatic reclaims.
pub const RECLAIM_PAUSE: Duration = Duration::from_secs(10);
/// An automatic reclaim begins when this fraction of the stored bytes (one part in this number) was appended,
/// or discarded, since the last mark. A mark reads the map nodes that changed; a full one reads each node
/// once, some 1.3 % of the data: with an eighth, its reads stay below a tenth of the bytes written.
pub const RECLAIM_SHARE: u64 = 8;
/// While there is room, automatic reclaims clean only objects of which at least this share is freed, in
/// percent: freeing a byte then costs moving a third of a byte. Other objects become sparser with time.
pub const GAIN_WITH_ROOM: u64 = 75;
/// Minimum share of an object that cleaning must free, in percent. A smaller gain does not justify the
/// writes.
pub const GAIN_LEAST: u64 = 5;
/// Like [`GAIN_LEAST`], for a reclaim that a client requested. It cleans objects between the two limits only
/// if it would otherwise leave more than [`LEFT_BEHIND`].
pub const GAIN_ASKED: u64 = 1;
/// Share of the reclaimable bytes that a requested reclaim may leave, in percent. It is less than half of the
/// promised 5 %, since the figure is an estimate.
pub const LEFT_BEHIND: u64 = 2;
/// A segment of an image is packed once if its blocks take less than this share of their uncompressed size,
/// in percent: blocks that do not compress singly do not compress in groups.
pub const PACK_BELOW: u64 = 95;
/// Room that the cleaner maintains in addition to the reserve, as a fraction of the store: one part in 32.
/// More would make it clean fuller objects: at 80 % full each percent set aside costs it a twentieth more
/// writes.
pub const ROOM_SHARE: u64 = 32;
/// If less than this fraction of the store is free above the reserve, marks are made more often.
pub const TIGHT_SHARE: u64 = 8;
/// Room that a cleaning frees beyond [`ROOM_SHARE`], as a fraction of the store: one part in 64, so that the
/// mark is worth its reads.
pub const ROOM_MARGIN: u64 = 64;

const _: () = assert!(MAX_SEGMENT_BYTES as u64 <= Slot::LIMIT as u64 * Slot::UNIT as u64);
const _: () = assert!(BATCH_BYTES * MAX_BLOBS >= 256 << 20, "a checkpoint of many disks must fit");
const _: () = assert!(MAX_DISK_BYTES.is_multiple_of(BLOCK as u64));
const _: () = assert!(BLOCK / SECTOR == 8, "a sector mask has eight bits");
const _: () = assert!(READAHEAD_MIN <= READAHEAD_DESKTOP && READAHEAD_DESKTOP <= READAHEAD_MAX);
const _: () = assert!(AHEAD_CHUNK <= AHEAD_WINDOW && AHEAD_CHUNK * BLOCK as u64 <= TURN_BYTES);
const _: () = assert!(AHEAD_CHUNK * BLOCK as u64 <= AHEAD_BESIDE_OTHERS);
const _: () = assert!(SCAN_BYTES >= 2 * BATCH_BYTES);
const _: () = assert!(TIGHT_SHARE < ROOM_SHARE, "room is tight before it is short");
const _: () = assert!(NODE_GAP + BLOCK as u64 <= NODE_READ_BYTES);

/// The limit for zeroed ranges: `budget`, and in addition a part that only zeroed ranges may use.
pub(crate) fn zeroes_budget(budget: u64) -> u64 {
    budget.saturating_add(budget / 8)
}
