//! The write buffer of a disk: writes that are acknowledged and not yet in the log.
//!
//! It has two layers, of which the upper takes precedence: whole or partial *blocks*, and *zeroed ranges*
//! beneath them. A partially written block keeps a mask of its written sectors, so a write never waits for a
//! read: the missing sectors are read when the buffer is committed.
//!
//! A disk has an *active* buffer, which receives writes, and while a commit runs a *frozen* buffer, which is
//! immutable. Reads search the active buffer, then the frozen one, then the map; the frozen buffer is dropped
//! only after it was applied to the map, so no read can miss a write.
//!
//! **Outliving the process.** Blocks and zeroed ranges are in retained memory ([`forebay_retained`]), so a
//! new process can rebuild the buffers ([`WriteBuffer::adopt`]). The rules that make this exact:
//!
//! - A page never changes. A write publishes a new page, and then drops the one that it replaces.
//! - Each record has the *generation* of its buffer: the number of times that the disk's buffers were frozen
//!   before. A freeze that is cancelled does not change it.
//! - A block is never older than the zeroed range beneath it: zeroing a range removes the blocks in it. So
//!   the contents of a buffer are its generations, one above the other, and in each generation the blocks are
//!   above the zeroed ranges.
//! - Zeroing publishes its range before it removes blocks: a process that ends in between leaves the old
//!   contents or zeroes, never contents that are older than the old contents.
//! - A buffer that was committed drops its zeroed ranges before its blocks: a process that ends in between
//!   leaves blocks that are also in the map, never zeroes above blocks that are only there.
//! - If newer zeroed ranges cover parts of a zeroed range, the record of the whole range stays. This is
//!   correct, because the newer records, of the same or a later generation and order, cover these parts
//!   again.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use forebay_format::{BLOCK, DiskId, FANOUT, Fingerprint, SECTOR};
use forebay_retained::{BlockRecord, Page, Range as RangeToken, RangeRecord, Reservation, Retained};
use hashbrown::HashMap;

use crate::hash::BuildU64Hasher;
use crate::map::Touch;
use crate::zero::is_zero;

/// All sectors of a block.
pub(crate) const ALL_SECTORS: u8 = 0xff;

/// A block on the heap.
pub(crate) type BlockBox = Box<[u8; BLOCK]>;

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
    /// The sectors of the block that were written, as a bit mask.
    pub mask: u8,
    /// Fingerprint of the page, if it was computed when the block was written.
    pub fingerprint: Option<Fingerprint>,
    /// Time of the last write to the block, as the number of writes to this buffer.
    stamp: u32,
}

/// Bytes that a zeroed range counts towards the budget.
const ZERO_RANGE_COST: u64 = 64;
/// Maximum bytes that zeroing one range adds to the cost: it can split another range in two.
pub(crate) const ZEROES_COST: u64 = 2 * ZERO_RANGE_COST;

/// Maximum number of written blocks that are searched linearly; this takes some hundred microseconds.
const SEARCHED_BLOCKS: usize = 1 << 16;

/// The retained memory of a buffer, and the fields that all of its records have in common.
#[derive(Clone)]
struct Home {
    retained: Arc<Retained>,
    disk: DiskId,
    generation: u64,
}

impl Home {
    fn page(
        &self,
        room: Option<&mut Reservation>,
        block: u64,
        mask: u8,
        fill: impl FnOnce(&mut [u8; BLOCK]),
    ) -> Page {
        let of = BlockRecord { disk: self.disk.0, block, mask, generation: self.generation };
        self.retained.page(room, of, fill)
    }
}

/// A zeroed range, or a part of one.
#[derive(Clone)]
struct Zeroes {
    /// End of the range, exclusive.
    end: u64,
    /// Whether the zeroed range stays allocated.
    allocated: bool,
    generation: u64,
    /// The record of the original range in retained memory. All remaining parts of the range share the
    /// record; it is cleared with the last of them.
    _record: Arc<RangeToken>,
}

/// A layer of blocks above a layer of zeroed ranges; see the module documentation.
pub(crate) struct WriteBuffer {
    home: Home,
    /// Disjoint ranges, by first block. Declared above the blocks, so that their records are dropped first.
    zeroes: BTreeMap<u64, Zeroes>,
    blocks: HashMap<u64, Dirty, BuildU64Hasher>,
    /// Number of writes to the buffer so far.
    clock: u32,
}

impl WriteBuffer {
    fn new(home: Home) -> WriteBuffer {
        WriteBuffer { home, blocks: HashMap::default(), zeroes: BTreeMap::new(), clock: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.zeroes.is_empty()
    }

    /// Bytes that this buffer counts towards the budget.
    pub fn cost(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK as u64 + self.zeroes.len() as u64 * ZERO_RANGE_COST
    }

    /// Writes a whole block with this fingerprint. Takes one page of `room`.
    pub fn write_whole(
        &mut self,
        block: u64,
        data: &[u8],
        of: Option<Fingerprint>,
        room: Option<&mut Reservation>,
    ) {
        self.put(block, 0..BLOCK, data, of, room);
    }

    /// Writes `data` at `within` of a block; both ends on sector boundaries. Takes one page of `room`.
    pub fn write(&mut self, block: u64, within: Range<usize>, data: &[u8], room: Option<&mut Reservation>) {
        self.put(block, within, data, None, room);
    }

    fn put(
        &mut self,
        block: u64,
        within: Range<usize>,
        data: &[u8],
        fingerprint: Option<Fingerprint>,
        room: Option<&mut Reservation>,
    ) {
        debug_assert!(within.start.is_multiple_of(SECTOR) && within.end.is_multiple_of(SECTOR));
        let mask = sectors(&within);
        self.clock = self.clock.wrapping_add(1);
        let stamp = self.clock;
        let present = self.blocks.get_mut(&block);
        let before = present.as_ref().map_or(0, |dirty| dirty.mask);
        let page = self.home.page(room, block, mask | before, |page| match &present {
            _ if within.len() == BLOCK => page.copy_from_slice(data),
            Some(dirty) => {
                page.copy_from_slice(&dirty.page[..]);
                page[within].copy_from_slice(data);
            }
            None => {
                page.fill(0);
                page[within].copy_from_slice(data);
            }
        });
        let dirty = Dirty { page, mask: mask | before, fingerprint, stamp };
        match present {
            Some(present) => *present = dirty,
            None => drop(self.blocks.insert(block, dirty)),
        }
    }

    /// Zeroes whole blocks. Takes one range of `room`.
    pub fn zero(&mut self, range: Range<u64>, allocated: bool, room: Option<&mut Reservation>) {
        if range.is_empty() {
            return;
        }
        let generation = self.home.generation;
        let merged = self.merged(&range, allocated);
        let of = RangeRecord {
            disk: self.home.disk.0,
            start: merged.start,
            end: merged.end,
            allocated,
            generation,
        };
        let record = Arc::new(self.home.retained.range(room, of));
        self.put_zeroes(merged.start, Zeroes { end: merged.end, allocated, generation, _record: record });
        self.remove_blocks(&range);
    }

    /// A range, extended by the zeroed ranges of the same kind and generation that touch it.
    fn merged(&self, range: &Range<u64>, allocated: bool) -> Range<u64> {
        let (mut start, mut end) = (range.start, range.end);
        let from = self.zeroes.range(..start).next_back().map_or(start, |(&s, _)| s);
        for (&s, z) in self.zeroes.range(from..=end) {
            if z.end >= range.start && z.allocated == allocated && z.generation == self.home.generation {
                (start, end) = (start.min(s), end.max(z.end));
            }
        }
        start..end
    }

    /// Inserts a zeroed range in place of the parts of other zeroed ranges that it covers.
    fn put_zeroes(&mut self, start: u64, zeroes: Zeroes) {
        let from = self.zeroes.range(..start).next_back().map_or(start, |(&s, _)| s);
        let touching: Vec<u64> = self.zeroes.range(from..zeroes.end).map(|(&s, _)| s).collect();
        for s in touching {
            let Some(old) = self.zeroes.remove(&s) else { continue };
            if s < start {
                self.zeroes.insert(s, Zeroes { end: old.end.min(start), ..old.clone() });
            }
            if old.end > zeroes.end {
                self.zeroes.insert(zeroes.end, old);
            }
        }
        self.zeroes.insert(start, zeroes);
    }

    fn remove_blocks(&mut self, range: &Range<u64>) {
        if range.end - range.start > self.blocks.len() as u64 {
            self.blocks.retain(|block, _| !range.contains(block));
        } else {
            range.clone().for_each(|block| drop(self.blocks.remove(&block)));
        }
    }

    /// The map changes that committing this buffer causes, in any order.
    pub fn touched(&self) -> impl Iterator<Item = Touch> {
        let blocks = self.blocks.iter().map(|(&block, dirty)| self.touch(block, dirty));
        blocks.chain(self.zeroes_touch())
    }

    /// Works like [`Self::touched`], for the zeroed ranges and the `count` least recently written blocks.
    pub fn coldest_touched(&self, count: usize) -> Vec<Touch> {
        let coldest = self.coldest(count);
        let touch = |block: &u64| Some(self.touch(*block, self.blocks.get(block)?));
        coldest.iter().filter_map(touch).chain(self.zeroes_touch()).collect()
    }

    fn touch(&self, block: u64, dirty: &Dirty) -> Touch {
        Touch { block, count: 1, is_read: dirty.mask != ALL_SECTORS && !self.zeroed(block) }
    }

    /// The map changes of the zeroed ranges. Of the leaves below a zeroed range, only those at its two ends
    /// remain.
    fn zeroes_touch(&self) -> impl Iterator<Item = Touch> {
        let ends = self.zeroes.iter().flat_map(|(&start, z)| [start, z.end - 1]);
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

    /// Removes and returns all zeroed ranges and the `count` least recently written blocks. No part that
    /// remains in this buffer is older than a removed part of the same block.
    fn take_coldest(&mut self, count: usize) -> WriteBuffer {
        let mut taken = WriteBuffer::new(self.home.clone());
        taken.zeroes = std::mem::take(&mut self.zeroes);
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
                hashbrown::hash_map::Entry::Occupied(mut e) => {
                    let above = e.get();
                    if below.mask & !above.mask != 0 {
                        let merged = merge(&self.home, block, above, &below);
                        e.insert(merged);
                    }
                }
                hashbrown::hash_map::Entry::Vacant(e) => drop(e.insert(below)),
            }
        }
        for (start, zeroes) in older.zeroes {
            for gap in self.not_zeroed(start..zeroes.end) {
                self.zeroes.insert(gap.start, Zeroes { end: gap.end, ..zeroes.clone() });
            }
        }
    }

    /// Adds a block from retained memory above everything that was added before.
    pub fn adopt_block(&mut self, block: u64, mask: u8, page: Page) {
        self.clock = self.clock.wrapping_add(1);
        let above = Dirty { page, mask, fingerprint: None, stamp: self.clock };
        let dirty = match self.blocks.get(&block) {
            Some(below) if below.mask & !mask != 0 => merge(&self.home, block, &above, below),
            _ => above,
        };
        self.blocks.insert(block, dirty);
    }

    /// Adds a zeroed range from retained memory above everything that was added before.
    pub fn adopt_zeroes(&mut self, of: RangeRecord, record: RangeToken) {
        let RangeRecord { start, end, allocated, generation, .. } = of;
        self.put_zeroes(start, Zeroes { end, allocated, generation, _record: Arc::new(record) });
        self.remove_blocks(&(start..end));
    }

    /// The parts of a range that no zeroed range covers.
    fn not_zeroed(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        if let Some((_, z)) = self.zeroes.range(..=at).next_back() {
            at = at.max(z.end);
        }
        for (&start, z) in self.zeroes.range(at..range.end.max(at)) {
            if start > at {
                gaps.push(at..start);
            }
            at = z.end;
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
        self.zeroes.range(..=block).next_back().is_some_and(|(_, z)| block < z.end)
    }

    /// The zeroed ranges in order of their first block, and whether each stays allocated.
    pub fn zeroes(&self) -> impl Iterator<Item = (Range<u64>, bool)> {
        self.zeroes.iter().map(|(&s, z)| (s..z.end, z.allocated))
    }

    /// See [`Buffers::runs`].
    fn runs(&self, range: &Range<u64>) -> Vec<(Range<u64>, Option<bool>)> {
        let mut written: Vec<u64>;
        if range.end.saturating_sub(range.start) < self.blocks.len() as u64 {
            written = range.clone().filter(|block| self.blocks.contains_key(block)).collect();
        } else {
            written = self.blocks.keys().copied().filter(|block| range.contains(block)).collect();
            written.sort_unstable();
        }
        let mut above: Vec<(Range<u64>, Option<bool>)> = Vec::new();
        for block in written {
            match above.last_mut() {
                Some((run, _)) if run.end == block => run.end += 1,
                _ => above.push((block..block + 1, None)),
            }
        }
        let first = self.zeroes.range(..=range.start).next_back().map_or(range.start, |(&start, _)| start);
        let below = self.zeroes.range(first..range.end.max(first)).map(|(&start, zeroes)| {
            (start.max(range.start)..zeroes.end.min(range.end), Some(zeroes.allocated))
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

/// The sectors of `above`, and for all other sectors the sectors of `below`.
fn merge(home: &Home, block: u64, above: &Dirty, below: &Dirty) -> Dirty {
    let mask = above.mask | below.mask;
    let page = home.page(None, block, mask, |page| {
        page.copy_from_slice(&below.page[..]);
        copy_sectors(&above.page, above.mask, &(0..BLOCK), page);
    });
    Dirty { page, mask, fingerprint: None, stamp: above.stamp }
}

/// A range of blocks that is being read for a read-modify-write. Records whether the range is written in the
/// meantime.
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

/// The records of a disk in retained memory, in any order.
#[derive(Default)]
pub(crate) struct DiskRecords {
    pub blocks: Vec<(BlockRecord, Page)>,
    /// Zeroed ranges, with the order of each.
    pub ranges: Vec<(RangeRecord, u64, RangeToken)>,
}

/// The buffers of a disk.
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
    /// The empty buffers of a disk, in retained memory.
    pub fn new(retained: Arc<Retained>, disk: DiskId) -> Buffers {
        Buffers {
            active: WriteBuffer::new(Home { retained, disk, generation: 0 }),
            frozen: None,
            watches: Vec::new(),
            next_watch: 0,
            copies: Vec::new(),
            copies_begun: 0,
        }
    }

    /// Replaces the active buffer, which is empty, by the contents of retained memory: all records of this
    /// disk. Returns the cost of the buffer.
    pub fn adopt(&mut self, records: DiskRecords) -> u64 {
        debug_assert!(self.is_clean());
        let DiskRecords { mut blocks, mut ranges } = records;
        blocks.sort_unstable_by_key(|(of, page)| (of.generation, page.order()));
        ranges.sort_unstable_by_key(|(of, order, _)| (of.generation, *order));
        let newest = blocks.last().map(|(of, _)| of.generation);
        let newest = newest.max(ranges.last().map(|(of, ..)| of.generation));
        self.active.home.generation = newest.map_or(0, |generation| generation + 1);
        let mut ranges = ranges.into_iter().peekable();
        for (of, page) in blocks {
            while let Some((of, _, range)) = ranges.next_if(|(range, ..)| range.generation <= of.generation) {
                self.active.adopt_zeroes(of, range);
            }
            self.active.adopt_block(of.block, of.mask, page);
        }
        ranges.for_each(|(of, _, range)| self.active.adopt_zeroes(of, range));
        self.active.cost()
    }

    /// Takes the active buffer; later writes belong to the next generation.
    fn take_active(&mut self) -> WriteBuffer {
        let home = Home { generation: self.active.home.generation + 1, ..self.active.home.clone() };
        let next = WriteBuffer { clock: self.active.clock, ..WriteBuffer::new(home) };
        std::mem::replace(&mut self.active, next)
    }

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

    /// Copies the written bytes of a block into `out`, from the active and the frozen buffer; see
    /// [`WriteBuffer::overlay`].
    pub fn overlay(&self, block: u64, within: &Range<usize>, out: &mut [u8]) -> u8 {
        let have = self.active.overlay(block, within, 0, out);
        match &self.frozen {
            Some(frozen) if have & sectors(within) != sectors(within) => {
                frozen.overlay(block, within, have, out)
            }
            _ => have,
        }
    }

    /// Whether the buffered contents of a block are data other than a whole block of zeroes; `None` if it is
    /// not buffered.
    pub fn has_data(&self, block: u64) -> Option<bool> {
        let layers = [Some(&self.active), self.frozen.as_deref()];
        let of = |layer: &WriteBuffer| match layer.blocks.get(&block) {
            Some(dirty) => Some(dirty.mask != ALL_SECTORS || !is_zero(&dirty.page[..])),
            None => layer.zeroed(block).then_some(false),
        };
        layers.into_iter().flatten().find_map(of)
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
        self.frozen = Some(Arc::new(self.take_active()));
        self.frozen.clone()
    }

    /// Freezes the zeroed ranges and the `count` least recently written blocks.
    pub fn freeze_coldest(&mut self, count: usize) -> Arc<WriteBuffer> {
        assert!(self.frozen.is_none(), "one commit at a time");
        let frozen = Arc::new(self.active.take_coldest(count));
        self.active.home.generation += 1;
        self.frozen = Some(frozen.clone());
        frozen
    }

    /// Number of written blocks in all layers.
    pub fn written(&self) -> u64 {
        let frozen = self.frozen.as_ref().map_or(0, |frozen| frozen.blocks.len());
        (self.active.blocks.len() + frozen) as u64
    }

    /// The buffered state of `range`: disjoint runs in order, each either data (`None`) or zeroes with
    /// whether they stay allocated. Blocks in no run are not buffered. Takes time and memory in proportion to
    /// the number of blocks in `range` or of buffered blocks, whichever is less.
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
            let home = self.active.home.clone();
            self.active = WriteBuffer { home, ..frozen };
        } else {
            self.active.put_beneath(frozen);
        }
        before as i64 - self.active.cost() as i64
    }

    /// Discards all buffered writes. Returns their cost.
    pub fn clear(&mut self) -> i64 {
        let gone = self.take_active();
        gone.cost() as i64
    }

    /// Begins to record writes to `blocks`.
    pub fn watch(&mut self, blocks: Range<u64>) -> u64 {
        self.next_watch += 1;
        self.watches.push(Watch { id: self.next_watch, blocks, hit: false });
        self.next_watch
    }

    /// Stops recording for a watch. Returns whether its blocks were written, or a copy into them is under
    /// way.
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

    /// Ends a copy: the copy was applied to the map, or never will be.
    pub fn end_copy(&mut self, blocks: &Range<u64>) {
        if let Some(at) = self.copies.iter().position(|copy| copy == blocks) {
            self.copies.swap_remove(at);
        }
        self.watches.iter_mut().for_each(|w| w.note(blocks));
    }
}

#[cfg(test)]
mod tests;
