//! Several servers that share a pool in a simulated RADOS cluster.
//!
//! Each machine runs at most one server at a time; each server is a process with a client of the cluster. The
//! server that owns the pool has clients; the other servers wait to take the pool over. Servers are killed,
//! paused (nothing of them runs or arrives, and later they continue), cut off (they run, and nothing that
//! they send arrives), and closed in order. Requests and answers take any time, and arrive also after their
//! sender has died.
//!
//! **The verdict.** When a server has taken the pool over, the contents that it finds must be a prefix of the
//! history of the owner before it, as after a crash ([`crate::recover`]), as of the moment at which the fence
//! was complete. The owner before it may not have noticed, and continues with a separate history, which is
//! compared with the same contents when the round ends ([`chain::Shadow`]): whatever was acknowledged as
//! durable, at any time, is in what the successor found, and a client with other answers is refused.
//!
//! Owners also hand the pool over to a server that waits, which may fail at each step: while it waits, after
//! the release, during the fence, while it opens the pool, and afterwards; the former owner may wait for the
//! outcome, or have died. No other server takes a pool that is reserved.
//!
//! In some rounds OSDs hang: objects of some placement groups do not answer for some time, and owners
//! continue in segments of other groups.
//!
//! In some rounds the pool is *scarce*: an owner finds no room for the first batch of a new segment, removes
//! it, and dies while the removal is on its way. Only then does a successor use the number of a removed
//! segment again, since every other removal follows a checkpoint that contains the number; a removal that
//! ignored terms would otherwise do no harm.
//!
//! In addition, the lease of an owner is never valid while the pool has another owner, and no operation fails
//! as fenced while there is no later owner.

mod chain;
mod round;
mod server;

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{BoxFuture, Host};
use forebay_store::rados::World;
use parking_lot::Mutex;

pub use self::round::{RadosRound, Seen};
use crate::exec::SimHost;
use crate::rng::Rng;

/// Clock, tasks and chance of the simulated cluster.
pub(crate) struct Network {
    pub(crate) host: Arc<SimHost>,
    pub(crate) rng: Mutex<Rng>,
    /// One in this many requests or answers takes seconds.
    pub(crate) late: u64,
    /// Many removals take up to a minute.
    pub(crate) late_removals: bool,
}

impl World for Network {
    fn now(&self) -> Duration {
        // Never zero: time passes here.
        self.host.now() + Duration::from_millis(1)
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        self.host.sleep(time)
    }

    fn spawn(&self, client: Option<u64>, task: BoxFuture<'static, ()>) {
        self.host.of_process(client.unwrap_or(0)).spawn("rados", task);
    }

    fn removal_delay(&self) -> Duration {
        let late = || {
            let mut rng = self.rng.lock();
            rng.percent(60).then(|| Duration::from_millis(rng.range(1, 60_000)))
        };
        self.late_removals.then(late).flatten().unwrap_or_else(|| self.delay())
    }

    fn delay(&self) -> Duration {
        let mut rng = self.rng.lock();
        let most_us = match rng.below(100) {
            _ if rng.one_in(self.late) => 20_000_000,
            0..80 => 500,
            80..97 => 5_000,
            _ => 200_000,
        };
        Duration::from_micros(rng.range(1, most_us))
    }
}
