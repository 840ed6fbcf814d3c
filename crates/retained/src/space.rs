//! Which slots of the memory are free: plain bookkeeping, no access to the memory.
//!
//! Slots come in two kinds, pages and records, and a chunk has slots of one kind. The lowest chunk with a
//! free slot is used first, so that high chunks become empty and their memory can be given back.
//!
//! Reservations are counts. Invariant for each kind: at least as many slots are free as are reserved. A
//! reservation is only granted if [`EMERGENCY`] free slots remain that no reservation can use.

use std::ptr::NonNull;

use forebay_format::{RETAINED_RECORD_BYTES, RETAINED_TABLE, RetainedChunk};

use crate::bits::Bits;
use crate::{CHUNK, PAGE};

/// Free slots of each kind that are never reserved, for what is published without a reservation.
pub(crate) const EMERGENCY: u64 = 16;
/// Free chunks of each kind that are kept for later use, unless more are wanted.
const KEPT_CHUNKS: u64 = 4;
/// Number of used slots for which one free slot is kept, if that is more.
const KEPT_PART: u64 = 8;

const PAGES_IN_CHUNK: u32 = (CHUNK / PAGE) as u32;
/// Number of pages at the front of a chunk that hold the records of the chunk's other pages.
const RECORD_PAGES: u32 = PAGES_IN_CHUNK * RETAINED_RECORD_BYTES as u32 / PAGE as u32;
/// Chunks that the chunk table has room for.
pub(crate) const MAX_CHUNKS: u32 = ((CHUNK - RETAINED_TABLE) / 8) as u32;

const _: () = assert!(RECORD_PAGES as usize * PAGE == PAGES_IN_CHUNK as usize * RETAINED_RECORD_BYTES);

/// The numbers of the slots in a chunk.
pub(crate) fn slots(kind: RetainedChunk) -> std::ops::Range<u32> {
    match kind {
        RetainedChunk::Pages => RECORD_PAGES..PAGES_IN_CHUNK,
        RetainedChunk::Records => 0..(CHUNK / RETAINED_RECORD_BYTES) as u32,
    }
}

/// A slot that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub chunk: u32,
    pub slot: u32,
    /// Address at which the chunk is mapped.
    pub base: NonNull<u8>,
}

/// A chunk that is in use.
struct Used {
    kind: RetainedChunk,
    base: NonNull<u8>,
    free: Bits,
}

enum State {
    Absent,
    /// The memory of the chunk is being added or released.
    Changing,
    Used(Used),
}

/// The slots of one kind.
struct Slots {
    /// Chunks with a free slot.
    with_free: Bits,
    /// Chunks without a used slot.
    empty: Bits,
    free: u64,
    used: u64,
    reserved: u64,
}

impl Slots {
    fn unreserved(&self) -> u64 {
        self.free - self.reserved
    }
}

/// The space of all chunks but the first, which has the header.
pub(crate) struct Space {
    chunks: Box<[State]>,
    pages: Slots,
    records: Slots,
    /// Number of chunks that are not absent.
    present: u32,
    /// The largest number of bytes of chunks that may be present.
    limit_bytes: u64,
    /// Number of free chunks with pages that are kept.
    kept_pages: u64,
}

// SAFETY: the addresses are not accessed here; they are those of a `Memory`, which any thread may use.
unsafe impl Send for Space {}

impl Space {
    pub fn new(max_chunks: u32, limit_bytes: u64) -> Space {
        let max_chunks = max_chunks.min(MAX_CHUNKS);
        let slots = || Slots {
            with_free: Bits::new(max_chunks),
            empty: Bits::new(max_chunks),
            free: 0,
            used: 0,
            reserved: 0,
        };
        let mut space = Space {
            chunks: (0..max_chunks).map(|_| State::Absent).collect(),
            pages: slots(),
            records: slots(),
            present: 1,
            limit_bytes,
            kept_pages: KEPT_CHUNKS,
        };
        if let Some(header) = space.chunks.first_mut() {
            *header = State::Changing;
        }
        space
    }

    pub fn set_limit(&mut self, bytes: u64) {
        self.limit_bytes = bytes;
    }

    /// Keeps free chunks with pages up to this size.
    pub fn keep_pages(&mut self, bytes: u64) {
        self.kept_pages = (bytes / CHUNK as u64).max(KEPT_CHUNKS);
    }

    fn of(&mut self, kind: RetainedChunk) -> &mut Slots {
        match kind {
            RetainedChunk::Pages => &mut self.pages,
            RetainedChunk::Records => &mut self.records,
        }
    }

    /// Reserves slots of both kinds, or returns the kind of which too few are free.
    pub fn reserve(&mut self, pages: u32, records: u32) -> Result<(), RetainedChunk> {
        let lacks =
            |slots: &Slots, count: u32| count > 0 && slots.unreserved() < u64::from(count) + EMERGENCY;
        if lacks(&self.pages, pages) {
            return Err(RetainedChunk::Pages);
        }
        if lacks(&self.records, records) {
            return Err(RetainedChunk::Records);
        }
        self.pages.reserved += u64::from(pages);
        self.records.reserved += u64::from(records);
        Ok(())
    }

    pub fn unreserve(&mut self, pages: u32, records: u32) {
        self.pages.reserved -= u64::from(pages);
        self.records.reserved -= u64::from(records);
    }

    /// Whether the emergency reserve of a kind is complete.
    pub fn has_emergency_reserve(&mut self, kind: RetainedChunk) -> bool {
        self.of(kind).unreserved() >= EMERGENCY
    }

    /// Takes a free slot. If `reserved`, a reservation of one slot is consumed; otherwise `None` if all free
    /// slots are reserved.
    pub fn take(&mut self, kind: RetainedChunk, reserved: bool) -> Option<Place> {
        let slots = self.of(kind);
        if reserved {
            slots.reserved -= 1;
        } else if slots.unreserved() == 0 {
            return None;
        }
        slots.free -= 1;
        slots.used += 1;
        let chunk = slots.with_free.lowest().expect("a chunk has a free slot, since one is free");
        let State::Used(used) = &mut self.chunks[chunk as usize] else { unreachable!("a chunk in use") };
        let place = Place {
            chunk,
            slot: used.free.take_lowest().expect("a chunk that is listed has a free slot"),
            base: used.base,
        };
        let is_full = used.free.is_empty();
        let slots = self.of(kind);
        slots.empty.remove(chunk);
        if is_full {
            slots.with_free.remove(chunk);
        }
        place.into()
    }

    /// Takes a slot that is used already when the memory is opened.
    pub fn take_found(&mut self, place: &Place) {
        let State::Used(used) = &mut self.chunks[place.chunk as usize] else {
            unreachable!("a chunk in use")
        };
        let kind = used.kind;
        assert!(used.free.remove(place.slot), "a slot has one record");
        let is_full = used.free.is_empty();
        let slots = self.of(kind);
        slots.free -= 1;
        slots.used += 1;
        slots.empty.remove(place.chunk);
        if is_full {
            slots.with_free.remove(place.chunk);
        }
    }

    /// Gives a slot back. Returns the kind of its chunk if that is empty now.
    pub fn give(&mut self, place: &Place) -> Option<RetainedChunk> {
        let State::Used(used) = &mut self.chunks[place.chunk as usize] else {
            unreachable!("a chunk in use")
        };
        let kind = used.kind;
        assert!(used.free.insert(place.slot), "a slot is given back once");
        let is_empty = used.free.len() as usize == self::slots(kind).len();
        let slots = self.of(kind);
        slots.free += 1;
        slots.used -= 1;
        slots.with_free.insert(place.chunk);
        if is_empty {
            slots.empty.insert(place.chunk);
        }
        is_empty.then_some(kind)
    }

    /// The lowest chunk that may be added within the limit; [`Space::added`] or [`Space::removed`] must
    /// follow.
    pub fn begin_add(&mut self) -> Option<u32> {
        if self.bytes() + CHUNK as u64 > self.limit_bytes {
            return None;
        }
        let chunk = self.chunks.iter().position(|state| matches!(state, State::Absent))?;
        self.chunks[chunk] = State::Changing;
        self.present += 1;
        Some(chunk as u32)
    }

    /// Lists a chunk whose memory is present, with all slots free.
    pub fn added(&mut self, chunk: u32, kind: RetainedChunk, base: NonNull<u8>) {
        let range = slots(kind);
        let mut free = Bits::new(range.end);
        range.clone().for_each(|slot| assert!(free.insert(slot)));
        let slots = self.of(kind);
        slots.free += range.len() as u64;
        slots.with_free.insert(chunk);
        slots.empty.insert(chunk);
        self.chunks[chunk as usize] = State::Used(Used { kind, base, free });
    }

    /// Lists a chunk that is in use when the memory is opened.
    pub fn found(&mut self, chunk: u32, kind: RetainedChunk, base: NonNull<u8>) {
        self.present += 1;
        self.added(chunk, kind, base);
    }

    /// The highest empty chunk that is not needed any more. It is no longer listed; [`Space::removed`] must
    /// follow.
    pub fn begin_release(&mut self, kind: RetainedChunk) -> Option<u32> {
        let len = slots(kind).len() as u64;
        let above_limit = self.bytes() > self.limit_bytes;
        let kept_chunks = if kind == RetainedChunk::Pages { self.kept_pages } else { KEPT_CHUNKS };
        let slots = self.of(kind);
        let chunk = slots.empty.highest()?;
        let rest = slots.unreserved().checked_sub(len)?;
        let kept = if above_limit { EMERGENCY } else { (kept_chunks * len).max(slots.used / KEPT_PART) };
        if rest < kept {
            return None;
        }
        slots.free -= len;
        slots.empty.remove(chunk);
        slots.with_free.remove(chunk);
        self.chunks[chunk as usize] = State::Changing;
        Some(chunk)
    }

    /// The memory of a chunk is not present any more.
    pub fn removed(&mut self, chunk: u32) {
        self.chunks[chunk as usize] = State::Absent;
        self.present -= 1;
    }

    /// Bytes of all present chunks, with the first.
    pub fn bytes(&self) -> u64 {
        u64::from(self.present) * CHUNK as u64
    }

    /// The limit of [`Space::bytes`].
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Number of used pages, and of used records.
    pub fn used(&self) -> (u64, u64) {
        (self.pages.used, self.records.used)
    }
}
