//! The input of a connection, and of its transmission phase.

use std::sync::Arc;

use forebay_engine::{DiskHandle, Pool};

use super::access::Access;
use super::stream::Stream;
use super::tls::Tls;
use crate::plane::Received;

/// The input of each connection of a listener.
#[derive(Clone)]
pub(super) struct Context {
    pub pool: Arc<Pool>,
    pub tls: Tls,
    pub access: Access,
}

/// The result of a negotiation: a client with its disk.
pub(super) struct Negotiated {
    pub stream: Stream,
    pub disk: Arc<DiskHandle>,
    /// Structured replies were negotiated.
    pub structured: bool,
    /// Block status was negotiated.
    pub block_status: bool,
    /// The listener refuses writes, also to a writable disk.
    pub read_only: bool,
    /// Bytes that were received after the last option.
    pub received: Received,
}
