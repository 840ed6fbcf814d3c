//! One desktop: its connection, the requests in progress, and the blocks that it has written, to verify
//! reads.
//!
//! A request waits while another request in progress overlaps it and one of the two is a write. The expected
//! result of a read is therefore always known. The connection never blocks.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use super::content::{BLOCK, Content, Origin};
use super::script::{Memory, Op, Script};
use super::shape::{Piece, Shape};
use super::tally::Tally;
use crate::device::{Client, Device, DeviceError, Done};

/// Requests in progress on one desktop, as in a guest's disk driver; flushes are not counted.
pub const DEPTH: usize = 16;
/// A server that does not answer a desktop for this long counts as stalled.
pub const STALL: Duration = Duration::from_secs(120);
/// Number of writes between two flushes of a guest.
const WRITES_PER_FLUSH: u64 = 20;
/// Number of reads of which one is verified byte by byte; the others are only counted.
const CHECKED_READS: u64 = 8;

/// A read or write in progress.
struct Request {
    write: bool,
    piece: Piece,
    /// Expected content of the blocks of a read; empty if the read is not verified.
    expected: Vec<Origin>,
}

/// A read or write that succeeded.
#[derive(Debug, Clone, Copy)]
pub struct Answered {
    /// Whether the request was a write.
    pub write: bool,
    /// Length of the request in bytes.
    pub bytes: u32,
    /// Nanoseconds from the arrival of the request to its answer.
    pub nanos: u64,
}

/// Image and content, shared by all desktops of a run.
#[derive(Clone, Copy)]
pub struct Family<'a> {
    /// The shape of the image that the desktop uses.
    pub shape: &'a Shape,
    /// The bytes of all blocks.
    pub content: &'a Content,
}

impl Family<'_> {
    /// Origin of a block of the image.
    fn origin(&self, block: u32) -> Origin {
        if self.shape.has_data(block) { Origin::Image(block) } else { Origin::Zero }
    }
}

/// A desktop with its guest; see the module documentation.
pub struct Desk<'a> {
    device: Box<dyn Device>,
    family: Family<'a>,
    memory: Memory,
    script: Option<Script<'a>>,
    next: Option<Op>,
    /// The request in each slot of the pipeline.
    requests: Vec<Option<Request>>,
    written: HashMap<u32, Origin>,
    reads: u64,
    writes: u64,
    flush_due: bool,
    stopped: bool,
    /// When the last answer arrived.
    heard: Instant,
    /// Blocks still to be read back.
    audit: Vec<u32>,
    /// Figures since the phase began.
    pub tally: Tally,
}

impl<'a> Desk<'a> {
    /// A desktop in the state of its image, at the start of a day.
    pub fn new(device: Box<dyn Device>, family: Family<'a>, number: u32, day: u32) -> Desk<'a> {
        Desk {
            device,
            family,
            memory: Memory::new(number, day),
            script: None,
            next: None,
            requests: (0..crate::device::slots(DEPTH)).map(|_| None).collect(),
            written: HashMap::new(),
            reads: 0,
            writes: 0,
            flush_due: false,
            stopped: false,
            heard: Instant::now(),
            audit: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// Begins a phase.
    pub fn begin(&mut self, mut script: Script<'a>) {
        self.tally = Tally::default();
        self.heard = Instant::now();
        self.next = script.next(&mut self.memory);
        self.script = Some(script);
    }

    /// Makes no further requests of the phase.
    pub fn stop(&mut self) {
        self.stopped |= self.next.take().is_some();
        self.script = None;
    }

    /// Whether the phase was stopped before its end.
    pub fn was_stopped(&self) -> bool {
        self.stopped
    }

    /// Starts reading back at most `most` written blocks, spread evenly; all of them are verified.
    pub fn begin_audit(&mut self, most: usize) {
        self.tally = Tally::default();
        self.heard = Instant::now();
        self.script = None;
        let mut blocks: Vec<u32> = self.written.keys().copied().collect();
        blocks.sort_unstable();
        let each = blocks.len().div_ceil(most.max(1)).max(1);
        self.audit = blocks.into_iter().step_by(each).collect();
    }

    /// Queues the requests that are due `elapsed` after the start of the phase at `begun`. Returns when the
    /// next request is due; `None` if it waits for a reply.
    fn queue_due(&mut self, begun: Instant, elapsed: Duration) -> Option<Duration> {
        while self.device.has_room()
            && let Some(block) = self.audit.pop()
        {
            self.queue_read(Piece { block, blocks: 1 }, true, Instant::now());
        }
        if self.flush_due && self.device.queue_flush(Instant::now()) {
            self.flush_due = false;
        }
        while let Some(op) = &self.next {
            if op.due > elapsed {
                return Some(op.due);
            }
            let write = !op.write.is_empty();
            if !self.device.has_room() || self.conflicts(op.piece, write) {
                return None;
            }
            let Some(op) = self.next.take() else { break };
            let due = begun + op.due;
            if write {
                self.queue_write(&op, due);
            } else {
                self.reads += 1;
                self.queue_read(op.piece, self.reads.is_multiple_of(CHECKED_READS), due);
            }
            self.next = self.script.as_mut().and_then(|s| s.next(&mut self.memory));
        }
        None
    }

    fn conflicts(&self, piece: Piece, write: bool) -> bool {
        self.requests.iter().flatten().any(|r| {
            (write || r.write)
                && r.piece.block < piece.block + piece.blocks
                && piece.block < r.piece.block + r.piece.blocks
        })
    }

    fn queue_write(&mut self, op: &Op, due: Instant) {
        let (content, written) = (self.family.content, &mut self.written);
        let slot = self.device.queue_write(op.piece.offset(), op.piece.len(), due, &mut |data| {
            for ((at, origin), block) in (op.piece.block..).zip(&op.write).zip(data.chunks_exact_mut(BLOCK)) {
                content.fill(*origin, block);
                written.insert(at, *origin);
            }
        });
        self.requests[slot] = Some(Request { write: true, piece: op.piece, expected: Vec::new() });
        self.writes += 1;
        self.flush_due |= self.writes.is_multiple_of(WRITES_PER_FLUSH);
    }

    fn queue_read(&mut self, piece: Piece, checked: bool, due: Instant) {
        let mut expected = Vec::new();
        if checked {
            let origin = |at| self.written.get(&at).copied().unwrap_or_else(|| self.family.origin(at));
            expected.extend((piece.block..piece.block + piece.blocks).map(origin));
        }
        let slot = self.device.queue_read(piece.offset(), piece.len(), checked, due);
        self.requests[slot] = Some(Request { write: false, piece, expected });
    }

    /// Receives the replies that have arrived, counts them, verifies reads, and passes each reply to `each`.
    pub fn receive_each(
        &mut self,
        buffer: &mut [u8],
        each: &mut dyn FnMut(Answered),
    ) -> Result<(), DeviceError> {
        self.device.receive(buffer, false)?;
        self.heard = Instant::now();
        while let Some(done) = self.device.next_done() {
            self.settle(done, each);
        }
        Ok(())
    }

    fn settle(&mut self, done: Done, each: &mut dyn FnMut(Answered)) {
        let tally = &mut self.tally;
        if let Some(code) = done.error {
            tally.counts.failed(code);
        }
        if done.flush {
            tally.counts.flushes += 1;
            return;
        }
        let Some(request) = self.requests[done.slot].take() else { return };
        if done.error.is_some() {
            return;
        }
        tally.counts.answered(request.write, request.piece.len());
        tally.nanos.saturating_record(done.nanos);
        each(Answered { write: request.write, bytes: request.piece.len(), nanos: done.nanos });
        let blocks = self.device.data(done.slot).chunks_exact(BLOCK);
        let wrong = request.expected.iter().zip(blocks).filter(|(o, b)| !self.family.content.matches(**o, b));
        tally.counts.wrong += wrong.count() as u64;
        tally.counts.verified += request.expected.len() as u64;
    }
}

/// Desktops share the moment at which their phase began.
impl Client<Instant> for Desk<'_> {
    /// Whether all requests of the phase have been answered.
    fn is_over(&self) -> bool {
        self.device.under_way() == 0 && self.next.is_none() && self.audit.is_empty() && !self.flush_due
    }

    fn fill(&mut self, now: Instant, begun: &mut Instant) -> Result<(Option<Instant>, bool), DeviceError> {
        let due = self.queue_due(*begun, now.saturating_duration_since(*begun));
        let blocked = self.device.send()?;
        if due.is_none() && !self.is_over() && now.saturating_duration_since(self.heard) > STALL {
            return Err(DeviceError::Stalled(STALL.as_secs()));
        }
        Ok((due.map(|due| *begun + due), blocked))
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.device.as_raw_fd())
    }

    fn receive(&mut self, buffer: &mut [u8], _begun: &mut Instant) -> Result<(), DeviceError> {
        self.receive_each(buffer, &mut |_| ())
    }
}
