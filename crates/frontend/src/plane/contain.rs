//! A panic in the code that serves a connection ends that connection and no other.
//!
//! **The boundary.** The state of a connection is dropped with it, so code that changes only that state may
//! unwind: the decoders, the front ends, TLS and the loop around them ([`PROTOCOL_CODE`]). In all other code,
//! a panic means that an invariant of shared state does not hold: the engine with its buffers and maps, the
//! store, reservations and tokens of a logical unit, the control plane. There the process is aborted before
//! anything unwinds, also if a connection called the code, since all connections would see a partial change;
//! the log is designed for a sudden end.
//!
//! The panic hook of the binary decides by [`is_contained`], before anything is unwound: the thread is
//! serving a connection, and the panic was raised in the source of protocol code. Code that the engine calls
//! back does not count as protocol code (`scsi/medium.rs`). A panic inside another library aborts, because
//! its location does not show the caller.
//!
//! The state shared by the connections of a thread is sound afterwards: borrows of its buffers end with the
//! unwinding, and the output is cleared before each use.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;

use crate::throttle::Throttle;

/// Sources of code that changes only the state of one connection, or changes other state in a single step.
const PROTOCOL_CODE: [&str; 13] = [
    "crates/wire/src/",
    "crates/frontend/src/exec/",
    "crates/frontend/src/iscsi/",
    "crates/frontend/src/nbd/",
    "crates/frontend/src/nfs/",
    "crates/frontend/src/nvme/",
    "crates/frontend/src/plane/",
    "crates/frontend/src/scsi/copy.rs",
    "crates/frontend/src/scsi/io.rs",
    "crates/frontend/src/scsi/perform.rs",
    "crates/frontend/src/scsi/response.rs",
    "/rustls-",
    "/tokio-rustls-",
];

/// Number of panics that ended a connection.
static PANICS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether this thread is serving a connection.
    static SERVING: Cell<bool> = const { Cell::new(false) };
}

/// The number of connections that a panic has ended since the start of the process.
pub fn panics() -> u64 {
    PANICS.load(Relaxed)
}

/// Whether the panic hook may report a contained panic, which is rate-limited: a client that has found the
/// cause of a panic can repeat it with each connection.
pub fn may_report_contained() -> bool {
    static REPORTED: Throttle = Throttle::new();
    REPORTED.permit().is_some()
}

/// Whether a panic at this source location ends a connection and not the process. Called by the panic hook on
/// the thread that panics.
pub fn is_contained(location: Option<&Location<'_>>) -> bool {
    SERVING.get() && location.is_some_and(|location| is_protocol_code(location.file()))
}

fn is_protocol_code(file: &str) -> bool {
    PROTOCOL_CODE.iter().any(|source| file.contains(source))
}

/// The error if a panic interrupted the serving of a connection; the state of the connection must not be used
/// again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server panicked while serving it; this is a bug of the server")]
pub(crate) struct Panicked;

/// Runs one step of serving a connection. `what` names it in the log.
pub(crate) fn contain<T>(what: &str, serve: impl FnOnce() -> T) -> Result<T, Panicked> {
    let before = SERVING.replace(true);
    let done = catch_unwind(AssertUnwindSafe(serve));
    SERVING.set(before);
    done.map_err(|_| {
        static ENDED: Throttle = Throttle::new();
        PANICS.fetch_add(1, Relaxed);
        if let Some(left_out) = ENDED.permit() {
            tracing::error!(
                what,
                left_out,
                "panic while serving a client; its connection is closed. This is a bug, please report it"
            );
        }
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
        let front_ends =
            ["iscsi", "nbd", "nfs", "nvme"].map(|name| format!("crates/frontend/src/{name}/connection.rs"));
        for inside in ["crates/wire/src/iscsi/pdu.rs", "/build/crates/frontend/src/exec/block.rs", file!()]
            .into_iter()
            .chain(front_ends.iter().map(String::as_str))
        {
            assert!(is_protocol_code(inside), "{inside}");
        }
        for outside in [
            "crates/engine/src/disk.rs",
            "crates/store/src/memory.rs",
            "crates/frontend/src/scsi/medium.rs",
            "crates/frontend/src/scsi/reserve.rs",
            "crates/control/src/operations/mod.rs",
            "/rustc/0/library/alloc/src/vec/mod.rs",
        ] {
            assert!(!is_protocol_code(outside), "{outside}");
        }
    }

    #[test]
    fn repeated_panics_do_not_fill_the_log() {
        let text = crate::throttle::log_of(|| {
            for _ in 0..100 {
                assert_eq!(contain("a test", || panic!("expected by the test")), Err::<(), _>(Panicked));
            }
        });
        let logged = text.lines().filter(|line| line.contains("panic while serving a client")).count();
        // The lines fall into at most two intervals of the limit. There is no line if a parallel test has
        // disabled it.
        assert!(logged <= 20, "{logged}");
        let reports = (0..100).filter(|_| may_report_contained()).count();
        assert!((1..=20).contains(&reports), "{reports}");
    }

    #[test]
    fn a_panic_counts_only_while_a_connection_is_served() {
        let here = Location::caller();
        assert!(!is_contained(Some(here)));
        assert_eq!(contain("a test", || is_contained(Some(here))), Ok(true));
        let before = panics();
        assert_eq!(contain("a test", || panic!("expected by the test")), Err::<(), _>(Panicked));
        assert!(panics() > before && !is_contained(Some(here)));
    }
}
