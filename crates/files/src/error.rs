//! Errors of the namespace. A front end maps them to the codes of its protocol.

/// Result of an operation on the namespace.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The directory has no such name.
    #[error("there is no file or directory of this name")]
    NoEntry,
    /// The name exists already.
    #[error("the name exists already")]
    Exists,
    /// The operation needs a directory.
    #[error("not a directory")]
    NotDirectory,
    /// The operation is not possible for a directory.
    #[error("a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// The handle refers to an object that was removed.
    #[error("the file or directory was removed")]
    Stale,
    /// The handle was not made by this namespace.
    #[error("not a handle of this namespace")]
    BadHandle,
    /// The name is too long.
    #[error("the name is longer than 255 bytes")]
    NameTooLong,
    /// The name is empty, or contains `/` or a zero byte, or is `.` or `..` where it cannot be.
    #[error("not a valid name, or not a valid argument")]
    Invalid,
    /// The user lacks the permission.
    #[error("permission denied")]
    Access,
    /// Only the owner or root can do this.
    #[error("only the owner of the file can do this")]
    NotOwner,
    /// The file would be too large.
    #[error("a file has at most {} bytes", crate::FILE_MAX)]
    TooLarge,
    /// The namespace has the maximum number of files.
    #[error("the namespace has {} files, or {} names", crate::FILES_MAX, crate::NAMES_MAX)]
    TooManyFiles,
    /// The file has the maximum number of names.
    #[error("a file has at most {} names", crate::LINKS_MAX)]
    TooManyLinks,
    /// The file has changed since the client has read its attributes.
    #[error("the file has changed in the meantime")]
    NotSync,
    /// The stored namespace is damaged.
    #[error("the namespace of files is damaged: {0}")]
    Damaged(&'static str),
    /// A request on a disk failed.
    #[error(transparent)]
    Engine(#[from] forebay_engine::Error),
}
