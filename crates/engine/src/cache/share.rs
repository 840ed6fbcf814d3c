//! Shares of a cache: how many blocks of each disk it holds, and which disks hold less than their share.
//!
//! A block belongs to the disk that inserted it, also if others use it. Each active disk has the same share
//! of the blocks. [`super::shard`] keeps what a disk below its share uses longer than what others use.
//!
//! Disks are counted in [`OWNERS`] groups, so that the counts take 2 KiB whatever the number of disks. The
//! disks of one group have one share together; 255 disks with consecutive numbers are in different groups.

use forebay_format::DiskId;

/// Groups that are counted: all values of an [`Owner`].
const OWNERS: usize = 1 << u8::BITS;

/// The group of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(u8);

impl Owner {
    /// Of blocks whose disk is not known.
    pub const UNKNOWN: Owner = Owner(0);

    /// The group of a disk.
    pub const fn of(disk: DiskId) -> Owner {
        Owner(1 + (disk.0 % (OWNERS as u32 - 1)) as u8)
    }
}

/// Number of blocks held for each owner, and which owners are active: had a use or an insertion in this
/// period or the one before. A period has as many insertions as there are blocks.
pub(super) struct Shares {
    held: [u32; OWNERS],
    /// Sum of `held`.
    total: u32,
    /// Period in which an owner was last active; 0 for never.
    last: [u32; OWNERS],
    period: u32,
    /// Insertions in this period.
    inserted: u32,
    /// Active owners when this period began.
    active: u32,
}

impl Default for Shares {
    fn default() -> Shares {
        Shares { held: [0; OWNERS], total: 0, last: [0; OWNERS], period: 2, inserted: 0, active: 0 }
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
            self.active = (0..=u8::MAX).map(|owner| u32::from(self.is_active(Owner(owner)))).sum();
        }
    }

    /// Counts a block that is evicted, which was added before.
    pub fn remove(&mut self, owner: Owner) {
        self.held[usize::from(owner.0)] -= 1;
        self.total -= 1;
    }

    /// Records a use of a block.
    pub fn used(&mut self, owner: Owner) {
        self.last[usize::from(owner.0)] = self.period;
    }

    fn is_active(&self, owner: Owner) -> bool {
        self.last[usize::from(owner.0)] + 1 >= self.period
    }

    /// Whether the owner is active and holds less than its share.
    pub fn is_below(&self, owner: Owner) -> bool {
        let held = self.held[usize::from(owner.0)];
        self.active > 1
            && self.is_active(owner)
            && u64::from(held) * u64::from(self.active) < u64::from(self.total)
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
                used.iter().for_each(|owner| shares.used(*owner));
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
    fn consecutive_disks_have_different_owners_and_none_is_unknown() {
        let mut seen: Vec<_> = (1000..1255).map(|disk| Owner::of(DiskId(disk)).0).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 255);
        assert!(!seen.contains(&Owner::UNKNOWN.0));
    }
}
