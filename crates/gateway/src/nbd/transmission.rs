//! The transmission phase: moves bytes between the client, the requests, the owner and the replies.
//!
//! One task serves both directions, so a request and its reply need no wake-up of another task. All buffers
//! are bounded: a client is not read from when its requests hold too much memory, and an owner is not read
//! from when the client does not receive its replies.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use forebay_wire::nbd::{
    self, CMD_DISC, CMD_WRITE, ErrorCode, MAX_PAYLOAD, REQUEST_HEADER, Refusal, RequestHeader,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::Counters;
use super::end::End;
use super::limits::{GATHER, IN_PLACE, INPUT, LAST_REQUESTS, LEAVE, STALL};
use super::memory::Account;
use super::replies::{Fault, Replies};
use super::requests::{Requests, Slot, cost_of, disconnect};
use crate::Stream;

/// Time for the last bytes to a client whose connection ends.
const LAST_BYTES: std::time::Duration = std::time::Duration::from_secs(1);

/// Why the transmission has stopped.
#[derive(Debug)]
pub(super) enum Step {
    /// The client has left, and needs no further replies.
    Left,
    /// The connection to the owner is lost, for this reason.
    Lost(String),
}

/// A write whose payload is being received.
struct Incoming {
    header: RequestHeader,
    payload: Vec<u8>,
    filled: usize,
}

/// The bytes of the client that are not served.
struct Input {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Takes at most `max` bytes.
    fn take(&mut self, max: usize) -> &[u8] {
        let start = self.start;
        self.start = self.end.min(start + max);
        &self.buffer[start..self.start]
    }

    fn room(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.buffer[self.end..]
    }
}

/// A connection in the transmission phase.
pub(super) struct Transmission<C> {
    client: C,
    input: Input,
    /// A time at which the owner was still connected, close to the last such time that is known.
    pub owner_seen: Instant,
    /// When nothing of the owner was left to be received.
    owner_idle: Instant,
    /// The client has closed its side.
    is_eof: bool,
    /// The client sent `NBD_CMD_DISC`.
    is_leaving: bool,
    /// Nothing can be sent to the client, which has disconnected in order.
    is_gone: bool,
    incoming: Option<Incoming>,
    /// A write that is too long: its cookie, and the rest of its payload.
    skipping: Option<(u64, usize)>,
    pub requests: Requests,
    pub replies: Replies,
    account: Account,
    counters: Arc<Counters>,
    owner: Option<Stream>,
    /// Bytes for the owner, and how many of them are sent.
    out: Vec<u8>,
    out_sent: usize,
    /// A request whose payload is sent in place, after `out`, and how much of it is sent.
    in_place: Option<(Slot, usize)>,
    /// `NBD_CMD_DISC` is in `out`, or was sent.
    is_disconnecting: bool,
    /// The sending side of the owner's stream has failed.
    is_shut: bool,
    flushes: [bool; 2],
    /// Ends a client that makes no progress.
    stall: Option<Pin<Box<Sleep>>>,
    /// Ends a client that has closed its side.
    last: Option<Pin<Box<Sleep>>>,
}

/// Indexes of `flushes`.
const CLIENT: usize = 0;
const OWNER: usize = 1;

impl<C: AsyncRead + AsyncWrite + Send + Unpin> Transmission<C> {
    /// A transmission without an owner. `received` are bytes of the client.
    pub fn new(
        client: C,
        received: &[u8],
        structured: bool,
        account: Account,
        counters: Arc<Counters>,
    ) -> Transmission<C> {
        let mut buffer = vec![0; INPUT.max(received.len())].into_boxed_slice();
        buffer[..received.len()].copy_from_slice(received);
        Transmission {
            client,
            input: Input { buffer, start: 0, end: received.len() },
            owner_seen: Instant::now(),
            owner_idle: Instant::now(),
            is_eof: false,
            is_leaving: false,
            is_gone: false,
            incoming: None,
            skipping: None,
            requests: Requests::default(),
            replies: Replies::new(structured),
            account,
            counters,
            owner: None,
            out: Vec::new(),
            out_sent: 0,
            in_place: None,
            is_disconnecting: false,
            is_shut: false,
            flushes: [false; 2],
            stall: None,
            last: None,
        }
    }

    pub fn client(&self) -> &C {
        &self.client
    }

    /// Whether the client sent `NBD_CMD_DISC`.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Whether changes are unanswered, or bytes were received that may be a part of a change.
    pub fn may_hold_changes(&self) -> bool {
        let is_incomplete = self.incoming.is_some() || !self.input.bytes().is_empty();
        self.requests.has_changes() || (is_incomplete && !self.is_leaving)
    }

    /// Continues with another owner, which was connected at the time `seen`, and of which `received` was
    /// received already. Returns the number of requests that are repeated.
    pub fn restart(&mut self, owner: Stream, received: &[u8], seen: Instant) -> usize {
        (self.owner_seen, self.owner_idle) = (seen, seen);
        let repeated = self.requests.restart();
        self.replies.restart();
        self.out.clear();
        (self.out_sent, self.in_place) = (0, None);
        (self.is_disconnecting, self.is_shut) = (false, false);
        self.flushes[OWNER] = false;
        let mut received = received;
        while !received.is_empty() {
            let room = self.replies.room();
            let len = room.len().min(received.len());
            room[..len].copy_from_slice(&received[..len]);
            self.replies.received(len);
            received = &received[len..];
        }
        self.owner = Some(owner);
        repeated
    }

    /// Serves the client until it leaves, or until the owner is lost.
    pub fn poll_run(&mut self, cx: &mut Context<'_>, export: &str) -> Poll<Result<Step, End>> {
        loop {
            let mut is_moving = self.poll_client_requests(cx)?;
            is_moving |= self.poll_owner_requests(cx);
            match self.poll_owner_replies(cx) {
                Ok(moves) => is_moving |= moves,
                Err(Lost::Stream(why)) => {
                    self.owner = None;
                    // After `NBD_CMD_DISC`, the client does not need the owner any more.
                    let is_over = self.is_disconnecting && self.out_sent == self.out.len();
                    let step = if is_over { Step::Left } else { Step::Lost(why) };
                    return Poll::Ready(Ok(step));
                }
                Err(Lost::Fault(Fault::Stops)) => {
                    self.owner = None;
                    return Poll::Ready(Ok(Step::Lost("the owner stops".into())));
                }
                Err(Lost::Fault(Fault::Torn)) => {
                    return Poll::Ready(Err(End::Torn { export: export.to_owned() }));
                }
                Err(Lost::Fault(Fault::Protocol(why))) => {
                    return Poll::Ready(Err(End::Owner { export: export.to_owned(), why }));
                }
            }
            is_moving |= self.poll_client_replies(cx)?;
            if self.has_left() {
                return Poll::Ready(Ok(Step::Left));
            }
            if !is_moving {
                return self.poll_timers(cx).map(|ended| ended.map(|()| Step::Left));
            }
        }
    }

    /// Serves the client while there is no owner: receives requests, and sends replies. Ready when the client
    /// has left, or when the time for the requests of a client that has disconnected in order is over.
    pub fn poll_client(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        loop {
            let is_moving = self.poll_client_requests(cx)? | self.poll_client_replies(cx)?;
            if self.is_eof {
                return Poll::Ready(Ok(()));
            }
            if !is_moving {
                return self.poll_timers(cx);
            }
        }
    }

    /// Ends the connection to the owner, and then that to the client, after its last replies.
    pub async fn finish(mut self) {
        if let Some(owner) = self.owner.take()
            && self.is_leaving
        {
            // A client that waits for the end of its connection can open the disk again at once: the owner
            // closes its connection when it has handled the end, after which a desktop is reset.
            let _ = timeout(LEAVE, wait_for_end(owner)).await;
        }
        let closing = async {
            if !self.is_gone {
                self.client.write_all(self.replies.unsent()).await?;
                self.client.shutdown().await?;
            }
            io::Result::Ok(())
        };
        // The client may have closed its socket.
        let _ = timeout(LAST_BYTES, closing).await;
    }

    /// Whether the client has left, and nothing is left to do for it.
    fn has_left(&self) -> bool {
        if !self.requests.is_empty() || (!self.replies.unsent().is_empty() && !self.is_gone) {
            return false;
        }
        let is_out = self.out_sent == self.out.len();
        (self.is_leaving && self.is_disconnecting && is_out) || (self.is_eof && !self.is_leaving)
    }

    /// Receives and parses requests. Returns whether something happened.
    fn poll_client_requests(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let mut is_moving = false;
        while !self.is_leaving {
            if self.parse(cx)? {
                is_moving = true;
                continue;
            }
            // The end of the client is to be noticed also while it sends more than is served.
            match self.poll_receive(cx)? {
                Poll::Ready(()) => is_moving = true,
                Poll::Pending => break,
            }
        }
        Ok(is_moving)
    }

    /// Parses one message of the client, or a part of it. Returns false if more bytes, or more memory, are
    /// needed.
    fn parse(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        if let Some(incoming) = &mut self.incoming {
            let part = self.input.take(incoming.payload.len() - incoming.filled);
            incoming.payload[incoming.filled..][..part.len()].copy_from_slice(part);
            incoming.filled += part.len();
            let moves = !part.is_empty();
            if incoming.filled == incoming.payload.len()
                && let Some(Incoming { header, payload, .. }) = self.incoming.take()
            {
                self.requests.add(header, payload);
                return Ok(true);
            }
            return Ok(moves);
        }
        if let Some((cookie, left)) = self.skipping {
            let skipped = self.input.take(left).len();
            if skipped < left {
                self.skipping = Some((cookie, left - skipped));
                return Ok(skipped > 0);
            }
            if self.replies.is_full() {
                self.skipping = Some((cookie, 0));
                return Ok(false);
            }
            self.skipping = None;
            self.refuse(cookie, Refusal::TooLong);
            return Ok(true);
        }
        let Some(header) = RequestHeader::parse(self.input.bytes())? else { return Ok(false) };
        if header.kind == CMD_DISC {
            self.is_leaving = true;
            return Ok(true);
        }
        if header.kind == CMD_WRITE && header.len > MAX_PAYLOAD {
            self.input.take(REQUEST_HEADER);
            self.skipping = Some((header.cookie, header.len as usize));
            return Ok(true);
        }
        if self.requests.is_full() || self.account.poll_take(cx, cost_of(&header)).is_pending() {
            return Ok(false);
        }
        self.input.take(REQUEST_HEADER);
        self.counters.received(&header);
        match header.kind {
            CMD_WRITE if header.len > 0 => {
                let payload = vec![0; header.len as usize];
                self.incoming = Some(Incoming { header, payload, filled: 0 });
            }
            _ => self.requests.add(header, Vec::new()),
        }
        Ok(true)
    }

    /// Answers a request on this side.
    fn refuse(&mut self, cookie: u64, refusal: Refusal) {
        let mut reply = nbd::simple_reply(cookie, Some(refusal.code())).to_vec();
        if self.replies.is_structured() {
            reply.clear();
            nbd::error_chunk(&mut reply, cookie, ErrorCode::Inval, &refusal.to_string());
        }
        self.replies.insert(&reply);
    }

    /// Receives bytes of the client: the rest of a payload in place. Pending also if there is no room.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, End> {
        if self.is_eof {
            return Ok(Poll::Pending);
        }
        let room = match &mut self.incoming {
            Some(incoming) => &mut incoming.payload[incoming.filled..],
            None => self.input.room(),
        };
        if room.is_empty() {
            return Ok(Poll::Pending);
        }
        let mut room = ReadBuf::new(room);
        match Pin::new(&mut self.client).poll_read(cx, &mut room) {
            Poll::Pending => return Ok(Poll::Pending),
            Poll::Ready(Err(e)) => return Err(e.into()),
            Poll::Ready(Ok(())) => {}
        }
        let received = room.filled().len();
        self.stall = None;
        match &mut self.incoming {
            _ if received == 0 => {
                self.is_eof = true;
                // A request that is not complete is not executed.
                if let Some(Incoming { header, .. }) = self.incoming.take() {
                    self.account.give_back(cost_of(&header));
                }
                self.last = Some(Box::pin(sleep(LAST_REQUESTS)));
            }
            Some(incoming) => incoming.filled += received,
            None => self.input.end += received,
        }
        Ok(Poll::Ready(()))
    }

    /// Collects requests for the owner.
    fn collect(&mut self) {
        while self.out.len() < GATHER && self.in_place.is_none() {
            let Some(slot) = self.requests.next() else { break };
            let Some((header, payload)) = self.requests.message(slot) else { continue };
            self.out.extend_from_slice(&header);
            if payload.len() < IN_PLACE {
                self.out.extend_from_slice(payload);
                self.requests.sent(slot);
            } else {
                self.in_place = Some((slot, 0));
            }
        }
        // The disconnect is sent to the owner last: it resets a desktop, and no request may be repeated after
        // a reset.
        if self.is_leaving && self.requests.is_empty() && !self.is_disconnecting {
            self.out.extend_from_slice(&disconnect());
            self.is_disconnecting = true;
        }
    }

    /// Sends requests to the owner. Returns whether something happened. An error shows when the owner is read
    /// from, after what it has answered.
    fn poll_owner_requests(&mut self, cx: &mut Context<'_>) -> bool {
        let mut is_moving = false;
        while !self.is_shut {
            let Some(owner) = &mut self.owner else { break };
            let written = if self.out_sent < self.out.len() {
                Pin::new(owner).poll_write(cx, &self.out[self.out_sent..])
            } else if let Some((slot, sent)) = self.in_place {
                let payload = self.requests.message(slot).map_or(&[][..], |(_, payload)| payload);
                Pin::new(owner).poll_write(cx, &payload[sent..])
            } else {
                self.out.clear();
                self.out_sent = 0;
                self.collect();
                if !self.out.is_empty() {
                    continue;
                }
                self.poll_flush_owner(cx);
                break;
            };
            match written {
                Poll::Pending => break,
                Poll::Ready(Ok(0) | Err(_)) => self.is_shut = true,
                Poll::Ready(Ok(bytes)) => self.wrote(bytes),
            }
            is_moving = true;
        }
        is_moving
    }

    fn wrote(&mut self, bytes: usize) {
        self.flushes[OWNER] = true;
        if self.out_sent < self.out.len() {
            self.out_sent += bytes;
            return;
        }
        let Some((slot, sent)) = self.in_place else { return };
        let sent = sent + bytes;
        let len = self.requests.message(slot).map_or(0, |(_, payload)| payload.len());
        self.in_place = (sent < len).then_some((slot, sent));
        if self.in_place.is_none() {
            self.requests.sent(slot);
        }
    }

    /// Flushes what was sent to the owner.
    fn poll_flush_owner(&mut self, cx: &mut Context<'_>) {
        if let Some(owner) = &mut self.owner
            && self.flushes[OWNER]
            && let Poll::Ready(flushed) = Pin::new(owner).poll_flush(cx)
        {
            self.flushes[OWNER] = false;
            self.is_shut |= flushed.is_err();
        }
    }

    /// Receives replies of the owner. Returns whether something happened.
    fn poll_owner_replies(&mut self, cx: &mut Context<'_>) -> Result<bool, Lost> {
        let mut is_moving = false;
        while !self.replies.is_full() {
            let Some(owner) = &mut self.owner else { break };
            let mut room = ReadBuf::new(self.replies.room());
            let received = match Pin::new(owner).poll_read(cx, &mut room) {
                Poll::Ready(Ok(())) => room.filled().len(),
                Poll::Ready(Err(e)) => return Err(Lost::Stream(e.to_string())),
                Poll::Pending if self.is_shut => {
                    return Err(Lost::Stream("the owner does not accept requests".into()));
                }
                Poll::Pending => {
                    self.owner_idle = Instant::now();
                    break;
                }
            };
            if received == 0 {
                return Err(Lost::Stream("the owner has closed the connection".into()));
            }
            // The bytes arrived later than this, even if the process was stopped since.
            self.owner_seen = self.owner_idle;
            self.replies.received(received);
            is_moving = true;
            self.replies.process(&mut self.requests).map_err(Lost::Fault)?;
        }
        Ok(is_moving)
    }

    /// Sends replies to the client. Returns whether something happened.
    fn poll_client_replies(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let mut is_moving = false;
        while !self.replies.unsent().is_empty() {
            let unsent = self.replies.unsent();
            let sent = match self.is_gone {
                true => Poll::Ready(Ok(unsent.len())),
                false => Pin::new(&mut self.client).poll_write(cx, unsent),
            };
            match sent {
                Poll::Pending => return Ok(is_moving),
                Poll::Ready(Ok(bytes)) if bytes > 0 => {
                    let cost = self.replies.advance(bytes);
                    self.account.give_back(cost);
                }
                // A client that disconnects in order need not wait for its replies.
                Poll::Ready(_) if self.is_leaving => {
                    self.is_gone = true;
                    self.last = Some(Box::pin(sleep(LEAVE)));
                }
                Poll::Ready(Ok(_)) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Poll::Ready(Err(e)) => return Err(e.into()),
            }
            (is_moving, self.stall) = (true, None);
            self.flushes[CLIENT] = true;
        }
        if self.flushes[CLIENT] && !self.is_gone {
            match Pin::new(&mut self.client).poll_flush(cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => self.flushes[CLIENT] = false,
                Poll::Ready(Err(_)) if self.is_leaving => self.flushes[CLIENT] = false,
                Poll::Ready(Err(e)) => return Err(e.into()),
            }
        }
        Ok(is_moving)
    }

    /// Waits for the time limits of the client. Ready when the time for the last requests of a client is over
    /// that has closed its side. Then the stream to the owner is dropped, which tells the owner that the
    /// client is gone also if earlier requests are still on their way.
    fn poll_timers(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        if let Some(last) = &mut self.last
            && last.as_mut().poll(cx).is_ready()
        {
            self.last = None;
            return Poll::Ready(Ok(()));
        }
        let awaits_client = self.incoming.is_some() || !self.replies.unsent().is_empty();
        if !awaits_client || !self.account.holds_shared() {
            self.stall = None;
            return Poll::Pending;
        }
        loop {
            let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(STALL)));
            ready!(stall.as_mut().poll(cx));
            if self.account.is_wanted() {
                return Poll::Ready(Err(End::Stalled(STALL)));
            }
            self.stall = None;
        }
    }
}

/// Why the owner cannot be used any more.
enum Lost {
    Stream(String),
    Fault(Fault),
}

/// Closes the sending side of a stream, so that the next client of the disk waits for its end, and reads it
/// to its end.
async fn wait_for_end(mut stream: Stream) {
    let _ = stream.shutdown().await;
    let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
}
