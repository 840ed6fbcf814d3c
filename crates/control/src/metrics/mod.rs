//! `GET /metrics`: the counters of the server in Prometheus' text format.
//!
//! **Guests do not wait for a scrape.** It reads counters that exist anyway; the only lock that it shares
//! with requests is the catalogue's, which it holds for reading while it copies the list of disks. It waits
//! for the store only to learn its free room, and not longer than `POOL_WAIT`: without an answer, it
//! reports everything else.
//!
//! **Size.** The number of series is fixed, apart from the series of single volumes, which are optional and
//! limited ([`VolumeSeries`](crate::operations::VolumeSeries)).
//!
//! A node of a cluster returns metrics of the node ([`node`]), and the metrics of the servers of its shards,
//! to which it adds a label with the number of the shard (`merge`).

mod families;
mod merge;
pub mod node;
mod text;

use std::time::Duration;

use families::{Sample, write_all};

use crate::operations::Control;

/// The media type of the text format, version 0.0.4.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Maximum wait for the store to report its free room.
const POOL_WAIT: Duration = Duration::from_secs(2);
/// Renders all metrics.
pub async fn render(control: &Control) -> String {
    let pool = control.pool().clone();
    let stats = tokio::time::timeout(POOL_WAIT, pool.stats()).await.ok();
    let observed = control.observed();
    let sample = Sample {
        stats: stats.as_ref(),
        disks: pool.guest_stats(),
        sessions: control.targets().session_counts(),
        uptime: control.info().started.elapsed(),
        pool: &control.info().pool,
        observed: &observed,
    };
    write_all(&sample)
}

/// All metrics: name, type and description.
pub fn list() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    families::ABOUT.iter().chain(node::ABOUT).map(|m| (m.name, m.kind, m.help))
}

/// Returns the resident memory of this process in bytes; 0 if `/proc` is not available.
pub(crate) fn resident_memory() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_ascii_whitespace().nth(1).and_then(|p| p.parse().ok()).unwrap_or(0);
    // SAFETY: sysconf has no preconditions; it reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages * u64::try_from(page).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_not_zero() {
        assert!(resident_memory() > 0);
    }
}
