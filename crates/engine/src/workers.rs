//! CPU work that is divided among threads.
//!
//! The engine starts no threads: its host provides [`Workers`]. A result does not depend on the number of
//! threads or on the order in which they run, so a simulation, which has one thread, replays what a server
//! does on many threads.

use crate::sync::Mutex;

/// Threads on which the engine's CPU work runs.
pub trait Workers: Send + Sync + 'static {
    /// Number of threads that work, at least one.
    fn threads(&self) -> usize;
    /// Calls `each` with every number below `count`, on any of the threads and in any order. Returns when all
    /// calls have returned.
    fn run(&self, count: usize, each: &(dyn Fn(usize) + Sync));
}

/// Runs all work on the calling thread.
pub(crate) struct Inline;

impl Workers for Inline {
    fn threads(&self) -> usize {
        1
    }

    fn run(&self, count: usize, each: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(each);
    }
}

/// Applies `work` to each job; returns the results in the order of the jobs.
pub(crate) fn map<T: Send, R: Send>(
    workers: &dyn Workers,
    jobs: Vec<T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    if workers.threads() == 1 || jobs.len() <= 1 {
        return jobs.into_iter().map(work).collect();
    }
    let jobs: Vec<_> = jobs.into_iter().map(|job| Mutex::new(Some(job))).collect();
    let results: Vec<_> = jobs.iter().map(|_| Mutex::new(None)).collect();
    workers.run(jobs.len(), &|n| {
        let job = jobs[n].lock().take();
        let result = job.map(&work);
        *results[n].lock() = result;
    });
    results.into_iter().map(|result| result.into_inner().expect("every job was run once")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs each call on a separate thread, beginning with the last call.
    struct Many;

    impl Workers for Many {
        fn threads(&self) -> usize {
            8
        }

        fn run(&self, count: usize, each: &(dyn Fn(usize) + Sync)) {
            std::thread::scope(|scope| {
                for n in (0..count).rev() {
                    scope.spawn(move || each(n));
                }
            });
        }
    }

    #[test]
    fn results_are_in_the_order_of_the_jobs() {
        let mut memory = [0; 100];
        for workers in [&Inline as &dyn Workers, &Many] {
            let jobs: Vec<(usize, &mut [usize])> = memory.chunks_mut(7).enumerate().collect();
            let results = map(workers, jobs, |(n, piece)| {
                piece.fill(n + 1);
                n * n
            });
            assert_eq!(results, (0..15).map(|n| n * n).collect::<Vec<_>>());
            assert!(memory.iter().enumerate().all(|(at, n)| *n == at / 7 + 1));
            assert!(map(workers, Vec::<u8>::new(), |n| n).is_empty());
        }
    }
}
