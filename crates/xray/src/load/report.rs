//! The results of a load.

use hdrhistogram::{Counter, Histogram};
use serde::Serialize;

use super::counts::Counts;

/// A summary of latencies, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Arithmetic mean of the latencies.
    pub mean_us: f64,
    /// Median of the latencies.
    pub p50_us: f64,
    /// 99th percentile of the latencies.
    pub p99_us: f64,
    /// 99.9th percentile of the latencies.
    pub p999_us: f64,
    /// The longest latency.
    pub max_us: f64,
}

impl Latency {
    fn of(nanos: &Histogram<u64>) -> Latency {
        let at = |q| nanos.value_at_quantile(q) as f64 / 1e3;
        Latency {
            mean_us: nanos.mean() / 1e3,
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: nanos.max() as f64 / 1e3,
        }
    }
}

/// The figures of one run, all connections together.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Reads and writes that were answered.
    pub ops: u64,
    /// Bytes of data that reads and writes have moved.
    pub bytes: u64,
    /// The counters of the load.
    #[serde(flatten)]
    pub counts: Counts,
    /// Time from the first request to the last reply, including a final flush.
    pub seconds: f64,
    /// Reads and writes per second.
    pub iops: f64,
    /// Throughput of reads and writes in MiB per second.
    pub mib_s: f64,
    /// Latency of reads and writes.
    pub latency: Latency,
    /// Latency of flushes.
    pub flush_latency: Latency,
    /// Offset of the first wrong content.
    pub first_mismatch: Option<u64>,
}

/// Counters and latencies of one connection during a run.
pub(super) struct Tally {
    pub counts: Counts,
    pub first_mismatch: Option<u64>,
    pub nanos: Histogram<u64>,
    pub flush_nanos: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        let (nanos, flush_nanos) = (histogram(1, 3), histogram(1, 3));
        Tally { counts: Counts::default(), first_mismatch: None, nanos, flush_nanos }
    }
}

/// A histogram of nanoseconds up to 1,000 s, from `least` on, with this number of significant figures.
pub(crate) fn histogram<C: Counter>(least: u64, figures: u8) -> Histogram<C> {
    const LONGEST_NS: u64 = 1_000_000_000_000;
    Histogram::new_with_bounds(least, LONGEST_NS, figures).expect("these bounds are valid")
}

impl Tally {
    /// Adds the counters of another connection.
    pub fn add(&mut self, other: &Tally) {
        self.counts.add(&other.counts);
        self.first_mismatch = self.first_mismatch.or(other.first_mismatch);
        // Both histograms have the same bounds, so that every value fits.
        self.nanos += &other.nanos;
        self.flush_nanos += &other.flush_nanos;
    }

    /// Calculates the report.
    pub fn report(&self, seconds: f64) -> Report {
        let (ops, bytes) = (self.counts.ops(), self.counts.bytes());
        let per_second = |n: f64| if seconds > 0.0 { n / seconds } else { 0.0 };
        Report {
            ops,
            bytes,
            counts: self.counts,
            seconds,
            iops: per_second(ops as f64),
            mib_s: per_second(bytes as f64 / f64::from(1 << 20)),
            latency: Latency::of(&self.nanos),
            flush_latency: Latency::of(&self.flush_nanos),
            first_mismatch: self.first_mismatch,
        }
    }
}
