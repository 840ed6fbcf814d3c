//! NBD clients of any shard.
//!
//! **Invariant.** The client of a connection sees replies that a single server could have given. Each request
//! is answered at most once, and an answer is never undone: a takeover, a handover or a restart of the owner
//! is a pause for the client. Where that cannot be kept, the connection ends, as with a server that ends.
//!
//! The gateway negotiates with the client (`negotiate`), opens the export at the owner of its shard
//! (`owner`), and relays requests and replies (`transmission`). It keeps each request until the request
//! is answered (`requests`). If the connection to the owner ends, the gateway opens the export at the
//! present owner (`connector`), and sends the unanswered requests again, in their order.
//!
//! # Why requests can be sent again
//!
//! *Answers last.* The owner's process serves nodes on a separate listener (the relay listener), so it
//! answers writes only when they are durable, whatever the pool's setting for remote clients is, and reads
//! return only durable data. So every write that was answered to the client is in the pool that the next
//! owner opens. Volumes that are never synced, and desktops, are an exception: their writes are answered in
//! memory. The owner names this memory ([`RelayInfo::memory`](forebay_wire::nbd::RelayInfo)). If the next
//! owner names another memory, the node does not continue the connection: the connection ends. The engine
//! refuses such a client too, until an administrator has resumed the disk.
//!
//! *The contents are the same.* A rollback, a reset and a shrinking need a disk without clients, which a disk
//! is in an outage. The owner counts them for each opening of the pool
//! ([`RelayInfo::replacements`](forebay_wire::nbd::RelayInfo)). The gateway continues if the opening and the
//! count are the same as before, or with another opening if the count is 0. A replacement by an owner that
//! was lost again in the same outage is not noticed.
//!
//! *Unanswered requests may be executed again.* All requests of NBD are idempotent: a request that is
//! executed twice without another change to its range in between has the effect of one execution. Suppose
//! that a change W is unanswered at the end of a connection to an owner. W may have been executed, in part or
//! as a whole, and a read that was answered may have returned its data.
//!
//! - Another change of this connection to a byte of W was either answered before W was sent, or was not sent
//!   yet: `requests` sends a change only when no earlier overlapping change is unanswered. So between the
//!   executions of W no other change of this connection was executed in its range. Without this rule, a
//!   client could read W, overwrite it with an answered W', and find W again after a takeover.
//! - An execution of W at a former owner has ended, or never takes effect, before the next owner executes W.
//!   If the server is the same, it ends the connections of a client that is connected again before it answers
//!   `OPT_GO` (`nbd/attachments.rs` of the front end; [`NbdClient::generation`]). If the pool has moved,
//!   operations of the former owner fail (ADR 23).
//! - A change W' of another connection that overlaps W, and was made while W was unanswered, is concurrent
//!   with W: each order is permitted. But if W took effect, then W' (answered), and then W again, a reader
//!   that saw all three states sees W twice. Two connections that change one range at the same time, and a
//!   third request that observes it, need a protocol above NBD anyway. This is the only known deviation.
//! - Reads and block status queries are executed as a whole again, and the client receives each chunk once
//!   (`replies`). Parts of a reply can result from two executions, both between the request and its end; a
//!   server also executes the parts of a long read one after another.
//! - A flush covers the changes that were answered before it was sent. These are durable at each owner, or in
//!   the memory that the same owner flushes. A flush that is sent again covers them as well.
//!
//! *A request that was answered with an error* was answered: it is not sent again. `ESHUTDOWN` is not an
//! answer but the end of the owner.
//!
//! # A client that moves to another node
//!
//! A client that loses its node connects to another one, and repeats its unanswered requests there. Requests
//! that the former node still holds must not overwrite the client's later writes. While the former node is
//! connected to the owner, it ends its stream when it sees the end of its client, and the owner's doubt
//! covers the time until then. If the former node was cut off as well, it connects again later. With
//! unanswered changes, or bytes that may be a part of one, it then needs a proof that its client is still
//! connected ([`Presence`]):
//!
//! - if the owner reports that another client has opened the disk since the last answer of the owner;
//! - and in any case if the owner has opened the pool again, because the owner may not yet know of the other
//!   client. This does not apply to a client that has sent `NBD_CMD_DISC`.
//!
//! The proof is of the time after the owner was connected: from then on, the owner's doubt applies. Bytes of
//! the client are no proof, since they can be older than the end of the client.
//!
//! What remains is a former node that is connected to the owner, and does not see the end of its client,
//! because the network dropped it, or because more unread data precedes it than the gateway's buffer holds.
//! And the host of a client that has closed its TCP socket answers for the client until the end of the stream
//! has arrived; so does a proxy in between.
//!
//! # Memory
//!
//! A connection holds at most `limits::MAX_HELD` for unanswered requests and their replies, and its
//! buffers. All connections share a budget (`memory`).
//!
//! # For other front ends
//!
//! `requests`, `replies` and `connector` do not use the client's stream. An agent on the host of a
//! guest can use them with another source of requests.

mod connector;
mod end;
mod limits;
mod memory;
mod negotiate;
mod owner;
mod presence;
mod replies;
mod requests;
mod transmission;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use forebay_wire::nbd::{
    CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES, Preamble, RequestHeader,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use self::connector::{Connected, Connector};
pub use self::end::End;
use self::limits::{PROOF, PROOF_STEP};
use self::memory::{Account, Budget};
use self::negotiate::{Negotiated, negotiate};
pub use self::presence::Presence;
use self::transmission::{Step, Transmission};
use crate::{NbdClient, Shards};

impl NbdClient {
    /// The first bytes of a connection to the relay listener of the process of a shard (`relay.sock`).
    /// [`Shards::connect_nbd`] sends them where it opens this connection.
    pub fn preamble(&self) -> Vec<u8> {
        let NbdClient { id, generation, age_ms, name } = self.clone();
        Preamble { id, generation, age_ms, name }.encode()
    }
}

/// Settings of a gateway.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Bytes of the unanswered requests of all connections and of their replies. Each connection has some
    /// memory in addition.
    pub memory: usize,
    /// Time after which a client is disconnected if no owner of its export can be reached.
    pub outage: Duration,
    /// Maximum number of clients that have not chosen an export.
    pub negotiating: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { memory: 512 << 20, outage: Duration::from_secs(120), negotiating: 1024 }
    }
}

/// The kinds of requests that a gateway counts.
pub const OPERATIONS: [&str; 5] = ["read", "write", "discard", "flush", "other"];

/// Figures of a gateway since its start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Number of clients that are connected now.
    pub clients: AtomicU64,
    /// Number of requests that were received, by [`OPERATIONS`].
    pub requests: [AtomicU64; OPERATIONS.len()],
    /// Bytes of the ranges of these requests.
    pub bytes: [AtomicU64; OPERATIONS.len()],
    /// Number of clients that were connected to another owner, or again to the same one, without their
    /// knowledge.
    pub reconnected: AtomicU64,
    /// Number of requests that were sent again.
    pub repeated: AtomicU64,
    /// Number of clients that were disconnected because of an outage: [`End::Gone`], [`End::Changed`],
    /// [`End::Outage`], [`End::Moved`], [`End::Torn`] and [`End::Owner`].
    pub given_up: AtomicU64,
    /// The part of these clients that had received a part of a read which could not be continued.
    pub torn: AtomicU64,
}

/// Serves NBD clients of the whole cluster.
pub struct Gateway {
    shards: Arc<dyn Shards>,
    identity: String,
    settings: Settings,
    budget: Arc<Budget>,
    negotiating: Semaphore,
    connections: AtomicU64,
    counters: Arc<Counters>,
}

impl Counters {
    /// Counts a request of a client.
    fn received(&self, header: &RequestHeader) {
        let operation = match header.kind {
            CMD_READ => 0,
            CMD_WRITE => 1,
            CMD_TRIM | CMD_WRITE_ZEROES => 2,
            CMD_FLUSH => 3,
            _ => 4,
        };
        self.requests[operation].fetch_add(1, Relaxed);
        self.bytes[operation].fetch_add(header.len.into(), Relaxed);
    }
}

/// A client that is counted until it is dropped.
struct Counted<'a>(&'a AtomicU64);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicU64) -> Counted<'a> {
        count.fetch_add(1, Relaxed);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Gateway {
    /// A gateway. No other gateway of the cluster, of another process or of an earlier start, may have the
    /// same `identity`.
    pub fn new(identity: &str, shards: Arc<dyn Shards>, settings: Settings) -> Arc<Gateway> {
        Arc::new(Gateway {
            shards,
            identity: identity.to_owned(),
            settings,
            budget: Budget::new(settings.memory),
            negotiating: Semaphore::new(settings.negotiating.min(Semaphore::MAX_PERMITS)),
            connections: AtomicU64::new(0),
            counters: Arc::default(),
        })
    }

    /// The figures of the gateway.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Bytes of the shared memory that connections hold; see [`Settings::memory`].
    pub fn held_memory(&self) -> usize {
        self.budget.held()
    }

    /// Serves one client, until it leaves or has to be disconnected. `name` is the client for administrators.
    /// The caller disables the delay of small packets on a TCP socket (`TCP_NODELAY`), enables keepalive, and
    /// limits the number of connections. `presence` tells whether the client is still connected.
    ///
    /// # Errors
    /// Why the client was disconnected; also in the log.
    pub async fn serve<C>(&self, client: C, presence: &dyn Presence<C>, name: &str) -> Result<(), End>
    where
        C: AsyncRead + AsyncWrite + Send + Unpin,
    {
        let _counted = Counted::new(&self.counters.clients);
        let served = self.serve_to_the_end(client, presence, name).await;
        match &served {
            Ok(()) => {}
            Err(
                end @ (End::Gone { .. }
                | End::Changed { .. }
                | End::Outage { .. }
                | End::Moved { .. }
                | End::Torn { .. }
                | End::Owner { .. }),
            ) => {
                self.counters.given_up.fetch_add(1, Relaxed);
                self.counters.torn.fetch_add(u64::from(matches!(end, End::Torn { .. })), Relaxed);
                tracing::warn!(client = name, "an NBD client was disconnected: {end}");
            }
            Err(end) => tracing::info!(client = name, "an NBD connection ended: {end}"),
        }
        served
    }

    async fn serve_to_the_end<C>(&self, client: C, presence: &dyn Presence<C>, name: &str) -> Result<(), End>
    where
        C: AsyncRead + AsyncWrite + Send + Unpin,
    {
        let id = format!("{}.{}", self.identity, self.connections.fetch_add(1, Relaxed));
        let mut account = Account::new(self.budget.clone());
        let negotiated = {
            let _permit = self.negotiating.try_acquire().map_err(|_| End::Busy)?;
            // Boxed, so that a connection does not keep the memory of its negotiation.
            Box::pin(negotiate(client, (&id, name), &self.shards, &mut account)).await?
        };
        let Some(Negotiated { client, input, export, owner }) = negotiated else { return Ok(()) };
        let mut transmission =
            Transmission::new(client, &input, export.structured, account, self.counters.clone());
        let connector =
            Connector::new(self.shards.clone(), export, owner.client.clone(), self.settings.outage);
        let asked = owner.asked;
        let (stream, received) = owner.into_transmission();
        transmission.restart(stream, &received, asked);
        self.transmit(transmission, connector, presence, name).await
    }

    async fn transmit<C>(
        &self,
        mut transmission: Transmission<C>,
        mut connector: Connector,
        presence: &dyn Presence<C>,
        name: &str,
    ) -> Result<(), End>
    where
        C: AsyncRead + AsyncWrite + Send + Unpin,
    {
        loop {
            let before = transmission.replies.completed;
            let why = match poll_fn(|cx| transmission.poll_run(cx, &connector.export().name)).await? {
                Step::Left => break,
                Step::Lost(why) => why,
            };
            if transmission.replies.is_dismissed {
                transmission.finish().await;
                return Err(End::Disconnected);
            }
            let (begin, export) = (Instant::now(), connector.export().name.clone());
            connector.lost(transmission.replies.completed > before);
            tracing::debug!(client = name, export, why, "connecting an NBD client again");
            let Some(connected) = outage(&mut transmission, &mut connector, presence).await? else {
                return Ok(());
            };
            let repeated = transmission.restart(connected.stream, &connected.input, connected.asked);
            self.counters.reconnected.fetch_add(1, Relaxed);
            self.counters.repeated.fetch_add(repeated as u64, Relaxed);
            let ms = begin.elapsed().as_millis();
            tracing::info!(
                client = name,
                export,
                repeated,
                "connected an NBD client again after {ms} ms: {why}"
            );
        }
        transmission.finish().await;
        Ok(())
    }
}

/// Connects a client again while its requests are received. `None` if the client has left.
async fn outage<C: AsyncRead + AsyncWrite + Send + Unpin>(
    transmission: &mut Transmission<C>,
    connector: &mut Connector,
    presence: &dyn Presence<C>,
) -> Result<Option<Connected>, End> {
    let connected = {
        let mut connecting = pin!(connector.again());
        poll_fn(|cx| match transmission.poll_client(cx) {
            Poll::Ready(left) => Poll::Ready(left.map(|()| None)),
            Poll::Pending => connecting.as_mut().poll(cx).map_ok(Some),
        })
        .await?
    };
    let Some(connected) = connected else { return Ok(None) };
    let is_newer = connected.newer_client.is_some_and(|newer| newer > transmission.owner_seen);
    // A client that has disconnected in order cannot prove anything, and expects that its requests are
    // executed.
    let may_be_newer = connected.is_other_opening && !transmission.is_leaving();
    if !(is_newer || may_be_newer) || !transmission.may_hold_changes() {
        return Ok(Some(connected));
    }
    presence.ask(transmission.client(), true);
    let proved = prove(transmission, presence).await;
    presence.ask(transmission.client(), false);
    match proved? {
        Proved::Connected => Ok(Some(connected)),
        Proved::Left => Ok(None),
        Proved::Nothing => Err(End::Moved { export: connector.export().name.clone() }),
    }
}

/// The result of a proof.
enum Proved {
    /// The client is connected.
    Connected,
    /// The client has left.
    Left,
    /// The client has closed its connection, or is not known to be connected.
    Nothing,
}

/// Waits for a sign that the client is connected now, while its requests are received.
async fn prove<C: AsyncRead + AsyncWrite + Send + Unpin>(
    transmission: &mut Transmission<C>,
    presence: &dyn Presence<C>,
) -> Result<Proved, End> {
    let begin = Instant::now();
    while begin.elapsed() < PROOF {
        match presence.last_sign(transmission.client()) {
            Some(ago) if ago <= begin.elapsed() => return Ok(Proved::Connected),
            Some(_) => {}
            None => return Ok(Proved::Nothing),
        }
        let mut step = pin!(sleep(PROOF_STEP));
        let left = poll_fn(|cx| match transmission.poll_client(cx) {
            Poll::Ready(left) => Poll::Ready(left.map(|()| true)),
            Poll::Pending => step.as_mut().poll(cx).map(|()| Ok(false)),
        });
        if left.await? {
            return Ok(Proved::Left);
        }
    }
    Ok(Proved::Nothing)
}
