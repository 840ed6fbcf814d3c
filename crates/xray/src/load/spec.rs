//! The parameters of a load.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::{DeviceError, Endpoint};

/// The order in which a disk is accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Uniformly at random, aligned to the block size.
    Random,
    /// Ascending offsets, which start again at the end of the range.
    Sequential,
    /// Four of five requests go to random positions in the first fifth, the others to random positions in the
    /// rest.
    Skewed,
}

/// The content of writes.
#[derive(Debug, Clone, Default)]
pub enum Fill {
    /// Incompressible blocks, all different.
    #[default]
    Noise,
    /// Pieces of these bytes (at least 64 KiB) with a stamp: as compressible as the bytes, all different.
    Stamped(Arc<Vec<u8>>),
    /// Whole blocks of these bytes (at least 64 KiB): after each was written once, all further writes are
    /// duplicates.
    Repeated(Arc<Vec<u8>>),
    /// Random units of which a share is zero; a share of the units is equal to one of 1,024.
    Shaped {
        /// Share of zeroes in each unit, in percent.
        zero_percent: u8,
        /// Share of the units that are duplicates, in percent.
        duplicate_percent: u8,
    },
}

/// Condition for the end of a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Stop {
    /// The load ends after this time.
    After(Duration),
    /// After this number of requests on each connection.
    Requests(u64),
    /// After one pass of each connection through its part of the range.
    OncePerBlock,
}

impl Stop {
    /// Maximum number of requests in flight on a connection whose part of the range has `blocks`.
    pub(super) fn requests(self, blocks: u64) -> u64 {
        match self {
            Stop::After(_) => u64::MAX,
            Stop::Requests(n) => n,
            Stop::OncePerBlock => blocks,
        }
    }

    /// When a load that started at `began` ends, unless its number of requests ends it.
    pub(super) fn deadline(self, began: Instant) -> Option<Instant> {
        match self {
            Stop::After(time) => Some(began + time),
            Stop::Requests(_) | Stop::OncePerBlock => None,
        }
    }
}

/// A bound on the number of requests per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// Requests arrive as a Poisson process. Latency starts when a request is due, not when there is room to
    /// send it.
    Poisson(f64),
    /// Bursts of `depth` requests at a fixed interval. A late load catches up by at most one burst.
    Bursts(f64),
}

impl Rate {
    fn per_second(self) -> f64 {
        match self {
            Rate::Poisson(rate) | Rate::Bursts(rate) => rate,
        }
    }
}

/// A load on one disk.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The disk that is loaded.
    pub endpoint: Endpoint,
    /// Order of the offsets.
    pub access: Access,
    /// Share of reads in percent.
    pub read_percent: u8,
    /// Bytes of each request: a multiple of 512, and above 4096 a multiple of 4096.
    pub block_bytes: u32,
    /// Requests in progress on each connection.
    pub depth: u16,
    /// Number of connections; the range is divided between them.
    pub connections: u16,
    /// Condition for the end.
    pub stop: Stop,
    /// Interval between flushes; another flush follows at the end. Flushes are part of the load.
    pub flush_each: Option<Duration>,
    /// Writes are durable when they are answered (FUA).
    pub fua: bool,
    /// Bound on the requests of each connection; without a bound, `depth` requests are always in progress.
    pub rate: Option<Rate>,
    /// Bytes to access; the complete disk by default.
    pub range: Option<Range<u64>>,
    /// Seed of offsets, mix, arrivals and content.
    pub seed: u64,
    /// Content of writes.
    pub fill: Fill,
    /// Request simple replies of an NBD server instead of structured ones, which QEMU and libnbd request.
    pub simple_replies: bool,
    /// Verify reads against the writes of this run, and read all written blocks at the end.
    pub verify: bool,
    /// A request that met a reservation of another host is sent again after 0.5 to 1.5 times this delay;
    /// without it, a reservation is an error.
    pub backoff: Option<Duration>,
}

impl Spec {
    /// 4 KiB random reads at depth 32 for one second: defaults to be changed.
    pub fn new(endpoint: Endpoint) -> Spec {
        Spec {
            endpoint,
            access: Access::Random,
            read_percent: 100,
            block_bytes: 4096,
            depth: 32,
            connections: 1,
            stop: Stop::After(Duration::from_secs(1)),
            flush_each: None,
            fua: false,
            rate: None,
            range: None,
            seed: 1,
            fill: Fill::Noise,
            simple_replies: false,
            verify: false,
            backoff: None,
        }
    }

    /// Makes the load one pass through the range, of reads or of writes.
    pub fn pass(&mut self, writes: bool, block_bytes: u32, depth: u16) {
        self.sequential(writes, block_bytes, depth);
        self.stop = Stop::OncePerBlock;
    }

    /// Ascending reads or writes.
    pub fn sequential(&mut self, writes: bool, block_bytes: u32, depth: u16) {
        self.access = Access::Sequential;
        self.read_percent = if writes { 0 } else { 100 };
        (self.block_bytes, self.depth) = (block_bytes, depth);
    }

    /// Rejects invalid parameters.
    pub(super) fn check(&self) -> Result<(), LoadError> {
        let bytes = self.block_bytes;
        let wrong =
            if bytes == 0 || !bytes.is_multiple_of(512) || (bytes > 4096 && !bytes.is_multiple_of(4096)) {
                Some("the block size must be a multiple of 512, and of 4096 when it is above that")
            } else if bytes > 32 << 20 {
                Some("the block size must be at most 32 MiB")
            } else if self.depth == 0 || self.connections == 0 {
                Some("depth and connections must be at least 1")
            } else if self.read_percent > 100 {
                Some("the share of reads must be at most 100 percent")
            } else if self.rate.is_some_and(|r| !(r.per_second() > 0.0 && r.per_second().is_finite())) {
                Some("the rate must be above 0")
            } else {
                None
            };
        wrong.map_or(Ok(()), |w| Err(LoadError::Spec(w)))
    }
}

/// Why a load failed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Invalid parameters.
    #[error("{0}")]
    Spec(&'static str),
    /// The disk is too small for the load.
    #[error(
        "the range of {range} bytes is too small for blocks of {block} bytes, {connections} connections, and verification if enabled"
    )]
    TooSmall {
        /// Bytes to access.
        range: u64,
        /// Number of connections.
        connections: u16,
        /// Bytes of each request.
        block: u32,
    },
    /// The disk cannot be used, or failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A thread of the generator panicked.
    #[error("a thread of the load generator panicked")]
    Panicked,
}
