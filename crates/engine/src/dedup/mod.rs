//! The dedup index: the fingerprints of stored blocks.
//!
//! # Guarantees
//!
//! *A hit is correct.* A fingerprint is a keyed 128-bit hash; the key is specific to this pool and to the
//! dedup domain: guests can neither create two blocks with the same fingerprint nor match blocks of another
//! domain. A block that the index lists at an address is at that address, since an address means the same
//! bytes forever.
//!
//! *A hit may be used* only while the slot exists. The caller holds the log's lock from the look-up until the
//! reference is logged, and under that lock: the segment must be in the segment table; the cleaner, which
//! drops slots under the same lock, removes them from the index first ([`Dedup::dropped`]); and while a mark
//! is under way every reference is recorded for it, so that it does not treat a slot as dead that has just
//! been referenced again.
//!
//! *A miss has no meaning.* The index is a cache. A lost entry costs space, never data. The whole index may
//! be lost in a crash; it is read back from the directories of the segments while the pool is serving
//! ([`rebuild`]).
//!
//! # Bounded memory
//!
//! A full index takes 28 bytes per block: 7 GB per TB. This one stays within its budget by *sampling* and
//! *locality*. The [`table`] keeps one of `2^n` fingerprints, those whose last `n` bits are zero; `n` grows
//! whenever the table fills up, so a small pool has an exact index and a large one a sparse one. Duplicates
//! of virtual machines occur in runs (files of packages, written in about the same order), and a run of some
//! blocks contains a sampled one. Its hit leads to a segment; the segment's directory lists the neighbours,
//! and is kept in a cache ([`directories`]). The most recently stored blocks are indexed exactly, sampled or
//! not: the same update written into twenty clones at once arrives within minutes.
//!
//! Directories are read while a commit waits. Such a read must be worthwhile: it is paid for by the number of
//! blocks looked up and, above all, found. Scattered duplicates, one per segment, are therefore left alone.

mod directories;
mod fingerprint;
mod table;

use forebay_format::{BLOCK, BlockRef, DirectoryEntry, Fingerprint, SegmentId, Slot};
use hashbrown::HashMap;

use crate::stats::ReductionStats;
use directories::Directories;
pub(crate) use fingerprint::Fingerprinter;
use table::Table;

/// Bytes of a fingerprint in the table of recent ones, including its bucket.
const RECENT_BYTES: u64 = 48;
/// Most fingerprints in each generation of recent ones.
const RECENT_MAX: u64 = 32 << 10;
/// Reading a directory costs its length in bytes, which is taken from a credit account: the most that the
/// account holds, ...
const CREDIT_MAX: i64 = 64 << 20;
/// ... and the credit for each block that is looked up, and for each that is found.
const CREDIT_FOR_LOOKUP: i64 = BLOCK as i64 / 8;
const CREDIT_FOR_HIT: i64 = BLOCK as i64 * 4;

/// The dedup index. All decisions about what to reference are made under the log's lock.
pub(crate) struct Dedup {
    table: Table,
    directories: Directories,
    /// The most recently stored blocks: the current generation, and the previous one.
    recent: [HashMap<Fingerprint, BlockRef>; 2],
    recent_max: usize,
    credit: i64,
    budget: u64,
    /// Segments that [`rebuild`] has yet to read.
    pub segments_left: u64,
}

impl Dedup {
    /// An empty index of at most `budget` bytes; slightly more if the budget is close to zero. `sampling` is
    /// the initial sampling.
    pub fn new(budget: u64, sampling: u8) -> Dedup {
        let recent_max = (budget / 8 / RECENT_BYTES / 2).min(RECENT_MAX);
        Dedup {
            table: Table::new(budget / 8 * 5, sampling),
            directories: Directories::new(budget / 4),
            recent: Default::default(),
            recent_max: recent_max as usize,
            credit: CREDIT_MAX,
            budget,
            segments_left: 0,
        }
    }

    /// Where a block with this fingerprint is stored, if the index lists one.
    pub fn find(&mut self, fingerprint: &Fingerprint) -> Option<BlockRef> {
        self.credit = (self.credit + CREDIT_FOR_LOOKUP).min(CREDIT_MAX);
        let known = self
            .table
            .get(fingerprint)
            .or_else(|| self.recent.iter().find_map(|g| g.get(fingerprint)).copied())
            .or_else(|| self.directories.find(fingerprint));
        if known.is_some() {
            self.credit = (self.credit + CREDIT_FOR_HIT).min(CREDIT_MAX);
        }
        known
    }

    /// Adds a block that was stored.
    pub fn insert(&mut self, fingerprint: Fingerprint, at: BlockRef) {
        // A fingerprint for which the table has no room, or that was displaced from it, is kept among the
        // recent ones.
        let Some((fingerprint, at)) = self.table.insert(fingerprint, at) else { return };
        if self.recent[0].len() >= self.recent_max {
            self.recent.swap(0, 1);
            self.recent[0].clear();
        }
        if self.recent_max > 0 {
            self.recent[0].insert(fingerprint, at);
        }
    }

    /// Adds a stored block that was found in a directory.
    pub fn insert_old(&mut self, fingerprint: Fingerprint, at: BlockRef) {
        self.table.insert(fingerprint, at);
    }

    /// Whether to read the directory of the segment in which `hits` were just found, which is `bytes` long.
    /// If so, its cost is taken from the account.
    pub fn wants_directory(&mut self, hits: &[BlockRef], bytes: u64) -> bool {
        let wanted = self.table.sampling() > 0
            && self.credit >= bytes as i64
            && !hits.iter().all(|at| self.directories.has(at));
        if wanted {
            self.credit -= bytes as i64;
        }
        wanted
    }

    /// Whether misses are searched for in directories at all.
    pub fn is_sampled(&self) -> bool {
        self.table.sampling() > 0
    }

    /// Searches the whole directory of a segment for misses, and keeps the neighbours of `hits`.
    pub fn search_directory<'a>(
        &mut self,
        segment: SegmentId,
        directory: &[DirectoryEntry],
        hits: &[BlockRef],
        misses: impl Iterator<Item = (&'a Fingerprint, &'a mut Option<BlockRef>)>,
    ) {
        self.directories.search(segment, directory, hits, misses);
    }

    /// Removes slots of a segment that are about to be dropped: they are not found from here on.
    pub fn dropped(&mut self, segment: SegmentId, slots: impl Iterator<Item = (Fingerprint, Slot)>) {
        self.directories.forget(segment);
        for (fingerprint, slot) in slots {
            let is = |at: &BlockRef| at.addr.segment == segment && at.addr.slot == slot;
            self.table.remove(&fingerprint, is);
            for generation in &mut self.recent {
                if generation.get(&fingerprint).is_some_and(is) {
                    generation.remove(&fingerprint);
                }
            }
        }
    }

    /// The segments of the most recent hits, most recent first.
    pub fn warm(&self) -> Vec<SegmentId> {
        self.directories.segments()
    }

    /// One of `2^n` fingerprints is kept.
    pub fn sampling(&self) -> u8 {
        self.table.sampling()
    }

    /// Adds the index's figures to `stats`.
    pub fn stats(&self, stats: &mut ReductionStats) {
        let recent: usize = self.recent.iter().map(HashMap::len).sum();
        stats.index_entries = self.table.len() + recent as u64;
        stats.index_bytes = self.table.bytes() + self.directories.bytes() + recent as u64 * RECENT_BYTES;
        stats.index_budget = self.budget;
        stats.index_sampling = self.table.sampling();
        stats.index_segments_left = self.segments_left;
    }
}

#[cfg(test)]
mod tests {
    use forebay_format::{Address, Form, SlotKind};

    use super::*;

    fn print(n: u64) -> Fingerprint {
        Fingerprinter::new(&[7; 32], 0).of(&std::array::from_fn(|i| (n >> (i % 8 * 8)) as u8))
    }

    fn place(segment: u32, slot: u32) -> BlockRef {
        let addr = Address { segment: SegmentId(segment), slot: Slot(slot * 64) };
        BlockRef { addr, form: Form::RAW_BLOCK, crc: slot }
    }

    #[test]
    fn domains_have_nothing_in_common() {
        let block = [3; BLOCK];
        let of = |domain| Fingerprinter::new(&[9; 32], domain).of(&block);
        assert_eq!(of(1), of(1));
        assert_ne!(of(0), of(1));
        assert_ne!(Fingerprinter::new(&[8; 32], 1).of(&block), of(1));
    }

    #[test]
    fn a_small_pool_has_an_exact_index() {
        let mut index = Dedup::new(16 << 20, 0);
        (0..100_000).for_each(|n| index.insert(print(n), place(1 + n as u32 / 10_000, n as u32 % 10_000)));
        assert_eq!(index.sampling(), 0);
        let found = (0..100_000)
            .filter(|n| index.find(&print(*n)) == Some(place(1 + *n as u32 / 10_000, *n as u32 % 10_000)));
        assert!(found.count() > 99_500);
        // Recent fingerprints that were displaced from a full set of the table are found as well.
        let mut index = Dedup::new(16 << 20, 0);
        (0..20_000).for_each(|n| index.insert(print(n), place(1, n as u32)));
        assert!((0..20_000).all(|n| index.find(&print(n)) == Some(place(1, n as u32))));
    }

    /// A run of duplicates is found through one sampled fingerprint and the directory to which it leads.
    #[test]
    fn neighbours_are_found_in_directories() {
        let mut index = Dedup::new(1 << 20, 0);
        (0..100_000).for_each(|n| index.insert_old(print(n), place(1, n as u32)));
        assert!(index.sampling() >= 2);
        let run = 5_000..6_000;
        let hooks = run.clone().filter(|n| index.find(&print(*n)).is_some()).count();
        assert!((50..700).contains(&hooks), "{hooks}");
        let hit: Vec<_> = run.clone().filter_map(|n| index.find(&print(n))).take(1).collect();
        assert!(index.wants_directory(&hit, 32 * 1_000));
        let entry = |n: u64| DirectoryEntry {
            slot: Slot(n as u32 * 64),
            form: Form::RAW_BLOCK,
            kind: SlotKind::Block,
            crc: n as u32,
            fingerprint: print(n),
        };
        let directory: Vec<_> = run.clone().map(entry).collect();
        let (prints, mut found): (Vec<_>, _) = (run.clone().map(print).collect(), vec![None; 1_000]);
        index.search_directory(SegmentId(1), &directory, &hit, prints.iter().zip(&mut found));
        assert!(found.iter().zip(run.clone()).all(|(at, n)| *at == Some(place(1, n as u32))));
        assert!(run.clone().all(|n| index.find(&print(n)) == Some(place(1, n as u32))));
        assert!(!index.wants_directory(&hit, 1), "it is cached");
        index.dropped(SegmentId(1), run.clone().map(|n| (print(n), Slot(n as u32 * 64))));
        assert!(run.into_iter().all(|n| index.find(&print(n)).is_none()));
    }

    #[test]
    fn directories_have_to_be_earned() {
        let mut index = Dedup::new(1 << 20, 3);
        let free = (1..1_000).filter(|n| index.wants_directory(&[place(*n, 1)], 1 << 20)).count();
        assert_eq!(free as i64, CREDIT_MAX >> 20);
        let lookups = (1 << 20) / CREDIT_FOR_LOOKUP;
        (0..lookups as u64).for_each(|n| assert_eq!(index.find(&print(n)), None));
        assert!(index.wants_directory(&[place(2_000, 1)], 1 << 20));
        assert!(!index.wants_directory(&[place(2_001, 1)], 1 << 20));
    }

    #[test]
    fn a_budget_of_nothing_works_and_finds_little() {
        let mut index = Dedup::new(0, 0);
        (0..10_000).for_each(|n| index.insert(print(n), place(1, n as u32)));
        let mut stats = ReductionStats::default();
        index.stats(&mut stats);
        assert!(stats.index_bytes < 64 << 10, "{stats:?}");
    }
}
