//! The fingerprints of a commit that were not found, and the search for them in whole directories.
//!
//! Nearly all entries of a directory belong to blocks that the commit does not contain; a filter rejects most
//! of these entries.

use forebay_format::{Address, BlockRef, DirectoryEntry, Fingerprint, SegmentId, SlotKind};

use super::filter::Filter;

/// Whether a slot of a directory can be found by its fingerprint.
pub(super) fn indexed(entry: &DirectoryEntry) -> bool {
    entry.kind == SlotKind::Block && entry.fingerprint != Fingerprint::default()
}

/// The fingerprints that were not found; see the module documentation.
pub(crate) struct Misses {
    /// Fingerprints, each with its position in the commit, sorted.
    prints: Vec<(Fingerprint, usize)>,
    filter: Filter,
}

impl Misses {
    /// Makes the list from fingerprints, each with its position.
    pub fn new<'a>(prints: impl Iterator<Item = (usize, &'a Fingerprint)>) -> Misses {
        let mut prints: Vec<_> = prints.map(|(position, print)| (*print, position)).collect();
        prints.sort_unstable();
        let filter = Filter::new(prints.iter().map(|(print, _)| print));
        Misses { prints, filter }
    }

    /// Calls `found` with the position and the reference of each block that the directory of `segment` lists.
    pub fn search(
        &self,
        segment: SegmentId,
        directory: &[DirectoryEntry],
        mut found: impl FnMut(usize, BlockRef),
    ) {
        let listed = directory.iter().filter(|e| indexed(e) && self.filter.may_contain(&e.fingerprint));
        for e in listed {
            let from = self.prints.partition_point(|(print, _)| *print < e.fingerprint);
            for (_, position) in self.prints[from..].iter().take_while(|(print, _)| *print == e.fingerprint) {
                let addr = Address { segment, slot: e.slot };
                found(*position, BlockRef { addr, form: e.form, crc: e.crc });
            }
        }
    }
}
