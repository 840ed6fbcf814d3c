//! The requests in progress on a connection.
//!
//! A slot is free, or holds one request from the moment it is queued until its reply is complete. The cookie
//! contains the index of the slot and its use count, so that a reply to a request that is already answered,
//! or was never sent, is detected.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Instant;

use super::{Chunk, Command, NbdError, REQUEST_LEN, Sink, request};
use crate::device::Done;
use crate::socket;

/// A slot: a request, or room for a request.
struct Slot {
    command: Option<Command>,
    uses: u64,
    header: [u8; REQUEST_LEN],
    offset: u64,
    len: u32,
    due: Instant,
    got: u32,
    error: Option<u32>,
    /// Whether the data of a read is copied into `data`.
    keep: bool,
    data: Vec<u8>,
}

/// All slots, the order in which requests are sent, and the requests that have been answered.
pub(super) struct Flight {
    /// The last slot is reserved for flushes.
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Slots whose request is not sent completely, oldest first.
    unsent: VecDeque<usize>,
    sent_of_first: usize,
    under_way: usize,
    done: VecDeque<Done>,
    /// The moment at which the replies being parsed were received.
    pub now: Instant,
    /// Command flags of writes.
    pub write_flags: u16,
}

impl Flight {
    /// Room for `depth` reads and writes, and one flush.
    pub fn new(depth: usize) -> Flight {
        let now = Instant::now();
        let slot = |_| Slot {
            command: None,
            uses: 0,
            header: [0; REQUEST_LEN],
            offset: 0,
            len: 0,
            due: now,
            got: 0,
            error: None,
            keep: false,
            data: Vec::new(),
        };
        Flight {
            slots: (0..=depth).map(slot).collect(),
            free: (0..depth).rev().collect(),
            unsent: VecDeque::new(),
            sent_of_first: 0,
            under_way: 0,
            done: VecDeque::new(),
            now,
            write_flags: 0,
        }
    }

    /// Whether another read or write can be queued.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Number of requests queued and not answered.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Whether requests wait to be sent.
    pub fn unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The next request that has been answered.
    pub fn next_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// The data of the last request of a slot: of a write, or of a read that kept it.
    pub fn data(&self, slot: usize) -> &[u8] {
        &self.slots[slot].data
    }

    /// Queues a read; there must be room. With `keep`, its data is available in [`Flight::data`].
    pub fn queue_read(&mut self, offset: u64, len: u32, keep: bool, due: Instant) -> usize {
        let index = self.take_slot(offset, len);
        let slot = &mut self.slots[index];
        slot.keep = keep;
        slot.data.resize(if keep { len as usize } else { 0 }, 0);
        self.begin(index, Command::Read, due);
        index
    }

    /// Queues a write of the data that `fill` writes into its argument; there must be room.
    pub fn queue_write(
        &mut self,
        offset: u64,
        len: u32,
        due: Instant,
        fill: impl FnOnce(&mut [u8]),
    ) -> usize {
        let index = self.take_slot(offset, len);
        let slot = &mut self.slots[index];
        slot.data.resize(len as usize, 0);
        fill(&mut slot.data);
        self.begin(index, Command::Write, due);
        index
    }

    /// Queues a flush unless a flush is in progress. Returns whether it was queued.
    pub fn queue_flush(&mut self, due: Instant) -> bool {
        let index = self.slots.len() - 1;
        if self.slots[index].command.is_some() {
            return false;
        }
        self.begin(index, Command::Flush, due);
        true
    }

    fn take_slot(&mut self, offset: u64, len: u32) -> usize {
        let Some(index) = self.free.pop() else { unreachable!("the caller checks for room") };
        (self.slots[index].offset, self.slots[index].len) = (offset, len);
        index
    }

    fn begin(&mut self, index: usize, command: Command, due: Instant) {
        let slot = &mut self.slots[index];
        slot.uses += 1;
        let flags = if command == Command::Write { self.write_flags } else { 0 };
        slot.header = request(command, flags, slot.uses << 16 | index as u64, slot.offset, slot.len);
        (slot.command, slot.due, slot.got, slot.error) = (Some(command), due, 0, None);
        self.under_way += 1;
        self.unsent.push_back(index);
    }

    /// Passes unsent bytes to `send`, which returns the number of bytes it accepted. Returns `false` if it
    /// accepts none now.
    pub fn send(
        &mut self,
        send: impl FnOnce(&[IoSlice<'_>]) -> io::Result<Option<usize>>,
    ) -> io::Result<bool> {
        let messages = self.unsent.iter().map(|&index| self.slots[index].parts());
        let complete = socket::send_messages(messages, &mut self.sent_of_first, send)?;
        self.unsent.drain(..complete.unwrap_or(0));
        Ok(complete.is_some())
    }

    fn slot_of(&self, cookie: u64) -> Result<usize, NbdError> {
        let index = (cookie & 0xffff) as usize;
        match self.slots.get(index) {
            Some(slot) if slot.command.is_some() && slot.uses == cookie >> 16 => Ok(index),
            _ => Err(NbdError::Protocol("a reply to no request")),
        }
    }

    /// Accepts `len` bytes of a read's reply; `bytes` is `None` for zeroes.
    fn accept(&mut self, cookie: u64, offset: u64, len: u32, bytes: Option<&[u8]>) -> Result<(), NbdError> {
        let index = self.slot_of(cookie)?;
        let slot = &mut self.slots[index];
        let at = offset.checked_sub(slot.offset).filter(|at| at + u64::from(len) <= u64::from(slot.len));
        let (Some(Command::Read), Some(at)) = (slot.command, at) else {
            return Err(NbdError::Protocol("data that was not requested"));
        };
        slot.got = slot.got.saturating_add(len);
        if slot.keep {
            let room = &mut slot.data[at as usize..at as usize + len as usize];
            match bytes {
                Some(bytes) => room.copy_from_slice(bytes),
                None => room.fill(0),
            }
        }
        Ok(())
    }

    fn finish(&mut self, cookie: u64) -> Result<(), NbdError> {
        let index = self.slot_of(cookie)?;
        let slot = &mut self.slots[index];
        let Some(command) = slot.command.take() else { unreachable!("slot_of returns slots in use") };
        if command == Command::Read && slot.error.is_none() && slot.got != slot.len {
            return Err(NbdError::Protocol("a reply to a read has too little or too much data"));
        }
        let nanos = self.now.saturating_duration_since(slot.due).as_nanos() as u64;
        let flush = command == Command::Flush;
        self.done.push_back(Done { slot: index, flush, nanos, error: slot.error, again: None });
        self.under_way -= 1;
        if !flush {
            self.free.push(index);
        }
        Ok(())
    }
}

impl Slot {
    fn parts(&self) -> [&[u8]; 2] {
        let payload = if self.command == Some(Command::Write) { &self.data[..] } else { &[] };
        [&self.header, payload]
    }
}

impl Sink for Flight {
    fn simple_payload(&self, cookie: u64) -> Option<(u64, u32)> {
        let slot = &self.slots[self.slot_of(cookie).ok()?];
        Some(if slot.command == Some(Command::Read) { (slot.offset, slot.len) } else { (0, 0) })
    }

    fn chunk(&mut self, chunk: Chunk<'_>) -> Result<(), NbdError> {
        match chunk {
            Chunk::Data { cookie, offset, bytes } => {
                self.accept(cookie, offset, bytes.len() as u32, Some(bytes))
            }
            Chunk::Hole { cookie, offset, len } => self.accept(cookie, offset, len, None),
            Chunk::Error { cookie, code } => {
                let index = self.slot_of(cookie)?;
                self.slots[index].error.get_or_insert(code);
                Ok(())
            }
            Chunk::Done { cookie } => self.finish(cookie),
        }
    }
}
