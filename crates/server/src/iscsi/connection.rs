//! One client, from accept to close.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use forebay_engine::Pool;
use forebay_wire::iscsi::ProtocolError;
use forebay_wire::iscsi::reply::LoginStatus;

use super::attempts::Attempts;
use super::chap::Algorithm;
use super::login::login;
use super::registry::Registry;
use super::session::session;
use crate::plane::{Client, Cut, FrontEnd, ListenAddr, MemoryAccount, Socket, Worker, contained};
use crate::scsi::Units;
use crate::targets::Targets;
use crate::throttle::Throttle;

/// Commands of a session that may be under way.
pub(super) const WINDOW: u32 = 128;

/// What every connection needs.
pub(super) struct Context {
    pub pool: Arc<Pool>,
    pub targets: Arc<Targets>,
    pub units: Arc<Units>,
    pub registry: Arc<Registry>,
    pub attempts: Attempts,
    /// Hash functions that CHAP may use.
    pub chap_algorithms: Vec<Algorithm>,
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
    #[error(transparent)]
    Login(#[from] Cut),
    #[error("left while it logged in")]
    LeftInLogin,
    #[error("the login of {initiator} was refused: {status:?}")]
    LoginRefused { status: LoginStatus, initiator: String },
    #[error("command {found} is missing: {expected} was to come")]
    Gap { expected: u32, found: u32 },
    #[error("{0}")]
    Ended(&'static str),
}

/// The iSCSI front end.
pub(super) struct Front(pub Arc<Context>);

impl FrontEnd for Front {
    fn spawn(&self, worker: &Rc<Worker>, client: Client) {
        static ENDED: Throttle = Throttle::new();
        let (worker, context) = (worker.clone(), self.0.clone());
        let entered = worker.enter();
        tokio::task::spawn_local(async move {
            let _entered = entered;
            // Of a panic there is an entry in the log already.
            if let Ok(Err(end)) = contained("an iSCSI connection", serve(worker, context, client)).await
                && let Some(left_out) = ENDED.permit()
            {
                tracing::info!(%end, left_out, "an iSCSI connection ended");
            }
        });
    }
}

async fn serve(worker: Rc<Worker>, context: Arc<Context>, client: Client) -> Result<(), End> {
    let Client { socket, admission } = client;
    let Socket::Tcp(mut stream) = socket.into_tokio()? else {
        return Err(End::Ended("iSCSI is spoken over TCP alone"));
    };
    let (peer, local) = (plain(stream.peer_addr()?), plain(stream.local_addr()?));
    // On the heap, for the time that it takes.
    let login = Box::pin(login(&mut stream, &context, peer, MemoryAccount::new(worker.memory())));
    let logged_in = match admission.negotiate(&worker, login).await {
        Err(Cut::Stopping) => return Ok(()),
        done => done??,
    };
    if logged_in.session.is_some() {
        admission.keep()?;
    }
    let discovery_idle = logged_in.session.is_none().then(|| admission.negotiation_time());
    let session = session(worker, context, stream, logged_in, (peer, local), discovery_idle);
    tokio::select! {
        done = session => done,
        // Only a discovery session is: anyone can begin one.
        () = admission.evicted() => Err(Cut::Evicted.into()),
    }
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
