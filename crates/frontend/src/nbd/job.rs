//! Requests that wait for the engine, each in a task of the connection's thread.
//!
//! A job holds its [`Ticket`], so its memory is charged to the connection until it ends. A job of a
//! connection that is gone is dropped, wherever it waits ([`super::attachments`]): the futures of the engine
//! release what they hold, and a write that is dropped has written whole blocks only.

use std::rc::Rc;
use std::sync::Arc;

use forebay_engine::{DiskHandle, Error, ReadFrom, Result, is_zero};
use forebay_wire::nbd::{
    self, BlockDescriptor, Command, DATA_CHUNK_HEADER, ErrorCode, SIMPLE_REPLY, STATE_HOLE, STATE_ZERO,
};

use super::attachments::Begun;
use super::errors::{Fenced, error_code};
use crate::plane::{Charge, FENCED, MemoryAccount, Served, Ticket, Timed, spawn_request};

/// Chunk size in which a long read is read and sent.
const PIECE: usize = 256 << 10;
/// Bytes that a prefetch reads at once.
const PREFETCH: usize = 1 << 20;
/// Most descriptors in a block status reply.
const MAX_EXTENTS: usize = 8192;
/// Memory that a request is charged when it is accepted, in addition to its data and its task.
pub(super) const COST: usize = 512;
/// Memory of one extent while a block status reply is built: the engine's extent, the descriptor, the reply.
const EXTENT_COST: usize = 64;
/// Shorter data is sent as it is, also if it is zero.
const MIN_HOLE: usize = 512;

/// Whether `data` is sent as a hole.
pub(super) fn is_sent_as_hole(data: &[u8]) -> bool {
    data.len() >= MIN_HOLE && is_zero(data)
}

/// A request to be executed in a task.
pub(super) struct Job {
    disk: Arc<DiskHandle>,
    ticket: Ticket,
    /// Dropped after `disk`: no new connection starts before.
    begun: Begun,
    cookie: u64,
    structured: bool,
    timed: Timed,
}

impl Job {
    pub fn new(
        disk: Arc<DiskHandle>,
        ticket: Ticket,
        begun: Begun,
        cookie: u64,
        structured: bool,
        timed: Timed,
    ) -> Job {
        Job { disk, ticket, begun, cookie, structured, timed }
    }

    /// Executes a read.
    pub fn spawn_read(self, offset: u64, len: u32, dont_fragment: bool) {
        let backlog = self.ticket.backlog().clone();
        spawn_request(&backlog, async move {
            let read = async {
                match (self.structured, dont_fragment) {
                    (true, false) => self.read_in_pieces(offset, len as usize).await,
                    (true, true) => self.read_whole(offset, len as usize, DATA_CHUNK_HEADER).await,
                    (false, _) => self.read_whole(offset, len as usize, SIMPLE_REPLY).await,
                }
            };
            match self.begun.run(read).await {
                Some(Ok(ReadFrom::Ram)) => self.timed.end(Served::Ram),
                Some(Ok(ReadFrom::Store)) => self.timed.end(Served::Store),
                Some(Err(e)) => self.reply(Err(e)),
                None => {}
            }
        });
    }

    /// Executes a write of `message[start..]`.
    pub fn spawn_write(self, message: Vec<u8>, start: usize, offset: u64, fua: bool) {
        let backlog = self.ticket.backlog().clone();
        spawn_request(&backlog, async move {
            let done = self.begun.run_change(self.disk.write(offset, &message[start..], fua)).await;
            drop(message);
            if let Some(done) = done {
                self.changed(fua, done);
            }
        });
    }

    /// Waits until a write is durable whose data is in the write buffers.
    pub fn spawn_end_of_write(self, fua: bool) {
        let backlog = self.ticket.backlog().clone();
        spawn_request(&backlog, async move {
            if let Some(done) = self.begun.run(self.disk.finish(fua)).await {
                self.changed(fua, done);
            }
        });
    }

    /// Executes a command other than read, write and disconnect.
    pub fn spawn_other(self, command: Command) {
        let backlog = self.ticket.backlog().clone();
        spawn_request(&backlog, async move {
            let executed = match command {
                Command::Trim { .. } | Command::WriteZeroes { .. } => {
                    self.begun.run_change(self.execute(command)).await
                }
                _ => self.begun.run(self.execute(command)).await,
            };
            let Some(Some(done)) = executed else { return };
            match command {
                Command::Flush => self.changed(true, done),
                Command::Trim { fua, .. } | Command::WriteZeroes { fua, .. } => self.changed(fua, done),
                _ => self.reply(done),
            }
        });
    }

    /// Executes a command; `None` if it has sent its reply.
    async fn execute(&self, command: Command) -> Option<Result<()>> {
        Some(match command {
            Command::Flush => self.disk.flush().await,
            Command::Trim { offset, len, fua } => self.disk.discard(offset, len.into(), fua).await,
            Command::Cache { offset, len } => {
                let _charge = self.account().take_shared(PREFETCH.min(len as usize)).await;
                self.disk.prefetch(offset, len.into()).await
            }
            Command::WriteZeroes { offset, len, fua, no_hole } => {
                self.disk.write_zeroes(offset, len.into(), no_hole, fua).await
            }
            Command::BlockStatus { offset, len, one } => match self.block_status(offset, len, one).await {
                Ok(()) => return None,
                Err(e) => Err(e),
            },
            Command::Read { .. } | Command::Write { .. } | Command::Disconnect => {
                unreachable!("transmission.rs handles these")
            }
        })
    }

    /// Sends each chunk when it is read, and reads the next when the client has received enough of them: so a
    /// long read needs as little memory as a short one.
    async fn read_in_pieces(&self, offset: u64, len: usize) -> Result<ReadFrom> {
        let (mut at, mut from) = (0, ReadFrom::Ram);
        while at < len {
            let piece = PIECE.min(len - at);
            self.ticket.backlog().room().await;
            if self.ticket.backlog().is_gone() {
                return Ok(from);
            }
            let charge = self.account().take_shared(DATA_CHUNK_HEADER + piece).await;
            let mut chunk = vec![0; DATA_CHUNK_HEADER + piece];
            let start = offset + at as u64;
            let request = offset..offset + len as u64;
            let read = self.disk.read_part(request, start, &mut chunk[DATA_CHUNK_HEADER..]).await?;
            from = if read == ReadFrom::Store { read } else { from };
            at += piece;
            let done = at == len;
            if is_sent_as_hole(&chunk[DATA_CHUNK_HEADER..]) {
                chunk = nbd::hole_chunk(self.cookie, start, piece as u32, done).to_vec();
            } else {
                let header = nbd::data_chunk_header(self.cookie, start, piece as u32, done);
                chunk[..DATA_CHUNK_HEADER].copy_from_slice(&header);
            }
            self.send_charged(chunk, charge);
            if !done {
                tokio::task::yield_now().await;
            }
        }
        Ok(from)
    }

    /// Sends one header, then all data. So all data is read before the first byte is sent.
    async fn read_whole(&self, offset: u64, len: usize, header: usize) -> Result<ReadFrom> {
        let mut from = ReadFrom::Ram;
        let charge = self.account().take_shared(header + len).await;
        if self.ticket.backlog().is_gone() {
            return Ok(from);
        }
        let mut reply = vec![0; header + len];
        let mut is_hole = len >= MIN_HOLE;
        for at in (0..len).step_by(PIECE) {
            let piece = &mut reply[header + at..header + len.min(at + PIECE)];
            let read = self.disk.read_part(offset..offset + len as u64, offset + at as u64, piece).await?;
            from = if read == ReadFrom::Store { read } else { from };
            is_hole = is_hole && is_zero(piece);
            tokio::task::yield_now().await;
        }
        if header == SIMPLE_REPLY {
            reply[..header].copy_from_slice(&nbd::simple_reply(self.cookie, None));
        } else if is_hole {
            reply = nbd::hole_chunk(self.cookie, offset, len as u32, true).to_vec();
        } else {
            reply[..header].copy_from_slice(&nbd::data_chunk_header(self.cookie, offset, len as u32, true));
        }
        self.send_charged(reply, charge);
        Ok(from)
    }

    async fn block_status(&self, offset: u64, len: u32, one: bool) -> Result<()> {
        let max = if one { 1 } else { MAX_EXTENTS };
        let _charge = self.account().take_shared(max * EXTENT_COST).await;
        let extents = self.disk.extents(offset, len.into(), max).await?;
        let mut left = u64::from(len);
        let mut descriptors: Vec<BlockDescriptor> = Vec::with_capacity(extents.len().min(max));
        for extent in extents.iter().take(max) {
            let run = extent.len.min(left);
            if run == 0 {
                break;
            }
            left -= run;
            let state = if extent.hole { STATE_HOLE } else { 0 } | if extent.zero { STATE_ZERO } else { 0 };
            descriptors.push(BlockDescriptor { len: run as u32, state });
        }
        debug_assert!(!descriptors.is_empty(), "the engine describes at least the first byte");
        let mut reply = Vec::new();
        nbd::block_status_chunk(&mut reply, self.cookie, &descriptors);
        self.send(reply);
        Ok(())
    }

    fn account(&self) -> &Rc<MemoryAccount> {
        self.ticket.backlog().account()
    }

    fn send_charged(&self, reply: Vec<u8>, mut charge: Charge) {
        charge.shrink(reply.capacity());
        self.ticket.backlog().push_charged(reply, Some(charge));
        self.ticket.backlog().wake();
    }

    fn send(&self, reply: Vec<u8>) {
        self.ticket.backlog().push(reply);
        self.ticket.backlog().wake();
    }

    /// Replies to a change or a flush.
    fn changed(&self, durable: bool, done: Result<()>) {
        if done.is_ok() {
            self.timed.end(Served::change(self.disk.is_durable(durable)));
        }
        self.reply(done);
    }

    fn reply(&self, done: Result<()>) {
        self.send(match done {
            Ok(()) => nbd::simple_reply(self.cookie, None).to_vec(),
            Err(e) => match error_code(&e) {
                Ok(code) => self.error(code, &e),
                Err(Fenced) => return self.ticket.backlog().fail(FENCED),
            },
        });
    }

    fn error(&self, code: ErrorCode, e: &Error) -> Vec<u8> {
        if !self.structured {
            return nbd::simple_reply(self.cookie, Some(code)).to_vec();
        }
        let mut reply = Vec::new();
        nbd::error_chunk(&mut reply, self.cookie, code, &e.to_string());
        reply
    }
}
