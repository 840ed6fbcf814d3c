//! Errors of the control plane: a closed set of kinds, each with a stable code. `http/problem.rs` maps the
//! kinds to HTTP statuses.

use forebay_api::{ErrorDetail, ErrorKind};
use forebay_cluster::ClusterError;
use forebay_engine::Error as EngineError;
use forebay_frontend::targets::TargetError;

use forebay_text::counted;

use crate::limits::LimitError;

/// Result of an operation.
pub type Result<T, E = ControlError> = std::result::Result<T, E>;

/// Why an operation failed. The message states the problem and the remedy in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ControlError {
    /// Kind of the error.
    pub kind: ErrorKind,
    /// Message for the user.
    pub message: String,
    /// A name in the message that is not in the scope of every client.
    pub foreign: Option<Box<ForeignName>>,
    /// The disk that clients have open, if that is why the operation failed.
    pub used_disk: Option<Box<str>>,
}

/// A name in an error that the request did not contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignName {
    /// The object to which the name belongs.
    pub owner: NameOwner,
    /// The message with the name left out.
    pub message: String,
}

/// What has a name that not every client may learn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameOwner {
    /// The name is that of this disk.
    Disk(String),
    /// The name is that of this tenant.
    Tenant(String),
    /// The name is that of a target.
    Target,
}

impl ControlError {
    /// Creates an error.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> ControlError {
        ControlError { kind, message: message.into(), foreign: None, used_disk: None }
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

    /// Creates the error of a server whose pool another server may have taken over.
    pub fn not_owner() -> ControlError {
        let message = "this server is not certain to own the pool: it could not renew its claim in Ceph for 3 s, and \
                       another server may have taken the pool over";
        ControlError::new(ErrorKind::NotOwner, message)
    }

    /// Whether the operation failed because clients are connected or have just disconnected.
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
            E::OtherSize { .. } => ErrorKind::BadState,
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
                message: format!("'{name}' has {}; remove the clones first", counted(*clones, "clone")),
            }),
            E::OverQuota { tenant, .. } => Some(ForeignName {
                owner: NameOwner::Tenant(tenant.clone()),
                message:
                    "the quota of the tenant of the volume is used up; discard or remove data of its volumes"
                        .to_owned(),
            }),
            _ => None,
        };
        let used_disk = match &e {
            E::InUse { name, .. } => Some(name.as_str().into()),
            _ => None,
        };
        ControlError { foreign: foreign.map(Box::new), used_disk, ..ControlError::new(kind, e.to_string()) }
    }
}

impl From<ClusterError> for ControlError {
    fn from(e: ClusterError) -> ControlError {
        use ClusterError as E;
        let kind = match &e {
            E::Exists(_) | E::Elsewhere { .. } => ErrorKind::Exists,
            E::Missing(_) => ErrorKind::NotFound,
            E::Unsettled(_) => ErrorKind::BadState,
            E::HasClones { .. } => ErrorKind::HasClones,
            E::Lost(_) => ErrorKind::NotOwner,
            E::Unknown { .. }
            | E::Unsupported
            | E::Damaged { .. }
            | E::NoCluster
            | E::Refused(_)
            | E::Ceph(_) => ErrorKind::Store,
        };
        ControlError::new(kind, e.to_string())
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
            E::Chap { .. } | E::DhChap(_) | E::NoHost(_) | E::SameSecret => ErrorKind::BadChap,
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
