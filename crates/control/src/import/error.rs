//! Why an import fails.

use std::io;

use forebay_api::ErrorKind;
use forebay_api::import::Format;
use forebay_text::Size;

use crate::operations::ControlError;

/// Result of reading an image file.
pub type Result<T> = std::result::Result<T, ImportError>;

/// What a user can do about a file that cannot be imported. The tests run each command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Convert the file with `qemu-img`, in which its format has this name.
    Convert {
        /// Name of the format for `qemu-img`.
        from: &'static str,
    },
    /// Repair the file with `qemu-img`.
    Repair,
    /// Import the file as it is, if it is a raw disk.
    UseRaw,
    /// Something that is not done by one command.
    Say(&'static str),
}

impl Remedy {
    /// The remedy; `file` is the file as a word of a shell.
    fn text(self, file: &str) -> String {
        match self {
            Remedy::Convert { from } => {
                format!("convert it first: qemu-img convert -f {from} -O qcow2 {file} NEW.qcow2")
            }
            Remedy::Repair => format!("keep a copy, and repair it: qemu-img check -r all {file}"),
            Remedy::UseRaw => "if it is a raw disk, import it with --format raw".to_owned(),
            Remedy::Say(text) => text.to_owned(),
        }
    }
}

/// Why an import fails. Each message is one line that also states the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The image file cannot be opened.
    #[error("cannot open {path}: {error}")]
    Open {
        /// Path of the file.
        path: String,
        /// The error that the operating system reported.
        error: io::Error,
    },
    /// The server finds no file at the path.
    #[error("cannot open {path}: there is no such file as the server sees the file system{view}")]
    Missing {
        /// Path of the file.
        path: String,
        /// How the server's view differs from the view of clients, if a difference is known.
        view: &'static str,
    },
    /// An extent of a disk in several files cannot be opened.
    #[error("an extent of the disk is not readable: {0}; make it readable for the user of the server")]
    Extent(Box<ImportError>),
    /// The path is neither a regular file nor a block device.
    #[error("{path} is {what}; use a regular file or a block device")]
    NotAFile {
        /// Path that was given.
        path: String,
        /// The type of the file, with its article.
        what: &'static str,
    },
    /// The path is relative, and the server needs an absolute path.
    #[error("'{0}' is not an absolute path")]
    RelativePath(String),
    /// Reading the image file failed.
    #[error("cannot read {path} at byte {offset}: {error}")]
    Read {
        /// Path of the file.
        path: String,
        /// Offset of the read in bytes.
        offset: u64,
        /// The error that the operating system reported.
        error: io::Error,
    },
    /// The file is shorter than its structures require.
    #[error("{path} is truncated: it has {len} bytes, and at least {needed} are needed; copy it again")]
    Truncated {
        /// Path of the file.
        path: String,
        /// The length of the file.
        len: u64,
        /// The end of the range that was to be read.
        needed: u64,
    },
    /// The image file violates its format.
    #[error("{path} is damaged: {what}; copy it again from its source")]
    Damaged {
        /// Path of the file.
        path: String,
        /// What is damaged in the image file.
        what: &'static str,
    },
    /// The file uses a feature or a format that is not supported.
    #[error("{path} {what}; {}", .remedy.text(.file))]
    Unsupported {
        /// Path of the file.
        path: String,
        /// The feature or format, as the predicate of a sentence.
        what: &'static str,
        /// What the user can do.
        remedy: Remedy,
        /// Path of the file as a word of a shell.
        file: String,
    },
    /// The disk has sectors that are not served.
    #[error(
        "{path} is a disk with sectors of 4096 bytes, and disks are served with sectors of 512 bytes, with which guests \
         find no partition of it; copy its file systems to a disk with sectors of 512 bytes, or, for clients that set \
         the sector size themselves, import it with --format {format}"
    )]
    LargeSectors {
        /// Path of the file.
        path: String,
        /// The format of the file.
        format: Format,
    },
    /// The file is an archive.
    #[error("{path} is {what}; unpack it first (if it is a raw disk, import it with --format raw)")]
    Archive {
        /// Path of the file.
        path: String,
        /// The type of the archive, with its article.
        what: &'static str,
    },
    /// An archive has several disks, or not the one that was chosen.
    #[error("{path} has {}; choose one with --disk NUMBER or --disk NAME: {list}", described(wanted.as_deref(), *count))]
    Disks {
        /// Path of the archive.
        path: String,
        /// The disk that was chosen, if any.
        wanted: Option<String>,
        /// Number of disks.
        count: usize,
        /// Number, file and id of each disk.
        list: String,
    },
    /// A disk was chosen in a file that is no archive.
    #[error("{0} has only one disk; --disk chooses one of an OVA")]
    OneDisk(String),
    /// The file or the disk in it is empty.
    #[error("{0} is empty; there is nothing to import")]
    Empty(String),
    /// The scheme of the URL is not supported.
    #[error("'{0}' is not a supported URL; use http://HOST/PATH or https://HOST/PATH")]
    BadUrl(String),
    /// The download of the image failed.
    #[error("cannot fetch {url}: {reason}")]
    Fetch {
        /// The URL of the file.
        url: String,
        /// Why the download failed.
        reason: String,
    },
    /// A compressed file cannot be decompressed.
    #[error("cannot decompress {path}: {reason}")]
    Unpack {
        /// The file.
        path: String,
        /// The cause, and what to do.
        reason: String,
    },
    /// The file that is received or decompressed would take room that the pool or other programs need.
    #[error(
        "the {work} was stopped, since {path} has only {free} left and {keep} are kept free for writes; make room, or \
         put the file on another file system and import it uncompressed from there"
    )]
    NoRoom {
        /// What was stopped, as a noun without its article.
        work: String,
        /// The directory.
        path: String,
        /// Free room of the directory's file system.
        free: Size,
        /// Room that imports leave free.
        keep: Size,
    },
    /// Data that was received or decompressed cannot be stored.
    #[error("cannot store the file in {path}: {error}")]
    Spool {
        /// Directory to which the file is downloaded.
        path: String,
        /// The error that the operating system reported.
        error: io::Error,
    },
    /// The client disconnected, or the server is stopping.
    #[error("the import was interrupted and rolled back")]
    Cancelled,
    /// The pool returned an error during the import.
    #[error(transparent)]
    Pool(#[from] forebay_engine::Error),
    /// The server has a defect.
    #[error("the import failed: {0}; see the server's log")]
    Internal(&'static str),
}

/// Why no disk of an archive is imported.
fn described(wanted: Option<&str>, count: usize) -> String {
    match wanted {
        Some(wanted) => format!("no disk {}", forebay_text::quoted(wanted)),
        None => format!("{count} disks"),
    }
}

impl From<ImportError> for ControlError {
    fn from(e: ImportError) -> ControlError {
        use ImportError as E;
        let kind = match e {
            E::Pool(e) => return e.into(),
            E::Cancelled => ErrorKind::Cancelled,
            E::Internal(_) => ErrorKind::Internal,
            E::Spool { .. } | E::NoRoom { .. } => ErrorKind::NoSpace,
            E::Fetch { .. } => ErrorKind::FetchFailed,
            E::Open { .. } | E::Missing { .. } => ErrorKind::SourceUnreadable,
            E::LargeSectors { .. }
            | E::Extent(_)
            | E::NotAFile { .. }
            | E::RelativePath(_)
            | E::Read { .. }
            | E::Truncated { .. }
            | E::Damaged { .. }
            | E::Unsupported { .. }
            | E::Archive { .. }
            | E::Disks { .. }
            | E::OneDisk(_)
            | E::Unpack { .. }
            | E::Empty(_)
            | E::BadUrl(_) => ErrorKind::BadSource,
        };
        ControlError::new(kind, e.to_string())
    }
}
