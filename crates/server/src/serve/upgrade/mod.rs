//! Upgrade: another process takes the place of the running server, and no client notices.
//!
//! The *predecessor* starts the *successor* as a child, with its own arguments and environment, and they
//! exchange [`message`]s over a socket pair ([`channel`]), which is the successor's standard input:
//!
//! | predecessor | | successor |
//! |---|---|---|
//! | `Start`, with the listening sockets | → | reads its configuration, compares the addresses, connects to Ceph |
//! | | ← | `Ready`, with the format versions that it supports, or `Refused` |
//! | copies its read cache; makes a checkpoint; quiesces and parks its connections; closes the pool, and releases one in Ceph to the successor | | |
//! | `State`, with the connections and the copy | → | opens the pool, checks the connections |
//! | | ← | `Opened`, or `Refused` |
//! | `Go` | → | serves the connections; fills its read cache from the copy |
//! | reports, exits | ← | `Serving` |
//!
//! **One owner.** The pool has one owner at any time: the store's lock enforces it. The connections have one
//! owner, too: until `Go` is sent, the successor neither reads from them nor writes to them; afterwards the
//! predecessor never does. So up to `Go` each failure (an exit, a crash, a time-out, a refusal) is undone:
//! the successor is killed, and the predecessor opens the pool and resumes the same connections by the same
//! code that the successor would have run. Clients see a longer pause. If the successor fails after `Go`, the
//! predecessor does not know which requests were executed: it closes the connections, and continues to serve
//! clients that reconnect.
//!
//! For a pool in Ceph, a successor that hangs is ended before its time is over: [`sentinel`].
//!
//! If the predecessor ends after it sent `State`, the successor continues alone, since the pool was closed in
//! good order. If it ends earlier, the successor exits: the connections must not outlive data that was
//! acknowledged to them.

mod cache;
mod channel;
mod message;
mod predecessor;
pub(super) mod replace;
pub(super) mod sentinel;
mod successor;

pub(super) use cache::CacheCopy;
pub(super) use message::{ListenerState, Service};
pub(super) use predecessor::{Binary, Failure, HandedOver, Predecessor, stop_successor};
pub(super) use successor::Successor;

/// The environment variable that makes a process a successor: the process id of its predecessor.
pub(super) const VARIABLE: &str = "FOREBAY_PREDECESSOR";
