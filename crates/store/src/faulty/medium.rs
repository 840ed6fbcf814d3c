//! What a medium and the caches in front of it hold, and what a crash leaves of it.
//!
//! Of each object the *view* is kept, the bytes that a read gives, and which ranges of it a power loss may
//! still take: those not synced since they were appended, and those *lost* to a failed append or sync, which
//! no later sync can save. A power loss treats every such range by sectors: the new bytes, zeroes (what lay
//! there before), or, seldom, garbage. Killing the process leaves the view as it is, and what was not synced
//! stays exposed to a later power loss: that is the page cache.

use std::ops::Range;

use super::random::Random;
use crate::IoBuf;

/// What a medium writes whole or not at all.
const SECTOR: usize = 512;

/// An object.
#[derive(Default)]
pub(super) struct Object {
    /// What reads give, up to the end of the last append.
    pub(super) view: Vec<u8>,
    /// Announced length: the object is as long as this at least, with zeroes behind the view.
    pub(super) expected: u64,
    /// Ranges that were appended and not yet synced.
    unsynced: Vec<Range<usize>>,
    /// Ranges whose append or sync failed.
    lost: Vec<Range<usize>>,
    /// A sync has made its name durable.
    named: bool,
    /// A sync has made the announced length durable: what reads as zeroes behind the view goes on to do so.
    /// (`fsync` writes the size of a file, too; and who reads zeroes and syncs may build on them.)
    sized: bool,
    /// An append failed, so nobody knows where it ends.
    pub(super) end_unknown: bool,
}

impl Object {
    pub(super) fn new(expected: u64) -> Object {
        Object { expected, ..Object::default() }
    }

    /// An object of these bytes, all of them durable.
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
        let start = self.view.len();
        self.view.extend_from_slice(data);
        self.view.resize(self.view.len().next_multiple_of(IoBuf::ALIGN), 0);
        if !data.is_empty() {
            self.unsynced.push(start..self.view.len());
        }
    }

    /// A sync that began when the view ended at `end` is done.
    pub(super) fn sync(&mut self, end: usize) {
        self.unsynced.retain(|range| range.end > end);
        self.named = true;
        self.sized = true;
    }

    /// All that a read gives is durable.
    pub(super) fn write_back(&mut self) {
        self.lost.clear();
        self.sync(self.view.len());
    }

    /// An append or a sync failed: nothing that is not durable by now ever becomes so, and what reads give
    /// of it is left to chance.
    pub(super) fn lose(&mut self, random: &mut Random) {
        for range in self.unsynced.drain(..) {
            by_sectors(&mut self.view, range.clone(), random);
            self.lost.push(range);
        }
    }

    /// What a power loss leaves; false where it leaves not even the name.
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

    /// Cuts the end at a page somewhere behind what is durable: what a file system does that had not yet
    /// recorded the new length. The announced length may be forgotten with it.
    fn cut(&mut self, durable: usize, random: &mut Random) {
        let pages = (self.view.len() - durable) / IoBuf::ALIGN;
        self.view.truncate(durable + random.below(pages as u64 + 1) as usize * IoBuf::ALIGN);
        if random.one_in(2) && !self.sized {
            self.expected = self.view.len() as u64;
        }
    }
}

/// Each sector of a range by itself: as it is, zeroes, or garbage.
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
    /// What a read gives.
    pub(super) view: Option<Vec<u8>>,
    durable: Option<Vec<u8>>,
}

impl SuperblockCopy {
    /// A copy that is on the medium.
    pub(super) fn durable(view: Option<Vec<u8>>) -> SuperblockCopy {
        SuperblockCopy { durable: view.clone(), view }
    }

    pub(super) fn sync(&mut self) {
        self.durable.clone_from(&self.view);
    }

    /// A write of `new` was under way, or was not synced: old, new, or some sectors of each.
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
    fn synced_bytes_outlive_any_power_loss_and_others_come_back_in_every_form() {
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
    fn a_later_sync_saves_nothing_that_a_failed_one_lost() {
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
    fn a_name_that_was_never_synced_may_go() {
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
