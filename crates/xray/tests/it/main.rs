//! Load generators against small servers.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod fio;
mod hosts;
mod load;
mod results;
mod runs;
mod server;
mod vdi;
