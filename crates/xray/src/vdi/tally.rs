//! Counters and latencies of guests in a phase.

use hdrhistogram::Histogram;

/// Operations, bytes, latencies and errors.
#[derive(Debug, Clone)]
pub struct Tally {
    /// Reads that were answered.
    pub reads: u64,
    /// Writes that were answered.
    pub writes: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub write_bytes: u64,
    /// Flushes that were answered.
    pub flushes: u64,
    /// Requests that the server answered with an error.
    pub errors: u64,
    /// NBD error number of the first error.
    pub first_error: Option<u32>,
    /// Blocks whose content was verified.
    pub checked_blocks: u64,
    /// Verified blocks with wrong content.
    pub wrong_blocks: u64,
    /// Latencies, from the arrival of an operation to its answer.
    pub nanos: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Tally {
        /// The longest latency that is recorded: 1,000 s.
        const LONGEST_NS: u64 = 1_000_000_000_000;
        Tally {
            reads: 0,
            writes: 0,
            read_bytes: 0,
            write_bytes: 0,
            flushes: 0,
            errors: 0,
            first_error: None,
            checked_blocks: 0,
            wrong_blocks: 0,
            nanos: Histogram::new_with_bounds(1000, LONGEST_NS, 2).expect("these bounds are valid"),
        }
    }
}

impl Tally {
    /// Counts an answer.
    pub fn done(&mut self, read: bool, bytes: u32, nanos: u64) {
        if read {
            self.reads += 1;
            self.read_bytes += u64::from(bytes);
        } else {
            self.writes += 1;
            self.write_bytes += u64::from(bytes);
        }
        self.nanos.saturating_record(nanos);
    }

    /// Adds the counters of another desktop.
    pub fn add(&mut self, other: &Tally) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.read_bytes += other.read_bytes;
        self.write_bytes += other.write_bytes;
        self.flushes += other.flushes;
        self.errors += other.errors;
        self.first_error = self.first_error.or(other.first_error);
        self.checked_blocks += other.checked_blocks;
        self.wrong_blocks += other.wrong_blocks;
        // Both have the same bounds, so that every value fits.
        self.nanos += &other.nanos;
    }

    /// A quantile of the latencies, in milliseconds.
    pub fn latency_ms(&self, quantile: f64) -> f64 {
        self.nanos.value_at_quantile(quantile) as f64 / 1e6
    }
}
