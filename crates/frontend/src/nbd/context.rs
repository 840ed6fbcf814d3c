//! The input of a connection, and of its transmission phase.

use std::sync::Arc;

use forebay_engine::{DiskHandle, Pool, Since};
use forebay_wire::nbd::Preamble;

use super::access::Access;
use super::attachments::{Attachment, Attachments, Peer, Watched};
use super::clients::{ClientGuard, ClientInfo, Clients};
use super::stream::Stream;
use super::tls::Tls;
use crate::peer::cookie_of;
use crate::plane::Received;

/// The input of each connection of a listener.
#[derive(Clone)]
pub(super) struct Context {
    pub pool: Arc<Pool>,
    pub tls: Tls,
    pub access: Access,
    /// The connections of all listeners.
    pub attachments: Arc<Attachments>,
    pub clients: Clients,
    /// The clients are nodes, which forward connections.
    pub is_relay: bool,
}

impl Context {
    /// Registers a connection to a disk of this name. `client` opened the disk at `since_ms`, and is
    /// connected by the socket of `peer`; `relayed` is the client of a node. The order of
    /// connections that only read does not matter.
    pub fn attached(
        &self,
        (name, disk): (&str, Arc<DiskHandle>),
        is_writable: bool,
        (peer, client): (Option<Peer>, String),
        relayed: Option<&Preamble>,
        since_ms: u64,
    ) -> Attached {
        let attachment =
            if is_writable { self.attachments.attach(name, relayed) } else { Attachment::default() };
        let info = ClientInfo {
            id: peer.map_or(0, |peer| cookie_of(peer.fd)),
            disk: name.to_owned(),
            client,
            read_only: !is_writable,
            since_ms,
            disconnect: attachment.disconnect(),
        };
        let watched = peer.map(|peer| attachment.watch(peer));
        let listed = self.clients.begin(info);
        Attached { watched, disk, attachment, since_ms, is_writable, listed }
    }
}

/// The disk that a client has chosen. The fields are dropped in their order: the socket stays open as long as
/// it is watched, and the connection has ended when the disk is closed.
pub(super) struct Attached {
    pub watched: Option<Watched>,
    pub disk: Arc<DiskHandle>,
    pub attachment: Attachment,
    /// When the client opened the disk, in Unix milliseconds.
    pub since_ms: u64,
    /// The client may change the disk.
    pub is_writable: bool,
    pub listed: ClientGuard,
}

/// The metadata contexts of one export that a client has selected.
#[derive(Clone, Default)]
pub(super) struct MetaContexts {
    /// `base:allocation` was selected.
    pub allocation: bool,
    /// The earlier disk of `forebay:changed-since=…`, which is in use as long as the context is selected.
    pub since: Option<Arc<Since>>,
}

impl MetaContexts {
    /// The number of selected contexts.
    pub fn count(&self) -> usize {
        usize::from(self.allocation) + usize::from(self.since.is_some())
    }
}

/// The result of a negotiation: a client with its disk.
pub(super) struct Negotiated {
    /// The disk of the client. Dropped before the stream.
    pub attached: Attached,
    pub stream: Stream,
    /// Structured replies were negotiated.
    pub structured: bool,
    /// The metadata contexts of the export that were selected.
    pub contexts: MetaContexts,
    /// The listener refuses writes, even to a writable disk.
    pub read_only: bool,
    /// The client is a node, which forwards the connection.
    pub is_relayed: bool,
    /// Bytes that were received after the last option.
    pub received: Received,
}
