//! Reasons why a connection ends.
//!
//! Errors of the engine reach an initiator only as sense data of a command ([`crate::scsi::sense_of`]); a
//! login is refused with a [`LoginStatus`] where the reason is detected, and logged with all names.

use std::net::SocketAddr;

use forebay_wire::iscsi::ProtocolError;
use forebay_wire::iscsi::reply::LoginStatus;

use crate::plane::Cut;
use crate::throttle::Throttle;

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
    #[error("the login was refused: {}", .0.reason)]
    LoginRefused(Box<RefusedLogin>),
    #[error("command {expected} is missing: command {found} was received instead")]
    Gap { expected: u32, found: u32 },
    #[error("{0}")]
    Ended(&'static str),
}

/// Why a login is refused: the status that the initiator receives, and the reason for the log, which can
/// reveal more to the administrator, such as whether a target exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub status: LoginStatus,
    pub reason: &'static str,
}

impl Refusal {
    pub fn new(status: LoginStatus, reason: &'static str) -> Refusal {
        Refusal { status, reason }
    }
}

impl From<LoginStatus> for Refusal {
    fn from(status: LoginStatus) -> Refusal {
        let reason = match status {
            LoginStatus::Success => "no reason",
            LoginStatus::TargetMoved => "redirected to the owner of the pool",
            LoginStatus::InitiatorError => "an invalid request",
            LoginStatus::AuthenticationFailed => "authentication failed",
            LoginStatus::NotFound => "no such target, or no access to it",
            LoginStatus::UnsupportedVersion => "no common version of the protocol",
            LoginStatus::TooManyConnections => "a second connection for a session",
            LoginStatus::MissingParameter => "a required key is missing",
            LoginStatus::SessionType => "an unknown type of session",
            LoginStatus::NoSession => "the session does not exist",
            LoginStatus::InvalidRequest => "a request that is not valid in this stage",
            LoginStatus::ServiceUnavailable => "the pool is not served at present",
            LoginStatus::OutOfResources => "too many logins or too little memory",
        };
        Refusal { status, reason }
    }
}

/// A login that was refused, for the log.
#[derive(Debug)]
pub(super) struct RefusedLogin {
    pub status: LoginStatus,
    pub reason: &'static str,
    /// Name of the initiator, as it was sent.
    pub initiator: Option<String>,
    /// The requested target; `None` for discovery, or if the initiator sent none.
    pub target: Option<String>,
    pub peer: SocketAddr,
}

impl RefusedLogin {
    /// Logs the refusal. The log is rate-limited because any client can cause a refusal. Failed
    /// authentications are limited separately, so that other refusals cannot hide them.
    pub fn log(&self) {
        static REFUSED: Throttle = Throttle::new();
        static REDIRECTED: Throttle = Throttle::new();
        static UNAUTHENTICATED: Throttle = Throttle::new();
        let throttle = match self.status {
            LoginStatus::TargetMoved => &REDIRECTED,
            LoginStatus::AuthenticationFailed => &UNAUTHENTICATED,
            _ => &REFUSED,
        };
        let Some(left_out) = throttle.permit() else { return };
        let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "-".to_owned());
        let (initiator, target) = (name(&self.initiator), name(&self.target));
        let (peer, reason) = (self.peer, self.reason);
        if self.status == LoginStatus::TargetMoved {
            tracing::info!(initiator, %peer, target, left_out, "an iSCSI login was redirected");
        } else {
            tracing::warn!(initiator, %peer, target, reason, left_out, "an iSCSI login was refused");
        }
    }
}

/// Maximum length of a name in the log: the limit of RFC 7143, 4.2.7.1.
const MAX_LOGGED_NAME: usize = 223;

/// A name that an initiator sent, which may be longer than any valid name. The log escapes it.
pub(super) fn logged_name(name: &str) -> String {
    match name.char_indices().nth(MAX_LOGGED_NAME) {
        None => name.to_owned(),
        Some((end, _)) => format!("{}...", &name[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_logged_at_a_bounded_length() {
        assert_eq!(logged_name("iqn.2026-01.org.example:a"), "iqn.2026-01.org.example:a");
        let long = logged_name(&"ä".repeat(300));
        assert_eq!((long.chars().count(), long.ends_with("...")), (MAX_LOGGED_NAME + 3, true));
    }
}
