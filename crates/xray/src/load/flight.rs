//! The requests under way on a connection.
//!
//! A slot is free, or holds one request from the moment it is queued until its reply is complete. The cookie
//! names the slot and how often it has been used, so that a reply to a request that is already answered, or
//! never was made, is noticed.

use std::io::IoSlice;
use std::time::Instant;

use super::content::Content;
use super::report::Tally;
use crate::nbd::{Chunk, Command, NbdError, REQUEST_LEN, Sink, request};

/// One request, or room for one.
struct Slot {
    command: Option<Command>,
    uses: u64,
    header: [u8; REQUEST_LEN],
    offset: u64,
    len: u32,
    /// Blocks of `len` bytes: which one.
    block: u64,
    version: u64,
    due: Instant,
    got: u32,
    failed: bool,
    data: Vec<u8>,
}

/// All slots, and what came of the requests that were in them.
pub(crate) struct Flight {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Slots whose request has not been sent wholly, oldest first, and what of the first one has been.
    unsent: std::collections::VecDeque<usize>,
    sent_of_first: usize,
    under_way: usize,
    content: Content,
    /// Versions last written, by block, for verification; empty without it. 0: not written in this run.
    versions: Vec<u64>,
    /// The moment at which the replies being parsed were received.
    pub now: Instant,
    pub tally: Tally,
}

/// A read or write to be made.
pub(crate) struct Io {
    pub write: bool,
    pub block: u64,
    pub offset: u64,
    pub len: u32,
    pub due: Instant,
}

impl Flight {
    /// Room for `depth` requests of `len` bytes and a flush. `verified_blocks` is 0 without verification.
    pub fn new(depth: usize, content: Content, verified_blocks: u64) -> Flight {
        let now = Instant::now();
        let slot = |_| Slot {
            command: None,
            uses: 0,
            header: [0; REQUEST_LEN],
            offset: 0,
            len: 0,
            block: 0,
            version: 0,
            due: now,
            got: 0,
            failed: false,
            data: Vec::new(),
        };
        Flight {
            slots: (0..=depth).map(slot).collect(),
            free: (0..depth).rev().collect(),
            unsent: std::collections::VecDeque::new(),
            sent_of_first: 0,
            under_way: 0,
            content,
            versions: vec![0; verified_blocks as usize],
            now,
            tally: Tally::default(),
        }
    }

    /// Whether another read or write may be queued.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Requests queued and not answered.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Whether something waits to be sent.
    pub fn unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Whether verification forbids to touch `block` now: its content would depend on the order in which the
    /// server does two requests.
    pub fn conflicts(&self, block: u64) -> bool {
        !self.versions.is_empty()
            && self
                .slots
                .iter()
                .any(|s| s.block == block && matches!(s.command, Some(Command::Read | Command::Write)))
    }

    /// Blocks that were written, for the last check.
    pub fn written(&self) -> Vec<u64> {
        (0u64..).zip(&self.versions).filter(|(_, v)| **v != 0).map(|(block, _)| block).collect()
    }

    /// Queues a read or write; there must be room.
    pub fn queue(&mut self, io: &Io, version: u64) {
        let Some(index) = self.free.pop() else { unreachable!("the caller asked for room") };
        let slot = &mut self.slots[index];
        if io.write {
            slot.data.resize(io.len as usize, 0);
            self.content.fill(io.offset, version, &mut slot.data);
            slot.version = version;
        } else {
            slot.version = self.versions.get(io.block as usize).copied().unwrap_or(0);
        }
        (slot.offset, slot.len, slot.block) = (io.offset, io.len, io.block);
        self.begin(index, if io.write { Command::Write } else { Command::Read }, io.due);
    }

    /// Queues a flush, unless one is under way. Tells whether it did.
    pub fn queue_flush(&mut self, due: Instant) -> bool {
        let index = self.slots.len() - 1;
        let slot = &mut self.slots[index];
        if slot.command.is_some() {
            return false;
        }
        (slot.offset, slot.len) = (0, 0);
        self.begin(index, Command::Flush, due);
        true
    }

    fn begin(&mut self, index: usize, command: Command, due: Instant) {
        let slot = &mut self.slots[index];
        slot.uses += 1;
        slot.header = request(command, slot.uses << 16 | index as u64, slot.offset, slot.len);
        (slot.command, slot.due, slot.got, slot.failed) = (Some(command), due, 0, false);
        self.under_way += 1;
        self.unsent.push_back(index);
    }

    /// Calls `send` with what is to be sent next; it tells how many bytes it took. `false`: none, for now.
    pub fn send(
        &mut self,
        send: impl FnOnce(&[IoSlice<'_>]) -> std::io::Result<Option<usize>>,
    ) -> std::io::Result<bool> {
        // Room for the headers and payloads of 64 requests: more in one call gains nothing.
        let mut parts = [IoSlice::new(&[]); 128];
        let mut n = 0;
        let mut skip = self.sent_of_first;
        for &index in self.unsent.iter().take(parts.len() / 2) {
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

    /// Takes `len` bytes of a read's reply; `bytes` is `None` for zeroes.
    fn take(&mut self, cookie: u64, offset: u64, len: u32, bytes: Option<&[u8]>) -> Result<(), NbdError> {
        let index = self.slot_of(cookie)?;
        let verify = !self.versions.is_empty();
        let slot = &mut self.slots[index];
        let at = offset.checked_sub(slot.offset).filter(|at| at + u64::from(len) <= u64::from(slot.len));
        let (Some(Command::Read), Some(at)) = (slot.command, at) else {
            return Err(NbdError::Protocol("it sent data that was not asked for"));
        };
        slot.got += len;
        if verify {
            slot.data.resize(slot.len as usize, 0);
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
        let nanos = self.now.saturating_duration_since(slot.due).as_nanos() as u64;
        let tally = &mut self.tally;
        match slot.command.take() {
            Some(Command::Read) if slot.failed => {}
            Some(Command::Read) => {
                if slot.got != slot.len {
                    return Err(NbdError::Protocol("a read was answered with too little or too much data"));
                }
                tally.reads += 1;
                if slot.version != 0 {
                    tally.verified += 1;
                    if !self.content.matches(slot.offset, slot.version, &slot.data) {
                        tally.mismatches += 1;
                        tally.first_mismatch.get_or_insert(slot.offset);
                    }
                }
            }
            Some(Command::Write) if slot.failed => {}
            Some(Command::Write) => {
                tally.writes += 1;
                if let Some(version) = self.versions.get_mut(slot.block as usize) {
                    *version = slot.version;
                }
            }
            _ => {
                tally.flushes += 1;
                tally.flush_nanos.saturating_record(nanos);
                self.under_way -= 1;
                return Ok(());
            }
        }
        if !slot.failed {
            tally.bytes += u64::from(slot.len);
            tally.nanos.saturating_record(nanos);
        }
        self.under_way -= 1;
        self.free.push(index);
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
