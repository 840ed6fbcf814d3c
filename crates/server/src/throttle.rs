//! Log lines that a peer can cause: a few in each interval, and then how many were left out.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long an interval is.
const INTERVAL: Duration = Duration::from_secs(10);
/// Lines of one kind in an interval.
const LINES: u32 = 10;

/// Limits one kind of line.
pub(crate) struct Throttle(Mutex<State>);

struct State {
    began: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Throttle {
    pub const fn new() -> Throttle {
        Throttle(Mutex::new(State { began: None, lines: 0, left_out: 0 }))
    }

    /// Whether a line may be logged now; if so, how many were left out since the last one.
    pub fn permit(&self) -> Option<u64> {
        self.permit_at(Instant::now())
    }

    fn permit_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        if state.began.is_none_or(|began| now.duration_since(began) >= INTERVAL) {
            (state.began, state.lines) = (Some(now), 0);
        }
        if state.lines == LINES {
            state.left_out += 1;
            return None;
        }
        state.lines += 1;
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_few_lines_and_a_count() {
        let (throttle, begin) = (Throttle::new(), Instant::now());
        let logged = (0..1000).filter(|_| throttle.permit_at(begin).is_some()).count();
        assert_eq!(logged, LINES as usize);
        assert_eq!(throttle.permit_at(begin + INTERVAL), Some(1000 - u64::from(LINES)));
        assert_eq!(throttle.permit_at(begin + INTERVAL), Some(0));
    }
}
