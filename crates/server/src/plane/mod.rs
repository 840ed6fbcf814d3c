//! The data plane: the threads on which the connections of all front ends live.
//!
//! There is one thread for each core given to the server, with a runtime of its own. The first also accepts
//! (`listen`), and hands clients out in turn; a connection lives on one thread from its first byte to its last. The
//! big buffers (`scratch`) belong to the thread, not to the connection, which keeps only what it could not finish
//! (`backlog`); so an idle connection costs little, and a client that sends much, or reads nothing, is held back by
//! not being read from. `pace` says when a thread sleeps.
//!
//! A [`FrontEnd`] makes of a socket what speaks its protocol: [`crate::nbd`].

mod backlog;
mod conversation;
mod listen;
mod pace;
mod scratch;
mod server;
mod worker;

pub(crate) use backlog::{Backlog, Ticket};
pub(crate) use conversation::{Conversation, Protocol, Stop};
pub use listen::{BadAddr, ListenAddr, ListenError};
pub(crate) use listen::{RawSocket, Socket};
pub(crate) use scratch::{FAST_READ_MAX, INPUT, Output, Scratch};
pub(crate) use server::FrontEnd;
pub use server::{Handle, Plane};
pub(crate) use worker::Worker;
