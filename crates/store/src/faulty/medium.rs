//! The contents of a medium and of the caches in front of it, and the effect of a crash on them.
//!
//! For each object this module keeps the *view*, the bytes that a read returns, and the ranges that a power
//! loss may still destroy: ranges that were not synced since they were appended, and ranges *lost* to a
//! failed append or sync, which no later sync can save. A power loss treats every such range by sectors: the
//! new bytes, zeroes (the former contents), or, seldom, garbage. Killing the process leaves the view
//! unchanged, and unsynced ranges stay exposed to a later power loss: this models the page cache.

use std::ops::Range;

use super::random::Random;
use crate::IoBuf;

/// The unit that a medium writes atomically.
const SECTOR: usize = 512;

/// The state of an object.
#[derive(Default)]
pub(super) struct Object {
    /// The bytes that reads return, up to the end of the last append.
    pub(super) view: Vec<u8>,
    /// Expected length: the object is at least this long, with zeroes after the view.
    pub(super) expected: u64,
    /// Ranges that were appended and not yet synced.
    unsynced: Vec<Range<usize>>,
    /// Ranges whose append or sync failed.
    lost: Vec<Range<usize>>,
    /// A sync has made the object's name durable.
    named: bool,
    /// A sync has made the expected length durable, so bytes after the view continue to read as zeroes.
    /// (`fsync` writes the size of a file, too; and a reader that syncs after reading zeroes may rely on
    /// them.)
    sized: bool,
    /// The object was created ahead of its first append.
    pub(super) is_prepared: bool,
    /// An append failed, so the object's end is unknown.
    pub(super) end_unknown: bool,
}

impl Object {
    pub(super) fn new(expected: u64) -> Object {
        Object { expected, ..Object::default() }
    }

    /// An object with these bytes, all of them durable.
    pub(super) fn durable(bytes: &[u8]) -> Object {
        let mut object = Object::new(0);
        object.append(bytes);
        object.sync(object.view.len());
        object
    }

    /// Length in bytes, as a list shows it.
    pub(super) fn len(&self) -> u64 {
        self.expected.max(self.view.len() as u64)
    }

    pub(super) fn append(&mut self, data: &[u8]) {
        self.is_prepared = false;
        let start = self.view.len();
        self.view.extend_from_slice(data);
        self.view.resize(self.view.len().next_multiple_of(IoBuf::ALIGN), 0);
        if !data.is_empty() {
            self.unsynced.push(start..self.view.len());
        }
    }

    /// Makes the last append durable, but not earlier appends or the name.
    pub(super) fn write_through(&mut self) {
        self.unsynced.pop_if(|range| range.end == self.view.len());
    }

    /// Whether everything that was appended is durable.
    pub(super) fn is_synced(&self) -> bool {
        self.named && self.sized && self.unsynced.is_empty() && self.lost.is_empty() && !self.end_unknown
    }

    /// Applies a sync that began when the view ended at `end`.
    pub(super) fn sync(&mut self, end: usize) {
        self.unsynced.retain(|range| range.end > end);
        self.named = true;
        self.sized = true;
    }

    /// Makes the whole view durable.
    pub(super) fn write_back(&mut self) {
        self.lost.clear();
        self.sync(self.view.len());
    }

    /// Applies a failed append or sync: bytes that are not durable yet never become durable, and their
    /// contents in later reads are random.
    pub(super) fn lose(&mut self, random: &mut Random) {
        for range in self.unsynced.drain(..) {
            by_sectors(&mut self.view, range.clone(), random);
            self.lost.push(range);
        }
    }

    /// Applies a power loss to the object; returns false if not even its name survives.
    pub(super) fn lose_power(&mut self, random: &mut Random) -> bool {
        if !self.named && random.one_in(2) {
            return false;
        }
        let mut exposed = self.unsynced.drain(..).chain(self.lost.drain(..)).collect::<Vec<_>>();
        exposed.sort_by_key(|range| range.end);
        for range in &exposed {
            match random.below(4) {
                0 => {}
                1 => self.view[range.clone()].fill(0),
                _ => by_sectors(&mut self.view, range.clone(), random),
            }
        }
        if random.one_in(2) {
            let tail = exposed.iter().rev();
            let durable =
                tail.fold(self.view.len(), |end, range| if range.end == end { range.start } else { end });
            self.cut(durable, random);
        }
        self.named = true;
        self.sized = true;
        self.end_unknown = false;
        true
    }

    /// Truncates at a random page after the durable end, like a file system that has not yet recorded the new
    /// length. The expected length may be lost too.
    fn cut(&mut self, durable: usize, random: &mut Random) {
        let pages = (self.view.len() - durable) / IoBuf::ALIGN;
        self.view.truncate(durable + random.below(pages as u64 + 1) as usize * IoBuf::ALIGN);
        if random.one_in(2) && !self.sized {
            self.expected = self.view.len() as u64;
        }
    }
}

/// Keeps, zeroes or corrupts each sector of a range independently.
fn by_sectors(view: &mut [u8], range: Range<usize>, random: &mut Random) {
    for sector in view[range].chunks_mut(SECTOR) {
        match random.below(16) {
            0..8 => {}
            8..15 => sector.fill(0),
            _ => sector.iter_mut().for_each(|b| *b = random.next() as u8),
        }
    }
}

/// One copy of the superblock.
#[derive(Default, Clone)]
pub(super) struct SuperblockCopy {
    /// The bytes that a read returns.
    pub(super) view: Option<Vec<u8>>,
    durable: Option<Vec<u8>>,
}

impl SuperblockCopy {
    /// A superblock copy that is durable on the medium.
    pub(super) fn durable(view: Option<Vec<u8>>) -> SuperblockCopy {
        SuperblockCopy { durable: view.clone(), view }
    }

    pub(super) fn sync(&mut self) {
        self.durable.clone_from(&self.view);
    }

    /// Applies a write of `new` that was in progress, or not synced: the result is the old copy, the new
    /// copy, or some sectors of each.
    pub(super) fn tear(&mut self, new: &[u8], random: &mut Random) {
        match random.below(4) {
            0 => {}
            1 => self.view = Some(new.to_vec()),
            _ => {
                let mut mixed = self.view.take().unwrap_or_else(|| vec![0; new.len()]);
                for (old, new) in mixed.chunks_mut(SECTOR).zip(new.chunks(SECTOR)) {
                    if random.one_in(2) {
                        old.copy_from_slice(new);
                    }
                }
                self.view = Some(mixed);
            }
        }
    }

    pub(super) fn lose_power(&mut self, random: &mut Random) {
        if self.view != self.durable {
            let seen = std::mem::replace(&mut self.view, self.durable.take());
            if let Some(seen) = seen {
                self.tear(&seen, random);
            }
        }
        self.sync();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(synced: usize, unsynced: usize) -> Object {
        let mut object = Object::new(0);
        object.append(&vec![1; synced]);
        object.sync(synced);
        object.append(&vec![2; unsynced]);
        object
    }

    #[test]
    fn synced_bytes_survive_a_power_loss_and_unsynced_bytes_survive_in_any_state() {
        let mut random = Random::new(7);
        let (mut whole, mut none, mut torn, mut cut) = (0, 0, 0, 0);
        for _ in 0..200 {
            let mut object = object(8192, 8192);
            assert!(object.lose_power(&mut random));
            assert!(object.view[..8192].iter().all(|b| *b == 1));
            let rest = &object.view[8192..];
            match () {
                () if rest.len() < 8192 => cut += 1,
                () if rest.iter().all(|b| *b == 2) => whole += 1,
                () if rest.iter().all(|b| *b == 0) => none += 1,
                () => torn += 1,
            }
        }
        assert!(whole > 10 && none > 10 && torn > 10 && cut > 10, "{whole} {none} {torn} {cut}");
    }

    #[test]
    fn a_later_sync_does_not_save_bytes_that_a_failed_one_lost() {
        let mut random = Random::new(7);
        let survived = (0..50).filter(|_| {
            let mut object = object(4096, 4096);
            object.lose(&mut random);
            object.append(&[3; 4096]);
            object.sync(12288);
            assert!(object.lose_power(&mut random));
            assert!(
                object.view[..4096].iter().all(|b| *b == 1) && object.view[8192..].iter().all(|b| *b == 3)
            );
            object.view[4096..8192].iter().all(|b| *b == 2)
        });
        assert!(survived.count() < 10);
    }

    #[test]
    fn a_name_that_was_never_synced_may_be_lost() {
        let mut random = Random::new(7);
        let kept = (0..100).filter(|_| object(0, 4096).lose_power(&mut random)).count();
        assert!(kept > 20, "{kept}");
        let unnamed = (0..100).filter(|_| {
            let mut object = Object::new(0);
            object.append(&[1; 4096]);
            object.lose_power(&mut random)
        });
        assert!((20..80).contains(&unnamed.count()));
    }

    #[test]
    fn a_torn_superblock_is_old_new_or_a_mix() {
        let mut random = Random::new(3);
        let (mut old, mut new, mut mix) = (0, 0, 0);
        for _ in 0..100 {
            let mut copy = SuperblockCopy { view: Some(vec![1; 4096]), durable: None };
            copy.sync();
            copy.view = Some(vec![2; 4096]);
            copy.lose_power(&mut random);
            let view = copy.view.unwrap();
            match view.iter().filter(|b| **b == 2).count() {
                0 => old += 1,
                4096 => new += 1,
                _ => mix += 1,
            }
        }
        assert!(old > 5 && new > 5 && mix > 5, "{old} {new} {mix}");
    }
}
