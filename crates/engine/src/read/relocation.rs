//! Locations of stored blocks, and the segments that were moved.
//!
//! A slot is stored where it was written, at the offset that its number states, until its segment is moved.
//! From then on a relocation map states the location of each slot. The list of moved segments is in memory;
//! their relocation maps are read on demand and cached within a budget.
//!
//! **Release of old locations.** The list of moved segments is an immutable [`View`], which is replaced as a
//! whole when another segment is moved. A reader takes the current view, determines the location in it, and
//! holds the view until it has read the bytes. An object from which a segment was moved away is deleted only
//! when no view older than the move is held ([`Relocation::is_settled`]); so a reader that has determined a
//! location also finds the bytes there.
//!
//! **Unlisted slots.** A slot that a relocation map does not list was not live when its segment was moved. A
//! reader can request one only if it took the reference from a block map before the block was overwritten. It
//! gets the same error as for a freed segment, that the object does not exist, and looks the block up again.
//! If the map still has the same reference, it is damage.

use std::sync::{Arc, Weak};

use forebay_format::{BlockRef, Form, RelocationMap, SegmentId, SegmentRecord, Slot};
use hashbrown::HashMap;
use lru::LruCache;

use crate::cache::MissTable;
use crate::hash::BuildU64Hasher;
use crate::sync::{Mutex, RwLock};

/// The bytes of an object that hold a stored block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    /// The object.
    pub object: SegmentId,
    /// Byte offset of the stored block, or of its group.
    pub offset: u64,
    /// Length in bytes of the stored block, or of its group.
    pub len: usize,
    /// Its stored form.
    pub form: Form,
}

impl Location {
    /// Whether the bytes of `next` directly follow these or are the same, so that one read serves both.
    pub fn is_followed_by(&self, next: &Location) -> bool {
        let follows = next.offset == self.offset + self.len as u64;
        let same_group = (next.offset, next.len) == (self.offset, self.len);
        next.object == self.object && (follows || same_group)
    }

    /// The location of a slot whose segment was never moved.
    pub(super) fn unmoved(at: &BlockRef) -> Location {
        Location {
            object: at.addr.segment,
            offset: at.addr.slot.offset(),
            len: at.form.stored_len(),
            form: at.form,
        }
    }
}

/// Location of the relocation map of a moved segment; its container also holds the segment's slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RelocationRef {
    pub container: SegmentId,
    pub offset: u32,
    pub len: u32,
}

impl RelocationRef {
    /// The reference in a segment record; `None` if the segment was not moved.
    pub fn of(record: &SegmentRecord) -> Option<RelocationRef> {
        let (offset, len) = record.map?;
        Some(RelocationRef { container: SegmentId(record.container), offset, len })
    }
}

type Moved = HashMap<SegmentId, RelocationRef, BuildU64Hasher>;

/// The moved segments at one moment. A reader of a location holds the view in which it was determined.
#[derive(Clone)]
pub(crate) struct View(Arc<Moved>);

impl View {
    /// The relocation map of a segment; `None` if it was not moved.
    pub(super) fn of(&self, segment: SegmentId) -> Option<&RelocationRef> {
        self.0.get(&segment)
    }
}

/// A slot of a moved segment.
#[derive(Debug, Clone, Copy)]
struct IndexEntry {
    slot: Slot,
    place: Slot,
    units: u32,
    form: Form,
    place_form: Form,
}

/// The part of a relocation map that readers need.
#[derive(Debug)]
pub(crate) struct RelocationIndex {
    pub(super) container: SegmentId,
    entries: Vec<IndexEntry>,
}

impl RelocationIndex {
    pub(super) fn new(map: &RelocationMap) -> RelocationIndex {
        let entry = |e: &forebay_format::Relocation| IndexEntry {
            slot: e.slot,
            place: e.place,
            units: e.units,
            form: e.form,
            place_form: e.place_form,
        };
        RelocationIndex { container: map.container, entries: map.entries.iter().map(entry).collect() }
    }

    fn bytes(&self) -> usize {
        size_of::<RelocationIndex>() + self.entries.len() * size_of::<IndexEntry>()
    }

    pub(super) fn find(&self, at: &BlockRef) -> Option<Location> {
        let found = self.entries.binary_search_by_key(&at.addr.slot, |e| e.slot).ok()?;
        let entry = self.entries.get(found).filter(|e| e.form == at.form)?;
        Some(Location {
            object: self.container,
            offset: entry.place.offset(),
            len: entry.units as usize * Slot::UNIT,
            form: entry.place_form,
        })
    }
}

/// Relocation maps in memory; the least recently used is evicted first.
struct MapCache {
    maps: LruCache<SegmentId, Arc<RelocationIndex>, BuildU64Hasher>,
    bytes: usize,
}

impl Default for MapCache {
    fn default() -> MapCache {
        MapCache { maps: LruCache::unbounded_with_hasher(BuildU64Hasher::default()), bytes: 0 }
    }
}

impl MapCache {
    fn get(&mut self, segment: SegmentId, container: SegmentId) -> Option<Arc<RelocationIndex>> {
        self.maps.get(&segment).filter(|index| index.container == container).cloned()
    }

    fn insert(&mut self, segment: SegmentId, index: Arc<RelocationIndex>, budget: usize) {
        self.bytes += index.bytes();
        self.remove(segment);
        self.maps.put(segment, index);
        while self.bytes > budget && self.maps.len() > 1 {
            let evicted = self.maps.pop_lru();
            self.bytes -= evicted.map_or(0, |(_, index)| index.bytes());
        }
    }

    fn remove(&mut self, segment: SegmentId) {
        if let Some(index) = self.maps.pop(&segment) {
            self.bytes -= index.bytes();
        }
    }
}

/// The moved segments, and the locations of their slots.
pub(crate) struct Relocation {
    moved: RwLock<Arc<Moved>>,
    /// Replaced views that may still be held.
    older: Mutex<Vec<Weak<Moved>>>,
    maps: Mutex<MapCache>,
    pub(super) misses: MissTable<Arc<RelocationIndex>>,
    budget: usize,
}

impl Relocation {
    /// No segment was moved. Cached relocation maps use at most `budget` bytes, but one is always kept.
    pub fn new(budget: u64) -> Relocation {
        Relocation {
            moved: RwLock::default(),
            older: Mutex::default(),
            maps: Mutex::default(),
            misses: MissTable::default(),
            budget: usize::try_from(budget).unwrap_or(usize::MAX),
        }
    }

    /// The current view.
    pub fn view(&self) -> View {
        View(self.moved.read().clone())
    }

    /// Adds the moved segments among `records`, or changes their locations.
    pub fn set<'a>(&self, records: impl IntoIterator<Item = &'a SegmentRecord>) {
        self.replace(|moved| {
            moved.extend(records.into_iter().filter_map(|r| Some((r.segment, RelocationRef::of(r)?))));
        });
    }

    /// Removes a segment that was freed.
    pub fn forget(&self, segment: SegmentId) {
        if self.moved.read().contains_key(&segment) {
            self.replace(|moved| {
                moved.remove(&segment);
            });
        }
        self.maps.lock().remove(segment);
    }

    fn replace(&self, change: impl FnOnce(&mut Moved)) {
        let mut moved = self.moved.write();
        let mut next = Moved::clone(&moved);
        change(&mut next);
        self.older.lock().push(Arc::downgrade(&moved));
        *moved = Arc::new(next);
    }

    /// The index of a moved segment, if it is in memory and refers to this container.
    pub(super) fn index(&self, segment: SegmentId, container: SegmentId) -> Option<Arc<RelocationIndex>> {
        self.maps.lock().get(segment, container)
    }

    /// Caches the index of a moved segment, within the budget.
    pub(super) fn keep(&self, segment: SegmentId, index: Arc<RelocationIndex>) {
        self.maps.lock().insert(segment, index, self.budget);
    }

    /// Whether no reader holds a view older than the current one.
    pub fn is_settled(&self) -> bool {
        let mut older = self.older.lock();
        older.retain(|view| view.strong_count() > 0);
        older.is_empty()
    }
}
