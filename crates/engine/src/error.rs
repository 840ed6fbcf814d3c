//! What can go wrong, and what each front end says of it: the one table of error codes.

use forebay_format::FormatError;
use forebay_store::StoreError;

/// Result of an engine operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed. The text is what a user reads: what happened, and what to do.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A write to an image or a snapshot.
    #[error("{0} is read-only; clone it to get a disk that can be written")]
    ReadOnly(String),
    /// A request beyond the end of the disk.
    #[error("request goes beyond the end of the disk")]
    OutOfRange,
    /// A range was to be copied onto one that it overlaps.
    #[error("a range of a disk cannot be copied onto one that it overlaps")]
    Overlap,
    /// The store is full.
    #[error("the store is full: delete disks or snapshots, or add room")]
    NoSpace,
    /// Stored bytes are damaged; they were not handed out.
    #[error("damaged data on the store at {0}; run 'forebay check'")]
    Damaged(String),
    /// The contents of a disk are not copied, since its block map is damaged.
    #[error(
        "the block map of '{0}' is damaged, so it is not copied: 'forebay check' says where; overwrite or discard that \
         range and run 'forebay gc', roll it back, reset it, or remove it"
    )]
    MapDamaged(String),
    /// A reclaiming has kept all that disks may need of which it could not read everything.
    #[error(
        "freed {freed_bytes} bytes; what is older than the damage in the block map of {disks} is kept as long as \
         that is there: remove it, reset it or roll it back, then reclaim again"
    )]
    MapsDamaged {
        /// The disks.
        disks: String,
        /// What could be freed all the same.
        freed_bytes: u64,
    },
    /// A write or sync failed earlier; nothing is acknowledged any more.
    #[error("the pool stopped after a failed write ({0}); repair the store and restart the server")]
    Latched(String),
    /// The pool is closed or closing.
    #[error("the pool is shutting down")]
    Closed,
    /// No disk has this name.
    #[error("no volume, snapshot or image is named '{0}'")]
    NotFound(String),
    /// The name is taken.
    #[error("'{0}' exists already; choose another name or remove it first")]
    Exists(String),
    /// Clients are connected to it.
    #[error("'{name}' is in use by {clients} connection(s); disconnect them first")]
    InUse {
        /// The disk.
        name: String,
        /// How many handles are open.
        clients: usize,
    },
    /// A desktop still holds what its last client wrote.
    #[error("'{0}' is being reset and cannot be attached yet; try again in a moment")]
    Resetting(String),
    /// Clones depend on it.
    #[error("'{name}' has {clones} clone(s), '{example}' among them; remove them first")]
    HasClones {
        /// The image or snapshot.
        name: String,
        /// How many.
        clones: usize,
        /// One of them.
        example: String,
    },
    /// Snapshots depend on it.
    #[error("'{name}' has {snapshots} snapshot(s); remove them first")]
    HasSnapshots {
        /// The volume.
        name: String,
        /// How many.
        snapshots: usize,
    },
    /// The operation needs another kind of disk.
    #[error("'{name}' is {is}; this needs {needs}")]
    WrongKind {
        /// The disk.
        name: String,
        /// What it is, with its article.
        is: &'static str,
        /// What the operation needs, with its article.
        needs: &'static str,
    },
    /// A name that cannot be one.
    #[error("'{name}' is not a usable name: {why}")]
    BadName {
        /// The name, shortened.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A size that cannot be one.
    #[error("{size} bytes is not a usable size: {why}")]
    BadSize {
        /// The size.
        size: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The directory or device does not hold a pool.
    #[error("no pool here: {0}")]
    NoPool(String),
    /// The log is damaged in front of flushed writes; nothing of it was served.
    #[error("{0}; 'forebay recover' says what would be lost; nothing was changed")]
    LogDamaged(Box<crate::LogDamage>),
    /// A loss was accepted that is not the one that there is.
    #[error("{0}; run 'forebay recover' without --accept-loss, and read its report")]
    OtherLoss(String),
    /// A structure of the pool is damaged or foreign.
    #[error("cannot open the pool: {0}")]
    Format(#[from] FormatError),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

impl From<StoreError> for Error {
    fn from(e: StoreError) -> Error {
        match e {
            StoreError::Full => Error::NoSpace,
            other => Error::Store(other),
        }
    }
}

impl Error {
    /// The errno that stands for this error; NBD uses the same numbers (NBD protocol, "Error values").
    pub fn errno(&self) -> u32 {
        const EPERM: u32 = 1;
        const ENOENT: u32 = 2;
        const EIO: u32 = 5;
        const EBUSY: u32 = 16;
        const EEXIST: u32 = 17;
        const EINVAL: u32 = 22;
        const ENOSPC: u32 = 28;
        const ESHUTDOWN: u32 = 108;
        match self {
            Error::ReadOnly(_) => EPERM,
            Error::OutOfRange
            | Error::Overlap
            | Error::BadName { .. }
            | Error::BadSize { .. }
            | Error::OtherLoss(_)
            | Error::WrongKind { .. } => EINVAL,
            Error::NoSpace => ENOSPC,
            Error::Closed => ESHUTDOWN,
            Error::NotFound(_) | Error::NoPool(_) => ENOENT,
            Error::Exists(_) => EEXIST,
            Error::InUse { .. }
            | Error::Resetting(_)
            | Error::HasClones { .. }
            | Error::HasSnapshots { .. } => EBUSY,
            Error::Damaged(_)
            | Error::MapDamaged(_)
            | Error::MapsDamaged { .. }
            | Error::LogDamaged(_)
            | Error::Latched(_)
            | Error::Format(_)
            | Error::Store(_) => EIO,
        }
    }
}
