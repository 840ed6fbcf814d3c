//! The thread that serves requests of the API.
//!
//! Requests have this thread to themselves. The thread that feeds the watchdog of the service manager,
//! publishes for standbys, notices the loss of the pool, shrinks caches and handles signals does not wait for
//! a request, whatever the request costs.

use std::io;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// The thread; it ends when this value is dropped.
pub(in crate::serve) struct RequestThread {
    handle: Handle,
    _running: oneshot::Sender<()>,
}

impl RequestThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread or no descriptor for it.
    pub fn start() -> io::Result<RequestThread> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (running, ended) = oneshot::channel::<()>();
        std::thread::Builder::new().name("requests".to_owned()).spawn(move || {
            // An error means that the sender was dropped.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        })?;
        Ok(RequestThread { handle, _running: running })
    }

    /// The runtime of the thread, for the listeners of the API.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_request_that_occupies_its_thread_does_not_occupy_that_of_the_server() {
        let requests = RequestThread::start().unwrap();
        let (started, starts) = oneshot::channel();
        let (release, released) = mpsc::channel::<()>();
        let request = requests.handle().spawn(async move {
            started.send(std::thread::current().id()).unwrap();
            // The request blocks its thread.
            released.recv().unwrap();
        });
        assert_ne!(starts.await.unwrap(), std::thread::current().id());
        tokio::task::yield_now().await;
        assert!(!request.is_finished());
        release.send(()).unwrap();
        request.await.unwrap();
    }
}
