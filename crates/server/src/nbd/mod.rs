//! The NBD server: the bytes of many clients on one side, [`forebay_engine::Disk`] on the other.
//!
//! A connection lives on one data-plane thread from its first byte to its last. It negotiates
//! (`negotiate`), then transmits (`session`): reads whatever has come in one call, decodes every request that
//! is whole, does at once what the engine can do at once (cached reads, buffered writes), hands the rest to
//! tasks of the same thread, and sends all replies in one call. The big buffers belong to the thread, not to
//! the connection, which keeps only what it could not finish; so an idle connection costs little, and a
//! client that sends much, or reads nothing, is held back by not being read from.
//!
//! A connection passes `listen`, `connection`, `negotiate` (and `tls`), `session` (and `job`, `backlog`);
//! `server`, `worker`, `scratch` and `pace` are the threads that it lives on.

mod backlog;
mod connection;
mod job;
mod listen;
mod negotiate;
mod pace;
mod scratch;
mod server;
mod session;
mod tls;
mod worker;

pub use listen::{BadAddr, ListenAddr, ListenError};
pub use server::{BindError, Config, Handle, Server};
pub use tls::{ClientCertificates, TlsConfig, TlsError, TlsMode};
