//! The index of fingerprints: which blocks are stored already.
//!
//! # What it promises, and what not
//!
//! *A hit is right.* A fingerprint is a keyed 128-bit hash, with a key that only this pool has, and another one
//! for each dedup domain: guests can neither make two blocks of one fingerprint nor meet blocks of another
//! domain. What the index says rests at an address rests there, for an address means the same bytes for ever.
//!
//! *A hit may be used* only while the slot exists. The caller holds the log's lock from the look-up until the
//! reference is logged, and under that lock: the segment must be in the segment table; the cleaner, which drops
//! slots under the same lock, tells the index first ([`Dedup::dropped`]); and while a mark is under way every
//! reference is noted for it, so that it does not take for dead what has just come back to life.
//!
//! *A miss means nothing.* The index is a cache. To forget costs space, never data. All of it can be lost in a
//! crash; it is read back from the directories of the segments while the pool serves ([`rebuild`]).
//!
//! # Bounded memory
//!
//! A full index takes 28 bytes for each block: 7 GB for each TB. This one takes what it is given, by *sampling*
//! and *locality*. The [`table`] keeps one of `2^n` fingerprints, those whose last `n` bits are zero; `n` grows
//! whenever the table fills up, so a small pool has an exact index and a large one a sparse one. Duplicates of
//! virtual machines come in runs (files of packages, written in about the same order), and a run of some blocks
//! has a sampled one among them. Its hit leads to a segment; the segment's directory knows the neighbours, and
//! is kept in a cache ([`directories`]). What was stored last is known exactly, sampled or not: the same update
//! written into twenty clones at once comes within minutes.
//!
//! Directories are read while a commit waits. That has to pay: each read must be earned by blocks that were
//! looked up and, above all, found. Scattered duplicates, one in a segment, are so left alone.

mod directories;
mod rebuild;
mod table;

use forebay_format::{BLOCK, BlockRef, DirectoryEntry, Fingerprint, SegmentId, Slot};
use hashbrown::HashMap;

use crate::stats::ReductionStats;
use directories::Directories;
use table::Table;

/// Bytes of a fingerprint in the table of the last ones, with its place in it.
const RECENT_BYTES: u64 = 48;
/// Most fingerprints in each generation of the last ones.
const RECENT_MAX: u64 = 32 << 10;
/// What a read of a directory costs, in bytes, is paid from this account: how much it holds at most, ...
const CREDIT_MAX: i64 = 64 << 20;
/// ... and how much a block that is looked up, and one that is found, pay in.
const CREDIT_FOR_LOOKUP: i64 = BLOCK as i64 / 8;
const CREDIT_FOR_HIT: i64 = BLOCK as i64 * 4;

/// Hashes blocks of one dedup domain.
#[derive(Clone)]
pub(crate) struct Fingerprinter([u8; 32]);

impl Fingerprinter {
    /// For a domain of the pool whose key is given. No fingerprint of one domain tells anything in another.
    pub fn new(pool_key: &[u8; 32], domain: u32) -> Fingerprinter {
        Fingerprinter(*blake3::keyed_hash(pool_key, &domain.to_le_bytes()).as_bytes())
    }

    /// The fingerprint of a block; never that of none.
    pub fn of(&self, block: &[u8; BLOCK]) -> Fingerprint {
        let mut fingerprint = Fingerprint::default();
        fingerprint.0.copy_from_slice(&blake3::keyed_hash(&self.0, block).as_bytes()[..16]);
        fingerprint
    }
}

/// The index. Guarded by the log's lock in all that decides what is referred to.
pub(crate) struct Dedup {
    table: Table,
    directories: Directories,
    /// What was stored last: this generation, and the one before.
    recent: [HashMap<Fingerprint, BlockRef>; 2],
    recent_max: usize,
    credit: i64,
    budget: u64,
    /// Segments that [`rebuild`] has still to read.
    pub segments_left: u64,
}

impl Dedup {
    /// An empty index of at most `budget` bytes; a little more where that is next to nothing. `sampling` is
    /// where it begins.
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

    /// Where a block with this fingerprint is stored, as far as is known.
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

    /// A block was stored.
    pub fn insert(&mut self, fingerprint: Fingerprint, at: BlockRef) {
        // What finds no place in the table, or loses it, is known for a while yet.
        let Some((fingerprint, at)) = self.table.insert(fingerprint, at) else { return };
        if self.recent[0].len() >= self.recent_max {
            self.recent.swap(0, 1);
            self.recent[0].clear();
        }
        if self.recent_max > 0 {
            self.recent[0].insert(fingerprint, at);
        }
    }

    /// A block was found stored in a directory.
    pub fn insert_old(&mut self, fingerprint: Fingerprint, at: BlockRef) {
        self.table.insert(fingerprint, at);
    }

    /// Whether the directory of the segment in which `hits` were just found is worth being read; it is `bytes`
    /// long. If so, it is paid for.
    pub fn wants_directory(&mut self, hits: &[BlockRef], bytes: u64) -> bool {
        let wanted = self.table.sampling() > 0
            && self.credit >= bytes as i64
            && !hits.iter().all(|at| self.directories.has(at));
        if wanted {
            self.credit -= bytes as i64;
        }
        wanted
    }

    /// Whether misses can be looked for in directories at all.
    pub fn is_sampled(&self) -> bool {
        self.table.sampling() > 0
    }

    /// Looks for what was missed in the directory of a segment, all of it, and keeps the neighbours of `hits`.
    pub fn search_directory<'a>(
        &mut self,
        segment: SegmentId,
        directory: &[DirectoryEntry],
        hits: &[BlockRef],
        misses: impl Iterator<Item = (&'a Fingerprint, &'a mut Option<BlockRef>)>,
    ) {
        self.directories.search(segment, directory, hits, misses);
    }

    /// Slots of a segment are going to be dropped. Nobody finds them from here on.
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

    /// Segments in which something was found last, the last first.
    pub fn warm(&self) -> Vec<SegmentId> {
        self.directories.segments()
    }

    /// One of `2^n` fingerprints is kept.
    pub fn sampling(&self) -> u8 {
        self.table.sampling()
    }

    /// Fills in what the index knows of itself.
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
        Fingerprinter([7; 32]).of(&std::array::from_fn(|i| (n >> (i % 8 * 8)) as u8))
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
        // Of the last ones, what lost its place in a full set of the table is known as well.
        let mut index = Dedup::new(16 << 20, 0);
        (0..20_000).for_each(|n| index.insert(print(n), place(1, n as u32)));
        assert!((0..20_000).all(|n| index.find(&print(n)) == Some(place(1, n as u32))));
    }

    /// A run of duplicates is found through one sampled fingerprint and the directory that it leads to.
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
        assert!(!index.wants_directory(&hit, 1), "it is there");
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
