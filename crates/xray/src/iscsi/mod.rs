//! An iSCSI initiator, written from RFC 7143, SPC-4 and SBC-3, for loads and experiments.
//!
//! It shares no code with the server, because a common error on both sides would not be detected. It supports
//! the parameters that hosts usually negotiate: no digests, immediate and unsolicited data, R2Ts, one
//! connection per session, no error recovery. A protocol violation of the target ends the session.
//!
//! `pdu` defines the layout of PDUs, `parser` splits the stream, `login` negotiates, `command` contains the
//! SCSI commands, `flight` the commands in progress, and `initiator` moves them over the socket.

mod command;
mod flight;
mod initiator;
mod login;
mod parser;
mod pdu;

use std::time::Duration;

pub use command::{Command, Sense, Status};
pub use flight::Done;
pub use initiator::{Answer, InitiatorSession};

/// The address of a logical unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Address of the portal: HOST:PORT.
    pub portal: String,
    /// Name of the target.
    pub target: String,
    /// The logical unit, below 256.
    pub lun: u8,
}

/// The first number of an initiator that a caller may choose. The initiators of loads have lower numbers.
pub const FIRST_RESERVED: u16 = 60_000;

/// A target that does not answer for this long counts as stalled.
const STALL: Duration = Duration::from_secs(60);

/// An error between this initiator and a target.
#[derive(Debug, thiserror::Error)]
pub enum IscsiError {
    /// The transport failed.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The target closed the connection.
    #[error("the target closed the connection with {0} commands unanswered")]
    Closed(usize),
    /// The target violated the protocol.
    #[error("the target violated the protocol: {0}")]
    Protocol(&'static str),
    /// The target refused the login.
    #[error("the target refused the login with status {0:#06x}")]
    Refused(u16),
    /// A command that must succeed failed.
    #[error("{what} ended with {status}")]
    Failed {
        /// Name of the command that failed.
        what: &'static str,
        /// Status of the command.
        status: Status,
    },
    /// The target did not answer in time.
    #[error("no answer from the target for {} seconds", STALL.as_secs())]
    Stalled,
}
