//! An NVMe/TCP host, written from the NVMe/TCP Transport, Base and NVM Command Set specifications, for loads.
//!
//! It shares no code with the server, because a common error on both sides would not be detected. It uses one
//! controller with one I/O queue, without digests, without a keep alive timeout, and with flow control of the
//! submission queue, as the Linux kernel's host does by default. A protocol violation of the controller ends
//! the connection.
//!
//! `pdu` defines the layout of PDUs and commands, `connect` brings a controller up, and `queue` has the
//! commands in progress on an I/O queue.

mod connect;
mod pdu;
mod queue;

pub use queue::NvmeQueue;

/// The address of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Address of the controller: HOST:PORT.
    pub portal: String,
    /// Name of the subsystem.
    pub subsystem: String,
    /// Identifier of the namespace, from 1 on.
    pub number: u32,
}

/// The status of a command: status code type and status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(u16);

impl Status {
    /// The command has succeeded.
    pub const GOOD: Status = Status(0);
    /// Reservation Conflict.
    pub const CONFLICT: Status = Status(0x83);

    /// A number for reports: the type in bits 8 to 10, and the code.
    pub fn number(self) -> u32 {
        self.0.into()
    }
}

/// An error between this host and a controller.
#[derive(Debug, thiserror::Error)]
pub enum NvmeError {
    /// The transport failed.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The controller closed the connection.
    #[error("the controller closed the connection with {0} commands unanswered")]
    Closed(usize),
    /// The controller violated the protocol.
    #[error("the controller violated the protocol: {0}")]
    Protocol(&'static str),
    /// The controller reported a fatal error of this host.
    #[error("the controller ended the connection with the fatal error {0}")]
    Terminated(u16),
    /// A command that must succeed failed.
    #[error("{what} ended with status {:#05x}", status.0)]
    Failed {
        /// Name of the command that failed.
        what: &'static str,
        /// Its status.
        status: Status,
    },
}
