//! Why an import fails.

use std::io;

use axum::http::StatusCode;

use crate::control::ControlError;

/// Result of reading an image file.
pub type Result<T> = std::result::Result<T, ImportError>;

/// Why an import fails, in one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be opened.
    #[error("cannot open {path}: {error}")]
    Open {
        /// The file.
        path: String,
        /// What the system said.
        error: io::Error,
    },
    /// It is something that cannot be imported.
    #[error("{path} is {what}; give a file or a block device")]
    NotAFile {
        /// The path.
        path: String,
        /// What it is, with its article.
        what: &'static str,
    },
    /// The path does not begin at the root.
    #[error("'{0}' is not an absolute path")]
    RelativePath(String),
    /// Reading failed.
    #[error("cannot read {path} at byte {offset}: {error}")]
    Read {
        /// The file.
        path: String,
        /// Where.
        offset: u64,
        /// What the system said.
        error: io::Error,
    },
    /// The file ends where it should not.
    #[error("{path} is cut short: it has {len} bytes, and byte {offset} is needed; copy it again")]
    Truncated {
        /// The file.
        path: String,
        /// Its length.
        len: u64,
        /// What was to be read.
        offset: u64,
    },
    /// The file contradicts its format.
    #[error("{path} is damaged: {what}; check it with 'qemu-img check', or copy it again")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong.
        what: &'static str,
    },
    /// The file uses what is not read here.
    #[error("{path} {what}; convert it first: qemu-img convert -O qcow2 {path} NEW")]
    Unsupported {
        /// The file.
        path: String,
        /// What it is or has, as the rest of a sentence.
        what: &'static str,
    },
    /// The file is packed.
    #[error("{path} is {what}: unpack it first (or say --format raw if it is a disk all the same)")]
    Packed {
        /// The file.
        path: String,
        /// What it is, with its article.
        what: &'static str,
    },
    /// The file holds a disk of no size.
    #[error("{0} is empty; there is nothing to import")]
    Empty(String),
    /// A URL that cannot be used.
    #[error("'{0}' is not a URL that can be fetched; use http:// or https://")]
    BadUrl(String),
    /// The download failed.
    #[error("cannot fetch {url}: {reason}")]
    Fetch {
        /// What was fetched.
        url: String,
        /// What went wrong.
        reason: String,
    },
    /// A downloaded file cannot be kept.
    #[error("cannot keep the download in {path}: {error}")]
    Spool {
        /// The directory.
        path: String,
        /// What the system said.
        error: io::Error,
    },
    /// Whoever wanted the import has gone, or the server stops.
    #[error("the import was interrupted; nothing of it is left")]
    Cancelled,
    /// The pool refused.
    #[error(transparent)]
    Pool(#[from] forebay_engine::Error),
    /// A defect of the server itself.
    #[error("the import failed: {0}; see the server's log")]
    Internal(&'static str),
}

impl From<ImportError> for ControlError {
    fn from(e: ImportError) -> ControlError {
        use ImportError as E;
        let (status, code) = match e {
            E::Pool(e) => return e.into(),
            E::Cancelled => (StatusCode::SERVICE_UNAVAILABLE, "cancelled"),
            E::Internal(_) => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
            E::Spool { .. } => (StatusCode::INSUFFICIENT_STORAGE, "no_space"),
            E::Fetch { .. } => (StatusCode::BAD_GATEWAY, "fetch_failed"),
            _ => (StatusCode::BAD_REQUEST, "bad_source"),
        };
        ControlError::new(status, code, e.to_string())
    }
}
