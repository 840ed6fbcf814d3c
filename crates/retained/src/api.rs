//! The plain types of the interface.

/// To whom the contents of a memory belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Id of the pool.
    pub pool: [u8; 16],
    /// Id of the boot of the host: memory does not survive the next boot.
    pub boot: [u8; 16],
}

/// Why the contents of a memory cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The memory has no contents.
    #[error("the retained memory is empty")]
    Empty,
    /// The memory belongs to another pool.
    #[error("the retained memory belongs to another pool")]
    OtherPool,
    /// The memory was written before the host was started.
    #[error("the retained memory was written before the last start of the host")]
    OtherBoot,
    /// An older release wrote the memory.
    #[error("the retained memory has format version {found}, which this release no longer reads")]
    OlderFormat {
        /// The version in the header of the memory.
        found: u32,
    },
    /// A newer release wrote the memory.
    #[error("the retained memory has format version {found}, which is newer than this release supports")]
    NewerFormat {
        /// The version in the header of the memory.
        found: u32,
    },
    /// A part of it is not as a kill of its writer could have left it.
    #[error("the retained memory is damaged: {0}")]
    Damaged(&'static str),
    /// Another owner in this process has the memory.
    #[error("the retained memory is in use")]
    InUse,
}

/// A statement: records with a smaller order are in the log if its history reaches a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cover {
    /// Sequence number of the batch.
    pub seq: u64,
    /// Order number of the record.
    pub order: u64,
}

/// The description of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRecord {
    /// Number of the disk.
    pub disk: u32,
    /// The block that the page holds.
    pub block: u64,
    /// Mask of the valid sectors of the block, a bit for each.
    pub mask: u8,
    /// Number of freezes of the disk's buffer before it.
    pub generation: u64,
}

/// The record of a zeroed range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeRecord {
    /// Number of the disk.
    pub disk: u32,
    /// First block of the range.
    pub start: u64,
    /// The block after the last block of the range.
    pub end: u64,
    /// Whether the blocks of the range stay allocated.
    pub allocated: bool,
    /// Number of freezes of the disk's buffer before it.
    pub generation: u64,
}

/// How much of a memory is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Bytes in use: of all chunks that are present.
    pub bytes: u64,
    /// Limit of `bytes`.
    pub limit: u64,
    /// Number of pages that are published.
    pub pages: u64,
    /// Number of published ranges and flags.
    pub ranges: u64,
    /// Number of present pages, ranges and flags that are not retained, because there was no room.
    pub unretained: u64,
    /// Number of pages, ranges and flags that were not retained since the memory was opened.
    pub unretained_total: u64,
}
