//! The on-disk format of a Forebay pool.
//!
//! Every persisted structure is declared here, manually, little-endian, with explicit offsets; no persisted
//! byte is laid out by a serializer's derive. Encoders reject, by assertion, values that decoders would
//! reject: a pool that cannot be opened again must not be written. Decoders accept bytes that may be damaged
//! or hostile: they never panic and never allocate more than their input justifies.
//!
//! `docs/format.md` documents each layout; a test compares that page with the tables in this crate.

// The input is untrusted: nothing that decodes it may panic.
#![deny(clippy::expect_used, clippy::panic, clippy::unreachable, clippy::unwrap_used)]

mod address;
mod batch;
mod checksum;
mod disk;
mod entry;
mod features;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod layout;
mod node;
mod page;
mod relocation;
mod retained;
mod root;
mod segment;
mod segment_record;
mod superblock;
mod values;

pub use address::{Address, BlockRef, Codec, Form, MapValue, SegmentId, Slot};
pub use batch::{Batch, BatchHeader, GROUP_END};
pub use checksum::{Check64, Sum64, check64, crc32c};
pub use disk::{CatalogueOp, DiskId, DiskRecord, MAX_NAME, Mark, Role, SyncMode};
pub use entry::{Entry, EntryIter, Fingerprint};
pub use features::{FeatureKind, Features, UnknownFeatures};
pub use group::GroupHeader;
pub use layout::{Field, LAYOUTS, Layout};
pub use node::{FANOUT, MAX_BLOCKS, MAX_LEVEL, MapNode, NodeEntries};
pub use page::{PageEncoder, PageLevel, Table, decode_directory, decode_page};
pub use relocation::{Relocation, RelocationMap};
pub use retained::{
    RETAINED_COVER_BYTES, RETAINED_COVERS, RETAINED_HEADER_BYTES, RETAINED_LAYOUTS, RETAINED_RECORD_BYTES,
    RETAINED_TABLE, RETAINED_VERSION, RetainedChunk, RetainedCover, RetainedHeader, RetainedKind,
    RetainedRecord,
};
pub use root::{CheckpointRoot, DirectoryRef};
pub use segment::{DirectoryEntry, SegmentFooter, SegmentHeader, SlotKind, Stream};
pub use segment_record::{SegmentRecord, SegmentState};
pub use superblock::{BlobRef, MAX_BLOBS, PoolId, Superblock};

/// Bytes of a block: the unit of mapping, deduplication and compression.
pub const BLOCK: usize = 4096;
/// Bytes of a sector: the smallest unit that a guest addresses.
pub const SECTOR: usize = 512;
/// Format version that this release reads and writes.
pub const VERSION: u32 = 4;
/// Largest size of a segment in bytes, so that every slot has a number: 1 GiB. Its directory may follow
/// beyond it.
pub const MAX_SEGMENT: u64 = Slot::LIMIT as u64 * Slot::UNIT as u64;

// Lengths read from a store have 32 bits; with 64-bit arithmetic their sums cannot overflow.
const _: () = assert!(usize::BITS >= 64, "a 64-bit platform is needed");

/// Checks the version of a structure whose checksum has been verified.
pub(crate) fn check_version(what: &'static str, found: u32) -> Result<()> {
    match found {
        0 => Err(FormatError::Value { what, field: "version" }),
        1..VERSION => Err(FormatError::Older { found }),
        VERSION => Ok(()),
        _ => Err(FormatError::Newer { found }),
    }
}

/// Reasons for which bytes from a store are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The magic number differs: the bytes are not this structure.
    #[error("not a {0} (wrong magic number)")]
    Magic(&'static str),
    /// The structure was written by a newer release.
    #[error(
        "format version {found} is newer than version {VERSION}, the newest that this release supports: upgrade forebay"
    )]
    Newer {
        /// The version that was found in the bytes.
        found: u32,
    },
    /// Written by a build from before the first release.
    #[error(
        "only builds before the first release wrote format version {found}, and this release cannot read it: copy the \
         disks to a new pool with the build that wrote it"
    )]
    Older {
        /// The version that was found in the bytes.
        found: u32,
    },
    /// The pool has features that this release does not know.
    #[error("{0}")]
    Features(UnknownFeatures),
    /// The checksum of the named structure does not match.
    #[error("{0}: checksum mismatch")]
    Checksum(&'static str),
    /// The structure ends before its declared length.
    #[error("{0}: truncated")]
    Truncated(&'static str),
    /// A field has a value that writers never produce.
    #[error("{what}: invalid value in {field}")]
    Value {
        /// Name of the structure that is damaged.
        what: &'static str,
        /// Name of the field in the structure.
        field: &'static str,
    },
    /// The structure is intact, but belongs to another pool or another position.
    #[error("{what}: {field} belongs to another pool, segment or offset")]
    Foreign {
        /// Name of the structure that is damaged.
        what: &'static str,
        /// Name of the field in the structure.
        field: &'static str,
    },
}

impl FormatError {
    /// Whether the bytes have a format that this release does not support. They are not damaged, so no repair
    /// may replace them.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, FormatError::Newer { .. } | FormatError::Older { .. } | FormatError::Features(_))
    }
}

/// Result of decoding.
pub type Result<T> = std::result::Result<T, FormatError>;

/// Rounds `n` up to a multiple of `align`, a power of two.
pub const fn align_up(n: usize, align: usize) -> usize {
    debug_assert!(align.is_power_of_two());
    (n + align - 1) & !(align - 1)
}
