//! An iSCSI initiator, written from RFC 7143, SPC-4 and SBC-3, for loads and experiments.
//!
//! It shares nothing with the server: what both got wrong in the same way would not be noticed. It speaks what hosts
//! negotiate with targets today: no digests, immediate and unsolicited data, R2Ts, one connection for each session, no
//! error recovery. What a target does against the protocol ends the session.
//!
//! `pdu` lays out requests and reads replies, `parser` cuts the stream, `login` agrees on how to speak, `command` is
//! what is asked of a disk, `flight` keeps what is under way, `session` moves it over the socket, and `load` drives
//! sessions at depth.

mod command;
mod flight;
mod load;
mod login;
mod parser;
mod pdu;
mod session;

use std::time::Duration;

pub use command::{Command, Sense, Status};
pub use flight::Done;
pub use load::{Load, Loaded, Ready};
pub use session::{Answer, Session};

/// A logical unit, and who comes to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// HOST:PORT.
    pub portal: String,
    /// Name of the target.
    pub target: String,
    /// The logical unit, below 256.
    pub lun: u8,
}

/// A target that answers nothing for so long is taken for dead.
const STALL: Duration = Duration::from_secs(60);

/// What goes wrong between this initiator and a target.
#[derive(Debug, thiserror::Error)]
pub enum IscsiError {
    /// The transport failed.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The target closed the connection.
    #[error("the target closed the connection with {0} commands unanswered")]
    Closed(usize),
    /// The target sent something that the protocol does not allow here.
    #[error("the target broke the protocol: {0}")]
    Protocol(&'static str),
    /// The target refused the login.
    #[error("the target refused the login with status {0:#06x}")]
    Refused(u16),
    /// A command failed that must not.
    #[error("{what} ended with {status}")]
    Failed {
        /// The command.
        what: &'static str,
        /// How.
        status: Status,
    },
    /// The target answered nothing in time.
    #[error("the target answered nothing for {} seconds", STALL.as_secs())]
    Stalled,
}
