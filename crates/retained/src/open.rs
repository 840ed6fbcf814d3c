//! Opening and formatting a memory.
//!
//! [`Retained::open`] reads everything before it changes anything. What a kill can leave is accepted: chunks
//! that are present but not in the table, or a missing cover. Everything else that is not as the writer
//! publishes it is damage, and refused as a whole; only a page whose bytes do not match its checksum is
//! confined to its disk.

use std::fmt;
use std::io;
use std::sync::Arc;

use forebay_format::{
    RETAINED_COVERS, RETAINED_HEADER_BYTES, RETAINED_TABLE, RETAINED_VERSION, RetainedChunk, RetainedCover,
    RetainedHeader, RetainedKind, RetainedRecord, crc32c,
};

use crate::memory::Claim;
use crate::retained::{DamagedPage, Flag, Page, Range, Retained};
use crate::space::{MAX_CHUNKS, Place, Space, slots};
use crate::words::{self, step};
use crate::{BlockRecord, CHUNK, Cover, Identity, Lost, Memory, RangeRecord};

/// Larger order numbers, generations and numbers of statements are damage: no writer gets that far.
const MAX_COUNT: u64 = 1 << 62;
/// Chunks without which nothing can be retained: the header, pages, records.
const MIN_CHUNKS: u64 = 3;
/// Minimum number of pages that each thread verifies.
const PAGES_PER_THREAD: usize = 16_384;

/// What a memory held when it was opened. Pages, ranges and flags are in ascending order.
#[derive(Default)]
pub struct Contents {
    /// The last statement about what the log contains.
    pub cover: Option<Cover>,
    /// Sequence number of a batch: records that the log has up to it were removed.
    pub floor: u64,
    /// Pages with their order. Of a block that was being overwritten, both may be here: the larger order
    /// wins.
    pub pages: Vec<(BlockRecord, u64, Page)>,
    /// Zeroed ranges with their order.
    pub ranges: Vec<(RangeRecord, u64, Range)>,
    /// Flags, each with its disk and kind.
    pub flags: Vec<(u32, u8, Flag)>,
    /// Disks with a page whose checksum does not match, in ascending order. The page is not in `pages`.
    pub damaged: Vec<u32>,
    /// The records of these pages. They remain in the memory until this is dropped, so that a kill before the
    /// damage was acted upon does not hide it.
    pub damaged_pages: Vec<DamagedPage>,
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents")
            .field("cover", &self.cover)
            .field("floor", &self.floor)
            .field("pages", &self.pages.len())
            .field("ranges", &self.ranges.len())
            .field("flags", &self.flags.len())
            .field("damaged", &self.damaged)
            .finish()
    }
}

impl Retained {
    /// Opens memory: its contents if it is sound and of this pool and boot. Otherwise why not; the memory is
    /// unchanged then.
    ///
    /// The contents may exceed the limit, which only stops growth.
    pub fn open(
        memory: Arc<dyn Memory>,
        identity: &Identity,
        limit_bytes: u64,
    ) -> Result<(Arc<Retained>, Contents), Lost> {
        let memory = Claim::take(memory).ok_or(Lost::InUse)?;
        let found = Found::read(&memory, identity)?;
        let matches = found.verify_pages();

        let max_chunks = memory.max_chunks().min(MAX_CHUNKS);
        let mut space = Space::new(max_chunks, limit_bytes);
        for &(chunk, kind) in &found.chunks {
            space.found(chunk, kind, memory.address(chunk));
        }
        found.records.iter().for_each(|(place, _)| space.take_found(place));
        let mut listed = found.chunks.iter().map(|(chunk, _)| *chunk).peekable();
        for chunk in 1..memory.max_chunks() {
            if listed.next_if_eq(&chunk).is_none() && memory.is_present(chunk) {
                memory.release(chunk);
                step();
            }
        }

        let last = found.records.last().map(|(_, record)| record.order + 1);
        let covered = found.cover.map(|cover| cover.order);
        let order = last.max(covered).unwrap_or(0);
        let retained = Retained::new(memory, found.header.id, order, found.cover, space);
        let contents = found.into_contents(&retained, &matches);
        retained.fill_emergency_reserve();
        Ok((retained, contents))
    }

    /// Formats memory with a new id, which is not 0, whatever it held. Fails if there is no room for the
    /// header and the first pages and records.
    pub fn create(
        memory: Arc<dyn Memory>,
        identity: &Identity,
        id: u64,
        limit_bytes: u64,
    ) -> io::Result<Arc<Retained>> {
        assert_ne!(id, 0, "memory with this id is refused");
        let memory = Claim::take(memory).ok_or(io::ErrorKind::ResourceBusy)?;
        if u64::from(memory.max_chunks()).min(limit_bytes / CHUNK as u64) < MIN_CHUNKS {
            return Err(too_small(None));
        }
        if !memory.is_present(0) {
            memory.add(0)?;
            step();
        }
        let header = memory.address(0);
        let bytes = RetainedHeader { pool: identity.pool, boot: identity.boot, id }.encode();
        // SAFETY: the header is in the first chunk of the claimed memory, which is present. No other thread
        // uses it yet, and no reference to its bytes exists.
        unsafe {
            // Without its tag the header does not exist, so its other words can be changed in any order.
            words::store_tag(header.add(RETAINED_HEADER_BYTES - 8), 0);
            header.add(RETAINED_HEADER_BYTES).write_bytes(0, CHUNK - RETAINED_HEADER_BYTES);
        }
        step();
        for chunk in (1..memory.max_chunks()).filter(|chunk| memory.is_present(*chunk)) {
            memory.release(chunk);
            step();
        }
        // SAFETY: as above.
        unsafe { words::publish(header, &bytes, RETAINED_HEADER_BYTES / 8 - 1) };
        let space = Space::new(memory.max_chunks(), limit_bytes);
        let retained = Retained::new(memory, id, 0, None, space);
        if retained.fill_emergency_reserve() {
            Ok(retained)
        } else {
            Err(too_small(retained.take_growth_error()))
        }
    }
}

/// The error of memory that has no room for the chunks that any use needs.
fn too_small(cause: Option<io::Error>) -> io::Error {
    let needed = (MIN_CHUNKS * CHUNK as u64) >> 20;
    let what = format!("at least {needed} MiB are needed");
    match cause {
        Some(e) => io::Error::new(e.kind(), format!("{what}: {e}")),
        None => io::Error::new(io::ErrorKind::InvalidInput, what),
    }
}

/// The contents of a memory, read and checked. Nothing is changed yet.
struct Found {
    header: RetainedHeader,
    cover: Option<RetainedCover>,
    /// The chunks of the table, in ascending order.
    chunks: Vec<(u32, RetainedChunk)>,
    /// Records with their places, in ascending order of the places.
    records: Vec<(Place, RetainedRecord)>,
}

impl Found {
    fn read(memory: &Claim, identity: &Identity) -> Result<Found, Lost> {
        if !memory.is_present(0) {
            return Err(Lost::Empty);
        }
        let header = read_header(memory, identity)?;
        let mut found = Found { header, cover: read_cover(memory)?, chunks: Vec::new(), records: Vec::new() };
        for chunk in 0..MAX_CHUNKS {
            let at = RETAINED_TABLE + 8 * chunk as usize;
            // SAFETY: the table is in the first chunk of the claimed memory, which is present; no reference
            // to it exists.
            let entry = unsafe { words::load(memory.address(0).add(at)) }.to_ne_bytes();
            if entry == [0; 8] {
                continue;
            }
            let kind = RetainedChunk::decode(&entry, chunk, header.id);
            let Ok(Some(kind)) = kind else {
                return Err(Lost::Damaged("an entry of the chunk table is invalid"));
            };
            if chunk == 0 {
                return Err(Lost::Damaged("the chunk table lists the header"));
            }
            if !memory.is_present(chunk) {
                return Err(Lost::Damaged("a part of the memory is missing"));
            }
            found.chunks.push((chunk, kind));
            found.read_records(memory, chunk, kind)?;
        }
        found.records.sort_unstable_by_key(|(_, record)| record.order);
        if found.records.windows(2).any(|pair| pair[0].1.order == pair[1].1.order) {
            return Err(Lost::Damaged("two records have the same order"));
        }
        Ok(found)
    }

    fn read_records(&mut self, memory: &Claim, chunk: u32, kind: RetainedChunk) -> Result<(), Lost> {
        let base = memory.address(chunk);
        let slots = slots(kind);
        for slot in 0..slots.end {
            let place = Place { chunk, slot, base };
            // SAFETY: the records are in a present chunk of the claimed memory, and no reference to them
            // exists.
            if unsafe { words::load(place.record()) } == 0 {
                continue;
            }
            // SAFETY: as above.
            let bytes = unsafe { words::read(place.record()) };
            let Ok(Some(record)) = RetainedRecord::decode(&bytes) else {
                return Err(Lost::Damaged("a record is invalid"));
            };
            let is_page = matches!(record.kind, RetainedKind::Page { .. });
            if is_page != (kind == RetainedChunk::Pages) || !slots.contains(&slot) {
                return Err(Lost::Damaged("a record is in the wrong place"));
            }
            let generation = match record.kind {
                RetainedKind::Page { generation, .. } | RetainedKind::Range { generation, .. } => generation,
                RetainedKind::Flag { .. } => 0,
            };
            if record.order.max(generation) > MAX_COUNT {
                return Err(Lost::Damaged("a record has an impossible number"));
            }
            self.records.push((place, record));
        }
        Ok(())
    }

    /// For each record, whether the checksum of its page matches.
    fn verify_pages(&self) -> Vec<bool> {
        let mut matches = vec![true; self.records.len()];
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = self.records.len().div_ceil(threads).max(PAGES_PER_THREAD);
        let mut shares = self.records.chunks(share).zip(matches.chunks_mut(share));
        let first = shares.next();
        std::thread::scope(|scope| {
            for (records, matches) in shares {
                // SAFETY: see `Records`.
                let records = Records(records);
                scope.spawn(move || records.verify(matches));
            }
            if let Some((records, matches)) = first {
                Records(records).verify(matches);
            }
        });
        matches
    }

    fn into_contents(self, retained: &Arc<Retained>, matches: &[bool]) -> Contents {
        let cover = self.cover.map(|RetainedCover { seq, order, .. }| Cover { seq, order });
        let floor = self.cover.map_or(0, |cover| cover.floor);
        let mut contents = Contents { cover, floor, ..Contents::default() };
        for ((place, record), matches) in self.records.into_iter().zip(matches) {
            let RetainedRecord { disk, order, kind } = record;
            match kind {
                RetainedKind::Page { .. } if !matches => {
                    contents.damaged.push(disk);
                    contents.damaged_pages.push(DamagedPage::found(retained, place));
                }
                RetainedKind::Page { block, mask, crc, generation } => {
                    let of = BlockRecord { disk, block, mask, generation };
                    contents.pages.push((of, order, Page::found(retained, place, crc, order)));
                }
                RetainedKind::Range { start, end, allocated, generation } => {
                    let of = RangeRecord { disk, start, end, allocated, generation };
                    contents.ranges.push((of, order, Range::found(retained, place, of, order)));
                }
                RetainedKind::Flag { kind } => {
                    contents.flags.push((disk, kind, Flag::found(retained, place)));
                }
            }
        }
        contents.damaged.sort_unstable();
        contents.damaged.dedup();
        contents
    }
}

/// Records of claimed memory.
struct Records<'a>(&'a [(Place, RetainedRecord)]);

// SAFETY: the memory may be used by any thread, and is only read.
unsafe impl Send for Records<'_> {}

impl Records<'_> {
    fn verify(self, matches: &mut [bool]) {
        for ((place, record), matches) in self.0.iter().zip(matches) {
            if let RetainedKind::Page { crc, .. } = record.kind {
                // SAFETY: the page is in a present chunk of the claimed memory, and nothing stores to it
                // before it is handed out.
                *matches = crc32c(unsafe { place.page().as_ref() }) == crc;
            }
        }
    }
}

fn read_header(memory: &Claim, identity: &Identity) -> Result<RetainedHeader, Lost> {
    // SAFETY: the header is in the first chunk of the claimed memory, which is present; no reference to it
    // exists.
    let bytes = unsafe { words::read(memory.address(0)) };
    let (found, header) = match RetainedHeader::decode(&bytes) {
        Ok(None) => return Err(Lost::Empty),
        Ok(Some(decoded)) => decoded,
        Err(_) => return Err(Lost::Damaged("its header is invalid")),
    };
    match found.cmp(&RETAINED_VERSION) {
        std::cmp::Ordering::Less => Err(Lost::OlderFormat { found }),
        std::cmp::Ordering::Greater => Err(Lost::NewerFormat { found }),
        std::cmp::Ordering::Equal if header.id == 0 => Err(Lost::Damaged("it has no id")),
        std::cmp::Ordering::Equal if header.pool != identity.pool => Err(Lost::OtherPool),
        std::cmp::Ordering::Equal if header.boot != identity.boot => Err(Lost::OtherBoot),
        std::cmp::Ordering::Equal => Ok(header),
    }
}

/// Returns the statement with the higher number. A kill leaves the last two statements, only the last one, or
/// none.
fn read_cover(memory: &Claim) -> Result<Option<RetainedCover>, Lost> {
    let mut last: Option<RetainedCover> = None;
    for (index, at) in RETAINED_COVERS.into_iter().enumerate() {
        // SAFETY: as in `read_header`.
        let bytes = unsafe { words::read(memory.address(0).add(at)) };
        let cover = RetainedCover::decode(&bytes).map_err(|_| Lost::Damaged("a cover slot is invalid"))?;
        let Some(cover) = cover else { continue };
        let is_possible = (1..=MAX_COUNT).contains(&cover.number) && cover.order <= MAX_COUNT;
        let is_next = last.is_none_or(|last| last.number.abs_diff(cover.number) == 1);
        if cover.number % 2 != index as u64 || !is_possible || !is_next {
            return Err(Lost::Damaged("a cover slot is impossible"));
        }
        if last.is_none_or(|last| last.number < cover.number) {
            last = Some(cover);
        }
    }
    Ok(last)
}
