//! A Ceph pool that is full or over its quota.
//!
//! Ceph's statistics are some seconds old, so Ceph may refuse appends while guests are still admitted. The
//! writes of these guests are in the buffers and belong to the next commit, even if this commit removes a
//! disk to free room. Therefore:
//!
//! - A refused append is repeated with the request to ignore the limit, up to an allowance of bytes, until
//!   Ceph accepts an append within the limit again. OSDs keep room beyond the limit for such appends.
//! - For some seconds after a refusal, no space is reported as free. So the engine refuses writes of guests,
//!   and the allowance is left for commits that free room.

use std::time::Duration;

use parking_lot::Mutex;

/// How long no space is reported as free after a refusal. After that time, Ceph's statistics include what was
/// written before.
const REPORTED: Duration = Duration::from_secs(8);

/// What is known about the fullness of the pool.
#[derive(Default)]
pub(super) struct Fullness(Mutex<State>);

#[derive(Default)]
struct State {
    /// Time at which an append was last refused; `None` if an append was accepted since.
    refused: Option<Duration>,
    /// Bytes that were appended beyond the limit, in the allowance.
    forced: u64,
}

impl Fullness {
    /// Notes that an append of `len` bytes was refused; returns whether it may be repeated.
    pub fn refused(&self, len: u64, allowance: u64, now: Duration) -> bool {
        let mut state = self.0.lock();
        state.refused = Some(now);
        let forced = state.forced.saturating_add(len);
        if forced > allowance {
            return false;
        }
        state.forced = forced;
        true
    }

    /// Notes that an append was accepted within the limit.
    pub fn accepted(&self) {
        *self.0.lock() = State::default();
    }

    /// Whether no space is to be reported as free.
    pub fn is_reported(&self, now: Duration) -> bool {
        self.0.lock().refused.is_some_and(|at| now.saturating_sub(at) < REPORTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allowance_is_renewed_when_an_append_is_accepted() {
        let (fullness, second) = (Fullness::default(), Duration::from_secs(1));
        assert!(!fullness.is_reported(second));
        assert!(fullness.refused(60, 100, second) && fullness.refused(40, 100, second));
        assert!(!fullness.refused(1, 100, second));
        assert!(fullness.is_reported(8 * second) && !fullness.is_reported(9 * second));
        fullness.accepted();
        assert!(!fullness.is_reported(second) && fullness.refused(100, 100, second));
    }
}
