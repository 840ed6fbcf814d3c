//! Why connections end.

use std::io;
use std::time::Duration;

use forebay_text::{quoted, shorten};
use forebay_wire::nbd::ProtocolError;

/// Maximum length of the name of an export, and of the text of a server, in an error, in bytes.
const MAX_NAME: usize = 128;
const MAX_TEXT: usize = 512;

/// Why the gateway ended the connection of a client.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// The connection to the client failed.
    #[error("connection lost: {0}")]
    Client(#[from] io::Error),
    /// The client sent something that is not NBD.
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    /// The client did not choose an export in time.
    #[error("the client has not chosen an export within {0:?}")]
    Slow(Duration),
    /// The client sent more options than any program does.
    #[error("the client sent too many options")]
    TooManyOptions,
    /// Too many clients are choosing an export.
    #[error("too many clients are choosing an export")]
    Busy,
    /// No memory for a list.
    #[error("not enough memory for the list of exports")]
    NoMemory,
    /// The client chose an export with an option that has no negative reply.
    #[error("export {} was refused: {why}", name(export))]
    Refused {
        /// Name of the export.
        export: String,
        /// Why the export was refused.
        why: String,
    },
    /// After an outage, the owner of the export refuses the client, for instance because answered writes are
    /// lost, or because the export was deleted.
    #[error("export {} is not served any more: {}", name(export), shorten(why, MAX_TEXT))]
    Gone {
        /// Name of the export.
        export: String,
        /// The reason that the owner, or the directory of names, gave.
        why: String,
    },
    /// After an outage, the export is not what it was before.
    #[error("export {} is not the same as before the outage: {what}", name(export))]
    Changed {
        /// Name of the export.
        export: String,
        /// What has changed.
        what: &'static str,
    },
    /// No owner of the export could be reached in time.
    #[error("no owner of export {} could be reached within {time:?}: {why}", name(export))]
    Outage {
        /// Name of the export.
        export: String,
        /// The time limit.
        time: Duration,
        /// Why the last attempt failed.
        why: String,
    },
    /// The client has unanswered changes from before an outage, another client may have opened the export
    /// since, and nothing proves that this client is still connected. Its changes could overwrite newer ones.
    #[error(
        "after an outage of export {}, the client has unanswered changes, and does not seem to be connected",
        name(export)
    )]
    Moved {
        /// Name of the export.
        export: String,
    },
    /// After an outage, a read was answered in pieces that do not fit those which the client has received.
    #[error(
        "a read of export {} was answered in part before an outage, and cannot be continued",
        name(export)
    )]
    Torn {
        /// Name of the export.
        export: String,
    },
    /// An administrator disconnected the client.
    #[error("an administrator disconnected the client")]
    Disconnected,
    /// The client holds memory for which other clients wait.
    #[error("the client has made no progress for {0:?} while other clients wait for memory")]
    Stalled(Duration),
    /// The owner violated the protocol.
    #[error("the owner of export {} violated the protocol: {why}", name(export))]
    Owner {
        /// Name of the export.
        export: String,
        /// The violation.
        why: String,
    },
}

fn name(export: &str) -> String {
    quoted(&shorten(export, MAX_NAME)).to_string()
}

/// Why an owner cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum OwnerError {
    /// The attempt can be repeated.
    #[error("{0}")]
    Lost(#[from] io::Error),
    /// The owner is not a server with a relay listener.
    #[error("{0}")]
    Protocol(String),
}

impl From<ProtocolError> for OwnerError {
    fn from(error: ProtocolError) -> OwnerError {
        OwnerError::Protocol(error.to_string())
    }
}

impl OwnerError {
    /// An error that ends an attempt.
    pub fn lost(why: &str) -> OwnerError {
        OwnerError::Lost(io::Error::other(why.to_owned()))
    }
}
