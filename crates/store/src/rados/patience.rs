//! When an append is overdue.
//!
//! An OSD that hangs answers nothing until Ceph has detected it, which takes from some seconds to half a
//! minute. Objects in other placement groups answer. So an append is overdue if it takes much longer than
//! usual, and a change of the pool's header that began after the append is acknowledged before it. While the
//! whole cluster is slow or does not answer, no append is overdue.
//!
//! An append that is given up although its object would have answered costs a second append and a segment.
//! Therefore the time after which an append is overdue doubles with each overdue append, and is halved by
//! each append that ends in time.

use std::time::Duration;

use parking_lot::Mutex;

/// Minimum time after which an append is overdue.
const LEAST: Duration = Duration::from_millis(400);
/// Additional time for each byte of the append, for slow networks.
const PER_BYTE: Duration = Duration::from_nanos(100);
/// An append is overdue after its usual time multiplied by this number.
const FACTOR: u32 = 4;
/// Maximum number of times that the time is doubled.
const DOUBLINGS: u32 = 5;

/// How long to wait for appends before they are overdue.
#[derive(Default)]
pub(super) struct Patience(Mutex<State>);

#[derive(Default)]
struct State {
    /// The longest of the recent appends; it decreases with each shorter append.
    usual: Duration,
    /// Number of appends that were overdue, minus the number of later appends that were not.
    overdue: u32,
}

impl Patience {
    /// How long an append of `len` bytes may take.
    pub fn time(&self, len: usize) -> Duration {
        let state = self.0.lock();
        let once = LEAST + PER_BYTE.saturating_mul(len as u32) + FACTOR * state.usual;
        once * (1 << state.overdue)
    }

    /// Records that an append has ended without being overdue.
    pub fn ended(&self, took: Duration) {
        let mut state = self.0.lock();
        let usual = took.max(state.usual - state.usual / 8);
        *state = State { usual, overdue: state.overdue.saturating_sub(1) };
    }

    /// Records that an append was overdue.
    pub fn was_overdue(&self) {
        let mut state = self.0.lock();
        state.overdue = (state.overdue + 1).min(DOUBLINGS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_follows_what_appends_take() {
        let patience = Patience::default();
        assert_eq!(patience.time(0), LEAST);
        assert_eq!(patience.time(4 << 20), LEAST + (4 << 20) * PER_BYTE);
        patience.ended(Duration::from_millis(800));
        assert_eq!(patience.time(0), LEAST + Duration::from_millis(3_200));
        (0..100).for_each(|_| patience.ended(Duration::from_millis(1)));
        assert!(patience.time(0) < LEAST + Duration::from_millis(5));
    }

    #[test]
    fn patience_grows_with_overdue_appends_and_falls_with_others() {
        let patience = Patience::default();
        (0..3).for_each(|_| patience.was_overdue());
        assert_eq!(patience.time(0), 8 * LEAST);
        (0..100).for_each(|_| patience.was_overdue());
        assert_eq!(patience.time(0), 32 * LEAST);
        (0..3).for_each(|_| patience.ended(Duration::ZERO));
        assert_eq!(patience.time(0), 4 * LEAST);
    }
}
