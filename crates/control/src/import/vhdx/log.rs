//! The log of a VHDX file (MS-VHDX, 2.3): changes of the file that its host had not yet written in place when
//! the host lost power, or when the file was copied. The changes are applied to the data that is read, and
//! the file remains unchanged.
//!
//! The log is a ring of sectors of 4 KiB. An entry begins with a header and descriptors; a sector for each
//! data descriptor follows. Entries with consecutive sequence numbers are a sequence. The last entry of a
//! sequence names the first entry that has to be applied. The active sequence is the valid sequence with the
//! highest numbers.

use std::collections::{BTreeMap, HashMap};

use super::super::Result;
use super::super::file::ImageFile;
use super::super::file::bytes::{array, le32, le64};

/// Bytes of a sector and of a page.
const SECTOR: u64 = 4096;
/// Length of the header of an entry.
const ENTRY_HEADER: usize = 64;
/// Bytes of a descriptor.
const DESCRIPTOR: usize = 32;
/// Maximum length of a log; Hyper-V creates logs of 1 MiB.
const MAX_LOG: u64 = 64 << 20;
/// Maximum number of bytes by which the file may have been longer when its last change was logged.
const MAX_BEYOND: u64 = 1 << 30;
/// Maximum effort of the search for the active sequence, as a multiple of the log's length. A checksum costs
/// the length of its entry, and each look-up of an entry costs the length of a header. The entries of an
/// artificial log can overlap, and a valid log costs less than two lengths.
const EFFORT: u64 = 16;

/// The pages that the log replaces.
#[derive(Debug, Default)]
pub(super) struct Pages {
    /// Ranges that do not overlap, by their start: the end of each, and its contents.
    ranges: BTreeMap<u64, (u64, Content)>,
    /// Length of the file when its last change was logged. The file may be shorter.
    file_len: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Zero,
    /// A page in a data sector of the log. The sector, at offset `at` of the file, has the page without its
    /// first eight and its last four bytes, which are in the descriptor.
    Logged {
        at: u64,
        first: [u8; 8],
        last: [u8; 4],
    },
}

/// The location of the log, and the identifier that its entries have.
struct Log<'a> {
    file: &'a ImageFile,
    at: u64,
    len: u64,
    id: [u8; 16],
    /// The effort that remains, in bytes; see [`EFFORT`].
    effort: u64,
    /// Entries by their offset in the log; `None` if there is no valid entry at the offset.
    entries: HashMap<u64, Option<Entry>>,
}

/// A valid entry of the log.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Offset of the entry in the log.
    at: u64,
    len: u64,
    sequence: u64,
    /// Offset of the entry with which the replay begins.
    tail: u64,
    /// Minimum length of the file when the entry was written.
    flushed_len: u64,
    /// Length of the file when the entry was written.
    file_len: u64,
}

impl Pages {
    /// Reads the log at `at..at + len` of the file. A log without entries is empty.
    pub fn read(file: &ImageFile, at: u64, len: u64, id: [u8; 16]) -> Result<Pages> {
        if len == 0 || !len.is_multiple_of(SECTOR) || !at.is_multiple_of(SECTOR) || len > MAX_LOG {
            return file.damaged("the length or place of its log is out of range");
        }
        if at.saturating_add(len) > file.len() {
            return Err(file.truncated(at.saturating_add(len)));
        }
        let mut log = Log::new(file, at, len, id);
        let sequence = log.active_sequence()?;
        let mut pages = Pages::default();
        let Some(newest) = sequence.last() else { return Ok(pages) };
        if newest.flushed_len > file.len() || newest.file_len > file.len().saturating_add(MAX_BEYOND) {
            return Err(file.truncated(newest.flushed_len.max(newest.file_len)));
        }
        pages.file_len = newest.file_len;
        let first = sequence.iter().position(|entry| entry.at == newest.tail).unwrap_or_default();
        for entry in &sequence[first..] {
            log.replay(entry, &mut pages)?;
        }
        Ok(pages)
    }

    /// Length of the file after the replay.
    pub fn file_len(&self, file: &ImageFile) -> u64 {
        self.file_len.max(file.len())
    }

    /// Replaces the parts of `out`, which was read from `offset`, that are in the log.
    pub fn apply(&self, file: &ImageFile, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset + out.len() as u64;
        let overlapping = self.ranges.range(..end).rev().take_while(|(_, (to, _))| *to > offset);
        for (from, (to, content)) in overlapping {
            let (start, stop) = ((*from).max(offset), (*to).min(end));
            let part = &mut out[(start - offset) as usize..(stop - offset) as usize];
            match content {
                Content::Zero => part.fill(0),
                Content::Logged { at, first, last } => {
                    let mut page = file.read_array::<{ SECTOR as usize }>(*at)?;
                    page[..8].copy_from_slice(first);
                    page[SECTOR as usize - 4..].copy_from_slice(last);
                    let skip = (start - from) as usize;
                    part.copy_from_slice(&page[skip..skip + part.len()]);
                }
            }
        }
        Ok(())
    }

    /// Adds a range that replaces earlier contents.
    fn put(&mut self, from: u64, to: u64, content: Content) {
        let overlapping = self.ranges.range(..to).rev().take_while(|(_, (end, _))| *end > from);
        let replaced: Vec<_> = overlapping.map(|(start, (end, content))| (*start, *end, *content)).collect();
        for (start, end, content) in replaced {
            // Pages are replaced as a whole, because all ranges are aligned. So only zeroes are divided.
            self.ranges.remove(&start);
            if start < from {
                self.ranges.insert(start, (from, content));
            }
            if end > to {
                self.ranges.insert(to, (end, content));
            }
        }
        self.ranges.insert(from, (to, content));
    }
}

impl<'a> Log<'a> {
    fn new(file: &'a ImageFile, at: u64, len: u64, id: [u8; 16]) -> Log<'a> {
        Log { file, at, len, id, effort: EFFORT * len, entries: HashMap::new() }
    }

    /// Subtracts `cost` from the remaining effort.
    fn charge(&mut self, cost: u64) -> Result<()> {
        match self.effort.checked_sub(cost) {
            Some(effort) => self.effort = effort,
            None => return self.file.damaged("the entries of its log overlap"),
        }
        Ok(())
    }

    /// Finds the active sequence (VHDX, 2.3.3); returns an empty sequence if none is valid.
    fn active_sequence(&mut self) -> Result<Vec<Entry>> {
        let mut active: Vec<Entry> = Vec::new();
        let mut tail = 0;
        loop {
            let sequence = self.sequence(tail)?;
            let Some(newest) = sequence.last() else {
                tail += SECTOR;
                if tail >= self.len {
                    return Ok(active);
                }
                continue;
            };
            let is_valid = sequence.iter().any(|entry| entry.at == newest.tail);
            // The entries after its first one, alone, are no valid sequence either: they have the same last
            // entry. So none is searched again, or the time would be quadratic in the length of the log.
            let next = newest.at + newest.len;
            if is_valid && active.last().is_none_or(|last| newest.sequence > last.sequence) {
                active = sequence;
            }
            // A sequence that passes the end of the ring contains all entries at its start.
            if next >= self.len || next <= tail {
                return Ok(active);
            }
            tail = next;
        }
    }

    /// The entries from `tail` on whose numbers are consecutive.
    fn sequence(&mut self, tail: u64) -> Result<Vec<Entry>> {
        let mut sequence: Vec<Entry> = Vec::new();
        let (mut at, mut len) = (tail, 0);
        while let Some(entry) = self.entry(at)? {
            let continues =
                sequence.last().is_none_or(|last| last.sequence.checked_add(1) == Some(entry.sequence));
            len += entry.len;
            if !continues || len > self.len {
                break;
            }
            at = (at + entry.len) % self.len;
            sequence.push(entry);
        }
        Ok(sequence)
    }

    /// Returns the entry at an offset of the log; `None` if the log has no valid entry there.
    fn entry(&mut self, at: u64) -> Result<Option<Entry>> {
        self.charge(ENTRY_HEADER as u64)?;
        if let Some(known) = self.entries.get(&at) {
            return Ok(*known);
        }
        let entry = self.read_entry(at)?;
        self.entries.insert(at, entry);
        Ok(entry)
    }

    fn read_entry(&mut self, at: u64) -> Result<Option<Entry>> {
        let header = self.file.read_array::<ENTRY_HEADER>(self.at + at)?;
        let (len, tail) = (u64::from(le32(&header, 8)), u64::from(le32(&header, 12)));
        let entry = Entry {
            at,
            len,
            sequence: le64(&header, 16),
            tail,
            flushed_len: le64(&header, 48),
            file_len: le64(&header, 56),
        };
        let count = le32(&header, 24) as usize;
        let in_range = len != 0 && len <= self.len && tail < self.len;
        let aligned = len.is_multiple_of(SECTOR) && tail.is_multiple_of(SECTOR);
        let known = header.starts_with(b"loge") && array::<16>(&header, 32) == self.id && entry.sequence != 0;
        if !known || !in_range || !aligned || descriptor_sectors(count) > len / SECTOR {
            return Ok(None);
        }
        self.charge(len)?;
        let bytes = self.read_ring(at, len)?;
        Ok((super::checksum_ok(&bytes) && descriptors_ok(&bytes, count, entry.sequence)).then_some(entry))
    }

    /// Reads whole sectors from the ring. The end of the ring is the end of a sector.
    fn read_ring(&self, at: u64, len: u64) -> Result<Vec<u8>> {
        let first = len.min(self.len - at);
        let mut bytes = self.file.read_vec(self.at + at, first)?;
        bytes.extend(self.file.read_vec(self.at, len - first)?);
        Ok(bytes)
    }

    /// Applies an entry, which [`descriptors_ok`] has checked.
    fn replay(&self, entry: &Entry, pages: &mut Pages) -> Result<()> {
        let bytes = self.read_ring(entry.at, entry.len)?;
        let count = le32(&bytes, 24) as usize;
        let mut sector = descriptor_sectors(count);
        for descriptor in bytes[ENTRY_HEADER..].chunks_exact(DESCRIPTOR).take(count) {
            let at = le64(descriptor, 16);
            if descriptor.starts_with(b"zero") {
                let end = at.saturating_add(le64(descriptor, 8));
                if end > at {
                    pages.put(at, end, Content::Zero);
                }
            } else {
                let logged = self.at + (entry.at + sector * SECTOR) % self.len;
                let content =
                    Content::Logged { at: logged, first: array(descriptor, 8), last: array(descriptor, 4) };
                pages.put(at, at.saturating_add(SECTOR), content);
                sector += 1;
            }
        }
        Ok(())
    }
}

/// Sectors that the header of an entry and its descriptors occupy.
fn descriptor_sectors(count: usize) -> u64 {
    (ENTRY_HEADER as u64 + (count * DESCRIPTOR) as u64).div_ceil(SECTOR)
}

/// Whether the descriptors and the data sectors of an entry are complete and have its number.
fn descriptors_ok(bytes: &[u8], count: usize, sequence: u64) -> bool {
    let mut sectors = bytes.chunks_exact(SECTOR as usize).skip(descriptor_sectors(count) as usize);
    bytes[ENTRY_HEADER..].chunks_exact(DESCRIPTOR).take(count).all(|descriptor| {
        let at = le64(descriptor, 16);
        let range_ok = at.is_multiple_of(SECTOR) && at < 1 << 62 && le64(descriptor, 24) == sequence;
        let content_ok = match &descriptor[..4] {
            b"zero" => le64(descriptor, 8).is_multiple_of(SECTOR) && le64(descriptor, 8) < 1 << 62,
            b"desc" => sectors.next().is_some_and(|sector| {
                let (high, low) = (le32(sector, 4), le32(sector, SECTOR as usize - 4));
                sector.starts_with(b"data") && u64::from(high) << 32 | u64::from(low) == sequence
            }),
            _ => false,
        };
        range_ok && content_ok
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// Returns the sequence numbers of the active sequence, and the effort of the search as a multiple of the
    /// log's length. `sectors` has the sequence number and the tail of the entry in each sector; 0 for no
    /// entry.
    fn search(sectors: &[(u64, u64)]) -> Result<(Vec<u64>, f64)> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let len = sectors.len() as u64 * SECTOR;
        file.as_file().set_len(len).unwrap();
        for (n, (sequence, tail)) in sectors.iter().enumerate().filter(|(_, (sequence, _))| *sequence != 0) {
            let mut entry = [0; SECTOR as usize];
            entry[..4].copy_from_slice(b"loge");
            entry[8..12].copy_from_slice(&(SECTOR as u32).to_le_bytes());
            entry[12..16].copy_from_slice(&((tail * SECTOR) as u32).to_le_bytes());
            entry[16..24].copy_from_slice(&sequence.to_le_bytes());
            entry[32] = 1;
            let sum = forebay_format::crc32c(&entry);
            entry[4..8].copy_from_slice(&sum.to_le_bytes());
            file.as_file().write_all_at(&entry, n as u64 * SECTOR).unwrap();
        }
        let file = ImageFile::open(file.path()).unwrap();
        let mut id = [0; 16];
        id[0] = 1;
        let mut log = Log::new(&file, 0, len, id);
        let active = log.active_sequence()?.iter().map(|entry| entry.sequence).collect();
        Ok((active, EFFORT as f64 - log.effort as f64 / len as f64))
    }

    fn active(sectors: &[(u64, u64)]) -> Vec<u64> {
        search(sectors).unwrap().0
    }

    #[test]
    fn the_active_sequence_is_the_valid_one_with_the_highest_numbers() {
        // The sequence begins at the end of the ring and ends at its start.
        assert_eq!(active(&[(5, 6), (6, 6), (0, 0), (1, 3), (0, 0), (0, 0), (3, 6), (4, 6)]), [3, 4, 5, 6]);
        // The newest entries lack the first one of their sequence.
        assert_eq!(active(&[(1, 0), (2, 0), (0, 0), (7, 2), (8, 2), (4, 5), (0, 0)]), [4]);
        assert_eq!(active(&[(7, 2), (8, 2), (0, 0)]), [0; 0]);
        // An invalid sequence passes the end of the ring.
        assert_eq!(active(&[(6, 3), (1, 1), (0, 0), (0, 0), (4, 3), (5, 3)]), [1]);
    }

    /// Without this, each entry of an invalid sequence begins another search: 134 million look-ups.
    #[test]
    fn a_long_invalid_sequence_is_searched_once() {
        let last = MAX_LOG / SECTOR - 1;
        let mut sectors: Vec<(u64, u64)> = (1..=last).map(|sequence| (sequence, last)).collect();
        sectors.push((0, 0));
        let (active, effort) = search(&sectors).unwrap();
        assert_eq!(active, [0; 0]);
        // The effort is one checksum for each sector, and a few look-ups.
        assert!(effort < 1.1, "{effort} lengths of the log");
    }

    #[test]
    fn later_ranges_replace_earlier_ones() {
        let mut pages = Pages::default();
        pages.put(0, 4 * SECTOR, Content::Zero);
        let logged = Content::Logged { at: 7, first: [1; 8], last: [2; 4] };
        pages.put(SECTOR, 2 * SECTOR, logged);
        let parts: Vec<_> = pages.ranges.iter().map(|(from, (to, _))| (from / SECTOR, to / SECTOR)).collect();
        assert_eq!(parts, [(0, 1), (1, 2), (2, 4)]);
        pages.put(SECTOR, 3 * SECTOR, Content::Zero);
        assert!(pages.ranges.values().all(|(_, content)| *content == Content::Zero));
        assert_eq!(pages.ranges.len(), 3);
    }
}
