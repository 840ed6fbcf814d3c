//! Reasons why a connection ends.
//!
//! Errors of the engine reach an initiator only as sense data of a command ([`crate::scsi::sense_of`]); a
//! login is refused with a [`LoginStatus`] where the reason is detected.

use forebay_wire::iscsi::ProtocolError;
use forebay_wire::iscsi::reply::LoginStatus;

use crate::plane::Cut;

/// Why a connection ended, unless the initiator ended it.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("connection lost: {0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    #[error(transparent)]
    Login(#[from] Cut),
    #[error("the initiator disconnected during its login")]
    LeftInLogin,
    #[error("the login of {initiator} was refused: {status:?}")]
    LoginRefused { status: LoginStatus, initiator: String },
    #[error("command {expected} is missing: command {found} was received instead")]
    Gap { expected: u32, found: u32 },
    #[error("{0}")]
    Ended(&'static str),
}
