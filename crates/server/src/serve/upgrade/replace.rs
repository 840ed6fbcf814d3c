//! The steps of an upgrade on the side of the predecessor. [`crate::serve::upgrade`] states the rules.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_api::{ErrorKind, Upgraded};
use forebay_control::operations::ControlError;
use forebay_engine::{Error as EngineError, Pool};
use forebay_frontend::plane::Parked;
use tokio::task::JoinHandle;

use super::sentinel::Sentinel;
use super::{CacheCopy, Failure, HandedOver, Predecessor};
use crate::config::ServeConfig;
use crate::serve::ServeError;
use crate::serve::host::notify;
use crate::serve::host::pressure;
use crate::serve::host::signals::Signals;
use crate::serve::listen::sockets::Sockets;
use crate::serve::open::OpenPool;
use crate::serve::ownership::claim::blocking;
use crate::serve::ownership::contract::Opened;
use crate::serve::ownership::reopen::Back;
use crate::serve::services::Services;

/// Time in which the requests in progress have to be finished.
const QUIESCE: Duration = Duration::from_millis(500);
/// Time in which acknowledged writes have to become durable, while clients wait.
const FLUSH: Duration = Duration::from_secs(3);
/// Time in which administrative jobs have to be finished.
pub(in crate::serve) const JOBS: Duration = Duration::from_secs(2);

/// The outcome of an attempt to leave the pool to another process.
pub(in crate::serve) enum Outcome<T> {
    /// Another process has the pool. The tasks answer the last requests of the API.
    Done(T, Vec<JoinHandle<()>>),
    /// The upgrade failed before the server was interrupted.
    Unchanged(Box<Services>, ControlError),
    /// The services have stopped and the pool is closed: the server continues.
    Resume(Box<Resumption>, ControlError),
    /// A signal to stop arrived when the pool was closed.
    Stopped,
}

/// What the server needs to continue.
pub(in crate::serve) struct Resumption {
    pub state: HandedOver,
    pub back: Back,
    /// The store, if this process has taken it back already.
    pub store: Option<Opened>,
}

impl Resumption {
    pub fn new(state: HandedOver, back: Back) -> Resumption {
        Resumption { state, back, store: None }
    }
}

/// A failure, and what became of it.
fn failed(error: impl std::fmt::Display, then: &str) -> ControlError {
    ControlError::new(ErrorKind::UpgradeFailed, format!("the upgrade failed: {error}; {then}"))
}

const CONTINUES: &str = "this process continues to serve its clients";

/// Replaces this process by one of `binary`. `sockets` is returned unless it was left to the successor.
pub(in crate::serve) async fn replace(
    binary: PathBuf,
    time: Duration,
    config: &ServeConfig,
    open: &OpenPool,
    services: Services,
    sockets: Sockets,
    signals: &mut Signals,
) -> (Outcome<Upgraded>, Option<Sockets>) {
    tracing::info!("upgrade begins: starting {}", binary.display());
    notify::reloading();
    let unchanged = |services, e, sockets| (Outcome::Unchanged(Box::new(services), e), Some(sockets));
    // A connection also shows that the cluster can be reached, before anything is interrupted.
    let back = match Back::connect(config, open).await {
        Ok(back) => back,
        Err(e) => return unchanged(services, failed(e, CONTINUES), sockets),
    };
    let started = blocking(move || {
        let started = Predecessor::start(&binary, &sockets, time);
        (started, sockets)
    });
    let (successor, sockets) = match started.await {
        (Ok(successor), sockets) => (successor, sockets),
        (Err(e), sockets) => return unchanged(services, failed(e, CONTINUES), sockets),
    };
    let paused = match services.control.pause(JOBS).await {
        Ok(paused) => paused,
        Err(e) => return unchanged(services, e, sockets),
    };
    let cache = copy_cache(open.pool.clone()).await;
    // A checkpoint now leaves little to do while clients wait.
    if let Err(e) = checkpoint(open, signals).await {
        return unchanged(services, e, sockets);
    }
    let begun = Instant::now();
    if let Err(e) = quiesce(&services, open).await {
        return unchanged(services, failed(e, CONTINUES), sockets);
    }
    let quiesced = begun.elapsed();
    let (state, closed, api) = park(services).await;
    let _fed = notify::feed_meanwhile();
    let state = HandedOver { cache, ..state };
    let back = Back { successor: successor.heir.clone(), ..back };
    drop(paused);
    let released = release(open, &back).await;
    let resume = |state, back, e| Outcome::Resume(Box::new(Resumption::new(state, back)), e);
    if let Err(e) = released {
        return (resume(state, back, failed(e, CONTINUES)), Some(sockets));
    }
    let pool_closed = begun.elapsed();
    let (opened, state, mut successor) = deliver(successor, state, &back).await;
    if let Err(e) = opened {
        // The successor must not use the connections any more.
        blocking(move || drop(successor)).await;
        return (resume(state, back, failed(e, CONTINUES)), Some(sockets));
    }
    let opened = begun.elapsed();
    let (served, successor) = blocking(move || {
        let served = successor.go();
        (served, successor)
    })
    .await;
    let resumed = match served {
        Ok(resumed) => resumed,
        Err(e) => {
            let (state, e) = lost(e, successor, state).await;
            return (resume(state, back, e), Some(sockets));
        }
    };
    let (pid, pause) = (successor.pid(), begun.elapsed());
    tracing::info!("process {pid} serves the clients, after a pause of {} ms", pause.as_millis());
    tracing::debug!(?quiesced, ?pool_closed, ?opened, ?pause, "the parts of the pause");
    notify::replaced_by(pid);
    sockets.leave();
    let closed = closed + (state.connections.len().saturating_sub(resumed));
    let pause_ms = pause.as_millis() as u64;
    let version = successor.release.clone();
    (Outcome::Done(Upgraded { pid, version, pause_ms, connections: resumed, closed }, api), None)
}

/// Makes a checkpoint before the pool is closed, unless a signal to stop arrives.
async fn checkpoint(open: &OpenPool, signals: &mut Signals) -> Result<(), ControlError> {
    match signals.unless_stopped(open.checkpoint()).await {
        Some(Ok(())) if !signals.have_arrived().await => Ok(()),
        Some(Err(e)) => Err(failed(e, CONTINUES)),
        _ => Err(failed("a signal to stop has arrived", "the server stops")),
    }
}

/// Hands the connections over, and waits until the successor is able to serve them.
async fn deliver(
    mut successor: Predecessor,
    state: HandedOver,
    back: &Back,
) -> (Result<(), Failure>, HandedOver, Predecessor) {
    let sentinel = Sentinel::watch(&back.candidate, successor.pid());
    let (opened, state, successor) = blocking(move || {
        let opened = successor.hand_over(&state);
        (opened, state, successor)
    })
    .await;
    let is_silent = sentinel.end();
    (if is_silent { Err(Failure::Silent) } else { opened }, state, successor)
}

/// A copy of the read cache, as far as there is memory for it.
async fn copy_cache(pool: Arc<Pool>) -> Option<CacheCopy> {
    let copied = blocking(move || CacheCopy::new(&pool, pressure::spare())).await;
    copied.inspect_err(|e| tracing::warn!("the read cache is not handed over: {e}")).ok()
}

/// Closes the pool, and releases it: one in Ceph to the successor only; to this process if the pool was not
/// closed in good order, since writes that were acknowledged may be in its memory.
async fn release(open: &OpenPool, back: &Back) -> Result<(), ServeError> {
    let closed = open.close().await;
    match (&closed, &back.successor) {
        (Ok(()), Some(heir)) => open.store.release_to(Some(heir.clone())),
        _ => back.reserve(&open.store),
    }
    open.release_store().await;
    closed
}

/// Ends the services. Returns their connections, the number of connections that were closed, and the tasks
/// that answer the last requests of the API.
pub(in crate::serve) async fn park(services: Services) -> (HandedOver, usize, Vec<JoinHandle<()>>) {
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
async fn lost(error: Failure, successor: Predecessor, state: HandedOver) -> (HandedOver, ControlError) {
    blocking(move || drop(successor)).await;
    cut(&state);
    let then = "its clients were disconnected, and this process serves those that connect again";
    let units = state.units;
    (HandedOver { units, ..HandedOver::default() }, failed(error, then))
}

/// Finishes the requests that were read, and makes them durable as far as the store has room. After an error
/// the services continue.
pub(in crate::serve) async fn quiesce(services: &Services, open: &OpenPool) -> Result<(), String> {
    let quiet = async {
        let quiet = services.plane.quiesce(QUIESCE).await;
        quiet.map_err(|busy| format!("requests of {busy} connections were not finished within {QUIESCE:?}"))
    };
    // Requests that wait for a limit would not end in time.
    open.pool.lift_limits(true);
    // Requests that wait for a commit need not wait for others to share it. Writes that find no room in the
    // store stay in memory.
    let flushed = async { flush(open).await.map(drop) };
    let done = tokio::try_join!(quiet, flushed);
    done.map(drop).inspect_err(|_| {
        open.pool.lift_limits(false);
        services.plane.continue_serving();
    })
}

/// Makes all acknowledged writes durable.
///
/// # Errors
/// The outer error: the store does not answer in time. The inner error is the error of the pool.
pub(in crate::serve) async fn flush(open: &OpenPool) -> Result<Result<(), EngineError>, String> {
    let late = |_| format!("acknowledged writes did not become durable within {FLUSH:?}");
    tokio::time::timeout(FLUSH, open.pool.flush()).await.map_err(late)
}

/// Closes connections without an answer.
pub(in crate::serve) fn cut(state: &HandedOver) {
    for Parked { stream, .. } in &state.connections {
        // Other descriptors of the socket may be open for a moment.
        let _ = socket2::SockRef::from(&stream.socket).shutdown(std::net::Shutdown::Both);
    }
}
