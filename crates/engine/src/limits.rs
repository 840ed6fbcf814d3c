//! All limits of the engine in one place, with what holds between them.

use std::time::Duration;

use forebay_format::{BLOCK, FANOUT, MAX_BLOBS, SECTOR, Slot};

/// Largest disk.
pub const MAX_DISK_BYTES: u64 = 64 << 40;
/// Highest id of a disk or a segment, less one, with which a pool is opened. Ids are never used twice; 16 million are
/// left for the time until the next opening.
pub const MAX_ID: u32 = u32::MAX - (1 << 24);
/// Highest generation, epoch and sequence number with which a pool is opened: at a million a second, after 146,000 years.
pub const MAX_COUNT: u64 = 1 << 62;
/// Most bytes of one batch, header and entries included, where segments are large enough.
pub const BATCH_BYTES: usize = 4 << 20;
/// Smallest and largest segment.
pub const MIN_SEGMENT_BYTES: u32 = 64 << 10;
/// See [`MIN_SEGMENT_BYTES`].
pub const MAX_SEGMENT_BYTES: u32 = 1 << 30;
/// A segment is at most this part of the store: each stream has one open, set aside whole, and a victim of the cleaner
/// that is a small part of the store is emptier or fuller than the mean.
pub const SEGMENTS_AT_LEAST: u64 = 128;
/// Dirty data waits at most this long for a commit to begin. With the time of a commit it stays under the
/// second that is promised.
pub const DIRTY_AGE: Duration = Duration::from_millis(500);
/// Plain bytes that a desktop lets overflow at a time; some two megabytes when they are packed.
pub const OVERFLOW_BYTES: usize = 4 << 20;
/// A commit that somebody waits for may wait so long for others, by default.
pub const COMMIT_DELAY: Duration = Duration::from_millis(10);
/// A commit that failed for want of room is tried again this often.
pub const FULL_RETRY: Duration = Duration::from_millis(200);
/// Writes to a disk that are accepted although what their commit needs has to be read first. What a flush waits for
/// because of one disk is so little.
pub const COLD_BLOCKS: usize = 8;
/// Reads at a time for such writes, which others need not wait for: as many as for the mark.
pub const COLD_READS: usize = NODE_READS;
/// Reads at a time for a commit, which flushes wait for.
pub const COMMIT_READS: usize = 64;
/// Reads one after the other that lead to all that a change needs: each level of the map, and a base.
pub const WARM_ROUNDS: usize = 8;
/// How long a client that attaches to a desktop waits for the reset after the client before it.
pub const ATTACH_WAIT: Duration = Duration::from_secs(10);
/// A reset that failed, or whose disk was held, is tried again after this, and after twice as long each time up to
/// [`RESET_RETRY_MAX`].
pub const RESET_RETRY: Duration = Duration::from_millis(20);
/// See [`RESET_RETRY`].
pub const RESET_RETRY_MAX: Duration = Duration::from_millis(500);
/// What a miss reads from the store at least, where the blocks behind it lie behind it on the store too.
pub const READAHEAD_MIN: u64 = 64 << 10;
/// The same for a desktop, as long as it pushes nothing out of the read cache: what it reads of its image lies
/// together in files, and others read the same soon.
pub const READAHEAD_DESKTOP: u64 = 256 << 10;
/// So much of what is read ahead may be there already: to begin anew behind it would cost another read.
pub const AHEAD_GAP: u64 = 64 << 10;
/// What a sequential reader reads ahead at most.
pub const READAHEAD_MAX: u64 = 1 << 20;
/// What a request of a guest does at most before its task yields, so that other guests of the thread do not wait for it:
/// bytes that are written or read ahead, some ten to a hundred microseconds.
pub const TURN_BYTES: u64 = 256 << 10;
/// The same in pieces of a block map that are looked at: subtrees and leaves, which count as [`LEAF_STEPS`].
pub const TURN_STEPS: u64 = 1024;
/// See [`TURN_STEPS`].
pub const LEAF_STEPS: u64 = 8;
/// Blocks that the map and the buffers are asked for at a time: bounds how long a lock is held.
pub const CHUNK_BLOCKS: usize = 64;
/// A failed read on which a commit or recovery depends is tried again for so long, and [`READ_TRIES`] times at least;
/// commits wait meanwhile.
pub const READ_PATIENCE: Duration = Duration::from_millis(500);
/// See [`READ_PATIENCE`]: of a disk that takes seconds to report a bad sector that is what counts.
pub const READ_TRIES: u32 = 4;
/// Longest pause between two of them; the first is a millisecond, each further one twice as long.
pub const READ_PAUSE: Duration = Duration::from_millis(128);
/// How often a read looks its blocks up again when their segment was freed meanwhile.
pub const READ_RETRIES: usize = 16;
/// Blocks that one change to the catalogue copies at most by their addresses: some ten milliseconds, for which other
/// commits wait.
pub const COPY_BLOCKS: u64 = 1 << 20;
/// Pieces of a copy, of one leaf at most, that are done under one lock of the map: some tens of microseconds.
pub const COPY_STEPS: usize = 16;
/// What a copied address counts towards the next checkpoint: its bytes in a map node there.
pub const COPY_VALUE_BYTES: u64 = 12;
/// What cannot be copied by address is read and written in pieces of so many bytes.
pub const COPY_BYTES: u64 = 1 << 20;
/// A volume is scanned anew when so much was written to it where no file was, but not sooner than [`LEARN_PAUSE`] after
/// the last time.
pub const LEARN_BYTES: u64 = 64 << 20;
/// See [`LEARN_BYTES`].
pub const LEARN_PAUSE: Duration = Duration::from_secs(600);
/// Memory of the maps of classes beyond which no volume is scanned anew by itself.
pub const CLASS_MAPS_BYTES: usize = 256 << 20;
/// After a start, fingerprints are read back when guests made fewer store reads than [`INDEX_CALM`] in the time of
/// [`INDEX_LOOK`], or after [`INDEX_WAIT`] in any case.
pub const INDEX_CALM: u64 = 8;
/// See [`INDEX_CALM`].
pub const INDEX_LOOK: Duration = Duration::from_secs(2);
/// See [`INDEX_CALM`].
pub const INDEX_WAIT: Duration = Duration::from_secs(120);
/// Bytes that a log scan reads at a time.
pub const SCAN_BYTES: usize = 8 << 20;
/// Blocks of such a piece that cannot be read and are found one by one.
pub const UNREADABLE_BLOCKS: usize = 16;
/// Segments that recovery scans at once: many disks give their full rate only to several readers. Each takes
/// two windows of [`SCAN_BYTES`].
pub const SCANS_AT_ONCE: usize = 4;
/// Map nodes that a mark has at hand on each level.
pub const MARK_NODES: usize = FANOUT;
/// Nodes and their blocks that a mark looks at before other tasks have their turn: some hundred microseconds.
pub const MARK_TURN: usize = 8;
/// Most bytes of one read of map nodes, for those who read many; and how many such reads there are at once. What
/// guests read waits behind them: a megabyte, some hundred microseconds of a disk.
pub const NODE_READ_BYTES: u64 = 256 << 10;
/// See [`NODE_READ_BYTES`].
pub const NODE_READS: usize = 4;
/// Between nodes that are read together so much may lie that is not asked for. Another read would cost more.
pub const NODE_GAP: u64 = 16 << 10;
/// Plain bytes that the cleaner reads and packs in one step, and packed ones that it writes in one: some
/// milliseconds of a disk, for which a commit may have to wait.
pub const MOVE_BYTES: usize = 512 << 10;
/// The cleaner's share of the time while there is plenty of room, in percent; it grows as room gets short.
pub const CLEAN_DUTY: u64 = 25;
/// As [`CLEAN_DUTY`], where somebody asked for it and waits.
pub const CLEAN_DUTY_ASKED: u64 = 50;
/// Longest pause of the cleaner between two steps.
pub const CLEAN_PAUSE: Duration = Duration::from_millis(500);
/// Reclaiming does not begin again by itself sooner than this.
pub const RECLAIM_PAUSE: Duration = Duration::from_secs(10);
/// Reclaiming begins by itself when this part of what is stored was appended, or discarded, since the last
/// mark. The mark reads each map node once, some 1.3 % of the data: an eighth keeps that a tenth of what is
/// written.
pub const RECLAIM_SHARE: u64 = 8;
/// With room, only objects are cleaned by themselves of which so much comes back, in percent: to free a byte
/// then costs a third of a byte to be moved. What is left gets emptier by itself.
pub const GAIN_WITH_ROOM: u64 = 75;
/// Least that has to come back of an object for it to be cleaned at all, in percent; less is not worth the
/// writing.
pub const GAIN_LEAST: u64 = 5;
/// As [`GAIN_LEAST`], where what is asked for would not be reached without.
pub const GAIN_ASKED: u64 = 1;
/// Of all that could come back, what may stay behind when somebody asks for it, in percent. Half of the
/// twentieth that is promised: the estimate is one.
pub const LEFT_BEHIND: u64 = 2;
/// A segment of an image is packed once if its blocks take less than this share of their plain size, in percent:
/// what does not compress one by one does not in groups.
pub const PACK_BELOW: u64 = 95;
/// Room that the cleaner sees to that there is, as a part of the store, beside the reserve: one in 32. More
/// would make it clean fuller objects: at 80 % full each percent that is set aside costs it a twentieth more
/// to write.
pub const ROOM_SHARE: u64 = 32;
/// Where less than this part of the store is free above the reserve, marks come more often.
pub const TIGHT_SHARE: u64 = 8;
/// What it frees beyond [`ROOM_SHARE`] when it has to begin: one part in 64, so that a mark pays.
pub const ROOM_MARGIN: u64 = 64;

const _: () = assert!(MAX_SEGMENT_BYTES as u64 <= Slot::LIMIT as u64 * Slot::UNIT as u64);
const _: () = assert!(BATCH_BYTES * MAX_BLOBS >= 256 << 20, "a checkpoint of many disks must fit");
const _: () = assert!(MAX_DISK_BYTES.is_multiple_of(BLOCK as u64));
const _: () = assert!(BLOCK / SECTOR == 8, "a sector mask has eight bits");
const _: () = assert!(READAHEAD_MIN <= READAHEAD_DESKTOP && READAHEAD_DESKTOP <= READAHEAD_MAX);
const _: () = assert!(SCAN_BYTES >= 2 * BATCH_BYTES);
const _: () = assert!(TIGHT_SHARE < ROOM_SHARE, "room is tight before it is short");
const _: () = assert!(NODE_GAP + BLOCK as u64 <= NODE_READ_BYTES);
