//! The load generator: one thread per connection, with pipelined requests and few system calls.
//!
//! A thread keeps `depth` requests in progress. It sends all requests that are due in one call, receives all
//! replies that have arrived in one call, and never waits for one direction while the other can make
//! progress. It therefore cannot deadlock with a server that stops reading, and does not limit the throughput
//! that it measures. All random values come from a seed.

mod content;
mod report;
mod run;
mod source;
mod spec;

pub(crate) use content::{Content, base_version};
pub(crate) use report::Tally;
pub use report::{Latency, Report};
pub use run::run;
pub(crate) use source::Source;
pub use spec::{Access, Fill, LoadError, Spec, Stop};
