//! Reservation notifications of a controller: log pages that its host reads one after another (Base 8.19.10).

use std::collections::{BTreeMap, VecDeque};

use forebay_wire::nvme::reservation::{ReservationNotice, notification};
use forebay_wire::nvme::{ALL_NAMESPACES, NAMESPACES};
use parking_lot::Mutex;

use crate::scsi::UnitAttention;

/// Maximum number of notices that wait. A further one displaces the oldest one; the host learns of it from
/// the counts of the log pages.
const NOTICES_MAX: usize = 255;

/// The notices that the host has not read, and its masks.
#[derive(Default)]
pub(super) struct Notices(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: VecDeque<(u64, u32, ReservationNotice)>,
    count: u64,
    /// The types of notices that the host does not want, as bits, by namespace.
    masks: BTreeMap<u32, u32>,
}

fn notice_of(event: UnitAttention) -> Option<ReservationNotice> {
    match event {
        UnitAttention::RegistrationsPreempted => Some(ReservationNotice::RegistrationPreempted),
        UnitAttention::ReservationsReleased => Some(ReservationNotice::ReservationReleased),
        UnitAttention::ReservationsPreempted => Some(ReservationNotice::ReservationPreempted),
        _ => None,
    }
}

impl Notices {
    /// Adds a notice of an event. Returns whether the host is to be notified.
    pub fn note(&self, namespace: u32, event: UnitAttention) -> bool {
        let Some(notice) = notice_of(event) else { return false };
        let mut state = self.0.lock();
        if state.masks.get(&namespace).is_some_and(|mask| mask & 1 << notice as u32 != 0) {
            return false;
        }
        // 0 is no count of a log page that has a notice.
        state.count = state.count.wrapping_add(1).max(1);
        if state.waiting.len() >= NOTICES_MAX {
            state.waiting.pop_front();
        }
        let count = state.count;
        state.waiting.push_back((count, namespace, notice));
        true
    }

    /// Whether notices wait.
    pub fn are_waiting(&self) -> bool {
        !self.0.lock().waiting.is_empty()
    }

    /// The log page with the oldest notice, which is removed unless it is to be retained.
    pub fn page(&self, retain: bool) -> Vec<u8> {
        let mut state = self.0.lock();
        let more = state.waiting.len().saturating_sub(1);
        let first = if retain { state.waiting.front().copied() } else { state.waiting.pop_front() };
        match first {
            Some((count, namespace, notice)) => notification(count, Some((namespace, notice)), more),
            None => notification(state.count, None, 0),
        }
    }

    pub fn mask(&self, namespace: u32) -> u32 {
        self.0.lock().masks.get(&namespace).copied().unwrap_or(0)
    }

    /// Sets the mask of a namespace, or of all.
    pub fn set_mask(&self, namespace: u32, mask: u32) {
        let mut state = self.0.lock();
        if namespace == ALL_NAMESPACES {
            state.masks = (1..=NAMESPACES).map(|namespace| (namespace, mask)).collect();
        } else {
            state.masks.insert(namespace, mask);
        }
    }

    /// Forgets all notices and masks: the controller was reset.
    pub fn reset(&self) {
        *self.0.lock() = State::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_read_one_after_another_and_can_be_masked() {
        let notices = Notices::default();
        assert!(!notices.note(1, UnitAttention::CapacityChanged) && !notices.are_waiting());
        assert!(notices.note(1, UnitAttention::ReservationsReleased));
        assert!(notices.note(2, UnitAttention::RegistrationsPreempted));
        let page = |retain| {
            let page = notices.page(retain);
            (page[0], page[8], page[9], page[12])
        };
        assert_eq!(page(true), (1, 2, 1, 1));
        assert_eq!([page(false), page(false), page(false)], [(1, 2, 1, 1), (2, 1, 0, 2), (2, 0, 0, 0)]);
        notices.set_mask(ALL_NAMESPACES, 1 << 3);
        notices.set_mask(2, 1 << 1);
        assert!(!notices.note(1, UnitAttention::ReservationsPreempted));
        assert!(!notices.note(2, UnitAttention::RegistrationsPreempted));
        assert!(notices.note(2, UnitAttention::ReservationsPreempted));
        assert_eq!((notices.mask(1), notices.mask(2)), (8, 2));
        for _ in 0..1000 {
            notices.note(7, UnitAttention::ReservationsReleased);
        }
        assert_eq!(notices.page(true)[9], 254);
        notices.reset();
        assert!(!notices.are_waiting() && notices.mask(1) == 0);
    }
}
