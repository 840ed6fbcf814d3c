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
//! A full index takes 28 bytes per block: 7 GB per TB. A pool for which that fits into the budget has such an
//! index ([`exact`]), and reads no directory. When the budget is reached, the index is converted, step by
//! step, and from then on uses *sampling* and *locality*:
//!
//! - [`hooks`] hold a sample of all fingerprints, old and new, in five bytes each: a tag of the fingerprint
//!   and the segment of the block. Memory determines the sampling: one in 60 for 100 MB per TB.
//! - Duplicates of virtual machines occur in runs (files of packages, written in about the same order), and a
//!   run of some blocks contains a sampled one. The directory of the segment to which most hooks lead is read
//!   and searched for everything that a commit has not found ([`misses`]).
//! - The neighbours of found blocks stay in a cache ([`directories`]), where the run is found that continues
//!   in the next commit. The most recently stored blocks are indexed exactly, sampled or not: the same update
//!   written into twenty clones at once arrives within minutes. Directories of open segments are in memory.
//!
//! *A hook is never trusted.* Several fingerprints have the same tag, and a slot may have been dropped since.
//! [`Dedup::find`] and [`Misses::search`] compare all 128 bits; the directory is read after the look-up,
//! under the same lock of the log, so it lists no slot that was dropped.
//!
//! Directories are read while a commit waits, so a credit limits these reads: the blocks that are looked up
//! add a little credit, and the blocks that are found add more. Scattered duplicates, one per segment, are
//! therefore not searched for. `evaluation.rs` measures all of this on traces.

mod bits;
mod buckets;
mod directories;
#[cfg(test)]
mod evaluation;
mod exact;
mod filter;
mod fingerprint;
mod hooks;
mod misses;
mod segments;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;

use forebay_format::{BLOCK, BlockRef, DirectoryEntry, Fingerprint, SegmentId, Slot};
use hashbrown::HashMap;

use crate::hash::BuildU64Hasher;
use crate::stats::ReductionStats;
use directories::Directories;
use exact::ExactTable;
pub(crate) use fingerprint::{Fingerprinter, HASHED_TOGETHER};
use hooks::Hooks;
pub(crate) use misses::Misses;

/// Bytes of a fingerprint in the table of recent fingerprints, including its bucket.
const RECENT_BYTES: u64 = 48;
/// Maximum number of fingerprints in each generation of recent fingerprints.
const RECENT_MAX: u64 = 32 << 10;
/// Share of the recent fingerprints in the budget, and share of the directories: each is one part in this
/// number.
const RECENT_PART: u64 = 8;
const DIRECTORIES_PART: u64 = 8;
/// Maximum bytes for directories: many times what the runs of one commit need.
const DIRECTORIES_MAX: u64 = 8 << 20;
/// Number of sets of the exact table that each insertion converts to hooks.
const CONVERTED: usize = 4;
/// Number of fingerprints whose sets are fetched together: the sets fit into the cache of a core.
const FETCHED: usize = 512;
/// Reading a directory costs its length in bytes, which is taken from a credit account. This is the maximum
/// of the account. ...
const CREDIT_MAX: i64 = 64 << 20;
/// ... This is the credit for each block that is looked up, and then for each block that is found.
const CREDIT_FOR_LOOKUP: i64 = BLOCK as i64 / 8;
const CREDIT_FOR_HIT: i64 = BLOCK as i64 * 4;

/// The dedup index. All decisions about what to reference are made under the log's lock.
pub(crate) struct Dedup {
    /// The exact table of all blocks, until there are too many; from then on, its entries that are not yet
    /// converted to hooks.
    exact: Option<ExactTable>,
    hooks: Option<Hooks>,
    hooks_bytes: u64,
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
    /// the initial sampling; if it is 0, the index begins with an exact table.
    pub fn new(budget: u64, sampling: u8) -> Dedup {
        let recent_max = (budget / RECENT_PART / RECENT_BYTES / 2).min(RECENT_MAX);
        let recent_bytes = recent_max * RECENT_BYTES * 2;
        let directories_bytes = (budget / DIRECTORIES_PART).min(DIRECTORIES_MAX);
        let hooks_bytes = budget - recent_bytes - directories_bytes;
        Dedup {
            // Hooks and the cache of directories grow while the exact table is converted.
            exact: (sampling == 0).then(|| ExactTable::new(budget / 4 * 3)),
            hooks: (sampling > 0).then(|| Hooks::new(hooks_bytes, sampling)),
            hooks_bytes,
            directories: Directories::new(directories_bytes),
            recent: Default::default(),
            recent_max: recent_max as usize,
            credit: CREDIT_MAX,
            budget,
            segments_left: 0,
        }
    }

    /// Loads what is needed to find or insert these fingerprints: finding and inserting mostly wait for
    /// memory.
    pub fn fetch<'a>(&self, fingerprints: impl Iterator<Item = &'a Fingerprint> + Clone) {
        if let Some(table) = &self.exact {
            table.fetch(fingerprints.clone());
        }
        if let Some(hooks) = &self.hooks {
            hooks.fetch(fingerprints);
        }
    }

    /// Returns where a block with this fingerprint is stored, as far as that is known without a store read.
    pub fn find(&mut self, fingerprint: &Fingerprint) -> Option<BlockRef> {
        self.credit = (self.credit + CREDIT_FOR_LOOKUP).min(CREDIT_MAX);
        let exact = self.exact.as_ref().and_then(|table| table.get(fingerprint));
        let known = exact
            .or_else(|| self.recent.iter().find_map(|g| g.get(fingerprint)).copied())
            .or_else(|| self.directories.find(fingerprint));
        if known.is_some() {
            self.earn(1);
        }
        known
    }

    /// Adds the credit for blocks that were found.
    fn earn(&mut self, hits: usize) {
        self.credit = self.credit.saturating_add(hits as i64 * CREDIT_FOR_HIT).min(CREDIT_MAX);
    }

    /// The segments whose directories probably list the blocks that were not found: the segments to which
    /// most of `blocks` lead come first. `blocks` are fingerprints with the result of [`Dedup::find`], in the
    /// order of the commit. A found block leads to its segment if the block before or after it was not found.
    pub fn leads<'a>(
        &self,
        blocks: impl Iterator<Item = (&'a Fingerprint, Option<BlockRef>)>,
    ) -> Vec<SegmentId> {
        let Some(hooks) = &self.hooks else { return Vec::new() };
        let mut votes: HashMap<SegmentId, u32, BuildU64Hasher> = HashMap::default();
        let mut vote = |segment| *votes.entry(segment).or_default() += 1;
        let (mut last_found, mut missed) = (None, false);
        for (fingerprint, found) in blocks {
            let edge = if found.is_some() { found.filter(|_| missed) } else { last_found.take() };
            edge.filter(|at| !self.directories.has(at)).iter().for_each(|at| vote(at.addr.segment));
            if found.is_none() {
                hooks.get(fingerprint).for_each(&mut vote);
            }
            (last_found, missed) = (found, found.is_none());
        }
        let mut leads: Vec<_> = votes.into_iter().collect();
        // Leads with equal votes are sorted by segment number, so that a run is reproducible.
        leads.sort_unstable_by_key(|(segment, votes)| (Reverse(*votes), *segment));
        leads.into_iter().map(|(segment, _)| segment).collect()
    }

    /// Whether a directory of `bytes` may be read. If so, its cost is taken from the account.
    pub fn afford(&mut self, bytes: u64) -> bool {
        let affordable = self.credit >= bytes as i64;
        if affordable {
            self.credit -= bytes as i64;
        }
        affordable
    }

    /// Keeps the neighbours of `hits`, which were found in the directory of a segment. `new_hits` of them
    /// were found only in this directory.
    pub fn keep(
        &mut self,
        segment: SegmentId,
        directory: &[DirectoryEntry],
        hits: &[BlockRef],
        new_hits: usize,
    ) {
        self.earn(new_hits);
        self.directories.keep(segment, directory, hits);
    }

    /// Adds blocks that were newly stored.
    pub fn insert_all(&mut self, blocks: &[(Fingerprint, BlockRef)]) {
        for some in blocks.chunks(FETCHED) {
            self.fetch(some.iter().map(|(fingerprint, _)| fingerprint));
            some.iter().for_each(|(fingerprint, at)| self.insert(*fingerprint, *at));
        }
    }

    /// Adds a block that was newly stored.
    pub fn insert(&mut self, fingerprint: Fingerprint, at: BlockRef) {
        if let Some((fingerprint, at)) = self.insert_in_table(fingerprint, at) {
            self.insert_recent(fingerprint, at);
        }
    }

    /// Adds a stored block that was found in a directory.
    pub fn insert_old(&mut self, fingerprint: Fingerprint, at: BlockRef) {
        // An exact index stays exact: some sets are full long before the table is full.
        if let Some((fingerprint, at)) = self.insert_in_table(fingerprint, at)
            && self.hooks.is_none()
        {
            self.insert_recent(fingerprint, at);
        }
    }

    /// Adds a fingerprint to the recent fingerprints, because the table does not contain it exactly.
    fn insert_recent(&mut self, fingerprint: Fingerprint, at: BlockRef) {
        if self.recent[0].len() >= self.recent_max {
            self.recent.swap(0, 1);
            self.recent[0].clear();
        }
        if self.recent_max > 0 {
            self.recent[0].insert(fingerprint, at);
        }
    }

    /// Inserts a fingerprint into the table. Returns a fingerprint that the table does not contain exactly:
    /// the inserted or a displaced fingerprint.
    fn insert_in_table(&mut self, fingerprint: Fingerprint, at: BlockRef) -> Option<(Fingerprint, BlockRef)> {
        if fingerprint == Fingerprint::default() {
            return None;
        }
        if let Some(hooks) = &mut self.hooks {
            hooks.insert(&fingerprint, at.addr.segment);
            self.convert();
            return Some((fingerprint, at));
        }
        let table = self.exact.as_mut()?;
        let displaced = table.insert(fingerprint, at);
        if table.is_full() {
            self.hooks = Some(Hooks::new(self.hooks_bytes, 0));
        }
        displaced
    }

    /// Converts some entries of the exact table to hooks.
    fn convert(&mut self) {
        for _ in 0..CONVERTED {
            let (Some(table), Some(hooks)) = (&mut self.exact, &mut self.hooks) else { return };
            match table.drain() {
                Some(entries) => entries.for_each(|(print, at)| hooks.insert(&print, at.addr.segment)),
                None => self.exact = None,
            }
        }
    }

    /// Removes slots of a segment that are about to be dropped: from here on they are not found.
    pub fn dropped(&mut self, segment: SegmentId, slots: impl Iterator<Item = (Fingerprint, Slot)>) {
        self.directories.forget(segment);
        for (fingerprint, slot) in slots {
            let is = |at: &BlockRef| at.addr.segment == segment && at.addr.slot == slot;
            if let Some(table) = &mut self.exact {
                table.remove(&fingerprint, is);
            }
            if let Some(hooks) = &mut self.hooks {
                hooks.remove(&fingerprint, segment);
            }
            for generation in &mut self.recent {
                if generation.get(&fingerprint).is_some_and(is) {
                    generation.remove(&fingerprint);
                }
            }
        }
    }

    /// Records that a segment was removed from the segment table with all its slots.
    pub fn freed(&mut self, segment: SegmentId) {
        self.directories.forget(segment);
        if let Some(hooks) = &mut self.hooks {
            hooks.segments.remove(segment);
        }
    }

    /// The segments of the most recent hits, the most recent first.
    pub fn warm(&self) -> Vec<SegmentId> {
        self.directories.segments()
    }

    /// The exponent of the sampling: one of `2^n` fingerprints is kept.
    pub fn sampling(&self) -> u8 {
        self.hooks.as_ref().map_or(0, Hooks::sampling)
    }

    /// Adds the index's figures to `stats`.
    pub fn stats(&self, stats: &mut ReductionStats) {
        let recent: usize = self.recent.iter().map(HashMap::len).sum();
        let (exact, exact_bytes) = self.exact.as_ref().map_or((0, 0), |t| (t.len(), t.bytes()));
        let (hooks, hooks_bytes) = self.hooks.as_ref().map_or((0, 0), |t| (t.len(), t.bytes()));
        stats.index_entries = exact + hooks + recent as u64;
        stats.index_bytes =
            exact_bytes + hooks_bytes + self.directories.bytes() + recent as u64 * RECENT_BYTES;
        stats.index_budget = self.budget;
        stats.index_sampling = self.sampling();
        stats.index_segments_left = self.segments_left;
    }
}
