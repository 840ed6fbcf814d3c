//! The connections that are attached to each disk. A new connection starts only after earlier connections
//! whose peers are gone have ended.
//!
//! **Invariant.** When [`Attachments::attach`] returns, no request of an earlier connection whose peer had
//! closed or lost its socket before the call can change the disk any more. Without it, a write that a client
//! never saw answered could land after newer writes that the client made over its next connection.
//!
//! NBD does not identify clients, so the rule applies to all connections of a disk. The socket decides which
//! of them are gone, at the moment of the call, since a connection does not notice the end of its peer while
//! it is throttled. A connection that is gone
//!
//! - stops executing its input; the rest is only searched for `NBD_CMD_DISC`;
//! - drops its requests, wherever they wait: each block is written or not, as for any unanswered write;
//! - but completes them if its `NBD_CMD_DISC` was read before: the protocol requires that, also of a client
//!   that does not wait for the replies. [`LEAVE_TIME`] limits it, for instance on a full store.
//!
//! Connections whose peer is connected are not waited for (`NBD_FLAG_CAN_MULTI_CONN`), with one exception.
//! The end of a TCP stream cannot be seen before all bytes that precede it were received, and the server does
//! not receive from a throttled client. So while a TCP connection has input that was not read, an attachment
//! waits until this input, and what the buffers of both hosts may hold behind it, was executed
//! ([`IN_FLIGHT`]). It is refused if that takes longer than [`CATCH_UP`]. After much input was read, more
//! input may follow from the buffers of the client's host, for which the buffers of this host had no room. So
//! for [`AFTER_BURST`] the attachment waits for the end of such a connection.
//!
//! A busy client would lengthen this wait with each burst of input. But if a peer acknowledges bytes that
//! were sent after the attachment began, the peer is connected: a host answers data for a closed socket with
//! RST (RFC 1122, 4.2.2.13). After such an acknowledgement, later bursts do not lengthen the wait. The wait
//! that has begun is completed, because the client may be behind a proxy: the host of the proxy acknowledges
//! bytes that the client no longer receives.
//!
//! **Late packets.** The end of a TCP connection is not visible if the network dropped the last packets of a
//! client. The client's kernel sends them again, for minutes, also after the client has closed its socket and
//! has written newer data over its next connection. So from a newer attachment on, the earlier TCP
//! connections of the disk are in *doubt*. A change that arrives over a connection in doubt is executed only
//! after the peer proved that it is connected: it acknowledged bytes that were sent since the newer
//! attachment, or the end of the stream did not arrive within [`LATE_END`] after the request. The last packet
//! of a closed socket carries the end of the stream with the data, or is followed by it. A connection that
//! ends in this time is gone: the change is dropped.
//!
//! **Nodes of a cluster** forward connections of clients, over UNIX sockets. A node that connects its client
//! again, with a higher generation, ends the former socket before. The new connection supersedes the former
//! one in any case, and a connection with a lower generation than another one of the same client is refused.
//! Two rules keep a client that moves to another node from being overtaken by what its former node still
//! holds:
//!
//! - An earlier connection of a node is in doubt from the attachment of a *new* client on, as a TCP
//!   connection is. Only the time can end this doubt: the node that holds changes of a client that is gone
//!   ends its socket within [`LATE_END`]. Time in which input of the connection is unread does not count, up
//!   to [`UNREAD_END`], since the end of the socket may wait behind it.
//! - A node that connects its client again learns when another client attached for the first time, also to
//!   another owner ([`Attachments::since_newer_client`]). It sends changes again only if its own client
//!   proves that it is connected. The new connection is in doubt too if the disk has had another client.
//!
//! A client is new if this server does not know its identity, for instance after a takeover.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use forebay_wire::nbd::Preamble;
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use super::traffic::{Output, unread_input};
use crate::plane::RawSocket;
use crate::plane::has_hung_up;

/// Time limit for the end of connections whose peer is gone.
const HANDOVER: Duration = Duration::from_secs(10);
/// Time that requests have to end if they were sent before an `NBD_CMD_DISC`; then they are dropped.
const LEAVE_TIME: Duration = Duration::from_secs(5);
/// Time limit for the search for `NBD_CMD_DISC` in the input.
const SEARCH_TIME: Duration = Duration::from_secs(5);
/// Bytes that the socket buffers of both ends of a TCP connection can hold: several times the largest sizes
/// that Linux sets automatically (`tcp_wmem`, `tcp_rmem`).
const IN_FLIGHT: u64 = 32 << 20;
/// Time limit, and interval, of the wait for the unread input of other TCP connections.
const CATCH_UP: Duration = Duration::from_secs(10);
const CATCH_UP_STEP: Duration = Duration::from_millis(5);
/// Number of intervals without unread input after which a peer counts as connected.
const QUIET_STEPS: u32 = 4;
/// Bytes after which the window of a TCP connection may have been closed: less than the smallest window.
const BURST: u64 = 16 << 10;
/// Time after a burst after which a peer counts as connected. If the window was closed, the host of the peer
/// learns that it is open and continues to send within this time: at the latest by a timer of 200 ms, and
/// later if it is busy.
const AFTER_BURST: Duration = Duration::from_millis(500);
/// Time within which the end of a stream follows its last data.
const LATE_END: Duration = Duration::from_millis(200);
/// Time limit of the doubt of a connection of a node whose input is not read, because its requests in
/// progress wait for the end of the doubt.
const UNREAD_END: Duration = Duration::from_secs(2);
/// Time for which it is remembered that a client opened a disk: longer than a node tries to connect its
/// client again.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The error if requests of an earlier connection do not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("requests of an earlier connection to this disk have not ended yet; connect again")]
pub(super) struct StillUnderWay;

/// The connections of all disks.
#[derive(Default)]
pub(super) struct Attachments {
    disks: Mutex<HashMap<String, OfDisk>>,
}

/// The connections of one disk.
#[derive(Default)]
struct OfDisk {
    connections: Vec<Weak<Shared>>,
    /// The last two clients that opened the disk for the first time, and when. A client of this server has no
    /// identity.
    newest: Vec<(Option<String>, Instant)>,
}

/// The state of one connection that other connections use.
#[derive(Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Signalled when the state changes in a way for which other connections wait.
    changed: Notify,
    /// Bytes of requests that were taken from the input, whether they were executed, refused or dropped.
    served: AtomicU64,
    /// Whether the socket is a TCP connection.
    is_tcp: AtomicBool,
    /// The client of a connection that a node forwards.
    relayed: OnceLock<Preamble>,
    /// The last burst of input that was read from a TCP connection.
    burst: Mutex<Burst>,
    /// A newer connection to the disk was attached, and this connection's peer has not proved since that it
    /// is connected.
    is_in_doubt: AtomicBool,
    /// Number of output bytes that were written when the doubt began; `None` if the kernel does not report
    /// it.
    written_before: Mutex<Option<u64>>,
}

/// A burst: input that followed other input closely.
#[derive(Default)]
struct Burst {
    bytes: u64,
    last: Option<Instant>,
}

impl Burst {
    fn add(&mut self, bytes: u64, now: Instant) {
        let follows = self.last.is_some_and(|last| now - last < AFTER_BURST);
        self.bytes = if follows { self.bytes.saturating_add(bytes) } else { bytes };
        self.last = Some(now);
    }

    /// Whether input may follow that the peer has sent already.
    fn may_continue(&self, now: Instant) -> bool {
        self.bytes >= BURST && self.last.is_some_and(|last| now - last < AFTER_BURST)
    }
}

#[derive(Default)]
struct State {
    /// The socket, while it is open.
    socket: Option<Peer>,
    /// Wakes the task of the connection.
    waker: Option<Waker>,
    /// An administrator ends the connection.
    disconnected: bool,
    /// The same client is attached again.
    is_replaced: bool,
    /// The connection has to stop executing its input.
    superseded: bool,
    /// Whether the connection has stopped executing its input.
    stopped: bool,
    /// Whether `NBD_CMD_DISC` was received from the client.
    leaving: bool,
    /// The requests of the connection have to be dropped.
    cancelled: bool,
    /// The connection has ended; some of its requests may still run.
    ended: bool,
    /// Number of the connection's requests in tasks.
    requests: usize,
}

/// Access to the socket of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    pub fd: RawFd,
    /// The socket is a TCP socket: the end of the stream is visible only after all its bytes were read.
    pub is_tcp: bool,
}

impl Peer {
    /// The client of a connection that another process handed over.
    pub fn of(socket: &RawSocket) -> Peer {
        match socket {
            RawSocket::Unix(s) => Peer { fd: s.as_raw_fd(), is_tcp: false },
            RawSocket::Tcp(s) => Peer { fd: s.as_raw_fd(), is_tcp: true },
        }
    }
}

impl State {
    fn is_gone(&self) -> bool {
        self.ended || self.is_replaced || self.socket.is_some_and(|peer| has_hung_up(peer.fd))
    }

    /// Whether no request of the connection can change the disk any more.
    fn is_quiet(&self) -> bool {
        (self.stopped || self.ended) && self.requests == 0
    }
}

impl Shared {
    /// Waits until the state is as `wanted`.
    async fn until(&self, wanted: impl Fn(&State) -> bool) {
        loop {
            // The future receives notifications from its creation on.
            let changed = self.changed.notified();
            if wanted(&self.state.lock()) {
                return;
            }
            changed.await;
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_waiters();
    }

    /// Stops the connection if its peer is gone. Returns whether the peer is gone.
    fn supersede_if_gone(&self) -> bool {
        let mut state = self.state.lock();
        if !state.is_gone() {
            return false;
        }
        state.superseded = true;
        state.cancelled |= !state.leaving;
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_waiters();
        waker.into_iter().for_each(Waker::wake);
        true
    }

    /// Waits until the superseded connection cannot change its disk any more. Also waits a short time until
    /// it has searched its input.
    async fn end(&self, begin: Instant) -> Result<(), StillUnderWay> {
        if timeout_at(begin + LEAVE_TIME, self.until(State::is_quiet)).await.is_err() {
            self.change(|state| state.cancelled = true);
        }
        let quiet = timeout_at(begin + HANDOVER, self.until(State::is_quiet)).await;
        quiet.map_err(|_| StillUnderWay)?;
        // A disconnect that is not found in time counts as a lost connection, which keeps all data.
        let _ = timeout_at(begin + SEARCH_TIME, self.until(|state| state.ended)).await;
        Ok(())
    }

    /// Bytes of input of a TCP connection that were not read. While there are such bytes, they may hide that
    /// the peer is gone.
    fn unread(&self) -> u64 {
        let state = self.state.lock();
        state.socket.filter(|peer| peer.is_tcp).map_or(0, |peer| unread_input(peer.fd))
    }

    /// Whether input of the connection of a node was not read: its end may wait behind this input, where the
    /// node of this server receives it.
    fn may_hide_end(&self) -> bool {
        let state = self.state.lock();
        self.relayed.get().is_some() && state.socket.is_some_and(|peer| unread_input(peer.fd) > 0)
    }

    /// The output of the connection; `None` if it does not use TCP.
    fn output(&self) -> Option<Output> {
        let state = self.state.lock();
        state.socket.filter(|peer| peer.is_tcp).and_then(|peer| Output::of(peer.fd))
    }

    /// Begins the doubt, because a newer connection is about to be attached.
    fn doubt(&self) {
        if self.is_tcp.load(Relaxed) || self.relayed.get().is_some() {
            let mut before = self.written_before.lock();
            *before = self.output().map(|output| output.written);
            self.is_in_doubt.store(true, Relaxed);
        }
    }

    /// Ends the doubt if the peer has proved that it is connected, or if `is_over` states that the time for
    /// the proof is over.
    fn end_doubt(&self, is_over: bool) -> bool {
        let before = self.written_before.lock();
        let received = self.output().map(|output| output.received);
        let ends = is_over || before.zip(received).is_some_and(|(before, received)| received > before);
        if ends {
            self.is_in_doubt.store(false, Relaxed);
        }
        ends
    }

    /// Waits while the connection is in doubt. Returns false if the peer is gone.
    async fn is_connected(&self) -> bool {
        let begin = Instant::now();
        let mut deadline = begin + LATE_END;
        while self.is_in_doubt.load(Relaxed) {
            if self.supersede_if_gone() {
                return false;
            }
            let now = Instant::now();
            if now < begin + UNREAD_END && self.may_hide_end() {
                deadline = now + LATE_END;
            }
            if !self.end_doubt(now >= deadline) {
                sleep(CATCH_UP_STEP).await;
            }
        }
        true
    }

    /// Waits while input that was sent before the call may hide the end of the stream.
    async fn catch_up(&self, deadline: Instant) -> Result<(), StillUnderWay> {
        let before = self.served.load(Relaxed);
        let written = self.output().map(|output| output.written);
        let mut is_connected = false;
        let mut unread = self.unread();
        let mut quiet = if unread > 0 { 0 } else { QUIET_STEPS };
        // Time since which only a burst may hide the end.
        let mut settled = None;
        while !self.state.lock().is_gone() && self.served.load(Relaxed) - before < IN_FLIGHT {
            let now = Instant::now();
            if unread >= BURST && !is_connected {
                settled = None;
            } else if quiet >= QUIET_STEPS {
                let since = *settled.get_or_insert(now);
                if now - since >= AFTER_BURST || !self.burst.lock().may_continue(now) {
                    return Ok(());
                }
            }
            if now >= deadline {
                return Err(StillUnderWay);
            }
            sleep(CATCH_UP_STEP).await;
            let received = self.output().map(|output| output.received);
            is_connected |= written.zip(received).is_some_and(|(written, received)| received > written);
            unread = self.unread();
            quiet = if unread > 0 { 0 } else { quiet + 1 };
        }
        Ok(())
    }
}

impl Attachments {
    /// Ends the connections of a disk that are gone, before another client is attached. Unless the client was
    /// attached before, puts the remaining ones in doubt; see the module documentation. `relayed` is the
    /// client of a node.
    ///
    /// # Errors
    /// [`StillUnderWay`] if one of them does not end, or cannot be examined, in time.
    pub async fn end_gone(&self, disk: &str, relayed: Option<&Preamble>) -> Result<(), StillUnderWay> {
        let others = self.of(disk);
        for (preamble, other) in
            relayed.into_iter().flat_map(|preamble| others.iter().map(move |o| (preamble, o)))
        {
            match other.relayed.get().filter(|former| former.id == preamble.id) {
                Some(newer) if newer.generation > preamble.generation => return Err(StillUnderWay),
                Some(_) => other.change(|state| state.is_replaced = true),
                None => {}
            }
        }
        let begin = Instant::now();
        try_join_all(others.iter().map(|other| other.catch_up(begin + CATCH_UP))).await?;
        let begin = Instant::now();
        // All connections are stopped before the first of them is waited for.
        let (gone, connected): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|other| other.supersede_if_gone());
        if relayed.is_none_or(|preamble| self.is_new(disk, preamble)) {
            connected.iter().for_each(|other| other.doubt());
        }
        for other in gone {
            other.end(begin).await?;
        }
        Ok(())
    }

    /// Attaches a connection to a disk that it can change. `relayed` is the client of a node.
    pub fn attach(&self, disk: &str, relayed: Option<&Preamble>) -> Attachment {
        let attachment = Attachment::default();
        if let Some(preamble) = relayed {
            attachment.0.relayed.get_or_init(|| preamble.clone());
        }
        let mut disks = self.disks.lock();
        let of_disk = disks.entry(disk.to_owned()).or_default();
        of_disk.connections.retain(|other| other.strong_count() > 0);
        of_disk.connections.push(Arc::downgrade(&attachment.0));
        let is_repeated = relayed.is_some_and(|preamble| preamble.generation > 1);
        if is_repeated && of_disk.newest.iter().any(|(other, _)| other.as_ref() != relayed.map(|p| &p.id)) {
            attachment.0.doubt();
        }
        of_disk.record(relayed, Instant::now());
        if disks.len() == disks.capacity() {
            disks.retain(|_, of_disk| of_disk.is_needed(Instant::now()));
        }
        attachment
    }

    /// The time since another client than this one opened the disk for the first time. `None` if no other
    /// client did, or if that was [`REMEMBERED`] ago.
    pub fn since_newer_client(&self, disk: &str, id: &str) -> Option<Duration> {
        let disks = self.disks.lock();
        let newest = disks.get(disk)?.newest.iter().rev().find(|(other, _)| other.as_deref() != Some(id))?;
        Some(newest.1.elapsed()).filter(|since| *since < REMEMBERED)
    }

    /// Whether a client of a node is not among the known clients of a disk.
    fn is_new(&self, disk: &str, client: &Preamble) -> bool {
        self.disks.lock().get(disk).is_none_or(|of_disk| !of_disk.knows(&client.id))
    }

    fn of(&self, disk: &str) -> Vec<Arc<Shared>> {
        let disks = self.disks.lock();
        disks
            .get(disk)
            .into_iter()
            .flat_map(|of_disk| &of_disk.connections)
            .filter_map(Weak::upgrade)
            .collect()
    }
}

impl OfDisk {
    fn knows(&self, id: &str) -> bool {
        self.newest.iter().any(|(other, _)| other.as_deref() == Some(id))
    }

    /// Records a client that the disk does not know yet, with its identity if a node forwards it. The client
    /// may have opened the disk before, at another owner.
    fn record(&mut self, relayed: Option<&Preamble>, now: Instant) {
        if relayed.is_some_and(|preamble| self.knows(&preamble.id)) {
            return;
        }
        let age = Duration::from_millis(relayed.map_or(0, |preamble| preamble.age_ms));
        let opened = now.checked_sub(age).unwrap_or(now);
        self.newest.push((relayed.map(|preamble| preamble.id.clone()), opened));
        self.newest.sort_by_key(|(_, opened)| *opened);
        if self.newest.len() > 2 {
            self.newest.remove(0);
        }
    }

    fn is_needed(&self, now: Instant) -> bool {
        self.connections.iter().any(|other| other.strong_count() > 0)
            || self.newest.iter().any(|(_, at)| now - *at < REMEMBERED)
    }
}

/// What a connection has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The connection continues to serve its client.
    Serve,
    /// The connection completes the requests in progress, and ends.
    Leave,
    /// The connection stops executing its input.
    Stop,
}

/// A handle with which an administrator ends a connection.
#[derive(Debug, Clone)]
pub(crate) struct Disconnect(Weak<Shared>);

impl Disconnect {
    /// Requests the end of the connection, without waiting for it.
    pub fn request(&self) {
        let Some(shared) = self.0.upgrade() else { return };
        let mut state = shared.state.lock();
        state.disconnected = true;
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// A connection that is attached to a disk. Dropping this value drops the requests of the connection, unless
/// the client disconnected in order.
#[derive(Default)]
pub(super) struct Attachment(Arc<Shared>);

impl Attachment {
    /// Makes the socket known to other connections, until the returned guard is dropped. The guard has to be
    /// dropped before the socket is closed.
    pub fn watch(&self, peer: Peer) -> Watched {
        self.0.state.lock().socket = Some(peer);
        self.0.is_tcp.store(peer.is_tcp, Relaxed);
        Watched(self.0.clone())
    }

    /// A handle to end the connection.
    pub fn disconnect(&self) -> Disconnect {
        Disconnect(Arc::downgrade(&self.0))
    }

    /// Registers the task of the connection, and returns what it has to do. Once [`Order::Stop`] was
    /// returned, the connection counts as stopped.
    pub fn order(&self, cx: &Context<'_>) -> Order {
        let mut state = self.0.state.lock();
        if !state.superseded {
            if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                state.waker = Some(cx.waker().clone());
            }
            return if state.disconnected { Order::Leave } else { Order::Serve };
        }
        let was_stopped = std::mem::replace(&mut state.stopped, true);
        drop(state);
        if !was_stopped {
            self.0.changed.notify_waiters();
        }
        Order::Stop
    }

    /// Records that the client disconnects in order: its requests are completed.
    pub fn leave(&self) {
        self.0.state.lock().leaving = true;
    }

    /// Counts bytes of requests that were served.
    pub fn served(&self, bytes: usize) {
        self.0.served.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts bytes that were received from the client.
    pub fn received(&self, bytes: usize) {
        if self.0.is_tcp.load(Relaxed) {
            self.0.burst.lock().add(bytes as u64, Instant::now());
        }
    }

    /// Whether a change has to be executed by [`Begun::run_change`], which may wait.
    pub fn is_in_doubt(&self) -> bool {
        self.0.is_in_doubt.load(Relaxed)
    }

    /// Begins a request that a task serves.
    pub fn begin(&self) -> Begun {
        self.0.state.lock().requests += 1;
        Begun(self.0.clone())
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.0.change(|state| {
            state.ended = true;
            state.cancelled |= !state.leaving;
        });
    }
}

/// A socket that other connections can examine.
pub(super) struct Watched(Arc<Shared>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.state.lock().socket = None;
    }
}

/// A request in a task. The request ends when this guard is dropped.
pub(super) struct Begun(Arc<Shared>);

impl Begun {
    /// Runs the request. Returns `None` if the request was dropped because its connection is gone.
    pub async fn run<T>(&self, request: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.0.until(|state| state.cancelled) => None,
            done = request => Some(done),
        }
    }

    /// Works like [`Begun::run`], for a request that changes the disk.
    pub async fn run_change<T>(&self, request: impl Future<Output = T>) -> Option<T> {
        let run = async { if self.0.is_connected().await { Some(request.await) } else { None } };
        self.run(run).await.flatten()
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.requests -= 1;
        let is_awaited = state.requests == 0 && (state.superseded || state.ended);
        drop(state);
        if is_awaited {
            self.0.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::super::traffic::tcp_pair;
    use super::*;

    /// The answer to a new connection within 3 s, while another client sends bursts that the server reads
    /// late and, if `is_answered`, answers.
    async fn next_to_bursts(is_answered: bool) -> Result<(), StillUnderWay> {
        let (mut client, mut server) = tcp_pair();
        let attachments = Attachments::default();
        let connected = attachments.attach("v", None);
        let _watched = connected.watch(Peer { fd: server.as_raw_fd(), is_tcp: true });
        let bursts = async {
            let mut burst = [0; BURST as usize];
            loop {
                client.write_all(&burst).unwrap();
                sleep(AFTER_BURST / 5).await;
                server.read_exact(&mut burst).unwrap();
                connected.received(burst.len());
                if is_answered {
                    server.write_all(&[0]).unwrap();
                }
                sleep(AFTER_BURST / 5).await;
            }
        };
        connected.received(BURST as usize);
        let other = attachments.of("v").remove(0);
        tokio::select! {
            answer = other.catch_up(Instant::now() + 6 * AFTER_BURST) => answer,
            () = bursts => unreachable!("bursts do not end"),
        }
    }

    #[tokio::test]
    async fn bursts_of_a_client_that_acknowledges_replies_are_not_waited_for() {
        assert_eq!(next_to_bursts(true).await, Ok(()));
        assert_eq!(next_to_bursts(false).await, Err(StillUnderWay));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connected_peer_is_waited_for_only_after_a_burst_over_tcp() {
        for (is_tcp, bytes, waits) in [(true, BURST, true), (true, BURST - 1, false), (false, BURST, false)] {
            let attachments = Attachments::default();
            let (socket, _peer) = UnixStream::pair().unwrap();
            let connected = attachments.attach("v", None);
            let _watched = connected.watch(Peer { fd: socket.as_raw_fd(), is_tcp });
            connected.received(bytes as usize);
            let begin = Instant::now();
            attachments.end_gone("v", None).await.unwrap();
            assert_eq!(begin.elapsed() >= AFTER_BURST, waits, "TCP {is_tcp}, {bytes} bytes");
        }
    }

    fn preamble(id: &str, generation: u64) -> Preamble {
        Preamble { id: id.to_owned(), generation, age_ms: 0, name: String::new() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_a_node_connects_again_supersedes_its_former_connection() {
        let attachments = Attachments::default();
        let (socket, _peer) = UnixStream::pair().unwrap();
        let (first, second) = (preamble("a", 1), preamble("a", 2));
        let former = attachments.attach("v", Some(&first));
        let _watched = former.watch(Peer { fd: socket.as_raw_fd(), is_tcp: false });
        let other = attachments.attach("v", Some(&preamble("b", 1)));
        let begin = Instant::now();
        let cx = Context::from_waker(Waker::noop());
        assert_eq!(former.order(&cx), Order::Serve);
        let next = attachments.end_gone("v", Some(&second));
        let stops = async {
            while former.order(&cx) != Order::Stop {
                tokio::task::yield_now().await;
            }
        };
        let (next, ()) = tokio::join!(next, stops);
        next.unwrap();
        assert!(!other.is_in_doubt(), "the client is not new");
        assert_eq!(other.order(&cx), Order::Serve);
        // The former connection may still search its input.
        assert!(begin.elapsed() <= SEARCH_TIME);
        let _second = attachments.attach("v", Some(&second));
        assert_eq!(attachments.end_gone("v", Some(&first)).await, Err(StillUnderWay));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_client_puts_connections_of_nodes_in_doubt() {
        let attachments = Attachments::default();
        let (socket, peer) = UnixStream::pair().unwrap();
        let (a, b) = (preamble("a", 1), preamble("b", 1));
        let former = attachments.attach("v", Some(&a));
        let _watched = former.watch(Peer { fd: socket.as_raw_fd(), is_tcp: false });
        assert_eq!(attachments.since_newer_client("v", "a"), None);
        attachments.end_gone("v", Some(&b)).await.unwrap();
        let _b = attachments.attach("v", Some(&b));
        assert!(former.is_in_doubt());
        sleep(Duration::from_secs(3)).await;
        assert_eq!(attachments.since_newer_client("v", "a").map(|since| since.as_secs()), Some(3));
        assert_eq!(attachments.since_newer_client("v", "b").map(|since| since.as_secs()), Some(3));
        let _again = attachments.attach("v", Some(&preamble("a", 2)));
        assert_eq!(attachments.since_newer_client("v", "b").map(|since| since.as_secs()), Some(3));
        let begin = Instant::now();
        assert_eq!(former.begin().run_change(async { 1 }).await, Some(1));
        assert_eq!(begin.elapsed().as_millis() / 10, LATE_END.as_millis() / 10);
        assert!(!former.is_in_doubt());
        attachments.end_gone("v", None).await.unwrap();
        drop(peer);
        assert_eq!(former.begin().run_change(async { 1 }).await, None);
    }

    /// An owner that took the disk over learns from the nodes when clients opened the disk.
    #[tokio::test(start_paused = true)]
    async fn clients_of_a_former_owner_are_known_by_their_age() {
        let of_age = |id: &str, generation, age_ms| Preamble { age_ms, ..preamble(id, generation) };
        let (a, b, c) = (of_age("a", 2, 90_000), of_age("b", 2, 20_000), of_age("c", 7, 30_000));
        for order in [[&a, &b, &c], [&c, &b, &a], [&b, &a, &c], [&c, &a, &b]] {
            let attachments = Attachments::default();
            let _attached = order.map(|client| attachments.attach("v", Some(client)));
            let since = |id: &str| attachments.since_newer_client("v", id).map(|since| since.as_secs());
            assert_eq!((since("a"), since("b"), since("c")), (Some(20), Some(30), Some(20)));
            // A client that is connected again keeps its time.
            let _again = attachments.attach("v", Some(&of_age("b", 3, 21_000)));
            assert_eq!(since("a"), Some(20));
        }
    }

    /// Late packets of a client that has moved reach its former node after this node was connected again.
    #[tokio::test(start_paused = true)]
    async fn connections_of_nodes_are_in_doubt_after_a_takeover_if_there_are_other_clients() {
        let attachments = Attachments::default();
        let (a, b) = (preamble("a", 2), preamble("b", 2));
        let first = attachments.attach("v", Some(&a));
        assert!(!first.is_in_doubt());
        attachments.end_gone("v", Some(&b)).await.unwrap();
        assert!(first.is_in_doubt(), "this server does not know the other client");
        assert!(attachments.attach("v", Some(&b)).is_in_doubt());
    }

    #[tokio::test(start_paused = true)]
    async fn the_doubt_lasts_while_input_of_a_node_is_unread() {
        for is_gone in [true, false] {
            let attachments = Attachments::default();
            let (socket, mut peer) = UnixStream::pair().unwrap();
            let former = attachments.attach("v", Some(&preamble("a", 1)));
            let _watched = former.watch(Peer { fd: socket.as_raw_fd(), is_tcp: false });
            peer.write_all(&[1]).unwrap();
            attachments.end_gone("v", Some(&preamble("b", 1))).await.unwrap();
            let begin = Instant::now();
            let change = former.begin();
            let end = async {
                sleep(4 * LATE_END).await;
                let _peer = (!is_gone).then_some(peer);
                std::future::pending::<()>().await;
            };
            let done = tokio::select! { done = change.run_change(async { 1 }) => done, () = end => None };
            assert_eq!(done, (!is_gone).then_some(1));
            let least = if is_gone { 4 * LATE_END } else { UNREAD_END };
            assert!((least..least + 2 * LATE_END).contains(&begin.elapsed()), "{:?}", begin.elapsed());
        }
    }
}
