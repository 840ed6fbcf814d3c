//! Sequential readers of one disk: which reads continue each other, and what to read ahead of them.
//!
//! A *stream* is a sequence of requests, each of which continues approximately where the previous request
//! ended. Clients of one disk may have several streams at a time, over one connection or many, and their
//! requests arrive slightly out of order.
//!
//! **Costs.** A stream reads ahead only after a request that continues it has read the store itself, so that
//! no cached disk is read ahead of. Reads that are served from RAM without waiting are reported only while
//! some stream of the disk reads ahead ([`Streams::is_active`]): otherwise they pay for one load. A reader at
//! random positions pays for one look-up in a small table for each miss.
//!
//! **Window.** A stream is at most a *window* ahead of its reader. The window begins small and doubles each
//! time that the reader follows. A block that was read ahead, but has to be read again, was evicted before
//! its use: the window is halved, and grows slowly after that. So it adapts to the cache. A stream
//! ends when all that it would read is cached, at the end of the disk, and when it is idle during many reads.
//!
//! The table only optimizes: no result of a read depends on it. Its lock is below all other locks, and is
//! held for one look-up.

use std::ops::Range;

use crate::limits::{AHEAD_CHUNK, AHEAD_STREAMS, AHEAD_WINDOW, READAHEAD_MAX};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use forebay_format::BLOCK;

/// Number of reads of other streams of the disk after which a stream stops reading ahead.
const IDLE_READS: u64 = 1024;
/// Minimum number of blocks by which requests of a stream may be out of order.
const LEAST_SLACK: u64 = 8;
/// Number of blocks by which the window may grow with each chunk after an eviction.
const GROWTH: u64 = 8;
/// Maximum number of blocks that are read together with a request that continues a stream.
const MOST_TOGETHER: u64 = READAHEAD_MAX / BLOCK as u64;

/// A stream of sequential reads. All positions are block numbers.
#[derive(Debug, Clone)]
struct Stream {
    /// End of the furthest request of the stream.
    next: u64,
    /// The blocks that were read ahead; blocks before `next` may have been requested since.
    ahead: Range<u64>,
    /// Number of blocks that may be read ahead of the stream.
    window: u64,
    /// Maximum of `window`, as far as it is known from evictions.
    most: u64,
    /// The stream has had more than one request.
    is_sequential: bool,
    /// Whether the server reads ahead of the stream.
    is_active: bool,
    /// Number of the last read of the disk that belonged to the stream.
    last_read: u64,
}

impl Stream {
    /// Whether a request belongs to this stream: the request begins between the last requests and the end of
    /// the blocks that were read ahead, or a little before or after them.
    fn includes(&self, request: &Range<u64>) -> bool {
        let slack = (2 * (request.end - request.start)).max(LEAST_SLACK);
        let end = self.next.max(self.ahead.end) + slack;
        (self.next.saturating_sub(slack)..=end).contains(&request.start)
    }

    /// Stops reading ahead of the stream.
    fn stop(&mut self) {
        self.is_active = false;
        self.window = 0;
    }

    /// Tries a larger window again, slowly.
    fn grow_most(&mut self) {
        self.most = (self.most + GROWTH).min(AHEAD_WINDOW);
    }

    /// If half of the window is used, doubles the window and returns the blocks to read ahead now. Half of it
    /// is read at a time, since a hard disk that serves several streams seeks for each read.
    fn plan(&mut self, limits: &Limits) -> Option<Range<u64>> {
        if self.next >= limits.end {
            self.stop();
            return None;
        }
        if !self.is_active {
            return None;
        }
        if self.ahead.end < self.next {
            self.ahead = self.next..self.next;
        }
        let end = (self.next + self.window).min(limits.end);
        let missing = end.saturating_sub(self.ahead.end);
        if missing == 0 || (missing < (self.window / 2).max(AHEAD_CHUNK / 2) && end < limits.end) {
            return None;
        }
        self.grow_most();
        self.window = (self.window * 2).min(limits.window).min(self.most);
        let end = (self.next + self.window).min(limits.end).max(end);
        let plan = self.ahead.end..end;
        self.ahead.end = end;
        Some(plan)
    }
}

/// The limits of reading ahead on a disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Number of blocks of the disk.
    pub end: u64,
    /// Maximum number of blocks that are read ahead of a stream. Below [`AHEAD_CHUNK`], nothing is read
    /// ahead.
    pub window: u64,
}

/// What the streams know about a read that may wait.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Number of blocks after the read to read together with it; `None` if its request continues no stream.
    pub together: Option<u64>,
    /// The blocks of the read were read ahead.
    pub is_expected: bool,
    /// Range of blocks that should be read ahead now.
    pub plan: Option<Range<u64>>,
}

#[derive(Default)]
struct Table {
    streams: Vec<Stream>,
    /// Number of reads of the disk that were reported to this type.
    reads: u64,
}

impl Table {
    /// Finds the stream to which a request belongs.
    fn find(&mut self, request: &Range<u64>) -> Option<&mut Stream> {
        let reads = self.reads;
        let found = self.streams.iter_mut().find(|stream| stream.includes(request))?;
        found.last_read = reads;
        Some(found)
    }

    /// Begins a stream with its first request. It replaces a stream that is idle, or the oldest stream that
    /// has only one request.
    fn begin(&mut self, request: &Range<u64>) {
        let stream = Stream {
            next: request.end,
            ahead: request.end..request.end,
            window: 0,
            most: AHEAD_WINDOW,
            is_sequential: false,
            is_active: false,
            last_read: self.reads,
        };
        if self.streams.len() < AHEAD_STREAMS {
            return self.streams.push(stream);
        }
        let reads = self.reads;
        let is_in_use = |s: &Stream| s.is_sequential && reads - s.last_read <= IDLE_READS;
        if let Some(oldest) = self.streams.iter_mut().min_by_key(|s| (is_in_use(s), s.last_read)) {
            *oldest = stream;
        }
    }

    /// Counts a read of the disk.
    fn count(&mut self) {
        self.reads += 1;
        if self.reads.is_multiple_of(IDLE_READS) {
            let reads = self.reads;
            self.streams.iter_mut().filter(|s| reads - s.last_read > IDLE_READS).for_each(Stream::stop);
        }
    }
}

/// The streams of a disk; see the module documentation.
#[derive(Default)]
pub(crate) struct Streams {
    active: AtomicBool,
    table: Mutex<Table>,
}

impl Streams {
    /// Whether [`Streams::hit`] has to be called.
    pub fn is_active(&self) -> bool {
        self.active.load(Relaxed)
    }

    fn update<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table.lock();
        let changed = change(&mut table);
        self.active.store(table.streams.iter().any(|s| s.is_active), Relaxed);
        changed
    }

    /// Records a read that was served without waiting. Returns blocks to read ahead.
    pub fn hit(&self, request: &Range<u64>, limits: &Limits) -> Option<Range<u64>> {
        self.update(|table| {
            table.count();
            let stream = table.find(request)?;
            stream.next = stream.next.max(request.end);
            stream.plan(limits)
        })
    }

    /// Records the blocks of a read that may wait: a part of a client's `request`.
    pub fn begin(&self, read: &Range<u64>, request: &Range<u64>, limits: &Limits) -> Seen {
        self.update(|table| {
            table.count();
            let Some(stream) = table.find(request) else {
                table.begin(request);
                return Seen::default();
            };
            // Further parts of the first request continue nothing.
            stream.is_sequential |= request.end > stream.next;
            stream.next = stream.next.max(request.end);
            let is_expected =
                stream.is_active && stream.ahead.start <= read.start && read.end <= stream.ahead.end;
            let together = stream.is_sequential.then_some(stream.window.min(MOST_TOGETHER));
            Seen { together, is_expected, plan: stream.plan(limits) }
        })
    }

    /// Records that a read had to read the store itself, and up to `together` blocks after it. `seen` is what
    /// [`Streams::begin`] returned for it. Returns blocks to read ahead.
    pub fn missed(
        &self,
        read: &Range<u64>,
        request: &Range<u64>,
        seen: &Seen,
        together: u64,
        limits: &Limits,
    ) -> Option<Range<u64>> {
        self.update(|table| {
            let stream = table.find(request)?;
            if stream.is_active {
                if seen.is_expected {
                    stream.window /= 2;
                    stream.most = stream.window;
                }
                if stream.window < AHEAD_CHUNK {
                    stream.stop();
                }
                return None;
            }
            stream.grow_most();
            let end = (read.end + together).min(limits.end);
            let may_read_ahead = limits.window.min(stream.most) >= AHEAD_CHUNK;
            if !stream.is_sequential {
                // More requests may follow after these blocks.
                stream.ahead.end = stream.ahead.end.max(end);
                let rest = read.end..request.end.min(limits.end);
                return (may_read_ahead && !rest.is_empty()).then_some(rest);
            }
            let least = (2 * (request.end - request.start)).max(AHEAD_CHUNK);
            stream.window = (stream.window * 2).max(least).min(MOST_TOGETHER);
            if !may_read_ahead {
                stream.ahead.end = stream.ahead.end.max(end);
                return None;
            }
            stream.window = stream.window.min(limits.window).min(stream.most);
            stream.is_active = true;
            stream.ahead = read.end..read.end;
            stream.plan(limits)
        })
    }

    /// Records that the read-ahead of a planned range ended at a block before the end of the range.
    pub fn stopped(&self, plan: &Range<u64>, at: u64) {
        self.update(|table| {
            if let Some(stream) = table.streams.iter_mut().find(|s| s.ahead.end == plan.end) {
                stream.ahead.end = at.max(stream.ahead.start);
            }
        });
    }

    /// Records that all blocks of a planned range were cached already.
    pub fn was_cached(&self, plan: &Range<u64>) {
        self.update(|table| {
            if let Some(stream) = table.streams.iter_mut().find(|s| s.ahead.end == plan.end) {
                stream.stop();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { end: 1 << 20, window: 1024 };

    /// A read that is a whole request, and misses unless it was read ahead. Returns what is planned, and
    /// whether it was read ahead.
    fn read(streams: &Streams, first: u64, len: u64, limits: &Limits) -> (Vec<Range<u64>>, bool) {
        let request = first..first + len;
        let seen = streams.begin(&request, &request, limits);
        let mut plans = Vec::from_iter(seen.plan.clone());
        if !seen.is_expected {
            plans.extend(streams.missed(&request, &request, &seen, 0, limits));
        }
        (plans, seen.is_expected)
    }

    #[test]
    fn the_window_doubles_up_to_its_limit_and_each_block_is_planned_once() {
        let streams = Streams::default();
        assert_eq!(read(&streams, 0, 64, &LIMITS), (vec![], false));
        let (mut end, mut most) = (128, 0);
        for first in (64..16_384).step_by(64) {
            let (plans, was_ahead) = read(&streams, first, 64, &LIMITS);
            assert_eq!(was_ahead, first > 64, "{first}");
            for plan in plans {
                assert_eq!(plan.start, end);
                end = plan.end;
            }
            assert!(end >= first + 128 && end <= first + 64 + LIMITS.window);
            most = most.max(end - first);
        }
        assert_eq!(most, 64 + LIMITS.window);
    }

    #[test]
    fn random_reads_plan_nothing() {
        let streams = Streams::default();
        for n in 0..10_000 {
            assert_eq!(read(&streams, n * 7919 * 97 % (1 << 20), 1, &LIMITS), (vec![], false));
        }
        assert!(!streams.is_active());
    }

    #[test]
    fn cached_reads_plan_nothing() {
        let streams = Streams::default();
        for first in (0..8192).step_by(64) {
            assert_eq!(streams.begin(&(first..first + 64), &(first..first + 64), &LIMITS).plan, None);
        }
        assert!(!streams.is_active());
    }

    #[test]
    fn a_stream_survives_random_reads_and_ends_when_it_is_idle() {
        let streams = Streams::default();
        read(&streams, 1 << 19, 64, &LIMITS);
        read(&streams, (1 << 19) + 64, 64, &LIMITS);
        let random = |n: u64| read(&streams, n * 7919 * 97 % (1 << 18), 1, &LIMITS);
        (0..IDLE_READS / 2).for_each(|n| drop(random(n)));
        assert!(read(&streams, (1 << 19) + 128, 64, &LIMITS).1);
        (0..3 * IDLE_READS).for_each(|n| drop(random(n)));
        assert!(!streams.is_active());
    }

    #[test]
    fn blocks_that_are_evicted_before_their_use_halve_the_window() {
        let streams = Streams::default();
        (0..64).for_each(|n| drop(read(&streams, n * 64, 64, &LIMITS)));
        for n in 64..80 {
            let request = n * 64..(n + 1) * 64;
            let seen = streams.begin(&request, &request, &LIMITS);
            streams.missed(&request, &request, &seen, 0, &LIMITS);
        }
        let seen = streams.begin(&(80 * 64..81 * 64), &(80 * 64..81 * 64), &LIMITS);
        let end = seen.plan.map_or(0, |plan| plan.end);
        assert!(end <= 81 * 64 + 2 * AHEAD_CHUNK, "{end}");
    }

    #[test]
    fn what_was_not_read_ahead_is_planned_again() {
        let streams = Streams::default();
        read(&streams, 0, 64, &LIMITS);
        let plan = read(&streams, 64, 64, &LIMITS).0[0].clone();
        streams.stopped(&plan, plan.start + 64);
        let again = streams.hit(&(128..192), &LIMITS).unwrap();
        assert_eq!(again.start, plan.start + 64);
        streams.was_cached(&again);
        assert!(!streams.is_active());
    }

    #[test]
    fn the_rest_of_a_request_is_planned_and_nothing_after_it() {
        let streams = Streams::default();
        let seen = streams.begin(&(0..64), &(0..256), &LIMITS);
        assert_eq!(streams.missed(&(0..64), &(0..256), &seen, 0, &LIMITS), Some(64..256));
        assert_eq!(streams.begin(&(64..128), &(0..256), &LIMITS), Seen::default());
        // A cache that holds too little for a window is left alone.
        let small = Limits { window: AHEAD_CHUNK - 1, ..LIMITS };
        let seen = streams.begin(&(1000..1064), &(1000..1256), &small);
        assert_eq!(streams.missed(&(1000..1064), &(1000..1256), &seen, 0, &small), None);
    }
}
