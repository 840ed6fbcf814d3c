//! One client connection, from accept to close.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use tokio::net::TcpStream;

use super::context::{Context, Continued, LoggedIn};
use super::errors::End;
use super::handover::HandedOver;
use super::login::login;
use super::session::session;
use crate::plane::{
    Client, Cut, Ended, FrontEnd, ListenAddr, MemoryAccount, Parked, RawSocket, Resume, Resumed, Socket,
    Worker,
};
use crate::throttle::Throttle;

/// The name of a connection in the log.
const CONNECTION: &str = "an iSCSI connection";

/// The front end for iSCSI.
pub struct Front(pub Arc<Context>);

impl FrontEnd for Front {
    fn spawn(&self, worker: &Rc<Worker>, client: Client) {
        let context = self.0.clone();
        worker.spawn_connection(CONNECTION, |worker| serve(worker, context, client), log_end);
    }

    fn resume(&self, state: serde_json::Value, socket: &RawSocket) -> Result<Resume, String> {
        let RawSocket::Tcp(tcp_socket) = socket else { return Err("iSCSI needs a TCP connection".into()) };
        let peer = tcp_socket.peer_addr().map_err(|e| e.to_string())?;
        let login = HandedOver::parse(state)?.resume(&self.0, peer.ip())?;
        let context = self.0.clone();
        Ok(Box::new(move |worker, Resumed { socket, listener, admission, received, until_resumed }| {
            let continued = login.continued.map(|c| Continued { until_resumed, ..c });
            let login = LoggedIn { received, continued, ..login };
            let serve = |worker: Rc<Worker>| async move {
                let _admission = admission;
                let (stream, addresses) = tcp(socket)?;
                let ended = session(worker.clone(), context, stream, login, addresses, None).await;
                park(&worker, &listener, ended?);
                Ok(())
            };
            worker.spawn_connection(CONNECTION, serve, log_end);
        }))
    }
}

/// Logs the end of a connection.
fn log_end(end: End) {
    static ENDED: Throttle = Throttle::new();
    if let End::LoginRefused(refused) = end {
        refused.log();
    } else if let Some(left_out) = ENDED.permit() {
        tracing::info!(left_out, "an iSCSI connection ended: {end}");
    }
}

async fn serve(worker: Rc<Worker>, context: Arc<Context>, client: Client) -> Result<(), End> {
    let Client { socket, admission, listener } = client;
    let (mut stream, (peer, local)) = tcp(socket)?;
    // Boxed, so that an idle connection does not keep its memory during the session.
    let login = Box::pin(login(&mut stream, &context, (peer, local), MemoryAccount::new(worker.memory())));
    let logged_in = match admission.negotiate(&worker, login).await {
        Err(Cut::Stopping) => return Ok(()),
        done => done??,
    };
    if logged_in.session.is_some() {
        admission.keep()?;
    }
    let discovery_idle = logged_in.session.is_none().then(|| admission.negotiation_time());
    let session = session(worker.clone(), context, stream, logged_in, (peer, local), discovery_idle);
    tokio::select! {
        ended = session => park(&worker, &listener, ended?),
        // Only a discovery session is evicted, since any client can start such a session.
        () = admission.evicted() => return Err(Cut::Evicted.into()),
    }
    Ok(())
}

/// The stream of a client, with its own and the local address.
fn tcp(socket: RawSocket) -> Result<(TcpStream, (SocketAddr, SocketAddr)), End> {
    let Socket::Tcp(stream) = socket.into_tokio()? else {
        return Err(End::Ended("iSCSI needs a TCP connection"));
    };
    let addresses = (canonical(stream.peer_addr()?), canonical(stream.local_addr()?));
    Ok((stream, addresses))
}

/// Keeps a connection that is handed over.
fn park(worker: &Worker, listener: &Arc<ListenAddr>, ended: Ended) {
    if let Ended::Parked(stream) = ended {
        worker.park(Parked { listener: ListenAddr::clone(listener), stream: *stream });
    }
}

/// Converts IPv4-mapped IPv6 addresses to IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
