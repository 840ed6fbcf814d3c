//! Upgrades, and handovers of the pool: requested here, performed by the loop of the server, which owns what
//! is handed over.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use utoipa::ToSchema;

use super::{Arc, Control, ControlError, Duration, ErrorKind, JobKind, MAX_RUNNING, Result};

/// An upgrade of the running server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"binary": "/usr/bin/forebay"}))]
pub struct Upgrade {
    /// The new binary; the path from which the server was started if absent.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub binary: Option<PathBuf>,
    /// Longest time in seconds for each step of the new process.
    #[serde(default)]
    pub timeout_s: Option<u64>,
}

/// A completed upgrade.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Upgraded {
    /// Process id of the server from now on.
    pub pid: u32,
    /// Its release.
    pub version: String,
    /// The time in which clients were not served, in milliseconds.
    pub pause_ms: u64,
    /// Connections that continue.
    pub connections: usize,
    /// Connections that were closed: those with TLS, and those without an export or session.
    pub closed: usize,
}

/// A handover of the pool to a server that waits for it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"to": "node2"}))]
pub struct Handover {
    /// `HOST` or `HOST:PROCESS` of the standby; any one if absent.
    #[serde(default)]
    pub to: Option<String>,
}

/// The server that has the pool after a handover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewOwner {
    /// The server: host and process.
    pub owner: String,
    /// Number of its ownership.
    pub term: u64,
    /// Whether it serves clients; if not, it has the pool and still opens it.
    pub serving: bool,
    /// The time in which no server served clients, in milliseconds.
    pub pause_ms: u64,
    /// Connections of the former server that were closed.
    pub closed: usize,
}

/// A request to the loop of the server, and where its result is sent.
#[derive(Debug)]
pub enum ServerRequest {
    /// Another process takes the place of this one.
    Upgrade(Upgrade, oneshot::Sender<Result<Upgraded>>),
    /// Another server takes the pool.
    HandOver(Handover, oneshot::Sender<Result<NewOwner>>),
}

/// Access to the loop of the server.
#[derive(Default)]
pub(super) struct Upgrades {
    requests: std::sync::OnceLock<mpsc::Sender<ServerRequest>>,
    running: AtomicBool,
    /// Another process is taking over.
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
        // It is set once, before the API is served.
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

    /// Lets no job begin until the returned permit is dropped, once the running ones have ended.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if they have not after `timeout`.
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
