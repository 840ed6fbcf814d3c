//! The data plane: the threads that serve the connections of all front ends.
//!
//! Each core given to the server has one thread with its own runtime. The first also accepts (`listen`) and
//! distributes clients round-robin; a connection stays on one thread from its first byte to its last. The
//! large buffers (`scratch`) belong to the thread, not to the connection, which keeps only unfinished work
//! (`backlog`); so an idle connection costs little, and a client that sends much, or does not read its
//! replies, is throttled by not being read from. `pace` and `spin` decide when a thread sleeps, `budget`
//! limits how long a connection may occupy its thread, `contain` limits the effect of a panic, `latency`
//! measures requests. `handover` passes established connections to another process.
//!
//! `connections` limits the number of clients, `memory` the memory that the server holds for them. A
//! `FrontEnd` serves an accepted socket in its protocol: [`crate::nbd`].

mod backlog;
mod budget;
mod connections;
mod contain;
mod conversation;
mod delegate;
mod gate;
mod handover;
mod latency;
mod listen;
mod memory;
mod pace;
mod readiness;
mod scratch;
mod server;
mod spares;
mod spin;
#[cfg(test)]
pub(crate) mod tests;
mod watching;
mod worker;

#[cfg(test)]
pub(crate) use backlog::TASK_OVERHEAD;
pub(crate) use backlog::{Backlog, FENCED, MAX_UNSENT, Ticket, spawn_request};
pub(crate) use budget::{Budget, COSTLY_REQUEST};
pub(crate) use connections::Cut;
pub use connections::{ConnectionLimits, LimitsHandle, MAX_LEAVING, network};
pub(crate) use contain::contained;
pub use contain::{is_contained, may_report_contained, panics};
pub(crate) use conversation::{Conversation, Protocol, Stop, must_stop};
pub(crate) use delegate::delegate_stream;
pub use gate::Gate;
pub(crate) use handover::{Ended, MAX_ASIDE, PlainSocket, Received, Resume, Resumed};
pub use handover::{Parked, ParkedStream};
pub use latency::{BOUNDS_NS, Counts, Front, Served};
pub(crate) use latency::{Timed, Times};
pub use listen::{BadAddr, Bound, ListenAddr, ListenError, Listener};
pub(crate) use listen::{RawSocket, Socket};
#[cfg(test)]
pub(crate) use memory::BASE;
pub(crate) use memory::{Charge, Claim, Kind, MemoryAccount};
pub use memory::{MIN_BUDGET, MemoryLimits};
pub use readiness::has_hung_up;
pub(crate) use scratch::{INPUT, Output, Scratch};
pub(crate) use server::{Client, FrontEnd};
pub use server::{Handle, Plane};
pub use server::{PlaneCounters, Probe};
pub(crate) use watching::Watching;
pub(crate) use worker::Worker;
