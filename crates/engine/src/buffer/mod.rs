//! The write buffer of a disk: writes that are acknowledged and not yet in the log.
//!
//! It has two layers, of which the upper takes precedence: whole or partial *blocks*, and *zeroed ranges*
//! beneath them. A partially written block keeps a mask of its written sectors, so a write never waits for a
//! read: the missing sectors are read when the buffer is committed.
//!
//! A disk has an *active* buffer, which receives writes, and while a commit runs a *frozen* buffer, which is
//! immutable. Reads search the active buffer, then the frozen one, then the map; the frozen buffer is dropped
//! only after it was applied to the map, so no read can miss a write.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use forebay_format::{BLOCK, FANOUT, SECTOR};
use hashbrown::HashMap;

use crate::hash::BuildU64Hasher;
use crate::map::Touch;

/// All sectors of a block.
pub(crate) const ALL_SECTORS: u8 = 0xff;

pub(crate) type Page = Box<[u8; BLOCK]>;

/// Mask of the sectors that a byte range of a block touches.
pub(crate) fn sectors(within: &Range<usize>) -> u8 {
    debug_assert!(within.start < within.end && within.end <= BLOCK);
    let (first, last) = (within.start / SECTOR, (within.end - 1) / SECTOR);
    (ALL_SECTORS << first) & (ALL_SECTORS >> (7 - last))
}

/// Copies the bytes of `block` that are in `within` and in the sectors of `mask`; `out[0]` corresponds to
/// `within.start`.
pub(crate) fn copy_sectors(block: &[u8; BLOCK], mask: u8, within: &Range<usize>, out: &mut [u8]) {
    debug_assert_eq!(out.len(), within.len());
    if mask & sectors(within) == sectors(within) {
        out.copy_from_slice(&block[within.clone()]);
        return;
    }
    for_sectors(mask, within, |part| {
        out[part.start - within.start..part.end - within.start].copy_from_slice(&block[part]);
    });
}

/// Zeroes the bytes of `out` that are in the sectors of `mask`; `out[0]` corresponds to `within.start`.
pub(crate) fn zero_sectors(mask: u8, within: &Range<usize>, out: &mut [u8]) {
    for_sectors(mask, within, |part| out[part.start - within.start..part.end - within.start].fill(0));
}

fn for_sectors(mask: u8, within: &Range<usize>, mut each: impl FnMut(Range<usize>)) {
    for sector in (0..8).filter(|s| mask & (1 << s) != 0) {
        let part = (sector * SECTOR).max(within.start)..((sector + 1) * SECTOR).min(within.end);
        if part.start < part.end {
            each(part);
        }
    }
}

/// A block that was written, wholly or in part.
pub(crate) struct Dirty {
    pub page: Page,
    /// The written sectors.
    pub mask: u8,
    /// Time of the last write, counted in writes to this buffer.
    stamp: u32,
}

/// Bytes that a zeroed range counts against the budget.
const ZERO_RANGE_COST: u64 = 64;
/// The most that zeroing one range adds to the cost: it can split another range in two.
pub(crate) const ZEROES_COST: u64 = 2 * ZERO_RANGE_COST;

/// The most written blocks that are searched linearly; this takes some hundred microseconds.
const SEARCHED_BLOCKS: usize = 1 << 16;

/// A layer of blocks above a layer of zeroed ranges; see the module documentation.
#[derive(Default)]
pub(crate) struct WriteBuffer {
    blocks: HashMap<u64, Dirty, BuildU64Hasher>,
    /// Disjoint ranges, by first block: end (exclusive), and whether the range stays allocated.
    zeroes: BTreeMap<u64, (u64, bool)>,
    /// Number of writes so far.
    clock: u32,
}

impl WriteBuffer {
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.zeroes.is_empty()
    }

    /// Bytes that this buffer counts against the budget.
    pub fn cost(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK as u64 + self.zeroes.len() as u64 * ZERO_RANGE_COST
    }

    /// Writes `data` at `within` of a block; both ends on sector boundaries.
    pub fn write(&mut self, block: u64, within: Range<usize>, data: &[u8]) {
        debug_assert!(within.start.is_multiple_of(SECTOR) && within.end.is_multiple_of(SECTOR));
        let mask = sectors(&within);
        self.clock = self.clock.wrapping_add(1);
        let stamp = self.clock;
        match self.blocks.entry(block) {
            hashbrown::hash_map::Entry::Occupied(e) => {
                let dirty = e.into_mut();
                dirty.page[within].copy_from_slice(data);
                (dirty.mask, dirty.stamp) = (dirty.mask | mask, stamp);
            }
            hashbrown::hash_map::Entry::Vacant(e) => {
                e.insert(Dirty { page: page_with(within, data), mask, stamp });
            }
        }
    }

    /// Zeroes whole blocks.
    pub fn zero(&mut self, range: Range<u64>, allocated: bool) {
        if range.is_empty() {
            return;
        }
        if range.end - range.start > self.blocks.len() as u64 {
            self.blocks.retain(|block, _| !range.contains(block));
        } else {
            range.clone().for_each(|block| drop(self.blocks.remove(&block)));
        }
        // Trim ranges that overlap, then join neighbours of the same kind: a disk that is discarded in pieces
        // ends up as one range.
        let (mut start, mut end) = (range.start, range.end);
        let mut from = start;
        if let Some((&s, _)) = self.zeroes.range(..start).next_back() {
            from = s;
        }
        let touching: Vec<_> = self.zeroes.range(from..=end).map(|(&s, &(e, a))| (s, e, a)).collect();
        for (s, e, a) in touching.into_iter().filter(|&(_, e, _)| e >= range.start) {
            self.zeroes.remove(&s);
            if a == allocated {
                (start, end) = (start.min(s), end.max(e));
            } else {
                if s < range.start {
                    self.zeroes.insert(s, (range.start, a));
                }
                if e > range.end {
                    self.zeroes.insert(range.end, (e, a));
                }
            }
        }
        self.zeroes.insert(start, (end, allocated));
    }

    /// The map changes that committing this buffer causes, in any order.
    pub fn touched(&self) -> impl Iterator<Item = Touch> {
        let blocks = self.blocks.iter().map(|(&block, dirty)| self.touch(block, dirty));
        blocks.chain(self.zeroes_touch())
    }

    /// The same for the zeroed ranges and the `count` least recently written blocks.
    pub fn coldest_touched(&self, count: usize) -> Vec<Touch> {
        let coldest = self.coldest(count);
        let touch = |block: &u64| Some(self.touch(*block, self.blocks.get(block)?));
        coldest.iter().filter_map(touch).chain(self.zeroes_touch()).collect()
    }

    fn touch(&self, block: u64, dirty: &Dirty) -> Touch {
        Touch { block, count: 1, is_read: dirty.mask != ALL_SECTORS && !self.zeroed(block) }
    }

    /// Of the leaves below a zeroed range, only those at its two ends remain.
    fn zeroes_touch(&self) -> impl Iterator<Item = Touch> {
        let ends = self.zeroes.iter().flat_map(|(&start, &(end, _))| [start, end - 1]);
        ends.map(|block| Touch { block, count: FANOUT, is_read: false })
    }

    /// The `count` least recently written blocks, in any order.
    fn coldest(&self, count: usize) -> Vec<u64> {
        if count >= self.blocks.len() {
            return self.blocks.keys().copied().collect();
        }
        let clock = self.clock;
        let age = |(block, dirty): (&u64, &Dirty)| (u32::MAX - clock.wrapping_sub(dirty.stamp), *block);
        let mut by_age: Vec<(u32, u64)> = self.blocks.iter().map(age).collect();
        if count > 0 {
            by_age.select_nth_unstable(count - 1);
        }
        by_age[..count].iter().map(|(_, block)| *block).collect()
    }

    /// Removes and returns all zeroed ranges and the `count` least recently written blocks. No remaining part
    /// is beneath a part that is removed.
    fn take_coldest(&mut self, count: usize) -> WriteBuffer {
        let mut taken = WriteBuffer { zeroes: std::mem::take(&mut self.zeroes), ..WriteBuffer::default() };
        if count >= self.blocks.len() {
            taken.blocks = std::mem::take(&mut self.blocks);
            return taken;
        }
        for block in self.coldest(count) {
            taken.blocks.extend(self.blocks.remove_entry(&block));
        }
        taken
    }

    /// Merges an older buffer into this one; where both have data, this one takes precedence.
    fn put_beneath(&mut self, older: WriteBuffer) {
        for (block, below) in older.blocks {
            if self.zeroed(block) {
                continue;
            }
            match self.blocks.entry(block) {
                hashbrown::hash_map::Entry::Occupied(e) => {
                    let above = e.into_mut();
                    copy_sectors(&below.page, below.mask & !above.mask, &(0..BLOCK), &mut above.page[..]);
                    above.mask |= below.mask;
                }
                hashbrown::hash_map::Entry::Vacant(e) => drop(e.insert(below)),
            }
        }
        for (start, (end, allocated)) in older.zeroes {
            for gap in self.not_zeroed(start..end) {
                self.zeroes.insert(gap.start, (gap.end, allocated));
            }
        }
    }

    /// The parts of a range that no zeroed range covers.
    fn not_zeroed(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        if let Some((_, &(end, _))) = self.zeroes.range(..=at).next_back() {
            at = at.max(end);
        }
        for (&start, &(end, _)) in self.zeroes.range(at..range.end.max(at)) {
            if start > at {
                gaps.push(at..start);
            }
            at = end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }

    /// Copies this buffer's data for `within` of a block into `out`, except for the sectors in `have`, which
    /// an upper layer has filled already. Returns the sectors that are filled now.
    pub fn overlay(&self, block: u64, within: &Range<usize>, have: u8, out: &mut [u8]) -> u8 {
        let mut have = have;
        if let Some(dirty) = self.blocks.get(&block) {
            copy_sectors(&dirty.page, dirty.mask & !have, within, out);
            have |= dirty.mask;
        }
        if have & sectors(within) != sectors(within) && self.zeroed(block) {
            zero_sectors(!have, within, out);
            have = ALL_SECTORS;
        }
        have
    }

    fn zeroed(&self, block: u64) -> bool {
        self.zeroes.range(..=block).next_back().is_some_and(|(_, &(end, _))| block < end)
    }

    /// The zeroed ranges in order of their first block, and whether each stays allocated.
    pub fn zeroes(&self) -> impl Iterator<Item = (Range<u64>, bool)> {
        self.zeroes.iter().map(|(&s, &(e, a))| (s..e, a))
    }

    /// As [`Buffers::runs`].
    fn runs(&self, range: &Range<u64>) -> Vec<(Range<u64>, Option<bool>)> {
        let mut written: Vec<u64> = self.blocks.keys().copied().filter(|b| range.contains(b)).collect();
        written.sort_unstable();
        let mut above: Vec<(Range<u64>, Option<bool>)> = Vec::new();
        for block in written {
            match above.last_mut() {
                Some((run, _)) if run.end == block => run.end += 1,
                _ => above.push((block..block + 1, None)),
            }
        }
        let below = self.zeroes().map(|(zeroes, allocated)| {
            (zeroes.start.max(range.start)..zeroes.end.min(range.end), Some(allocated))
        });
        lay_over(above, below.filter(|(run, _)| !run.is_empty()).collect())
    }

    /// The written blocks, in order.
    pub fn sorted_blocks(&self) -> Vec<(u64, &Dirty)> {
        let mut blocks: Vec<_> = self.blocks.iter().map(|(&b, d)| (b, d)).collect();
        blocks.sort_unstable_by_key(|&(b, _)| b);
        blocks
    }

    /// The partially written blocks, in order.
    pub fn partial_blocks(&self) -> Vec<(u64, &Dirty)> {
        let partial = self.blocks.iter().filter(|(_, d)| d.mask != ALL_SECTORS);
        let mut blocks: Vec<_> = partial.map(|(&b, d)| (b, d)).collect();
        blocks.sort_unstable_by_key(|&(b, _)| b);
        blocks
    }

    /// Whether the unwritten sectors of a partial block are zero because the range beneath was zeroed.
    pub fn base_is_zero(&self, block: u64) -> bool {
        self.zeroed(block)
    }
}

/// Overlays runs on other runs: where both cover a block, the upper ones take precedence.
fn lay_over<T: Copy>(above: Vec<(Range<u64>, T)>, below: Vec<(Range<u64>, T)>) -> Vec<(Range<u64>, T)> {
    let mut all = above.clone();
    let mut above = above.iter().peekable();
    for (run, kind) in below {
        let mut at = run.start;
        while above.next_if(|(upper, _)| upper.end <= at).is_some() {}
        let mut ahead = above.clone();
        while at < run.end {
            let Some((upper, _)) = ahead.next_if(|(upper, _)| upper.start < run.end) else {
                all.push((at..run.end, kind));
                break;
            };
            if at < upper.start {
                all.push((at..upper.start, kind));
            }
            at = at.max(upper.end);
        }
    }
    all.sort_unstable_by_key(|(run, _)| run.start);
    all
}

/// A page with `data` at `within` and zeroes elsewhere.
fn page_with(within: Range<usize>, data: &[u8]) -> Page {
    // Most writes are whole blocks: they are copied into memory that need not be zeroed first.
    if data.len() == BLOCK
        && let Ok(page) = Page::try_from(Box::<[u8]>::from(data))
    {
        return page;
    }
    let mut page = Box::new([0; BLOCK]);
    page[within].copy_from_slice(data);
    page
}

/// A range that is being read for a read-modify-write; records whether it is written in between.
struct Watch {
    id: u64,
    blocks: Range<u64>,
    hit: bool,
}

impl Watch {
    fn note(&mut self, blocks: &Range<u64>) {
        self.hit |= overlap(&self.blocks, blocks);
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// The buffers of a disk.
#[derive(Default)]
pub(crate) struct Buffers {
    active: WriteBuffer,
    frozen: Option<Arc<WriteBuffer>>,
    watches: Vec<Watch>,
    next_watch: u64,
    /// Destination blocks, in the map, of copies by the commit that is under way; see [`crate::copy`].
    copies: Vec<Range<u64>>,
    /// Number of copies into this disk that have begun.
    copies_begun: u64,
}

impl Buffers {
    pub fn is_clean(&self) -> bool {
        self.active.is_empty() && self.frozen.is_none()
    }

    pub fn active(&self) -> &WriteBuffer {
        &self.active
    }

    pub fn is_committing(&self) -> bool {
        self.frozen.is_some()
    }

    /// Applies `change`, which affects only `blocks`, to the active buffer. Returns by how much the buffer's
    /// cost grew.
    pub fn change(&mut self, blocks: Range<u64>, change: impl FnOnce(&mut WriteBuffer)) -> i64 {
        self.watches.iter_mut().for_each(|w| w.note(&blocks));
        let before = self.active.cost() as i64;
        change(&mut self.active);
        self.active.cost() as i64 - before
    }

    /// As [`WriteBuffer::overlay`], over both layers.
    pub fn overlay(&self, block: u64, within: &Range<usize>, out: &mut [u8]) -> u8 {
        let have = self.active.overlay(block, within, 0, out);
        match &self.frozen {
            Some(frozen) if have & sectors(within) != sectors(within) => {
                frozen.overlay(block, within, have, out)
            }
            _ => have,
        }
    }

    /// The first written block in a range, or `range.end`; `None` if the search would take long (more than
    /// [`SEARCHED_BLOCKS`] blocks).
    pub fn first_written(&self, range: &Range<u64>) -> Option<u64> {
        let layers = [Some(&self.active), self.frozen.as_deref()];
        let mut first = range.end;
        for layer in layers.into_iter().flatten() {
            if layer.blocks.len() > SEARCHED_BLOCKS {
                return None;
            }
            let written = layer.blocks.keys().filter(|block| range.contains(block));
            first = written.min().map_or(first, |block| first.min(*block));
        }
        Some(first)
    }

    /// Freezes the active buffer for a commit, unless it is empty.
    pub fn freeze(&mut self) -> Option<Arc<WriteBuffer>> {
        assert!(self.frozen.is_none(), "one commit at a time");
        if self.active.is_empty() {
            return None;
        }
        self.frozen = Some(Arc::new(std::mem::take(&mut self.active)));
        self.frozen.clone()
    }

    /// Freezes the zeroed ranges and the `count` least recently written blocks.
    pub fn freeze_coldest(&mut self, count: usize) -> Arc<WriteBuffer> {
        assert!(self.frozen.is_none(), "one commit at a time");
        let frozen = Arc::new(self.active.take_coldest(count));
        self.frozen = Some(frozen.clone());
        frozen
    }

    /// The buffered state of `range`: disjoint runs in order, each either data (`None`) or zeroes with
    /// whether they stay allocated. Blocks in no run are not buffered.
    pub fn runs(&self, range: Range<u64>) -> Vec<(Range<u64>, Option<bool>)> {
        let mut runs = self.active.runs(&range);
        if let Some(frozen) = &self.frozen {
            let above = std::mem::take(&mut runs);
            let below = frozen.runs(&range);
            runs = lay_over(above, below);
        }
        runs
    }

    /// Drops the frozen buffer after it was applied to the map.
    pub fn thaw(&mut self) -> Option<Arc<WriteBuffer>> {
        self.frozen.take()
    }

    /// Cancels a freeze: the frozen buffer is merged beneath later writes. Returns by how much the total cost
    /// shrinks.
    pub fn unfreeze(&mut self, frozen: Arc<WriteBuffer>) -> i64 {
        self.frozen = None;
        // Readers use it only under the lock that the caller holds.
        let frozen = Arc::into_inner(frozen).expect("a frozen buffer has no other owner");
        let before = frozen.cost() + self.active.cost();
        if self.active.is_empty() {
            self.active = frozen;
        } else {
            self.active.put_beneath(frozen);
        }
        before as i64 - self.active.cost() as i64
    }

    /// Discards all buffered writes. Returns their cost.
    pub fn clear(&mut self) -> i64 {
        let gone = std::mem::take(&mut self.active);
        gone.cost() as i64
    }

    /// Begins to record writes to `blocks`.
    pub fn watch(&mut self, blocks: Range<u64>) -> u64 {
        self.next_watch += 1;
        self.watches.push(Watch { id: self.next_watch, blocks, hit: false });
        self.next_watch
    }

    /// Stops recording; returns whether there was a write, or a copy into the blocks is under way.
    pub fn unwatch(&mut self, id: u64) -> bool {
        let Some(at) = self.watches.iter().position(|w| w.id == id) else { return false };
        let watch = self.watches.swap_remove(at);
        watch.hit || self.is_copied_to(&watch.blocks)
    }

    /// Begins a copy into `blocks`: from now on it may be in the map.
    pub fn begin_copy(&mut self, blocks: Range<u64>) {
        self.copies.push(blocks);
        self.copies_begun += 1;
    }

    /// Number of copies into this disk that have begun so far.
    pub fn copies_begun(&self) -> u64 {
        self.copies_begun
    }

    /// Whether a copy into some of `blocks` is under way.
    pub fn is_copied_to(&self, blocks: &Range<u64>) -> bool {
        self.copies.iter().any(|copy| overlap(copy, blocks))
    }

    /// Ends a copy: it was applied to the map, or never will be.
    pub fn end_copy(&mut self, blocks: &Range<u64>) {
        if let Some(at) = self.copies.iter().position(|copy| copy == blocks) {
            self.copies.swap_remove(at);
        }
        self.watches.iter_mut().for_each(|w| w.note(blocks));
    }
}

#[cfg(test)]
mod tests;
