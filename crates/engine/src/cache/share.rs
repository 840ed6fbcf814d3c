//! Shares of a cache: how many blocks of each disk it holds, and which disks hold less than their share.
//!
//! A block belongs to the disk that inserted it, until another disk uses the block. Then the block belongs to
//! no disk, like the blocks of an image that clones share. Each active disk has the same share of all blocks.
//! Shares have an effect only while disks clearly above their share hold more than half of the blocks:
//! [`super::shard`] then keeps two kinds of blocks longer, blocks of disks below their share, and blocks that
//! belong to no disk.
//!
//! Disks are counted in [`OWNERS`] groups, so that the counts take 2 KiB whatever the number of disks. The
//! disks of one group have one share together; 255 disks with consecutive numbers are in different groups.

use forebay_format::DiskId;

/// Number of groups that are counted: all values of an [`Owner`].
const OWNERS: usize = 1 << u8::BITS;

/// The group of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(u8);

impl Owner {
    /// Owner of blocks that several disks use, or whose disk is not known.
    pub const SHARED: Owner = Owner(0);

    /// The group of a disk.
    pub const fn of(disk: DiskId) -> Owner {
        Owner(1 + (disk.0 % (OWNERS as u32 - 1)) as u8)
    }
}

/// Counts the blocks of each owner, and which owners are active. An owner is active if it had a use or an
/// insertion in this period or the one before. A period has as many insertions as there are blocks.
pub(super) struct Shares {
    held: [u32; OWNERS],
    /// Sum of `held`.
    total: u32,
    /// Period in which an owner was last active; 0 for never.
    last: [u32; OWNERS],
    period: u32,
    /// Number of insertions in this period.
    inserted: u32,
    /// Number of disks that were active when this period began.
    active: u32,
    /// Disks clearly above their share held more than half of the blocks when this period began.
    is_crowded: bool,
}

impl Default for Shares {
    fn default() -> Shares {
        Shares {
            held: [0; OWNERS],
            total: 0,
            last: [0; OWNERS],
            period: 2,
            inserted: 0,
            active: 0,
            is_crowded: false,
        }
    }
}

impl Shares {
    /// Counts a block that is inserted.
    pub fn add(&mut self, owner: Owner) {
        self.held[usize::from(owner.0)] += 1;
        self.total += 1;
        self.inserted += 1;
        self.used(owner);
        if self.inserted > self.total {
            self.period = self.period.saturating_add(1);
            self.inserted = 0;
            self.take_stock();
        }
    }

    fn take_stock(&mut self) {
        let disks = || (1..=u8::MAX).map(Owner);
        self.active = disks().map(|owner| u32::from(self.is_active(owner))).sum();
        let (active, total) = (u64::from(self.active), u64::from(self.total));
        let held = disks().map(|owner| u64::from(self.held[usize::from(owner.0)]));
        let above: u64 = held.filter(|held| held * active * 4 > total * 5).sum();
        self.is_crowded = above * 2 > total;
    }

    /// Records that a disk uses a block, and returns the owner of the block from now on: [`Owner::SHARED`] if
    /// several disks use it.
    pub fn used_by(&mut self, owner: Owner, reader: Owner) -> Owner {
        self.used(owner);
        self.used(reader);
        if owner == reader || owner == Owner::SHARED || reader == Owner::SHARED {
            return owner;
        }
        self.held[usize::from(owner.0)] -= 1;
        self.held[usize::from(Owner::SHARED.0)] += 1;
        Owner::SHARED
    }

    /// Counts a block that is evicted; it was counted when it was inserted.
    pub fn remove(&mut self, owner: Owner) {
        self.held[usize::from(owner.0)] -= 1;
        self.total -= 1;
    }

    fn used(&mut self, owner: Owner) {
        self.last[usize::from(owner.0)] = self.period;
    }

    fn is_active(&self, owner: Owner) -> bool {
        self.period - self.last[usize::from(owner.0)] <= 1
    }

    /// Whether this owner is active and has at most its share of the blocks, while other owners have more
    /// than their share.
    pub fn is_below(&self, owner: Owner) -> bool {
        let held = u64::from(self.held[usize::from(owner.0)]);
        let is_small = || self.is_active(owner) && held * u64::from(self.active) < u64::from(self.total);
        self.is_crowded && (owner == Owner::SHARED || is_small())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_below_its_share_while_it_and_one_with_more_are_active() {
        let mut shares = Shares::default();
        let [one, other] = [1, 2].map(|disk| Owner::of(DiskId(disk)));
        let replace = |shares: &mut Shares, times: usize, used: &[Owner]| {
            for _ in 0..times {
                for owner in used {
                    assert_eq!(shares.used_by(*owner, *owner), *owner);
                }
                shares.remove(one);
                shares.add(one);
            }
        };
        (0..90).for_each(|_| shares.add(one));
        (0..10).for_each(|_| shares.add(other));
        replace(&mut shares, 100, &[other]);
        assert!(shares.is_below(other) && !shares.is_below(one));
        replace(&mut shares, 200, &[]);
        assert!(!shares.is_below(other), "it is not active any more");
        assert!(!shares.is_below(one), "no other is active");
        replace(&mut shares, 100, &[other]);
        assert!(shares.is_below(other), "it is active again");
        (0..80).for_each(|_| shares.add(other));
        assert!(!shares.is_below(other), "it holds half");
        (0..90).for_each(|_| shares.remove(one));
        (0..90).for_each(|_| shares.remove(other));
        assert_eq!((shares.total, shares.held), (0, [0; OWNERS]));
    }

    #[test]
    fn a_block_that_several_disks_use_belongs_to_none() {
        let mut shares = Shares::default();
        let [one, other] = [1, 2].map(|disk| Owner::of(DiskId(disk)));
        shares.add(one);
        assert_eq!(shares.used_by(one, one), one);
        assert_eq!(shares.used_by(one, Owner::SHARED), one, "the reader is not known");
        let owner = shares.used_by(one, other);
        assert_eq!(owner, Owner::SHARED);
        assert_eq!(shares.used_by(owner, one), Owner::SHARED);
        shares.remove(owner);
        assert_eq!((shares.total, shares.held), (0, [0; OWNERS]));
    }

    #[test]
    fn consecutive_disks_have_different_owners_and_none_is_the_shared_one() {
        let mut seen: Vec<_> = (1000..1255).map(|disk| Owner::of(DiskId(disk)).0).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 255);
        assert!(!seen.contains(&Owner::SHARED.0));
    }
}
