//! The blocks that a volume occupies, and those that only a snapshot keeps, if their tenant has a quota.

use std::ops::Range;
use std::sync::Arc;

use forebay_format::BLOCK;
use roaring::RoaringTreemap;

use crate::block_ranges::pieces;
use crate::limit::Tenant;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::Relaxed;
use crate::zero::is_zero;
use crate::{Error, Result, Room};

/// Maximum length of a range whose blocks are looked up one by one.
const LOOKED_UP: u64 = 1 << 12;
/// Blocks that each snapshot counts for its record and its part of the map, in addition to the blocks that
/// only it keeps.
const SNAPSHOT_BLOCKS: u64 = 16;

#[derive(Debug, Default)]
struct State {
    /// The tenant of the volume, if the tenant has a quota.
    tenant: Option<Arc<Tenant>>,
    /// The blocks that count for the quota. Empty without a tenant.
    blocks: RoaringTreemap,
    /// The blocks that were occupied when the counting began are included in `blocks`.
    is_complete: bool,
    /// The newest snapshot of a volume.
    newest: Option<Newest>,
}

/// The newest snapshot of a volume.
#[derive(Debug)]
struct Newest {
    /// The blocks that only snapshots keep, and that the volume had when this snapshot was made.
    kept: Arc<Blocks>,
    /// The blocks of the volume that were written since this snapshot was made. The snapshot shares all other
    /// occupied blocks with the volume.
    written: RoaringTreemap,
}

impl State {
    /// Number of blocks of some ranges that are occupied.
    fn occupied(&self, ranges: &[Range<u64>]) -> u64 {
        let below = |end: u64| end.checked_sub(1).map_or(0, |last| self.blocks.rank(last));
        let of = |range: &Range<u64>| match range.end.saturating_sub(range.start) {
            0 => 0,
            len if len <= LOOKED_UP => range.clone().filter(|b| self.blocks.contains(*b)).count() as u64,
            _ => below(range.end) - below(range.start),
        };
        ranges.iter().map(of).sum()
    }

    /// Returns the effect of writing `data` and `zeroes`, in blocks: first the growth, which is the blocks
    /// that become occupied and the blocks that the newest snapshot then keeps; second the blocks that become
    /// free.
    fn change(&self, data: &[Range<u64>], zeroes: &[Range<u64>]) -> (u64, u64) {
        let superseded: u64 = data.iter().chain(zeroes).map(|range| self.superseded(range).len()).sum();
        (len(data) - self.occupied(data) + superseded, self.occupied(zeroes))
    }

    /// The blocks of a range that only the newest snapshot keeps once the volume replaces or frees them.
    fn superseded(&self, range: &Range<u64>) -> RoaringTreemap {
        let Some(Newest { kept, written }) = &self.newest else { return RoaringTreemap::new() };
        let kept = kept.state.lock();
        // A snapshot without a tenant, or with a different tenant, is being assigned to this tenant, and
        // counted afterwards.
        if !matches!((&kept.tenant, &self.tenant), (Some(a), Some(b)) if Arc::ptr_eq(a, b)) {
            return RoaringTreemap::new();
        }
        let is_superseded = |block: &u64| {
            self.blocks.contains(*block) && !written.contains(*block) && !kept.blocks.contains(*block)
        };
        if range.end.saturating_sub(range.start) <= LOOKED_UP {
            return range.clone().filter(is_superseded).collect();
        }
        let mut found = self.blocks.clone();
        found.remove_range(..range.start);
        found.remove_range(range.end..);
        found -= written;
        found -= &kept.blocks;
        found
    }

    /// Assigns the superseded blocks of a range to the newest snapshot; their number was counted already.
    /// Returns this number.
    fn supersede(&mut self, range: &Range<u64>) -> u64 {
        let superseded = self.superseded(range);
        if let Some(newest) = &self.newest {
            newest.kept.state.lock().blocks |= &superseded;
        }
        superseded.len()
    }
}

/// The blocks that a volume occupies; see [`crate::quota`]. Without a quota, each call costs one relaxed
/// load.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    is_clone: bool,
    /// Number of blocks that count in addition to the blocks of the state.
    fixed: u64,
    has_quota: AtomicBool,
    state: Mutex<State>,
}

/// Returns the number of blocks in some ranges.
fn len(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// The blocks of a write with data, and the blocks that it fills with zeroes as a whole. A block that the
/// write fills with zeroes only in part belongs to neither, so that a discard with unaligned ends needs no
/// room. In a clone such a block counts as data, since it is stored with the other part, which the clone
/// inherits.
fn ranges_of(offset: u64, bytes: &[u8], is_clone: bool) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
    let (mut data, mut zeroes): (Vec<Range<u64>>, Vec<Range<u64>>) = (Vec::new(), Vec::new());
    let mut at = 0;
    for (block, within) in pieces(offset, bytes.len()) {
        let part = &bytes[at..at + within.len()];
        at += part.len();
        let ranges = match (is_zero(part), part.len() == BLOCK) {
            (false, _) => &mut data,
            (true, true) => &mut zeroes,
            (true, false) if is_clone => &mut data,
            (true, false) => continue,
        };
        match ranges.last_mut() {
            Some(last) if last.end == block => last.end += 1,
            _ => ranges.push(block..block + 1),
        }
    }
    (data, zeroes)
}

impl Blocks {
    /// The blocks of a volume without a quota.
    pub fn new(is_clone: bool) -> Blocks {
        Blocks { is_clone, fixed: 0, has_quota: AtomicBool::default(), state: Mutex::default() }
    }

    /// The blocks of a snapshot, without a quota.
    pub fn of_snapshot() -> Blocks {
        let mut blocks = Blocks::new(false);
        blocks.fixed = SNAPSHOT_BLOCKS;
        blocks
    }

    /// Whether the quota of a tenant applies to the disk.
    pub fn has_quota(&self) -> bool {
        self.has_quota.load(Relaxed)
    }

    /// Whether the blocks of the disk were counted, or need not be counted.
    pub fn is_complete(&self) -> bool {
        !self.has_quota() || self.state.lock().is_complete
    }

    /// The state of the room within the tenant's quota.
    pub fn room(&self) -> Room {
        if !self.has_quota() {
            return Room::Ok;
        }
        self.state.lock().tenant.as_ref().map_or(Room::Ok, |tenant| tenant.usage.room())
    }

    /// Sets the tenant, if it has a quota; otherwise nothing is counted any more. Returns whether the caller
    /// has to count the blocks.
    pub fn assign(&self, tenant: Option<Arc<Tenant>>) -> bool {
        let mut state = self.state.lock();
        if let (Some(new), Some(before)) = (&tenant, &state.tenant)
            && Arc::ptr_eq(new, before)
        {
            return false;
        }
        let count = state.blocks.len() + self.fixed;
        if let Some(before) = state.tenant.take() {
            before.usage.give_back(count);
        }
        self.has_quota.store(tenant.is_some(), Relaxed);
        match tenant {
            None => *state = State::default(),
            Some(tenant) => {
                tenant.usage.add(count);
                state.tenant = Some(tenant);
            }
        }
        state.tenant.is_some() && !state.is_complete
    }

    /// Checks whether a write as a whole is within the quota, so that a write beyond the quota fails before
    /// it waits.
    ///
    /// # Errors
    /// [`Error::OverQuota`].
    pub fn check(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        if !self.has_quota() {
            return Ok(());
        }
        let (data, zeroes) = ranges_of(offset, bytes, self.is_clone);
        let state = self.state.lock();
        let Some(tenant) = &state.tenant else { return Ok(()) };
        if tenant.usage.fits(len(&data)) {
            return Ok(());
        }
        let (grown, freed) = state.change(&data, &zeroes);
        if grown <= freed || tenant.usage.fits(grown - freed) { Ok(()) } else { Err(refused(tenant)) }
    }

    /// Records a write, or a part of one. Called under the lock of the volume's buffers, before they change.
    ///
    /// # Errors
    /// [`Error::OverQuota`]: nothing has changed.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        if !self.has_quota() {
            return Ok(());
        }
        let (data, zeroes) = ranges_of(offset, bytes, self.is_clone);
        self.replace(&data, &zeroes)
    }

    /// Occupies `data` and frees `zeroes`, in one step.
    ///
    /// # Errors
    /// [`Error::OverQuota`]: nothing has changed.
    pub fn replace(&self, data: &[Range<u64>], zeroes: &[Range<u64>]) -> Result<()> {
        let state = &mut *self.state.lock();
        let Some(tenant) = &state.tenant else { return Ok(()) };
        let (grown, freed) = state.change(data, zeroes);
        if !tenant.usage.try_take(grown.saturating_sub(freed)) {
            return Err(refused(tenant));
        }
        tenant.usage.give_back(freed.saturating_sub(grown));
        for range in data.iter().chain(zeroes) {
            state.supersede(range);
        }
        for range in data {
            if let Some(newest) = &mut state.newest {
                newest.written.insert_range(range.clone());
            }
            state.blocks.insert_range(range.clone());
        }
        for range in zeroes {
            state.blocks.remove_range(range.clone());
        }
        Ok(())
    }

    /// Records that the blocks of a range are free.
    pub fn free(&self, range: Range<u64>) {
        if self.has_quota() && !range.is_empty() {
            let state = &mut *self.state.lock();
            let kept = state.supersede(&range);
            let freed = state.blocks.remove_range(range);
            state.tenant.iter().for_each(|tenant| tenant.usage.give_back(freed - kept));
        }
    }

    /// Whether a snapshot of the volume is within the quota.
    ///
    /// # Errors
    /// [`Error::OverQuota`].
    pub fn check_snapshot(&self) -> Result<()> {
        match &self.state.lock().tenant {
            Some(tenant) if !tenant.usage.fits(SNAPSHOT_BLOCKS) => Err(refused(tenant)),
            _ => Ok(()),
        }
    }

    /// Records that a snapshot of the present contents is being made. Called while no write is under way.
    pub fn begin_snapshot(&self) {
        let state = &mut *self.state.lock();
        if let Some(tenant) = &state.tenant {
            let kept = Arc::new(Blocks::of_snapshot());
            kept.assign(Some(tenant.clone()));
            state.newest = Some(Newest { kept, written: RoaringTreemap::new() });
        }
    }

    /// The blocks of the newest snapshot of the volume.
    pub fn newest(&self) -> Option<Arc<Blocks>> {
        self.state.lock().newest.as_ref().map(|newest| newest.kept.clone())
    }

    /// Sets the newest snapshot of a volume with a quota. The caller has to count the blocks afterwards.
    pub fn set_newest(&self, kept: Option<Arc<Blocks>>) {
        let state = &mut *self.state.lock();
        let is_same = match (&state.newest, &kept) {
            (Some(newest), Some(kept)) => Arc::ptr_eq(&newest.kept, kept),
            (newest, kept) => newest.is_none() && kept.is_none(),
        };
        if state.tenant.is_some() && !is_same {
            state.newest = kept.map(|kept| Newest { kept, written: RoaringTreemap::new() });
        }
    }

    /// Corrects which blocks of a range were written since a snapshot was made, if this snapshot is still the
    /// newest.
    pub(super) fn correct_written(
        &self,
        kept: &Arc<Blocks>,
        range: Range<u64>,
        written: impl Iterator<Item = u64>,
    ) {
        let state = &mut *self.state.lock();
        if let Some(newest) = state.newest.as_mut().filter(|newest| Arc::ptr_eq(&newest.kept, kept)) {
            newest.written.remove_range(range);
            newest.written.extend(written);
        }
    }

    /// Whether any block of a range is occupied.
    pub(super) fn has_any(&self, range: Range<u64>) -> bool {
        self.state.lock().occupied(&[range]) > 0
    }

    /// Corrects the blocks of a range, even beyond the quota: `occupied` are the blocks of the range that are
    /// occupied.
    pub(super) fn correct(&self, range: Range<u64>, occupied: impl Iterator<Item = u64>) {
        let state = &mut *self.state.lock();
        let Some(tenant) = &state.tenant else { return };
        let removed = state.blocks.remove_range(range);
        let added = occupied.filter(|block| state.blocks.insert(*block)).count() as u64;
        tenant.usage.add(added.saturating_sub(removed));
        tenant.usage.give_back(removed.saturating_sub(added));
    }

    /// Records that the counting of the blocks begins.
    pub(super) fn begin(&self) {
        self.state.lock().is_complete = false;
    }

    /// Records that all blocks of the disk were counted.
    pub(super) fn complete(&self) {
        let mut state = self.state.lock();
        state.is_complete = state.tenant.is_some();
    }
}

impl Drop for Blocks {
    /// A volume may have got the quota of its tenant while it was being deleted.
    fn drop(&mut self) {
        self.assign(None);
    }
}

/// The error for a write that exceeds the quota of this tenant. The first such error is logged.
fn refused(tenant: &Tenant) -> Error {
    let error = Error::OverQuota { tenant: tenant.name.clone(), bytes: tenant.usage.quota() };
    if tenant.usage.refuse() {
        tracing::warn!("{error}");
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_in_a_part_of_a_block_count_in_a_clone() {
        for (is_clone, expected) in [(false, 0), (true, 2)] {
            let tenant = Arc::new(Tenant::new("t"));
            tenant.usage.set_quota(Some(1 << 20));
            let blocks = Blocks::new(is_clone);
            blocks.assign(Some(tenant.clone()));
            blocks.write(512, &[0; 2 * BLOCK]).unwrap();
            assert_eq!(tenant.usage.used(), expected, "{is_clone}");
        }
    }

    #[test]
    fn blocks_that_are_dropped_are_not_used_any_more() {
        let tenant = Arc::new(Tenant::new("t"));
        tenant.usage.set_quota(Some(1 << 20));
        let blocks = Blocks::default();
        blocks.assign(Some(tenant.clone()));
        blocks.write(0, &[1; 2 * BLOCK]).unwrap();
        blocks.correct(0..8, [1, 3, 5].into_iter());
        assert_eq!(tenant.usage.used(), 3);
        drop(blocks);
        assert_eq!(tenant.usage.used(), 0);
    }
}
