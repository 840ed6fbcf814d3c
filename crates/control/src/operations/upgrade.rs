//! Requests for upgrades and for handovers of the pool. The main loop of the server performs them, because it
//! owns the state that is handed over.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use forebay_api::{ErrorKind, Handover, JobKind, NewOwner, Upgrade, Upgraded};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::{Arc, Control, ControlError, Duration, MAX_RUNNING, Result};

/// A request to the loop of the server, and where its result is sent.
#[derive(Debug)]
pub enum ServerRequest {
    /// Another process takes the place of this process.
    Upgrade(Upgrade, oneshot::Sender<Result<Upgraded>>),
    /// Another server takes the pool over.
    HandOver(Handover, oneshot::Sender<Result<NewOwner>>),
}

/// Access to the loop of the server.
#[derive(Default)]
pub(super) struct Upgrades {
    requests: std::sync::OnceLock<mpsc::Sender<ServerRequest>>,
    running: AtomicBool,
    /// The request was begun: another process is taking over.
    begun: AtomicBool,
}

impl Upgrades {
    pub fn set_begun(&self) {
        self.begun.store(true, SeqCst);
    }

    pub fn has_begun(&self) -> bool {
        self.begun.load(SeqCst)
    }
}

impl Control {
    /// Passes requests for upgrades and handovers to `requests`.
    pub fn accept_upgrades(&self, requests: mpsc::Sender<ServerRequest>) {
        // The value is set once, before the API is served.
        let _ = self.inner.upgrades.requests.set(requests);
    }

    /// Upgrades the server. Returns when the new process serves the clients, or this one does again.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] during another upgrade, and while an import or a reclaim runs;
    /// [`ErrorKind::UpgradeFailed`].
    pub async fn upgrade(&self, upgrade: Upgrade, owner: &str) -> Result<Upgraded> {
        self.request(JobKind::Upgrade, owner, |reply| ServerRequest::Upgrade(upgrade, reply)).await
    }

    /// Hands the pool over to a standby. Returns when that one has the pool, or this server does again.
    ///
    /// # Errors
    /// [`ErrorKind::NoStandby`] if none waits; [`ErrorKind::InUse`] as [`Control::upgrade`];
    /// [`ErrorKind::HandoverFailed`].
    pub async fn hand_over(&self, handover: Handover, owner: &str) -> Result<NewOwner> {
        self.request(JobKind::Handover, owner, |reply| ServerRequest::HandOver(handover, reply)).await
    }

    async fn request<T: Serialize>(
        &self,
        kind: JobKind,
        owner: &str,
        request: impl FnOnce(oneshot::Sender<Result<T>>) -> ServerRequest,
    ) -> Result<T> {
        let upgrades = &self.inner.upgrades;
        let Some(requests) = upgrades.requests.get() else {
            let why = "this server cannot be replaced while it runs";
            return Err(ControlError::new(ErrorKind::UpgradeFailed, why));
        };
        if upgrades.running.swap(true, SeqCst) {
            let why = "another upgrade or handover is running; wait for its end";
            return Err(ControlError::new(ErrorKind::InUse, why));
        }
        let _running = Running(&upgrades.running);
        let job = self.begin_job(kind, None, owner, false);
        let (reply, result) = oneshot::channel();
        let done = match requests.send(request(reply)).await {
            Ok(()) => result.await.unwrap_or_else(|_| Err(ControlError::closed())),
            Err(_) => Err(ControlError::closed()),
        };
        job.end(&done);
        done
    }

    /// Lets no job begin until the returned permit is dropped, and waits until the running jobs have ended.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if they have not ended after `timeout`.
    pub async fn pause(&self, timeout: Duration) -> Result<OwnedSemaphorePermit> {
        let all = Arc::clone(&self.inner.running).acquire_many_owned(MAX_RUNNING);
        match tokio::time::timeout(timeout, all).await {
            Ok(permit) => permit.map_err(|_| ControlError::closed()),
            Err(_) => {
                let message =
                    "an import, a reclaim or another administrative job is running; wait for its end";
                Err(ControlError::new(ErrorKind::InUse, message))
            }
        }
    }
}

/// A request that was sent; ended when dropped, also if its client has disconnected.
struct Running<'a>(&'a AtomicBool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}
