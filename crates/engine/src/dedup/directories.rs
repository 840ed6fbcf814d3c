//! Directories of segments in which duplicates were found, most recently used first.
//!
//! A directory is kept in *stretches* of some thousand blocks that were stored consecutively, each sorted by
//! fingerprint: a small budget is thus spent on the neighbours of found blocks, not on whole segments.

use forebay_format::{Address, BlockRef, DirectoryEntry, Fingerprint, Form, SegmentId, Slot, SlotKind};

/// Stretches that a look-up searches: duplicates occur in runs, so the stretches of recent runs suffice.
const SEARCHED: usize = 32;
/// Blocks of a stretch: 8 MiB before compression.
const STRETCH: usize = 2048;

/// A block in 24 bytes.
struct Entry {
    fingerprint: Fingerprint,
    /// Slot, and the form in the high byte.
    slot_form: u32,
    crc: u32,
}

struct Stretch {
    segment: SegmentId,
    /// Its first and last slot.
    slots: (Slot, Slot),
    entries: Box<[Entry]>,
}

impl Stretch {
    fn new(segment: SegmentId, blocks: &[&DirectoryEntry]) -> Option<Stretch> {
        let slots = (blocks.first()?.slot, blocks.last()?.slot);
        let entry = |e: &&DirectoryEntry| Entry {
            fingerprint: e.fingerprint,
            slot_form: e.slot.0 | u32::from(e.form.0) << 24,
            crc: e.crc,
        };
        let mut entries: Box<[Entry]> = blocks.iter().map(entry).collect();
        entries.sort_unstable_by_key(|e| e.fingerprint);
        Some(Stretch { segment, slots, entries })
    }

    fn has(&self, at: &BlockRef) -> bool {
        self.segment == at.addr.segment && (self.slots.0..=self.slots.1).contains(&at.addr.slot)
    }

    fn bytes(&self) -> u64 {
        size_of_val(&*self.entries) as u64 + size_of::<Stretch>() as u64
    }

    fn find(&self, fingerprint: &Fingerprint) -> Option<BlockRef> {
        let i = self.entries.binary_search_by_key(fingerprint, |e| e.fingerprint).ok()?;
        let Entry { slot_form, crc, .. } = self.entries[i];
        let addr = Address { segment: self.segment, slot: Slot(slot_form & (Slot::LIMIT - 1)) };
        Some(BlockRef { addr, form: Form((slot_form >> 24) as u8), crc })
    }
}

/// The cache of directories; see the module documentation.
pub(super) struct Directories {
    /// Most recently used first.
    list: Vec<Stretch>,
    budget: u64,
    bytes: u64,
}

impl Directories {
    /// Empty, with a limit of `budget` bytes; one stretch is always kept.
    pub fn new(budget: u64) -> Directories {
        Directories { list: Vec::new(), budget, bytes: 0 }
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

    /// Searches a whole directory, which is sorted by slot, for fingerprints, and keeps those of its
    /// stretches that contain one of `hits`. `misses` are the fingerprints to search for, each with the
    /// location for the result.
    pub fn search<'a>(
        &mut self,
        segment: SegmentId,
        directory: &[DirectoryEntry],
        hits: &[BlockRef],
        misses: impl Iterator<Item = (&'a Fingerprint, &'a mut Option<BlockRef>)>,
    ) {
        let is_block =
            |e: &&DirectoryEntry| e.kind == SlotKind::Block && e.fingerprint != Fingerprint::default();
        let blocks: Vec<_> = directory.iter().filter(is_block).collect();
        if let Some(whole) = Stretch::new(segment, &blocks) {
            misses.for_each(|(fingerprint, found)| *found = whole.find(fingerprint));
        }
        let stretches = blocks.chunks(STRETCH).filter_map(|blocks| Stretch::new(segment, blocks));
        for stretch in stretches.filter(|new| hits.iter().any(|at| new.has(at))) {
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
