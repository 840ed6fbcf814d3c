//! The threads on which the engine's CPU work runs, in addition to the engine's thread.
//!
//! The caller takes part: a helper that the system does not schedule soon finds nothing left to do. Idle
//! threads sleep.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use forebay_engine::Workers;
use rayon_core::{ThreadPool, ThreadPoolBuilder};

/// A number of threads, of which the caller is one.
pub(super) struct WorkerThreads {
    /// `None` if there is only the caller.
    helpers: Option<ThreadPool>,
    threads: usize,
}

impl WorkerThreads {
    /// Starts all threads but the caller's.
    pub fn start(threads: usize) -> std::io::Result<WorkerThreads> {
        let helpers = threads.saturating_sub(1);
        let builder = ThreadPoolBuilder::new().num_threads(helpers).thread_name(|n| format!("worker-{n}"));
        let helpers = if helpers == 0 { None } else { Some(builder.build().map_err(std::io::Error::other)?) };
        Ok(WorkerThreads { helpers, threads: threads.max(1) })
    }
}

impl Workers for WorkerThreads {
    fn threads(&self) -> usize {
        self.threads
    }

    fn run(&self, count: usize, each: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        let take = || {
            loop {
                let n = next.fetch_add(1, Relaxed);
                if n >= count {
                    break;
                }
                each(n);
            }
        };
        match &self.helpers {
            None => take(),
            Some(helpers) => helpers.in_place_scope(|scope| {
                for _ in 1..self.threads.min(count) {
                    scope.spawn(|_| take());
                }
                take();
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn each_number_is_taken_once() {
        for threads in [0, 1, 3] {
            let workers = WorkerThreads::start(threads).unwrap();
            assert_eq!(workers.threads(), threads.max(1));
            for count in [0, 1, 2, 63] {
                let taken = AtomicU64::new(0);
                workers.run(count, &|n| assert_eq!(taken.fetch_or(1 << n, Relaxed) & 1 << n, 0));
                assert_eq!(taken.into_inner(), (1 << count) - 1);
            }
        }
    }
}
