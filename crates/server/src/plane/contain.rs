//! A panic while a connection is served ends that connection, and no other.
//!
//! **The boundary.** What a connection owns is dropped with it, so code that changes nothing else may unwind: the
//! decoders, the front ends, TLS and the loop around them ([`PROTOCOL_CODE`]). Everywhere else a panic says that an
//! invariant of shared state does not hold: the engine with its buffers and maps, the store, reservations and tokens
//! of a logical unit, the control plane. The process is aborted there before anything unwinds, also where a
//! connection called it, since half a change would be seen by all; the log is made for a sudden end.
//!
//! The panic hook of the binary decides by [`is_contained`], before anything is unwound: the thread serves a
//! connection, and the panic was raised in the source of protocol code. Code that the engine calls back does not
//! count as that (`scsi/medium.rs`). A panic inside another library aborts: it does not tell who called it.
//!
//! What connections of a thread share is sound afterwards: borrows of its buffers end with the unwinding, and the
//! output is cleared before each use.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;

/// Sources of code that changes only what one connection owns, and what is changed in one step.
const PROTOCOL_CODE: [&str; 10] = [
    "crates/wire/src/",
    "crates/server/src/iscsi/",
    "crates/server/src/nbd/",
    "crates/server/src/plane/",
    "crates/server/src/scsi/copy.rs",
    "crates/server/src/scsi/io.rs",
    "crates/server/src/scsi/perform.rs",
    "crates/server/src/scsi/response.rs",
    "/rustls-",
    "/tokio-rustls-",
];

/// Panics that ended a connection.
static PANICS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// This thread serves a connection now.
    static SERVING: Cell<bool> = const { Cell::new(false) };
}

/// How many connections a panic has ended since the start of the process.
pub fn panics() -> u64 {
    PANICS.load(Relaxed)
}

/// Whether a panic at this place of the source ends a connection rather than the process. For the panic hook, on the
/// thread that panics.
pub fn is_contained(location: Option<&Location<'_>>) -> bool {
    SERVING.get() && location.is_some_and(|location| is_protocol_code(location.file()))
}

fn is_protocol_code(file: &str) -> bool {
    PROTOCOL_CODE.iter().any(|source| file.contains(source))
}

/// A connection was served up to a panic; what it owns is not to be used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("serving it failed; this is a defect of the server")]
pub(crate) struct Panicked;

/// Serves a connection for a moment. `what` is for the log.
pub(crate) fn contain<T>(what: &str, serve: impl FnOnce() -> T) -> Result<T, Panicked> {
    let before = SERVING.replace(true);
    let done = catch_unwind(AssertUnwindSafe(serve));
    SERVING.set(before);
    done.map_err(|_| {
        PANICS.fetch_add(1, Relaxed);
        tracing::error!(what, "serving a client panicked; its connection is closed, please report this");
        Panicked
    })
}

/// Runs a future that serves a connection.
pub(crate) async fn contained<F: Future>(what: &'static str, future: F) -> Result<F::Output, Panicked> {
    let mut future = pin!(future);
    poll_fn(|cx| match contain(what, || future.as_mut().poll(cx)) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(done)) => Poll::Ready(Ok(done)),
        Err(panicked) => Poll::Ready(Err(panicked)),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_is_outside_of_the_boundary() {
        for inside in ["crates/wire/src/iscsi/pdu.rs", "/build/crates/server/src/nbd/session.rs", file!()] {
            assert!(is_protocol_code(inside), "{inside}");
        }
        for outside in [
            "crates/engine/src/disk.rs",
            "crates/store/src/memory.rs",
            "crates/server/src/scsi/medium.rs",
            "crates/server/src/scsi/reserve.rs",
            "crates/server/src/control/mod.rs",
            "/rustc/0/library/alloc/src/vec/mod.rs",
        ] {
            assert!(!is_protocol_code(outside), "{outside}");
        }
    }

    #[test]
    fn a_panic_counts_only_while_a_connection_is_served() {
        let here = Location::caller();
        assert!(!is_contained(Some(here)));
        assert_eq!(contain("a test", || is_contained(Some(here))), Ok(true));
        let before = panics();
        assert_eq!(contain("a test", || panic!("as a test wants")), Err::<(), _>(Panicked));
        assert!(panics() > before && !is_contained(Some(here)));
    }
}
