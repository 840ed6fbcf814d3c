//! The bytes that Forebay keeps on a store.
//!
//! Every persisted structure is declared here, by hand, little-endian, with explicit offsets; nothing on a
//! store is laid out by a serializer's derive. Encoders refuse, by assertion, what decoders would refuse: a
//! pool that cannot be opened again must not be written. Decoders take bytes that may be damaged or hostile:
//! they never panic and never allocate more than their input justifies.
//!
//! `docs/format.md` draws each layout; a test holds that page against the tables in this crate.
//!
//! In the order in which a pool is opened:
mod address;
mod batch;
mod checkpoint;
mod checksum;
mod disk;
mod entry;
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod layout;
mod node;
mod relocation;
mod segment;
mod superblock;
mod values;

pub use address::{Address, BlockRef, Codec, Form, MapValue, SegmentId, Slot};
pub use batch::{Batch, BatchHeader, GROUP_END};
pub use checkpoint::{Checkpoint, SegmentRecord, SegmentState};
pub use checksum::{Check64, check64, crc32c};
pub use disk::{CatalogueOp, DiskId, DiskRecord, MAX_NAME, Role, SyncMode};
pub use entry::{Entry, EntryIter, Fingerprint};
pub use group::GroupHeader;
pub use layout::{Field, LAYOUTS, Layout};
pub use node::{FANOUT, MAX_BLOCKS, MAX_LEVEL, MapNode, NodeEntries};
pub use relocation::{Relocation, RelocationMap};
pub use segment::{DirectoryEntry, SegmentFooter, SegmentHeader, SlotKind, Stream};
pub use superblock::{BlobRef, MAX_BLOBS, PoolId, Superblock};

/// Bytes of a block: the unit of mapping, deduplication and compression.
pub const BLOCK: usize = 4096;
/// Bytes of a sector: the smallest unit that a guest addresses.
pub const SECTOR: usize = 512;
/// Format version written by this release; older ones that it can read are named in `docs/format.md`.
pub const VERSION: u32 = 1;
/// Bytes that a segment can have at most, so that every slot has a number: 1 GiB. Its directory may stand behind.
pub const MAX_SEGMENT: u64 = Slot::LIMIT as u64 * Slot::UNIT as u64;

// Lengths from a store are 32 bits wide; with 64-bit arithmetic their sums cannot overflow.
const _: () = assert!(usize::BITS >= 64, "a 64-bit platform is needed");

/// Judges the version that a structure names, once its checksum is known to be right.
pub(crate) fn check_version(what: &'static str, found: u32) -> Result<()> {
    match found {
        0 => Err(FormatError::Value { what, field: "version" }),
        VERSION => Ok(()),
        _ => Err(FormatError::Newer { found }),
    }
}

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
