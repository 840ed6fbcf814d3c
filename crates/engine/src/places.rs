//! Where stored blocks rest: from an address to bytes of an object.
//!
//! A slot rests where it was written, at the offset that is its number, until its segment is moved. From then
//! on a relocation map says where, slot by slot. Which segments were moved is in memory, their maps are read
//! when they are needed and kept within a budget.
//!
//! **Old places are let go like this.** Which segments were moved is an immutable [`View`], replaced as a
//! whole when one more was. A reader takes the view, finds its place in it, and keeps it until it has read.
//! An object from which a segment was moved away is deleted only when no view is left that is older than the
//! move ([`Places::is_settled`]); so a reader that found a place also finds the bytes there.
//!
//! A slot that a relocation map does not list was not live when its segment was moved. A reader can meet one
//! only if it took the reference from a block map before that block was overwritten; it is told that the
//! object does not exist, as where the segment was freed, and looks again. If the map still says the same, it
//! is damage.

use std::sync::{Arc, Weak};

use forebay_format::{Address, BlockRef, Form, RelocationMap, SegmentId, SegmentRecord, Slot};
use forebay_store::StoreError;
use hashbrown::HashMap;

use crate::cache::{MissTable, Turn};
use crate::fetch::damage;
use crate::hash::BuildU64Hasher;
use crate::pool::Pool;
use crate::sync::{Mutex, RwLock};
use crate::{Error, Result};

/// Bytes of an object in which a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Located {
    /// The object.
    pub object: SegmentId,
    /// Byte offset of the block as it is stored, or of its group.
    pub offset: u64,
    /// Bytes of the block as it is stored, or of its group.
    pub len: usize,
    /// How it is stored.
    pub form: Form,
}

impl Located {
    /// Whether the bytes of `next` follow these, or are these: then one read serves both.
    pub fn leads_to(&self, next: &Located) -> bool {
        let follows = next.offset == self.offset + self.len as u64;
        let same_group = (next.offset, next.len) == (self.offset, self.len);
        next.object == self.object && (follows || same_group)
    }

    /// The place of what was never moved.
    fn unmoved(at: &BlockRef) -> Located {
        Located {
            object: at.addr.segment,
            offset: at.addr.slot.offset(),
            len: at.form.stored_len(),
            form: at.form,
        }
    }
}

/// Where the relocation map of a moved segment is, and with it the segment's slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rest {
    pub container: SegmentId,
    offset: u32,
    len: u32,
}

impl Rest {
    /// What a record says; `None` of a segment that was not moved.
    pub fn of(record: &SegmentRecord) -> Option<Rest> {
        let (offset, len) = record.map?;
        Some(Rest { container: SegmentId(record.container), offset, len })
    }
}

type Moved = HashMap<SegmentId, Rest, BuildU64Hasher>;

/// The moved segments as of one moment. Whoever reads from a place holds the view in which it was found.
#[derive(Clone)]
pub(crate) struct View(Arc<Moved>);

/// A slot of a moved segment.
#[derive(Debug, Clone, Copy)]
struct Place {
    slot: Slot,
    place: Slot,
    units: u32,
    form: Form,
    place_form: Form,
}

/// A relocation map as readers need it.
#[derive(Debug)]
pub(crate) struct Slots {
    container: SegmentId,
    places: Vec<Place>,
}

impl Slots {
    fn new(map: &RelocationMap) -> Slots {
        let place = |e: &forebay_format::Relocation| Place {
            slot: e.slot,
            place: e.place,
            units: e.units,
            form: e.form,
            place_form: e.place_form,
        };
        Slots { container: map.container, places: map.entries.iter().map(place).collect() }
    }

    fn bytes(&self) -> usize {
        size_of::<Slots>() + self.places.len() * size_of::<Place>()
    }

    fn find(&self, at: &BlockRef) -> Option<Located> {
        let found = self.places.binary_search_by_key(&at.addr.slot, |p| p.slot).ok()?;
        let place = self.places.get(found).filter(|p| p.form == at.form)?;
        Some(Located {
            object: self.container,
            offset: place.place.offset(),
            len: place.units as usize * Slot::UNIT,
            form: place.place_form,
        })
    }
}

/// Relocation maps in memory; those not used for longest go first.
#[derive(Default)]
struct MapCache {
    maps: HashMap<SegmentId, (Arc<Slots>, u64), BuildU64Hasher>,
    bytes: usize,
    clock: u64,
}

impl MapCache {
    fn get(&mut self, segment: SegmentId, container: SegmentId) -> Option<Arc<Slots>> {
        self.clock += 1;
        let (slots, used) = self.maps.get_mut(&segment).filter(|(s, _)| s.container == container)?;
        *used = self.clock;
        Some(slots.clone())
    }

    fn insert(&mut self, segment: SegmentId, slots: Arc<Slots>, budget: usize) {
        self.clock += 1;
        self.bytes += slots.bytes();
        self.remove(segment);
        self.maps.insert(segment, (slots, self.clock));
        while self.bytes > budget && self.maps.len() > 1 {
            let oldest = self.maps.iter().min_by_key(|(_, (_, used))| *used).map(|(s, _)| *s);
            oldest.into_iter().for_each(|s| self.remove(s));
        }
    }

    fn remove(&mut self, segment: SegmentId) {
        if let Some((slots, _)) = self.maps.remove(&segment) {
            self.bytes -= slots.bytes();
        }
    }
}

/// Which segments were moved, and where their slots are.
pub(crate) struct Places {
    moved: RwLock<Arc<Moved>>,
    /// Views that were replaced.
    older: Mutex<Vec<Weak<Moved>>>,
    maps: Mutex<MapCache>,
    misses: MissTable<Arc<Slots>>,
    budget: usize,
}

impl Places {
    /// No segment was moved. Relocation maps take so many bytes at most, or as many as one takes.
    pub fn new(budget: u64) -> Places {
        Places {
            moved: RwLock::default(),
            older: Mutex::default(),
            maps: Mutex::default(),
            misses: MissTable::default(),
            budget: usize::try_from(budget).unwrap_or(usize::MAX),
        }
    }

    /// The moved segments, as of now.
    pub fn view(&self) -> View {
        View(self.moved.read().clone())
    }

    /// From here on segments are where these records say.
    pub fn set<'a>(&self, records: impl IntoIterator<Item = &'a SegmentRecord>) {
        self.replace(|moved| {
            moved.extend(records.into_iter().filter_map(|r| Some((r.segment, Rest::of(r)?))));
        });
    }

    /// A segment is gone.
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

    /// Whether nobody holds a view that is older than the newest one.
    pub fn is_settled(&self) -> bool {
        let mut older = self.older.lock();
        older.retain(|view| view.strong_count() > 0);
        older.is_empty()
    }
}

impl Pool {
    /// Where a block or node rests, if that is known without waiting.
    pub(crate) fn try_locate(&self, view: &View, at: &BlockRef) -> Option<Located> {
        let segment = at.addr.segment;
        match view.0.get(&segment) {
            None => Some(Located::unmoved(at)),
            Some(rest) => self.places.maps.lock().get(segment, rest.container)?.find(at),
        }
    }

    /// Where a block or node rests.
    ///
    /// # Errors
    /// Those of the store; [`Error::Damaged`] where the relocation map is; [`StoreError::NotFound`] where it
    /// does not list the slot.
    pub(crate) async fn locate(&self, view: &View, at: &BlockRef) -> Result<Located> {
        let segment = at.addr.segment;
        let Some(rest) = view.0.get(&segment) else { return Ok(Located::unmoved(at)) };
        let slots = self.slots(segment, rest).await?;
        slots.find(at).ok_or(Error::Store(StoreError::NotFound(segment)))
    }

    /// The slots of a moved segment: one read, however many wait for it.
    async fn slots(&self, segment: SegmentId, rest: &Rest) -> Result<Arc<Slots>> {
        loop {
            let known = self.places.maps.lock().get(segment, rest.container);
            if let Some(slots) = known {
                return Ok(slots);
            }
            match self.places.misses.enter(Address { segment, slot: Slot(0) }) {
                Turn::Leader(leader) => {
                    let slots = Arc::new(Slots::new(&self.read_relocation_map(segment, rest).await?));
                    self.places.maps.lock().insert(segment, slots.clone(), self.places.budget);
                    leader.complete(slots.clone());
                    return Ok(slots);
                }
                // The leader may have had a view in which the segment was elsewhere.
                Turn::Follower(follower) => {
                    if let Some(slots) = follower.await
                        && slots.container == rest.container
                    {
                        return Ok(slots);
                    }
                }
            }
        }
    }

    /// Reads and verifies a relocation map.
    pub(crate) async fn read_relocation_map(&self, segment: SegmentId, rest: &Rest) -> Result<RelocationMap> {
        let (container, offset) = (rest.container, u64::from(rest.offset));
        let bytes = self.read_exact(container, offset, rest.len as usize).await?;
        RelocationMap::decode(&bytes, segment, container).map_err(|e| {
            self.count_damage(container, offset);
            tracing::error!(%segment, "its relocation map is damaged: {e}");
            damage(container, offset)
        })
    }

    /// What an error means to somebody who knows that what was looked for is referred to: what cannot be
    /// found is damage.
    pub(crate) fn lost(&self, e: Error) -> Error {
        match e {
            Error::Store(StoreError::NotFound(segment)) => {
                self.count_damage(segment, 0);
                Error::Damaged(format!("segment {segment}"))
            }
            other => other,
        }
    }
}
