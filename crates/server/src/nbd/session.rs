//! Transmission: the loop of one connection, as a future.
//!
//! One pass receives into the thread's input buffer, serves every request that is whole, gathers the replies
//! in the thread's output buffer, and sends them. Between passes the connection keeps the start of a request
//! that is not whole yet (`held`) and what was not sent (its [`Backlog`]); nothing else. A request too long
//! for the thread's buffer is received into memory of its own, which is given to the task that writes it.
//!
//! The client is not read from while it does not take its replies, or while its backlog is full: then its
//! own socket holds it back, and no other client notices.

use std::future::Future;
use std::io::{self, IoSlice};
use std::os::fd::RawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use forebay_engine::{Disk, Fast};
use forebay_wire::nbd::{
    self, Command, DATA_CHUNK_HEADER, ErrorCode, Request, RequestDecoder, Rules, SIMPLE_REPLY, Step,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::backlog::Backlog;
use super::connection::{End, Stream};
use super::job::{self, Job};
use super::negotiate::Negotiated;
use super::scratch::{FAST_READ_MAX, INPUT, Output, Scratch};
use super::worker::Worker;

/// Passes in one poll, so that a busy client does not keep the thread for itself.
const PASSES: usize = 8;
/// A message that is longer is received into memory of its own.
const OWN_MEMORY: usize = INPUT / 2;
/// Replies that are sent in one call.
const MAX_SLICES: usize = 64;
/// Memory for a started request that a connection keeps when it has none.
const KEEP_HELD: usize = 4 << 10;
/// Passes in which requests are still refused, when the server closes and all else is done.
const LAST_PASSES: u8 = 4;
const SHUTTING_DOWN: &str = "the server is shutting down";

/// A connection in transmission. Ready when it is over.
pub(super) struct Session {
    worker: Rc<Worker>,
    stream: Stream,
    /// Of a UNIX socket.
    fd: Option<RawFd>,
    disk: Arc<Disk>,
    structured: bool,
    block_status: bool,
    decoder: RequestDecoder,
    /// Bytes that were received and not used.
    held: Vec<u8>,
    /// Bytes that the message at the front of `held` has, as far as is known.
    want: usize,
    backlog: Rc<Backlog>,
    /// Bytes of the backlog's first reply that are sent.
    head: usize,
    /// The client said that it leaves, or has closed its side.
    leaving: bool,
    last_passes: u8,
}

/// Why serving stopped.
#[derive(PartialEq, Eq)]
enum Stop {
    /// Nothing whole is left.
    Input,
    /// Replies have to be sent first.
    Output,
    /// No further request can be taken now.
    Backlog,
}

impl Session {
    pub fn new(worker: Rc<Worker>, n: Negotiated) -> Session {
        let backlog = Rc::new(Backlog::default());
        worker.register(&backlog);
        Session {
            worker,
            fd: n.stream.unix_fd(),
            stream: n.stream,
            disk: n.disk,
            structured: n.structured,
            block_status: n.block_status,
            decoder: RequestDecoder::new(),
            held: n.input,
            want: 0,
            backlog,
            head: 0,
            leaving: false,
            last_passes: 0,
        }
    }

    fn rules(&self) -> Rules {
        Rules {
            size: self.disk.size(),
            read_only: self.disk.read_only(),
            structured: self.structured,
            block_status: self.block_status,
        }
    }

    fn passes(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> Poll<Result<(), End>> {
        for _ in 0..PASSES {
            ready!(self.send(cx, &mut scratch.output))?;
            if self.is_over() {
                return Pin::new(&mut self.stream).poll_shutdown(cx).map_err(End::Io);
            }
            if self.leaving || self.backlog.is_full() {
                return Poll::Pending;
            }
            let received = match self.receive(cx, scratch)? {
                Poll::Ready(received) => received,
                Poll::Pending if self.worker.closing() && self.backlog.is_empty() => {
                    self.leaving = true;
                    continue;
                }
                Poll::Pending => return Poll::Pending,
            };
            ready!(self.serve_received(cx, scratch, received))?;
        }
        cx.waker().wake_by_ref();
        Poll::Pending
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

    /// Receives what there is. Returns how many bytes of the thread's input buffer are filled; `None` if what
    /// there is to serve is in `held`.
    fn receive(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut Scratch,
    ) -> Result<Poll<Option<usize>>, io::Error> {
        let kept = self.held.len();
        if self.want > OWN_MEMORY {
            while self.held.len() < self.want {
                match self.receive_long(cx)? {
                    Poll::Pending => return Ok(Poll::Pending),
                    Poll::Ready(0) => return Ok(Poll::Ready(self.end_of_input())),
                    Poll::Ready(_) => {}
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
        let mut room = ReadBuf::new(&mut scratch.input[kept..]);
        match Pin::new(&mut self.stream).poll_read(cx, &mut room)? {
            Poll::Pending => Ok(Poll::Pending),
            Poll::Ready(()) if room.filled().is_empty() => Ok(Poll::Ready(self.end_of_input())),
            Poll::Ready(()) => {
                let received = room.filled().len();
                self.forget_held();
                Ok(Poll::Ready(Some(kept + received)))
            }
        }
    }

    /// Receives a part of a long message into its own memory, and nothing behind it.
    fn receive_long(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<usize>> {
        let missing = self.want - self.held.len();
        self.held.reserve_exact(missing);
        let spare = &mut self.held.spare_capacity_mut()[..missing];
        let mut room = ReadBuf::uninit(spare);
        if Pin::new(&mut self.stream).poll_read(cx, &mut room)?.is_pending() {
            return Ok(Poll::Pending);
        }
        let received = room.filled().len();
        // SAFETY: the first `received` bytes of the spare capacity are filled, which `ReadBuf` vouches for.
        unsafe { self.held.set_len(self.held.len() + received) };
        Ok(Poll::Ready(received))
    }

    /// The client has closed its side: what it asked for is still finished.
    fn end_of_input(&mut self) -> Option<usize> {
        self.leaving = true;
        self.held = Vec::new();
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
    ) -> Poll<Result<(), End>> {
        let Some(received) = received else {
            self.serve_long(&mut scratch.output)?;
            return self.send(cx, &mut scratch.output);
        };
        let (mut used, mut stop) = (0, Stop::Output);
        let mut sent = Poll::Ready(Ok(()));
        while stop == Stop::Output && matches!(sent, Poll::Ready(Ok(()))) {
            let input = &scratch.input[used..received];
            let n;
            (n, stop) = self.serve(input, &mut scratch.output)?;
            used += n;
            sent = self.send(cx, &mut scratch.output);
        }
        if used < received && !self.leaving {
            self.held.extend_from_slice(&scratch.input[used..received]);
        }
        if stop != Stop::Input {
            self.want = 0;
        }
        sent
    }

    /// Serves the requests at the front of `input`; returns how many bytes they were, and why it stopped.
    fn serve(&mut self, input: &[u8], output: &mut Output) -> Result<(usize, Stop), End> {
        let rules = self.rules();
        let mut used = 0;
        while !self.leaving {
            if output.is_full() {
                return Ok((used, Stop::Output));
            }
            if self.backlog.is_full() {
                return Ok((used, Stop::Backlog));
            }
            let (n, step) = self.decoder.next(&rules, &input[used..])?;
            used += n;
            match step {
                Step::NeedMore { want } => {
                    self.want = want;
                    return Ok((used, Stop::Input));
                }
                Step::Request(request) => self.request(&request, output),
                Step::Refused { cookie, refusal } => {
                    self.refuse(cookie, refusal.code(), &refusal.to_string(), output);
                }
            }
        }
        Ok((used, Stop::Input))
    }

    /// Serves the one long message that `held` is.
    fn serve_long(&mut self, output: &mut Output) -> Result<(), End> {
        let message = std::mem::take(&mut self.held);
        self.want = 0;
        match self.decoder.next(&self.rules(), &message)?.1 {
            Step::NeedMore { .. } => {}
            Step::Refused { cookie, refusal } => {
                self.refuse(cookie, refusal.code(), &refusal.to_string(), output);
            }
            Step::Request(Request { cookie, command: Command::Write { offset, fua }, payload }) => {
                let start = message.len() - payload.len();
                if self.worker.closing() {
                    self.refuse(cookie, ErrorCode::Shutdown, SHUTTING_DOWN, output);
                } else {
                    self.job(cookie, message.len()).spawn_write(message, start, offset, fua);
                }
            }
            Step::Request(request) => self.request(&request, output),
        }
        Ok(())
    }

    fn request(&mut self, request: &Request<'_>, output: &mut Output) {
        let cookie = request.cookie;
        if request.command == Command::Disconnect {
            self.leaving = true;
            self.disk.say_goodbye();
            return;
        }
        if self.worker.closing() {
            return self.refuse(cookie, ErrorCode::Shutdown, SHUTTING_DOWN, output);
        }
        match request.command {
            Command::Read { len: 0, .. }
            | Command::Trim { len: 0, .. }
            | Command::Cache { len: 0, .. }
            | Command::WriteZeroes { len: 0, .. } => {
                self.done(cookie, matches!(request.command, Command::Read { .. }), output)
            }
            Command::Read { offset, len, dont_fragment } => {
                if !self.read_now(cookie, offset, len, output) {
                    self.job(cookie, job::read_cost(self.structured, len, dont_fragment)).spawn_read(
                        offset,
                        len,
                        dont_fragment,
                    );
                }
            }
            Command::Write { offset, fua } => self.write(cookie, offset, request.payload, fua, output),
            command => self.job(cookie, job::OTHER_COST).spawn_other(command),
        }
    }

    /// Reads straight into the output, if that needs no waiting. False if it does.
    fn read_now(&mut self, cookie: u64, offset: u64, len: u32, output: &mut Output) -> bool {
        let bytes = len as usize;
        if bytes > FAST_READ_MAX {
            return false;
        }
        let header_len = if self.structured { DATA_CHUNK_HEADER } else { SIMPLE_REPLY };
        let (header, data) = output.reserve(header_len, bytes);
        match self.disk.try_read(offset, data) {
            Ok(Fast::Wait) => return false,
            Ok(Fast::Done) if !self.structured => header.copy_from_slice(&nbd::simple_reply(cookie, None)),
            Ok(Fast::Done) if job::worth_a_hole(data) => {
                output.push(&nbd::hole_chunk(cookie, offset, len, true));
                return true;
            }
            Ok(Fast::Done) => header.copy_from_slice(&nbd::data_chunk_header(cookie, offset, len, true)),
            Err(e) => {
                self.refuse(cookie, ErrorCode::from_errno(e.errno()), &e.to_string(), output);
                return true;
            }
        }
        output.keep(header_len + bytes);
        true
    }

    fn write(&mut self, cookie: u64, offset: u64, data: &[u8], fua: bool, output: &mut Output) {
        let now = if data.is_empty() {
            Ok(Fast::Done)
        } else if fua {
            Ok(Fast::Wait)
        } else {
            self.disk.try_write(offset, data)
        };
        match now {
            Ok(Fast::Done) => self.done(cookie, false, output),
            Ok(Fast::Wait) => self.job(cookie, data.len()).spawn_write(data.to_vec(), 0, offset, fua),
            Err(e) => self.refuse(cookie, ErrorCode::from_errno(e.errno()), &e.to_string(), output),
        }
    }

    fn job(&self, cookie: u64, cost: usize) -> Job {
        Job::new(self.disk.clone(), self.backlog.enter(cost), cookie, self.structured)
    }

    fn done(&self, cookie: u64, read: bool, output: &mut Output) {
        if read && self.structured {
            output.push(&nbd::none_chunk(cookie));
        } else {
            output.push(&nbd::simple_reply(cookie, None));
        }
    }

    fn refuse(&self, cookie: u64, code: ErrorCode, text: &str, output: &mut Output) {
        if self.structured {
            let mut chunk = Vec::with_capacity(128);
            nbd::error_chunk(&mut chunk, cookie, code, text);
            output.push(&chunk);
        } else {
            output.push(&nbd::simple_reply(cookie, Some(code)));
        }
    }

    /// Sends the backlog's replies and `output`. Pending if the client does not take them all now; the rest is
    /// in the backlog then.
    fn send(&mut self, cx: &mut Context<'_>, output: &mut Output) -> Poll<Result<(), End>> {
        let mut fresh = output.filled();
        if self.backlog.has_replies() || !fresh.is_empty() {
            self.worker.pace().served(self.fd);
        }
        while self.backlog.has_replies() || !fresh.is_empty() {
            let written = match self.write_some(cx, fresh) {
                Poll::Ready(Ok(0)) => {
                    return Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero).into()));
                }
                Poll::Ready(Ok(n)) => n,
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
        }
        output.clear();
        match &mut self.stream {
            Stream::Plain(_) => Poll::Ready(Ok(())),
            Stream::Tls(tls) => Pin::new(tls).poll_flush(cx).map_err(End::Io),
        }
    }

    fn write_some(&mut self, cx: &mut Context<'_>, fresh: &[u8]) -> Poll<io::Result<usize>> {
        let stream = Pin::new(&mut self.stream);
        if !self.backlog.has_replies() {
            return stream.poll_write(cx, fresh);
        }
        let replies = self.backlog.replies();
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let mut n = 0;
        for (slice, reply) in slices[..MAX_SLICES - 1].iter_mut().zip(replies.iter()) {
            *slice = IoSlice::new(if n == 0 { &reply[self.head..] } else { reply });
            n += 1;
        }
        // What is new goes last, and only behind the whole queue.
        if n == replies.len() {
            slices[n] = IoSlice::new(fresh);
            n += 1;
        }
        stream.poll_write_vectored(cx, &slices[..n])
    }
}

impl Future for Session {
    type Output = Result<(), End>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        let session = self.get_mut();
        let worker = session.worker.clone();
        session.backlog.set_waker(cx.waker());
        session.passes(cx, &mut worker.scratch())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.backlog.abandon();
        if let Some(fd) = self.fd {
            self.worker.pace().forget(fd);
        }
    }
}
