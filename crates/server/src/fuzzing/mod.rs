//! Entry points for fuzzing whole sessions: a script of any bytes is what one client says to a running server, from
//! its connect to its close. The targets in `fuzz/` call them, and so do `tests/sessions` with made-up scripts and the
//! checked-in corpus.
//!
//! The promises: nothing that a client says makes the server panic; what comes back is well formed; and the session
//! ends when the client ends it. A broken one panics here.
//!
//! The server is a real one, over real sockets, with one data-plane thread and a pool in memory; it is shared by all
//! scripts of a process.

#![allow(clippy::unwrap_used)]

mod iscsi;
mod nbd;
mod neighbour;
mod script;
mod world;

use std::time::Duration;

pub use iscsi::iscsi_session;
pub use nbd::nbd_session;
pub use neighbour::longest_wait_beside;
pub use script::{ISCSI_HEADER, ISCSI_SESSION, NBD_RECORD, NBD_SESSION, flags};
pub use world::{SIZE, SPARSE_SIZE};

/// A target: its name, which is also that of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[("iscsi_session", iscsi_session), ("nbd_session", nbd_session)];

/// How long the server may take to end a session, and to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Fails where the server has panicked since there were `before` panics.
fn assert_no_panic(before: u64) {
    assert_eq!(crate::plane::panics(), before, "the server panicked while it served this script");
}

/// Gives `bytes` to `send` in pieces: the first ones of at most `most` bytes, the rest at once. 0 does not cut.
fn cut(bytes: &[u8], most: u8, mut send: impl FnMut(&[u8]) -> std::io::Result<()>) -> std::io::Result<()> {
    const PIECES: usize = 64;
    if most == 0 {
        return send(bytes);
    }
    let end = bytes.len().min(PIECES * usize::from(most));
    bytes[..end].chunks(most.into()).try_for_each(&mut send)?;
    if end < bytes.len() { send(&bytes[end..]) } else { Ok(()) }
}
