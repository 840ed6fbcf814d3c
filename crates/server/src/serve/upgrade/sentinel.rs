//! A watch on the process to which a pool in Ceph was released in an upgrade.
//!
//! The time limit of an upgrade is longer than the time after which other servers regard an owner as dead. If
//! the new process hangs, before or after it has taken the pool, a standby would take the pool over, and
//! clients would lose their connections. So the new process is ended before that time, and the former process
//! takes the pool back.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::serve::ownership::candidate::Candidate;

/// State of the answer that is awaited of the process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Awaited,
    Received,
    /// The process was ended by another process.
    Missing,
}

/// A sentinel of a process; see the module documentation.
pub(in crate::serve) struct Sentinel(Arc<Mutex<Answer>>);

impl Sentinel {
    /// Watches a child that is not waited for before [`Sentinel::end`] has returned.
    pub fn watch(candidate: &Candidate, pid: u32) -> Sentinel {
        let answer = Arc::new(Mutex::new(Answer::Awaited));
        let sentinel = Sentinel(answer.clone());
        let candidate = candidate.clone();
        // Nothing waits for the end of this thread: the cluster may not answer.
        tokio::task::spawn_blocking(move || {
            let is_cancelled = || *answer.lock() != Answer::Awaited;
            if !candidate.is_abandoned(&is_cancelled) {
                return;
            }
            let mut answer = answer.lock();
            if *answer == Answer::Awaited {
                *answer = Answer::Missing;
                // SAFETY: the call accesses no memory. The id is that of the child: see the contract.
                unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
            }
        });
        sentinel
    }

    /// The process has answered, or failed to. Returns whether it was ended.
    pub fn end(self) -> bool {
        let mut answer = self.0.lock();
        if *answer == Answer::Awaited {
            *answer = Answer::Received;
        }
        *answer == Answer::Missing
    }
}
