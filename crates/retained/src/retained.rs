//! The owner of a memory. Preliminary: nothing is retained yet.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::{BlockRecord, Contents, Cover, Identity, Lost, Memory, PAGE, RangeRecord, Stats};

/// Published pages, ranges and flags.
pub struct Retained {
    id: u64,
    order: AtomicU64,
    limit: AtomicU64,
    pages: AtomicU64,
    records: AtomicU64,
}

/// Room for pages and ranges; the rest is given back when it is dropped.
#[derive(Debug)]
pub struct Reservation {
    pages: u32,
    ranges: u32,
}

impl Reservation {
    /// Pages and ranges left.
    pub fn left(&self) -> (u32, u32) {
        (self.pages, self.ranges)
    }
}

/// A published page. Dropping it clears its record.
pub struct Page {
    retained: Arc<Retained>,
    bytes: Box<[u8; PAGE]>,
    crc: u32,
    order: u64,
}

impl Page {
    /// CRC-32C of the bytes.
    pub fn crc(&self) -> u32 {
        self.crc
    }
    /// Its order number.
    pub fn order(&self) -> u64 {
        self.order
    }
}

impl Deref for Page {
    type Target = [u8; PAGE];
    fn deref(&self) -> &[u8; PAGE] {
        &self.bytes
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.retained.pages.fetch_sub(1, SeqCst);
    }
}

/// A published zeroed range. Dropping it clears its record.
pub struct Range {
    retained: Arc<Retained>,
    record: RangeRecord,
    order: u64,
}

impl Range {
    /// What was published.
    pub fn record(&self) -> RangeRecord {
        self.record
    }
    /// Its order number.
    pub fn order(&self) -> u64 {
        self.order
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        self.retained.records.fetch_sub(1, SeqCst);
    }
}

/// A published flag. Dropping it clears its record.
pub struct Flag {
    retained: Arc<Retained>,
}

impl Drop for Flag {
    fn drop(&mut self) {
        self.retained.records.fetch_sub(1, SeqCst);
    }
}

impl Retained {
    /// Opens memory: its contents if it is sound and of this pool and boot. Otherwise why not; the memory is
    /// unchanged then.
    pub fn open(
        memory: Arc<dyn Memory>,
        identity: &Identity,
        limit_bytes: u64,
    ) -> Result<(Arc<Retained>, Contents), Lost> {
        let _ = (memory, identity, limit_bytes);
        Err(Lost::Empty)
    }

    /// Formats memory with a new id, whatever it held. Fails if there is no room for the header.
    pub fn create(
        memory: Arc<dyn Memory>,
        identity: &Identity,
        id: u64,
        limit_bytes: u64,
    ) -> io::Result<Arc<Retained>> {
        let _ = (memory, identity);
        let number = AtomicU64::new;
        let limit = number(limit_bytes);
        Ok(Arc::new(Retained { id, order: number(0), limit, pages: number(0), records: number(0) }))
    }

    /// The id of the memory.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Takes room for pages and ranges; `None` if the limit is reached or the memory cannot grow.
    pub fn reserve(self: &Arc<Self>, pages: u32, ranges: u32) -> Option<Reservation> {
        Some(Reservation { pages, ranges })
    }

    /// Publishes a page; `fill` writes all its bytes. Without room in `room`, the emergency reserve is used;
    /// without room there, the page is not retained.
    pub fn page(
        self: &Arc<Self>,
        room: Option<&mut Reservation>,
        of: BlockRecord,
        fill: impl FnOnce(&mut [u8; PAGE]),
    ) -> Page {
        let _ = of;
        if let Some(room) = room {
            room.pages = room.pages.saturating_sub(1);
        }
        let mut bytes = Box::new([0; PAGE]);
        fill(&mut bytes);
        self.pages.fetch_add(1, SeqCst);
        let crc = forebay_format::crc32c(&bytes[..]);
        Page { retained: self.clone(), bytes, crc, order: self.order.fetch_add(1, SeqCst) }
    }

    /// Publishes a zeroed range.
    pub fn range(self: &Arc<Self>, room: Option<&mut Reservation>, of: RangeRecord) -> Range {
        if let Some(room) = room {
            room.ranges = room.ranges.saturating_sub(1);
        }
        self.records.fetch_add(1, SeqCst);
        Range { retained: self.clone(), record: of, order: self.order.fetch_add(1, SeqCst) }
    }

    /// Publishes a flag of a disk.
    pub fn flag(self: &Arc<Self>, disk: u32, kind: u8) -> Flag {
        let _ = (disk, kind);
        self.records.fetch_add(1, SeqCst);
        Flag { retained: self.clone() }
    }

    /// The next order number: every record published before has a smaller one.
    pub fn order(&self) -> u64 {
        self.order.load(SeqCst)
    }

    /// Records in the header that records with a smaller order are in the log if its history reaches a batch.
    pub fn set_cover(&self, cover: Cover) {
        let _ = cover;
    }

    /// From now on, dropping pages, ranges and flags leaves their records in the memory.
    pub fn keep(&self) {}

    /// The use of the memory.
    pub fn stats(&self) -> Stats {
        let limit = self.limit.load(SeqCst);
        Stats { limit, pages: self.pages.load(SeqCst), ranges: self.records.load(SeqCst), ..Stats::default() }
    }

    /// Changes the limit. Memory above it is given back when it becomes free.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, SeqCst);
    }

    /// Whether no record is published.
    pub fn is_empty(&self) -> bool {
        self.pages.load(SeqCst) + self.records.load(SeqCst) == 0
    }
}
