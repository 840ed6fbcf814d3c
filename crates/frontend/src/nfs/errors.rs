//! Reasons why a connection ends, and the statuses of failures.

use forebay_files::Error;
use forebay_wire::nfs::{Status, mount};
use forebay_wire::rpc::RecordError;

use crate::plane::Cut;

/// Why a connection ended, unless the client ended it.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("connection lost: {0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Record(#[from] RecordError),
    #[error("{0}")]
    Cut(#[from] Cut),
    #[error("no rule permits clients of {0}")]
    Refused(std::net::IpAddr),
    #[error("{0}")]
    Ended(&'static str),
}

/// Whether a failure is that of a server that has to leave: the call is not answered, so that the client
/// repeats it.
pub(super) fn is_leaving(error: &Error) -> bool {
    matches!(error, Error::Engine(forebay_engine::Error::Closed | forebay_engine::Error::Fenced))
}

/// The only table of the statuses for errors of the namespace.
pub(super) fn status_of(error: &Error) -> Status {
    match error {
        Error::NoEntry => Status::NoEntry,
        Error::Exists => Status::Exists,
        Error::NotDirectory => Status::NotDirectory,
        Error::IsDirectory => Status::IsDirectory,
        Error::NotEmpty => Status::NotEmpty,
        Error::Stale => Status::Stale,
        Error::BadHandle => Status::BadHandle,
        Error::NameTooLong => Status::NameTooLong,
        Error::Invalid => Status::Invalid,
        Error::Access => Status::Access,
        Error::NotOwner => Status::Perm,
        Error::TooLarge => Status::TooBig,
        Error::TooManyFiles => Status::NoSpace,
        Error::TooManyLinks => Status::TooManyLinks,
        Error::NotSync => Status::NotSync,
        Error::Damaged(_) => Status::Io,
        Error::Engine(error) => match error {
            forebay_engine::Error::NoSpace => Status::NoSpace,
            forebay_engine::Error::OverQuota { .. } => Status::Quota,
            _ => Status::Io,
        },
    }
}

/// The status of a refused mount.
pub(super) fn refused_of(error: &Error) -> mount::Refused {
    match error {
        Error::NoEntry => mount::Refused::NoEntry,
        Error::NotDirectory => mount::Refused::NotDirectory,
        Error::NameTooLong => mount::Refused::NameTooLong,
        Error::Access => mount::Refused::Access,
        _ => mount::Refused::Io,
    }
}
