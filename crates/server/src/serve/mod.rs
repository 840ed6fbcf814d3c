//! The running server: startup, listeners, the ready line, upgrades and orderly shutdown.
//!
//! **Start.** The server opens the store (which refuses a second server), binds the listeners, and then opens
//! the pool: clients that reconnect after a crash wait for the pool instead of failing. Last, it moves the
//! control socket into place, prints one line, and accepts clients. A failure before that leaves no files
//! behind. A server on another host may hold a pool in Ceph: then the listeners are bound first, unless this
//! server is a standby, and it waits for the store ([`ownership::claim`]).
//!
//! **Stop.** On the first SIGTERM or SIGINT the server accepts no new connections, finishes requests in
//! progress (within a bounded time), undoes imports, makes everything durable and closes the pool. Exit
//! status 0. A second signal exits immediately, which is as safe as a crash.
//!
//! **Upgrade.** On SIGUSR2, or on request of the API, another process takes over the sockets, the pool and
//! the connections ([`upgrade`]). If that fails, this process takes them back: it builds its services
//! ([`services`]) again.
//!
//! **Handover.** On request of the API, a standby on another host takes a pool in Ceph over
//! ([`ownership::handover`]). This server stands by then, if it was started as a standby, and ends otherwise.
//!
//! **Loss of the pool.** If another server has opened the pool, or taken its store, this server ends at once,
//! with an error and without answering a request. Its clients lose their connections, and connect to the
//! other server.

mod begin;
mod classes;
mod error;
mod error_location;
mod health;
mod host;
pub(crate) mod listen;
mod open;
mod ownership;
mod reload;
mod services;
mod shard_process;
mod upgrade;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use begin::exit_while_opening;
use forebay_api::{ErrorKind, Handover, NewOwner, Upgrade, Upgraded};
use forebay_control::operations::{Control, ControlError, ServerRequest};
use forebay_frontend::iscsi::PortGroups;
use forebay_frontend::{nbd, nfs, nvme};
use forebay_host::EngineThread;
use host::{memory_limits, notify, rlimit};
use ownership::store;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::config::{PoolLocation, ServeConfig};
pub use error::ServeError;
pub(crate) use host::descriptors::Descriptors;
#[cfg(test)]
pub(crate) use host::memory_files::FileState;
pub(crate) use host::memory_files::{MemoryFile, memory_files};
pub(crate) use host::memory_limits::{Measured, MemoryLimit, memory_limit, memory_limit_of_unit, warnings};
pub(crate) use host::notify::notify;
pub(crate) use host::signals::Signals;
use listen::https::HttpsCertificate;
pub use listen::https::HttpsError;
use listen::inherited::Inherited;
use listen::requests::RequestThread;
use listen::sockets::Sockets;
use open::OpenPool;
use ownership::handover::{hand_over, is_main_process_of_unit, last_replies, stand_by_again};
use ownership::loss::{Loss, exit_without_pool};
use ownership::reopen::Reopened;
pub use reload::Load;
use reload::Reloader;
use services::{Prepared, Services};
pub(crate) use services::{lowered, open_audit};
pub(crate) use shard_process::{RELAY_SOCKET, SHARD_PROCESS, SILENT_OWNER, ShardOf};
use shard_process::{is_shard_process, of_shard};
use upgrade::replace::{Outcome, Resumption, cut, replace};
use upgrade::{Binary, HandedOver, Successor, stop_successor};

/// Default for the maximum time of each step of the new process in an upgrade.
const UPGRADE_STEP: Duration = Duration::from_secs(10);
/// Time for the last replies of the API before the process of a predecessor ends.
const LAST_REPLIES: Duration = Duration::from_secs(1);

/// Runs a server until a stop signal. With `json`, the ready line is a JSON object. `load` reads the
/// configuration again, on SIGHUP.
pub fn run(config: &ServeConfig, json: bool, load: Load) -> Result<(), ServeError> {
    let inherited = Inherited::from_environment()?;
    let successor = Successor::from_environment()?;
    crate::log::init(&config.log);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let config = &of_shard(config.clone());
    let load = Box::new(move || load().map(of_shard));
    let reloader = Arc::new(Reloader::new(config.clone(), load));
    let result = runtime.block_on(serve(config, json, inherited, successor, reloader));
    // A connection that is stuck must not delay the exit.
    runtime.shutdown_timeout(Duration::from_millis(100));
    if result.is_ok() && matches!(config.location, PoolLocation::Rados(_)) {
        // SAFETY: the call does not return. It runs no exit handlers: those of librados free what a thread
        // that waits for the cluster still uses, such as that of a sentinel.
        unsafe { libc::_exit(0) }
    }
    result
}

/// Checks the files that a configuration names and that a server reads when it starts: certificates. An error
/// of a value in the configuration file names the line.
pub(crate) fn check(config: &ServeConfig) -> Result<(), ServeError> {
    let checked = || {
        nbd::check(&config.nbd)?;
        nvme::refuse_remote(&config.nvme.settings())?;
        nfs::refuse_remote(&config.nfs.settings())?;
        config.http.https.as_ref().map(HttpsCertificate::load).transpose()?;
        Ok(())
    };
    checked().map_err(|error| error_location::located(config.source.as_ref(), error))
}

async fn serve(
    config: &ServeConfig,
    json: bool,
    inherited: Inherited,
    successor: Option<Successor>,
    reloader: Arc<Reloader>,
) -> Result<(), ServeError> {
    let binary = Binary::at_start();
    let Some(successor) = successor else { return start(config, json, binary, inherited, reloader).await };
    match take_over(config, binary, &successor, reloader).await {
        Ok((mut server, open, services, sockets)) => server.serve(open, services, sockets).await,
        Err(e) => {
            successor.refuse(&e);
            Err(e)
        }
    }
}

/// Starts a server without a predecessor, and serves until it ends.
async fn start(
    config: &ServeConfig,
    json: bool,
    binary: Binary,
    inherited: Inherited,
    reloader: Arc<Reloader>,
) -> Result<(), ServeError> {
    let mut server = Server::new(config, binary, reloader)?;
    let Some((store, mut sockets, portals)) = server.open_store_and_bind(inherited).await? else {
        return Ok(());
    };
    let Some(open) = server.open_pool_unless_stopped(store).await? else {
        // Dropping the sockets removes their files.
        drop(sockets);
        exit_while_opening();
    };
    let state = match portals {
        Some(portals) => portals.hand_over().await,
        None => HandedOver::default(),
    };
    let prepared = server.prepare(&open, &sockets, state).await?;
    let services = prepared.run(server.upgrades.clone(), server.reloader.clone())?;
    sockets.publish()?;
    open.announce_serving();
    print_ready_line(config, &services.control, json);
    notify::notify("READY=1");
    server.serve(open, services, sockets).await
}

/// Takes the place of another process.
async fn take_over<'a>(
    config: &'a ServeConfig,
    binary: Binary,
    successor: &Successor,
    reloader: Arc<Reloader>,
) -> Result<(Server<'a>, OpenPool, Services, Sockets), ServeError> {
    let mut server = Server::new(config, binary, reloader)?;
    let mut sockets = successor.adopt_sockets(config)?;
    let candidate = server.candidate().await?;
    successor.ready(candidate.as_heir().as_ref())?;
    let state = successor.receive_state()?;
    let store = server.open_released_store(&candidate).await?;
    let opened = async {
        let opened = server.open_pool_unless_stopped(store.clone()).await?;
        let open = opened.unwrap_or_else(|| exit_while_opening());
        let prepared = server.prepare(&open, &sockets, state).await?;
        successor.opened().map(|()| (open, prepared))
    };
    let (open, prepared) = match opened.await {
        Ok(opened) => opened,
        Err(e) => {
            // The predecessor takes it when this process has ended, and no other server does.
            store.release_to(candidate.as_heir());
            return Err(e);
        }
    };
    let resumed = prepared.resumed;
    let services = prepared.run(server.upgrades.clone(), server.reloader.clone())?;
    open.announce_serving();
    successor.serving(resumed);
    sockets.own_files();
    notify::taken_over();
    tracing::info!("took over from another process with {resumed} connections");
    Ok((server, open, services, sockets))
}

/// What exists as long as the process, also while it has no pool.
struct Server<'a> {
    config: &'a ServeConfig,
    /// Holds the configuration in effect, which differs from `config` after a reload.
    reloader: Arc<Reloader>,
    binary: Binary,
    descriptors: Descriptors,
    engine: Arc<EngineThread>,
    api: RequestThread,
    /// The target port groups of the pool.
    groups: Arc<PortGroups>,
    signals: Signals,
    /// The signal SIGUSR2, which requests an upgrade.
    upgrade_signal: Signal,
    upgrades: mpsc::Sender<ServerRequest>,
    requests: mpsc::Receiver<ServerRequest>,
}

/// How the server continues after an upgrade or a handover that failed.
struct Continue {
    how: How,
    kept: Sockets,
    /// Reports the failure; the parameter states whether the server was interrupted.
    report: Box<dyn FnOnce(bool)>,
}

enum How {
    Unchanged(Box<Services>),
    Resume(Box<Resumption>),
}

/// The result of an attempt that succeeded, the tasks of the API, and where the result is sent.
type Succeeded<T> = (T, Vec<JoinHandle<()>>, oneshot::Sender<Result<T, ControlError>>);

impl Continue {
    /// The next step; `None` if the server stops.
    fn after<T: 'static>(
        outcome: Outcome<T>,
        kept: Option<Sockets>,
        reply: oneshot::Sender<Result<T, ControlError>>,
    ) -> Result<Option<Continue>, Succeeded<T>> {
        let (how, error) = match outcome {
            Outcome::Done(done, api) => return Err((done, api, reply)),
            Outcome::Stopped => return Ok(None),
            Outcome::Unchanged(same, error) => (How::Unchanged(same), error),
            Outcome::Resume(resumption, error) => (How::Resume(resumption), error),
        };
        let kept = kept.expect("sockets are left only to a successor that serves");
        let report = move |resumed| {
            tracing::error!(resumed, "{}", error.message);
            // The client of the API may have disconnected.
            let _ = reply.send(Err(error));
        };
        Ok(Some(Continue { how, kept, report: Box::new(report) }))
    }
}

/// An event for the loop of the server.
enum Event {
    Stop,
    /// The pool is lost to another server.
    Fenced(Loss),
    /// An upgrade or a handover.
    Request(ServerRequest),
}

impl Server<'_> {
    /// Checks everything that does not depend on the pool.
    fn new(config: &ServeConfig, binary: Binary, reloader: Arc<Reloader>) -> Result<Server<'_>, ServeError> {
        let (signals, upgrade_signal) = (Signals::new()?, signal(SignalKind::user_defined2())?);
        let descriptors = Descriptors::raise(config.cores)?;
        rlimit::raise_file_size(&config.pool)?;
        check(config)?;
        memory_limits::log_warnings(config, memory_limits::Measured::AtStart);
        store::prepare_data(config)?;
        let engine = Arc::new(EngineThread::retaining(&config.memory_dir, config.cores)?);
        let (upgrades, requests) = mpsc::channel(1);
        let groups = Arc::new(PortGroups::new(config.iscsi_paths.group));
        Ok(Server {
            config,
            reloader,
            binary,
            descriptors,
            engine,
            api: RequestThread::start()?,
            groups,
            signals,
            upgrade_signal,
            upgrades,
            requests,
        })
    }

    async fn prepare(
        &self,
        open: &OpenPool,
        sockets: &Sockets,
        state: HandedOver,
    ) -> Result<Prepared, ServeError> {
        let (config, pool) = (self.reloader.current(), (open.pool.clone(), &*open.store));
        let served_by = (sockets, &self.api.handle());
        Prepared::new(&config, &self.descriptors, pool, &self.groups, served_by, state).await
    }

    /// Serves until a stop signal, or until another process has taken over.
    async fn serve(
        &mut self,
        mut open: OpenPool,
        mut services: Services,
        mut sockets: Sockets,
    ) -> Result<(), ServeError> {
        loop {
            let done = match self.event(&open).await {
                Event::Stop => return self.stop(open, services, sockets).await,
                Event::Fenced(loss) => {
                    drop(sockets);
                    exit_without_pool(loss)
                }
                Event::Request(ServerRequest::Upgrade(upgrade, reply)) => {
                    self.upgrade(upgrade, reply, &open, services, sockets).await?
                }
                Event::Request(ServerRequest::HandOver(request, reply)) => {
                    self.hand_over(request, reply, &open, services, sockets).await?
                }
            };
            let Continue { how, kept, report } = match done {
                Some(continues) => continues,
                None => return Ok(()),
            };
            sockets = kept;
            let is_resumed = matches!(how, How::Resume(_));
            services = match how {
                How::Unchanged(same) => *same,
                How::Resume(resumption) => match self.resume(*resumption, &sockets).await? {
                    Some((pool, services)) => {
                        open = pool;
                        services
                    }
                    None => {
                        drop(sockets);
                        exit_while_opening()
                    }
                },
            };
            notify::notify("READY=1");
            report(is_resumed);
        }
    }

    /// Upgrades the server. `None` if another process serves the clients.
    async fn upgrade(
        &mut self,
        upgrade: Upgrade,
        reply: oneshot::Sender<Result<Upgraded, ControlError>>,
        open: &OpenPool,
        services: Services,
        sockets: Sockets,
    ) -> Result<Option<Continue>, ServeError> {
        if is_shard_process() {
            let why = "the process of a shard cannot be replaced: upgrade its node instead";
            let refused = ControlError::new(ErrorKind::UpgradeFailed, why);
            let unchanged = Outcome::Unchanged(Box::new(services), refused);
            return Ok(Continue::after(unchanged, Some(sockets), reply).ok().flatten());
        }
        let binary = upgrade.binary.unwrap_or_else(|| self.binary.path().to_owned());
        let time = upgrade.timeout_s.map_or(UPGRADE_STEP, Duration::from_secs);
        let overdue = Signals::new()?.overdue();
        let (outcome, kept) = tokio::select! {
            biased;
            loss = open.fenced() => exit_without_pool(loss),
            () = overdue => exit_overdue(),
            done = replace(binary, time, self.config, open, services, sockets, &mut self.signals) => done,
        };
        match Continue::after(outcome, kept, reply) {
            Ok(continues) => Ok(continues),
            Err((done, api, reply)) => {
                self.signals.pass_on(done.pid).await;
                let _ = reply.send(Ok(done));
                last_replies(api, LAST_REPLIES).await;
                Ok(None)
            }
        }
    }

    /// Hands the pool over to a standby. `None` if the server ends.
    async fn hand_over(
        &mut self,
        request: Handover,
        reply: oneshot::Sender<Result<NewOwner, ControlError>>,
        open: &OpenPool,
        services: Services,
        sockets: Sockets,
    ) -> Result<Option<Continue>, ServeError> {
        let overdue = Signals::new()?.overdue();
        let outcome = tokio::select! {
            biased;
            loss = open.fenced() => exit_without_pool(loss),
            () = overdue => exit_overdue(),
            done = hand_over(request, self.config, open, services, &mut self.signals) => done,
        };
        match Continue::after(outcome, Some(sockets), reply) {
            Ok(continues) => Ok(continues),
            Err((done, api, reply)) => {
                let _ = reply.send(Ok(done));
                last_replies(api, LAST_REPLIES).await;
                if self.signals.end_process().await {
                    return Ok(None);
                }
                // A node starts another process if it is to have the pool again.
                if !self.config.standby || is_shard_process() {
                    exit_without_pool(Loss::HandedOver);
                }
                if is_main_process_of_unit() {
                    return Err(ServeError::StandsByWhenRestarted);
                }
                tracing::info!("standing by");
                Err(stand_by_again(&self.binary))
            }
        }
    }

    /// Continues to serve after another process did not take the pool. `None` if a signal to stop arrives
    /// before.
    async fn resume(
        &mut self,
        resumption: Resumption,
        sockets: &Sockets,
    ) -> Result<Option<(OpenPool, Services)>, ServeError> {
        let _fed = notify::feed_meanwhile();
        let Resumption { state, back, store } = resumption;
        let Some(Reopened { open, is_same }) = self.reopen(back, store).await? else {
            return Ok(None);
        };
        let state = if is_same {
            state
        } else {
            tracing::warn!("another server had the pool: clients have to connect again");
            cut(&state);
            HandedOver::default()
        };
        let prepared = self.prepare(&open, sockets, state).await?;
        let services = prepared.run(self.upgrades.clone(), self.reloader.clone())?;
        open.announce_serving();
        Ok(Some((open, services)))
    }

    async fn event(&mut self, open: &OpenPool) -> Event {
        tokio::select! {
            loss = open.fenced() => Event::Fenced(loss),
            () = self.signals.stop() => Event::Stop,
            _ = self.upgrade_signal.recv() => {
                // Nothing awaits the result.
                let (reply, _) = oneshot::channel();
                Event::Request(ServerRequest::Upgrade(Upgrade::default(), reply))
            }
            // The sender is in `self`.
            Some(request) = self.requests.recv() => Event::Request(request),
        }
    }

    async fn stop(&mut self, open: OpenPool, services: Services, sockets: Sockets) -> Result<(), ServeError> {
        tracing::info!("stopping");
        notify::notify("STOPPING=1");
        let stop = async {
            services.drain().await;
            drop(sockets);
            let closed = open.close().await;
            if closed.is_ok() && !open.pool.retains() {
                self.engine.remove_memory();
            }
            open.release_store().await;
            closed
        };
        let stopped_again = async {
            // A service manager and the node may both send the signal to the process of a shard. The node
            // kills one that does not end.
            match is_shard_process() {
                true => std::future::pending().await,
                false => self.signals.stop().await,
            }
        };
        tokio::select! {
            biased;
            loss = open.fenced() => exit_without_pool(loss),
            closed = stop => closed?,
            () = stopped_again => exit_as_crash("second signal, exiting immediately"),
        }
        tracing::info!("stopped");
        Ok(())
    }
}

/// Prints the ready line, which names all addresses. A closed standard output is not an error.
fn print_ready_line(config: &ServeConfig, control: &Control, json: bool) {
    let info = control.info();
    let nbd: Vec<String> = info.nbd.iter().map(|listener| listener.address.to_string()).collect();
    let line = if json {
        json!({
            "ready": true, "socket": config.socket, "nbd": nbd, "iscsi": info.iscsi, "nvme": info.nvme,
            "nfs": info.nfs, "http": info.http,
        })
        .to_string()
    } else {
        let mut line = format!("forebay is ready: control {}", config.socket.display());
        for address in &nbd {
            line += &format!(", nbd {address}");
        }
        for address in &info.iscsi {
            line += &format!(", iscsi {address}");
        }
        for address in &info.nvme {
            line += &format!(", nvme {address}");
        }
        for address in &info.nfs {
            line += &format!(", nfs {address}");
        }
        if let Some(address) = &info.http {
            line += &format!(", http {address}");
        }
        line
    };
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Ends an upgrade, or a handover, which a signal to stop has not ended.
fn exit_overdue() -> ! {
    stop_successor();
    exit_as_crash("exiting without waiting for the store")
}

fn exit_as_crash(why: &str) -> ! {
    eprintln!("forebay: {why}; the next start recovers from the log");
    // SAFETY: the call does not return. It runs no exit handlers, because other threads still run.
    unsafe { libc::_exit(1) }
}
