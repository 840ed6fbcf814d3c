//! Figures of the log for statistics.

use super::Log;

/// Figures of the log, which can be read while a commit has the log locked.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LogFigures {
    /// Sequence number of the last durable batch.
    pub seq: u64,
    /// Number of segments in the store.
    pub segments: u64,
    /// Bytes of all segments that were not moved.
    pub stored_bytes: u64,
}

impl LogFigures {
    pub fn of(log: &Log) -> LogFigures {
        let table = log.table();
        LogFigures { seq: log.head().seq, segments: table.len() as u64, stored_bytes: table.in_place_bytes() }
    }
}
