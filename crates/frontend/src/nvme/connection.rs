//! One connection, from accept to close.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::task::Poll;

use forebay_host::clock::unix_ms;
use tokio::net::TcpStream;

use super::connect::{Connected, Serves, connect};
use super::context::Context;
use super::errors::End;
use super::namespaces::Namespaces;
use super::queue::Queue;
use super::watch::{Inbox, NOT_ADMITTED, watch};
use crate::peer::cookie_of;
use crate::plane::{
    Backlog, Client, Conversation, Cut, Ended, FrontEnd, MemoryAccount, RawSocket, Received, Socket, Worker,
};
use crate::targets::{EndRequest, OpenLuns, SessionGuard, SessionInfo};
use crate::throttle::Throttle;

/// The name of a connection in the log.
const CONNECTION: &str = "an NVMe connection";

/// The front end for NVMe/TCP.
pub(super) struct Front {
    pub context: Arc<Context>,
    pub serves: Serves,
}

impl FrontEnd for Front {
    fn spawn(&self, worker: &Rc<Worker>, client: Client) {
        let (context, serves) = (self.context.clone(), self.serves);
        worker.spawn_connection(CONNECTION, move |worker| serve(worker, context, serves, client), log_end);
    }
}

/// Logs the end of a connection. Refused hosts are limited separately, so that other ends cannot hide them.
fn log_end(end: End) {
    static ENDED: Throttle = Throttle::new();
    static REFUSED: Throttle = Throttle::new();
    let throttle = if matches!(end, End::Refused(_)) { &REFUSED } else { &ENDED };
    if let Some(left_out) = throttle.permit() {
        tracing::info!(left_out, "an NVMe connection ended: {end}");
    }
}

/// The stream of a host, with its own and the local address.
fn tcp(socket: RawSocket) -> Result<(TcpStream, (SocketAddr, SocketAddr)), End> {
    let Socket::Tcp(stream) = socket.into_tokio()? else {
        return Err(End::Ended("NVMe needs a TCP connection"));
    };
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let addresses = (canonical(stream.peer_addr()?), canonical(stream.local_addr()?));
    Ok((stream, addresses))
}

async fn serve(worker: Rc<Worker>, context: Arc<Context>, serves: Serves, client: Client) -> Result<(), End> {
    let Client { socket, admission, .. } = client;
    let (mut stream, (peer, local)) = tcp(socket)?;
    let account = MemoryAccount::new(worker.memory());
    // Boxed, so that an idle connection does not keep its memory.
    let connected =
        match admission.negotiate(&worker, Box::pin(connect(&mut stream, &context, serves, peer))).await {
            Err(Cut::Stopping) => return Ok(()),
            connected => connected??,
        };
    drop(account);
    let Some(connected) = connected else { return Ok(()) };
    let is_discovery = connected.controller.namespaces.is_none();
    if !is_discovery {
        admission.keep()?;
    }
    let discovery_idle = is_discovery.then(|| admission.negotiation_time());
    let session = session(worker, context, stream, connected, (peer, local), discovery_idle);
    tokio::select! {
        ended = session => ended,
        // Only a discovery controller is evicted, since any host can create it.
        () = admission.evicted() => Err(Cut::Evicted.into()),
    }
}

/// Serves a queue until its host disconnects, or its controller ends.
async fn session(
    worker: Rc<Worker>,
    context: Arc<Context>,
    stream: TcpStream,
    connected: Connected,
    (peer, local): (SocketAddr, SocketAddr),
    discovery_idle: Option<std::time::Duration>,
) -> Result<(), End> {
    let backlog = Backlog::new(&worker);
    let inbox = Inbox::new(backlog.clone());
    let controller = connected.controller.clone();
    let is_admin = connected.registered.is_some();
    // The end of the admin queue is the end of the controller, on each path out of this function.
    let _ends = is_admin.then(|| EndsController(controller.clone()));
    let namespaces = controller.namespaces.clone();
    // The subscriptions precede the first read of the table, so that no change in between is missed.
    let changed = match &namespaces {
        Some(namespaces) => context.targets.changed_at(&namespaces.target),
        None => context.targets.changed(),
    };
    let disconnect = EndRequest::default();
    let mut listed = None;
    if let Some(namespaces) = &namespaces {
        backlog.account().join(&format!("target {}", namespaces.target));
        if is_admin {
            let id = cookie_of(stream.as_raw_fd());
            listed = Some(list(&context, namespaces, (id, peer), &disconnect));
            if namespaces.refresh().await.is_none() {
                return Err(End::Ended(NOT_ADMITTED));
            }
            log_controller(&namespaces.target, namespaces, peer);
            namespaces.followed.settle().await;
        }
    }
    let _watching = watch(&inbox, &controller, is_admin.then_some((changed, disconnect)), discovery_idle);
    let Connected { guard, registered, input, queue, entries, framing, no_flow_control, fetched, .. } =
        connected;
    let served = Queue::new(
        worker.clone(),
        context,
        controller.clone(),
        (backlog.clone(), inbox),
        (queue, entries, fetched, no_flow_control),
        framing,
        local,
    );
    let received = Received::after_negotiation(input);
    let mut conversation =
        std::pin::pin!(Conversation::new(worker, stream, None, received, backlog.clone(), served));
    // Declared later and therefore dropped earlier, before the conversation closes the socket.
    let guards = (guard, registered);
    let ended = conversation.as_mut().await;
    // Started commands are finished before a controller of this host can begin that replaces this one.
    requests_ended(&backlog).await;
    if is_admin {
        controller.end("its admin queue is disconnected");
        controller.is_alone().await;
        if let Some(namespaces) = &namespaces {
            namespaces.leave();
        }
    }
    drop(listed);
    drop(guards);
    ended.map(|ended| debug_assert!(matches!(ended, Ended::Closed), "no queue is handed over"))
}

/// Ends a controller when dropped.
struct EndsController(Arc<super::controller::Controller>);

impl Drop for EndsController {
    fn drop(&mut self) {
        self.0.end("its admin queue is disconnected");
        if let Some(namespaces) = &self.0.namespaces {
            namespaces.leave();
        }
    }
}

/// Lists a controller for administrators.
fn list(
    context: &Context,
    namespaces: &Arc<Namespaces>,
    (id, address): (u64, SocketAddr),
    end: &EndRequest,
) -> SessionGuard {
    context.targets.session_began(SessionInfo {
        id,
        target: namespaces.target.clone(),
        initiator: namespaces.host().clone(),
        address,
        since_ms: unix_ms(),
        luns: Arc::<Namespaces>::downgrade(namespaces) as Weak<dyn OpenLuns>,
        end: end.clone(),
        applied: namespaces.followed.applied(),
    })
}

/// Logs a new controller. The log is rate-limited: a host that connects again and again would fill it.
fn log_controller(target: &crate::targets::IqnName, namespaces: &Namespaces, peer: SocketAddr) {
    static CONNECTED: Throttle = Throttle::new();
    if let Some(left_out) = CONNECTED.permit() {
        let host = namespaces.host();
        tracing::info!(left_out, "host {host} at {peer} connected to target {target} over NVMe");
    }
}

/// Waits until no request is under way.
async fn requests_ended(backlog: &Backlog) {
    std::future::poll_fn(|cx| {
        backlog.set_waker(cx.waker());
        if backlog.has_requests() { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}
