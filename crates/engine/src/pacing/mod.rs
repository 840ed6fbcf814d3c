//! What a commit costs, and the feedback loops that depend on it. This page lists every feedback loop of the
//! engine, also those in other folders: a change of one loop has to consider the loops that it meets.
//!
//! 1. **Commit scheduling** ([`schedule`]). Input: the cost of a commit at the store, the number of requests
//!    that a commit serves, and how soon they return. Output: how long an urgent commit waits for more
//!    requests, at most 10 ms. Time constant: eight commits. Meets 2, which requests a commit when half of
//!    its bound is dirty. Does not disturb 2 and 3: the time of a commit begins with its freeze, after the
//!    delay.
//! 2. **Flush bound** ([`flush_bound`]). Input: the recent cost of a commit, and which disks flush how
//!    often. Output: the bytes that other disks may buffer, and the size of the pieces of long writes. Time
//!    constant: eight commits for the cost; a disk counts for a second after its flush. Meets 1, 4 (the
//!    lower of both limits applies) and 3: reads that slow commits raise the cost, and so this bound.
//! 3. **Read bound** ([`read_bound`]). Input: how much longer a commit takes than a calm one while disks
//!    flush. Output: the bytes that other disks may read from the store at a time, 256 KiB to 8 MiB. It
//!    halves with a slow commit, and doubles in about 22 commits while reads wait; calm measurements are
//!    dropped after 1,000 to 2,000. Meets 6 and the mark of 7, whose reads and writes also slow commits: the
//!    bound then falls although reads are not the cause.
//! 4. **Room for writers** ([`crate::space`]). Input: free room above the reserve, observed by the first
//!    commit after 50 ms, or sooner if much was written. Output: the bytes that may be dirty. Time constant:
//!    until the next observation. Meets 2 and 5.
//! 5. **Writers are paced to the reclaim rate** ([`write_pace`], ADR 12). Input: the room that is left of a
//!    thirty-second of the store, and the rate at which room was freed in about 3 s of cleaning. Output:
//!    bytes that all guests may write in a second. Meets 6: both settle where a third of that margin is
//!    left, and 1: the requests of paced writers return late, so no commit waits for them.
//! 6. **The cleaner's share of the time** ([`crate::reclaim`]). Input: the same margin, for each segment.
//!    Output: 25 % to 100 % of the time, 50 % or more if an administrator requested the reclaim; pauses are
//!    at most 500 ms. Meets 3 and 5.
//! 7. **When a reclaim begins** ([`crate::space`]). Input: bytes written and discarded since the last mark,
//!    free room, what the last reclaims gained. Output: the pause until the next reclaim, from none to four
//!    times the duration of the last one, at least 10 s on a store with room; and whether a writer waits or
//!    is refused, after three reclaims that gained too little. Meets 5 and 6, whose rates it starts.
//! 8. **Reading ahead** ([`crate::streams`], ADR 20). Input: whether the reader follows, and blocks that
//!    were evicted before their use. Output: the window of a stream, up to 4 MiB; doubles with each step,
//!    halves with an eviction. Meets 3, half of whose bound limits it, and 9, which decides what is evicted.
//! 9. **Shares of the read cache** ([`crate::cache`]). Input: the blocks that each disk holds. Output: whose
//!    blocks are evicted first. Time constant: as many insertions as the cache has blocks. Meets 8.
//!
//! Not loops: the limit of cold writes for each disk (ADR 13) and the limits of administrators
//! ([`crate::limit`]) do not depend on what they cause; [`crate::fair`] only divides what the loops permit;
//! the advice on the size of the read cache changes nothing. Outside of the engine: threads that look before
//! they sleep (ADR 22), and stores that write zeroes ahead or continue in another segment (ADR 19, 29).

mod cost;
mod flush_bound;
mod read_bound;
mod schedule;
mod write_pace;

use std::time::Duration;

use cost::CommitCost;
use flush_bound::{FlushBound, Flushing};
use read_bound::ReadBound;
pub(crate) use schedule::Schedule;
pub(crate) use write_pace::{FreeingRate, WritePace};

use crate::context::Context;
use crate::sync::Mutex;

/// The costs of commits, and the feedback loops that depend on them.
#[derive(Default)]
pub(crate) struct Pacing {
    cost: Mutex<CommitCost>,
    pub schedule: Schedule,
    flushes: FlushBound,
    reads: ReadBound,
}

/// Bytes of a committed group, in the write buffers and in the log.
pub(crate) struct GroupBytes {
    /// Bytes of the group in the write buffers.
    pub buffered: u64,
    /// Bytes that the group added to the log.
    pub logged: u64,
}

impl Pacing {
    /// Records that a client of disk `id` waits for its data to become durable.
    pub fn record_flush(&self, id: u64, now: Duration) {
        let cost = self.cost.lock().recent();
        self.flushes.record_flush(id, cost, now);
    }

    /// Records that a group, whose commit took `took`, is durable at `now`. `reads_wait`: a read waits for
    /// admission.
    pub fn record_group(&self, bytes: &GroupBytes, took: Duration, now: Duration, reads_wait: bool) {
        let mut cost = self.cost.lock();
        cost.record(bytes.buffered, took);
        self.flushes.record_cost(cost.recent(), now);
        let flushing = self.flushes.flushing();
        // If reduction left little of a group, its time shows more about reduction than about the store.
        if flushing != Flushing::None && bytes.logged >= bytes.buffered / 4 {
            let calm = cost.record_calm(bytes.logged, took);
            drop(cost);
            self.reads.record_commit(flushing, calm, took, now, reads_wait);
        }
    }

    /// Records that any commit has ended, which added `logged` bytes to the log.
    pub fn commit_ended(&self, logged: u64, now: Duration) {
        self.cost.lock().record_logged(logged);
        self.schedule.commit_ended(now);
    }

    /// Waits until the next commit begins ([`Schedule::wait_to_coalesce`]). `took` returns the mean time of
    /// an append and a sync, `dirty` the bytes of the group.
    pub async fn wait_to_coalesce(&self, cx: &Context, took: impl Fn() -> Duration, dirty: impl Fn() -> u64) {
        let cost = || self.cost.lock().of_store(took());
        self.schedule.wait_to_coalesce(cx, cost, dirty).await;
    }

    /// Bytes that may be in the write buffers after a request of disk `id`.
    pub fn buffer_bound(&self, id: u64) -> u64 {
        self.flushes.bytes_for(id)
    }

    /// Bytes of the pieces in which a long write of a bounded disk is admitted.
    pub fn write_piece(&self) -> u64 {
        self.flushes.piece()
    }

    /// Bytes of concurrent reads of disk `id` at the store; `None` without a bound.
    pub fn read_bound(&self, id: u64, now: Duration) -> Option<u64> {
        self.reads.bytes_for(id, now)
    }
}
