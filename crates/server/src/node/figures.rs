//! The figures of a node for its metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use forebay_gateway::link;
use forebay_store::rados::{DEAD_AFTER, Sight};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::decide::Process;

/// What a node counts since its start.
pub(super) struct Figures {
    pub started: Instant,
    /// When the map was known to be the present one.
    map_read: Mutex<Instant>,
    /// The shards that the node looks at often.
    watched: Mutex<BTreeMap<u32, Watched>>,
    pub takeovers: AtomicU64,
    pub handovers: AtomicU64,
    pub handover_pause_ms: AtomicU64,
    pub handover_failures: AtomicU64,
    pub process_ends: AtomicU64,
    pub links: Arc<link::Counters>,
    /// Requests of the API that were sent to a process of this node, and to other nodes; failed attempts.
    pub api_own: AtomicU64,
    pub api_other: AtomicU64,
    pub api_failed: AtomicU64,
}

/// A shard as the node has seen it last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watched {
    pub process: Process,
    /// Since when the pool has had no owner that lives.
    pub unowned_since: Option<Instant>,
}

impl Watched {
    /// For how long the pool has had no owner that lives.
    pub fn unowned_for(&self) -> Duration {
        self.unowned_since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Figures {
    pub fn new() -> Figures {
        let now = Instant::now();
        Figures {
            started: now,
            map_read: Mutex::new(now),
            watched: Mutex::default(),
            takeovers: AtomicU64::new(0),
            handovers: AtomicU64::new(0),
            handover_pause_ms: AtomicU64::new(0),
            handover_failures: AtomicU64::new(0),
            process_ends: AtomicU64::new(0),
            links: Arc::default(),
            api_own: AtomicU64::new(0),
            api_other: AtomicU64::new(0),
            api_failed: AtomicU64::new(0),
        }
    }

    /// Records that the map is the present one.
    pub fn map_was_read(&self) {
        *self.map_read.lock() = Instant::now();
    }

    pub fn map_age(&self) -> Duration {
        self.map_read.lock().elapsed()
    }

    /// Records what a look at the pool of a shard has shown. `None` means that the pool does not exist.
    pub fn saw(&self, shard: u32, process: Process, sight: Option<&Sight>) {
        let now = Instant::now();
        let unowned_for = match sight {
            None => Some(Duration::ZERO),
            Some(seen) if seen.owner.is_none() || seen.is_free || seen.silent_for >= DEAD_AFTER => {
                Some(seen.silent_for)
            }
            Some(_) => None,
        };
        let mut watched = self.watched.lock();
        let before = watched.get(&shard).and_then(|before| before.unowned_since);
        let since = |time| before.unwrap_or_else(|| now.checked_sub(time).unwrap_or(now));
        watched.insert(shard, Watched { process, unowned_since: unowned_for.map(since) });
    }

    /// Records that this node does not look at a shard often.
    pub fn forget(&self, shard: u32) {
        self.watched.lock().remove(&shard);
    }

    pub fn watched(&self) -> BTreeMap<u32, Watched> {
        self.watched.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use forebay_store::rados::SignOfLife;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_shard_without_an_owner_is_timed_until_it_has_one() {
        let figures = Figures::new();
        let sight = |owner: bool, is_free, silent_for| Sight {
            is_serving: owner,
            owner: owner.then(|| "host a, process 1".to_owned()),
            sign: SignOfLife { term: 7, beat: 9 },
            is_free,
            silent_for,
        };
        let unowned = || figures.watched()[&7].unowned_for();
        let second = Duration::from_secs(1);
        figures.saw(7, Process::None, Some(&sight(true, false, second)));
        assert_eq!(unowned(), Duration::ZERO, "one missed beat");
        tokio::time::advance(10 * second).await;
        figures.saw(7, Process::None, Some(&sight(true, false, DEAD_AFTER)));
        assert_eq!(unowned(), DEAD_AFTER);
        tokio::time::advance(second).await;
        figures.saw(7, Process::None, Some(&sight(true, true, Duration::ZERO)));
        assert_eq!(unowned(), DEAD_AFTER + second, "it was released, and has had no owner for longer");
        figures.saw(7, Process::None, Some(&sight(true, false, Duration::ZERO)));
        assert_eq!(unowned(), Duration::ZERO);
        figures.saw(7, Process::None, None);
        tokio::time::advance(second).await;
        assert_eq!(unowned(), second, "the pool is missing");
        figures.forget(7);
        assert!(figures.watched().is_empty());
    }
}
