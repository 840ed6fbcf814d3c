//! How long requests take, from the receipt of a whole request until its reply is ready to be sent.
//!
//! **Cost.** Requests that are served without a wait share the clock readings of their pass: their replies
//! leave together after it. Each adds one to a counter of its thread; the pass then adds them to a histogram.
//!
//! **One writer.** A histogram belongs to one thread, which alone changes it, so its counters need no atomic
//! read-modify-write. Others read them at any time ([`Latencies::add_to`]); a sum may then lack the last
//! pass.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Upper bounds of the buckets, in nanoseconds. The last bucket has no bound.
pub const BOUNDS_NS: [u64; 20] = [
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
];
const BUCKETS: usize = BOUNDS_NS.len() + 1;

/// A protocol of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    /// Requests over NBD.
    Nbd,
    /// Requests over iSCSI.
    Iscsi,
    /// Requests over NVMe/TCP.
    Nvme,
    /// Requests over NFS.
    Nfs,
}

/// How a request was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// A read of which all data was in RAM.
    Ram,
    /// A read of which some data was in the store only.
    Store,
    /// A change that was answered before it was durable.
    Buffered,
    /// A change that was durable when it was answered, or a flush.
    Durable,
}

impl Front {
    /// All protocols.
    pub const ALL: [Front; 4] = [Front::Nbd, Front::Iscsi, Front::Nvme, Front::Nfs];

    /// Name of the protocol in metrics and in the API.
    pub fn name(self) -> &'static str {
        match self {
            Front::Nbd => "nbd",
            Front::Iscsi => "iscsi",
            Front::Nvme => "nvme",
            Front::Nfs => "nfs",
        }
    }
}

impl Served {
    /// All ways to serve a request.
    pub const ALL: [Served; 4] = [Served::Ram, Served::Store, Served::Buffered, Served::Durable];

    /// Name of the way to serve a request, in metrics and in the API.
    pub fn name(self) -> &'static str {
        match self {
            Served::Ram => "ram",
            Served::Store => "store",
            Served::Buffered => "buffered",
            Served::Durable => "durable",
        }
    }

    /// Returns how a change of the disk was served.
    pub fn change(is_durable: bool) -> Served {
        if is_durable { Served::Durable } else { Served::Buffered }
    }
}

const KINDS: usize = Front::ALL.len() * Served::ALL.len();

fn kind(front: Front, served: Served) -> usize {
    front as usize * Served::ALL.len() + served as usize
}

#[derive(Default)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

/// The latency histograms of one thread.
#[derive(Default)]
pub(crate) struct Latencies([Histogram; KINDS]);

/// A histogram of all threads, at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of requests in each bucket.
    pub buckets: [u64; BUCKETS],
    /// Sum of the times of the requests, in nanoseconds.
    pub sum_ns: u64,
}

impl Latencies {
    fn record(&self, kind: usize, elapsed: Duration, requests: u64) {
        let ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_NS.partition_point(|bound| *bound < ns);
        let histogram = &self.0[kind];
        let add = |counter: &AtomicU64, n: u64| counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
        add(&histogram.buckets[bucket], requests);
        add(&histogram.sum_ns, ns.saturating_mul(requests));
    }

    /// Adds the requests of one kind to `counts`.
    pub fn add_to(&self, counts: &mut Counts, front: Front, served: Served) {
        let histogram = &self.0[kind(front, served)];
        for (sum, bucket) in counts.buckets.iter_mut().zip(&histogram.buckets) {
            *sum += bucket.load(Relaxed);
        }
        counts.sum_ns = counts.sum_ns.wrapping_add(histogram.sum_ns.load(Relaxed));
    }
}

/// The clock of the requests of one thread.
pub struct Times {
    latencies: Arc<Latencies>,
    /// When the present pass of the loop began.
    pass: Cell<Instant>,
    /// Number of requests that were served without a wait in this pass.
    served: [Cell<u32>; KINDS],
    has_served: Cell<bool>,
}

impl Times {
    pub fn new(latencies: Arc<Latencies>) -> Rc<Times> {
        let (pass, served) = (Cell::new(Instant::now()), Default::default());
        Rc::new(Times { latencies, pass, served, has_served: Cell::new(false) })
    }

    /// Records that a connection begins to serve messages that it has received.
    pub fn begin_pass(&self) {
        self.pass.set(Instant::now());
    }

    /// Records that the replies of the pass are ready.
    pub fn end_pass(&self) {
        if !self.has_served.replace(false) {
            return;
        }
        let elapsed = self.pass.get().elapsed();
        for (kind, served) in self.served.iter().enumerate() {
            let requests = served.take();
            if requests > 0 {
                self.latencies.record(kind, elapsed, requests.into());
            }
        }
    }

    /// Counts a request that was served without a wait.
    #[inline]
    pub fn count(&self, front: Front, served: Served) {
        let counter = &self.served[kind(front, served)];
        counter.set(counter.get() + 1);
        self.has_served.set(true);
    }

    /// Begins to measure a request of this pass that waits.
    pub fn begin(self: &Rc<Self>, front: Front) -> Timed {
        Timed { times: self.clone(), front, begun: self.pass.get() }
    }
}

/// A request that waits. A request that fails, or whose client is gone, is not counted.
pub struct Timed {
    times: Rc<Times>,
    front: Front,
    begun: Instant,
}

impl Timed {
    /// Records that the reply of the request is ready.
    pub fn end(&self, served: Served) {
        self.times.latencies.record(kind(self.front, served), self.begun.elapsed(), 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(latencies: &Latencies, front: Front, served: Served) -> Counts {
        let mut counts = Counts::default();
        latencies.add_to(&mut counts, front, served);
        counts
    }

    #[test]
    fn requests_are_counted_in_the_bucket_that_includes_their_time() {
        let latencies = Latencies::default();
        for ns in [0, 5_000, 5_001, 10_000_000_000, 10_000_000_001] {
            latencies.record(kind(Front::Iscsi, Served::Store), Duration::from_nanos(ns), 2);
        }
        let found = counts(&latencies, Front::Iscsi, Served::Store);
        assert_eq!((found.buckets[0], found.buckets[1]), (4, 2));
        assert_eq!((found.buckets[BUCKETS - 2], found.buckets[BUCKETS - 1]), (2, 2));
        assert_eq!(found.sum_ns, 2 * 20_000_010_002);
        assert_eq!(counts(&latencies, Front::Nbd, Served::Store), Counts::default());
    }

    /// The promise is some nanoseconds. The bound of this test is higher, for a machine with other work.
    #[test]
    fn counting_costs_nanoseconds() {
        let times = Times::new(Arc::default());
        let (passes, requests) = (20_000, 16);
        let begun = Instant::now();
        for _ in 0..passes {
            times.begin_pass();
            (0..requests).for_each(|_| times.count(Front::Nbd, std::hint::black_box(Served::Ram)));
            times.end_pass();
        }
        let each = begun.elapsed() / passes;
        println!("a pass of {requests} requests is counted in {each:?}");
        assert!(each < Duration::from_micros(20), "{each:?}");
    }

    #[test]
    fn a_pass_counts_its_requests_once() {
        let times = Times::new(Arc::default());
        times.begin_pass();
        (0..3).for_each(|_| times.count(Front::Nbd, Served::Ram));
        let waits = times.begin(Front::Nbd);
        times.end_pass();
        times.end_pass();
        waits.end(Served::Durable);
        let all = |served| counts(&times.latencies, Front::Nbd, served).buckets.iter().sum::<u64>();
        assert_eq!(Served::ALL.map(all), [3, 0, 0, 1]);
    }
}
