//! The host services of the engine: a clock, randomness, and a separate thread for its background tasks.
//! Neither the requests of guests nor the control plane can delay these tasks.

use std::future::{Future, poll_fn};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_engine::{BoxFuture, Host, PoolId, Workers};
use forebay_retained::{HeapMemory, Memory};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::clock;
use super::retained_files::{MemoryFiles, PoolDirectory};
use super::timer::Timers;
use super::workers::WorkerThreads;

/// Shorter sleeps use separate timers, since the runtime's would add a millisecond.
const PRECISE_BELOW: Duration = Duration::from_millis(4);

/// The engine's thread. Dropping it stops the thread and all tasks that run on it.
pub struct EngineThread {
    host: Arc<EngineHost>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// The [`Host`] of an engine in a server.
struct EngineHost {
    start: Instant,
    handle: Handle,
    memory: MemoryFiles,
    boot_id: [u8; 16],
    workers: WorkerThreads,
    timers: Arc<Timers>,
    turn: Arc<Turn>,
}

/// Held while a task of the engine is polled. That is on the engine's thread, except for steps of the commit
/// that a data-plane thread takes ([`Host::run_step`]).
type Turn = Mutex<()>;

/// Polls a task of the engine in its turn.
async fn in_turn<T>(turn: Arc<Turn>, task: impl Future<Output = T>) -> T {
    let mut task = std::pin::pin!(task);
    poll_fn(|cx| {
        let _turn = turn.lock();
        task.as_mut().poll(cx)
    })
    .await
}

impl EngineThread {
    /// Starts the thread, for an engine whose retained memory ends with the process. Its CPU work is divided
    /// among `workers` threads, including this thread.
    pub fn start(workers: usize) -> std::io::Result<EngineThread> {
        EngineThread::start_with(MemoryFiles::default(), workers)
    }

    /// Works like [`EngineThread::start`], for an engine whose retained memory is in files of this directory.
    pub fn retaining(directory: &Path, workers: usize) -> std::io::Result<EngineThread> {
        EngineThread::start_with(MemoryFiles::in_directory(directory), workers)
    }

    fn start_with(memory: MemoryFiles, workers: usize) -> std::io::Result<EngineThread> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name("engine".into()).spawn(move || {
            // Sending and dropping the sender both stop the thread.
            let _ = runtime.block_on(stopped);
        })?;
        let (boot_id, workers) = (clock::boot_id(), WorkerThreads::start(workers)?);
        let (start, timers, turn) = (Instant::now(), Arc::default(), Arc::default());
        let host = Arc::new(EngineHost { start, handle, memory, boot_id, workers, timers, turn });
        Ok(EngineThread { host, stop: Some(stop), thread: Some(thread) })
    }

    /// The host services to pass to the engine.
    pub fn host(&self) -> Arc<dyn Host> {
        Arc::clone(&self.host) as Arc<dyn Host>
    }

    /// The pool that is opened next is in this directory; `None`: in Ceph.
    pub fn use_memory_of(&self, directory: Option<PoolDirectory>) {
        self.host.memory.set_pool_directory(directory);
    }

    /// Removes the file of the retained memory of a pool that was closed and needs nothing from it.
    pub fn remove_memory(&self) {
        self.host.memory.remove();
    }

    /// Lets another opening of the pool, here or in another process, use its retained memory. The pool was
    /// closed.
    pub fn release_memory(&self) {
        self.host.memory.release();
    }

    /// Runs `future` on the engine's thread instead of the caller's.
    pub async fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        match self.host.handle.spawn(in_turn(self.host.turn.clone(), future)).await {
            Ok(value) => value,
            Err(e) if e.is_panic() => std::panic::resume_unwind(e.into_panic()),
            // The thread stops only when `self` is dropped, and `self` is borrowed here.
            Err(_) => unreachable!("the engine thread runs until its owner is dropped"),
        }
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Host for EngineHost {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn unix_ms(&self) -> u64 {
        clock::unix_ms()
    }

    fn boot_id(&self) -> [u8; 16] {
        self.boot_id
    }

    fn boot_ms(&self) -> u64 {
        clock::boot_ms()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        // The timer belongs to the engine's runtime, whichever thread calls this.
        let _entered = self.handle.enter();
        if duration < PRECISE_BELOW
            && let Ok(sleep) = self.timers.start(duration)
        {
            return Box::pin(sleep.end());
        }
        Box::pin(tokio::time::sleep(duration))
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        let task = in_turn(self.turn.clone(), task);
        self.handle.spawn(async move {
            let guard = AbortOnPanic(name);
            task.await;
            std::mem::forget(guard);
        });
    }

    fn run_step(&self, step: &mut dyn FnMut()) -> bool {
        let Some(_turn) = self.turn.try_lock() else { return false };
        // The thread may contain panics, which would leave the task in an undefined state.
        let guard = AbortOnPanic("commit");
        step();
        std::mem::forget(guard);
        true
    }

    fn memory(&self, pool: PoolId, id: u64, limit: u64) -> std::io::Result<Arc<dyn Memory>> {
        match self.memory.open(pool, id, limit)? {
            Some(memory) => Ok(memory),
            None => Ok(Arc::new(HeapMemory::of_bytes(limit))),
        }
    }

    fn workers(&self) -> &dyn Workers {
        &self.workers
    }

    fn random(&self, bytes: &mut [u8]) {
        if let Err(e) = getrandom::fill(bytes) {
            // Without randomness, different pools would get the same secrets and identities.
            panic!("the system's random number generator failed: {e}");
        }
    }
}

/// Aborts the process when a background task of the engine panics: guests would otherwise wait forever for
/// its work. The log makes a crash safe and a restart fast.
struct AbortOnPanic(&'static str);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("forebay: the engine task '{}' failed; the server aborts, restart it", self.0);
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_and_timers_run_on_the_engine_thread_whichever_thread_starts_them() {
        let engine = EngineThread::start(1).unwrap();
        let host = engine.host();
        let (tx, rx) = std::sync::mpsc::channel();
        let timer = host.sleep(Duration::from_millis(5));
        let before = host.now();
        let clock = Arc::clone(&host);
        host.spawn(
            "test",
            Box::pin(async move {
                timer.await;
                let _ = tx.send((thread::current().name().map(str::to_owned), clock.now()));
            }),
        );
        let (name, after) = rx.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(name.as_deref(), Some("engine"));
        assert!(after - before >= Duration::from_millis(4));
    }

    #[test]
    fn no_task_runs_during_a_step() {
        let engine = EngineThread::start(1).unwrap();
        let host = engine.host();
        let (tx, rx) = std::sync::mpsc::channel();
        let did = host.run_step(&mut || {
            let tx = tx.clone();
            host.spawn("test", Box::pin(async move { tx.send(()).unwrap() }));
            assert!(rx.recv_timeout(Duration::from_millis(50)).is_err());
            assert!(!host.run_step(&mut || unreachable!()), "a step within a step");
        });
        assert!(did);
        rx.recv_timeout(Duration::from_secs(10)).unwrap();
    }

    #[test]
    fn random_bytes_differ() {
        let engine = EngineThread::start(1).unwrap();
        let (mut a, mut b) = ([0; 16], [0; 16]);
        engine.host().random(&mut a);
        engine.host().random(&mut b);
        assert_ne!(a, b);
    }
}
