//! Why an import fails.

use std::io;

use crate::control::{ControlError, ErrorKind};

/// Result of reading an image file.
pub type Result<T> = std::result::Result<T, ImportError>;

/// Why an import fails. Each message is one line that also states the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be opened.
    #[error("cannot open {path}: {error}")]
    Open {
        /// The file.
        path: String,
        /// The operating system's error.
        error: io::Error,
    },
    /// The path is neither a regular file nor a block device.
    #[error("{path} is {what}; use a regular file or a block device")]
    NotAFile {
        /// The path.
        path: String,
        /// The type of the file, with its article.
        what: &'static str,
    },
    /// The path is relative.
    #[error("'{0}' is not an absolute path")]
    RelativePath(String),
    /// Reading failed.
    #[error("cannot read {path} at byte {offset}: {error}")]
    Read {
        /// The file.
        path: String,
        /// The offset.
        offset: u64,
        /// The operating system's error.
        error: io::Error,
    },
    /// The file is shorter than its structures require.
    #[error("{path} is truncated: it has {len} bytes, and at least {needed} are needed; copy it again")]
    Truncated {
        /// The file.
        path: String,
        /// The length of the file.
        len: u64,
        /// The end of the range that was to be read.
        needed: u64,
    },
    /// The file violates its format.
    #[error("{path} is damaged: {what}; check it with 'qemu-img check', or copy it again")]
    Damaged {
        /// The file.
        path: String,
        /// The damage.
        what: &'static str,
    },
    /// The file uses a feature or a format that is not supported.
    #[error("{path} {what}; convert it first: qemu-img convert -O qcow2 {path} NEW")]
    Unsupported {
        /// The file.
        path: String,
        /// The feature or format, as the predicate of a sentence.
        what: &'static str,
    },
    /// The file is an archive.
    #[error("{path} is {what}; unpack it first (or use --format raw if it is a raw disk)")]
    Archive {
        /// The file.
        path: String,
        /// The type of the archive, with its article.
        what: &'static str,
    },
    /// The file or the disk in it is empty.
    #[error("{0} is empty; there is nothing to import")]
    Empty(String),
    /// The scheme of the URL is not supported.
    #[error("'{0}' is not a supported URL; use http:// or https://")]
    BadUrl(String),
    /// The download failed.
    #[error("cannot fetch {url}: {reason}")]
    Fetch {
        /// The URL.
        url: String,
        /// The cause.
        reason: String,
    },
    /// The downloaded data cannot be stored.
    #[error("cannot store the download in {path}: {error}")]
    Spool {
        /// The directory.
        path: String,
        /// The operating system's error.
        error: io::Error,
    },
    /// The client disconnected, or the server is stopping.
    #[error("the import was interrupted and rolled back")]
    Cancelled,
    /// The pool returned an error.
    #[error(transparent)]
    Pool(#[from] forebay_engine::Error),
    /// A defect of the server.
    #[error("the import failed: {0}; see the server's log")]
    Internal(&'static str),
}

impl From<ImportError> for ControlError {
    fn from(e: ImportError) -> ControlError {
        use ImportError as E;
        let kind = match e {
            E::Pool(e) => return e.into(),
            E::Cancelled => ErrorKind::Cancelled,
            E::Internal(_) => ErrorKind::Internal,
            E::Spool { .. } => ErrorKind::NoSpace,
            E::Fetch { .. } => ErrorKind::FetchFailed,
            E::Open { .. }
            | E::NotAFile { .. }
            | E::RelativePath(_)
            | E::Read { .. }
            | E::Truncated { .. }
            | E::Damaged { .. }
            | E::Unsupported { .. }
            | E::Archive { .. }
            | E::Empty(_)
            | E::BadUrl(_) => ErrorKind::BadSource,
        };
        ControlError::new(kind, e.to_string())
    }
}
