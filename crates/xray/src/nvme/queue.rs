//! The commands in progress on an I/O queue.
//!
//! A slot is free, or holds one command from the moment it is queued until its completion has arrived. The
//! index of the slot is the identifier of the command, so that a completion of a command that is not in
//! progress is detected.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use super::connect::{Controller, bring_up};
use super::pdu::{CAPSULE, Entry, HEADER, Kind, Reply, data_header};
use super::{Namespace, NvmeError, Status};
use crate::device::{Again, Done};
use crate::socket;

const FLUSH: u8 = 0x00;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
/// Force unit access, in the highest byte of command dword 12.
const FUA: u8 = 0x40;

/// A slot: a command, or room for a command.
struct Slot {
    opcode: Option<u8>,
    len: u32,
    got: u32,
    due: Instant,
    /// Whether the data of a read is copied into `data`.
    keep: bool,
    data: Vec<u8>,
}

/// A PDU that waits to be sent: its header, and a range of the data of its slot.
struct Message {
    header: [u8; CAPSULE],
    header_len: usize,
    slot: usize,
    data: std::ops::Range<usize>,
}

/// The state of the parser between two reads of the socket.
struct Parser {
    header: Reply,
    /// Bytes of the header received.
    staged: usize,
    kind: Option<Kind>,
    /// Bytes of padding and of data received.
    at: usize,
}

/// An I/O queue with up to a fixed number of commands in progress.
pub struct NvmeQueue {
    controller: Controller,
    namespace: u32,
    /// The last slot is reserved for flushes.
    slots: Vec<Slot>,
    free: Vec<usize>,
    unsent: VecDeque<Message>,
    sent_of_first: usize,
    under_way: usize,
    done: VecDeque<Done>,
    parser: Parser,
    now: Instant,
    durable: bool,
}

impl NvmeQueue {
    /// Connects as host number `host`, with room for `depth` reads and writes, and one flush. With `durable`,
    /// writes have FUA.
    ///
    /// # Errors
    /// The controller cannot be brought up.
    pub fn open(
        namespace: &Namespace,
        host: u32,
        depth: u16,
        durable: bool,
        patience: Duration,
    ) -> Result<NvmeQueue, NvmeError> {
        // A queue has one entry more than commands.
        let entries = depth.saturating_add(2);
        let controller = bring_up(namespace, host, entries, patience)?;
        let now = Instant::now();
        let slot = |_| Slot { opcode: None, len: 0, got: 0, due: now, keep: false, data: Vec::new() };
        Ok(NvmeQueue {
            controller,
            namespace: namespace.number,
            slots: (0..=usize::from(depth)).map(slot).collect(),
            free: (0..usize::from(depth)).rev().collect(),
            unsent: VecDeque::new(),
            sent_of_first: 0,
            under_way: 0,
            done: VecDeque::new(),
            parser: Parser { header: Reply([0; HEADER]), staged: 0, kind: None, at: 0 },
            now,
            durable,
        })
    }

    /// Size of the namespace in bytes.
    pub fn size(&self) -> u64 {
        self.controller.size
    }

    /// Whether another read or write can be queued.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Number of commands queued and not answered.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// The next command that was answered.
    pub fn next_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// The data of the last command of a slot: of a write, or of a read that kept it.
    pub fn data(&self, slot: usize) -> &[u8] {
        &self.slots[slot].data
    }

    /// Queues a read; there must be room.
    pub fn queue_read(&mut self, offset: u64, len: u32, keep: bool, due: Instant) -> usize {
        let index = self.take_slot();
        let slot = &mut self.slots[index];
        slot.keep = keep;
        slot.data.resize(if keep { len as usize } else { 0 }, 0);
        let entry = Entry::blocks(READ, index as u16, self.namespace, offset, len).with_data(len, false);
        self.begin(index, READ, len, due);
        self.push(&entry.capsule(0), index, 0..0);
        index
    }

    /// Queues a write of what `fill` writes into its argument; there must be room.
    pub fn queue_write(
        &mut self,
        offset: u64,
        len: u32,
        due: Instant,
        fill: impl FnOnce(&mut [u8]),
    ) -> usize {
        let index = self.take_slot();
        let slot = &mut self.slots[index];
        slot.data.resize(len as usize, 0);
        fill(&mut slot.data);
        let in_capsule = len <= self.controller.in_capsule;
        let mut entry =
            Entry::blocks(WRITE, index as u16, self.namespace, offset, len).with_data(len, in_capsule);
        if self.durable {
            entry.0[51] |= FUA;
        }
        let sent = if in_capsule { len as usize } else { 0 };
        self.begin(index, WRITE, len, due);
        self.push(&entry.capsule(sent), index, 0..sent);
        index
    }

    /// Queues a flush unless a flush is in progress. Returns whether it was queued.
    pub fn queue_flush(&mut self, due: Instant) -> bool {
        let index = self.slots.len() - 1;
        if self.slots[index].opcode.is_some() {
            return false;
        }
        let entry = Entry::new(FLUSH, index as u16, self.namespace);
        self.begin(index, FLUSH, 0, due);
        self.push(&entry.capsule(0), index, 0..0);
        true
    }

    fn take_slot(&mut self) -> usize {
        let Some(index) = self.free.pop() else { unreachable!("the caller checks for room") };
        index
    }

    fn begin(&mut self, index: usize, opcode: u8, len: u32, due: Instant) {
        let slot = &mut self.slots[index];
        (slot.opcode, slot.len, slot.got, slot.due) = (Some(opcode), len, 0, due);
        self.under_way += 1;
    }

    fn push(&mut self, header: &[u8], slot: usize, data: std::ops::Range<usize>) {
        let mut padded = [0; CAPSULE];
        padded[..header.len()].copy_from_slice(header);
        self.unsent.push_back(Message { header: padded, header_len: header.len(), slot, data });
    }

    /// Sends queued PDUs until the socket would block. Returns whether PDUs remain unsent.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn send(&mut self) -> Result<bool, NvmeError> {
        let fd = self.as_raw_fd();
        while !self.unsent.is_empty() {
            let slots = &self.slots;
            let messages = self.unsent.iter().map(|message| {
                [&message.header[..message.header_len], &slots[message.slot].data[message.data.clone()]]
            });
            let sent =
                socket::send_messages(messages, &mut self.sent_of_first, |parts| socket::send(fd, parts))?;
            let Some(complete) = sent else { return Ok(true) };
            self.unsent.drain(..complete);
        }
        Ok(false)
    }

    /// Receives what has arrived; with `wait`, waits for it. Returns whether any bytes arrived.
    ///
    /// # Errors
    /// The connection is lost, or the controller violates the protocol.
    pub fn receive(&mut self, buffer: &mut [u8], wait: bool) -> Result<bool, NvmeError> {
        match socket::receive(self.as_raw_fd(), buffer, wait)? {
            Some(0) => Err(NvmeError::Closed(self.under_way)),
            Some(n) => {
                self.now = Instant::now();
                self.feed(&buffer[..n])?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Parses all of `input`, however the stream is split into reads.
    fn feed(&mut self, mut input: &[u8]) -> Result<(), NvmeError> {
        while !input.is_empty() {
            if self.parser.staged < HEADER {
                let (staged, n) = (self.parser.staged, (HEADER - self.parser.staged).min(input.len()));
                self.parser.header.0[staged..staged + n].copy_from_slice(&input[..n]);
                self.parser.staged += n;
                input = &input[n..];
                if self.parser.staged < HEADER {
                    return Ok(());
                }
                let kind = self.parser.header.kind()?;
                self.check(&kind, self.parser.header.data_len())?;
                self.parser.kind = Some(kind);
            }
            let (padding, len) = (self.parser.header.padding(), self.parser.header.data_len());
            let skipped = padding.saturating_sub(self.parser.at).min(input.len());
            (self.parser.at, input) = (self.parser.at + skipped, &input[skipped..]);
            if self.parser.at >= padding {
                let at = self.parser.at - padding;
                let n = (len - at).min(input.len());
                if let Some(Kind::Data { command, offset, .. }) = self.parser.kind {
                    self.take_data(command, offset as usize + at, &input[..n]);
                }
                (self.parser.at, input) = (self.parser.at + n, &input[n..]);
            }
            if self.parser.at == padding + len
                && let Some(kind) = self.parser.kind.take()
            {
                (self.parser.staged, self.parser.at) = (0, 0);
                self.end(&kind)?;
            }
        }
        Ok(())
    }

    /// The slot of a command in progress.
    fn slot(&mut self, command: u16) -> Result<&mut Slot, NvmeError> {
        let slot = self.slots.get_mut(usize::from(command)).filter(|slot| slot.opcode.is_some());
        slot.ok_or(NvmeError::Protocol("a PDU for a command that is not in progress"))
    }

    /// Checks a header before its data arrives.
    fn check(&mut self, kind: &Kind, len: usize) -> Result<(), NvmeError> {
        match *kind {
            Kind::Response { command, .. } => self.slot(command).map(drop),
            Kind::Data { command, offset, is_last, is_success } => {
                let slot = self.slot(command)?;
                let end = offset as usize + len;
                if slot.opcode != Some(READ) || offset != slot.got || end > slot.len as usize {
                    return Err(NvmeError::Protocol("data out of order, or beyond the read"));
                }
                if is_last != (end == slot.len as usize) || is_success && !is_last {
                    return Err(NvmeError::Protocol("the last data of a read is not marked"));
                }
                Ok(())
            }
            Kind::Request { command, offset, len: wanted, .. } => {
                let slot = self.slot(command)?;
                let fits = offset.checked_add(wanted).is_some_and(|end| end <= slot.len);
                if slot.opcode != Some(WRITE) || !fits || wanted == 0 || len > 0 {
                    return Err(NvmeError::Protocol("a request for data that no write has"));
                }
                Ok(())
            }
        }
    }

    fn take_data(&mut self, command: u16, at: usize, bytes: &[u8]) {
        let slot = &mut self.slots[usize::from(command)];
        slot.got += bytes.len() as u32;
        if slot.keep {
            slot.data[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn end(&mut self, kind: &Kind) -> Result<(), NvmeError> {
        match *kind {
            Kind::Response { command, status, .. } => self.complete(command, status),
            Kind::Data { command, is_success: true, .. } => self.complete(command, Status::GOOD),
            Kind::Data { .. } => Ok(()),
            Kind::Request { command, tag, offset, len } => {
                let (end, max) = (offset + len, self.controller.io.max_data);
                let mut at = offset;
                while at < end {
                    let piece = (end - at).min(max);
                    let header = data_header(command, tag, at, piece, at + piece == end);
                    self.push(&header, command.into(), at as usize..(at + piece) as usize);
                    at += piece;
                }
                Ok(())
            }
        }
    }

    fn complete(&mut self, command: u16, status: Status) -> Result<(), NvmeError> {
        let (now, index) = (self.now, usize::from(command));
        let slot = self.slot(command)?;
        let opcode = slot.opcode.take();
        if status == Status::GOOD && opcode == Some(READ) && slot.got != slot.len {
            return Err(NvmeError::Protocol("a read returned too little data"));
        }
        let is_good = status == Status::GOOD;
        let done = Done {
            slot: index,
            flush: opcode == Some(FLUSH),
            nanos: now.saturating_duration_since(slot.due).as_nanos() as u64,
            error: (!is_good).then(|| status.number()),
            again: (status == Status::CONFLICT).then_some(Again::Reserved),
        };
        self.done.push_back(done);
        self.under_way -= 1;
        if index + 1 < self.slots.len() {
            self.free.push(index);
        }
        Ok(())
    }
}

impl AsRawFd for NvmeQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.controller.io.stream.as_raw_fd()
    }
}
