//! Directories of segments in which duplicates were found, most recently used first.
//!
//! A directory is kept in *stretches* of up to two thousand blocks that were stored consecutively, each
//! sorted by fingerprint: a small budget is thus spent on the neighbours of found blocks, not on whole
//! segments. The stretch that follows a found block's is kept as well, since that is where a run of
//! duplicates continues.

use forebay_format::{Address, BlockRef, DirectoryEntry, Fingerprint, Form, SegmentId, Slot};

use super::bits::place_bits;
use super::filter::Filter;
use super::misses::indexed;

/// Number of stretches that a look-up searches: duplicates occur in runs, so the stretches of recent runs
/// suffice.
const SEARCHED: usize = 32;
/// Maximum number of blocks of a stretch: 8 MiB before compression. A stretch has fewer blocks if the budget
/// is small.
const STRETCH_MAX: usize = 2048;
const STRETCH_MIN: usize = 64;
/// Minimum number of stretches for which the budget should suffice.
const STRETCHES: usize = 8;

/// A block of a stretch, in 24 bytes.
struct Entry {
    fingerprint: Fingerprint,
    /// Slot of the block, with its form in the high byte.
    slot_form: u32,
    crc: u32,
}

struct Stretch {
    segment: SegmentId,
    /// First and last slot of the stretch.
    slots: (Slot, Slot),
    filter: Filter,
    entries: Box<[Entry]>,
}

impl Stretch {
    fn new(segment: SegmentId, blocks: &[&DirectoryEntry]) -> Option<Stretch> {
        let slots = (blocks.first()?.slot, blocks.last()?.slot);
        let entry = |e: &&DirectoryEntry| Entry {
            fingerprint: e.fingerprint,
            slot_form: e.slot.0 | (u32::from(e.form.0) << 24),
            crc: e.crc,
        };
        let mut entries: Box<[Entry]> = blocks.iter().map(entry).collect();
        entries.sort_unstable_by_key(|e| e.fingerprint);
        let filter = Filter::new(entries.iter().map(|e| &e.fingerprint));
        Some(Stretch { segment, slots, filter, entries })
    }

    fn has(&self, at: &BlockRef) -> bool {
        self.segment == at.addr.segment && (self.slots.0..=self.slots.1).contains(&at.addr.slot)
    }

    fn bytes(&self) -> u64 {
        size_of_val(&*self.entries) as u64 + self.filter.bytes() + size_of::<Stretch>() as u64
    }

    /// Fingerprints are uniformly distributed, so the position of a fingerprint in the list is close to its
    /// numeric share of all values.
    fn find(&self, fingerprint: &Fingerprint) -> Option<BlockRef> {
        if !self.filter.may_contain(fingerprint) {
            return None;
        }
        let share = (u128::from(order_bits(fingerprint)) * self.entries.len() as u128) >> 64;
        let guess = share as usize;
        let before = self.entries[..guess].iter().rev().take_while(|e| e.fingerprint >= *fingerprint);
        let after = self.entries[guess..].iter().take_while(|e| e.fingerprint <= *fingerprint);
        let Entry { slot_form, crc, .. } = *before.chain(after).find(|e| e.fingerprint == *fingerprint)?;
        let addr = Address { segment: self.segment, slot: Slot(slot_form & (Slot::LIMIT - 1)) };
        Some(BlockRef { addr, form: Form((slot_form >> 24) as u8), crc })
    }
}

/// The leading bits by which fingerprints are ordered.
fn order_bits(fingerprint: &Fingerprint) -> u64 {
    place_bits(fingerprint).swap_bytes()
}

/// The cache of directories; see the module documentation.
pub(super) struct Directories {
    /// The stretches, the most recently used first.
    list: Vec<Stretch>,
    /// Maximum number of blocks of a stretch.
    stretch: usize,
    budget: u64,
    bytes: u64,
}

impl Directories {
    /// An empty cache with a limit of `budget` bytes; at least one stretch is always kept.
    pub fn new(budget: u64) -> Directories {
        let stretch = budget as usize / size_of::<Entry>() / STRETCHES;
        Directories { list: Vec::new(), stretch: stretch.clamp(STRETCH_MIN, STRETCH_MAX), budget, bytes: 0 }
    }

    /// Whether the neighbours of a block are cached.
    pub fn has(&self, at: &BlockRef) -> bool {
        self.list.iter().any(|stretch| stretch.has(at))
    }

    pub fn find(&mut self, fingerprint: &Fingerprint) -> Option<BlockRef> {
        let searched = self.list.iter().take(SEARCHED).enumerate();
        let (i, found) = searched.into_iter().find_map(|(i, d)| Some((i, d.find(fingerprint)?)))?;
        self.list[..=i].rotate_right(1);
        Some(found)
    }

    /// Keeps the stretches of a directory that contain one of `hits`, and the stretches after them. If there
    /// are too many, the stretches of the last hits are kept. The directory is sorted by slot.
    pub fn keep(&mut self, segment: SegmentId, directory: &[DirectoryEntry], hits: &[BlockRef]) {
        let blocks: Vec<_> = directory.iter().filter(|e| indexed(e)).collect();
        let most = (self.budget as usize / (self.stretch * size_of::<Entry>())).max(1);
        let mut wanted: Vec<usize> = Vec::new();
        for at in hits.iter().rev() {
            let hit = blocks.partition_point(|e| e.slot < at.addr.slot) / self.stretch;
            if wanted.len() < most && !wanted.contains(&hit) {
                wanted.extend([hit, hit + 1]);
            }
        }
        for n in wanted.into_iter().rev() {
            let stretch = blocks.chunks(self.stretch).nth(n).and_then(|blocks| Stretch::new(segment, blocks));
            let Some(stretch) = stretch else { continue };
            self.list.retain(|old| (old.segment, old.slots) != (segment, stretch.slots));
            self.list.insert(0, stretch);
        }
        self.bytes = self.list.iter().map(Stretch::bytes).sum();
        while self.bytes > self.budget && self.list.len() > 1 {
            self.bytes -= self.list.pop().map_or(0, |d| d.bytes());
        }
    }

    pub fn forget(&mut self, segment: SegmentId) {
        self.list.retain(|stretch| stretch.segment != segment);
        self.bytes = self.list.iter().map(Stretch::bytes).sum();
    }

    /// The segments whose directories are cached, most recently used first.
    pub fn segments(&self) -> Vec<SegmentId> {
        let mut segments = Vec::new();
        for stretch in &self.list {
            if !segments.contains(&stretch.segment) {
                segments.push(stretch.segment);
            }
        }
        segments
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
