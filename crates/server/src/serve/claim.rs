//! Waiting for a pool in Ceph that another server holds.
//!
//! Opening blocks its thread, for ever if the cluster does not answer. A signal to stop ends the wait: the
//! thread has a short time to notice it, in which it also gives up a claim that it has just made.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use forebay_store::StoreError;
use forebay_store::rados::Claim;

use super::notify;

/// Time for the thread to give up after a signal to stop.
const GIVE_UP: Duration = Duration::from_millis(500);
/// Interval of the requests for more time to start, and the time that is requested of the service manager.
const EXTEND: Duration = Duration::from_secs(10);
const EXTENDED: Duration = Duration::from_secs(60);

/// Whether the opening is to be given up.
#[derive(Clone, Default)]
pub(super) struct Stopped(Arc<AtomicBool>);

impl Stopped {
    pub fn get(&self) -> bool {
        self.0.load(SeqCst)
    }
}

/// Opens a store that no other server holds.
///
/// # Errors
/// Those of `open`, such as [`StoreError::Busy`].
pub(super) async fn try_once<T: Send + 'static>(
    open: impl FnOnce(Claim, &Stopped) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    blocking(move || open(Claim::IfFree, &Stopped::default())).await
}

/// Opens a store as soon as no other server holds it. `None` if `stop` completes before.
pub(super) async fn wait<T: Send + 'static>(
    pool: &impl Display,
    open: impl Fn(Claim, &Stopped) -> Result<T, StoreError> + Send + Sync + 'static,
    stop: impl Future<Output = ()>,
) -> Result<Option<T>, StoreError> {
    let (open, stopped) = (Arc::new(open), Stopped::default());
    let begin = |claim| {
        let (open, stopped) = (open.clone(), stopped.clone());
        blocking(move || open(claim, &stopped))
    };
    tracing::info!(%pool, "opening the pool");
    let opening = async {
        let owner = match begin(Claim::IfFree).await {
            Err(StoreError::Busy(owner)) => owner,
            other => return other,
        };
        tracing::info!(%pool, "waiting for the pool: another server holds it{owner}");
        notify::notify("STATUS=standby: waiting for the pool");
        let opened = begin(Claim::Wait).await?;
        tracing::info!(%pool, "took over the pool");
        notify::notify("STATUS=took over the pool");
        Ok(opened)
    };
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
async fn keep_starting() {
    loop {
        tokio::time::sleep(EXTEND).await;
        notify::notify(&format!("EXTEND_TIMEOUT_USEC={}", EXTENDED.as_micros()));
    }
}

/// Runs work that blocks, on a separate thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
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
    fn a_free_pool_is_opened_at_once() {
        let open = |claim, _: &Stopped| match claim {
            Claim::IfFree => Ok(7),
            Claim::Wait => Err(StoreError::ReadOnly),
        };
        assert_eq!(run(wait(&"p", open, pending())), Ok(Some(7)));
        assert_eq!(run(try_once(open)), Ok(7));
    }

    #[test]
    fn a_pool_that_another_server_holds_is_waited_for() {
        let open = |claim, _: &Stopped| match claim {
            Claim::IfFree => Err(StoreError::Busy(String::new())),
            Claim::Wait => Ok(8),
        };
        assert_eq!(run(wait(&"p", open, pending())), Ok(Some(8)));
        assert!(matches!(run(try_once(open)), Err(StoreError::Busy(_))));
    }

    #[test]
    fn an_error_ends_the_wait() {
        let open = |claim, _: &Stopped| match claim {
            Claim::IfFree => Err::<(), _>(StoreError::Busy(String::new())),
            Claim::Wait => Err(StoreError::ReadOnly),
        };
        assert_eq!(run(wait(&"p", open, pending())), Err(StoreError::ReadOnly));
    }

    #[test]
    fn a_signal_to_stop_cancels_the_opening() {
        let (waits, has_begun) = tokio::sync::oneshot::channel();
        let (waits, (ended, end)) = (std::sync::Mutex::new(Some(waits)), mpsc::channel());
        let open = move |claim, stopped: &Stopped| match claim {
            Claim::IfFree => Err::<(), _>(StoreError::Busy(String::new())),
            Claim::Wait => {
                let _ = waits.lock().unwrap().take().unwrap().send(());
                while !stopped.get() {
                    std::thread::yield_now();
                }
                ended.send(()).unwrap();
                Err(cancelled())
            }
        };
        let stop = async move { has_begun.await.unwrap() };
        assert_eq!(run(wait(&"p", open, stop)), Ok(None));
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
        let open = move |_, stopped: &Stopped| {
            while !stopped.get() {
                std::thread::yield_now();
            }
            Ok(Store(dropped.clone()))
        };
        assert!(run(wait(&"p", open, ready(()))).unwrap().is_none());
        released.recv().unwrap();
    }
}
