//! The write buffer of a disk: what was acknowledged and is not yet in the log.
//!
//! Two layers, the upper wins: whole or partial *blocks*, and *zeroed ranges* beneath them. A block that was
//! written in part keeps a mask of its sectors, so a write never waits for a read: what is missing is read
//! when the buffer is committed.
//!
//! A disk has an *active* buffer, into which writes go, and while a commit runs a *frozen* one, which no one
//! changes any more. Reads look at active, then frozen, then the map; the frozen one goes only after the map
//! has taken it over, so no read can miss a write.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use forebay_format::{BLOCK, SECTOR};
use hashbrown::HashMap;

use crate::hash::BuildU64Hasher;

/// All sectors of a block.
pub(crate) const ALL_SECTORS: u8 = 0xff;

pub(crate) type Page = Box<[u8; BLOCK]>;

/// Mask of the sectors that a byte range of a block touches.
pub(crate) fn sectors(within: &Range<usize>) -> u8 {
    debug_assert!(within.start < within.end && within.end <= BLOCK);
    let (first, last) = (within.start / SECTOR, (within.end - 1) / SECTOR);
    (ALL_SECTORS << first) & (ALL_SECTORS >> (7 - last))
}

/// Copies those bytes of `block` that lie in `within` and in the sectors of `mask`; `out` stands for `within`.
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

/// Zeroes those bytes of `out`, which stands for `within`, that lie in the sectors of `mask`.
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

/// A block that was written, at least in part.
pub(crate) struct Dirty {
    pub page: Page,
    /// Sectors that were written.
    pub mask: u8,
}

/// Bytes that a zeroed range counts in the budget.
const ZERO_RANGE_COST: u64 = 64;

/// One layer pair; see the module.
#[derive(Default)]
pub(crate) struct WriteBuffer {
    blocks: HashMap<u64, Dirty, BuildU64Hasher>,
    /// Disjoint ranges by first block: end and whether the range stays allocated.
    zeroes: BTreeMap<u64, (u64, bool)>,
}

impl WriteBuffer {
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.zeroes.is_empty()
    }

    /// What this buffer counts in the budget.
    pub fn cost(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK as u64 + self.zeroes.len() as u64 * ZERO_RANGE_COST
    }

    /// Writes `data` at `within` of a block; both ends on sector boundaries.
    pub fn write(&mut self, block: u64, within: Range<usize>, data: &[u8]) {
        debug_assert!(within.start.is_multiple_of(SECTOR) && within.end.is_multiple_of(SECTOR));
        let mask = sectors(&within);
        match self.blocks.entry(block) {
            hashbrown::hash_map::Entry::Occupied(e) => {
                let dirty = e.into_mut();
                dirty.page[within].copy_from_slice(data);
                dirty.mask |= mask;
            }
            hashbrown::hash_map::Entry::Vacant(e) => {
                e.insert(Dirty { page: page_with(within, data), mask });
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
        // Cut what overlaps, then join with neighbours of the same kind: a disk that is discarded piece by
        // piece ends as one range.
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

    /// Takes in what an older buffer has, beneath what is here.
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

    /// Copies what this buffer has of `within` of a block into `out`, but for the sectors in `have`, which an
    /// upper layer has filled already. Returns the sectors that are filled now.
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

    /// The zeroed ranges, by first block, with whether they stay allocated.
    pub fn zeroes(&self) -> impl Iterator<Item = (Range<u64>, bool)> {
        self.zeroes.iter().map(|(&s, &(e, a))| (s..e, a))
    }

    /// The written blocks, in order.
    pub fn sorted_blocks(&self) -> Vec<(u64, &Dirty)> {
        let mut blocks: Vec<_> = self.blocks.iter().map(|(&b, d)| (b, d)).collect();
        blocks.sort_unstable_by_key(|&(b, _)| b);
        blocks
    }

    /// The blocks that were written in part, in order.
    pub fn partial_blocks(&self) -> Vec<(u64, &Dirty)> {
        let partial = self.blocks.iter().filter(|(_, d)| d.mask != ALL_SECTORS);
        let mut blocks: Vec<_> = partial.map(|(&b, d)| (b, d)).collect();
        blocks.sort_unstable_by_key(|&(b, _)| b);
        blocks
    }

    /// Whether what a partial block lacks is zero, because the range beneath was zeroed.
    pub fn base_is_zero(&self, block: u64) -> bool {
        self.zeroed(block)
    }
}

/// A page that has `data` at `within`, and is zero elsewhere.
fn page_with(within: Range<usize>, data: &[u8]) -> Page {
    // A whole block, which most are, is copied into memory that nobody has to zero first.
    if data.len() == BLOCK
        && let Ok(page) = Page::try_from(Box::<[u8]>::from(data))
    {
        return page;
    }
    let mut page = Box::new([0; BLOCK]);
    page[within].copy_from_slice(data);
    page
}

/// A place that is being read in order to be written in part; a write to it in between is noted.
struct Watch {
    id: u64,
    blocks: Range<u64>,
    hit: bool,
}

/// The buffers of a disk.
#[derive(Default)]
pub(crate) struct Buffers {
    active: WriteBuffer,
    frozen: Option<Arc<WriteBuffer>>,
    watches: Vec<Watch>,
    next_watch: u64,
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

    /// Lets `change` change the active buffer in `blocks`. Returns by how much it grew.
    pub fn change(&mut self, blocks: Range<u64>, change: impl FnOnce(&mut WriteBuffer)) -> i64 {
        for w in &mut self.watches {
            w.hit |= w.blocks.start < blocks.end && blocks.start < w.blocks.end;
        }
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

    /// Freezes the active buffer for a commit, if there is anything in it.
    pub fn freeze(&mut self) -> Option<Arc<WriteBuffer>> {
        assert!(self.frozen.is_none(), "one commit at a time");
        if self.active.is_empty() {
            return None;
        }
        self.frozen = Some(Arc::new(std::mem::take(&mut self.active)));
        self.frozen.clone()
    }

    /// Forgets the frozen buffer, which the map has taken over.
    pub fn thaw(&mut self) -> Option<Arc<WriteBuffer>> {
        self.frozen.take()
    }

    /// Gives up a freeze: what was frozen goes beneath what was written since. Returns by how much both together
    /// take less than they did.
    pub fn unfreeze(&mut self, frozen: Arc<WriteBuffer>) -> i64 {
        self.frozen = None;
        // Readers look at it under the lock that the caller holds.
        let frozen = Arc::into_inner(frozen).expect("nobody else holds a frozen buffer");
        let before = frozen.cost() + self.active.cost();
        if self.active.is_empty() {
            self.active = frozen;
        } else {
            self.active.put_beneath(frozen);
        }
        before as i64 - self.active.cost() as i64
    }

    /// Begins to note writes to `blocks`.
    pub fn watch(&mut self, blocks: Range<u64>) -> u64 {
        self.next_watch += 1;
        self.watches.push(Watch { id: self.next_watch, blocks, hit: false });
        self.next_watch
    }

    /// Stops noting; says whether there was a write.
    pub fn unwatch(&mut self, id: u64) -> bool {
        let at = self.watches.iter().position(|w| w.id == id);
        at.is_some_and(|at| self.watches.swap_remove(at).hit)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLOCKS: u64 = 8;

    /// A write of sectors, or blocks that become zero.
    #[derive(Debug, Clone)]
    enum Op {
        Write { block: u64, from: usize, sectors: usize, byte: u8 },
        Zero { from: u64, count: u64, allocated: bool },
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0..BLOCKS, 0..8usize, 1..=8usize, 1..=255u8).prop_map(|(block, from, n, byte)| Op::Write {
                block,
                from,
                sectors: n.min(8 - from),
                byte
            }),
            (0..BLOCKS, 1..4u64, any::<bool>()).prop_map(|(from, n, allocated)| Op::Zero {
                from,
                count: n.min(BLOCKS - from),
                allocated
            }),
        ]
    }

    fn apply(buffer: &mut WriteBuffer, op: &Op) {
        match *op {
            Op::Write { block, from, sectors, byte } => {
                let within = from * SECTOR..(from + sectors) * SECTOR;
                buffer.write(block, within.clone(), &vec![byte; within.len()]);
            }
            Op::Zero { from, count, allocated } => buffer.zero(from..from + count, allocated),
        }
    }

    /// Of each block, what the buffer has of it, and which kind of zeroed range lies beneath.
    fn seen(buffer: &WriteBuffer) -> Vec<(Vec<u8>, u8, Option<bool>)> {
        let zeroed =
            |b| buffer.zeroes().find(|(range, _)| range.contains(&b)).map(|(_, allocated)| allocated);
        let block = |b| {
            let mut out = vec![0xee; BLOCK];
            let have = buffer.overlay(b, &(0..BLOCK), 0, &mut out);
            (out, have, zeroed(b))
        };
        (0..BLOCKS).map(block).collect()
    }

    proptest! {
        /// Whatever was written before and after a freeze that is given up: the buffer is as without the freeze.
        #[test]
        fn a_freeze_that_is_given_up_leaves_no_trace(
            before in prop::collection::vec(op(), 1..12),
            after in prop::collection::vec(op(), 0..12),
        ) {
            let (mut plain, mut buffers) = (WriteBuffer::default(), Buffers::default());
            let change = |buffers: &mut Buffers, op: &Op| buffers.change(0..BLOCKS, |b| apply(b, op));
            let mut cost: i64 = before.iter().map(|op| change(&mut buffers, op)).sum();
            let frozen = buffers.freeze().expect("something was written");
            cost += after.iter().map(|op| change(&mut buffers, op)).sum::<i64>();
            cost -= buffers.unfreeze(frozen);
            before.iter().chain(&after).for_each(|op| apply(&mut plain, op));
            prop_assert_eq!(seen(buffers.active()), seen(&plain));
            prop_assert_eq!(cost, buffers.active().cost() as i64);
        }
    }
}
