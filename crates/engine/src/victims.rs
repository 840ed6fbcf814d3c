//! Which objects are worth cleaning.
//!
//! Every object is judged by its *gain*: what would be free if all that is live in it were packed elsewhere.
//! So neither what a packed object needs for headers nor a relocation map counts as garbage, and an object
//! that was just written is never cleaned again at once.
//!
//! What an image was stored in is moved once, however full it is: many clones are going to read it, and in groups
//! it takes less room ([`crate::stored`]). What could not be compressed before is not tried again.
//!
//! Otherwise, with room, only the emptiest are cleaned. When room is short, or somebody asks, the order is that of
//! benefit for cost (gain, times age, over what has to be read and written): what has not changed for long is
//! not going to get emptier by itself, what is young may.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use forebay_format::{BLOCK, Codec, RelocationMap, SegmentId, SegmentRecord, Slot, Stream};
use forebay_store::Store;
use hashbrown::HashMap;

use crate::checkpoint::Taken;
use crate::hash::BuildU64Hasher;
use crate::limits::{GAIN_ASKED, GAIN_LEAST, GAIN_WITH_ROOM, LEFT_BEHIND, MOVE_BYTES, PACK_BELOW};
use crate::mark::{Live, Marked};
use crate::places::Rest;
use crate::pool::Pool;
use crate::{Error, Mutation, Result};

/// An object, as a mark leaves it.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub id: SegmentId,
    /// Its bytes, those of footer and directory left out.
    pub bytes: u64,
    /// All that is in it is covered by the checkpoint of the mark, and nothing is appended to it any more.
    pub covered: bool,
    /// What cannot be moved, or must not be, is in it.
    pub stuck: bool,
    /// It is to be moved whatever it gains: most in it is of images, and not in groups yet.
    pub to_pack: bool,
    /// Age of the youngest data in it, in batches of the log.
    pub age: u64,
    /// The segments whose live slots rest in it.
    pub residents: Vec<SegmentId>,
    /// Bytes of these slots.
    pub live: u64,
    /// Bytes that they would take elsewhere.
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

    /// Benefit for cost. Age counts by its fourth root: with its full weight the cleaner would move fuller objects
    /// than it must where guests overwrite evenly; without, it would move young data over and over that is about
    /// to go (ADR 8).
    fn score(&self) -> u128 {
        let cost = u128::from(self.bytes + self.packed).max(1);
        u128::from(self.gain()) * u128::from(self.age.isqrt().isqrt() + 1) * 1024 / cost
    }
}

/// How much is to be cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// What costs next to nothing.
    Easy,
    /// So many bytes are wanted.
    Bytes(u64),
    /// All that is worth it.
    All,
}

/// Objects that may be cleaned with this effort, however much is wanted.
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

/// Picks what to clean out of all objects, in the order in which to clean it.
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

/// Whether the slots of a segment that was not moved yet are to go into groups.
fn gains_by_groups(live: &Live) -> bool {
    let plain = live.slots.len() * BLOCK as u64;
    live.of_images * 2 > live.slots.len() && live.bytes * 100 < plain * PACK_BELOW
}

/// Bytes that the live slots of a moved segment take. What is dead in a group counts as its share of the
/// group.
pub(crate) fn moved_bytes(map: &RelocationMap, is_live: impl Fn(Slot) -> bool) -> u64 {
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

impl Pool {
    /// Looks at all objects after a mark. Completes what that has found: what the slots of moved segments take, and
    /// what may be in use beyond it.
    pub(crate) async fn survey(&self, taken: &Taken, marked: &mut Marked) -> Result<Vec<Object>> {
        let listed = self.store.list().await?;
        let (records, blobs, open) = {
            let log = self.log.lock().await;
            let records: Vec<SegmentRecord> = log.table().values().copied().collect();
            let open: Vec<bool> = records.iter().map(|r| log.is_open(r.segment)).collect();
            let blobs: Vec<_> = Pool::blob_segments(&log.superblock().blobs).collect();
            (records, blobs, open)
        };
        if self.config.mutation != Mutation::DropUnseen {
            marked.set_horizon(&records, self.upkeep.opened_at.load(Relaxed));
        }
        let mut objects: HashMap<SegmentId, Object, BuildU64Hasher> = HashMap::default();
        for stat in &listed {
            let object = Object {
                id: stat.id,
                bytes: stat.len,
                // What is in no table is what a crash left; what came after the mark began has a higher
                // number. But a segment of the last checkpoint is in none, either, if recovery found its
                // batches damaged: nodes in it may be sound all the same.
                covered: stat.id.0 < taken.checkpoint.next_segment && !marked.may_be_in_use(stat.id),
                stuck: false,
                to_pack: false,
                age: taken.head.seq,
                residents: Vec::new(),
                live: 0,
                packed: 0,
            };
            objects.insert(stat.id, object);
        }
        for (record, open) in records.iter().zip(open) {
            let Some(object) = objects.get_mut(&record.segment) else { continue };
            object.bytes = object.bytes.min(record.written.into());
            object.covered = record.last_seq <= taken.head.seq && !open && !blobs.contains(&record.segment);
        }
        for record in &records {
            if record.stream != Stream::Moved
                && marked.is_uncertain(record)
                && let Some(object) = objects.get_mut(&SegmentId(record.container))
            {
                object.stuck = true;
            }
            let Some(live) = marked.live.get_mut(&record.segment) else { continue };
            let Some(object) = objects.get_mut(&SegmentId(record.container)) else { continue };
            // Of data that was moved counts when it was written, not when it was moved.
            object.age = object.age.min(taken.head.seq.saturating_sub(record.last_seq));
            let rest = Rest::of(record);
            object.to_pack |= self.config.compress && rest.is_none() && gains_by_groups(live);
            if let Some(rest) = rest {
                match self.read_relocation_map(record.segment, &rest).await {
                    Ok(map) => live.stored = moved_bytes(&map, |slot| live.slots.contains(slot.0)),
                    Err(Error::Damaged(_) | Error::Store(_)) => object.stuck = true,
                    Err(e) => return Err(e),
                }
            }
            object.residents.push(record.segment);
            object.live += live.stored;
            let map = RelocationMap::encoded_len(live.slots.len() as usize) as u64;
            // Its map is a batch of its own, and so is what is moved in one step, padded to a block; and the head of
            // a container, though that may be shared. Rather too much: what was just moved must not be worth it.
            let heads = 4 + 2 * live.stored / MOVE_BYTES as u64;
            object.packed += live.stored + map + heads * BLOCK as u64;
        }
        let mut objects: Vec<Object> = objects.into_values().collect();
        objects.sort_by_key(|o| o.id);
        Ok(objects)
    }
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
    fn with_room_only_the_emptiest_are_cleaned() {
        let objects = [object(1, 900, 0), object(2, 100, 0), object(3, 240, 0), object(4, 300, 9)];
        assert_eq!(ids(&choose(&objects, Effort::Easy)), [2, 3]);
    }

    #[test]
    fn what_is_asked_for_is_reached_and_no_more() {
        let objects = [object(1, 900, 0), object(2, 100, 0), object(3, 500, 0), object(4, 600, 0)];
        assert_eq!(ids(&choose(&objects, Effort::Bytes(1000))), [2, 3]);
        assert_eq!(ids(&choose(&objects, Effort::Bytes(1))), [2]);
        assert_eq!(ids(&choose(&objects, Effort::All)), [2, 3, 4, 1]);
    }

    #[test]
    fn old_objects_come_before_young_ones_that_are_a_little_emptier() {
        let objects = [object(1, 500, 10), object(2, 550, 100_000)];
        assert_eq!(ids(&choose(&objects, Effort::Bytes(1))), [2]);
    }

    #[test]
    fn nothing_that_is_full_open_or_stuck_is_cleaned() {
        let full = object(1, 995, 0);
        let open = Object { covered: false, ..object(2, 1, 0) };
        let stuck = Object { stuck: true, ..object(3, 1, 0) };
        assert_eq!(ids(&choose(&[full, open, stuck], Effort::All)), [0; 0]);
    }

    #[test]
    fn what_is_to_be_packed_is_moved_however_full_it_is() {
        let full = Object { to_pack: true, ..object(1, 995, 0) };
        let empty = object(2, 0, 0);
        for effort in [Effort::Easy, Effort::Bytes(2000), Effort::All] {
            assert_eq!(ids(&choose(&[full.clone(), empty.clone()], effort)), [2, 1], "{effort:?}");
        }
        assert_eq!(ids(&choose(&[full, empty], Effort::Bytes(500))), [2]);
    }

    #[test]
    fn what_is_left_behind_is_little_of_what_could_come_back() {
        // Evenly spread garbage of 3 % in each object: too little for each, but all there is.
        let objects: Vec<Object> = (1..=10).map(|id| object(id, 970, 0)).collect();
        assert_eq!(choose(&objects, Effort::All).len(), 10);
        let with_an_empty_one: Vec<Object> =
            objects.iter().take(1).cloned().chain((11..=19).map(|id| object(id, 0, 0))).collect();
        assert_eq!(choose(&with_an_empty_one, Effort::All).len(), 9);
    }
}
