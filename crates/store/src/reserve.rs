//! The arithmetic of the room that a store owns: see [`Store::reserve`](crate::Store::reserve).

use crate::Capacity;

/// The use for which a part of the room is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The room is used for bytes of an object.
    Data,
    /// The room is used for a superblock copy, or for the deletion of an object: without these operations, no
    /// room is ever freed.
    Freeing,
}

/// One part in this number of the room is given up only for [`Purpose::Freeing`].
const FREEING_PART: u64 = 16;

/// The room that a store owns, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OwnedRoom {
    /// The bytes that the store is to hold.
    pub goal: u64,
    /// The bytes that the store holds in reserve.
    pub held: u64,
}

impl OwnedRoom {
    /// The capacity of a store with `total` bytes, of which `unused` bytes are free in addition to the owned
    /// room.
    pub fn capacity(&self, total: u64, unused: u64) -> Capacity {
        let is_short = !self.is_whole();
        let unused = if is_short { 0 } else { unused };
        Capacity { total, free: unused + self.held, is_short }
    }

    pub fn is_whole(&self) -> bool {
        self.held >= self.goal
    }

    /// The bytes that are still held after `bytes` were given up, in multiples of `granule`; `None` if
    /// nothing is left for the purpose.
    pub fn without(&self, bytes: u64, purpose: Purpose, granule: u64) -> Option<u64> {
        let kept = match purpose {
            Purpose::Data => (self.goal / FREEING_PART).next_multiple_of(granule),
            Purpose::Freeing => 0,
        };
        let left = self.held.checked_sub(kept).filter(|left| *left > 0)?;
        Some(self.held - bytes.max(1).next_multiple_of(granule).min(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_is_kept_for_what_frees_room() {
        let mut room = OwnedRoom { goal: 160, held: 160 };
        assert!(room.is_whole());
        room.held = 40;
        let mut give_up = |bytes, purpose| {
            let held = room.without(bytes, purpose, 4)?;
            room.held = held;
            Some(held)
        };
        assert_eq!(give_up(5, Purpose::Data), Some(32), "whole granules");
        assert_eq!(give_up(100, Purpose::Data), Some(12));
        assert_eq!(give_up(1, Purpose::Data), None);
        assert_eq!(give_up(0, Purpose::Freeing), Some(8));
        assert_eq!([give_up(9, Purpose::Freeing), give_up(1, Purpose::Freeing)], [Some(0), None]);
        assert!(!room.is_whole());
    }
}
