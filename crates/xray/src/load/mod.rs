//! The load generator: one thread and one connection each, pipelined, with few system calls.
//!
//! A thread keeps `depth` requests under way. It sends all that are due in one call, takes all replies that
//! have come in one call, and never waits for one while the other could go on, so that it can neither deadlock
//! with a server that stops reading nor become the limit of what it measures. Everything random comes from a
//! seed.

mod content;
mod flight;
mod report;
mod run;
pub(crate) mod socket;
mod source;
mod spec;

pub(crate) use content::Content;
pub(crate) use report::Tally;
pub use report::{Latency, Report};
pub use run::run;
pub(crate) use source::Source;
pub use spec::{Access, Fill, LoadError, Spec, Stop};
