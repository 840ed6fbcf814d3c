//! One desktop: its connection, the requests under way on it, and what it has written, so that reads are checked.
//!
//! A request waits while another one that is under way touches the same blocks and one of them is a write: then it is
//! known at any time what a read must find. The connection is driven from outside (`drive`), and never blocks.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::content::{BLOCK, Content, Origin};
use super::script::{Memory, Op, Script};
use super::shape::{Piece, Shape};
use super::tally::Tally;
use crate::load::socket;
use crate::nbd::{Chunk, Command, Connection, NbdError, Parser, REQUEST_LEN, Sink, request};

/// Requests under way on one desktop, as a guest's disk driver has them; the last slot is that of flushes.
const DEPTH: usize = 16;
/// A guest flushes once in so many writes.
const WRITES_PER_FLUSH: u64 = 20;
/// One in so many reads is checked byte by byte; the others are only counted.
const CHECKED_READS: u64 = 8;

struct Slot {
    command: Option<Command>,
    uses: u64,
    header: [u8; REQUEST_LEN],
    piece: Piece,
    due: Instant,
    got: u32,
    failed: bool,
    /// What is written, or read to be checked.
    data: Vec<u8>,
    /// What a read must find; empty where it is not checked.
    expected: Vec<Origin>,
}

/// What is shared by all desktops of a run.
#[derive(Clone, Copy)]
pub struct Family<'a> {
    /// The image.
    pub shape: &'a Shape,
    /// The bytes of all blocks.
    pub content: &'a Content,
}

impl Family<'_> {
    /// What the image has at a block.
    fn origin(&self, block: u32) -> Origin {
        if self.shape.has_data(block) { Origin::Image(block) } else { Origin::Zero }
    }
}

/// See the module.
pub struct Desk<'a> {
    /// Its connection.
    pub connection: Connection,
    /// Parses what comes; taken out while it does.
    pub parser: Parser,
    family: Family<'a>,
    memory: Memory,
    script: Option<Script<'a>>,
    next: Option<Op>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    unsent: VecDeque<usize>,
    sent_of_first: usize,
    under_way: usize,
    written: HashMap<u32, Origin>,
    reads: u64,
    writes: u64,
    flush_due: bool,
    /// Blocks still to be read again.
    audit: Vec<u32>,
    /// The moment at which the replies being parsed were received.
    pub now: Instant,
    /// What came of it since the phase began.
    pub tally: Tally,
}

impl<'a> Desk<'a> {
    /// A desktop as its image is, in the morning of a day.
    pub fn new(connection: Connection, family: Family<'a>, number: u32, day: u32) -> Desk<'a> {
        let now = Instant::now();
        let slot = |_| Slot {
            command: None,
            uses: 0,
            header: [0; REQUEST_LEN],
            piece: Piece { block: 0, blocks: 0 },
            due: now,
            got: 0,
            failed: false,
            data: Vec::new(),
            expected: Vec::new(),
        };
        Desk {
            connection,
            parser: Parser::default(),
            family,
            memory: Memory::new(number, day),
            script: None,
            next: None,
            slots: (0..=DEPTH).map(slot).collect(),
            free: (0..DEPTH).rev().collect(),
            unsent: VecDeque::new(),
            sent_of_first: 0,
            under_way: 0,
            written: HashMap::new(),
            reads: 0,
            writes: 0,
            flush_due: false,
            audit: Vec::new(),
            now,
            tally: Tally::default(),
        }
    }

    /// Begins a phase.
    pub fn begin(&mut self, mut script: Script<'a>) {
        self.tally = Tally::default();
        self.next = script.next(&mut self.memory);
        self.script = Some(script);
    }

    /// Has blocks of what it wrote read again, all of them checked: at most `most`, as many from everywhere.
    pub fn begin_audit(&mut self, most: usize) {
        self.tally = Tally::default();
        self.script = None;
        let mut blocks: Vec<u32> = self.written.keys().copied().collect();
        blocks.sort_unstable();
        let each = blocks.len().div_ceil(most.max(1)).max(1);
        self.audit = blocks.into_iter().step_by(each).collect();
    }

    /// Whether all of the phase has been done.
    pub fn is_done(&self) -> bool {
        self.under_way == 0 && self.next.is_none() && self.audit.is_empty() && !self.flush_due
    }

    /// Whether something waits to be sent.
    pub fn unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Queues what is due `elapsed` after the begin of the phase, at `begun`. Gives when more will be.
    pub fn fill(&mut self, begun: Instant, elapsed: Duration) -> Option<Duration> {
        while let Some(block) = self.audit.last().copied() {
            let index = self.free.pop()?;
            self.audit.pop();
            self.queue_read(index, Piece { block, blocks: 1 }, true, Instant::now());
        }
        if self.flush_due && self.slots[DEPTH].command.is_none() {
            self.flush_due = false;
            self.slots[DEPTH].piece = Piece { block: 0, blocks: 0 };
            self.send_slot(DEPTH, Command::Flush, Instant::now());
        }
        while let Some(op) = &self.next {
            if op.due > elapsed {
                return Some(op.due);
            }
            let write = !op.write.is_empty();
            if self.conflicts(op.piece, write) {
                return None;
            }
            let index = self.free.pop()?;
            let Some(op) = self.next.take() else { break };
            let due = begun + op.due;
            if write {
                self.queue_write(index, &op, due);
            } else {
                self.reads += 1;
                self.queue_read(index, op.piece, self.reads.is_multiple_of(CHECKED_READS), due);
            }
            self.next = self.script.as_mut().and_then(|s| s.next(&mut self.memory));
        }
        None
    }

    fn conflicts(&self, piece: Piece, write: bool) -> bool {
        let overlaps = |s: &Slot| {
            s.piece.block < piece.block + piece.blocks && piece.block < s.piece.block + s.piece.blocks
        };
        self.slots.iter().any(|s| match s.command {
            Some(Command::Write) => overlaps(s),
            Some(Command::Read) => write && overlaps(s),
            _ => false,
        })
    }

    fn queue_write(&mut self, index: usize, op: &Op, due: Instant) {
        let slot = &mut self.slots[index];
        slot.data.resize(op.write.len() * BLOCK, 0);
        for ((at, origin), block) in (op.piece.block..).zip(&op.write).zip(slot.data.chunks_exact_mut(BLOCK))
        {
            self.family.content.fill(*origin, block);
            self.written.insert(at, *origin);
        }
        slot.piece = op.piece;
        self.send_slot(index, Command::Write, due);
        self.writes += 1;
        self.flush_due |= self.writes.is_multiple_of(WRITES_PER_FLUSH);
    }

    fn queue_read(&mut self, index: usize, piece: Piece, checked: bool, due: Instant) {
        let slot = &mut self.slots[index];
        slot.piece = piece;
        slot.expected.clear();
        if checked {
            slot.data.resize(piece.blocks as usize * BLOCK, 0);
            let family = self.family;
            let origin = |at| self.written.get(&at).copied().unwrap_or_else(|| family.origin(at));
            slot.expected.extend((piece.block..piece.block + piece.blocks).map(origin));
        }
        self.send_slot(index, Command::Read, due);
    }

    fn send_slot(&mut self, index: usize, command: Command, due: Instant) {
        let slot = &mut self.slots[index];
        slot.uses += 1;
        slot.header = request(command, slot.uses << 16 | index as u64, slot.offset(), slot.len());
        (slot.command, slot.due, slot.got, slot.failed) = (Some(command), due, 0, false);
        self.under_way += 1;
        self.unsent.push_back(index);
    }

    /// Calls `send` with what is to be sent next; it tells how many bytes it took. `false`: none, for now.
    pub fn send(
        &mut self,
        send: impl FnOnce(&[IoSlice<'_>]) -> io::Result<Option<usize>>,
    ) -> io::Result<bool> {
        let mut parts = [IoSlice::new(&[]); 2 * (DEPTH + 1)];
        let (mut n, mut skip) = (0, self.sent_of_first);
        for &index in &self.unsent {
            for part in self.slots[index].parts() {
                let skipped = skip.min(part.len());
                skip -= skipped;
                if skipped < part.len() {
                    parts[n] = IoSlice::new(&part[skipped..]);
                    n += 1;
                }
            }
        }
        let Some(mut sent) = send(&parts[..n])? else { return Ok(false) };
        sent += self.sent_of_first;
        while let Some(&index) = self.unsent.front() {
            let whole: usize = self.slots[index].parts().iter().map(|p| p.len()).sum();
            if sent < whole {
                break;
            }
            sent -= whole;
            self.unsent.pop_front();
        }
        self.sent_of_first = sent;
        Ok(true)
    }

    fn slot_of(&self, cookie: u64) -> Result<usize, NbdError> {
        let index = (cookie & 0xffff) as usize;
        match self.slots.get(index) {
            Some(slot) if slot.command.is_some() && slot.uses == cookie >> 16 => Ok(index),
            _ => Err(NbdError::Protocol("it replied to no request")),
        }
    }

    fn take(&mut self, cookie: u64, offset: u64, len: u32, bytes: Option<&[u8]>) -> Result<(), NbdError> {
        let index = self.slot_of(cookie)?;
        let slot = &mut self.slots[index];
        let at = offset.checked_sub(slot.offset()).filter(|at| at + u64::from(len) <= u64::from(slot.len()));
        let (Some(Command::Read), Some(at)) = (slot.command, at) else {
            return Err(NbdError::Protocol("it sent data that was not asked for"));
        };
        slot.got = slot.got.saturating_add(len);
        if !slot.expected.is_empty() {
            let room = &mut slot.data[at as usize..at as usize + len as usize];
            match bytes {
                Some(bytes) => room.copy_from_slice(bytes),
                None => room.fill(0),
            }
        }
        Ok(())
    }

    fn done(&mut self, cookie: u64) -> Result<(), NbdError> {
        let index = self.slot_of(cookie)?;
        let slot = &mut self.slots[index];
        let command = slot.command.take();
        self.under_way -= 1;
        if command == Some(Command::Flush) {
            self.tally.flushes += 1;
            return Ok(());
        }
        self.free.push(index);
        if slot.failed {
            return Ok(());
        }
        let nanos = self.now.saturating_duration_since(slot.due).as_nanos() as u64;
        self.tally.done(command == Some(Command::Read), slot.len(), nanos);
        if command == Some(Command::Read) {
            if slot.got != slot.len() {
                return Err(NbdError::Protocol("a read was answered with too little or too much data"));
            }
            let blocks = slot.data.chunks_exact(BLOCK);
            let wrong =
                slot.expected.iter().zip(blocks).filter(|(o, b)| !self.family.content.matches(**o, b));
            self.tally.wrong_blocks += wrong.count() as u64;
            self.tally.checked_blocks += slot.expected.len() as u64;
        }
        Ok(())
    }
}

impl Drop for Desk<'_> {
    fn drop(&mut self) {
        // The guest is shut down. A server that is gone already needs no goodbye.
        let goodbye = request(Command::Disconnect, 0, 0, 0);
        let _ = socket::send(self.connection.as_raw_fd(), &[IoSlice::new(&goodbye)]);
    }
}

impl Slot {
    fn offset(&self) -> u64 {
        u64::from(self.piece.block) * BLOCK as u64
    }

    fn len(&self) -> u32 {
        self.piece.blocks * BLOCK as u32
    }

    fn parts(&self) -> [&[u8]; 2] {
        let payload = if self.command == Some(Command::Write) { &self.data[..] } else { &[] };
        [&self.header, payload]
    }
}

impl Sink for Desk<'_> {
    fn simple_payload(&self, cookie: u64) -> Option<(u64, u32)> {
        let slot = &self.slots[self.slot_of(cookie).ok()?];
        Some(if slot.command == Some(Command::Read) { (slot.offset(), slot.len()) } else { (0, 0) })
    }

    fn chunk(&mut self, chunk: Chunk<'_>) -> Result<(), NbdError> {
        match chunk {
            Chunk::Data { cookie, offset, bytes } => {
                self.take(cookie, offset, bytes.len() as u32, Some(bytes))
            }
            Chunk::Hole { cookie, offset, len } => self.take(cookie, offset, len, None),
            Chunk::Error { cookie, code } => {
                let index = self.slot_of(cookie)?;
                self.slots[index].failed = true;
                self.tally.errors += 1;
                self.tally.first_error.get_or_insert(code);
                Ok(())
            }
            Chunk::Done { cookie } => self.done(cookie),
        }
    }
}
