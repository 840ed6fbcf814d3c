//! Selects the objects that are worth cleaning.
//!
//! Every object is judged by its *gain*: the bytes that would be freed if its live slots were packed into
//! another object. The headers of a packed object and a relocation map would be written again, so they do not
//! count as garbage. An object that was just written is therefore never cleaned again at once.
//!
//! Objects with an image's blocks are moved once, however full they are: many clones will read these blocks,
//! and the blocks take less room in groups ([`crate::stored`]). Blocks that could not be compressed before
//! are not compressed again.
//!
//! Of the other objects, only the sparsest are cleaned while there is room. When room is short, the order is
//! by benefit over cost: gain, times age, divided by the bytes to be read and written. The age counts because
//! an object that has not changed for long is unlikely to become sparser, while a young object may. A reclaim
//! that was requested cleans all objects with a sufficient gain, in the order of their relative gain.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use forebay_format::{BLOCK, Codec, RelocationMap, SegmentId, Slot};

use super::counts::Live;
use crate::limits::{GAIN_ASKED, GAIN_LEAST, GAIN_WITH_ROOM, LEFT_BEHIND, PACK_BELOW};
use crate::yield_counter::YieldCounter;

/// The objects of the store, by ascending number.
#[derive(Debug, Default)]
pub(crate) struct Objects(Vec<Object>);

impl Objects {
    /// Adds an object, whose number must not be lower than all numbers before. Some file systems list a file
    /// twice while other files are created.
    pub fn push(&mut self, object: Object) {
        match self.0.last_mut() {
            Some(last) if last.id == object.id => *last = object,
            last => {
                debug_assert!(last.is_none_or(|last| last.id < object.id), "the list is in order");
                self.0.push(object);
            }
        }
    }

    pub fn get(&self, id: SegmentId) -> Option<&Object> {
        self.0.binary_search_by_key(&id, |o| o.id).ok().map(|at| &self.0[at])
    }

    pub fn get_mut(&mut self, id: SegmentId) -> Option<&mut Object> {
        self.0.binary_search_by_key(&id, |o| o.id).ok().map(|at| &mut self.0[at])
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Object> {
        self.0.iter()
    }
}

/// An object of the store, as found by a mark.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub id: SegmentId,
    /// Bytes of the object, without footer and directory.
    pub bytes: u64,
    /// The checkpoint of the mark covers all batches of the object, and nothing is appended to it any more.
    pub covered: bool,
    /// It is not covered because a segment of guests' data is open in it, which a requested reclaim ends.
    pub ends_if_requested: bool,
    /// It holds pages of the checkpoint's tables.
    pub with_pages: bool,
    /// The object contains slots that cannot or must not be moved.
    pub stuck: bool,
    /// The object is to be moved even without a gain: most of its slots belong to images, and are not in
    /// groups yet.
    pub to_pack: bool,
    /// Age of the youngest data in the object, in batches of the log.
    pub age: u64,
    /// The segments with live slots that are stored in the object.
    pub residents: Vec<SegmentId>,
    /// Bytes of the live slots in the object.
    pub live: u64,
    /// Bytes that these live slots would take in a container.
    pub packed: u64,
}

impl Object {
    /// Bytes that cleaning the object would free.
    pub fn gain(&self) -> u64 {
        self.bytes.saturating_sub(self.packed)
    }

    /// Bytes that a requested reclaim would free of it.
    pub fn reclaimable(&self) -> u64 {
        let is_worth_it = self.residents.is_empty() || self.gain_percent() >= GAIN_ASKED;
        let is_movable = (self.covered || self.ends_if_requested) && !self.stuck;
        if is_movable && is_worth_it { self.gain() } else { 0 }
    }

    fn gain_percent(&self) -> u64 {
        self.gain() * 100 / self.bytes.max(1)
    }

    /// Benefit over cost. Age counts by its fourth root: with its full weight, the cleaner would move fuller
    /// objects than necessary if guests overwrite evenly; without it, the cleaner would repeatedly move young
    /// data that is about to be overwritten (ADR 8).
    fn score(&self) -> u128 {
        let cost = u128::from(self.bytes + self.packed).max(1);
        u128::from(self.gain()) * u128::from(self.age.isqrt().isqrt() + 1) * 1024 / cost
    }
}

/// How much the cleaner has to clean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Only objects are cleaned that are cheap to clean.
    Easy,
    /// Objects are cleaned until this number of bytes is freed.
    Bytes(u64),
    /// All objects are cleaned that are worth cleaning.
    All,
}

/// The objects to clean, in the order in which to clean them.
pub(crate) struct Victims<'a> {
    pub objects: Vec<&'a Object>,
    /// Whether no other object can be cleaned with this effort.
    pub are_all: bool,
}

/// Selects the objects to clean.
pub(crate) async fn choose(objects: &Objects, effort: Effort) -> Victims<'_> {
    let least = match effort {
        Effort::Easy => GAIN_WITH_ROOM,
        Effort::Bytes(_) => GAIN_LEAST,
        Effort::All => GAIN_ASKED,
    };
    let (mut yields, mut candidates, mut total) = (YieldCounter::default(), Vec::new(), 0);
    for (at, object) in objects.iter().enumerate() {
        yields.step().await;
        let movable = object.covered && !object.stuck && !object.residents.is_empty();
        if movable && (object.to_pack || object.gain_percent() >= least) {
            let rank = match effort {
                Effort::Bytes(_) => object.score(),
                Effort::Easy | Effort::All => object.gain_percent().into(),
            };
            candidates.push((rank, Reverse(at)));
            total += object.gain();
        }
    }
    let all = candidates.len();
    let (mut candidates, mut chosen, mut sum) = (BinaryHeap::from(candidates), Vec::new(), 0);
    while let Some((_, Reverse(at))) = candidates.pop() {
        yields.step().await;
        let object = &objects.0[at];
        match effort {
            Effort::Bytes(wanted) if sum >= wanted => break,
            // Objects that only have to be packed may follow.
            Effort::All
                if !object.to_pack
                    && object.gain_percent() < GAIN_LEAST
                    && sum >= total - total * LEFT_BEHIND / 100 => {}
            _ => chosen.push(object),
        }
        sum += object.gain();
    }
    Victims { are_all: chosen.len() == all, objects: chosen }
}

/// Whether an open segment is ended by a requested reclaim: more than a sixteenth of it is used.
pub(super) fn is_used(written: u64, segment_bytes: u64) -> bool {
    written > segment_bytes / 16
}

/// Whether the live slots of a segment that was not moved yet are to be packed into groups.
pub(super) fn gains_by_groups(live: &Live) -> bool {
    let plain = live.slots * BLOCK as u64;
    live.of_images * 2 > live.slots && live.bytes * 100 < plain * PACK_BELOW
}

/// Bytes that the live slots of a moved segment take. Each member of a group counts as an equal share of the
/// group.
pub(super) fn moved_bytes(map: &RelocationMap, is_live: impl Fn(Slot) -> bool) -> u64 {
    let mut groups: BTreeMap<Slot, (u64, u64, u64)> = BTreeMap::new();
    let mut bytes = 0;
    for entry in &map.entries {
        let (live, len) = (u64::from(is_live(entry.slot)), u64::from(entry.units) * Slot::UNIT as u64);
        if entry.place_form.codec() == Some(Codec::ZstdGroup) {
            let (members, alive, of) = groups.entry(entry.place).or_default();
            (*members, *alive, *of) = (*members + 1, *alive + live, len);
        } else {
            bytes += live * len;
        }
    }
    bytes + groups.values().map(|(members, alive, len)| len * alive / members).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn object(id: u32, packed: u64, age: u64) -> Object {
        let residents = vec![SegmentId(id)];
        Object {
            id: SegmentId(id),
            bytes: 1000,
            covered: true,
            ends_if_requested: false,
            with_pages: false,
            stuck: false,
            to_pack: false,
            age,
            residents,
            live: packed,
            packed,
        }
    }

    fn chosen(objects: &[Object], effort: Effort) -> Vec<u32> {
        let objects = Objects(objects.to_vec());
        let victims = choose(&objects, effort).now_or_never().expect("so few need one turn");
        victims.objects.iter().map(|o| o.id.0).collect()
    }

    #[test]
    fn an_object_that_is_listed_twice_counts_once() {
        let mut objects = Objects::default();
        for (id, packed) in [(1, 0), (2, 0), (2, 500), (7, 0)] {
            objects.push(object(id, packed, 0));
        }
        assert_eq!(
            objects.iter().map(|o| (o.id.0, o.packed)).collect::<Vec<_>>(),
            [(1, 0), (2, 500), (7, 0)]
        );
        assert!(objects.get(SegmentId(7)).is_some() && objects.get(SegmentId(3)).is_none());
    }

    #[test]
    fn with_room_only_the_sparsest_objects_are_cleaned() {
        let objects = [object(1, 900, 0), object(2, 100, 0), object(3, 240, 0), object(4, 300, 9)];
        assert_eq!(chosen(&objects, Effort::Easy), [2, 3]);
    }

    #[test]
    fn objects_are_chosen_until_the_effort_is_reached() {
        let objects = [object(1, 900, 0), object(2, 100, 0), object(3, 500, 0), object(4, 600, 0)];
        assert_eq!(chosen(&objects, Effort::Bytes(1000)), [2, 3]);
        assert_eq!(chosen(&objects, Effort::Bytes(1)), [2]);
        assert_eq!(chosen(&objects, Effort::All), [2, 3, 4, 1]);
    }

    #[test]
    fn old_objects_precede_young_ones_that_are_slightly_sparser() {
        let objects = [object(1, 500, 10), object(2, 550, 100_000)];
        assert_eq!(chosen(&objects, Effort::Bytes(1)), [2]);
    }

    #[test]
    fn full_open_and_stuck_objects_are_not_cleaned() {
        let full = object(1, 995, 0);
        let open = Object { covered: false, ..object(2, 1, 0) };
        let stuck = Object { stuck: true, ..object(3, 1, 0) };
        assert_eq!(chosen(&[full, open, stuck], Effort::All), [0; 0]);
    }

    #[test]
    fn objects_to_pack_are_moved_however_full_they_are() {
        let full = Object { to_pack: true, ..object(1, 995, 0) };
        let empty = object(2, 0, 0);
        for effort in [Effort::Easy, Effort::Bytes(2000), Effort::All] {
            assert_eq!(chosen(&[full.clone(), empty.clone()], effort), [2, 1], "{effort:?}");
        }
        assert_eq!(chosen(&[full, empty], Effort::Bytes(500)), [2]);
    }

    #[test]
    fn a_requested_reclaim_leaves_only_a_small_share_of_the_garbage() {
        // Each object has 3 % of garbage: below the threshold of each, but there is no other garbage.
        let objects: Vec<Object> = (1..=10).map(|id| object(id, 970, 0)).collect();
        assert_eq!(chosen(&objects, Effort::All).len(), 10);
        let with_an_empty_one: Vec<Object> =
            objects.iter().take(1).cloned().chain((11..=19).map(|id| object(id, 0, 0))).collect();
        assert_eq!(chosen(&with_an_empty_one, Effort::All).len(), 9);
    }
}
