//! A small NBD client with the features that a load generator needs.
//!
//! It is written from the protocol document (`doc/proto.md` of the NBD project) and shares no code with the
//! server, so that a misinterpretation on one side is not hidden by the same one on the other side.
//!
//! `handshake` negotiates an export, `reply` parses replies, `flight` holds the requests in progress and
//! `pipeline` moves them over the socket; `disk` sends one request at a time.

mod disk;
mod flight;
mod handshake;
mod pipeline;
mod reply;
mod target;

pub use disk::Disk;
pub use handshake::{Connection, Export, connect};
pub use pipeline::Pipeline;
pub use reply::{Chunk, Parser, Sink};
pub use target::{Target, TargetError, Uri, UriError};

/// Size of a request header.
pub const REQUEST_LEN: usize = 28;

/// A command of the transmission phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Command {
    /// NBD_CMD_READ.
    Read = 0,
    /// NBD_CMD_WRITE.
    Write = 1,
    /// NBD_CMD_DISC.
    Disconnect = 2,
    /// NBD_CMD_FLUSH.
    Flush = 3,
    /// NBD_CMD_TRIM.
    Trim = 4,
}

/// An error between this client and a server.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// The transport failed.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The server closed the connection while requests were unanswered.
    #[error("the server closed the connection with {0} requests unanswered")]
    Closed(usize),
    /// The server violated the protocol.
    #[error("the server violated the protocol: {0}")]
    Protocol(&'static str),
    /// The server refused the export.
    #[error("the server does not offer the export \"{name}\" (reply {code:#x})")]
    Refused {
        /// The requested export.
        name: String,
        /// Code of the option reply.
        code: u32,
    },
    /// The server answered a request with an error.
    #[error("the server answered with NBD error {0}")]
    Failed(u32),
}

/// NBD_CMD_FLAG_FUA: the write is durable when it is answered.
pub const FUA: u16 = 1 << 0;

/// Lays out a request header.
pub fn request(command: Command, flags: u16, cookie: u64, offset: u64, len: u32) -> [u8; REQUEST_LEN] {
    const MAGIC: u32 = 0x2560_9513;
    let mut h = [0; REQUEST_LEN];
    h[0..4].copy_from_slice(&MAGIC.to_be_bytes());
    h[4..6].copy_from_slice(&flags.to_be_bytes());
    h[6..8].copy_from_slice(&(command as u16).to_be_bytes());
    h[8..16].copy_from_slice(&cookie.to_be_bytes());
    h[16..24].copy_from_slice(&offset.to_be_bytes());
    h[24..28].copy_from_slice(&len.to_be_bytes());
    h
}
