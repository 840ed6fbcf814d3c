//! The listeners of a node: for the API, for NBD, for iSCSI (its portals), and for the links of other nodes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::serve::Listener as AxumListener;
use forebay_control::front::front;
use forebay_control::http::{Entry, Origin};
use forebay_frontend::plane::{Bound, ListenAddr, Listener};
use forebay_gateway::link::{self, Identity};
use forebay_gateway::{Shards, api, nbd};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::NodeError;
use super::gateway::{Gateway, OwnShards};
use super::metrics::MetricsOfNode;
use super::nbd::NbdListeners;
use super::tokens::TokensInMap;
use crate::config::NodeConfig;
use crate::serve::listen::connection_limit::LimitedListener;
use crate::serve::listen::http::{self, ClientAddress};
use crate::serve::listen::https::HttpsCertificate;
use crate::serve::listen::socket::ControlSocket;
use crate::serve::{Descriptors, ServeError};

/// Maximum number of connections of each listener of the API.
const API_CONNECTIONS: usize = 256;

/// The listeners of a node, before it has joined.
pub(super) struct Listeners {
    control: ControlSocket,
    http: Option<TcpListener>,
    nbd: NbdListeners,
    links: TcpListener,
    iscsi: Bound,
}

impl Listeners {
    /// Binds the control socket, the addresses of the API, of NBD and of iSCSI, and a port of `address` for
    /// the links.
    pub async fn bind(config: &NodeConfig, address: IpAddr) -> Result<Listeners, NodeError> {
        let control = ControlSocket::bind(&config.socket)?;
        let http = match config.http.listen {
            Some(at) => {
                let failed = |e| ServeError::listen(&at.to_string(), &e);
                Some(TcpListener::bind(at).await.map_err(failed)?)
            }
            None => None,
        };
        let nbd = NbdListeners::bind(&config.nbd)?;
        let failed = |error| NodeError::Address { address, error };
        let links = TcpListener::bind((address, 0)).await.map_err(failed)?;
        let bind = |portal: &ListenAddr| Ok((portal.clone(), Listener::bind(portal)?));
        let iscsi = config.iscsi.listen.iter().map(bind).collect::<Result<_, ServeError>>()?;
        Ok(Listeners { control, http, nbd, links, iscsi: Bound(iscsi) })
    }

    /// The addresses of the iSCSI portals for other hosts. An unspecified address stands for `address`, the
    /// address of the node.
    pub fn portals(&self, address: IpAddr) -> Vec<SocketAddr> {
        let bound = self.iscsi.0.iter().flat_map(|(_, listeners)| listeners);
        reachable(bound.map(Listener::address), address)
    }

    /// The addresses of the NBD listeners for other hosts, in the same way. A loopback address is one only if
    /// the node has no other.
    pub fn remote_nbd(&self, address: IpAddr) -> Vec<SocketAddr> {
        let mut found = reachable(self.nbd().iter().cloned(), address);
        found.retain(|one| !one.ip().is_loopback() || address.is_loopback());
        found
    }

    /// The listeners of the iSCSI portals.
    pub fn take_iscsi(&mut self) -> Bound {
        std::mem::take(&mut self.iscsi)
    }

    /// The socket address of the links.
    pub fn links(&self) -> std::io::Result<SocketAddr> {
        self.links.local_addr()
    }

    /// The address of the API over TCP.
    pub fn http(&self) -> Option<SocketAddr> {
        self.http.as_ref().and_then(|http| http.local_addr().ok())
    }

    /// The addresses of the NBD listeners, with the actual ports.
    pub fn nbd(&self) -> &[ListenAddr] {
        self.nbd.addresses()
    }

    /// Serves clients until the tasks are dropped: requests of the API on the threads of `requests`, and NBD
    /// clients and links on those of `data`. The control socket has its path until the returned value is
    /// dropped.
    pub fn serve(
        self,
        tasks: &mut JoinSet<()>,
        (requests, data): (&Handle, &Handle),
        clients: Clients,
    ) -> Result<ControlSocket, NodeError> {
        let Clients { config, gateway, own, identity, tokens, process, stopping } = clients;
        let descriptors = Descriptors::raise(1)?.clients;
        let shards: Arc<dyn Shards> = gateway.clone();
        let clients = nbd::Gateway::new(&process, shards, nbd::Settings::default());
        self.nbd.serve(tasks, data, &clients, descriptors)?;
        let links = gateway.figures().links.clone();
        tasks.spawn_on(link::serve(self.links, identity, own, links), data);
        let metrics = Arc::new(MetricsOfNode::new(gateway.clone(), clients));
        let forward = api::router(gateway);
        let (access, hosts) = (tokens.access.clone(), config.http.hosts.as_slice());
        let front = |entry| front(forward.clone(), access.clone(), entry, tokens.clone(), metrics.clone());
        let mut control = self.control;
        let listener = UnixListener::from_std(control.listener().try_clone()?)?;
        let entry = Entry::new(Origin::Socket, hosts);
        tasks.spawn_on(serve(listener, front(entry), None, stopping.clone()), requests);
        if let Some(listener) = self.http {
            let https = config.http.https.as_ref().map(HttpsCertificate::load).transpose();
            let https = https.map_err(ServeError::from)?.map(Arc::new);
            let origin = Origin::of_address(listener.local_addr()?.ip());
            let entry = Entry { tls: https.is_some(), ..Entry::new(origin, hosts) };
            tasks.spawn_on(serve(listener, front(entry), https, stopping), requests);
        }
        control.publish()?;
        Ok(control)
    }
}

/// The addresses for other hosts: an unspecified one stands for `address`.
fn reachable(bound: impl Iterator<Item = ListenAddr>, address: IpAddr) -> Vec<SocketAddr> {
    let bound = bound.filter_map(|bound| match bound {
        ListenAddr::Tcp(text) => text.parse::<SocketAddr>().ok(),
        ListenAddr::Unix(_) => None,
    });
    let of_host = |bound: SocketAddr| match bound.ip().is_unspecified() {
        true => (bound.is_ipv4() == address.is_ipv4()).then(|| SocketAddr::new(address, bound.port())),
        false => Some(bound),
    };
    bound.filter_map(of_host).collect()
}

/// What the listeners of a node serve.
pub(super) struct Clients {
    pub config: NodeConfig,
    pub gateway: Arc<Gateway>,
    pub own: Arc<OwnShards>,
    pub identity: watch::Receiver<Identity>,
    pub tokens: Arc<TokensInMap>,
    /// Identity of the process of the node.
    pub process: String,
    pub stopping: watch::Receiver<bool>,
}

async fn serve<L>(
    listener: L,
    router: Router,
    certificate: Option<Arc<HttpsCertificate>>,
    mut stopping: watch::Receiver<bool>,
) where
    L: AxumListener,
    L::Io: Sync,
    L::Addr: ClientAddress + Send,
{
    let listener = LimitedListener::new(listener, API_CONNECTIONS, stopping.clone());
    // An error means that the node has ended.
    let stop = async move { drop(stopping.wait_for(|stops| *stops).await) };
    http::serve(listener, router, certificate, stop).await;
}
