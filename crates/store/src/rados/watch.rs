//! Reads the header of a pool repeatedly, and measures for how long ownership and heartbeat have not changed.
//!
//! A duration is the sum of the times between the answers to reads that succeeded. These times include the
//! latencies of the reads, so a busy cluster does not make the measured duration longer than the real one.
//! Each read adds at most [`MAX_STEP`], and an owner is regarded as dead only after [`MIN_READS`] reads
//! without a change. So a server that is paused, or whose reads hang or fail, measures less time than has
//! passed. Such a server therefore never regards a living owner as dead.

use std::time::Duration;

use super::cluster::{Answer, Cluster, Errno};
use super::header::Header;
use super::ownership::DEAD_AFTER;

/// Maximum time that one read adds to the observed time.
const MAX_STEP: Duration = Duration::from_secs(1);
/// Minimum number of reads of the same state before a server counts as dead: on a cluster that answers late,
/// a heartbeat is as late as two or three reads.
const MIN_READS: u32 = 4;
/// Interval between reports of an error that persists: the first interval, and the maximum.
const FIRST_REPORT: Duration = Duration::from_secs(10);
const LAST_REPORT: Duration = Duration::from_secs(3600);

/// A header that is read repeatedly.
pub(super) struct Watch {
    pub seen: Header,
    /// The time that the last successful read has added to the observed time.
    pub passed: Duration,
    /// When the last read was answered; `None` if it failed.
    answered: Option<Duration>,
    /// Time for which the ownership and the heartbeat have been unchanged.
    unchanged: Duration,
    /// The number of reads in the time `unchanged`.
    reads: u32,
    errors: Errors,
}

impl Watch {
    pub fn new(seen: Header) -> Watch {
        Watch {
            seen,
            passed: Duration::ZERO,
            answered: None,
            unchanged: Duration::ZERO,
            reads: 0,
            errors: Errors::new("the header of the pool cannot be read"),
        }
    }

    /// Waits, and reads the header. Returns whether the ownership or the heartbeat has changed.
    ///
    /// # Errors
    /// The error of the read, which does not show the owner's state. It is logged unless the header is
    /// missing.
    pub async fn look(&mut self, cluster: &dyn Cluster, interval: Duration) -> Answer<bool> {
        let since = self.answered.take().unwrap_or_else(|| cluster.now());
        cluster.sleep(interval).await;
        match Header::read(cluster).await {
            Ok(header) => {
                self.errors.end();
                let has_changed = state(&header) != state(&self.seen);
                let now = cluster.now();
                self.passed = now.saturating_sub(since).min(MAX_STEP);
                self.answered = Some(now);
                match has_changed {
                    true => self.restart(),
                    false => {
                        self.unchanged += self.passed;
                        self.reads += 1;
                    }
                }
                self.seen = header;
                Ok(has_changed)
            }
            Err(e) => {
                self.restart();
                if e != Errno(libc::ENOENT) {
                    self.errors.report(cluster.now(), e);
                }
                Err(e)
            }
        }
    }

    fn restart(&mut self) {
        (self.unchanged, self.reads) = (Duration::ZERO, 0);
    }

    /// Whether the state has been unchanged for so long that the owner is regarded as dead, or the heir of a
    /// pool that was handed over.
    pub fn is_silent(&self) -> bool {
        self.is_silent_for(DEAD_AFTER)
    }

    /// For how long nothing has changed: zero before enough reads have shown it.
    pub fn silent_for(&self) -> Duration {
        if self.reads >= MIN_READS { self.unchanged } else { Duration::ZERO }
    }

    /// Whether nothing has changed for this long.
    pub fn is_silent_for(&self, time: Duration) -> bool {
        self.silent_for() >= time
    }
}

/// The fields of the header that only owners and servers that take the pool over change.
fn state(header: &Header) -> (u64, &str, &str, &str) {
    (header.term, &header.owner, &header.heir, &header.beat)
}

/// Reports of an error that may persist: the first report is made at once, further reports at growing
/// intervals.
pub(super) struct Errors {
    what: &'static str,
    /// Time at which the error is reported again, and the interval that follows.
    next: Option<(Duration, Duration)>,
}

impl Errors {
    pub fn new(what: &'static str) -> Errors {
        Errors { what, next: None }
    }

    /// Reports that an operation failed at this time of [`Cluster::now`].
    pub fn report(&mut self, now: Duration, Errno(e): Errno) {
        if let Some(interval) = self.is_due(now) {
            let error = std::io::Error::from_raw_os_error(e);
            let (what, missing) = (self.what, missing(e));
            tracing::warn!(%error, again_in = ?interval, "{what}{missing}");
        }
    }

    /// Records that an operation succeeded.
    pub fn end(&mut self) {
        self.next = None;
    }

    fn is_due(&mut self, now: Duration) -> Option<Duration> {
        let interval = match self.next {
            Some((due, _)) if now < due => return None,
            Some((_, last)) => (last * 2).min(LAST_REPORT),
            None => FIRST_REPORT,
        };
        self.next = Some((now + interval, interval));
        Some(interval)
    }
}

/// Text that states what to do about an error.
fn missing(errno: i32) -> &'static str {
    match errno {
        libc::EPERM | libc::EACCES => {
            ": the key of the Ceph user lacks the right to read or write objects in this namespace; see 'ceph auth get'"
        }
        libc::ESHUTDOWN => ": this client is on the blocklist of Ceph; see 'ceph osd blocklist ls'",
        libc::EUCLEAN => ": the object \"pool\" of this namespace is not the header of a Forebay pool",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_reported_at_growing_intervals() {
        let mut errors = Errors::new("x");
        let at = |errors: &mut Errors| {
            (0..200).filter(|s| errors.is_due(Duration::from_secs(*s)).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(at(&mut errors), [0, 10, 30, 70, 150]);
        errors.end();
        assert!(errors.is_due(Duration::from_secs(201)).is_some());
        assert!(missing(libc::EPERM).contains("lacks the right"));
    }
}
