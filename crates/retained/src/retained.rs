//! [`Retained`]: the process's access to the retained memory that it owns. It publishes records of pages,
//! zeroed ranges and flags, and clears them.

use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_format::{
    RETAINED_COVERS, RETAINED_RECORD_BYTES, RETAINED_TABLE, RetainedChunk, RetainedCover, RetainedKind,
    RetainedRecord, crc32c,
};
use parking_lot::Mutex;

use crate::memory::Claim;
use crate::space::{Place, Space};
use crate::words::{self, step};
use crate::{BlockRecord, Cover, PAGE, RangeRecord, Stats};

/// Pages, zeroed ranges and flags in a memory.
pub struct Retained {
    memory: Claim,
    /// Address at which chunk 0 is mapped.
    header: NonNull<u8>,
    id: u64,
    /// The order number of the next record.
    order: AtomicU64,
    space: Mutex<Space>,
    /// Locked while chunks are added, so that `space` need not be locked.
    growth: Mutex<Growth>,
    /// The last statement about what the log contains.
    cover: Mutex<RetainedCover>,
    is_frozen: AtomicBool,
    /// The memory was left: another process may own it.
    is_left: AtomicBool,
    unretained: AtomicU64,
    unretained_total: AtomicU64,
}

#[derive(Default)]
struct Growth {
    error: Option<io::Error>,
}

// SAFETY: the header is in the claimed memory, which any thread may use. It is accessed by atomic loads and
// stores, and stored to only under a lock.
unsafe impl Send for Retained {}
// SAFETY: as above.
unsafe impl Sync for Retained {}

/// Reserved room for pages and ranges. Unused room is given back when the reservation is dropped.
pub struct Reservation {
    retained: Arc<Retained>,
    pages: u32,
    ranges: u32,
}

impl Reservation {
    /// Pages and ranges for which there is room.
    pub fn left(&self) -> (u32, u32) {
        (self.pages, self.ranges)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if (self.pages, self.ranges) != (0, 0) {
            self.retained.space.lock().unreserve(self.pages, self.ranges);
        }
    }
}

/// A slot of the memory, or none because there was no room. Dropping it clears the record and frees the slot.
struct Slot {
    retained: Arc<Retained>,
    place: Option<Place>,
}

// SAFETY: the place is in the memory that `retained` has claimed. It belongs to this value alone until it is
// given back, and the memory is usable by any thread.
unsafe impl Send for Slot {}
// SAFETY: nothing is stored through a shared reference.
unsafe impl Sync for Slot {}

impl Slot {
    fn new(retained: &Arc<Retained>, place: Option<Place>) -> Slot {
        if place.is_none() {
            retained.unretained.fetch_add(1, Ordering::Relaxed);
            retained.unretained_total.fetch_add(1, Ordering::Relaxed);
        }
        Slot { retained: retained.clone(), place }
    }

    /// Stores the record, its tag last.
    fn publish(&self, record: &RetainedRecord) {
        if let Some(place) = &self.place {
            // SAFETY: the slot belongs to this value, so no other thread stores to its record, and no
            // reference to it exists.
            unsafe { words::publish(place.record(), &record.encode(), 0) };
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let retained = &self.retained;
        let Some(place) = &self.place else {
            retained.unretained.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        if retained.is_frozen() {
            return;
        }
        // SAFETY: as in `publish`. The record is cleared before another owner can get the slot.
        unsafe { words::store_tag(place.record(), 0) };
        let emptied = retained.space.lock().give(place);
        if let Some(kind) = emptied {
            retained.shrink(kind);
        }
    }
}

/// A published page. Dropping it clears its record and frees the page.
pub struct Page {
    slot: Slot,
    bytes: NonNull<[u8; PAGE]>,
    crc: u32,
    order: u64,
}

// SAFETY: the bytes belong to this value alone, as `slot` does, and do not change after publication.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// A page that was found when the memory was opened, with a record that was checked.
    pub(crate) fn found(retained: &Arc<Retained>, place: Place, crc: u32, order: u64) -> Page {
        let bytes = place.page();
        Page { slot: Slot::new(retained, Some(place)), bytes, crc, order }
    }

    /// CRC-32C of the bytes, as of publication.
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// Order number of the record.
    pub fn order(&self) -> u64 {
        self.order
    }

    /// Whether it outlives the process; false if there was no room.
    pub fn is_retained(&self) -> bool {
        self.slot.place.is_some()
    }
}

impl Deref for Page {
    type Target = [u8; PAGE];

    fn deref(&self) -> &[u8; PAGE] {
        // SAFETY: the bytes are on the heap, or in a slot that belongs to this value: both exist as long as
        // it does, and nothing stores to them after publication.
        unsafe { self.bytes.as_ref() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.slot.place.is_none() {
            // SAFETY: a page without a slot was made from a box, and is dropped once.
            drop(unsafe { Box::from_raw(self.bytes.as_ptr()) });
        }
    }
}

/// A published zeroed range. Dropping it clears its record.
pub struct Range {
    _slot: Slot,
    record: RangeRecord,
    order: u64,
}

impl Range {
    /// A range that was found when the memory was opened.
    pub(crate) fn found(retained: &Arc<Retained>, place: Place, record: RangeRecord, order: u64) -> Range {
        Range { _slot: Slot::new(retained, Some(place)), record, order }
    }

    /// Returns the record of the range.
    pub fn record(&self) -> RangeRecord {
        self.record
    }

    /// Order number of the record.
    pub fn order(&self) -> u64 {
        self.order
    }
}

/// A published flag. Dropping it clears its record.
pub struct Flag {
    slot: Slot,
}

impl Flag {
    /// Clears the record because the flag is not true any more. Unlike dropping it, this has an effect in a
    /// frozen memory too, until the memory is left: the next owner must not find the flag.
    pub fn withdraw(self) {
        let retained = &self.slot.retained;
        if let Some(place) = &self.slot.place
            && !retained.is_left.load(Ordering::Acquire)
        {
            // SAFETY: as in `Slot::publish`. Dropping the slot then gives it back, or the memory is frozen
            // and the slot is not used again.
            unsafe { words::store_tag(place.record(), 0) };
        }
    }

    /// A flag that was found when the memory was opened.
    pub(crate) fn found(retained: &Arc<Retained>, place: Place) -> Flag {
        Flag { slot: Slot::new(retained, Some(place)) }
    }
}

/// A page whose bytes do not match its record. Dropping it clears the record: then the damage is forgotten.
pub struct DamagedPage {
    _slot: Slot,
}

impl DamagedPage {
    pub(crate) fn found(retained: &Arc<Retained>, place: Place) -> DamagedPage {
        DamagedPage { _slot: Slot::new(retained, Some(place)) }
    }
}

impl Retained {
    pub(crate) fn new(
        memory: Claim,
        id: u64,
        order: u64,
        cover: Option<RetainedCover>,
        space: Space,
    ) -> Arc<Retained> {
        // Without a statement, the log contains nothing.
        let cover = cover.unwrap_or(RetainedCover { number: 0, seq: u64::MAX, order: 0, floor: 0 });
        let header = memory.address(0);
        let retained = Retained {
            memory,
            header,
            id,
            order: AtomicU64::new(order),
            space: Mutex::new(space),
            growth: Mutex::default(),
            cover: Mutex::new(cover),
            is_frozen: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
            unretained: AtomicU64::new(0),
            unretained_total: AtomicU64::new(0),
        };
        Arc::new(retained)
    }

    /// Adds chunks until the emergency reserve is complete, as far as limit and memory allow. Returns whether
    /// it is.
    pub(crate) fn fill_emergency_reserve(&self) -> bool {
        let mut growth = self.growth.lock();
        let mut is_complete = true;
        for kind in [RetainedChunk::Pages, RetainedChunk::Records] {
            let is_filled = || self.space.lock().has_emergency_reserve(kind);
            while !is_filled() && self.grow(&mut growth, kind) {}
            is_complete &= is_filled();
        }
        is_complete
    }

    /// The id of the memory.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Takes room for pages and ranges; `None` if the limit is reached or the memory cannot grow.
    pub fn reserve(self: &Arc<Self>, pages: u32, ranges: u32) -> Option<Reservation> {
        let reservation = || Reservation { retained: self.clone(), pages, ranges };
        if self.space.lock().reserve(pages, ranges).is_ok() {
            return Some(reservation());
        }
        let mut growth = self.growth.lock();
        loop {
            let lacking = match self.space.lock().reserve(pages, ranges) {
                Ok(()) => return Some(reservation()),
                Err(kind) => kind,
            };
            if !self.grow(&mut growth, lacking) {
                return None;
            }
        }
    }

    /// Publishes a page; `fill` writes all its bytes. Without room in `room`, the emergency reserve is used;
    /// without room there, the page is on the heap and not retained, which [`Retained::stats`] reports.
    pub fn page(
        self: &Arc<Self>,
        room: Option<&mut Reservation>,
        of: BlockRecord,
        fill: impl FnOnce(&mut [u8; PAGE]),
    ) -> Page {
        let is_reserved = room.is_some_and(|room| take_one(self, room, |room| &mut room.pages));
        let place = self.take(RetainedChunk::Pages, is_reserved);
        let bytes = match &place {
            Some(place) => place.page(),
            None => NonNull::from(Box::leak(Box::new([0; PAGE]))),
        };
        let mut page = Page { slot: Slot::new(self, place), bytes, crc: 0, order: 0 };
        // SAFETY: the page belongs to `page`, to which no other reference exists yet.
        let content = unsafe { page.bytes.as_mut() };
        fill(content);
        step();
        page.crc = crc32c(content);
        page.order = self.order.fetch_add(1, Ordering::AcqRel);
        let BlockRecord { disk, block, mask, generation } = of;
        let kind = RetainedKind::Page { block, mask, crc: page.crc, generation };
        page.slot.publish(&RetainedRecord { disk, order: page.order, kind });
        page
    }

    /// Publishes a zeroed range. Room is used as for a page.
    pub fn range(self: &Arc<Self>, room: Option<&mut Reservation>, of: RangeRecord) -> Range {
        let is_reserved = room.is_some_and(|room| take_one(self, room, |room| &mut room.ranges));
        let RangeRecord { disk, start, end, allocated, generation } = of;
        let kind = RetainedKind::Range { start, end, allocated, generation };
        let (slot, order) = self.record(disk, kind, is_reserved);
        Range { _slot: slot, record: of, order }
    }

    /// Publishes a flag of a disk, with room of the emergency reserve.
    pub fn flag(self: &Arc<Self>, disk: u32, kind: u8) -> Flag {
        Flag { slot: self.record(disk, RetainedKind::Flag { kind }, false).0 }
    }

    fn record(self: &Arc<Self>, disk: u32, kind: RetainedKind, is_reserved: bool) -> (Slot, u64) {
        let slot = Slot::new(self, self.take(RetainedChunk::Records, is_reserved));
        let order = self.order.fetch_add(1, Ordering::AcqRel);
        slot.publish(&RetainedRecord { disk, order, kind });
        (slot, order)
    }

    /// Returns the next order number, which is higher than the numbers of all published records.
    pub fn order(&self) -> u64 {
        self.order.load(Ordering::Acquire)
    }

    /// States in the header that records with a smaller order are in the log, if the history of the log
    /// reaches a batch. A kill leaves this statement or the previous statement. Returns false if the memory
    /// is frozen: then the previous statement stays.
    pub fn set_cover(&self, Cover { seq, order }: Cover) -> bool {
        self.state_cover(|cover| (cover.seq, cover.order) = (seq, order))
    }

    /// States in the header that the log's history reaches this batch. To be called before records are
    /// dropped because the log has them: without that history, the remaining records are useless.
    pub fn set_floor(&self, seq: u64) {
        self.state_cover(|cover| cover.floor = seq);
    }

    fn state_cover(&self, change: impl FnOnce(&mut RetainedCover)) -> bool {
        let mut cover = self.cover.lock();
        if self.is_frozen() {
            return false;
        }
        change(&mut cover);
        cover.number += 1;
        let slot = RETAINED_COVERS[(cover.number % 2) as usize];
        // SAFETY: the slot is in the header of the claimed memory, and the lock is held for all stores to it.
        unsafe { words::publish(self.header.add(slot), &cover.encode(), 0) };
        true
    }

    /// From now on nothing is added, and dropping pages, ranges and flags leaves their records there; what is
    /// published is not retained. Only [`Flag::withdraw`] still changes the memory.
    pub fn freeze(&self) {
        self.is_frozen.store(true, Ordering::Release);
    }

    /// From now on the memory does not change at all: it can be left to another process.
    pub fn leave(&self) {
        self.freeze();
        self.is_left.store(true, Ordering::Release);
    }

    fn is_frozen(&self) -> bool {
        self.is_frozen.load(Ordering::Acquire)
    }

    /// How much of the memory is used.
    pub fn stats(&self) -> Stats {
        let space = self.space.lock();
        let (pages, ranges) = space.used();
        Stats {
            bytes: space.bytes(),
            limit: space.limit_bytes(),
            pages,
            ranges,
            unretained: self.unretained.load(Ordering::Relaxed),
            unretained_total: self.unretained_total.load(Ordering::Relaxed),
        }
    }

    /// Changes the limit. Memory above it is given back when it becomes free.
    pub fn set_limit(&self, bytes: u64) {
        self.space.lock().set_limit(bytes);
        self.shrink(RetainedChunk::Pages);
        self.shrink(RetainedChunk::Records);
    }

    /// Whether no record is published.
    pub fn is_empty(&self) -> bool {
        self.space.lock().used() == (0, 0)
    }

    /// Keeps the memory of free pages up to this size, instead of giving it back: buffers that fill and empty
    /// again and again would otherwise add it each time, which costs more than the writes themselves.
    pub fn keep_free(&self, bytes: u64) {
        self.space.lock().keep_pages(bytes);
    }

    /// Returns the last error of adding memory, if an error has occurred since the last call.
    pub fn take_growth_error(&self) -> Option<io::Error> {
        self.growth.lock().error.take()
    }

    /// Takes a slot: a reserved slot, a free slot, or a slot of a new chunk.
    fn take(&self, kind: RetainedChunk, is_reserved: bool) -> Option<Place> {
        if self.is_frozen() {
            return None;
        }
        let place = self.space.lock().take(kind, is_reserved);
        place.or_else(|| {
            let mut growth = self.growth.lock();
            loop {
                let place = self.space.lock().take(kind, false);
                if place.is_some() || !self.grow(&mut growth, kind) {
                    return place;
                }
            }
        })
    }

    /// Adds a chunk; false if the limit is reached or there is no memory.
    fn grow(&self, growth: &mut Growth, kind: RetainedChunk) -> bool {
        if self.is_frozen() {
            return false;
        }
        let Some(chunk) = self.space.lock().begin_add() else { return false };
        if let Err(e) = self.memory.add(chunk) {
            growth.error = Some(e);
            self.space.lock().removed(chunk);
            return false;
        }
        step();
        self.set_table_entry(chunk, u64::from_ne_bytes(kind.encode(chunk, self.id)));
        self.space.lock().added(chunk, kind, self.memory.address(chunk));
        true
    }

    /// Gives the memory of empty chunks back that are not needed.
    fn shrink(&self, kind: RetainedChunk) {
        if self.is_frozen() {
            return;
        }
        loop {
            let Some(chunk) = self.space.lock().begin_release(kind) else { return };
            self.set_table_entry(chunk, 0);
            self.memory.release(chunk);
            step();
            self.space.lock().removed(chunk);
        }
    }

    /// A chunk is used while its entry is set. The caller has taken the chunk from `space` for the change.
    fn set_table_entry(&self, chunk: u32, entry: u64) {
        // SAFETY: the entry is in the first chunk of the claimed memory, since `Space` lists no chunk beyond
        // the table. The caller is the only thread that changes this entry.
        unsafe { words::store_tag(self.header.add(RETAINED_TABLE + 8 * chunk as usize), entry) };
    }
}

/// Takes one slot of a reservation; false if the reservation is used up.
fn take_one(
    retained: &Arc<Retained>,
    room: &mut Reservation,
    count: fn(&mut Reservation) -> &mut u32,
) -> bool {
    assert!(Arc::ptr_eq(retained, &room.retained), "the reservation is of this memory");
    let count = count(room);
    let taken = *count > 0;
    *count -= u32::from(taken);
    taken
}

impl Place {
    /// Address at which the record is mapped.
    pub fn record(&self) -> NonNull<u8> {
        // SAFETY: the slot is within its chunk, which is present: records have less bytes than pages.
        unsafe { self.base.add(self.slot as usize * RETAINED_RECORD_BYTES) }
    }

    /// Address of the page, for a slot of a chunk with pages.
    pub fn page(&self) -> NonNull<[u8; PAGE]> {
        // SAFETY: the slots of chunks with pages are numbered by the pages of the chunk.
        unsafe { self.base.add(self.slot as usize * PAGE) }.cast()
    }
}
