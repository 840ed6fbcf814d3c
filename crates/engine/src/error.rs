//! Errors of the engine. Each front end has a table that maps these errors to the codes of its protocol.

use forebay_format::FormatError;
use forebay_store::StoreError;

use crate::text::plural;

/// Result of an engine operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed. The text is shown to the user: it states the cause and the remedy.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// An image or a snapshot cannot be written.
    #[error("{0} is read-only; clone it to get a writable disk")]
    ReadOnly(String),
    /// A request beyond the end of the disk.
    #[error("request goes beyond the end of the disk")]
    OutOfRange,
    /// Source and destination of a copy within a disk overlap.
    #[error("a range of a disk cannot be copied to a range that overlaps it")]
    Overlap,
    /// The store is full.
    #[error("the store is full; delete disks or snapshots, or add capacity")]
    NoSpace,
    /// The quota of a tenant is used up.
    #[error(
        "the quota of tenant '{tenant}' ({bytes} bytes) is used up; discard or remove data of its volumes, or \
         raise it with 'forebay tenant limit {tenant} --quota'"
    )]
    OverQuota {
        /// Name of the tenant.
        tenant: String,
        /// Quota of the tenant in bytes.
        bytes: u64,
    },
    /// The pool has the maximum number of disks.
    #[error("the pool can have {most} disks, snapshots and images included; remove some first")]
    TooManyDisks {
        /// The maximum number of disks.
        most: usize,
    },
    /// Stored bytes are damaged; they were not returned.
    #[error("damaged data on the store at {0}; run 'forebay check'")]
    Damaged(String),
    /// The contents of a disk are not copied because its block map is damaged.
    #[error(
        "the block map of '{0}' is damaged, so it cannot be copied; 'forebay check' shows where; overwrite or \
         discard that range and run 'forebay gc', roll it back, reset it, or remove it"
    )]
    MapDamaged(String),
    /// A reclaim kept all data that partly unreadable disks may need.
    #[error(
        "freed {freed_bytes} bytes; data older than the damage in the block map of {disks} is kept as long as \
         the damage exists: remove, reset or roll back the disk, then run 'forebay gc' again"
    )]
    MapsDamaged {
        /// Names of the unreadable disks.
        disks: String,
        /// Bytes that were freed nevertheless.
        freed_bytes: u64,
    },
    /// A write or sync failed earlier; nothing is acknowledged any more.
    #[error("the pool stopped after a failed write ({0}); repair the store and restart the server")]
    Latched(String),
    /// Another server has opened the pool. Front ends cut their connections without an answer, so that
    /// clients look for that server.
    #[error("another server has opened the pool, so this one has lost it and serves nothing any more")]
    Fenced,
    /// The pool is closed or closing.
    #[error("the pool is shutting down")]
    Closed,
    /// No disk has this name.
    #[error("no volume, snapshot or image is named '{0}'")]
    NotFound(String),
    /// A disk with this name exists already.
    #[error("'{0}' exists already; choose another name or remove it first")]
    Exists(String),
    /// Clients are connected to it.
    #[error("'{name}' is in use by {clients} client{}", plural(*clients))]
    InUse {
        /// Name of the disk.
        name: String,
        /// Number of clients; at least 1, also if something else has the disk open.
        clients: usize,
    },
    /// A desktop still holds data of its last client.
    #[error("'{0}' is being reset and cannot be attached yet; try again in a moment")]
    Resetting(String),
    /// Writes that a client may have had answered are lost.
    #[error(
        "writes to '{name}' that were answered are lost with the memory that held them; stop its clients, then \
         run 'forebay volume {remedy} {name}'"
    )]
    MemoryLost {
        /// Name of the disk.
        name: String,
        /// The command that admits clients again: `resume`, or `reset` for a desktop.
        remedy: &'static str,
    },
    /// Clones depend on it.
    #[error("'{name}' has {clones} clone{}, '{example}' among them; remove them first", plural(*clones))]
    HasClones {
        /// Name of the image or snapshot.
        name: String,
        /// Number of clones that the disk has.
        clones: usize,
        /// Name of one of the clones.
        example: String,
    },
    /// Snapshots depend on it.
    #[error("'{name}' has {snapshots} snapshot{}; remove them first", plural(*snapshots))]
    HasSnapshots {
        /// Name of the volume.
        name: String,
        /// Number of snapshots that the disk has.
        snapshots: usize,
    },
    /// The operation needs another kind of disk.
    #[error("'{name}' is {is}; this needs {needs}")]
    WrongKind {
        /// Name of the disk.
        name: String,
        /// The actual kind of the disk, with an article.
        is: &'static str,
        /// The kind of disk that the operation needs, with an article.
        needs: &'static str,
    },
    /// The name of a disk is invalid.
    #[error("'{name}' is not a usable name: {why}")]
    BadName {
        /// The invalid name, shortened.
        name: String,
        /// Why the name is invalid.
        why: &'static str,
    },
    /// The size of a disk is invalid.
    #[error("{size} bytes is not a usable size: {why}")]
    BadSize {
        /// The invalid size in bytes.
        size: u64,
        /// Why the size is invalid.
        why: &'static str,
    },
    /// The size of the volume is not the size that the caller expected before a resize.
    #[error("'{name}' has {size} bytes now, because it was resized in the meantime; nothing was changed")]
    OtherSize {
        /// Name of the volume.
        name: String,
        /// Actual size of the volume in bytes.
        size: u64,
    },
    /// The directory or device does not hold a pool.
    #[error("no pool here: {0}")]
    NoPool(String),
    /// The log is damaged at a position before flushed writes; no data was served.
    #[error("{0}; run 'forebay recover' to see which writes would be lost; nothing was changed")]
    LogDamaged(Box<crate::log_damage::LogDamage>),
    /// The administrator accepted a loss that does not match the existing damage.
    #[error("{0}; run 'forebay recover' without --accept-loss, and read its report")]
    OtherLoss(String),
    /// A structure of the pool is damaged or foreign.
    #[error("cannot open the pool: {0}")]
    Format(#[from] FormatError),
    /// The retained memory, for writes that are not in the log yet, cannot be used.
    #[error("cannot use the retained memory: {0}")]
    Memory(String),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

impl From<StoreError> for Error {
    fn from(e: StoreError) -> Error {
        match e {
            StoreError::Full => Error::NoSpace,
            StoreError::Fenced => Error::Fenced,
            other => Error::Store(other),
        }
    }
}
