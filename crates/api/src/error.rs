//! Errors in the API: a closed set of kinds, each with a stable code.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The kinds of errors, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is invalid.
    BadRequest,
    /// A name of a disk, target or initiator is invalid.
    BadName,
    /// A size is invalid.
    BadSize,
    /// A LUN is out of range.
    BadLun,
    /// A CHAP user or secret is invalid.
    BadChap,
    /// An image file cannot be read or is invalid.
    BadSource,
    /// An image file on the server cannot be opened.
    SourceUnreadable,
    /// A range is beyond the end of a disk.
    OutOfRange,
    /// A range would be copied onto one that it overlaps.
    Overlap,
    /// The disk, target, LUN or ACL entry does not exist.
    NotFound,
    /// The name or number is taken.
    Exists,
    /// Clients or initiators are connected.
    InUse,
    /// A desktop is being reset after its last client disconnected.
    Resetting,
    /// Writes that the client may have had answered are lost.
    MemoryLost,
    /// The disk has clones.
    HasClones,
    /// The volume has snapshots.
    HasSnapshots,
    /// The disk is of another kind than the action requires.
    WrongKind,
    /// The disk is read-only.
    ReadOnly,
    /// The disk is mapped to a target.
    Mapped,
    /// The disk's writes are not durable, but the mapping requires it.
    Volatile,
    /// No free LUN or target number is left.
    Full,
    /// The block map of the disk is damaged.
    MapDamaged,
    /// Stored data is damaged.
    Damaged,
    /// The store failed, or the pool cannot be opened.
    Store,
    /// The target table cannot be read.
    Unreadable,
    /// A defect of the server.
    Internal,
    /// The server could not be upgraded.
    UpgradeFailed,
    /// The pool could not be handed over.
    HandoverFailed,
    /// No standby waits for the pool.
    NoStandby,
    /// The server is not certain to own the pool.
    NotOwner,
    /// An image file cannot be downloaded.
    FetchFailed,
    /// The server is shutting down.
    Closed,
    /// Another process is taking the server's place. Nothing was changed; it will serve the request.
    Upgrading,
    /// The pool stopped after a failed write.
    Latched,
    /// Another server has opened the pool.
    Fenced,
    /// An import was cancelled.
    Cancelled,
    /// The resource is in a state in which this is not possible.
    BadState,
    /// The store is full, or the quota of a tenant is used up.
    NoSpace,
}

impl ErrorKind {
    /// The stable code for programs, such as `not_found`.
    pub fn code(self) -> &'static str {
        match self {
            ErrorKind::BadRequest => "bad_request",
            ErrorKind::BadName => "bad_name",
            ErrorKind::BadSize => "bad_size",
            ErrorKind::BadLun => "bad_lun",
            ErrorKind::BadChap => "bad_chap",
            ErrorKind::BadSource => "bad_source",
            ErrorKind::SourceUnreadable => "source_unreadable",
            ErrorKind::OutOfRange => "out_of_range",
            ErrorKind::Overlap => "overlap",
            ErrorKind::NotFound => "not_found",
            ErrorKind::Exists => "exists",
            ErrorKind::InUse => "in_use",
            ErrorKind::Resetting => "resetting",
            ErrorKind::MemoryLost => "memory_lost",
            ErrorKind::HasClones => "has_clones",
            ErrorKind::HasSnapshots => "has_snapshots",
            ErrorKind::WrongKind => "wrong_kind",
            ErrorKind::ReadOnly => "read_only",
            ErrorKind::Mapped => "mapped",
            ErrorKind::Volatile => "volatile",
            ErrorKind::Full => "full",
            ErrorKind::MapDamaged => "map_damaged",
            ErrorKind::Damaged => "damaged",
            ErrorKind::Store => "store",
            ErrorKind::Unreadable => "unreadable",
            ErrorKind::Internal => "internal",
            ErrorKind::UpgradeFailed => "upgrade_failed",
            ErrorKind::HandoverFailed => "handover_failed",
            ErrorKind::NoStandby => "no_standby",
            ErrorKind::NotOwner => "not_owner",
            ErrorKind::FetchFailed => "fetch_failed",
            ErrorKind::Closed => "closed",
            ErrorKind::Upgrading => "upgrading",
            ErrorKind::Latched => "latched",
            ErrorKind::Fenced => "fenced",
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::BadState => "bad_state",
            ErrorKind::NoSpace => "no_space",
        }
    }
}

/// Code and message of an error in a streamed response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// Stable code, such as `not_found`.
    pub code: String,
    /// Message for the user.
    pub message: String,
}

/// The body of an error (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"type": "urn:forebay:problem:not_found", "title": "Not found", "status": 404,
    "detail": "no volume, snapshot or image is named 'web'", "code": "not_found",
    "remedy": "check the name; the lists of volumes, images and targets have all names"}))]
pub struct Problem {
    /// URI of the kind of problem: `urn:forebay:problem:` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind of problem, in a few words.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// What happened, for the user.
    pub detail: String,
    /// Stable code for programs, such as `not_found`.
    pub code: String,
    /// What to do about this kind of problem.
    pub remedy: String,
}
