//! Errors of the control plane: a closed set of kinds, each with a stable code. `api/problem.rs` maps the
//! kinds to HTTP statuses.

use forebay_engine::Error as EngineError;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::limits::LimitError;
use crate::targets::TargetError;

/// Result of a control-plane action.
pub type Result<T> = std::result::Result<T, ControlError>;

/// Why an action failed. The message states the problem and the remedy in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ControlError {
    /// The kind.
    pub kind: ErrorKind,
    /// Message for the user.
    pub message: String,
    /// A name in the message that is not in the scope of every client.
    pub foreign: Option<Box<ForeignName>>,
}

/// A name in an error that the request did not contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignName {
    /// What has the name.
    pub owner: NameOwner,
    /// The message without the name.
    pub message: String,
}

/// What has a name that not every client may learn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameOwner {
    /// This disk.
    Disk(String),
    /// This tenant.
    Tenant(String),
    /// A target.
    Target,
}

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

impl ControlError {
    /// Creates an error.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> ControlError {
        ControlError { kind, message: message.into(), foreign: None }
    }

    /// The error for a client that `sees` some disks and tenants only.
    pub fn for_client(self, sees: impl FnOnce(&NameOwner) -> bool) -> ControlError {
        match self.foreign {
            Some(foreign) if !sees(&foreign.owner) => ControlError::new(self.kind, foreign.message),
            _ => self,
        }
    }

    /// Creates the error of an invalid request.
    pub fn bad_request(message: impl Into<String>) -> ControlError {
        Self::new(ErrorKind::BadRequest, message)
    }

    /// Creates the error of a defect of the server.
    pub fn internal(message: impl Into<String>) -> ControlError {
        Self::new(ErrorKind::Internal, message)
    }

    /// Creates the error of a server that is shutting down.
    pub fn closed() -> ControlError {
        EngineError::Closed.into()
    }

    /// Creates the error of a server whose place another process is taking.
    pub fn upgrading() -> ControlError {
        let message = "another process is taking the server's place; nothing was changed, try again";
        ControlError::new(ErrorKind::Upgrading, message)
    }

    /// Creates the error of a server whose pool another one may have taken over.
    pub fn not_owner() -> ControlError {
        let message = "this server is not certain to own the pool: it could not renew its claim in Ceph for 3 s, and \
                       another server may have taken the pool over";
        ControlError::new(ErrorKind::NotOwner, message)
    }

    /// Whether the action failed because clients are connected or have just disconnected.
    pub fn is_in_use(&self) -> bool {
        matches!(self.kind, ErrorKind::InUse | ErrorKind::Resetting)
    }
}

impl From<ControlError> for ErrorDetail {
    fn from(e: ControlError) -> ErrorDetail {
        ErrorDetail { code: e.kind.code().to_owned(), message: e.message }
    }
}

impl From<EngineError> for ControlError {
    fn from(e: EngineError) -> ControlError {
        use EngineError as E;
        let kind = match &e {
            E::NotFound(_) => ErrorKind::NotFound,
            E::Exists(_) => ErrorKind::Exists,
            E::InUse { .. } => ErrorKind::InUse,
            E::Resetting(_) => ErrorKind::Resetting,
            E::MemoryLost { .. } => ErrorKind::MemoryLost,
            E::HasClones { .. } => ErrorKind::HasClones,
            E::HasSnapshots { .. } => ErrorKind::HasSnapshots,
            E::WrongKind { .. } => ErrorKind::WrongKind,
            E::ReadOnly(_) => ErrorKind::ReadOnly,
            E::BadName { .. } => ErrorKind::BadName,
            E::BadSize { .. } => ErrorKind::BadSize,
            E::OutOfRange => ErrorKind::OutOfRange,
            E::Overlap => ErrorKind::Overlap,
            E::TooManyDisks { .. } => ErrorKind::Full,
            E::NoSpace | E::OverQuota { .. } => ErrorKind::NoSpace,
            E::Closed => ErrorKind::Closed,
            E::Latched(_) => ErrorKind::Latched,
            E::Fenced => ErrorKind::Fenced,
            E::MapDamaged(_) => ErrorKind::MapDamaged,
            E::Damaged(_) | E::MapsDamaged { .. } => ErrorKind::Damaged,
            E::NoPool(_) | E::Format(_) | E::LogDamaged(_) | E::OtherLoss(_) | E::Memory(_) | E::Store(_) => {
                ErrorKind::Store
            }
        };
        let foreign = match &e {
            E::HasClones { name, clones, example } => Some(ForeignName {
                owner: NameOwner::Disk(example.clone()),
                message: format!("'{name}' has {clones} clone(s); they have to be removed first"),
            }),
            E::OverQuota { tenant, .. } => Some(ForeignName {
                owner: NameOwner::Tenant(tenant.clone()),
                message:
                    "the quota of the tenant of the volume is used up; discard or remove data of its volumes"
                        .to_owned(),
            }),
            _ => None,
        };
        ControlError { foreign: foreign.map(Box::new), ..ControlError::new(kind, e.to_string()) }
    }
}

impl From<LimitError> for ControlError {
    fn from(e: LimitError) -> ControlError {
        match e {
            LimitError::Bad(why) => ControlError::bad_request(why),
            LimitError::Unreadable(_) => ControlError::new(ErrorKind::Unreadable, e.to_string()),
            LimitError::Pool(e) => e.into(),
        }
    }
}

impl From<TargetError> for ControlError {
    fn from(e: TargetError) -> ControlError {
        use TargetError as E;
        let kind = match &e {
            E::Pool(e) => return e.clone().into(),
            E::NoTarget(_) | E::NoLun { .. } | E::NoInitiator { .. } => ErrorKind::NotFound,
            E::Exists(_) | E::LunTaken { .. } | E::InitiatorTwice(_) => ErrorKind::Exists,
            E::InUse { .. } => ErrorKind::InUse,
            E::Mapped { .. } => ErrorKind::Mapped,
            E::Volatile(_) => ErrorKind::Volatile,
            E::NoNumber | E::Full(_) => ErrorKind::Full,
            E::Name(_) => ErrorKind::BadName,
            E::HighLun(_) => ErrorKind::BadLun,
            E::Chap { .. } | E::SameSecret => ErrorKind::BadChap,
            E::Unreadable(_) => ErrorKind::Unreadable,
        };
        let foreign = match &e {
            E::Mapped { disk, .. } => Some(ForeignName {
                owner: NameOwner::Target,
                message: format!(
                    "'{disk}' is mapped to an iSCSI target; an administrator has to unmap it first"
                ),
            }),
            _ => None,
        };
        ControlError { foreign: foreign.map(Box::new), ..ControlError::new(kind, e.to_string()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_names_its_tenant_only_to_clients_that_see_it() {
        let over = || ControlError::from(EngineError::OverQuota { tenant: "T9".to_owned(), bytes: 1 << 20 });
        let owner = NameOwner::Tenant("T9".to_owned());
        let shown = over().for_client(|name| *name == owner);
        assert!(shown.message.contains("'T9' (1048576 bytes)"), "{shown}");
        let hidden = over().for_client(|name| *name != owner);
        assert!(!hidden.message.contains("T9") && !hidden.message.contains("1048576"), "{hidden}");
        assert_eq!((hidden.kind, hidden.foreign), (ErrorKind::NoSpace, None));
    }
}
