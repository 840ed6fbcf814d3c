//! The time of a phase, shared by its threads: when it began, from when on it is measured, and when it ends.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The clock of a phase; see the module documentation. Times are since the start of the phase.
pub(super) struct Clock {
    begun: OnceLock<Instant>,
    measure_ns: AtomicU64,
    end_ns: AtomicU64,
    /// Requests answered so far, for the steady state.
    pub answered: AtomicU64,
    /// A stream failed: end now.
    pub halt: AtomicBool,
}

impl Clock {
    /// A clock that has not begun. Without a warm-up, the phase is `measured` from its first answer on.
    pub fn new(measured: bool) -> Clock {
        Clock {
            begun: OnceLock::new(),
            measure_ns: AtomicU64::new(if measured { 0 } else { u64::MAX }),
            end_ns: AtomicU64::new(u64::MAX),
            answered: AtomicU64::new(0),
            halt: AtomicBool::new(false),
        }
    }

    /// Returns the time of the start; the first call determines it.
    pub fn begun(&self) -> Instant {
        *self.begun.get_or_init(Instant::now)
    }

    pub fn elapsed(&self) -> Duration {
        self.begun().elapsed()
    }

    pub fn measure_from(&self, at: Duration) {
        self.measure_ns.store(at.as_nanos() as u64, Relaxed);
    }

    pub fn is_measured(&self, at: Duration) -> bool {
        at.as_nanos() as u64 >= self.measure_ns.load(Relaxed)
    }

    pub fn end_at(&self, at: Duration) {
        self.end_ns.store(at.as_nanos() as u64, Relaxed);
    }

    /// Returns the time of the end, once it is known.
    pub fn end(&self) -> Option<Instant> {
        let ns = Some(self.end_ns.load(Relaxed)).filter(|ns| *ns != u64::MAX)?;
        Some(self.begun() + Duration::from_nanos(ns))
    }

    /// Whether to end now: a stream failed, or the user interrupted.
    pub fn is_halted(&self) -> bool {
        self.halt.load(Relaxed) || super::interrupted()
    }
}
