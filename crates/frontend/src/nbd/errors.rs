//! Errors of a connection, and the only table of the NBD codes for engine errors.

use std::io;

use forebay_engine::Error;
use forebay_text::{quoted, shorten};
use forebay_wire::nbd::{ErrorCode, ProtocolError, REP_ERR_POLICY, REP_ERR_SHUTDOWN, REP_ERR_UNKNOWN};

use super::attachments::StillUnderWay;
use super::handshake::HandshakeError;
use crate::plane::Cut;

/// Maximum length of the name of an export in an error, in bytes.
const MAX_NAME: usize = 128;

/// Why a connection ended, unless the client ended it.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("connection lost: {0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    #[error(transparent)]
    Tls(#[from] HandshakeError),
    #[error("the client sent plain text after STARTTLS")]
    ClearAfterStartTls,
    #[error(transparent)]
    Negotiation(#[from] Cut),
    #[error("not enough memory for a long option")]
    NoMemory,
    #[error("the client sent too many options")]
    TooManyOptions,
    #[error(transparent)]
    Fenced(#[from] Fenced),
    #[error("an administrator disconnected the client, whose requests did not end in time")]
    Disconnected,
    #[error("export {} was refused: {why}", quoted(&shorten(name, MAX_NAME)))]
    ExportName { name: String, why: String },
}

/// This server has lost the pool. The connection is cut without an answer, so that the client looks for the
/// next server; an error would become an I/O error of its file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("another server has opened the pool")]
pub(super) struct Fenced;

/// The text of `NBD_REP_ERR_UNKNOWN`. It is the same for an export that does not exist and an export that the
/// client may not see.
pub(super) const NO_EXPORT: &str = "no such export, or no access to it";

/// A negative reply to an option.
pub(super) struct Denied {
    /// Type of the reply, `NBD_REP_ERR_*`.
    pub reply: u32,
    pub text: String,
}

impl Denied {
    pub fn new(reply: u32, text: impl Into<String>) -> Denied {
        Denied { reply, text: text.into() }
    }

    /// The reply for an export that does not exist or is not visible.
    pub fn no_export() -> Denied {
        Denied::new(REP_ERR_UNKNOWN, NO_EXPORT)
    }
}

impl From<StillUnderWay> for Denied {
    fn from(error: StillUnderWay) -> Denied {
        Denied::new(REP_ERR_POLICY, error.to_string())
    }
}

impl From<Error> for Denied {
    fn from(error: Error) -> Denied {
        match codes(&error) {
            Ok((REP_ERR_UNKNOWN, _)) => Denied::no_export(),
            Ok((reply, _)) => Denied::new(reply, error.to_string()),
            // This reply is not sent, because the negotiation is cut.
            Err(fenced) => Denied::new(REP_ERR_SHUTDOWN, fenced.to_string()),
        }
    }
}

/// The error code of a reply to a request.
pub(super) fn error_code(error: &Error) -> Result<ErrorCode, Fenced> {
    codes(error).map(|(_, code)| code)
}

/// The reply to an option and the error code of a request, for each engine error. NBD has no codes for
/// ENOENT, EEXIST and EBUSY: they become EIO.
fn codes(error: &Error) -> Result<(u32, ErrorCode), Fenced> {
    Ok(match error {
        Error::Fenced => return Err(Fenced),
        Error::NotFound(_) => (REP_ERR_UNKNOWN, ErrorCode::Io),
        Error::BadName { .. } => (REP_ERR_UNKNOWN, ErrorCode::Inval),
        Error::Closed => (REP_ERR_SHUTDOWN, ErrorCode::Shutdown),
        Error::ReadOnly(_) => (REP_ERR_POLICY, ErrorCode::Perm),
        Error::NoSpace | Error::OverQuota { .. } => (REP_ERR_POLICY, ErrorCode::NoSpc),
        Error::OutOfRange
        | Error::Overlap
        | Error::BadSize { .. }
        | Error::OtherSize { .. }
        | Error::OtherLoss(_)
        | Error::WrongKind { .. } => (REP_ERR_POLICY, ErrorCode::Inval),
        Error::NoPool(_)
        | Error::Exists(_)
        | Error::InUse { .. }
        | Error::Resetting(_)
        | Error::MemoryLost { .. }
        | Error::HasClones { .. }
        | Error::TooManyDisks { .. }
        | Error::HasSnapshots { .. }
        | Error::Damaged(_)
        | Error::MapDamaged(_)
        | Error::MapsDamaged { .. }
        | Error::LogDamaged(_)
        | Error::Latched(_)
        | Error::Memory(_)
        | Error::Format(_)
        | Error::Store(_) => (REP_ERR_POLICY, ErrorCode::Io),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::mem::discriminant;

    use forebay_engine::LogDamage;
    use forebay_format::FormatError;
    use forebay_store::StoreError;

    use super::*;

    #[test]
    fn each_engine_error_has_its_codes() {
        let name = || "a".to_owned();
        let log_damage = LogDamage {
            id: 1,
            intact_until: 0,
            places: Vec::new(),
            missing_batches: 1,
            lost_batches: 0,
            lost_groups: 0,
            disks: Vec::new(),
            catalogue: Vec::new(),
        };
        let (unknown, policy, shutdown) = (REP_ERR_UNKNOWN, REP_ERR_POLICY, REP_ERR_SHUTDOWN);
        let table = [
            (Error::NotFound(name()), unknown, ErrorCode::Io),
            (Error::BadName { name: name(), why: "it is empty" }, unknown, ErrorCode::Inval),
            (Error::Closed, shutdown, ErrorCode::Shutdown),
            (Error::ReadOnly(name()), policy, ErrorCode::Perm),
            (Error::NoSpace, policy, ErrorCode::NoSpc),
            (Error::OverQuota { tenant: name(), bytes: 1 }, policy, ErrorCode::NoSpc),
            (Error::OutOfRange, policy, ErrorCode::Inval),
            (Error::Overlap, policy, ErrorCode::Inval),
            (Error::BadSize { size: 1, why: "it is too small" }, policy, ErrorCode::Inval),
            (Error::OtherLoss(name()), policy, ErrorCode::Inval),
            (Error::WrongKind { name: name(), is: "an image", needs: "a volume" }, policy, ErrorCode::Inval),
            (Error::NoPool(name()), policy, ErrorCode::Io),
            (Error::Exists(name()), policy, ErrorCode::Io),
            (Error::InUse { name: name(), clients: 1 }, policy, ErrorCode::Io),
            (Error::Resetting(name()), policy, ErrorCode::Io),
            (Error::MemoryLost { name: name(), remedy: "resume" }, policy, ErrorCode::Io),
            (Error::HasClones { name: name(), clones: 1, example: name() }, policy, ErrorCode::Io),
            (Error::TooManyDisks { most: 1 }, policy, ErrorCode::Io),
            (Error::HasSnapshots { name: name(), snapshots: 1 }, policy, ErrorCode::Io),
            (Error::Damaged(name()), policy, ErrorCode::Io),
            (Error::MapDamaged(name()), policy, ErrorCode::Io),
            (Error::MapsDamaged { disks: name(), freed_bytes: 0 }, policy, ErrorCode::Io),
            (Error::LogDamaged(Box::new(log_damage)), policy, ErrorCode::Io),
            (Error::Latched(name()), policy, ErrorCode::Io),
            (Error::Memory(name()), policy, ErrorCode::Io),
            (Error::Format(FormatError::Checksum("batch")), policy, ErrorCode::Io),
            (Error::Store(StoreError::ReadOnly), policy, ErrorCode::Io),
        ];
        let variants: HashSet<_> = table.iter().map(|(error, ..)| discriminant(error)).collect();
        assert_eq!(variants.len(), table.len(), "each error once");
        for (error, reply, code) in table {
            assert_eq!(error_code(&error), Ok(code), "{error:?}");
            let denied = Denied::from(error);
            assert_eq!(denied.reply, reply, "{}", denied.text);
            assert_eq!(denied.text == NO_EXPORT, reply == REP_ERR_UNKNOWN, "{}", denied.text);
        }
    }

    #[test]
    fn a_lost_pool_is_never_answered() {
        assert_eq!(error_code(&Error::from(StoreError::Fenced)), Err(Fenced));
    }
}
