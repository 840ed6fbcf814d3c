//! The load generator: one thread per connection, with pipelined requests and few system calls.
//!
//! A thread keeps `depth` requests in progress on a [`Device`](crate::device::Device). It sends all requests
//! that are due in one call, receives all replies that have arrived in one call, and never waits for one
//! direction while the other can make progress. It therefore cannot deadlock with a server that stops
//! reading, and does not limit the throughput that it measures. All random values come from a seed.

mod content;
mod counts;
mod report;
mod run;
mod source;
mod spec;
mod updates;

pub(crate) use content::Content;
pub use counts::Counts;
pub(crate) use report::histogram;
pub use report::{Latency, Report};
pub use run::{Ready, connect, run};
pub use spec::{Access, Fill, LoadError, Rate, Spec, Stop};
pub(crate) use updates::{Host, Lock, METADATA_BYTES};
