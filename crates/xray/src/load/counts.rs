//! The counters that all loads have.

use serde::Serialize;

/// Counts of requests; see the module documentation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
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
    /// The NBD error number of the first error; over iSCSI, sense key, code and qualifier, or the status.
    pub first_error: Option<u32>,
    /// Requests that met a reservation of another host, and were sent again.
    pub conflicts: u64,
    /// Verified blocks; in the load generator, requests whose content was verified.
    pub verified: u64,
    /// Number of verified blocks, or requests, with wrong content.
    #[serde(rename = "mismatches")]
    pub wrong: u64,
}

impl Counts {
    /// Number of reads and writes that were answered.
    pub fn ops(&self) -> u64 {
        self.reads + self.writes
    }

    /// Bytes of reads and writes.
    pub fn bytes(&self) -> u64 {
        self.read_bytes + self.write_bytes
    }

    /// Counts a read or write that succeeded.
    pub fn answered(&mut self, write: bool, bytes: u32) {
        let (ops, sum) = if write {
            (&mut self.writes, &mut self.write_bytes)
        } else {
            (&mut self.reads, &mut self.read_bytes)
        };
        *ops += 1;
        *sum += u64::from(bytes);
    }

    /// Counts a request that failed.
    pub fn failed(&mut self, code: u32) {
        self.errors += 1;
        self.first_error.get_or_insert(code);
    }

    /// Adds the counters of another client.
    pub fn add(&mut self, other: &Counts) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.read_bytes += other.read_bytes;
        self.write_bytes += other.write_bytes;
        self.flushes += other.flushes;
        self.errors += other.errors;
        self.first_error = self.first_error.or(other.first_error);
        self.conflicts += other.conflicts;
        self.verified += other.verified;
        self.wrong += other.wrong;
    }
}
