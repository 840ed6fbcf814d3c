//! The requests of protocols that serve a disk as a sequence of blocks, such as NBD.

use std::mem::take;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use forebay_engine::{Changed, DiskHandle, Extent, ReadFrom, Result, Since, is_zero};
use tokio::task::yield_now;

use super::{Executor, Job, read_whole};
use crate::plane::{Backlog, Charge, Served};

/// Bytes of memory that a request is charged, in addition to its data and its task.
pub(crate) const COST: usize = 512;
/// Bytes that are read before other tasks of the thread have their turn.
const PIECE: usize = 256 << 10;
/// Bytes that a prefetch reads at once.
const PREFETCH: usize = 1 << 20;
/// Bytes of memory of one extent or change while the reply to [`Io::Extents`] is built: the engine's extent,
/// and its two encoded forms.
const EXTENT_COST: usize = 64;

/// A request on a disk. Offsets and lengths are in bytes, within the disk.
pub(crate) enum Io {
    /// Read `len` bytes of the disk from `offset`.
    Read { offset: u64, len: u32 },
    /// Write `message[start..]` to the disk.
    Write { offset: u64, message: Vec<u8>, start: usize, fua: bool },
    /// Wait until a write is durable, whose data is in the write buffers already ([`super::Now::InBuffers`]).
    EndWrite { fua: bool },
    /// Zero a range. The range becomes a hole; with `allocated`, it is reported as allocated.
    Zero { offset: u64, len: u64, allocated: bool, fua: bool },
    /// Discard a range of the disk.
    Discard { offset: u64, len: u64, fua: bool },
    /// Make all writes durable that were answered.
    Flush,
    /// Read a range into the read cache.
    Prefetch { offset: u64, len: u64 },
    /// Describe a range from its beginning: at most `max` extents, if `allocation` is set, and at most `max`
    /// changes since an earlier disk, if `since` is set.
    Extents { offset: u64, len: u64, max: usize, allocation: bool, since: Option<Arc<Since>> },
}

impl Io {
    /// Whether the request changes the disk.
    fn is_change(&self) -> bool {
        matches!(self, Io::Write { .. } | Io::Zero { .. } | Io::Discard { .. })
    }

    /// How the request was served if it succeeded; `None` if it is not counted.
    fn served(&self, disk: &DiskHandle, answer: &Answer) -> Option<Served> {
        match (self, answer) {
            (Io::Read { .. }, Answer::Data { from, .. } | Answer::Sent(from)) => {
                Some(if *from == ReadFrom::Store { Served::Store } else { Served::Ram })
            }
            (
                Io::Write { fua, .. } | Io::EndWrite { fua } | Io::Zero { fua, .. } | Io::Discard { fua, .. },
                _,
            ) => Some(Served::change(disk.is_durable(*fua))),
            (Io::Flush, _) => Some(Served::change(disk.is_durable(true))),
            _ => None,
        }
    }
}

/// How the data of a read is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    /// Bytes of the header in front of each piece of data.
    pub header: usize,
    /// Whether each piece of data is sent when it is read, so that a long read needs as little memory as a
    /// short one. Otherwise all data is read before the first byte is sent.
    pub in_pieces: bool,
}

/// A piece of the data of a read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    /// Offset of the piece's first byte on the disk.
    pub offset: u64,
    /// Length of the piece in bytes.
    pub len: u32,
    /// Whether all bytes of the piece are zero.
    pub is_zero: bool,
    /// Whether the piece is the last piece of its request.
    pub is_last: bool,
}

/// The description of a range, from its beginning.
pub(crate) struct Description {
    /// The allocation of the range.
    pub extents: Option<Vec<Extent>>,
    /// The changes of the range.
    pub changes: Option<Vec<Changed>>,
}

/// The protocol's side of one request: how it is cancelled, and how its reply is encoded.
pub(crate) trait Reply: 'static {
    /// Runs `request`. Returns `None` if the client was gone before the request ended, so that the protocol
    /// dropped the request.
    async fn run<T>(&self, is_change: bool, request: impl Future<Output = T>) -> Option<T>;

    /// How the data of a read is sent.
    fn layout(&self) -> Layout;

    /// Completes a message that contains the data of a read: encodes the header of the reply in the first
    /// [`Layout::header`] bytes, or replaces the whole message by an error.
    fn data(&self, message: &mut Vec<u8>, piece: Piece);

    /// Encodes the reply to [`Io::Extents`].
    fn extents(&self, description: &Description, len: u64) -> Vec<u8>;

    /// Encodes the end of a request without data: its success or its error.
    fn end(&self, done: Result<()>) -> Vec<u8>;
}

/// The result of a request that has succeeded.
pub(crate) enum Answer {
    /// The request has succeeded, and its reply has no data.
    Empty,
    /// The reply is a message with data, with the charge for its memory.
    Data { message: Vec<u8>, charge: Charge, from: ReadFrom },
    /// All data was sent while the request was performed.
    Sent(ReadFrom),
    /// The client is gone, and nothing is sent.
    Dropped,
    /// The reply is an encoded description of extents.
    Description(Vec<u8>),
}

/// A request on one disk, in a task.
pub(crate) struct Request<R> {
    disk: Arc<DiskHandle>,
    io: Io,
    /// Dropped after `disk`, so that the request no longer uses the disk when the reply is dropped.
    reply: R,
}

impl<R: Reply> Request<R> {
    /// The job of a request.
    pub fn new(disk: Arc<DiskHandle>, io: Io, reply: R) -> Request<R> {
        Request { disk, io, reply }
    }
}

impl Executor {
    /// Serves a request on a disk in a task.
    pub fn spawn_block(&self, disk: Arc<DiskHandle>, io: Io, reply: impl Reply) {
        let data = if let Io::Write { message, .. } = &io { message.capacity() } else { 0 };
        self.spawn(COST + data, Request::new(disk, io, reply));
    }

    /// Works like [`Executor::spawn_block`], for a request whose memory is charged already.
    pub fn spawn_block_charged(&self, charge: Charge, disk: Arc<DiskHandle>, io: Io, reply: impl Reply) {
        self.spawn_charged(charge, Request::new(disk, io, reply));
    }
}

impl<R: Reply> Job for Request<R> {
    type Done = Result<Answer>;

    async fn perform(&mut self, backlog: &Rc<Backlog>) -> Option<Result<Answer>> {
        let is_change = self.io.is_change();
        let message = if let Io::Write { message, .. } = &mut self.io { take(message) } else { Vec::new() };
        let this = &*self;
        // Pinned here, since each future that wraps it would reserve space for it again.
        let request = pin!(this.execute(&message, backlog));
        let done = this.reply.run(is_change, request).await?;
        (!matches!(done, Ok(Answer::Dropped))).then_some(done)
    }

    fn served(&self, done: &Result<Answer>) -> Option<Served> {
        self.io.served(&self.disk, done.as_ref().ok()?)
    }

    fn is_fenced(&self) -> bool {
        self.disk.is_fenced()
    }

    async fn reply(self, done: Result<Answer>, backlog: &Rc<Backlog>) {
        match done {
            Ok(Answer::Data { message, charge, .. }) => backlog.push_shrunk(message, charge),
            Ok(Answer::Sent(_) | Answer::Dropped) => return,
            Ok(Answer::Description(message)) => backlog.push(message),
            Ok(Answer::Empty) => backlog.push(self.reply.end(Ok(()))),
            Err(error) => backlog.push(self.reply.end(Err(error))),
        }
        backlog.wake();
    }
}

impl<R: Reply> Request<R> {
    async fn execute(&self, message: &[u8], backlog: &Rc<Backlog>) -> Result<Answer> {
        let disk = &self.disk;
        match self.io {
            Io::Read { offset, len } if self.reply.layout().in_pieces => {
                self.read_in_pieces(offset, len as usize, backlog).await
            }
            Io::Read { offset, len } => self.read_whole(offset, len, backlog).await,
            Io::Write { offset, start, fua, .. } => empty(disk.write(offset, &message[start..], fua).await),
            Io::EndWrite { fua } => empty(disk.finish(fua).await),
            Io::Zero { offset, len, allocated, fua } => {
                empty(disk.write_zeroes(offset, len, allocated, fua).await)
            }
            Io::Discard { offset, len, fua } => empty(disk.discard(offset, len, fua).await),
            Io::Flush => empty(disk.flush().await),
            Io::Prefetch { offset, len } => {
                let bytes = usize::try_from(len).map_or(PREFETCH, |len| PREFETCH.min(len));
                let _charge = backlog.account().take_shared(bytes).await;
                empty(disk.prefetch(offset, len).await)
            }
            Io::Extents { offset, len, max, allocation, ref since } => {
                let kinds = usize::from(allocation) + usize::from(since.is_some());
                let _charge = backlog.account().take_shared(kinds * max * EXTENT_COST).await;
                let mut description = Description { extents: None, changes: None };
                if allocation {
                    description.extents = Some(disk.extents(offset, len, max).await?);
                }
                if let Some(since) = since {
                    // The values of two leaves, for which every task would reserve memory otherwise.
                    let changes = Box::pin(disk.changes(since, offset, len, max));
                    description.changes = Some(changes.await?);
                }
                Ok(Answer::Description(self.reply.extents(&description, len)))
            }
        }
    }

    /// Sends each piece when it is read. Reads the next piece when the client has received enough of the
    /// previous pieces.
    async fn read_in_pieces(&self, offset: u64, len: usize, backlog: &Rc<Backlog>) -> Result<Answer> {
        let header = self.reply.layout().header;
        let request = offset..offset + len as u64;
        let (mut at, mut from) = (0, ReadFrom::Ram);
        while at < len {
            let piece = PIECE.min(len - at);
            backlog.room().await;
            if backlog.is_gone() {
                return Ok(Answer::Dropped);
            }
            let charge = backlog.account().take_shared(header + piece).await;
            let mut message = backlog.spares().take(header + piece);
            let start = offset + at as u64;
            let read = self.disk.read_part(request.clone(), start, &mut message[header..]).await?;
            from = if read == ReadFrom::Store { read } else { from };
            at += piece;
            let (is_zero, is_last) = (is_zero(&message[header..]), at == len);
            self.reply.data(&mut message, Piece { offset: start, len: piece as u32, is_zero, is_last });
            backlog.push_shrunk(message, charge);
            backlog.wake();
            if !is_last {
                yield_now().await;
            }
        }
        Ok(Answer::Sent(from))
    }

    /// Reads all data before the first byte is sent.
    async fn read_whole(&self, offset: u64, len: u32, backlog: &Rc<Backlog>) -> Result<Answer> {
        let header = self.reply.layout().header;
        let charge = backlog.account().take_shared(header + len as usize).await;
        if backlog.is_gone() {
            return Ok(Answer::Dropped);
        }
        let mut message = backlog.spares().take(header + len as usize);
        let mut all_zero = true;
        let each = |piece: &[u8]| all_zero = all_zero && is_zero(piece);
        let from = read_whole(&self.disk, offset, &mut message[header..], PIECE, each).await?;
        self.reply.data(&mut message, Piece { offset, len, is_zero: all_zero, is_last: true });
        Ok(Answer::Data { message, charge, from })
    }
}

/// The answer to a request without data in its reply.
fn empty(done: Result<()>) -> Result<Answer> {
    done.map(|()| Answer::Empty)
}
