//! Errors of a store.

use forebay_format::SegmentId;

/// Result of a store operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Errors of a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No space is left.
    #[error("the store is full")]
    Full,
    /// Another process has the store open.
    #[error("the store is in use by another process{0}")]
    Busy(String),
    /// The object does not exist.
    #[error("object {0} does not exist")]
    NotFound(SegmentId),
    /// The store cannot be written to.
    #[error("the store is read-only")]
    ReadOnly,
    /// The directory contains files other than those of a store.
    #[error("{0:?} contains other files and no pool; use an empty directory, or the directory of a pool")]
    NotAStore(std::path::PathBuf),
    /// The superblock is not the expected superblock: another server has opened the pool.
    #[error("the superblock was changed by another server; this one has lost the pool")]
    Fenced,
    /// An append takes longer than it should: see [`Store::overdue`](crate::Store::overdue). No operation of
    /// a store returns this error.
    #[error("an object of the store does not answer")]
    Overdue,
    /// Another error of the operating system.
    #[error("{what}: {reason}")]
    Io {
        /// Text that names the operation and its object.
        what: String,
        /// The error text of the system.
        reason: String,
        /// The errno of the error, or 0 if it has none.
        errno: i32,
    },
}

impl StoreError {
    /// Whether an error of a read may concern only the requested range: the medium or the file system reports
    /// that it cannot read these bytes (Linux: `blk_errors` in block/blk-core.c). All other errors concern
    /// the store, its path or this host.
    pub fn concerns_one_place(&self) -> bool {
        const RANGE_ERRORS: [i32; 6] = [
            libc::EIO,
            // Reported by block devices: a medium error, a failed command, wrong protection information.
            libc::ENODATA,
            libc::EREMOTEIO,
            libc::EILSEQ,
            // Reported by file systems for a wrong checksum.
            libc::EBADMSG,
            libc::EUCLEAN,
        ];
        matches!(self, StoreError::Io { errno, .. } if RANGE_ERRORS.contains(errno))
    }
}

/// The error of an operation after whose failure the state of the store is unknown. Lack of space is then as
/// permanent as any other failure, and is not reported as [`StoreError::Full`].
pub fn for_good(e: StoreError, what: &str) -> StoreError {
    match e {
        StoreError::Full => StoreError::Io {
            what: what.to_owned(),
            reason: "no space left on the store".to_owned(),
            errno: libc::ENOSPC,
        },
        other => other,
    }
}

/// The error of an operation on an object after an earlier append or sync of the object failed: no later
/// operation on it may succeed.
pub(crate) fn failed_before(what: impl FnOnce() -> String) -> StoreError {
    let reason = "an earlier write or sync of it failed, so the state of its last bytes is unknown".into();
    StoreError::Io { what: what(), reason, errno: libc::EIO }
}
