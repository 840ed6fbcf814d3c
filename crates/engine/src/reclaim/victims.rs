//! Selects the objects that are worth cleaning.
//!
//! Every object is judged by its *gain*: the bytes that would be freed if its live slots were packed
//! elsewhere. So neither the headers of a packed object nor a relocation map count as garbage, and an object
//! that was just written is never cleaned again at once.
//!
//! Objects with an image's blocks are moved once, however full they are: many clones will read these blocks,
//! and in groups they take less room ([`crate::stored`]). Blocks that did not compress before are not tried
//! again.
//!
//! Otherwise, while there is room, only the sparsest objects are cleaned. When room is short, the order is by
//! benefit over cost (gain, times age, over the bytes to be read and written): an object that has not changed
//! for long is unlikely to become sparser, a young one may. A requested reclaim cleans all objects that are
//! worth it, by relative gain.

use std::collections::BTreeMap;

use forebay_format::{BLOCK, Codec, RelocationMap, SegmentId, Slot};

use super::counts::Live;
use crate::limits::{GAIN_ASKED, GAIN_LEAST, GAIN_WITH_ROOM, LEFT_BEHIND, PACK_BELOW};

/// An object of the store, as found by a mark.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub id: SegmentId,
    /// Its bytes, without footer and directory.
    pub bytes: u64,
    /// The checkpoint of the mark covers all its batches, and nothing is appended to it any more.
    pub covered: bool,
    /// It holds pages of the checkpoint's tables.
    pub with_pages: bool,
    /// It contains slots that cannot or must not be moved.
    pub stuck: bool,
    /// It is to be moved regardless of its gain: most of its slots belong to images, and are not in groups
    /// yet.
    pub to_pack: bool,
    /// Age of the youngest data in it, in batches of the log.
    pub age: u64,
    /// The segments with live slots that are stored in it.
    pub residents: Vec<SegmentId>,
    /// Bytes of these slots.
    pub live: u64,
    /// Bytes that they would take in a container.
    pub packed: u64,
}

impl Object {
    /// Bytes that cleaning it would free.
    pub fn gain(&self) -> u64 {
        self.bytes.saturating_sub(self.packed)
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

/// How much is to be cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Only objects that are cheap to clean.
    Easy,
    /// Until this many bytes are freed.
    Bytes(u64),
    /// All objects that are worth it.
    All,
}

/// Objects that may be cleaned with this effort, regardless of the number of bytes wanted.
fn candidates(objects: &[Object], effort: Effort) -> impl Iterator<Item = &Object> {
    let least = match effort {
        Effort::Easy => GAIN_WITH_ROOM,
        Effort::Bytes(_) => GAIN_LEAST,
        Effort::All => GAIN_ASKED,
    };
    objects.iter().filter(move |o| {
        let movable = o.covered && !o.stuck && !o.residents.is_empty();
        movable && (o.to_pack || o.gain_percent() >= least)
    })
}

/// How many objects could be cleaned with this effort.
pub(crate) fn worth_cleaning(objects: &[Object], effort: Effort) -> usize {
    candidates(objects, effort).count()
}

/// Selects the objects to clean, in the order in which to clean them.
pub(crate) fn choose(objects: &[Object], effort: Effort) -> Vec<Object> {
    let mut chosen: Vec<Object> = candidates(objects, effort).cloned().collect();
    match effort {
        Effort::Bytes(_) => chosen.sort_by_key(|o| std::cmp::Reverse(o.score())),
        Effort::Easy | Effort::All => chosen.sort_by_key(|o| std::cmp::Reverse(o.gain_percent())),
    }
    let total: u64 = chosen.iter().map(Object::gain).sum();
    let mut sum = 0;
    chosen.retain(|o| {
        let enough = match effort {
            Effort::Easy => false,
            Effort::Bytes(wanted) => sum >= wanted,
            Effort::All => {
                !o.to_pack && o.gain_percent() < GAIN_LEAST && sum >= total - total * LEFT_BEHIND / 100
            }
        };
        sum += o.gain();
        !enough
    });
    chosen
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
    use super::*;

    fn object(id: u32, packed: u64, age: u64) -> Object {
        let residents = vec![SegmentId(id)];
        Object {
            id: SegmentId(id),
            bytes: 1000,
            covered: true,
            with_pages: false,
            stuck: false,
            to_pack: false,
            age,
            residents,
            live: packed,
            packed,
        }
    }

    fn ids(objects: &[Object]) -> Vec<u32> {
        objects.iter().map(|o| o.id.0).collect()
    }

    #[test]
    fn with_room_only_the_sparsest_objects_are_cleaned() {
        let objects = [object(1, 900, 0), object(2, 100, 0), object(3, 240, 0), object(4, 300, 9)];
        assert_eq!(ids(&choose(&objects, Effort::Easy)), [2, 3]);
    }

    #[test]
    fn objects_are_chosen_until_the_effort_is_reached() {
        let objects = [object(1, 900, 0), object(2, 100, 0), object(3, 500, 0), object(4, 600, 0)];
        assert_eq!(ids(&choose(&objects, Effort::Bytes(1000))), [2, 3]);
        assert_eq!(ids(&choose(&objects, Effort::Bytes(1))), [2]);
        assert_eq!(ids(&choose(&objects, Effort::All)), [2, 3, 4, 1]);
    }

    #[test]
    fn old_objects_precede_young_ones_that_are_slightly_sparser() {
        let objects = [object(1, 500, 10), object(2, 550, 100_000)];
        assert_eq!(ids(&choose(&objects, Effort::Bytes(1))), [2]);
    }

    #[test]
    fn full_open_and_stuck_objects_are_not_cleaned() {
        let full = object(1, 995, 0);
        let open = Object { covered: false, ..object(2, 1, 0) };
        let stuck = Object { stuck: true, ..object(3, 1, 0) };
        assert_eq!(ids(&choose(&[full, open, stuck], Effort::All)), [0; 0]);
    }

    #[test]
    fn objects_to_pack_are_moved_however_full_they_are() {
        let full = Object { to_pack: true, ..object(1, 995, 0) };
        let empty = object(2, 0, 0);
        for effort in [Effort::Easy, Effort::Bytes(2000), Effort::All] {
            assert_eq!(ids(&choose(&[full.clone(), empty.clone()], effort)), [2, 1], "{effort:?}");
        }
        assert_eq!(ids(&choose(&[full, empty], Effort::Bytes(500))), [2]);
    }

    #[test]
    fn a_requested_reclaim_leaves_only_a_small_share_of_the_garbage() {
        // Garbage of 3 % in each object: below the threshold of each, but there is no other garbage.
        let objects: Vec<Object> = (1..=10).map(|id| object(id, 970, 0)).collect();
        assert_eq!(choose(&objects, Effort::All).len(), 10);
        let with_an_empty_one: Vec<Object> =
            objects.iter().take(1).cloned().chain((11..=19).map(|id| object(id, 0, 0))).collect();
        assert_eq!(choose(&with_an_empty_one, Effort::All).len(), 9);
    }
}
