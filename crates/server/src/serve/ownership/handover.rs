//! The steps of a handover of a pool in Ceph to a standby, on the side of the owner.
//!
//! **Order.** The requests that were read are finished and answered; no further requests are read. Then all
//! writes are made durable, the pool is closed, and released to the standby. Until the standby serves
//! clients, the connections of this server stay open, and are neither read nor written. Then they are closed,
//! so that their clients connect again when the standby can serve them.
//!
//! **Failure.** If the standby does not take the pool, this server takes it back, and continues with the same
//! connections, if no other server has had the pool in between.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_api::{ErrorKind, Handover, NewOwner};
use forebay_control::operations::ControlError;
use forebay_store::rados::{HandedOver as Settled, Heir, PoolConnection, RadosStore, Waiting};
use tokio::task::JoinHandle;

use super::candidate::Candidate;
use super::reopen::Back;
use super::{ceph, claim};
use crate::config::ServeConfig;
use crate::serve::ServeError;
use crate::serve::host::notify;
use crate::serve::host::signals::Signals;
use crate::serve::open::OpenPool;
use crate::serve::services::Services;
use crate::serve::upgrade::replace::{JOBS, Outcome, Resumption, cut, flush, park, quiesce};
use crate::serve::upgrade::{Binary, HandedOver, VARIABLE};

/// The first descriptor that is not a standard descriptor.
const FIRST_DESCRIPTOR: u32 = 3;

const CONTINUES: &str = "this server continues to serve its clients";

fn failed(error: impl std::fmt::Display, then: &str) -> ControlError {
    ControlError::new(ErrorKind::HandoverFailed, format!("the handover failed: {error}; {then}"))
}

/// A standby that is alive, and the means to get the pool back.
async fn find_heir(
    config: &ServeConfig,
    open: &OpenPool,
    to: Option<String>,
) -> Result<(Heir, Arc<PoolConnection>, Back), ControlError> {
    let back = Back::connect(config, open).await.map_err(|e| failed(e, CONTINUES))?;
    let Candidate::Ceph(connection) = back.candidate.clone() else {
        let why = "the pool is in a directory of this host; only a pool in Ceph can be handed over";
        return Err(ControlError::bad_request(why));
    };
    let (finding, name) = (connection.clone(), to.clone());
    let heir = claim::blocking(move || finding.find_heir(name.as_deref())).await;
    match heir.map_err(|e| failed(e, CONTINUES))? {
        Some(heir) => Ok((heir, connection, back)),
        None => {
            let which = to.map_or("no standby waits".to_owned(), |to| format!("no standby '{to}' waits"));
            let pool = &config.location;
            let why = format!(
                "{which} for the pool; start one on another host: forebay serve --standby --pool {pool}"
            );
            Err(ControlError::new(ErrorKind::NoStandby, why))
        }
    }
}

/// Announces the handover to the standby, or the end of an attempt.
async fn invite(open: &OpenPool, heir: Option<&Heir>) -> Result<(), ControlError> {
    let invited = open.store.ownership().map(|ownership| ownership.invite(heir));
    match invited {
        Some(invited) => invited.await.map_err(|e| failed(e, CONTINUES)),
        None => Ok(()),
    }
}

/// Hands the pool over to a standby.
pub(in crate::serve) async fn hand_over(
    request: Handover,
    config: &ServeConfig,
    open: &OpenPool,
    services: Services,
    signals: &mut Signals,
) -> Outcome<NewOwner> {
    let (heir, connection, back) = match find_heir(config, open, request.to).await {
        Ok(found) => found,
        Err(e) => return Outcome::Unchanged(Box::new(services), e),
    };
    tracing::info!("handover begins: {heir} gets the pool");
    let begun = match prepare(open, &services, &heir, signals).await {
        Ok(begun) => begun,
        Err(e) => {
            if let Err(e) = invite(open, None).await {
                tracing::warn!("{e}");
            }
            return Outcome::Unchanged(Box::new(services), e);
        }
    };
    let (state, closed, api) = park(services).await;
    let _fed = notify::feed_meanwhile();
    if let Err(e) = open.close().await {
        // Writes that were acknowledged may be in the memory of this host.
        back.reserve(&open.store);
        open.release_store().await;
        return Outcome::Resume(Box::new(Resumption::new(state, back)), failed(e, CONTINUES));
    }
    if !open.pool.retains() {
        // Later, an heir on this host may have the file.
        open.engine.remove_memory();
    }
    open.store.release_to(Some(heir));
    let settle = async {
        let term = back.term;
        let settled = claim::open(
            move |stopped| {
                let is_cancelled = || stopped.get();
                connection.settle(term, &Waiting { is_cancelled: &is_cancelled, ..Waiting::NONE })
            },
            signals.stop(),
        );
        (settled.await, begun.elapsed())
    };
    let ((settled, pause), ()) = tokio::join!(settle, open.release_store());
    match settled {
        Ok(None) => {
            cut(&state);
            Outcome::Stopped
        }
        Ok(Some(Settled::To { owner, term, is_serving })) => {
            let does = if is_serving { "serves the clients" } else { "has the pool" };
            tracing::info!(term, "{owner} {does}, after a pause of {} ms", pause.as_millis());
            cut(&state);
            let closed = closed + state.connections.len();
            let pause_ms = pause.as_millis() as u64;
            Outcome::Done(NewOwner { owner, term, serving: is_serving, pause_ms, closed }, api)
        }
        Ok(Some(Settled::Back(store))) => taken_back(store, state, back),
        Err(e) => {
            let resumption = Resumption::new(state, back);
            Outcome::Resume(Box::new(resumption), failed(e, CONTINUES))
        }
    }
}

/// Everything before the connections are parked. Returns when clients began to wait.
async fn prepare(
    open: &OpenPool,
    services: &Services,
    heir: &Heir,
    signals: &mut Signals,
) -> Result<Instant, ControlError> {
    let _paused = services.control.pause(JOBS).await?;
    // A checkpoint now leaves little to do while clients wait.
    let stopped = || failed("a signal to stop has arrived", "the server stops");
    let made = signals.unless_stopped(open.checkpoint()).await.ok_or_else(stopped)?;
    made.map_err(|e| failed(e, CONTINUES))?;
    invite(open, Some(heir)).await?;
    if signals.have_arrived().await {
        return Err(stopped());
    }
    let begun = Instant::now();
    quiesce(services, open).await.map_err(|e| failed(e, CONTINUES))?;
    // What stays in the memory of this host would be lost.
    let flushed = flush(open).await.and_then(|flushed| flushed.map_err(|e| e.to_string()));
    if let Err(e) = flushed {
        services.plane.continue_serving();
        return Err(failed(e, CONTINUES));
    }
    Ok(begun)
}

/// The standby did not take the pool, or died before it served.
fn taken_back(store: Arc<RadosStore>, state: HandedOver, back: Back) -> Outcome<NewOwner> {
    // Only then is the pool as these connections know it: otherwise they are cut when it is open.
    let is_same = store.continues(back.term, None);
    let why = match is_same {
        true => "the standby did not take the pool",
        false => "the standby took the pool and died before it served clients",
    };
    let then = match is_same {
        true => "this server took it back, and continues to serve its clients",
        false => "this server took it back; its clients have to connect again",
    };
    let resumption = Resumption { state, back, store: Some(ceph::opened(store)) };
    Outcome::Resume(Box::new(resumption), failed(why, then))
}

/// Sends the last replies of the API.
pub(in crate::serve) async fn last_replies(api: Vec<JoinHandle<()>>, time: Duration) {
    let replies = async {
        for listener in api {
            let _ = listener.await;
        }
    };
    let _ = tokio::time::timeout(time, replies).await;
}

fn errno() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}

/// Whether systemd started this process, or a process that upgrades have replaced by this one
/// (systemd.exec(5), `$SYSTEMD_EXEC_PID`). Only then can systemd give a standby the sockets that it holds.
pub(in crate::serve) fn is_main_process_of_unit() -> bool {
    let started = std::env::var("SYSTEMD_EXEC_PID").ok().and_then(|pid| pid.parse::<libc::pid_t>().ok());
    let own = std::process::id().cast_signed();
    // SAFETY: signal 0 sends nothing; the call only takes integers.
    let has_ended = |pid| unsafe { libc::kill(pid, 0) } != 0 && errno() == Some(libc::ESRCH);
    started.is_some_and(|pid| pid == own || (pid > 0 && has_ended(pid)))
}

/// Executes this program again, as the standby that it was when it was started. All descriptors and threads
/// end with the former program, so there is nothing to undo. Returns if that is not possible.
pub(in crate::serve) fn stand_by_again(binary: &Binary) -> ServeError {
    // SAFETY: the call accesses no memory. The descriptors stay open until the program is executed. A kernel
    // that lacks the call leaves those open that a library opened without the flag.
    unsafe {
        libc::syscall(libc::SYS_close_range, FIRST_DESCRIPTOR, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
    let mut command = Command::new(binary.path());
    command.args(std::env::args_os().skip(1));
    for variable in [VARIABLE, "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
        command.env_remove(variable);
    }
    command.exec().into()
}
