//! Locations of stored blocks, and the segments that were moved.
//!
//! A slot is stored where it was written, at the offset that its number states, until its segment is moved.
//! From then on a relocation map states the location of each slot. The list of moved segments is in memory;
//! their relocation maps are read on demand and cached within a budget.
//!
//! **Release of old locations.** Time is divided into *epochs*. A reader takes a [`Token`] of the current
//! epoch before it looks a location up, and holds it until it has read the bytes. A move changes the list
//! first, and begins a new epoch afterwards. An object from which a segment was moved away is deleted only
//! when no token of an earlier epoch is held ([`Relocation::is_settled`]). So a reader that has looked a
//! location up also finds the bytes at this location. If the look-up preceded the change of the list, the
//! token was taken before the change, so its epoch is earlier than the epoch that began after the change.
//! Otherwise the look-up returned the new location.
//!
//! A new epoch is not needed if no token of the current epoch is held: a reader that takes a token from now
//! on looks locations up after the change.
//!
//! **Unlisted slots.** A slot that a relocation map does not list was not live when its segment was moved. A
//! reader can request such a slot only if it took the reference from a block map before the block was
//! overwritten. The reader gets the same error as for a freed segment, that the object does not exist, and
//! looks the block up again. If the map still has the same reference, this is damage.

use std::sync::{Arc, Weak};

use forebay_format::{BlockRef, Form, RelocationMap, SegmentId, SegmentRecord, Slot};
use hashbrown::HashMap;
use lru::LruCache;

use crate::cache::MissTable;
use crate::hash::BuildU64Hasher;
use crate::limits::NODE_GAP;
use crate::sync::{Mutex, RwLock};

/// The bytes of an object that hold a stored block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    /// The object that contains the bytes of the slot.
    pub object: SegmentId,
    /// Byte offset of the stored block, or of its group.
    pub offset: u64,
    /// Length in bytes of the stored block, or of its group.
    pub len: usize,
    /// Form in which the block is stored.
    pub form: Form,
}

impl Location {
    /// Whether the bytes of `next` directly follow the bytes of this location or are the same, so that one
    /// read serves both.
    pub fn is_followed_by(&self, next: &Location) -> bool {
        let follows = next.offset == self.offset + self.len as u64;
        let same_group = (next.offset, next.len) == (self.offset, self.len);
        next.object == self.object && (follows || same_group)
    }

    /// Whether a node at `next`, which is behind this location, is near enough to be read together with it.
    pub fn is_near(&self, next: &Location) -> bool {
        next.object == self.object && next.offset <= self.offset + self.len as u64 + NODE_GAP
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
    /// The relocation map to which a segment record refers; `None` if the segment was not moved.
    pub fn of(record: &SegmentRecord) -> Option<RelocationRef> {
        let (offset, len) = record.map?;
        Some(RelocationRef { container: SegmentId(record.container), offset, len })
    }
}

type Moved = HashMap<SegmentId, RelocationRef, BuildU64Hasher>;

/// A token that a reader holds from before it looks a location up until it has read the bytes; see the module
/// documentation.
#[must_use]
pub(crate) struct Token(#[expect(dead_code, reason = "its references are counted")] Arc<Epoch>);

/// An epoch. It exists as long as it is the current epoch or a reader holds its token.
#[derive(Debug, Default)]
struct Epoch;

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

/// Relocation maps in memory. The least recently used map is evicted first.
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

/// Number of parts of the list of moved segments, each with a lock.
const SHARDS: usize = 16;

/// The moved segments, and the locations of their slots.
pub(crate) struct Relocation {
    moved: [RwLock<Moved>; SHARDS],
    epoch: RwLock<Arc<Epoch>>,
    /// Earlier epochs whose tokens may still be held.
    earlier: Mutex<Vec<Weak<Epoch>>>,
    maps: Mutex<MapCache>,
    pub(super) misses: MissTable<Arc<RelocationIndex>>,
    budget: usize,
}

impl Relocation {
    /// Returns the state in which no segment was moved yet. Cached relocation maps use at most `budget`
    /// bytes, but at least one map is always kept.
    pub fn new(budget: u64) -> Relocation {
        Relocation {
            moved: Default::default(),
            epoch: RwLock::default(),
            earlier: Mutex::default(),
            maps: Mutex::default(),
            misses: MissTable::default(),
            budget: usize::try_from(budget).unwrap_or(usize::MAX),
        }
    }

    /// Returns a token of the current epoch.
    pub fn enter(&self) -> Token {
        Token(self.epoch.read().clone())
    }

    /// Returns where the relocation map of a segment is; `None` if the segment was not moved. The caller
    /// holds the token until it has read the bytes of the slots that it looked up: the object with these
    /// bytes is not deleted before.
    pub(super) fn find(&self, _: &Token, segment: SegmentId) -> Option<RelocationRef> {
        self.shard(segment).read().get(&segment).copied()
    }

    fn shard(&self, segment: SegmentId) -> &RwLock<Moved> {
        &self.moved[segment.0 as usize % SHARDS]
    }

    /// Adds the moved segments among `records`, or changes their locations.
    pub fn set<'a>(&self, records: impl IntoIterator<Item = &'a SegmentRecord>) {
        for record in records {
            if let Some(location) = RelocationRef::of(record) {
                self.shard(record.segment).write().insert(record.segment, location);
            }
        }
        self.begin_epoch();
    }

    /// Removes a segment that was freed.
    pub fn forget(&self, segment: SegmentId) {
        let was_moved = self.shard(segment).write().remove(&segment).is_some();
        if was_moved {
            self.begin_epoch();
            self.maps.lock().remove(segment);
        }
    }

    /// Begins an epoch. Called after a location has changed.
    fn begin_epoch(&self) {
        let mut current = self.epoch.write();
        if Arc::get_mut(&mut current).is_none() {
            let ended = std::mem::take(&mut *current);
            let mut earlier = self.earlier.lock();
            earlier.retain(|epoch| epoch.strong_count() > 0);
            earlier.push(Arc::downgrade(&ended));
        }
    }

    /// The index of a moved segment, if it is in memory and refers to this container.
    pub(super) fn index(&self, segment: SegmentId, container: SegmentId) -> Option<Arc<RelocationIndex>> {
        self.maps.lock().get(segment, container)
    }

    /// Caches the index of a moved segment, within the budget.
    pub(super) fn keep(&self, segment: SegmentId, index: Arc<RelocationIndex>) {
        self.maps.lock().insert(segment, index, self.budget);
    }

    /// Whether no reader holds a token of an earlier epoch.
    pub fn is_settled(&self) -> bool {
        let mut earlier = self.earlier.lock();
        earlier.retain(|epoch| epoch.strong_count() > 0);
        earlier.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use forebay_format::{SegmentState, Stream};

    use super::*;

    fn moved(segment: u32, container: u32) -> SegmentRecord {
        SegmentRecord {
            segment: SegmentId(segment),
            stream: Stream::Data,
            state: SegmentState::Sealed,
            footer: true,
            container,
            written: 8192,
            first_seq: 1,
            last_seq: 1,
            map: Some((4096, 72)),
        }
    }

    fn container(relocation: &Relocation, segment: u32) -> Option<u32> {
        let token = relocation.enter();
        relocation.find(&token, SegmentId(segment)).map(|found| found.container.0)
    }

    #[test]
    fn a_token_of_before_a_move_delays_deletions() {
        let relocation = Relocation::new(0);
        relocation.set(&[moved(1, 7)]);
        assert!(relocation.is_settled());
        let before = relocation.enter();
        relocation.set(&[moved(1, 8)]);
        assert!(!relocation.is_settled());
        // Later readers and later moves do not change the result.
        let after = relocation.enter();
        relocation.set(&[moved(2, 8)]);
        drop(after);
        assert!(!relocation.is_settled());
        drop(before);
        assert!(relocation.is_settled());
        assert_eq!((container(&relocation, 1), container(&relocation, 2)), (Some(8), Some(8)));
    }

    #[test]
    fn a_token_of_before_a_segment_is_freed_delays_deletions() {
        let relocation = Relocation::new(0);
        relocation.set(&[moved(1, 7)]);
        let before = relocation.enter();
        relocation.forget(SegmentId(1));
        assert!(!relocation.is_settled());
        drop(before);
        assert!(relocation.is_settled());
        assert_eq!(container(&relocation, 1), None);
    }

    #[test]
    fn readers_that_come_after_a_move_delay_nothing() {
        let relocation = Relocation::new(0);
        relocation.set(&[moved(1, 7)]);
        let after = relocation.enter();
        assert!(relocation.is_settled());
        drop(after);
    }
}
