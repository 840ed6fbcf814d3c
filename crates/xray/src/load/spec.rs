//! What is to be done to a disk.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::nbd::{NbdError, Target};

/// In which order a disk is addressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Uniformly at random, aligned to the block size.
    Random,
    /// Ascending, from the start again at the end.
    Sequential,
    /// Four of five at random in the first fifth, the others at random in the rest.
    Skewed,
}

/// What is written.
#[derive(Debug, Clone, Default)]
pub enum Fill {
    /// Blocks that do not compress, no two alike.
    #[default]
    Noise,
    /// Pieces of these bytes (at least 64 KiB) under a stamp: they compress as those do, no two alike.
    Stamped(Arc<Vec<u8>>),
    /// Whole blocks of these bytes (at least 64 KiB): once each was written, all that comes is stored already.
    Repeated(Arc<Vec<u8>>),
}

/// When a load ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Stop {
    /// After this time.
    After(Duration),
    /// After so many requests on each connection.
    Requests(u64),
    /// After each connection has gone once through its part of the range.
    OncePerBlock,
}

impl Stop {
    /// Most requests on a connection whose part of the range has `blocks`.
    pub(crate) fn requests(self, blocks: u64) -> u64 {
        match self {
            Stop::After(_) => u64::MAX,
            Stop::Requests(n) => n,
            Stop::OncePerBlock => blocks,
        }
    }

    /// When a load that began then is over, if not by its requests.
    pub(crate) fn deadline(self, began: Instant) -> Option<Instant> {
        match self {
            Stop::After(time) => Some(began + time),
            Stop::Requests(_) | Stop::OncePerBlock => None,
        }
    }
}

/// A load on one export.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Where the server listens.
    pub target: Target,
    /// The export.
    pub export: String,
    /// Order of the offsets.
    pub access: Access,
    /// Share of reads in per cent.
    pub read_percent: u8,
    /// Bytes of each request; a multiple of 512, and of 4096 when above it.
    pub block_bytes: u32,
    /// Requests under way on each connection.
    pub depth: u16,
    /// Connections; the range is divided between them.
    pub connections: u16,
    /// When it ends.
    pub stop: Stop,
    /// A flush at this interval, and one at the end, each counted as part of the load.
    pub flush_each: Option<Duration>,
    /// Requests per second on each connection, as a Poisson process; latency then counts from the moment at
    /// which a request was due, not from when there was room to send it.
    pub rate: Option<f64>,
    /// Bytes to touch; the whole export by default.
    pub range: Option<Range<u64>>,
    /// Seed of offsets, mix, arrivals and content.
    pub seed: u64,
    /// What is written.
    pub fill: Fill,
    /// Ask for structured replies, as QEMU and libnbd do.
    pub structured: bool,
    /// Check what is read against what was written in this run, and read all of that at the end.
    pub verify: bool,
}

impl Spec {
    /// 4 KiB random reads at depth 32 for a second: a start to change.
    pub fn new(target: Target, export: &str) -> Spec {
        Spec {
            target,
            export: export.to_owned(),
            access: Access::Random,
            read_percent: 100,
            block_bytes: 4096,
            depth: 32,
            connections: 1,
            stop: Stop::After(Duration::from_secs(1)),
            flush_each: None,
            rate: None,
            range: None,
            seed: 1,
            fill: Fill::Noise,
            structured: true,
            verify: false,
        }
    }

    /// Refuses what cannot be run.
    pub(crate) fn check(&self) -> Result<(), LoadError> {
        let bytes = self.block_bytes;
        let wrong =
            if bytes == 0 || !bytes.is_multiple_of(512) || (bytes > 4096 && !bytes.is_multiple_of(4096)) {
                Some("the block size must be a multiple of 512, and of 4096 when it is above that")
            } else if bytes > 32 << 20 {
                Some("the block size must be at most 32 MiB")
            } else if self.depth == 0 || self.connections == 0 {
                Some("depth and connections must be at least 1")
            } else if self.read_percent > 100 {
                Some("the share of reads must be at most 100 per cent")
            } else if self.rate.is_some_and(|r| !(r > 0.0 && r.is_finite())) {
                Some("the rate must be above 0")
            } else {
                None
            };
        wrong.map_or(Ok(()), |w| Err(LoadError::Spec(w)))
    }
}

/// Why a load could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It makes no sense.
    #[error("{0}")]
    Spec(&'static str),
    /// The export is not big enough for it.
    #[error(
        "the range of {range} bytes is too small for blocks of {block} bytes, {connections} connections, and verification if asked for"
    )]
    TooSmall {
        /// Bytes to touch.
        range: u64,
        /// Connections.
        connections: u16,
        /// Bytes of each request.
        block: u32,
    },
    /// It writes, and the export cannot be written.
    #[error("the export is read-only")]
    ReadOnly,
    /// The server cannot flush.
    #[error("the server offers no flush for this export")]
    NoFlush,
    /// The connection failed.
    #[error(transparent)]
    Nbd(#[from] NbdError),
    /// A thread of the generator panicked.
    #[error("a thread of the load generator panicked")]
    Panicked,
}
