//! The barrier of a mark: the stored blocks that commits have referred to since the mark began. The cleaner
//! does not drop these blocks, because the mark may have found them dead; see [`crate::reclaim`].
//!
//! **Memory.** Slots are kept in a bitmap for each segment, which takes 2 bytes for each slot. If there are
//! more than [`BARRIER_SLOTS`] slots in all, each segment that a commit refers to afterwards is recorded as a
//! whole: all its slots count as referred to. Until the next mark, the cleaner then keeps more slots than
//! necessary, but never fewer.

use forebay_format::{Address, SegmentId};
use hashbrown::HashMap;
use roaring::RoaringBitmap;

use crate::limits::BARRIER_SLOTS;

/// The slots of a segment to which references were recorded.
enum Referred {
    Slots(RoaringBitmap),
    /// Any slot can have been referred to.
    Any,
}

/// Records references to slots; see the module documentation.
pub(crate) struct Barrier {
    segments: HashMap<SegmentId, Referred>,
    /// Number of slots in all bitmaps.
    slots: u64,
    /// Maximum number of slots in all bitmaps.
    limit: u64,
}

impl Default for Barrier {
    fn default() -> Barrier {
        Barrier::with_limit(BARRIER_SLOTS)
    }
}

impl Barrier {
    fn with_limit(limit: u64) -> Barrier {
        Barrier { segments: HashMap::new(), slots: 0, limit }
    }

    /// Records a reference to a slot.
    pub fn insert(&mut self, to: Address) {
        let empty = || Referred::Slots(RoaringBitmap::new());
        let referred = self.segments.entry(to.segment).or_insert_with(empty);
        let Referred::Slots(slots) = referred else { return };
        if !slots.insert(to.slot.0) {
            return;
        }
        self.slots += 1;
        if self.slots > self.limit {
            self.slots -= slots.len();
            *referred = Referred::Any;
        }
    }

    /// The segments of images to which slots were referred.
    pub fn image_segments(&self) -> impl Iterator<Item = SegmentId> {
        self.segments.keys().copied().filter(|segment| segment.is_of_image())
    }

    /// Whether a slot of a segment that is not `kept` may have been referred to.
    pub fn has_any_but(&self, segment: SegmentId, kept: impl Fn(u32) -> bool) -> bool {
        match self.segments.get(&segment) {
            None => false,
            Some(Referred::Any) => true,
            Some(Referred::Slots(slots)) => slots.iter().any(|slot| !kept(slot)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use forebay_format::Slot;
    use proptest::prelude::*;

    use super::*;

    fn at(segment: u32, slot: u32) -> Address {
        Address { segment: SegmentId(segment), slot: Slot(slot) }
    }

    proptest! {
        /// At any limit, no reference is missing, and the bitmaps stay within the limit.
        #[test]
        fn nothing_that_was_referred_to_is_forgotten(
            references in prop::collection::vec((0..5_u32, 0..40_u32), 0..200),
            kept in prop::collection::btree_set(0..40_u32, 0..40),
            limit in 0..60_u64,
        ) {
            let mut barrier = Barrier::with_limit(limit);
            for (segment, slot) in &references {
                barrier.insert(at(*segment, *slot));
                prop_assert!(barrier.slots <= limit);
            }
            let distinct: BTreeSet<_> = references.iter().collect();
            for segment in 0..6 {
                let mut slots = distinct.iter().filter(|(s, _)| *s == segment).map(|(_, slot)| slot);
                let has = slots.any(|slot| !kept.contains(slot));
                let found = barrier.has_any_but(SegmentId(segment), |slot| kept.contains(&slot));
                prop_assert!(found || !has, "segment {segment}");
                prop_assert!(found == has || distinct.len() as u64 > limit, "exact within the limit");
            }
        }
    }

    #[test]
    fn segments_that_were_referred_to_before_the_limit_stay_exact() {
        let mut barrier = Barrier::with_limit(3);
        for to in [at(1, 7), at(1, 9), at(2, 1), at(2, 2), at(2, 3), at(3, 5)] {
            barrier.insert(to);
        }
        assert!(!barrier.has_any_but(SegmentId(1), |slot| [7, 9].contains(&slot)));
        assert!(barrier.has_any_but(SegmentId(1), |slot| slot == 7));
        assert!(barrier.has_any_but(SegmentId(2), |_| true), "it went over the limit");
        assert!(!barrier.has_any_but(SegmentId(3), |slot| slot == 5), "that has freed room for others");
        assert!(!barrier.has_any_but(SegmentId(4), |_| false));
    }
}
