//! The steps of an upgrade on the side of the predecessor. [`super::upgrade`] states the rules.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::Pool;
use tokio::task::JoinHandle;

use super::OpenPool;
use super::notify;
use super::pressure;
use super::services::Services;
use super::signals::Signals;
use super::sockets::Sockets;
use super::upgrade::{CacheCopy, Failure, HandedOver, Predecessor};
use crate::control::{ControlError, ErrorKind, Upgraded};
use crate::plane::Parked;

/// Time in which the requests in progress have to be finished.
const QUIESCE: Duration = Duration::from_millis(500);
/// Time in which administrative jobs have to be finished.
const JOBS: Duration = Duration::from_secs(2);

/// The outcome of an attempt.
pub(super) enum Outcome {
    /// The successor serves the clients. The tasks answer the last requests of the API.
    Replaced(Upgraded, Vec<JoinHandle<()>>),
    /// The server was not interrupted.
    Unchanged(Box<Services>, ControlError),
    /// The services have stopped and the pool is closed: the server continues with these connections.
    Resume(HandedOver, ControlError),
}

/// A failure, and what became of it.
fn failed(error: impl std::fmt::Display, then: &str) -> ControlError {
    ControlError::new(ErrorKind::UpgradeFailed, format!("the upgrade failed: {error}; {then}"))
}

const CONTINUES: &str = "this process continues to serve its clients";

/// Replaces this process by one of `binary`. `sockets` is returned unless it was left to the successor.
pub(super) async fn replace(
    binary: PathBuf,
    time: Duration,
    open: &OpenPool,
    services: Services,
    sockets: Sockets,
    signals: &mut Signals,
) -> (Outcome, Option<Sockets>) {
    tracing::info!(binary = %binary.display(), "upgrade begins");
    notify::reloading();
    let unchanged = |services, e, sockets| (Outcome::Unchanged(Box::new(services), e), Some(sockets));
    let started = blocking(move || {
        let started = Predecessor::start(&binary, &sockets, time);
        (started, sockets)
    });
    let (mut successor, sockets) = match started.await {
        (Ok(successor), sockets) => (successor, sockets),
        (Err(e), sockets) => return unchanged(services, failed(e, CONTINUES), sockets),
    };
    let paused = match services.control.pause(JOBS).await {
        Ok(paused) => paused,
        Err(e) => return unchanged(services, e, sockets),
    };
    let cache = copy_cache(open.pool.clone()).await;
    // So that little is left to do while clients wait.
    if let Err(e) = open.pool.checkpoint().await {
        return unchanged(services, failed(e, CONTINUES), sockets);
    }
    if signals.have_arrived().await {
        return unchanged(services, failed("a signal to stop has arrived", "the server stops"), sockets);
    }
    let begun = Instant::now();
    // Requests that wait for a commit need not wait for others to share it.
    let (quiet, _) = tokio::join!(services.plane.quiesce(QUIESCE), open.pool.flush());
    if let Err(busy) = quiet {
        let error = format!("requests of {busy} connections were not finished within {QUIESCE:?}");
        return unchanged(services, failed(error, CONTINUES), sockets);
    }
    let quiesced = begun.elapsed();
    let (state, closed, api) = park(services).await;
    let state = HandedOver { cache, ..state };
    drop(paused);
    if let Err(e) = open.release().await {
        return (Outcome::Resume(state, failed(e, CONTINUES)), Some(sockets));
    }
    let pool_closed = begun.elapsed();
    let (opened, state, mut successor) = blocking(move || {
        let opened = successor.hand_over(&state);
        (opened, state, successor)
    })
    .await;
    if let Err(e) = opened {
        // It must not use the connections any more.
        blocking(move || drop(successor)).await;
        return (Outcome::Resume(state, failed(e, CONTINUES)), Some(sockets));
    }
    let opened = begun.elapsed();
    let (served, successor) = blocking(move || {
        let served = successor.go();
        (served, successor)
    })
    .await;
    let resumed = match served {
        Ok(resumed) => resumed,
        Err(e) => return (lost(e, successor, state).await, Some(sockets)),
    };
    let (pid, pause) = (successor.pid(), begun.elapsed());
    tracing::info!(?quiesced, ?pool_closed, ?opened, ?pause, pid, "another process serves the clients");
    notify::replaced_by(pid);
    sockets.leave();
    let closed = closed + (state.connections.len().saturating_sub(resumed));
    let pause_ms = pause.as_millis() as u64;
    let version = successor.release.clone();
    (Outcome::Replaced(Upgraded { pid, version, pause_ms, connections: resumed, closed }, api), None)
}

/// A copy of the read cache, as far as there is memory for it.
async fn copy_cache(pool: Arc<Pool>) -> Option<CacheCopy> {
    let copied = blocking(move || CacheCopy::new(&pool, pressure::spare())).await;
    copied.inspect_err(|e| tracing::warn!("the read cache is not handed over: {e}")).ok()
}

/// Ends the services, and returns their connections; also the number of those that were closed, and the tasks
/// that answer the last requests of the API.
async fn park(services: Services) -> (HandedOver, usize, Vec<JoinHandle<()>>) {
    let Services { plane, control, access, units, listeners, background } = services;
    // The API answers the requests that it has; the connection that requested the upgrade stays open.
    control.end();
    for task in background {
        task.abort();
        let _ = task.await;
    }
    if let Err(e) = access.tokens.flush() {
        tracing::warn!("{e}");
    }
    let units = units.hand_over().await;
    let (connections, closed) = plane.hand_over().await;
    (HandedOver { connections, units, cache: None }, closed, listeners)
}

/// The successor failed when it had the connections: it may have executed requests that this process does not
/// know of, so clients have to connect again.
async fn lost(error: Failure, successor: Predecessor, state: HandedOver) -> Outcome {
    blocking(move || drop(successor)).await;
    for Parked { stream, .. } in &state.connections {
        // Other descriptors of the socket may be open for a moment.
        let _ = socket2::SockRef::from(&stream.socket).shutdown(std::net::Shutdown::Both);
    }
    let then = "its clients were disconnected, and this process serves those that connect again";
    let units = state.units;
    Outcome::Resume(HandedOver { units, ..HandedOver::default() }, failed(error, then))
}

/// Runs work that blocks, on a separate thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(e) => std::panic::resume_unwind(e.into_panic()),
    }
}
