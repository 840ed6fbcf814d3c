//! The loop of one connection of any protocol, as a future.
//!
//! One pass receives into the thread's input buffer, has the [`Protocol`] serve every complete message,
//! gathers the replies in the thread's output buffer, and sends them. Between passes the connection keeps
//! only the start of an incomplete message (`held`) and unsent replies (its [`Backlog`]). A message too long
//! for the thread's buffer is received into separate memory, which is passed to the protocol.
//!
//! The client is not read from while it does not read its replies, while its backlog is full, or while no
//! memory is available for its messages ([`super::memory`]): then the flow control of its socket throttles
//! it, and no other client is affected.
//!
//! While the server hands its connections over ([`super::handover`]), no client is read from, except for the
//! rest of a request that was begun.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::contain::contain;
use super::gate::GateWait;
use super::handover::{BusyGuard, Ended, ParkedStream, Phase, PlainSocket, Progress, Received};
use super::memory::{Charge, Claim, Kind, MemoryAccount, Stall};
use super::readiness::events_now;
use super::{Backlog, INPUT, Output, Scratch, Worker};

/// Maximum length of a message that is received into the thread's buffer.
const OWN_MEMORY: usize = INPUT / 2;
/// Maximum number of replies that are sent in one call, and maximum bytes of replies from the backlog.
const MAX_SLICES: usize = 64;
const MAX_SENT: usize = 512 << 10;
/// Bytes of an incomplete message that a connection keeps without a charge. While memory is short, this is
/// also the maximum that it receives, and that it gathers of replies.
const KEEP_HELD: usize = 8 << 10;
/// Number of passes in which requests are refused when the server is closing and all other work is done.
const LAST_PASSES: u8 = 4;

/// Why a protocol must not decode another message now; `None` if it may. `needs_input`: a request that was
/// accepted waits for the rest of its data.
pub(crate) fn must_stop(
    worker: &Worker,
    output: &Output,
    backlog: &Backlog,
    needs_input: bool,
) -> Option<Stop> {
    if output.is_full() {
        Some(Stop::Output)
    } else if backlog.is_full() {
        Some(Stop::Backlog)
    } else if backlog.budget().turn_is_over() {
        Some(Stop::Turn)
    } else if worker.is_quiescing() && !needs_input {
        Some(Stop::Backlog)
    } else {
        None
    }
}

/// Why the thread has stopped serving a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The input has no further complete message.
    Input {
        /// Minimum length of the next message, including the bytes that were received.
        want: usize,
    },
    /// The output is full: replies have to be sent first.
    Output,
    /// The backlog is full: no further request is accepted now.
    Backlog,
    /// The connection's [`Budget`](super::budget::Budget) for this turn is used up.
    Turn,
    /// The client disconnects after its requests are answered.
    Leave,
}

/// The protocol in which one client is served.
pub(crate) trait Protocol: Unpin {
    /// Reasons for which a connection is cut.
    type Error: From<io::Error>;

    /// Serves the messages at the front of `input`. Returns their length in bytes, and the reason for
    /// stopping.
    fn serve(&mut self, input: &[u8], output: &mut Output) -> Result<(usize, Stop), Self::Error>;

    /// Serves the single message in `message`, whose memory is charged; returns [`Stop::Input`] on success.
    fn serve_long(
        &mut self,
        message: Vec<u8>,
        charge: Charge,
        output: &mut Output,
    ) -> Result<Stop, Self::Error>;

    /// Called when `bytes` bytes were received.
    fn received(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// Whether memory is held for data that the client has to send, apart from the message that it is
    /// sending.
    fn awaits_data(&self) -> bool {
        false
    }

    /// Whether the client has to send more before its requests in progress can be finished.
    fn needs_input(&self) -> bool {
        false
    }

    /// Takes input that was put aside while only requests in progress were served. This input precedes all
    /// other input that was not served, and is served again later.
    fn take_aside(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// The state with which another process continues to serve the client, while no request is in progress;
    /// `None` if the connection cannot be handed over.
    fn park(&self) -> Option<serde_json::Value> {
        None
    }

    /// Called when nothing can be sent to the client any more. Returns whether its further input is served
    /// before the connection ends; all replies are dropped.
    fn search_input(&mut self) -> bool {
        false
    }

    /// Whether the server ends the connection after the requests in progress are answered. Further input is
    /// not served.
    fn is_ending(&self) -> bool {
        false
    }

    /// Does work that the client did not request. Called in each pass, and when a waker that was registered
    /// here wakes.
    fn attend(&mut self, cx: &mut Context<'_>, output: &mut Output) -> Result<(), Self::Error> {
        let _ = (cx, output);
        Ok(())
    }
}

/// Whether a socket has input that was not read, or the end of its input was not read.
fn is_readable(socket: BorrowedFd<'_>) -> bool {
    events_now(socket.as_raw_fd(), libc::POLLIN) != 0
}

/// A connection, as a future that is ready when the connection has ended.
pub(crate) struct Conversation<S, P> {
    worker: Rc<Worker>,
    stream: S,
    /// The descriptor of a UNIX socket.
    fd: Option<RawFd>,
    protocol: P,
    /// Received bytes that precede the bytes of the socket: they belong to a parked connection, or were put
    /// aside.
    unread: VecDeque<u8>,
    unread_charge: Option<Charge>,
    /// Bytes that precede `unread`, and were not served yet.
    held: Vec<u8>,
    /// The charge for `held` and for the missing part of an incomplete message.
    held_charge: Option<Charge>,
    /// The wait until `held_charge` is charged.
    claim: Option<Claim>,
    /// Length of the message at the front of `held`, as far as it is known.
    want: usize,
    backlog: Rc<Backlog>,
    /// Number of bytes of the backlog's first reply that are sent.
    head: usize,
    /// The client has announced that it disconnects, or has closed its side.
    leaving: bool,
    /// Nothing can be sent to the client, and its input is being searched.
    lost: Option<io::Error>,
    last_passes: u8,
    account: Rc<MemoryAccount>,
    stall: Stall,
    gate: GateWait,
    busy: BusyGuard,
}

impl<S: AsyncRead + AsyncWrite + PlainSocket + Unpin, P: Protocol> Conversation<S, P> {
    /// A connection that has received bytes already. `fd` is the descriptor of a UNIX socket.
    pub fn new(
        worker: Rc<Worker>,
        stream: S,
        fd: Option<RawFd>,
        received: Received,
        backlog: Rc<Backlog>,
        protocol: P,
    ) -> Self {
        worker.register(&backlog);
        let busy = worker.begin_busy();
        let account = backlog.account().clone();
        backlog.push(received.output);
        let mut this = Conversation {
            worker,
            stream,
            fd,
            protocol,
            unread: VecDeque::new(),
            unread_charge: None,
            held: Vec::new(),
            held_charge: None,
            claim: None,
            want: 0,
            backlog,
            head: 0,
            leaving: false,
            lost: None,
            last_passes: 0,
            stall: Stall::new(&account),
            account,
            gate: GateWait::default(),
            busy,
        };
        this.set_unread(received.input);
        this
    }

    fn turn(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> Poll<Result<Ended, P::Error>> {
        if self.claim.is_some() {
            // Granted memory is taken immediately, also if the client does not read its replies, because it
            // is charged to the client.
            let _ = self.charge_message(cx);
        }
        self.passes(cx, scratch)
    }

    fn passes(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> Poll<Result<Ended, P::Error>> {
        self.backlog.budget().begin_turn();
        while !self.backlog.budget().turn_is_over() {
            if let Some(why) = self.backlog.failure() {
                return Poll::Ready(Err(io::Error::other(why).into()));
            }
            self.protocol.attend(cx, &mut scratch.output)?;
            if self.protocol.is_ending() && !self.leaving {
                self.end_of_input();
            }
            let sent = self.send(cx, &mut scratch.output);
            if self.stops_reading() {
                if let Poll::Ready(Err(e)) = sent {
                    return Poll::Ready(Err(e));
                }
                return self.park_if_quiet().map(Ok);
            }
            self.record_progress();
            self.backlog.set_draining(false);
            if !self.worker.is_quiescing() {
                let aside = self.protocol.take_aside();
                if !aside.is_empty() {
                    let unread = self.take_unserved(aside);
                    self.set_unread(unread);
                }
            }
            ready!(sent)?;
            if self.is_over() {
                let closed = Pin::new(&mut self.stream).poll_shutdown(cx);
                return closed.map_ok(|()| Ended::Closed).map_err(P::Error::from);
            }
            if self.leaving || (self.backlog.is_full() && self.lost.is_none()) {
                return Poll::Pending;
            }
            if self.charge_message(cx).is_pending() {
                return Poll::Pending;
            }
            let is_short = self.account.is_full();
            scratch.output.set_limit(is_short.then_some(KEEP_HELD));
            let received = match self.receive(cx, scratch, is_short)? {
                Poll::Ready(received) => received,
                Poll::Pending if self.worker.closing() && self.backlog.is_empty() => {
                    self.leaving = true;
                    continue;
                }
                // The reactor may not have reported the last input yet.
                Poll::Pending if self.lost.is_some() && self.stream.plain().is_some_and(is_readable) => {
                    return Poll::Pending;
                }
                Poll::Pending => match self.lost.take() {
                    Some(lost) => return Poll::Ready(Err(lost.into())),
                    None => return Poll::Pending,
                },
            };
            ready!(self.serve_received(cx, scratch, received))?;
            if self.leaving
                && let Some(lost) = self.lost.take()
            {
                return Poll::Ready(Err(lost.into()));
            }
        }
        self.backlog.budget().yield_turn(cx);
        Poll::Pending
    }

    /// Whether the connection reads no further, because it is to be handed over.
    fn stops_reading(&self) -> bool {
        let is_last = self.worker.phase() == Phase::HandingOver;
        is_last || (self.worker.is_quiescing() && !self.awaits_last_bytes())
    }

    /// Whether the client has to send or receive more before its requests in progress can be finished, or the
    /// connection can end.
    fn awaits_last_bytes(&self) -> bool {
        self.leaving || self.lost.is_some() || self.protocol.needs_input()
    }

    fn record_progress(&mut self) {
        let awaits_client = self.worker.is_quiescing() && !self.backlog.has_requests();
        self.busy.set(if awaits_client { Progress::AwaitsClient } else { Progress::Working });
    }

    /// Ends the connection if it is to be parked and has no requests in progress.
    fn park_if_quiet(&mut self) -> Poll<Ended> {
        let is_quiet = !self.backlog.has_requests();
        // A request must not wait for its client to receive replies.
        self.backlog.set_draining(!is_quiet);
        self.busy.set(if is_quiet { Progress::Quiet } else { Progress::Working });
        if !is_quiet || self.worker.phase() != Phase::HandingOver {
            return Poll::Pending;
        }
        if self.awaits_last_bytes() {
            return Poll::Ready(Ended::Closed);
        }
        let socket = self.stream.plain().and_then(|fd| fd.try_clone_to_owned().ok());
        let Some((socket, protocol)) = socket.zip(self.protocol.park()) else {
            return Poll::Ready(Ended::Closed);
        };
        let output = self.backlog.unsent_bytes(self.head);
        let aside = self.protocol.take_aside();
        let input = self.take_unserved(aside);
        Poll::Ready(Ended::Parked(Box::new(ParkedStream { socket, protocol, input, output })))
    }

    /// All bytes that were received and not served, in order.
    fn take_unserved(&mut self, aside: Vec<u8>) -> Vec<u8> {
        let mut input = aside;
        input.append(&mut self.held);
        input.extend(std::mem::take(&mut self.unread));
        self.held_charge = None;
        self.claim = None;
        self.want = 0;
        input
    }

    /// Sets the bytes that precede the bytes of the socket.
    fn set_unread(&mut self, input: Vec<u8>) {
        let bytes = input.capacity();
        self.unread_charge = (bytes > KEEP_HELD).then(|| self.account.force(bytes, Kind::Input));
        self.unread = input.into();
    }

    /// Takes memory for the whole message that is being received. Pending while no memory is available.
    fn charge_message(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let has = self.held_charge.as_ref().map_or(0, Charge::bytes);
        if self.want <= KEEP_HELD || self.want <= has {
            return Poll::Ready(());
        }
        let missing = self.want - has;
        let more = if self.want <= OWN_MEMORY && self.account.has_reserve() {
            // The reserve may have been granted for this message.
            self.account.force(missing, Kind::Input)
        } else {
            let claim = self.claim.get_or_insert_with(|| self.account.claim(missing, Kind::Input));
            ready!(claim.poll(cx.waker()))
        };
        self.claim = None;
        self.add_charge(more);
        Poll::Ready(())
    }

    /// Charges the bytes held after the received messages are served.
    fn charge_held(&mut self) {
        let mut charge = self.held_charge.take();
        let mut bytes = self.held.capacity();
        let has = charge.as_ref().map_or(0, Charge::bytes);
        if !self.held.is_empty() && self.want <= OWN_MEMORY {
            // A short message is charged as a whole if memory is available, so that it need not wait later.
            if has >= self.want || !self.account.is_full() {
                bytes = bytes.max(self.want);
            }
        }
        if bytes <= KEEP_HELD {
            return;
        }
        if let Some(charge) = &mut charge {
            charge.shrink(bytes);
        }
        self.held_charge = charge;
        if bytes > has {
            self.add_charge(self.account.force(bytes - has, Kind::Input));
        }
    }

    fn add_charge(&mut self, more: Charge) {
        match &mut self.held_charge {
            Some(charge) => charge.join(more),
            none => *none = Some(more),
        }
    }

    /// Whether memory is held that can be freed only after the client sends or receives something.
    fn awaits_client(&self) -> bool {
        // A client whose socket is not read cannot make progress by sending.
        let is_read = self.claim.is_none() && !self.backlog.is_full();
        let inside_message = !self.held.is_empty() && self.held.len() < self.want;
        let has_replies = self.backlog.has_replies() && !self.gate.is_waiting();
        has_replies || (is_read && (inside_message || self.protocol.awaits_data()))
    }

    /// Whether no work is left for this client.
    fn is_over(&mut self) -> bool {
        if !self.backlog.is_empty() {
            return false;
        }
        if self.worker.closing() {
            // Requests of a client that continues sending are refused for some passes; then its socket is
            // closed.
            self.last_passes += 1;
            return self.leaving || self.last_passes > LAST_PASSES;
        }
        self.leaving
    }

    /// Receives available bytes, but only few if memory `is_short`. Returns the number of bytes filled in the
    /// thread's input buffer; `None` if the message to serve is in `held`.
    fn receive(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut Scratch,
        is_short: bool,
    ) -> Result<Poll<Option<usize>>, io::Error> {
        let kept = self.held.len();
        if self.want > OWN_MEMORY {
            while self.held.len() < self.want {
                if self.backlog.budget().turn_is_over() {
                    self.backlog.budget().yield_turn(cx);
                    return Ok(Poll::Pending);
                }
                match self.receive_long(cx)? {
                    Poll::Pending => return Ok(Poll::Pending),
                    Poll::Ready(0) => return Ok(Poll::Ready(self.end_of_input())),
                    Poll::Ready(received) => self.backlog.budget().count(received),
                }
            }
            return Ok(Poll::Ready(None));
        }
        scratch.input[..kept].copy_from_slice(&self.held);
        if kept > 0 && kept >= self.want {
            // These bytes were kept when the backlog was full; they may contain complete requests.
            self.forget_held();
            return Ok(Poll::Ready(Some(kept)));
        }
        let most = if is_short { self.want.max(KEEP_HELD) } else { INPUT };
        let mut room = ReadBuf::new(&mut scratch.input[kept..most]);
        match self.read(cx, &mut room)? {
            Poll::Pending => Ok(Poll::Pending),
            Poll::Ready(()) if room.filled().is_empty() => Ok(Poll::Ready(self.end_of_input())),
            Poll::Ready(()) => {
                let received = room.filled().len();
                self.backlog.budget().count(received);
                self.stall.moved(received);
                self.protocol.received(received);
                self.forget_held();
                Ok(Poll::Ready(Some(kept + received)))
            }
        }
    }

    /// Receives a part of a long message into the message's separate memory, and no byte after the message.
    fn receive_long(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<usize>> {
        let missing = self.want - self.held.len();
        self.held.reserve_exact(missing);
        let mut held = std::mem::take(&mut self.held);
        let spare = &mut held.spare_capacity_mut()[..missing.min(INPUT)];
        let mut room = ReadBuf::uninit(spare);
        let read = self.read(cx, &mut room);
        let received = room.filled().len();
        // SAFETY: `ReadBuf` guarantees that the first `received` bytes of the spare capacity are filled.
        unsafe { held.set_len(held.len() + received) };
        self.held = held;
        self.stall.moved(received);
        self.protocol.received(received);
        Ok(read?.map(|()| received))
    }

    /// Receives bytes: first bytes that were received before, then bytes of the socket.
    fn read(&mut self, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> io::Result<Poll<()>> {
        if self.unread.is_empty() {
            return match Pin::new(&mut self.stream).poll_read(cx, room) {
                Poll::Ready(done) => done.map(Poll::Ready),
                Poll::Pending => Ok(Poll::Pending),
            };
        }
        let n = room.remaining().min(self.unread.len());
        let (front, back) = self.unread.as_slices();
        let of_front = n.min(front.len());
        room.put_slice(&front[..of_front]);
        room.put_slice(&back[..n - of_front]);
        self.unread.drain(..n);
        if self.unread.is_empty() {
            self.set_unread(Vec::new());
        }
        Ok(Poll::Ready(()))
    }

    /// Handles a client that has closed its side: its requests are still finished.
    fn end_of_input(&mut self) -> Option<usize> {
        self.leaving = true;
        self.held = Vec::new();
        self.held_charge = None;
        self.claim = None;
        self.want = 0;
        Some(0)
    }

    fn forget_held(&mut self) {
        self.held.clear();
        self.held.shrink_to(KEEP_HELD);
        self.want = 0;
    }

    fn serve_received(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut Scratch,
        received: Option<usize>,
    ) -> Poll<Result<(), P::Error>> {
        let Some(received) = received else {
            let message = std::mem::take(&mut self.held);
            let charge = self
                .held_charge
                .take()
                .unwrap_or_else(|| self.account.force(message.capacity(), Kind::Input));
            self.want = 0;
            self.worker.times().begin_pass();
            let stop = self.protocol.serve_long(message, charge, &mut scratch.output)?;
            self.worker.times().end_pass();
            self.leaving |= stop == Stop::Leave;
            return self.send(cx, &mut scratch.output);
        };
        let (mut used, mut stop) = (0, Stop::Output);
        let mut sent = Poll::Ready(Ok(()));
        self.worker.times().begin_pass();
        while stop == Stop::Output && !self.leaving && matches!(sent, Poll::Ready(Ok(()))) {
            let input = &scratch.input[used..received];
            let n;
            (n, stop) = self.protocol.serve(input, &mut scratch.output)?;
            self.worker.times().end_pass();
            used += n;
            sent = self.send(cx, &mut scratch.output);
        }
        self.leaving |= stop == Stop::Leave;
        self.want = if let Stop::Input { want } = stop { want } else { 0 };
        if used < received && !self.leaving {
            self.held.extend_from_slice(&scratch.input[used..received]);
        }
        self.charge_held();
        sent
    }

    /// Sends the backlog's replies and `output`. Pending if the client does not receive all of them now; the
    /// unsent bytes are in the backlog then.
    fn send(&mut self, cx: &mut Context<'_>, output: &mut Output) -> Poll<Result<(), P::Error>> {
        let mut fresh = output.filled();
        if self.backlog.has_replies() || !fresh.is_empty() {
            self.worker.pace().served(Rc::as_ptr(&self.backlog) as usize, self.fd);
        }
        while self.backlog.has_replies() || !fresh.is_empty() {
            let written = match self.write_some(cx, fresh) {
                Poll::Ready(Ok(0)) => {
                    return Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero).into()));
                }
                Poll::Ready(Ok(n)) => {
                    self.stall.moved(n);
                    n
                }
                Poll::Ready(Err(e)) if self.lost.is_none() && self.protocol.search_input() => {
                    self.lost = Some(e);
                    self.backlog.abandon();
                    output.clear();
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e.into())),
                Poll::Pending => {
                    self.backlog.push(fresh.to_vec());
                    output.clear();
                    return Poll::Pending;
                }
            };
            let of_backlog = written.min(self.backlog.unsent());
            self.head = self.backlog.sent(self.head, of_backlog);
            fresh = &fresh[written - of_backlog..];
            self.backlog.budget().count(written);
            if self.backlog.has_replies() && self.backlog.budget().turn_is_over() {
                self.backlog.push(fresh.to_vec());
                output.clear();
                self.backlog.budget().yield_turn(cx);
                return Poll::Pending;
            }
        }
        output.clear();
        Pin::new(&mut self.stream).poll_flush(cx).map_err(P::Error::from)
    }

    fn write_some(&mut self, cx: &mut Context<'_>, fresh: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.gate.poll(self.worker.gate(), cx));
        let stream = Pin::new(&mut self.stream);
        if !self.backlog.has_replies() {
            return stream.poll_write(cx, fresh);
        }
        let replies = self.backlog.replies();
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let (mut n, mut room) = (0, MAX_SENT);
        for (slice, (reply, _)) in slices[..MAX_SLICES - 1].iter_mut().zip(replies.iter()) {
            if room == 0 {
                break;
            }
            let reply = if n == 0 { &reply[self.head..] } else { reply };
            *slice = IoSlice::new(&reply[..reply.len().min(room)]);
            (n, room) = (n + 1, room.saturating_sub(reply.len()));
        }
        // New replies are sent last, and only after the whole queue.
        if n == replies.len() && room > 0 {
            slices[n] = IoSlice::new(fresh);
            n += 1;
        }
        stream.poll_write_vectored(cx, &slices[..n])
    }
}

impl<S: AsyncRead + AsyncWrite + PlainSocket + Unpin, P: Protocol> Future for Conversation<S, P> {
    type Output = Result<Ended, P::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Ended, P::Error>> {
        let this = self.get_mut();
        let worker = this.worker.clone();
        this.backlog.set_waker(cx.waker());
        let backlog = this.backlog.clone();
        backlog.budget().poll(cx, |cx| {
            let mut scratch = worker.scratch();
            // A connection that panicked may have left output.
            scratch.output.clear();
            let mut done = contain("a connection", || this.turn(cx, &mut scratch))
                .unwrap_or_else(|panicked| Poll::Ready(Err(io::Error::other(panicked).into())));
            let awaits_client = done.is_pending() && this.awaits_client();
            if this.stall.poll(cx, awaits_client) {
                done = Poll::Ready(Err(stalled().into()));
            }
            // Replies to a client that is cut off must not reach another client.
            scratch.output.clear();
            done
        })
    }
}

fn stalled() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "it made no progress while it held memory that other clients were waiting for",
    )
}

impl<S, P> Drop for Conversation<S, P> {
    fn drop(&mut self) {
        self.backlog.abandon();
        if let Some(fd) = self.fd {
            self.worker.pace().forget(fd);
        }
    }
}
