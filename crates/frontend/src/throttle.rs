//! Rate limits for log lines that a peer can cause: a few lines in each interval, then the number of lines
//! that were dropped.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Length of the interval in which lines of the log are counted.
const INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of lines of one kind in an interval.
const LINES: u32 = 10;

/// A rate limit for one kind of log line.
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

    /// Returns `Some` if a line may be logged now, with the number of lines that were dropped since the last
    /// line; `Some(None)` if no line was dropped, so that the log line then has no such field.
    pub fn permit(&self) -> Option<Option<NonZeroU64>> {
        self.permit_at(Instant::now())
    }

    fn permit_at(&self, now: Instant) -> Option<Option<NonZeroU64>> {
        let mut state = self.0.lock();
        if state.began.is_none_or(|began| now.duration_since(began) >= INTERVAL) {
            (state.began, state.lines) = (Some(now), 0);
        }
        if state.lines == LINES {
            state.left_out += 1;
            return None;
        }
        state.lines += 1;
        Some(NonZeroU64::new(std::mem::take(&mut state.left_out)))
    }
}

/// Returns what is logged while `work` runs on this thread.
#[cfg(test)]
pub(crate) fn log_of(work: impl FnOnce()) -> String {
    /// A log in memory.
    #[derive(Clone, Default)]
    struct Lines(std::sync::Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let lines = Lines::default();
    let writer = lines.clone();
    let log = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(log, work);
    let bytes = lines.0.lock().clone();
    String::from_utf8(bytes).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_reduced_to_a_few_lines_and_a_count() {
        let (throttle, begin) = (Throttle::new(), Instant::now());
        let logged = (0..1000).filter(|_| throttle.permit_at(begin).is_some()).count();
        assert_eq!(logged, LINES as usize);
        assert_eq!(throttle.permit_at(begin + INTERVAL), Some(NonZeroU64::new(1000 - u64::from(LINES))));
        assert_eq!(throttle.permit_at(begin + INTERVAL), Some(None));
    }
}
