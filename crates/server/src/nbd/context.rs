//! The input of a connection, and of its transmission phase.

use std::sync::Arc;

use forebay_engine::{DiskHandle, Pool};

use super::access::Access;
use super::attachments::{Attachment, Attachments, Watched};
use super::stream::Stream;
use super::tls::Tls;

/// The input of each connection of a listener.
#[derive(Clone)]
pub(super) struct Context {
    pub pool: Arc<Pool>,
    pub tls: Tls,
    pub access: Access,
    /// The connections of all listeners.
    pub attachments: Arc<Attachments>,
}

/// The disk that a client has chosen. The fields are dropped in this order: the socket is open as long as it
/// is watched, and the connection has ended when the disk is closed.
pub(super) struct Attached {
    pub watched: Option<Watched>,
    pub disk: Arc<DiskHandle>,
    pub attachment: Attachment,
}

/// The result of a negotiation: a client with its disk.
pub(super) struct Negotiated {
    /// Dropped before the stream.
    pub attached: Attached,
    pub stream: Stream,
    /// Structured replies were negotiated.
    pub structured: bool,
    /// Block status was negotiated.
    pub block_status: bool,
    /// The listener refuses writes, also to a writable disk.
    pub read_only: bool,
    /// Bytes that were received after the last option.
    pub input: Vec<u8>,
}
