//! The transmission phase: requests of one connection and their replies.

use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use forebay_engine::{DiskHandle, is_zero};
use forebay_wire::nbd::{
    self, Command, DATA_CHUNK_HEADER, DISMISSED, ErrorCode, Request, RequestDecoder, Rules, SIMPLE_REPLY,
    Step,
};
use tokio::time::{Sleep, sleep};

use super::attachments::{Attachment, Order};
use super::context::{Attached, MetaContexts, Negotiated};
use super::errors::{End, Fenced, error_code};
use super::handover::HandedOver;
use super::reply::{MAX_EXTENTS, MIN_HOLE, NbdReply};
use super::stream::Stream;
use crate::exec::block::Io;
use crate::exec::{Executor, Now};
use crate::plane::{Backlog, Charge, Conversation, Ended, Front, Output, Protocol, Served, Stop, Worker};

/// Bytes of memory of a TLS session, including its buffers.
const TLS_COST: usize = 32 << 10;
/// Time that the requests of a client have to end when an administrator disconnects the client.
const DISCONNECT_TIME: Duration = Duration::from_secs(5);
const SHUTTING_DOWN: &str = "the server is shutting down";

/// The transmission phase of a connection.
pub(super) struct Transmission {
    worker: Rc<Worker>,
    disk: Arc<DiskHandle>,
    /// Dropped after `disk`: the connection has ended when the disk is closed.
    attachment: Attachment,
    /// When the client opened the disk, in Unix milliseconds.
    since_ms: u64,
    structured: bool,
    contexts: MetaContexts,
    /// Whether the listener refuses writes.
    read_only: bool,
    /// The client is a node, which forwards the connection.
    is_relayed: bool,
    decoder: RequestDecoder,
    executor: Executor,
    /// The client sent `NBD_CMD_DISC`.
    leaving: bool,
    /// The client is gone: its input is only searched for `NBD_CMD_DISC`.
    dropping: bool,
    /// Time at which a connection ends at the latest that an administrator disconnects.
    ending: Option<Pin<Box<Sleep>>>,
}

/// Serves a client that has chosen its disk, until it disconnects.
pub(super) async fn transmit(worker: Rc<Worker>, n: Negotiated) -> Result<Ended, End> {
    let backlog = Backlog::new(&worker);
    if matches!(n.stream, Stream::Tls(_)) {
        backlog.account().add_to_base(TLS_COST);
    }
    let unix_fd = n.stream.peer().filter(|peer| !peer.is_tcp).map(|peer| peer.fd);
    let Attached { watched, disk, attachment, since_ms, listed, .. } = n.attached;
    backlog.account().join(&format!("disk {}", disk.name()));
    let transmission = Transmission {
        worker: worker.clone(),
        disk,
        attachment,
        since_ms,
        structured: n.structured,
        contexts: n.contexts,
        read_only: n.read_only,
        is_relayed: n.is_relayed,
        decoder: RequestDecoder::new(),
        executor: Executor::new(Front::Nbd, backlog.clone(), worker.times().clone()),
        leaving: false,
        dropping: false,
        ending: None,
    };
    let (stream, received) = (n.stream, n.received);
    let mut conversation = pin!(Conversation::new(worker, stream, unix_fd, received, backlog, transmission));
    // Declared later and therefore dropped earlier, before the conversation closes the socket.
    let _watched = (watched, listed);
    conversation.as_mut().await
}

impl Protocol for Transmission {
    type Error = End;

    fn serve(&mut self, input: &[u8], output: &mut Output) -> Result<(usize, Stop), End> {
        let rules = self.rules();
        let mut used = 0;
        while !self.leaving {
            if output.is_full() {
                return Ok((used, Stop::Output));
            }
            if self.backlog().is_full() && !self.dropping {
                return Ok((used, Stop::Backlog));
            }
            if self.backlog().budget().turn_is_over() {
                return Ok((used, Stop::Turn));
            }
            if self.worker.is_quiescing() && !self.needs_input() {
                return Ok((used, Stop::Backlog));
            }
            let (n, step) = self.decoder.next(&rules, &input[used..])?;
            used += n;
            self.backlog().budget().count(n);
            self.attachment.served(n);
            match step {
                Step::NeedMore { want } => return Ok((used, Stop::Input { want })),
                Step::Request(request) => self.request(&request, output)?,
                Step::Refused { .. } if self.dropping => {}
                Step::Refused { cookie, refusal } => {
                    self.refuse(cookie, refusal.code(), &refusal.to_string(), output);
                }
            }
        }
        Ok((used, Stop::Leave))
    }

    fn received(&mut self, bytes: usize) {
        self.attachment.received(bytes);
    }

    fn search_input(&mut self) -> bool {
        self.dropping = true;
        true
    }

    fn attend(&mut self, cx: &mut Context<'_>, output: &mut Output) -> Result<(), End> {
        match self.attachment.order(cx) {
            Order::Serve => {}
            Order::Leave => {
                if self.is_relayed && self.ending.is_none() {
                    // Otherwise the node would connect its client again.
                    output.push(&nbd::simple_reply(DISMISSED, Some(ErrorCode::Perm)));
                }
                let end = self.ending.get_or_insert_with(|| Box::pin(sleep(DISCONNECT_TIME)));
                if end.as_mut().poll(cx).is_ready() {
                    return Err(End::Disconnected);
                }
            }
            Order::Stop => {
                self.dropping = true;
                self.backlog().abandon();
            }
        }
        Ok(())
    }

    fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    fn serve_long(&mut self, message: Vec<u8>, charge: Charge, output: &mut Output) -> Result<Stop, End> {
        self.attachment.served(message.len());
        match self.decoder.next(&self.rules(), &message)?.1 {
            Step::NeedMore { .. } => {}
            Step::Refused { .. } | Step::Request(Request { command: Command::Write { .. }, .. })
                if self.dropping => {}
            Step::Refused { cookie, refusal } => {
                self.refuse(cookie, refusal.code(), &refusal.to_string(), output);
            }
            Step::Request(Request { cookie, command: Command::Write { offset, fua }, payload }) => {
                let start = message.len() - payload.len();
                if self.worker.closing() {
                    self.refuse(cookie, ErrorCode::Shutdown, SHUTTING_DOWN, output);
                } else {
                    let io = Io::Write { offset, message, start, fua };
                    let reply = self.reply(cookie, false);
                    self.executor.spawn_block_charged(charge, self.disk.clone(), io, reply);
                }
            }
            // The decoder returns only writes as long messages; any other request is served as usual.
            Step::Request(request) => self.request(&request, output)?,
        }
        Ok(if self.leaving { Stop::Leave } else { Stop::Input { want: 0 } })
    }

    fn needs_input(&self) -> bool {
        // If the client is gone, its further input is searched, and then its connection ends.
        self.decoder.is_skipping() || self.dropping
    }

    fn park(&self) -> Option<serde_json::Value> {
        // If the client does not know of a lost write, the loss would be forgotten with the handle.
        if self.disk.has_unreported_losses() {
            return None;
        }
        let (structured, block_status) = (self.structured, self.contexts.allocation);
        let changed_since = self.contexts.since.as_ref().map(|since| since.name());
        let (export, since_ms) = (self.disk.name(), Some(self.since_ms));
        serde_json::to_value(HandedOver { export, structured, block_status, changed_since, since_ms }).ok()
    }
}

impl Transmission {
    fn rules(&self) -> Rules {
        Rules {
            size: self.disk.size(),
            read_only: self.read_only || self.disk.read_only(),
            structured: self.structured,
            block_status: self.contexts.count() > 0,
        }
    }

    fn request(&mut self, request: &Request<'_>, output: &mut Output) -> Result<(), Fenced> {
        let cookie = request.cookie;
        self.worker.pace().requested();
        if request.command == Command::Disconnect {
            self.leaving = true;
            self.attachment.leave();
            self.disk.mark_clean_disconnect();
            return Ok(());
        }
        if self.dropping {
            return Ok(());
        }
        if self.disk.is_fenced() {
            return Err(Fenced);
        }
        if self.worker.closing() {
            self.refuse(cookie, ErrorCode::Shutdown, SHUTTING_DOWN, output);
            return Ok(());
        }
        match request.command {
            Command::Read { len: 0, .. }
            | Command::Trim { len: 0, .. }
            | Command::Cache { len: 0, .. }
            | Command::WriteZeroes { len: 0, .. } => {
                self.done(cookie, matches!(request.command, Command::Read { .. }), output)
            }
            Command::Read { offset, len, dont_fragment } => {
                if !self.read_now(cookie, offset, len, output)? {
                    self.spawn(Io::Read { offset, len }, self.reply(cookie, dont_fragment));
                }
            }
            Command::Write { offset, fua } => self.write(cookie, offset, request.payload, fua, output)?,
            Command::Trim { offset, len, fua } => {
                self.spawn(Io::Discard { offset, len: len.into(), fua }, self.reply(cookie, false));
            }
            Command::WriteZeroes { offset, len, fua, no_hole } => {
                let io = Io::Zero { offset, len: len.into(), allocated: no_hole, fua };
                self.spawn(io, self.reply(cookie, false));
            }
            Command::Flush => self.spawn(Io::Flush, self.reply(cookie, false)),
            Command::Cache { offset, len } => {
                self.spawn(Io::Prefetch { offset, len: len.into() }, self.reply(cookie, false));
            }
            Command::BlockStatus { offset, len, one } => {
                let MetaContexts { allocation, since } = self.contexts.clone();
                let max = if one { 1 } else { MAX_EXTENTS / self.contexts.count().max(1) };
                let io = Io::Extents { offset, len: len.into(), max, allocation, since };
                self.spawn(io, self.reply(cookie, false));
            }
            Command::Disconnect => unreachable!("a disconnect is handled above"),
        }
        Ok(())
    }

    /// Reads directly into the output if that needs no wait; otherwise returns false.
    fn read_now(&mut self, cookie: u64, offset: u64, len: u32, output: &mut Output) -> Result<bool, Fenced> {
        let bytes = len as usize;
        if bytes > output.fast_read_max() {
            return Ok(false);
        }
        let header_len = if self.structured { DATA_CHUNK_HEADER } else { SIMPLE_REPLY };
        self.backlog().budget().count(bytes);
        let (header, data) = output.reserve(header_len, bytes);
        match self.executor.read_now(&self.disk, offset, data) {
            Ok(false) => return Ok(false),
            Ok(true) if !self.structured => header.copy_from_slice(&nbd::simple_reply(cookie, None)),
            Ok(true) if bytes >= MIN_HOLE && is_zero(data) => {
                output.push(&nbd::hole_chunk(cookie, offset, len, true));
                self.executor.count(Served::Ram);
                return Ok(true);
            }
            Ok(true) => header.copy_from_slice(&nbd::data_chunk_header(cookie, offset, len, true)),
            Err(e) => {
                self.refuse(cookie, error_code(&e)?, &e.to_string(), output);
                return Ok(true);
            }
        }
        output.keep(header_len + bytes);
        self.executor.count(Served::Ram);
        Ok(true)
    }

    fn write(
        &mut self,
        cookie: u64,
        offset: u64,
        data: &[u8],
        fua: bool,
        output: &mut Output,
    ) -> Result<(), Fenced> {
        if data.is_empty() {
            self.done(cookie, false, output);
            return Ok(());
        }
        let now = match self.attachment.is_in_doubt() {
            true => Ok(Now::Wait),
            false => self.executor.write_now(&self.disk, offset, data, fua),
        };
        match now {
            Ok(Now::Done) => self.done(cookie, false, output),
            Ok(Now::InBuffers) => self.spawn(Io::EndWrite { fua }, self.reply(cookie, false)),
            Ok(Now::Wait) => {
                let io = Io::Write { offset, message: data.to_vec(), start: 0, fua };
                self.spawn(io, self.reply(cookie, false));
            }
            Err(e) => self.refuse(cookie, error_code(&e)?, &e.to_string(), output),
        }
        Ok(())
    }

    /// Starts a task that serves a request.
    fn spawn(&self, io: Io, reply: NbdReply) {
        self.executor.spawn_block(self.disk.clone(), io, reply);
    }

    fn reply(&self, cookie: u64, dont_fragment: bool) -> NbdReply {
        let (begun, structured) = (self.attachment.begin(), self.structured);
        NbdReply { begun, cookie, structured, dont_fragment }
    }

    fn backlog(&self) -> &Rc<Backlog> {
        self.executor.backlog()
    }

    fn done(&self, cookie: u64, read: bool, output: &mut Output) {
        if read && self.structured {
            output.push(&nbd::none_chunk(cookie));
        } else {
            output.push(&nbd::simple_reply(cookie, None));
        }
    }

    fn refuse(&self, cookie: u64, code: ErrorCode, text: &str, output: &mut Output) {
        output.push(&NbdReply::error(cookie, self.structured, code, text));
    }
}
