//! The running server: startup, listeners, the ready line, upgrades and orderly shutdown.
//!
//! **Start.** The server opens the store (which refuses a second server), binds the listeners, and then opens
//! the pool: clients that reconnect after a crash wait for the pool instead of failing. Last, it moves the
//! control socket into place, prints one line, and accepts clients. A failure before that leaves no files
//! behind. A server on another host may hold a pool in Ceph: then the listeners are bound first, unless this
//! server is a standby, and it waits for the store ([`claim`]).
//!
//! **Stop.** On the first SIGTERM or SIGINT the server accepts no new connections, finishes requests in
//! progress (within a bounded time), undoes imports, makes everything durable and closes the pool. Exit
//! status 0. A second signal exits immediately, which is as safe as a crash.
//!
//! **Upgrade.** On SIGUSR2, or on request of the API, another process takes over the sockets, the pool and
//! the connections ([`upgrade`]). If that fails, this process takes them back: it builds its services
//! ([`services`]) again.
//!
//! **Handover.** On request of the API, a standby on another host takes a pool in Ceph over ([`handover`]).
//! This server stands by then, if it was started as a standby, and ends otherwise.
//!
//! **Loss of the pool.** If another server has opened the pool, or taken its store, this one ends at once,
//! with an error and without answering a request: its clients lose their connections, and look for the other
//! server.

mod capped;
mod claim;
mod classes;
mod descriptors;
mod handover;
mod health;
mod host;
mod http;
mod https;
mod inherited;
mod lease;
mod loss;
mod memory;
mod notify;
mod open;
mod pressure;
mod publish;
mod reload;
mod reopen;
mod replace;
mod services;
mod signals;
mod socket;
mod sockets;
mod standby;
mod store;
mod timer;
mod upgrade;
mod workers;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::Pool;
use forebay_store::rados::PoolConnection;
use parking_lot::Mutex;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::config::{PoolLocation, RadosPool, ServeConfig, WhileStandby};
use crate::control::{Control, ControlError, Handover, NewOwner, ServerRequest, Upgrade, Upgraded};
use crate::iscsi::PortGroups;
use crate::nbd;
use crate::plane::{Bound, ListenAddr, ListenError};
use descriptors::Descriptors;
use handover::{hand_over, last_replies, stand_by_again};
pub use host::EngineThread;
use https::HttpsCertificate;
pub use https::HttpsError;
use inherited::Inherited;
use lease::Lease;
use loss::{Loss, exit_without_pool};
use open::OpenPool;
pub use reload::Load;
use reload::Reloader;
use replace::{Outcome, Resumption, replace};
use services::{Prepared, Services};
use signals::Signals;
use sockets::Sockets;
use standby::StandbyPortals;
use store::Opened;
use upgrade::{Binary, HandedOver, Successor};

/// Longest time for each step of the new process in an upgrade, unless the request has another one.
const UPGRADE_STEP: Duration = Duration::from_secs(10);
/// Time for the last replies of the API before the process of a predecessor ends.
const LAST_REPLIES: Duration = Duration::from_secs(1);

/// Reasons for which a server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A basic system call failed.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
    /// The store cannot be opened.
    #[error("cannot open the pool in {pool}: {source}")]
    Store {
        /// Where the pool is.
        pool: String,
        /// The error of the store.
        source: forebay_store::StoreError,
    },
    /// The data directory cannot be used.
    #[error("cannot use the data directory {path}: {error}")]
    Data {
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The pool is in Ceph, and there is another one in the data directory.
    #[error(
        "the data directory {path} contains a pool, and this server is to serve {pool}: use another directory with --data, \
         or serve the pool in it without --pool"
    )]
    TwoPools {
        /// The data directory.
        path: PathBuf,
        /// The address of the pool in Ceph.
        pool: String,
    },
    /// The pool cannot be opened or closed.
    #[error("{0}")]
    Pool(#[from] forebay_engine::Error),
    /// Another server is using the control socket.
    #[error("another server is using the control socket {0}; stop it first, or use another --socket")]
    SocketInUse(PathBuf),
    /// The path of the control socket exists and is not a socket.
    #[error("{0} exists and is not a socket; remove it, or use another --socket")]
    NotASocket(PathBuf),
    /// The path of the control socket is too long for the system.
    #[error("the socket path {path} is too long: use --socket with at most {max} bytes")]
    SocketPath {
        /// The path.
        path: PathBuf,
        /// Longest path, in bytes.
        max: usize,
    },
    /// The certificate of the API cannot be used.
    #[error("{0}")]
    Https(#[from] HttpsError),
    /// The audit log cannot be opened.
    #[error("cannot open the audit log {path}: {error}")]
    Audit {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The NBD server cannot start.
    #[error("{0}")]
    Nbd(#[from] nbd::BindError),
    /// An address of the data plane cannot be listened on.
    #[error("{0}")]
    Address(#[from] ListenError),
    /// A socket that the service manager passed cannot be used.
    #[error("the socket '{name}' that the service manager passed cannot be used: {error}")]
    Passed {
        /// Its name.
        name: String,
        /// The error.
        error: std::io::Error,
    },
    /// A socket that the service manager passed has an address that is not configured.
    #[error(
        "the service manager passed the socket '{name}' on {address}, which is not configured: add the address to \
         the configuration, or remove it from the socket unit"
    )]
    NotConfigured {
        /// Its name.
        name: String,
        /// Its address.
        address: ListenAddr,
    },
    /// The addresses of the predecessor differ from those of the configuration.
    #[error("{0} is listened on by only one of both processes; restart the server to change its addresses")]
    OtherAddresses(ListenAddr),
    /// The exchange with the predecessor failed.
    #[error("cannot take over from another process: {0}")]
    Predecessor(String),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {reason}")]
    Listen {
        /// The address.
        address: String,
        /// The error of the system.
        reason: String,
    },
}

impl ServeError {
    fn listen(address: &str, e: &std::io::Error) -> ServeError {
        ServeError::Listen { address: address.to_owned(), reason: e.to_string() }
    }
}

/// Runs a server until a stop signal. With `json`, the ready line is a JSON object. `load` reads the
/// configuration again, on SIGHUP.
pub fn run(config: &ServeConfig, json: bool, load: Load) -> Result<(), ServeError> {
    let inherited = Inherited::from_environment()?;
    let successor = Successor::from_environment()?;
    crate::log::init(&config.log);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let reloader = Arc::new(Reloader::new(config.clone(), load));
    let result = runtime.block_on(serve(config, json, inherited, successor, reloader));
    // A connection that is stuck must not delay the exit.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

/// Checks the files that a configuration names and that a server reads when it starts: certificates.
pub(crate) fn check(config: &ServeConfig) -> Result<(), ServeError> {
    nbd::check(&config.nbd)?;
    config.http.https.as_ref().map(HttpsCertificate::load).transpose()?;
    Ok(())
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
    let open = server.open_pool(store).await?;
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
    let server = Server::new(config, binary, reloader)?;
    let mut sockets = successor.adopt_sockets(config)?;
    let connection = server.connect().await?;
    successor.ready(connection.as_ref().map(|connection| connection.as_heir()).as_ref())?;
    let state = successor.receive_state()?;
    let store = server.open_released_store(connection.as_ref()).await?;
    let open = server.open_pool(store).await?;
    let prepared = server.prepare(&open, &sockets, state).await?;
    let resumed = prepared.resumed;
    successor.opened()?;
    let services = prepared.run(server.upgrades.clone(), server.reloader.clone())?;
    open.announce_serving();
    successor.serving(resumed);
    sockets.own_files();
    notify::taken_over();
    tracing::info!(connections = resumed, "took over from another process");
    Ok((server, open, services, sockets))
}

/// What exists as long as the process, also while it has no pool.
struct Server<'a> {
    config: &'a ServeConfig,
    /// The configuration in effect: it differs from `config` after a reload.
    reloader: Arc<Reloader>,
    binary: Binary,
    descriptors: Descriptors,
    engine: Arc<EngineThread>,
    /// The target port groups of the pool.
    groups: Arc<PortGroups>,
    signals: Signals,
    /// SIGUSR2.
    upgrade_signal: Signal,
    upgrades: mpsc::Sender<ServerRequest>,
    requests: mpsc::Receiver<ServerRequest>,
}

/// How the server continues after an upgrade or a handover that failed.
struct Continue {
    how: How,
    kept: Sockets,
    /// Reports the failure; whether the server was interrupted.
    report: Box<dyn FnOnce(bool)>,
}

enum How {
    Unchanged(Box<Services>),
    Resume(Box<Resumption>),
}

/// The result of an attempt that succeeded, the tasks of the API, and where the result is sent.
type Succeeded<T> = (T, Vec<JoinHandle<()>>, oneshot::Sender<Result<T, ControlError>>);

impl Continue {
    /// `None` if the server stops.
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
        check(config)?;
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
            groups,
            signals,
            upgrade_signal,
            upgrades,
            requests,
        })
    }

    async fn open_store(&self, path: &Path) -> Result<Opened, ServeError> {
        store::open(path, self.config, &self.descriptors, self.engine.host()).await
    }

    /// The connection to the cluster of a pool in Ceph.
    async fn connect(&self) -> Result<Option<Arc<PoolConnection>>, ServeError> {
        let PoolLocation::Rados(pool) = &self.config.location else { return Ok(None) };
        let failed = |source| ServeError::Store { pool: self.config.location.to_string(), source };
        store::connect(pool).await.map(Some).map_err(failed)
    }

    /// Opens the store, and binds the sockets. `None` if a signal to stop arrives while another server holds
    /// the pool. The portals that were served until then are returned as well.
    async fn open_store_and_bind(
        &mut self,
        mut inherited: Inherited,
    ) -> Result<Option<(Arc<Lease>, Sockets, Option<StandbyPortals>)>, ServeError> {
        let (config, none) = (self.config, Bound::default());
        let pool = match &config.location {
            PoolLocation::Rados(pool) => pool,
            PoolLocation::Directory(path) => {
                // Creating a store requires an empty directory, and the sockets may be in the same one.
                let store = Lease::new(self.open_store(path).await?);
                return Ok(Some((store, Sockets::bind(config, inherited, none)?, None)));
            }
        };
        if !config.standby {
            let sockets = Sockets::bind(config, inherited, none)?;
            let opened = self.wait_for_store(pool, None).await?;
            return Ok(opened.map(|(store, _)| (store, sockets, None)));
        }
        // The server that holds the pool may have the addresses of a standby.
        let iscsi = match config.iscsi_paths.while_standby {
            WhileStandby::Closed => None,
            _ => Some(sockets::bind_iscsi(config, &mut inherited)?),
        };
        let Some((store, portals)) = self.wait_for_store(pool, iscsi.as_ref()).await? else {
            return Ok(None);
        };
        let sockets = Sockets::bind(config, inherited, iscsi.unwrap_or_default())?;
        Ok(Some((store, sockets, portals)))
    }

    /// Opens the store of a pool in Ceph. While another server holds it, clients of `iscsi` are served as a
    /// standby does. `None` if a signal to stop arrives.
    async fn wait_for_store(
        &mut self,
        pool: &RadosPool,
        iscsi: Option<&Bound>,
    ) -> Result<Option<(Arc<Lease>, Option<StandbyPortals>)>, ServeError> {
        let (begins, begun) = oneshot::channel();
        let begins = Mutex::new(Some(begins));
        let waits = move || {
            if let Some(begins) = begins.lock().take() {
                // Without portals, nothing waits for it.
                let _ = begins.send(());
            }
        };
        let host = self.engine.host();
        let stop = pin!(self.signals.stop());
        let mut opening = pin!(store::open_when_free(self.config, pool, host, stop, waits));
        let (opened, portals) = tokio::select! {
            biased;
            opened = &mut opening => (opened?, None),
            Some(iscsi) = async { begun.await.ok().and(iscsi) } => {
                let (descriptors, groups) = (&self.descriptors, &self.groups);
                let portals = StandbyPortals::start(self.config, descriptors, pool, groups, iscsi.try_clone()?)?;
                (opening.await?, Some(portals))
            }
        };
        match (opened, portals) {
            (Some(opened), portals) => Ok(Some((Lease::new(opened), portals))),
            (None, portals) => {
                if let Some(portals) = portals {
                    portals.shutdown().await;
                }
                Ok(None)
            }
        }
    }

    async fn open_pool(&self, store: Arc<Lease>) -> Result<OpenPool, ServeError> {
        let opened = Instant::now();
        let opening = Pool::open(store.clone(), self.engine.host(), self.reloader.current().pool.clone());
        let pool = tokio::select! {
            biased;
            () = store.lost() => exit_without_pool(Loss::Taken),
            pool = self.engine.run(opening) => pool?,
        };
        tracing::info!(ms = opened.elapsed().as_millis(), "pool open");
        Ok(OpenPool { pool, store, engine: self.engine.clone() })
    }

    async fn prepare(
        &self,
        open: &OpenPool,
        sockets: &Sockets,
        state: HandedOver,
    ) -> Result<Prepared, ServeError> {
        let (config, pool) = (self.reloader.current(), (open.pool.clone(), &*open.store));
        Prepared::new(&config, &self.descriptors, pool, &self.groups, sockets, state).await
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
                    None => return Ok(()),
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
        let binary = upgrade.binary.unwrap_or_else(|| self.binary.path().to_owned());
        let time = upgrade.timeout_s.map_or(UPGRADE_STEP, Duration::from_secs);
        let (outcome, kept) = tokio::select! {
            biased;
            loss = open.fenced() => exit_without_pool(loss),
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
        let outcome = tokio::select! {
            biased;
            loss = open.fenced() => exit_without_pool(loss),
            done = hand_over(request, self.config, open, services, &mut self.signals) => done,
        };
        match Continue::after(outcome, Some(sockets), reply) {
            Ok(continues) => Ok(continues),
            Err((done, api, reply)) => {
                let _ = reply.send(Ok(done));
                last_replies(api, LAST_REPLIES).await;
                if self.signals.have_arrived().await {
                    return Ok(None);
                }
                if !self.config.standby {
                    exit_without_pool(Loss::HandedOver);
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
        let Resumption { state, back, store } = resumption;
        let opened = match store {
            Some(store) => Some(self.open_pool(Lease::new(store)).await?),
            None => self.reopen(back.as_ref()).await?,
        };
        let Some(open) = opened else { return Ok(None) };
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
        tokio::select! {
            biased;
            loss = open.fenced() => exit_without_pool(loss),
            closed = stop => closed?,
            () = self.signals.stop() => exit_immediately(),
        }
        tracing::info!("stopped");
        Ok(())
    }
}

/// Prints the ready line, which names all addresses. A closed standard output is not an error.
fn print_ready_line(config: &ServeConfig, control: &Control, json: bool) {
    let info = control.info();
    let line = if json {
        json!({
            "ready": true, "socket": config.socket, "nbd": info.nbd, "iscsi": info.iscsi, "http": info.http,
        })
        .to_string()
    } else {
        let mut line = format!("forebay is ready: control {}", config.socket.display());
        for address in &info.nbd {
            line += &format!(", nbd {address}");
        }
        for address in &info.iscsi {
            line += &format!(", iscsi {address}");
        }
        if let Some(address) = &info.http {
            line += &format!(", http {address}");
        }
        line
    };
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn exit_immediately() -> ! {
    eprintln!("forebay: second signal, exiting immediately; the next start recovers from the log");
    // SAFETY: the call does not return. It runs no exit handlers, because other threads still run.
    unsafe { libc::_exit(1) }
}
