//! Directories of segments in which duplicates were found, sorted by fingerprint, the last used first.

use forebay_format::{Address, BlockRef, DirectoryEntry, Fingerprint, Form, SegmentId, Slot, SlotKind};

/// Directories that a look-up goes through: duplicates come in runs, so those of the last runs are enough.
const SEARCHED: usize = 8;

/// A block in 24 bytes.
struct Entry {
    fingerprint: Fingerprint,
    /// Slot, and in the high byte the form.
    slot_form: u32,
    crc: u32,
}

struct Directory {
    segment: SegmentId,
    entries: Box<[Entry]>,
}

impl Directory {
    fn bytes(&self) -> u64 {
        size_of_val(&*self.entries) as u64 + size_of::<Directory>() as u64
    }

    fn find(&self, fingerprint: &Fingerprint) -> Option<BlockRef> {
        let i = self.entries.binary_search_by_key(fingerprint, |e| e.fingerprint).ok()?;
        let Entry { slot_form, crc, .. } = self.entries[i];
        let addr = Address { segment: self.segment, slot: Slot(slot_form & (Slot::LIMIT - 1)) };
        Some(BlockRef { addr, form: Form((slot_form >> 24) as u8), crc })
    }
}

/// See the module.
pub(super) struct Directories {
    /// The last used first.
    list: Vec<Directory>,
    budget: u64,
    bytes: u64,
}

impl Directories {
    /// None yet, and at most `budget` bytes; but one is always kept.
    pub fn new(budget: u64) -> Directories {
        Directories { list: Vec::new(), budget, bytes: 0 }
    }

    pub fn has(&self, segment: SegmentId) -> bool {
        self.list.iter().any(|d| d.segment == segment)
    }

    pub fn find(&mut self, fingerprint: &Fingerprint) -> Option<BlockRef> {
        let searched = self.list.iter().take(SEARCHED).enumerate();
        let (i, found) = searched.into_iter().find_map(|(i, d)| Some((i, d.find(fingerprint)?)))?;
        self.list[..=i].rotate_right(1);
        Some(found)
    }

    pub fn add(&mut self, segment: SegmentId, entries: &[DirectoryEntry]) {
        self.forget(segment);
        let blocks =
            entries.iter().filter(|e| e.kind == SlotKind::Block && e.fingerprint != Fingerprint::default());
        let mut entries: Vec<_> = blocks
            .map(|e| Entry {
                fingerprint: e.fingerprint,
                slot_form: e.slot.0 | u32::from(e.form.0) << 24,
                crc: e.crc,
            })
            .collect();
        entries.sort_unstable_by_key(|e| e.fingerprint);
        let directory = Directory { segment, entries: entries.into() };
        self.bytes += directory.bytes();
        self.list.insert(0, directory);
        while self.bytes > self.budget && self.list.len() > 1 {
            self.bytes -= self.list.pop().map_or(0, |d| d.bytes());
        }
    }

    pub fn forget(&mut self, segment: SegmentId) {
        if let Some(i) = self.list.iter().position(|d| d.segment == segment) {
            self.bytes -= self.list.remove(i).bytes();
        }
    }

    /// Whose directories there are, the last used first.
    pub fn segments(&self) -> impl Iterator<Item = SegmentId> {
        self.list.iter().map(|d| d.segment)
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
