//! The thread on which the tasks of a pool run, and helper threads for blocking calls of the library.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::operations::Connection;
use crate::BoxFuture;

/// Maximum number of concurrent blocking calls. They wait for the cluster, not for a CPU.
const MAX_CALLS: usize = 16;

/// A runtime with one thread.
pub(super) struct Runtime {
    handle: Handle,
    thread: ThreadId,
}

/// Ends the runtime.
pub(super) struct End {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl End {
    /// Ends the runtime, and waits until its tasks are dropped. Must not be called on the runtime's thread.
    pub(super) fn wait(self) {
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

/// A blocking call that is not ended yet.
struct Call(Arc<Connection>);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.queue.call_ended();
    }
}

impl Runtime {
    pub(super) fn start() -> io::Result<(Runtime, End)> {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .max_blocking_threads(MAX_CALLS)
            .thread_name("rados-helper")
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("rados".into()).spawn(move || {
            let _ = runtime.block_on(stopped);
            // The runtime ends without waiting for blocking calls: the owner of the connection waits for
            // them.
            runtime.shutdown_background();
        })?;
        Ok((Runtime { handle, thread: thread.thread().id() }, End { stop, thread }))
    }

    /// Whether the calling thread is the runtime's.
    pub(super) fn is_this_thread(&self) -> bool {
        thread::current().id() == self.thread
    }

    pub(super) fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.handle.spawn(task);
    }

    /// Completes after `time`, or earlier if the runtime ends.
    pub(super) fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        let (end, ended) = oneshot::channel::<()>();
        self.handle.spawn(async move {
            tokio::time::sleep(time).await;
            drop(end);
        });
        Box::pin(async { drop(ended.await) })
    }

    /// Runs a blocking call on a helper thread. The call is dropped if the runtime ends first.
    pub(super) fn call(&self, connection: &Arc<Connection>, call: impl FnOnce() + Send + 'static) {
        connection.queue.call_begins();
        let guard = Call(connection.clone());
        self.handle.spawn_blocking(move || {
            call();
            drop(guard);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_run_and_sleep_until_the_end() {
        let (runtime, end) = Runtime::start().expect("it starts");
        let (done, wait) = std::sync::mpsc::channel();
        let sleep = runtime.sleep(Duration::from_millis(1));
        runtime.spawn(Box::pin(async move {
            sleep.await;
            let _ = done.send(thread::current().name().map(str::to_owned));
        }));
        assert_eq!(wait.recv(), Ok(Some("rados".to_owned())));
        let (forever, dropped) = (runtime.sleep(Duration::from_secs(1 << 20)), Arc::new(()));
        let held = dropped.clone();
        runtime.spawn(Box::pin(async move {
            std::future::pending::<()>().await;
            drop(held);
        }));
        end.wait();
        assert_eq!(Arc::strong_count(&dropped), 1);
        let test = Builder::new_current_thread().build().expect("a runtime");
        test.block_on(forever);
        test.block_on(runtime.sleep(Duration::from_secs(1 << 20)));
    }
}
