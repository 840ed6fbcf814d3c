//! The bytes that Forebay keeps on a store.
//!
//! Every persisted structure is declared here, by hand, little-endian, with explicit offsets; nothing on a
//! store is laid out by a serializer's derive. Encoders are total. Decoders take bytes that may be damaged or
//! hostile: they never panic and never allocate more than their input justifies.
//!
//! `docs/format.md` draws each layout; a test holds that page against the tables in this crate.
//!
//! In the order in which a pool is opened:
mod layout;
mod superblock;
mod checkpoint;
mod disk;
mod segment;
mod batch;
mod entry;
mod node;
mod address;
mod checksum;

pub use address::{Address, BlockRef, Codec, Form, MapValue, SegmentId, Slot};
pub use batch::{Batch, BatchHeader, GROUP_END};
pub use checkpoint::{Checkpoint, SegmentRecord, SegmentState};
pub use checksum::{check64, crc32c, Check64};
pub use disk::{CatalogueOp, DiskId, DiskRecord, MAX_NAME, Role, SyncMode};
pub use entry::{Entry, EntryIter, Fingerprint};
pub use layout::{Field, LAYOUTS, Layout};
pub use node::{FANOUT, MapNode, NodeEntries};
pub use segment::{DirectoryEntry, SegmentFooter, SegmentHeader, SlotKind, Stream};
pub use superblock::{BlobRef, MAX_BLOBS, PoolId, Superblock};

/// Bytes of a block: the unit of mapping, deduplication and compression.
pub const BLOCK: usize = 4096;
/// Bytes of a sector: the smallest unit that a guest addresses.
pub const SECTOR: usize = 512;
/// Format version written by this release; older ones that it can read are named in `docs/format.md`.
pub const VERSION: u32 = 1;

/// Why bytes from a store are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The magic number is another one: these bytes are not this structure.
    #[error("not a {0} (wrong magic number)")]
    Magic(&'static str),
    /// Written by a newer release.
    #[error("format version {found} is newer than this release understands ({VERSION}): upgrade forebay")]
    Newer {
        /// The version that the bytes name.
        found: u32,
    },
    /// The checksum does not match.
    #[error("{0}: checksum mismatch")]
    Checksum(&'static str),
    /// The structure ends before its declared length.
    #[error("{0}: truncated")]
    Truncated(&'static str),
    /// A field has a value that no writer produces.
    #[error("{what}: bad value in {field}")]
    Value {
        /// The structure.
        what: &'static str,
        /// The field in it.
        field: &'static str,
    },
    /// It is whole, but belongs to another pool or another place.
    #[error("{what}: {field} is of another pool, segment or place")]
    Foreign {
        /// The structure.
        what: &'static str,
        /// The field in it.
        field: &'static str,
    },
}

/// Result of decoding.
pub type Result<T> = std::result::Result<T, FormatError>;

/// Rounds `n` up to a multiple of `align`, a power of two.
pub const fn align_up(n: usize, align: usize) -> usize {
    debug_assert!(align.is_power_of_two());
    (n + align - 1) & !(align - 1)
}
