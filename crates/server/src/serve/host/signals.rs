//! The signals to stop: SIGTERM and SIGINT.
//!
//! **Invariant.** A signal to stop that reaches the process, at any time of an upgrade, stops the server:
//! this process until another process serves the clients, and the other process afterwards. The sender may
//! not know the new process id yet. If a step of the upgrade does not end, because the store does not answer,
//! this process ends as in a crash after [`PATIENCE`], or with a second signal.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Time in which the runtime distributes a signal that it has received.
const DISTRIBUTED: Duration = Duration::from_millis(2);

/// Maximum time from a signal to stop until an upgrade or a handover must have reacted to it.
const PATIENCE: Duration = Duration::from_secs(5);

/// The process that has replaced this process.
static REPLACED_BY: AtomicI32 = AtomicI32::new(0);

/// The signals SIGTERM and SIGINT.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// A signal has arrived for which no caller has waited yet.
    arrived: bool,
}

impl Signals {
    pub fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            arrived: false,
        })
    }

    /// Waits for a signal to stop.
    pub async fn stop(&mut self) {
        if std::mem::take(&mut self.arrived) {
            return;
        }
        tokio::select! {
            _ = self.terminate.recv() => (),
            _ = self.interrupt.recv() => (),
        }
    }

    /// Whether a signal has arrived, including a signal that the runtime is still distributing; if so,
    /// [`Signals::stop`] returns at once.
    pub async fn have_arrived(&mut self) -> bool {
        self.arrived = tokio::time::timeout(DISTRIBUTED, self.stop()).await.is_ok();
        self.arrived
    }

    /// The result of work; `None` if a signal to stop arrives before, and [`Signals::stop`] then returns at
    /// once.
    pub async fn unless_stopped<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.stop() => {
                self.arrived = true;
                None
            }
        }
    }

    /// Completes when a signal to stop has had no effect for a long time, or a second signal arrives. Each
    /// value of this type receives every signal.
    pub async fn overdue(mut self) {
        self.stop().await;
        // Either ends the wait.
        let _ = tokio::time::timeout(PATIENCE, self.stop()).await;
    }

    /// Makes a signal to stop end the process at once from now on. Used by a process that is about to execute
    /// a program, in which the handler of this process has no effect. Returns whether a signal arrived
    /// before.
    pub async fn end_process(&mut self) -> bool {
        for number in [libc::SIGTERM, libc::SIGINT] {
            // SAFETY: the default action needs no memory of this process. It cannot fail for these numbers.
            unsafe { libc::signal(number, libc::SIG_DFL) };
        }
        self.have_arrived().await
    }

    /// Sends a signal that has arrived, and all that arrive until this process has ended, to the process that
    /// replaces it: a child that is not waited for, so its id is not reused.
    pub async fn pass_on(&mut self, pid: u32) {
        REPLACED_BY.store(pid.cast_signed(), SeqCst);
        for number in [libc::SIGTERM, libc::SIGINT] {
            // SAFETY: all fields of `sigaction` are integers, for which zero is valid; so is the empty mask.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = pass_on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            // SAFETY: the structure is valid for the call. The handler only makes a call that is safe in one.
            if unsafe { libc::sigaction(number, &raw const action, std::ptr::null_mut()) } != 0 {
                let error = io::Error::last_os_error();
                tracing::warn!(%error, "a signal to stop may not reach the new process");
            }
        }
        if self.have_arrived().await {
            pass_on_signal(libc::SIGTERM);
        }
    }
}

/// A signal handler.
extern "C" fn pass_on_signal(_: libc::c_int) {
    let pid = REPLACED_BY.load(SeqCst);
    // SAFETY: the location belongs to this thread; `kill` accesses no memory, and may be called in a signal
    // handler.
    unsafe {
        let errno = *libc::__errno_location();
        libc::kill(pid, libc::SIGTERM);
        *libc::__errno_location() = errno;
    }
}
