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
//! **Loss of the pool.** If another server has opened the pool, or taken its store, this one ends at once,
//! with an error and without answering a request: its clients lose their connections, and look for the other
//! server.

mod capped;
mod claim;
mod classes;
mod descriptors;
mod health;
mod host;
mod http;
mod https;
mod inherited;
mod lease;
mod loss;
mod memory;
mod notify;
mod pressure;
mod replace;
mod services;
mod signals;
mod socket;
mod sockets;
mod store;
mod timer;
mod upgrade;
mod workers;

use std::io::Write;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::Pool;
use forebay_store::StoreError;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use crate::config::{PoolLocation, ServeConfig};
use crate::control::{Control, ControlError, Upgrade, UpgradeRequest, Upgraded};
use crate::nbd;
use crate::plane::{ListenAddr, ListenError};
use descriptors::Descriptors;
pub use host::EngineThread;
use https::HttpsCertificate;
pub use https::HttpsError;
use inherited::Inherited;
use lease::Lease;
use loss::{Loss, exit_without_pool};
use replace::{Outcome, replace};
use services::{Prepared, Services};
use signals::Signals;
use sockets::Sockets;
use upgrade::{Binary, HandedOver, Successor};

/// Longest time for each step of the new process in an upgrade, unless the request says otherwise.
const UPGRADE_STEP: Duration = Duration::from_secs(10);
/// Time for the predecessor's store to be released, and the interval of attempts to open it.
const RELEASE: Duration = Duration::from_secs(5);
const RELEASE_RETRY: Duration = Duration::from_millis(1);
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

/// Runs a server until a stop signal. With `json`, the ready line is a JSON object.
pub fn run(config: &ServeConfig, json: bool) -> Result<(), ServeError> {
    let inherited = Inherited::from_environment()?;
    let successor = Successor::from_environment()?;
    init_tracing();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(serve(config, json, inherited, successor));
    // A connection that is stuck must not delay the exit.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

async fn serve(
    config: &ServeConfig,
    json: bool,
    inherited: Inherited,
    successor: Option<Successor>,
) -> Result<(), ServeError> {
    let binary = Binary::at_start();
    let Some(successor) = successor else { return start(config, json, binary, inherited).await };
    match take_over(config, binary, &successor).await {
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
) -> Result<(), ServeError> {
    let mut server = Server::new(config, binary)?;
    let Some((store, mut sockets)) = server.open_store_and_bind(inherited).await? else { return Ok(()) };
    let open = server.open_pool(store).await?;
    let prepared = server.prepare(&open, &sockets, HandedOver::default()).await?;
    let services = prepared.run(server.upgrades.clone())?;
    sockets.publish()?;
    print_ready_line(config, &services.control, json);
    notify::notify("READY=1");
    server.serve(open, services, sockets).await
}

/// Takes the place of another process.
async fn take_over<'a>(
    config: &'a ServeConfig,
    binary: Binary,
    successor: &Successor,
) -> Result<(Server<'a>, OpenPool, Services, Sockets), ServeError> {
    let server = Server::new(config, binary)?;
    let mut sockets = successor.prepare(config)?;
    let state = successor.receive_state()?;
    let store = server.open_released_store().await?;
    let open = server.open_pool(store).await?;
    let prepared = server.prepare(&open, &sockets, state).await?;
    let resumed = prepared.resumed;
    successor.opened()?;
    let services = prepared.run(server.upgrades.clone())?;
    successor.serving(resumed);
    sockets.own_files();
    notify::taken_over();
    tracing::info!(connections = resumed, "took over from another process");
    Ok((server, open, services, sockets))
}

/// An open pool and its store.
struct OpenPool {
    pool: Arc<Pool>,
    store: Arc<Lease>,
    engine: Arc<EngineThread>,
}

impl OpenPool {
    async fn close(&self) -> Result<(), ServeError> {
        let pool = self.pool.clone();
        Ok(self.engine.run(async move { pool.close().await }).await?)
    }

    /// Closes the pool, and then releases its store and its retained memory for the next opening, also if
    /// closing failed.
    async fn release(&self) -> Result<(), ServeError> {
        let closed = self.close().await;
        self.release_store().await;
        closed
    }

    /// Lets another server open the pool, which was closed.
    async fn release_store(&self) {
        // The next server opens the store first, and then the memory.
        self.engine.release_memory();
        let store = self.store.clone();
        // Only fails if the store panicked.
        let _ = tokio::task::spawn_blocking(move || store.close()).await;
    }

    /// Waits until another server has opened the pool or taken its store.
    async fn fenced(&self) -> Loss {
        tokio::select! {
            () = self.pool.fenced() => Loss::Opened,
            () = self.store.lost() => Loss::Taken,
        }
    }
}

/// What exists as long as the process, also while it has no pool.
struct Server<'a> {
    config: &'a ServeConfig,
    binary: Binary,
    descriptors: Descriptors,
    engine: Arc<EngineThread>,
    signals: Signals,
    /// SIGUSR2.
    upgrade_signal: Signal,
    upgrades: mpsc::Sender<UpgradeRequest>,
    requests: mpsc::Receiver<UpgradeRequest>,
}

/// An event for the loop of the server.
enum Event {
    Stop,
    /// The pool is lost to another server.
    Fenced(Loss),
    /// An upgrade; the reply is for the API.
    Upgrade(Upgrade, Option<oneshot::Sender<Result<Upgraded, ControlError>>>),
}

impl Server<'_> {
    /// Checks everything that does not depend on the pool.
    fn new(config: &ServeConfig, binary: Binary) -> Result<Server<'_>, ServeError> {
        let (signals, upgrade_signal) = (Signals::new()?, signal(SignalKind::user_defined2())?);
        let descriptors = Descriptors::raise(config.cores)?;
        nbd::check(&config.nbd)?;
        config.http.https.as_ref().map(HttpsCertificate::load).transpose()?;
        store::prepare_data(config)?;
        let engine = Arc::new(EngineThread::retaining(&config.memory_dir, config.cores)?);
        let (upgrades, requests) = mpsc::channel(1);
        Ok(Server { config, binary, descriptors, engine, signals, upgrade_signal, upgrades, requests })
    }

    async fn open_store(&self) -> Result<Arc<Lease>, ServeError> {
        let store = store::open(self.config, &self.descriptors, self.engine.host()).await?;
        Ok(Lease::new(store))
    }

    /// Opens the store, and binds the sockets. `None` if a signal to stop arrives while another server holds
    /// the pool.
    async fn open_store_and_bind(
        &mut self,
        inherited: Inherited,
    ) -> Result<Option<(Arc<Lease>, Sockets)>, ServeError> {
        let (config, host) = (self.config, self.engine.host());
        let PoolLocation::Rados(pool) = &config.location else {
            // Creating a store requires an empty directory, and the sockets may be in the same one.
            let store = self.open_store().await?;
            return Ok(Some((store, Sockets::bind(config, inherited)?)));
        };
        // The server that holds the pool may have the addresses of a standby.
        let bound = if config.standby { Err(inherited) } else { Ok(Sockets::bind(config, inherited)?) };
        let stop = pin!(self.signals.stop());
        let Some(opened) = store::open_when_free(config, pool, host, stop).await? else { return Ok(None) };
        let sockets = bound.or_else(|inherited| Sockets::bind(config, inherited))?;
        Ok(Some((Lease::new(opened), sockets)))
    }

    /// Opens a store that another process, or this one, has just closed.
    async fn open_released_store(&self) -> Result<Arc<Lease>, ServeError> {
        let begun = Instant::now();
        loop {
            match self.open_store().await {
                Err(ServeError::Store { source: StoreError::Busy(_), .. }) if begun.elapsed() < RELEASE => {
                    tokio::time::sleep(RELEASE_RETRY).await;
                }
                other => return other,
            }
        }
    }

    async fn open_pool(&self, store: Arc<Lease>) -> Result<OpenPool, ServeError> {
        let opened = Instant::now();
        let opening = Pool::open(store.clone(), self.engine.host(), self.config.pool.clone());
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
        Prepared::new(self.config, &self.descriptors, open.pool.clone(), open.store.gate(), sockets, state)
            .await
    }

    /// Serves until a stop signal, or until another process has taken over.
    async fn serve(
        &mut self,
        mut open: OpenPool,
        mut services: Services,
        mut sockets: Sockets,
    ) -> Result<(), ServeError> {
        loop {
            let (upgrade, reply) = match self.event(&open).await {
                Event::Stop => return self.stop(open, services, sockets).await,
                Event::Fenced(loss) => {
                    drop(sockets);
                    exit_without_pool(loss)
                }
                Event::Upgrade(upgrade, reply) => (upgrade, reply),
            };
            let binary = upgrade.binary.unwrap_or_else(|| self.binary.path().to_owned());
            let time = upgrade.timeout_s.map_or(UPGRADE_STEP, Duration::from_secs);
            let (outcome, kept) = tokio::select! {
                biased;
                loss = open.fenced() => exit_without_pool(loss),
                done = replace(binary, time, &open, services, sockets, &mut self.signals) => done,
            };
            let (error, resume) = match (outcome, kept) {
                (Outcome::Replaced(done, api), _) => {
                    self.signals.pass_on(done.pid).await;
                    let _ = reply.map(|reply| reply.send(Ok(done)));
                    // Until the reply is sent.
                    let replies = async {
                        for listener in api {
                            let _ = listener.await;
                        }
                    };
                    let _ = tokio::time::timeout(LAST_REPLIES, replies).await;
                    return Ok(());
                }
                (Outcome::Unchanged(same, error), Some(kept)) => {
                    (services, sockets) = (*same, kept);
                    (error, None)
                }
                (Outcome::Resume(state, error), Some(kept)) => {
                    sockets = kept;
                    let store = self.open_released_store().await?;
                    open = self.open_pool(store).await?;
                    let prepared = self.prepare(&open, &sockets, state).await?;
                    services = prepared.run(self.upgrades.clone())?;
                    (error, Some(()))
                }
                (_, None) => unreachable!("sockets are left only to a successor that serves"),
            };
            tracing::error!(resumed = resume.is_some(), "{}", error.message);
            notify::notify("READY=1");
            // The client of the API may have disconnected.
            let _ = reply.map(|reply| reply.send(Err(error)));
        }
    }

    async fn event(&mut self, open: &OpenPool) -> Event {
        tokio::select! {
            loss = open.fenced() => Event::Fenced(loss),
            () = self.signals.stop() => Event::Stop,
            _ = self.upgrade_signal.recv() => Event::Upgrade(Upgrade::default(), None),
            // The sender is in `self`.
            Some(UpgradeRequest { upgrade, reply }) = self.requests.recv() => Event::Upgrade(upgrade, Some(reply)),
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

/// Sends diagnostics to standard error; `FOREBAY_LOG` sets the filter, such as `debug` or
/// `forebay_engine=trace`.
fn init_tracing() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("FOREBAY_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let done =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| crate::text::LogWriter).try_init();
    if let Err(e) = done {
        eprintln!("forebay: {}", crate::text::one_line(&e.to_string()));
    }
}
