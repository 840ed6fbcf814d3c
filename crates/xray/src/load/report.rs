//! The results of a load.

use hdrhistogram::Histogram;
use serde::Serialize;

/// A summary of latencies, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Arithmetic mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// The maximum.
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
    /// Reads among them.
    pub reads: u64,
    /// Writes among them.
    pub writes: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Time from the first request to the last reply, including a final flush.
    pub seconds: f64,
    /// Reads and writes per second.
    pub iops: f64,
    /// MiB per second.
    pub mib_s: f64,
    /// Of reads and writes.
    pub latency: Latency,
    /// Flushes that were answered.
    pub flushes: u64,
    /// Of flushes.
    pub flush_latency: Latency,
    /// Requests that the server answered with an error.
    pub errors: u64,
    /// The NBD error number of the first one; over iSCSI, sense key, code and qualifier, or the status.
    pub first_error: Option<u32>,
    /// Requests that met a reservation of another host, and were sent again.
    pub conflicts: u64,
    /// Reads whose content was verified.
    pub verified: u64,
    /// Verified reads with wrong content.
    pub mismatches: u64,
    /// Offset of the first wrong content.
    pub first_mismatch: Option<u64>,
}

/// Counters of one connection during a run.
pub(super) struct Tally {
    pub reads: u64,
    pub writes: u64,
    pub bytes: u64,
    pub flushes: u64,
    pub errors: u64,
    pub first_error: Option<u32>,
    pub conflicts: u64,
    pub verified: u64,
    pub mismatches: u64,
    pub first_mismatch: Option<u64>,
    pub nanos: Histogram<u64>,
    pub flush_nanos: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        Tally {
            reads: 0,
            writes: 0,
            bytes: 0,
            flushes: 0,
            errors: 0,
            first_error: None,
            conflicts: 0,
            verified: 0,
            mismatches: 0,
            first_mismatch: None,
            nanos: histogram(),
            flush_nanos: histogram(),
        }
    }
}

/// 1 ns to 1,000 s with three significant figures.
fn histogram() -> Histogram<u64> {
    const LONGEST_NS: u64 = 1_000_000_000_000;
    Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("these bounds are valid")
}

impl Tally {
    /// Adds the counters of another connection.
    pub fn add(&mut self, other: &Tally) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.bytes += other.bytes;
        self.flushes += other.flushes;
        self.errors += other.errors;
        self.first_error = self.first_error.or(other.first_error);
        self.conflicts += other.conflicts;
        self.verified += other.verified;
        self.mismatches += other.mismatches;
        self.first_mismatch = self.first_mismatch.or(other.first_mismatch);
        // Both have the same bounds, so that every value fits.
        self.nanos += &other.nanos;
        self.flush_nanos += &other.flush_nanos;
    }

    /// Calculates the report.
    pub fn report(&self, seconds: f64) -> Report {
        let ops = self.reads + self.writes;
        let per_second = |n: f64| if seconds > 0.0 { n / seconds } else { 0.0 };
        Report {
            ops,
            reads: self.reads,
            writes: self.writes,
            bytes: self.bytes,
            seconds,
            iops: per_second(ops as f64),
            mib_s: per_second(self.bytes as f64 / f64::from(1 << 20)),
            latency: Latency::of(&self.nanos),
            flushes: self.flushes,
            flush_latency: Latency::of(&self.flush_nanos),
            errors: self.errors,
            first_error: self.first_error,
            conflicts: self.conflicts,
            verified: self.verified,
            mismatches: self.mismatches,
            first_mismatch: self.first_mismatch,
        }
    }
}
