//! The data plane: the threads on which the connections of all front ends live.
//!
//! There is one thread for each core given to the server, with a runtime of its own. The first also accepts
//! (`listen`), and hands clients out in turn; a connection lives on one thread from its first byte to its last. The
//! big buffers (`scratch`) belong to the thread, not to the connection, which keeps only what it could not finish
//! (`backlog`); so an idle connection costs little, and a client that sends much, or reads nothing, is held back by
//! not being read from. `pace` says when a thread sleeps, `budget` how long a connection may keep it for itself,
//! `contain` what a panic ends.
//!
//! How many clients there may be is counted by `connections`, what they can have the server hold by `memory`. A
//! [`FrontEnd`] makes of a socket what speaks its protocol: [`crate::nbd`].

mod backlog;
mod budget;
mod connections;
mod contain;
mod conversation;
mod listen;
mod memory;
mod pace;
mod scratch;
mod server;
#[cfg(test)]
mod tests;
mod worker;

pub(crate) use backlog::{Backlog, MAX_UNSENT, Ticket, spawn_request};
pub(crate) use budget::COSTLY_REQUEST;
pub use connections::ConnectionLimits;
pub(crate) use connections::{Cut, MAX_LEAVING};
pub(crate) use contain::contained;
pub use contain::{is_contained, panics};
pub(crate) use conversation::{Conversation, Protocol, Stop};
pub use listen::{BadAddr, ListenAddr, ListenError};
pub(crate) use listen::{RawSocket, Socket};
pub(crate) use memory::{Charge, Claim, Kind, MemoryAccount};
pub use memory::{MIN_BUDGET, MemoryLimits};
pub(crate) use scratch::{INPUT, Output, Scratch};
pub(crate) use server::{Client, FrontEnd};
pub use server::{Handle, Plane};
pub(crate) use worker::Worker;
