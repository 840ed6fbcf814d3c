//! All limits of the engine in one place, with what holds between them.

use std::time::Duration;

use forebay_format::{BLOCK, MAX_BLOBS, SECTOR, Slot};

/// Largest disk.
pub const MAX_DISK_BYTES: u64 = 64 << 40;
/// Most bytes of one batch, header and entries included, where segments are large enough.
pub const BATCH_BYTES: usize = 4 << 20;
/// Smallest and largest segment.
pub const MIN_SEGMENT_BYTES: u32 = 64 << 10;
/// See [`MIN_SEGMENT_BYTES`].
pub const MAX_SEGMENT_BYTES: u32 = 1 << 30;
/// A segment is at most this part of the store.
pub const SEGMENTS_AT_LEAST: u64 = 32;
/// Dirty data waits at most this long for a commit to begin. With the time of a commit it stays under the
/// second that is promised.
pub const DIRTY_AGE: Duration = Duration::from_millis(500);
/// A commit that failed for want of room is tried again this often.
pub const FULL_RETRY: Duration = Duration::from_millis(200);
/// What a miss reads from the store at least, where the blocks behind it lie behind it on the store too.
pub const READAHEAD_MIN: u64 = 64 << 10;
/// What a sequential reader reads ahead at most.
pub const READAHEAD_MAX: u64 = 1 << 20;
/// Blocks that the map and the buffers are asked for at a time: bounds how long a lock is held.
pub const CHUNK_BLOCKS: usize = 64;
/// How often a read looks its blocks up again when their segment was freed meanwhile.
pub const READ_RETRIES: usize = 16;
/// Bytes that a log scan reads at a time.
pub const SCAN_BYTES: usize = 8 << 20;
/// Segments that recovery scans at once: many disks give their full rate only to several readers. Each takes
/// two windows of [`SCAN_BYTES`].
pub const SCANS_AT_ONCE: usize = 4;

const _: () = assert!(MAX_SEGMENT_BYTES as u64 <= Slot::LIMIT as u64 * Slot::UNIT as u64);
const _: () = assert!(BATCH_BYTES * MAX_BLOBS >= 256 << 20, "a checkpoint of many disks must fit");
const _: () = assert!(MAX_DISK_BYTES.is_multiple_of(BLOCK as u64));
const _: () = assert!(BLOCK / SECTOR == 8, "a sector mask has eight bits");
const _: () = assert!(READAHEAD_MIN <= READAHEAD_MAX);
const _: () = assert!(SCAN_BYTES >= 2 * BATCH_BYTES);
