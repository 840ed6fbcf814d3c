//! The loop of one connection, whatever it speaks, as a future.
//!
//! One pass receives into the thread's input buffer, has the [`Protocol`] serve every message that is whole, gathers
//! the replies in the thread's output buffer, and sends them. Between passes the connection keeps the start of a
//! message that is not whole yet (`held`) and what was not sent (its [`Backlog`]); nothing else. A message too long
//! for the thread's buffer is received into memory of its own, which is given to the protocol.
//!
//! The client is not read from while it does not take its replies, while its backlog is full, or while there is no memory
//! for what it sends ([`super::memory`]): then its own socket holds it back, and no other client notices.

use std::future::Future;
use std::io::{self, IoSlice};
use std::os::fd::RawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::contain::{Panicked, contain};
use super::memory::{Charge, Claim, Kind, MemoryAccount, Stall};
use super::{Backlog, INPUT, Output, Scratch, Worker};

/// A message that is longer is received into memory of its own.
const OWN_MEMORY: usize = INPUT / 2;
/// Replies that are sent in one call, and bytes of those that waited.
const MAX_SLICES: usize = 64;
const MAX_SENT: usize = 512 << 10;
/// Memory for a started message that a connection keeps when it has none; also what it may receive, and the replies
/// that it may gather, where memory is short.
const KEEP_HELD: usize = 8 << 10;
/// Passes in which requests are still refused, when the server closes and all else is done.
const LAST_PASSES: u8 = 4;

/// Why serving stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// No whole message is left; the next has at least so many bytes.
    Input {
        /// Bytes, those that are there included.
        want: usize,
    },
    /// Replies have to be sent first: the output is full.
    Output,
    /// No further request can be taken now: the backlog is full.
    Backlog,
    /// Other clients have their turn first: the connection's [`Budget`](super::budget::Budget) says so.
    Turn,
    /// The client leaves, once what it asked for is answered.
    Leave,
}

/// What one client's bytes mean.
pub(crate) trait Protocol: Unpin {
    /// Why a connection is cut.
    type Error: From<io::Error>;

    /// Serves the messages at the front of `input`. Returns how many bytes they were, and why it stopped.
    fn serve(&mut self, input: &[u8], output: &mut Output) -> Result<(usize, Stop), Self::Error>;

    /// Serves the one message that `message` is, whose memory is charged; [`Stop::Input`] where all is well.
    fn serve_long(
        &mut self,
        message: Vec<u8>,
        charge: Charge,
        output: &mut Output,
    ) -> Result<Stop, Self::Error>;

    /// Whether the client has memory held for something that it has to send, beside the message that it is sending.
    fn awaits_data(&self) -> bool {
        false
    }

    /// Does what is not the client's doing: called in each pass, and when a waker that it registered wakes.
    fn attend(&mut self, cx: &mut Context<'_>, output: &mut Output) -> Result<(), Self::Error> {
        let _ = (cx, output);
        Ok(())
    }
}

/// A connection. Ready when it is over.
pub(crate) struct Conversation<S, P> {
    worker: Rc<Worker>,
    stream: S,
    /// Of a UNIX socket.
    fd: Option<RawFd>,
    protocol: P,
    /// Bytes that were received and not used.
    held: Vec<u8>,
    /// With what that is charged, and the rest of a message that is not whole yet.
    held_charge: Option<Charge>,
    /// A wait for that.
    claim: Option<Claim>,
    /// Bytes that the message at the front of `held` has, as far as is known.
    want: usize,
    backlog: Rc<Backlog>,
    /// Bytes of the backlog's first reply that are sent.
    head: usize,
    /// The client said that it leaves, or has closed its side.
    leaving: bool,
    last_passes: u8,
    account: Rc<MemoryAccount>,
    stall: Stall,
}

impl<S: AsyncRead + AsyncWrite + Unpin, P: Protocol> Conversation<S, P> {
    /// A connection with what was received already, `held`. `fd` is that of a UNIX socket.
    pub fn new(
        worker: Rc<Worker>,
        stream: S,
        fd: Option<RawFd>,
        held: Vec<u8>,
        backlog: Rc<Backlog>,
        protocol: P,
    ) -> Self {
        worker.register(&backlog);
        let account = backlog.account().clone();
        let held_charge = (held.capacity() > KEEP_HELD).then(|| account.force(held.capacity(), Kind::Input));
        Conversation {
            worker,
            stream,
            fd,
            protocol,
            held,
            held_charge,
            claim: None,
            want: 0,
            backlog,
            head: 0,
            leaving: false,
            last_passes: 0,
            stall: Stall::new(&account),
            account,
        }
    }

    fn turn(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> Poll<Result<(), P::Error>> {
        if self.claim.is_some() {
            // What was granted is taken at once, also by a client that does not take its replies: it is charged for it.
            let _ = self.charge_message(cx);
        }
        self.passes(cx, scratch)
    }

    fn passes(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> Poll<Result<(), P::Error>> {
        self.backlog.budget().begin_turn();
        while !self.backlog.budget().turn_is_over() {
            if self.backlog.has_failed() {
                return Poll::Ready(Err(io::Error::other(Panicked).into()));
            }
            self.protocol.attend(cx, &mut scratch.output)?;
            ready!(self.send(cx, &mut scratch.output))?;
            if self.is_over() {
                return Pin::new(&mut self.stream).poll_shutdown(cx).map_err(P::Error::from);
            }
            if self.leaving || self.backlog.is_full() {
                return Poll::Pending;
            }
            if self.charge_message(cx).is_pending() {
                return Poll::Pending;
            }
            let is_short = self.account.memory().is_full();
            scratch.output.set_limit(is_short.then_some(KEEP_HELD));
            let received = match self.receive(cx, scratch, is_short)? {
                Poll::Ready(received) => received,
                Poll::Pending if self.worker.closing() && self.backlog.is_empty() => {
                    self.leaving = true;
                    continue;
                }
                Poll::Pending => return Poll::Pending,
            };
            ready!(self.serve_received(cx, scratch, received))?;
        }
        self.backlog.budget().yield_turn(cx);
        Poll::Pending
    }

    /// Takes memory for all of the message that is being received. Pending where there is none yet.
    fn charge_message(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let has = self.held_charge.as_ref().map_or(0, Charge::bytes);
        if self.want <= KEEP_HELD || self.want <= has {
            return Poll::Ready(());
        }
        let missing = self.want - has;
        let more = if self.want <= OWN_MEMORY && self.account.has_reserve() {
            // It may be what the reserve was given for.
            self.account.force(missing, Kind::Input)
        } else {
            let claim = self.claim.get_or_insert_with(|| self.account.claim(missing, Kind::Input));
            ready!(claim.poll(cx.waker()))
        };
        self.claim = None;
        self.add_charge(more);
        Poll::Ready(())
    }

    /// Charges what is held now, after what was received is served.
    fn charge_held(&mut self) {
        let mut charge = self.held_charge.take();
        let mut bytes = self.held.capacity();
        let has = charge.as_ref().map_or(0, Charge::bytes);
        if !self.held.is_empty() && self.want <= OWN_MEMORY {
            // A short message is charged as a whole, where there is room: what has begun need not wait for memory.
            if has >= self.want || !self.account.memory().is_full() {
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

    /// Whether the client has something to do before the memory that it has held can be given back.
    fn client_owes(&self) -> bool {
        // A client that is not read from is not the one that has to do something.
        let is_read = self.claim.is_none() && !self.backlog.is_full();
        let inside_message = !self.held.is_empty() && self.held.len() < self.want;
        self.backlog.has_replies() || (is_read && (inside_message || self.protocol.awaits_data()))
    }

    /// Whether there is nothing more to do for this client.
    fn is_over(&mut self) -> bool {
        if !self.backlog.is_empty() {
            return false;
        }
        if self.worker.closing() {
            // A client that keeps asking is told "no" a few times; then it is told by the closed socket.
            self.last_passes += 1;
            return self.leaving || self.last_passes > LAST_PASSES;
        }
        self.leaving
    }

    /// Receives what there is, or little where memory `is_short`. Returns how many bytes of the thread's input buffer
    /// are filled; `None` if what there is to serve is in `held`.
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
            // Left over when the backlog was full; there may be whole requests in it.
            self.forget_held();
            return Ok(Poll::Ready(Some(kept)));
        }
        let most = if is_short { self.want.max(KEEP_HELD) } else { INPUT };
        let mut room = ReadBuf::new(&mut scratch.input[kept..most]);
        match Pin::new(&mut self.stream).poll_read(cx, &mut room)? {
            Poll::Pending => Ok(Poll::Pending),
            Poll::Ready(()) if room.filled().is_empty() => Ok(Poll::Ready(self.end_of_input())),
            Poll::Ready(()) => {
                let received = room.filled().len();
                self.backlog.budget().count(received);
                self.stall.moved(received);
                self.forget_held();
                Ok(Poll::Ready(Some(kept + received)))
            }
        }
    }

    /// Receives a part of a long message into its own memory, and nothing behind it.
    fn receive_long(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<usize>> {
        let missing = self.want - self.held.len();
        self.held.reserve_exact(missing);
        let spare = &mut self.held.spare_capacity_mut()[..missing.min(INPUT)];
        let mut room = ReadBuf::uninit(spare);
        if Pin::new(&mut self.stream).poll_read(cx, &mut room)?.is_pending() {
            return Ok(Poll::Pending);
        }
        let received = room.filled().len();
        self.stall.moved(received);
        // SAFETY: the first `received` bytes of the spare capacity are filled, which `ReadBuf` vouches for.
        unsafe { self.held.set_len(self.held.len() + received) };
        Ok(Poll::Ready(received))
    }

    /// The client has closed its side: what it asked for is still finished.
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
            if self.protocol.serve_long(message, charge, &mut scratch.output)? == Stop::Leave {
                self.leaving = true;
            }
            return self.send(cx, &mut scratch.output);
        };
        let (mut used, mut stop) = (0, Stop::Output);
        let mut sent = Poll::Ready(Ok(()));
        while stop == Stop::Output && !self.leaving && matches!(sent, Poll::Ready(Ok(()))) {
            let input = &scratch.input[used..received];
            let n;
            (n, stop) = self.protocol.serve(input, &mut scratch.output)?;
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

    /// Sends the backlog's replies and `output`. Pending if the client does not take them all now; the rest is
    /// in the backlog then.
    fn send(&mut self, cx: &mut Context<'_>, output: &mut Output) -> Poll<Result<(), P::Error>> {
        let mut fresh = output.filled();
        if self.backlog.has_replies() || !fresh.is_empty() {
            self.worker.pace().served(self.fd);
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
        // What is new goes last, and only behind the whole queue.
        if n == replies.len() && room > 0 {
            slices[n] = IoSlice::new(fresh);
            n += 1;
        }
        stream.poll_write_vectored(cx, &slices[..n])
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, P: Protocol> Future for Conversation<S, P> {
    type Output = Result<(), P::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), P::Error>> {
        let this = self.get_mut();
        let worker = this.worker.clone();
        this.backlog.set_waker(cx.waker());
        let backlog = this.backlog.clone();
        backlog.budget().poll(cx, |cx| {
            let mut scratch = worker.scratch();
            // A connection that panicked may have left something.
            scratch.output.clear();
            let mut done = contain("a connection", || this.turn(cx, &mut scratch))
                .unwrap_or_else(|panicked| Poll::Ready(Err(io::Error::other(panicked).into())));
            let owes = done.is_pending() && this.client_owes();
            if this.stall.poll(cx, owes) {
                done = Poll::Ready(Err(stalled().into()));
            }
            // Replies to a client that is cut off are for no other client.
            scratch.output.clear();
            done
        })
    }
}

fn stalled() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "it held memory and made no progress while other clients waited for some",
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
