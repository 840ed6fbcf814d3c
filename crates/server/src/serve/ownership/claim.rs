//! Waiting for a pool in Ceph that another server holds.
//!
//! Opening blocks its thread, for ever if the cluster does not answer. A signal to stop ends the wait: the
//! thread has a short time to notice it, in which it also gives up a claim that it has just made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use forebay_store::StoreError;

use crate::serve::host::notify;

/// How long the server waits, after a signal to stop, until the thread that opens the pool gives up.
const GIVE_UP: Duration = Duration::from_millis(500);
/// Interval at which the server requests more time to start, and the time that it requests of the service
/// manager.
const EXTEND: Duration = Duration::from_secs(10);
const EXTENDED: Duration = Duration::from_secs(60);

/// Whether the opening of the pool is to be abandoned.
#[derive(Clone, Default)]
pub(in crate::serve) struct Stopped(Arc<AtomicBool>);

impl Stopped {
    pub fn get(&self) -> bool {
        self.0.load(SeqCst)
    }
}

/// Opens a store with a function that may block. `None` if `stop` completes before.
pub(in crate::serve) async fn open<T: Send + 'static>(
    open: impl FnOnce(&Stopped) -> Result<T, StoreError> + Send + 'static,
    stop: impl Future<Output = ()>,
) -> Result<Option<T>, StoreError> {
    let stopped = Stopped::default();
    let opening = blocking({
        let stopped = stopped.clone();
        move || open(&stopped)
    });
    tokio::pin!(opening);
    tokio::select! {
        opened = &mut opening => return opened.map(Some),
        () = stop => (),
        () = keep_starting() => (),
    }
    tracing::info!("stopping");
    notify::notify("STOPPING=1");
    stopped.0.store(true, SeqCst);
    // If the pool was claimed at this moment, it is released.
    let _ = tokio::time::timeout(GIVE_UP, opening).await;
    Ok(None)
}

/// Reports to the service manager that the start is in progress. Never completes.
pub(in crate::serve) async fn keep_starting() {
    loop {
        tokio::time::sleep(EXTEND).await;
        notify::notify(&format!("EXTEND_TIMEOUT_USEC={}", EXTENDED.as_micros()));
    }
}

/// Runs work that blocks, on a separate thread.
pub(in crate::serve) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(e) => std::panic::resume_unwind(e.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::mpsc;

    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(future)
    }

    fn cancelled() -> StoreError {
        StoreError::Io { what: "open".into(), reason: "cancelled".into(), errno: libc::ECANCELED }
    }

    #[test]
    fn the_result_of_the_opening_is_returned() {
        assert_eq!(run(open(|_| Ok(7), pending())), Ok(Some(7)));
        assert_eq!(run(open(|_| Err::<(), _>(StoreError::ReadOnly), pending())), Err(StoreError::ReadOnly));
    }

    #[test]
    fn a_signal_to_stop_cancels_the_opening() {
        let (begins, has_begun) = tokio::sync::oneshot::channel();
        let (ended, end) = mpsc::channel();
        let opening = move |stopped: &Stopped| {
            begins.send(()).unwrap();
            while !stopped.get() {
                std::thread::yield_now();
            }
            ended.send(()).unwrap();
            Err::<(), _>(cancelled())
        };
        let stop = async move { has_begun.await.unwrap() };
        assert_eq!(run(open(opening, stop)), Ok(None));
        end.recv().unwrap();
    }

    #[test]
    fn a_pool_that_is_claimed_after_the_signal_is_released() {
        struct Store(mpsc::Sender<()>);
        impl Drop for Store {
            fn drop(&mut self) {
                self.0.send(()).unwrap();
            }
        }
        let (dropped, released) = mpsc::channel();
        let opening = move |stopped: &Stopped| {
            while !stopped.get() {
                std::thread::yield_now();
            }
            Ok(Store(dropped.clone()))
        };
        assert!(run(open(opening, ready(()))).unwrap().is_none());
        released.recv().unwrap();
    }
}
