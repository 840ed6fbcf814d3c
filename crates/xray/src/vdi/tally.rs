//! Counters and latencies of guests in a phase.

use hdrhistogram::Histogram;

use crate::load::{Counts, histogram};

/// The counters and latencies of guests in a phase. Latencies start at the arrival of an operation.
#[derive(Debug, Clone)]
pub struct Tally {
    pub counts: Counts,
    pub nanos: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally { counts: Counts::default(), nanos: histogram(1000, 2) }
    }
}

impl Tally {
    /// Adds the counters of another desktop.
    pub fn add(&mut self, other: &Tally) {
        self.counts.add(&other.counts);
        // Both histograms have the same bounds, so that every value fits.
        self.nanos += &other.nanos;
    }

    /// A quantile of the latencies, in milliseconds.
    pub fn latency_ms(&self, quantile: f64) -> f64 {
        self.nanos.value_at_quantile(quantile) as f64 / 1e6
    }
}
