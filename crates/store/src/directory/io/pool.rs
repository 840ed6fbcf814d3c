//! A small pool of threads for operations that may block. Threads are started on demand and sleep when idle.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};

/// Maximum number of threads. They wait for the disk, not for a CPU: this is the queue depth without a ring.
const MAX_THREADS: usize = 16;

type Job = Box<dyn FnOnce() + Send>;

/// The pool of threads.
pub(in crate::directory) struct Pool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    closing: bool,
}

impl Pool {
    /// Creates the pool and starts its first thread; without a thread no job would run.
    pub(super) fn new() -> io::Result<Pool> {
        let pool = Pool { shared: Arc::default(), threads: Mutex::default() };
        pool.add_thread(&mut pool.threads.lock())?;
        Ok(pool)
    }

    /// Runs `job` on a thread, in order of arrival. During shutdown it runs on the calling thread: the
    /// completion of an operation in flight may submit one.
    pub(in crate::directory) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let crowded = {
            let mut queue = self.shared.queue.lock();
            if queue.closing {
                drop(queue);
                return job();
            }
            queue.jobs.push_back(Box::new(job));
            queue.jobs.len() > queue.idle
        };
        self.shared.work.notify_one();
        if crowded {
            let mut threads = self.threads.lock();
            if threads.len() < MAX_THREADS {
                // If the thread cannot be started, the other threads take the job.
                let _ = self.add_thread(&mut threads);
            }
        }
    }

    fn add_thread(&self, threads: &mut Vec<JoinHandle<()>>) -> io::Result<()> {
        let shared = self.shared.clone();
        threads.push(thread::Builder::new().name("store-pool".into()).spawn(move || shared.work())?);
        Ok(())
    }

    /// Runs all queued jobs, then ends the threads.
    pub(super) fn shut_down(&self) {
        self.shared.queue.lock().closing = true;
        self.shared.work.notify_all();
        // The threads are joined without the lock: a job that submitted another job before may be about to
        // add a thread.
        loop {
            let Some(thread) = self.threads.lock().pop() else { return };
            join(thread);
        }
    }
}

/// Joins a thread, unless it is the current one (a waker that it called dropped the last owner).
pub(super) fn join(thread: JoinHandle<()>) {
    if thread.thread().id() != thread::current().id() && thread.join().is_err() {
        tracing::error!("an I/O thread panicked");
    }
}

impl Shared {
    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                parking_lot::MutexGuard::unlocked(&mut queue, job);
            } else if queue.closing {
                return;
            } else {
                queue.idle += 1;
                self.work.wait(&mut queue);
                queue.idle -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    fn submit(pool: &Arc<Pool>, done: &Arc<AtomicU32>, further: u32) {
        let (next, counted) = (pool.clone(), done.clone());
        pool.run(move || {
            if further > 0 {
                submit(&next, &counted, further - 1);
            }
            counted.fetch_add(1, Relaxed);
        });
    }

    #[test]
    fn a_shutdown_ends_while_jobs_submit_others_and_all_of_them_are_run() {
        for _ in 0..300 {
            let (pool, done) = (Arc::new(Pool::new().unwrap()), Arc::default());
            (0..8).for_each(|_| submit(&pool, &done, 9));
            pool.shut_down();
            assert_eq!(done.load(Relaxed), 80);
        }
    }
}
