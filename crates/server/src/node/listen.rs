//! The listeners of a node: its control socket, and the links of other nodes.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use forebay_gateway::api::{self, Cluster};
use forebay_gateway::link::{self, Identity, Local};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::NodeError;
use crate::serve::listen::connection_limit::LimitedListener;
use crate::serve::listen::http;
use crate::serve::listen::socket::ControlSocket;

/// Most connections to the control socket.
const CONTROL_CONNECTIONS: usize = 256;

/// The listeners of a node, before it has joined.
pub(super) struct Listeners {
    control: ControlSocket,
    links: TcpListener,
}

impl Listeners {
    /// Binds the control socket, and a port of `address` for the links.
    pub async fn bind(control: &Path, address: IpAddr) -> Result<Listeners, NodeError> {
        let control = ControlSocket::bind(control)?;
        let failed = |error| NodeError::Address { address, error };
        let links = TcpListener::bind((address, 0)).await.map_err(failed)?;
        Ok(Listeners { control, links })
    }

    /// The socket address of the links.
    pub fn links(&self) -> std::io::Result<SocketAddr> {
        self.links.local_addr()
    }

    /// Serves clients until the tasks are dropped. The control socket has its path until the returned value
    /// is dropped.
    pub fn serve(
        self,
        tasks: &mut JoinSet<()>,
        cluster: Arc<dyn Cluster>,
        local: Arc<dyn Local>,
        identity: watch::Receiver<Identity>,
        stopping: watch::Receiver<bool>,
    ) -> Result<ControlSocket, NodeError> {
        tasks.spawn(link::serve(self.links, identity, local));
        let mut control = self.control;
        let listener = UnixListener::from_std(control.listener().try_clone()?)?;
        let listener = LimitedListener::new(listener, CONTROL_CONNECTIONS, stopping.clone());
        let router = api::router(cluster);
        tasks.spawn(async move {
            let mut stopping = stopping;
            // An error means that the node has ended.
            let stop = async move { drop(stopping.wait_for(|stops| *stops).await) };
            http::serve(listener, router, None, stop).await;
        });
        control.publish()?;
        Ok(control)
    }
}
