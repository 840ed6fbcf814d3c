//! Entry points for fuzzing whole sessions: a script of arbitrary bytes determines the messages of one client
//! to a running server, from connecting to closing. Called by the targets in `fuzz/`, and by `tests/sessions`
//! with generated scripts and the checked-in corpus.
//!
//! The guarantees: no message of a client causes a panic of the server; all replies are well-formed; and the
//! session ends when the client ends it. A violation panics here.
//!
//! The server is a real one, with real sockets, one data-plane thread and a pool in memory; all scripts of a
//! process share it.

#![allow(clippy::unwrap_used)]

mod iscsi;
mod nbd;
mod neighbour;
mod nvme;
mod script;
mod server;

use std::time::Duration;

pub use iscsi::iscsi_session;
pub use nbd::nbd_session;
pub use neighbour::longest_wait_during;
pub use nvme::nvme_session;
pub use script::{ISCSI_HEADER, ISCSI_SESSION, NBD_RECORD, NBD_SESSION, NVME_RECORD, NVME_SESSION, flags};
pub use server::{SIZE, SPARSE_SIZE};

/// A target: its name, which is also the name of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] =
    &[("iscsi_session", iscsi_session), ("nbd_session", nbd_session), ("nvme_session", nvme_session)];

/// Time limit for the server to end a session, and to answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Fails if the server has panicked since the count of panics was `before`.
fn assert_no_panic(before: u64) {
    assert_eq!(crate::plane::panics(), before, "the server panicked while serving this script");
}

/// Passes `bytes` to `send` in pieces: first a few pieces of at most `most` bytes, then all further bytes in
/// a single piece. 0 disables splitting.
fn cut(bytes: &[u8], most: u8, mut send: impl FnMut(&[u8]) -> std::io::Result<()>) -> std::io::Result<()> {
    const PIECES: usize = 64;
    if most == 0 {
        return send(bytes);
    }
    let end = bytes.len().min(PIECES * usize::from(most));
    bytes[..end].chunks(most.into()).try_for_each(&mut send)?;
    if end < bytes.len() { send(&bytes[end..]) } else { Ok(()) }
}
