//! Whether a map is still worth having.
//!
//! A file is made, grown, moved or deleted by writes to metadata, and what is new lies where nothing was. So the
//! blocks that changed since a scan say how far the map may have drifted: blocks of metadata, that something was
//! changed; blocks that were free, that there is data of a class that the map does not know. All other writes change
//! content, not classes. There is no partial scan: a scan reads little beside what is on a disk, and is right.

use std::ops::Range;

use crate::class::Class;
use crate::map::ClassMap;

/// How many of some changed blocks are of which kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drift {
    /// Changed blocks in all, those behind the end of the map included.
    pub changed: u64,
    /// Those of metadata.
    pub metadata: u64,
    /// Those that were free.
    pub free: u64,
    /// Those that the map has nothing on: the disk has grown.
    pub unknown: u64,
}

impl Drift {
    /// What a set of changed ranges of blocks means for a map. The cost is a search for each range, and the runs of
    /// the map inside.
    pub fn of(map: &ClassMap, changed: impl IntoIterator<Item = Range<u64>>) -> Drift {
        let mut drift = Drift::default();
        for range in changed.into_iter().filter(|range| !range.is_empty()) {
            let len = range.end - range.start;
            drift.changed = drift.changed.saturating_add(len);
            drift.unknown = drift.unknown.saturating_add(len.min(range.end.saturating_sub(map.blocks())));
            for (run, class) in map.runs_in(range) {
                match class {
                    Class::Metadata => drift.metadata = drift.metadata.saturating_add(run.end - run.start),
                    Class::Free => drift.free = drift.free.saturating_add(run.end - run.start),
                    _ => (),
                }
            }
        }
        drift
    }

    /// Whether a scan could find something else than the map says. A guest that runs writes to its journal all the
    /// time, so how often to give in to it is for the caller to say; the counts tell how much there is to gain.
    pub fn needs_scan(&self) -> bool {
        self.metadata != 0 || self.free != 0 || self.unknown != 0
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // one range is meant
mod tests {
    use super::*;

    #[test]
    fn counts() {
        let ranges = [(0..2, Class::Metadata), (2..10, Class::Page), (20..30, Class::Free)];
        let map = ClassMap::from_ranges(40, ranges);
        assert!(!Drift::of(&map, [2..20, 30..40, 5..5]).needs_scan());
        assert_eq!(Drift::of(&map, [1..25]), Drift { changed: 24, metadata: 1, free: 5, unknown: 0 });
        assert_eq!(Drift::of(&map, [35..42, 50..51]), Drift { changed: 8, unknown: 3, ..Drift::default() });
        assert!(Drift::of(&map, [0..u64::MAX, 0..u64::MAX]).needs_scan());
        assert!(Drift::of(&ClassMap::new(0), [0..1]).needs_scan());
    }
}
