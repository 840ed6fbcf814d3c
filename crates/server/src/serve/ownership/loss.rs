//! The end of a server that lost its pool to another server.

/// Exit status of a server that has lost its pool: EX_UNAVAILABLE (sysexits.h).
const FENCED_STATUS: i32 = 69;

/// How a server lost its pool.
#[derive(Clone, Copy)]
pub(in crate::serve) enum Loss {
    /// Another server has opened the pool.
    Opened,
    /// Another server has taken the store, or may take it.
    Taken,
    /// This server handed the pool over, and does not wait for it.
    HandedOver,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Loss::Opened => forebay_engine::Error::Fenced.fmt(f),
            Loss::HandedOver => f.write_str("another server has the pool, to which it was handed over"),
            Loss::Taken => f.write_str(
                "another server has taken the pool, or this one could not renew its claim to it, and serves nothing any more",
            ),
        }
    }
}

/// Ends the process: all connections end unanswered.
pub(in crate::serve) fn exit_without_pool(loss: Loss) -> ! {
    eprintln!("forebay: {loss}; exiting");
    // SAFETY: the call accesses no memory. Unlike exit(3) it runs no handlers, during which the other threads
    // would answer requests.
    unsafe { libc::_exit(FENCED_STATUS) }
}
