//! One client, from accept to close.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::Pool;
use forebay_wire::iscsi::ProtocolError;
use forebay_wire::iscsi::reply::LoginStatus;
use tokio::sync::Semaphore;

use super::chap::Failures;
use super::login::login;
use super::registry::Registry;
use super::session::session;
use crate::plane::{FrontEnd, ListenAddr, RawSocket, Socket, Worker};
use crate::scsi::Units;
use crate::targets::Targets;

/// Commands of a session that may be under way.
pub(super) const WINDOW: u32 = 128;
/// How long a login may take.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(15);
/// Logins that may be under way; who comes then is not let in.
pub(super) const MAX_LOGINS: usize = 512;

/// What every connection needs.
pub(super) struct Context {
    pub pool: Arc<Pool>,
    pub targets: Arc<Targets>,
    pub units: Arc<Units>,
    pub registry: Arc<Registry>,
    pub failures: Failures,
    pub logins: Semaphore,
    /// Where initiators are told to come.
    pub portals: std::sync::OnceLock<Vec<ListenAddr>>,
}

/// Why a connection ended, other than by the initiator's wish.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("connection lost: {0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    #[error("no login within {LOGIN_TIMEOUT:?}")]
    LoginTimeout,
    #[error("left while it logged in")]
    LeftInLogin,
    #[error("the login of {initiator} was refused: {status:?}")]
    LoginRefused { status: LoginStatus, initiator: String },
    #[error("{MAX_LOGINS} logins are under way already")]
    TooManyLogins,
    #[error("command {found} is missing: {expected} was to come")]
    Gap { expected: u32, found: u32 },
    #[error("{0}")]
    Ended(&'static str),
}

/// The iSCSI front end.
pub(super) struct Front(pub Arc<Context>);

impl FrontEnd for Front {
    fn spawn(&self, worker: &Rc<Worker>, socket: RawSocket) {
        let (worker, context) = (worker.clone(), self.0.clone());
        let entered = worker.enter();
        tokio::task::spawn_local(async move {
            let _entered = entered;
            if let Err(end) = serve(worker, context, socket).await {
                tracing::info!(%end, "an iSCSI connection ended");
            }
        });
    }
}

async fn serve(worker: Rc<Worker>, context: Arc<Context>, socket: RawSocket) -> Result<(), End> {
    let Socket::Tcp(mut stream) = socket.into_tokio()? else {
        return Err(End::Ended("iSCSI is spoken over TCP alone"));
    };
    let (peer, local) = (plain(stream.peer_addr()?), plain(stream.local_addr()?));
    let logged_in = {
        let Ok(_place) = context.logins.try_acquire() else { return Err(End::TooManyLogins) };
        tokio::select! {
            biased;
            () = worker.stopping() => return Ok(()),
            // On the heap, for the time that it takes.
            done = tokio::time::timeout(LOGIN_TIMEOUT, Box::pin(login(&mut stream, &context, peer))) => {
                done.map_err(|_| End::LoginTimeout)??
            }
        }
    };
    session(worker, context, stream, logged_in, peer, local).await
}

/// IPv4 addresses as such.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Where an initiator that came to `local` is told to come: what is listened on, and for an address that stands for
/// all of them, that one.
pub(super) fn portals(context: &Context, local: SocketAddr) -> Vec<SocketAddr> {
    let mut portals = Vec::new();
    for listen in context.portals.get().into_iter().flatten() {
        let ListenAddr::Tcp(address) = listen else { continue };
        let Ok(address) = address.parse::<SocketAddr>() else { continue };
        let portal = match address.ip() {
            ip if !ip.is_unspecified() => address,
            IpAddr::V4(_) if local.is_ipv4() => SocketAddr::new(local.ip(), address.port()),
            IpAddr::V6(_) if local.is_ipv6() => SocketAddr::new(local.ip(), address.port()),
            _ => continue,
        };
        if !portals.contains(&portal) {
            portals.push(portal);
        }
    }
    if portals.is_empty() {
        portals.push(local);
    }
    portals
}
