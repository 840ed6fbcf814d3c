//! The beginning of a connection: its initialization, and the Connect of a queue (Transport 3.5.1; Base 6.3).
//!
//! Names of hosts can be forged, so a Connect that is refused does not reveal whether the subsystem exists.
//! If the table of targets has a key for the host, the host has to prove with each queue that it has the key
//! (`authentication`) before the queue is served. Commands of a queue before this proof fail, and their
//! number is limited. Also the time until a queue is served is limited, since all of this is a part of the
//! negotiation of a connection.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use forebay_wire::nvme::auth::{AUTH_MESSAGE_MAX, AuthFailure};
use forebay_wire::nvme::reply::{Completion, Framing, initialized, terminate};
use forebay_wire::nvme::{
    CONNECT_DATA, Connect, ConnectData, DISCOVERY_NQN, Digests, Fabrics, FatalError, H2C_DATA_MAX,
    IN_CAPSULE_MAX, Limits, Pdu, Phase, QUEUE_ENTRIES, Sgl, Sqe, Status, Step, decode,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::authentication::{Authentication, Challenge, Keys, Next};
use super::context::Context;
use super::controller::{Controller, QueueGuard};
use super::discovery::admits;
use super::errors::End;
use super::namespaces::Namespaces;
use super::registry::Registered;
use crate::attempts::Account;
use crate::targets::{IqnName, Target};

/// Maximum bytes of data of the PDUs of a host.
pub(super) const LIMITS: Limits = Limits { in_capsule: IN_CAPSULE_MAX, data: H2C_DATA_MAX };
/// Maximum I/O queues of a controller.
pub(super) const MAX_QUEUES: u16 = 32;
/// Bytes that are received at once before the Connect.
const INPUT: usize = 4096;
/// Maximum commands of a queue before its host is authenticated: twice as many as an authentication has.
const UNAUTHENTICATED_MAX: usize = 10;
/// In the result of a Connect: the host has to authenticate itself (AUTHREQ, ATR).
const AUTHENTICATE: u64 = 1 << 17;

/// What a listener serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Serves {
    /// All subsystems.
    All,
    /// The discovery subsystem.
    Discovery,
}

/// A connected queue.
pub(super) struct Connected {
    pub controller: Arc<Controller>,
    pub guard: QueueGuard,
    /// Present for the admin queue.
    pub registered: Option<Registered>,
    pub queue: u16,
    pub entries: u16,
    pub framing: Framing,
    pub no_flow_control: bool,
    /// Number of commands of the queue so far.
    pub fetched: u16,
    /// Bytes that were received after the Connect.
    pub input: Vec<u8>,
}

/// A queue that was admitted, with the authentication that its host has to pass.
type Admitted = (Arc<Controller>, QueueGuard, Option<Registered>, Option<(Keys, Account)>);

/// Receives PDUs before the queue is connected.
struct Beginning<'a> {
    stream: &'a mut TcpStream,
    input: Vec<u8>,
}

impl Beginning<'_> {
    /// Receives the next PDU, and passes it to `take`; `None` if the host has closed the connection. At most
    /// one PDU, and what was received with it, is held.
    async fn next<T>(
        &mut self,
        phase: Phase,
        digests: Digests,
        take: impl Fn(&Pdu<'_>) -> T,
    ) -> Result<Option<T>, End> {
        loop {
            match decode(&self.input, phase, digests, LIMITS) {
                Ok(Step::Pdu { used, pdu }) => {
                    let taken = take(&pdu);
                    self.input.drain(..used);
                    return Ok(Some(taken));
                }
                Ok(Step::NeedMore { want }) => {
                    let mut more = [0; INPUT];
                    let room = (want - self.input.len()).min(INPUT);
                    let received = self.stream.read(&mut more[..room]).await?;
                    if received == 0 {
                        return Ok(None);
                    }
                    self.input.extend_from_slice(&more[..received]);
                }
                Err(error) => return Err(self.end(error).await),
            }
        }
    }

    /// Reports a fatal error.
    async fn end(&mut self, error: FatalError) -> End {
        match self.stream.write_all(&terminate(error, &self.input)).await {
            Ok(()) => error.into(),
            Err(lost) => lost.into(),
        }
    }
}

/// Initializes a connection, and connects a queue. `None` if the host has closed the connection.
pub(super) async fn connect(
    stream: &mut TcpStream,
    context: &Arc<Context>,
    serves: Serves,
    peer: SocketAddr,
) -> Result<Option<Connected>, End> {
    let mut beginning = Beginning { stream, input: Vec::new() };
    let plain = Digests::default();
    let init = beginning.next(Phase::Initialization, plain, |pdu| match pdu {
        Pdu::Init(init) => Some(*init),
        _ => None,
    });
    let Some(Some(init)) = init.await? else { return Ok(None) };
    beginning.stream.write_all(&initialized(&init)).await?;
    let framing = Framing { digests: init.digests, alignment: init.alignment };
    let first = beginning.next(Phase::Established, framing.digests, |pdu| match pdu {
        Pdu::Command { sqe, data, intact } => Ok((*sqe, data.to_vec(), *intact)),
        Pdu::Terminate { .. } => Err(None),
        _ => Err(Some(FatalError::Sequence("data without a request"))),
    });
    let (sqe, data, intact) = match first.await? {
        Some(Ok(command)) => command,
        Some(Err(Some(error))) => return Err(beginning.end(error).await),
        Some(Err(None)) | None => return Ok(None),
    };
    let fd = beginning.stream.as_raw_fd();
    let admitted = match parse(&sqe, &data, intact) {
        Ok((_, data)) if serves == Serves::Discovery && data.subsystem != DISCOVERY_NQN => {
            Err((Status::CONNECT_INVALID_HOST, "the address serves discovery only"))
        }
        Ok((connect, data)) => {
            let admitted = admit(context, &connect, &data, peer, fd).await;
            admitted.map(|admitted| (connect, admitted))
        }
        Err(status) => Err((status, "it is no valid Connect")),
    };
    let (queue, head, result, status) = match &admitted {
        Ok((connect, (controller, _, _, authentication))) => {
            let head = (1 % connect.entries) as u16;
            let authenticates = if authentication.is_some() { AUTHENTICATE } else { 0 };
            (connect.queue, head, u64::from(controller.id) | authenticates, Status::SUCCESS)
        }
        Err((status, _)) => (0, 0, 0, *status),
    };
    let mut answer = Vec::new();
    framing.complete(&Completion { command: sqe.id(), queue, head, result, status }, &mut answer);
    beginning.stream.write_all(&answer).await?;
    let (connect, (controller, guard, registered, keys)) = admitted.map_err(|(_, why)| End::Refused(why))?;
    let mut fetched = 1;
    if let Some((keys, account)) = keys {
        let mut authentication = Authentication::new(keys);
        let queue = Unproved { framing, queue, entries: connect.entries, context, peer, account };
        let Some(more) = queue.authenticate(&mut beginning, &mut authentication).await? else {
            return Ok(None);
        };
        fetched += more;
        if let Some(namespaces) = &controller.namespaces {
            namespaces.has_proved(&authentication.keys().host);
        }
    }
    Ok(Some(Connected {
        controller,
        guard,
        registered,
        queue: connect.queue,
        entries: u16::try_from(connect.entries).unwrap_or(QUEUE_ENTRIES),
        framing,
        no_flow_control: connect.no_flow_control,
        fetched,
        input: beginning.input,
    }))
}

/// The first command has to be a Connect with its data in the capsule.
fn parse(sqe: &Sqe, data: &[u8], intact: bool) -> Result<(Connect, ConnectData), Status> {
    let connect = match Fabrics::decode(sqe) {
        Some(Ok(Fabrics::Connect(connect))) => connect,
        Some(Err(status)) => return Err(status),
        _ => return Err(Status::SEQUENCE_ERROR),
    };
    match sqe.sgl()? {
        Sgl::InCapsule { offset: 0, len: CONNECT_DATA } => {}
        Sgl::InCapsule { .. } => return Err(Status::SGL_LENGTH_INVALID),
        Sgl::Transport { .. } => return Err(Status::SGL_TYPE_INVALID),
    }
    if !intact {
        return Err(Status::TRANSIENT_TRANSPORT_ERROR);
    }
    if connect.entries < 2 || connect.entries > QUEUE_ENTRIES.into() || connect.queue > MAX_QUEUES {
        return Err(Status::CONNECT_INVALID);
    }
    Ok((connect, ConnectData::decode(data)?))
}

type Refused = (Status, &'static str);

async fn admit(
    context: &Arc<Context>,
    connect: &Connect,
    data: &ConnectData,
    peer: SocketAddr,
    fd: i32,
) -> Result<Admitted, Refused> {
    let invalid = (Status::CONNECT_INVALID_HOST, "the name of the host is invalid");
    let host: IqnName = data.host.parse().ok().filter(IqnName::is_nqn).ok_or(invalid)?;
    if context.pool.is_fenced() {
        return Err((Status::CONNECT_BUSY, "another server has opened the pool"));
    }
    if connect.queue > 0 {
        let none = (Status::CONNECT_INVALID, "there is no such controller, or the queue is connected");
        let controller = context.registry.find(data.controller).ok_or(none)?;
        if !controller.is_of(&host, data.host_id, &data.subsystem) || controller.namespaces.is_none() {
            return Err(none);
        }
        if !controller.is_ready() {
            return Err((Status::SEQUENCE_ERROR, "the controller is not enabled"));
        }
        let target = controller.namespaces.as_ref().and_then(|own| context.targets.get(&own.target));
        let keys = target.map(|target| keys(&target, &host, &data.subsystem)).ok_or(none)?;
        let guard = controller.connect(connect.queue, fd).ok_or(none)?;
        return Ok((controller, guard, None, keys));
    }
    // Controllers are dynamic.
    if data.controller != u16::MAX {
        return Err((Status::CONNECT_INVALID, "a certain controller was requested"));
    }
    let target = match data.subsystem.as_str() {
        DISCOVERY_NQN => None,
        name => Some(find(context, name, &host)?),
    };
    let busy = |status| (status, "a limit on controllers is reached, or a former controller has not ended");
    let keys = target.as_ref().and_then(|target| keys(target, &host, &data.subsystem));
    context.registry.end_gone(&host, data.host_id, &data.subsystem).await.map_err(busy)?;
    let made = context.registry.begin(peer.ip(), |id| {
        let names = (host.clone(), data.host_id);
        let namespaces = target.map(|target| Namespaces::new(context.clone(), &target, names));
        let subsystem = data.subsystem.clone();
        Controller::new(id, (host.clone(), data.host_id), subsystem, namespaces, connect.keep_alive_ms)
    });
    let (registered, controller) = made.map_err(busy)?;
    let ended = (Status::CONNECT_BUSY, "the controller has ended");
    let guard = controller.connect(0, fd).ok_or(ended)?;
    Ok((controller, guard, Some(registered), keys))
}

/// What a host of a target has to prove, if it has to prove anything.
fn keys(target: &Target, host: &IqnName, subsystem: &str) -> Option<(Keys, Account)> {
    let key = target.admission(host)?.dhchap?.clone();
    let keys = Keys {
        host: key,
        subsystem: target.dhchap.clone(),
        host_name: host.clone(),
        subsystem_name: subsystem.to_owned(),
    };
    Some((keys, Account::at(target, host)))
}

/// A queue whose host is not authenticated yet.
struct Unproved<'a> {
    framing: Framing,
    queue: u16,
    entries: u32,
    context: &'a Context,
    peer: SocketAddr,
    account: Account,
}

impl Unproved<'_> {
    /// Serves commands until the host is authenticated. Returns their number; `None` if the host has closed
    /// the connection.
    async fn authenticate(
        &self,
        beginning: &mut Beginning<'_>,
        authentication: &mut Authentication,
    ) -> Result<Option<u16>, End> {
        for n in 1..=UNAUTHENTICATED_MAX {
            let next = beginning.next(Phase::Established, self.framing.digests, |pdu| match pdu {
                Pdu::Command { sqe, data, intact } => Some((*sqe, data.to_vec(), *intact)),
                _ => None,
            });
            let Some(Some((sqe, data, intact))) = next.await? else { return Ok(None) };
            let served = match Fabrics::decode(&sqe) {
                Some(Ok(Fabrics::AuthSend(len))) => {
                    self.receive(&sqe, (len, &data, intact), authentication).await.map(|()| Vec::new())
                }
                Some(Ok(Fabrics::AuthReceive(room))) if sqe.sgl() == Ok(Sgl::Transport { len: room }) => {
                    authentication.send(room)
                }
                Some(Ok(Fabrics::AuthReceive(_))) => Err(Status::SGL_LENGTH_INVALID),
                Some(Err(status)) if matches!(sqe.fabrics_type(), 5 | 6) => Err(status),
                _ => Err(Status::AUTHENTICATION_REQUIRED),
            };
            let (message, status) = match served {
                Ok(message) => (message, Status::SUCCESS),
                Err(status) => (Vec::new(), status),
            };
            let head = ((1 + n) % self.entries.max(1) as usize) as u16;
            let mut answer = Vec::new();
            if !message.is_empty() {
                answer = self.framing.data_header(sqe.id(), message.len(), false);
                answer.extend_from_slice(&message);
                self.framing.data_digest(&message, &mut answer);
            }
            let completion = Completion { command: sqe.id(), queue: self.queue, head, result: 0, status };
            self.framing.complete(&completion, &mut answer);
            beginning.stream.write_all(&answer).await?;
            if authentication.is_done() {
                return Ok(Some(n as u16));
            }
            if authentication.has_ended() {
                return Err(End::Refused("its host has not proved its identity"));
            }
        }
        Err(End::Refused("its host does not authenticate itself"))
    }

    /// Serves an Authentication Send.
    async fn receive(
        &self,
        sqe: &Sqe,
        (len, data, intact): (u32, &[u8], bool),
        authentication: &mut Authentication,
    ) -> Result<(), Status> {
        match sqe.sgl()? {
            Sgl::InCapsule { offset: 0, len: held } if held == len && data.len() == len as usize => {}
            Sgl::InCapsule { .. } => return Err(Status::SGL_LENGTH_INVALID),
            Sgl::Transport { .. } => return Err(Status::SGL_TYPE_INVALID),
        }
        if !intact {
            return Err(Status::TRANSIENT_TRANSPORT_ERROR);
        }
        if data.len() > AUTH_MESSAGE_MAX {
            return Err(Status::INVALID_FIELD);
        }
        match authentication.receive(data) {
            Next::Continue => {}
            Next::Challenge(hash, group) => {
                let made = aside(move || Challenge::new(hash, group)).await;
                authentication.challenge(made.unwrap_or(Err(AuthFailure::Failed)));
            }
            Next::Check(check) => {
                let turn = self.context.attempts.turn(&self.account, self.peer.ip()).await;
                let Ok(turn) = turn else {
                    authentication.fail(AuthFailure::Failed);
                    return Ok(());
                };
                let (keys, transaction) = (authentication.keys().clone(), authentication.transaction());
                let checked = aside(move || check.run(&keys, transaction)).await;
                let checked = checked.unwrap_or(Err(AuthFailure::Failed));
                match &checked {
                    Ok(_) => turn.succeeded(),
                    Err(_) => turn.failed(),
                }
                authentication.checked(checked);
            }
        }
        Ok(())
    }
}

/// Runs a computation that takes milliseconds on a thread that serves no connection. One such computation
/// runs at a time, so that hosts that are not authenticated use at most one core. `None` if it panics.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    static ONE: Semaphore = Semaphore::const_new(1);
    let permit = ONE.acquire().await.ok()?;
    let work = move || {
        let _permit = permit;
        work()
    };
    tokio::task::spawn_blocking(work).await.ok()
}

/// The target with this NVMe name, if it admits the host.
fn find(context: &Context, subsystem: &str, host: &IqnName) -> Result<Arc<Target>, Refused> {
    let none = (Status::CONNECT_INVALID_HOST, "there is no such subsystem, or the host has no access to it");
    let names = IqnName::of_subsystem(subsystem).ok_or(none)?;
    let target = names.iter().find_map(|name| context.targets.get(name)).ok_or(none)?;
    if target.admission(host).is_some() && !admits(&target, host) {
        let why = "the target requires authentication, and its entry for the host has no key";
        return Err((Status::CONNECT_INVALID_HOST, why));
    }
    if admits(&target, host) { Ok(target) } else { Err(none) }
}
