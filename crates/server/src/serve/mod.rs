//! The running server: startup, listeners, the ready line and orderly shutdown.
//!
//! **Start.** The server opens the store (which refuses a second server) and the pool, and binds the
//! listeners. Last, it moves the control socket into place and prints one line. A failure before that leaves
//! no files behind.
//!
//! **Stop.** On the first SIGTERM or SIGINT the server accepts no new connections, finishes requests in
//! progress (within a bounded time), undoes imports, makes everything durable and closes the pool. Exit
//! status 0. A second signal exits immediately, which is as safe as a crash.
//!
//! **Loss of the pool.** If another server has opened the pool, this one ends at once, with an error and
//! without answering a request: its clients lose their connections, and look for the other server.

mod capped;
mod classes;
mod descriptors;
mod host;
mod memory;
mod notify;
mod pressure;
mod socket;
mod store;

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::serve::Listener;
use forebay_engine::Pool;
use serde_json::json;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api::{self, Origin};
use crate::config::ServeConfig;
use crate::control::{Control, ServerInfo};
use crate::iscsi;
use crate::nbd;
use crate::plane::{ConnectionLimits, Handle, ListenError, Plane};
use crate::scsi::Units;
use crate::targets::Targets;
use capped::Capped;
use descriptors::Descriptors;
pub use host::EngineThread;
use socket::ControlSocket;

/// Exit status of a server that has lost its pool: EX_UNAVAILABLE (sysexits.h).
const FENCED_STATUS: i32 = 69;
/// Time that requests and jobs in progress have to finish after a stop signal.
const DRAIN: Duration = Duration::from_millis(2500);

/// Reasons for which a server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A basic system call failed.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
    /// The store cannot be opened.
    #[error("cannot open the pool in {path}: {source}")]
    Store {
        /// The data directory.
        path: PathBuf,
        /// The error of the store.
        source: forebay_store::StoreError,
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
    /// The NBD server cannot start.
    #[error("{0}")]
    Nbd(#[from] nbd::BindError),
    /// The iSCSI target cannot start.
    #[error("{0}")]
    Iscsi(#[from] ListenError),
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
    init_tracing();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(serve(config, json));
    // A connection that is stuck must not delay the exit.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

async fn serve(config: &ServeConfig, json: bool) -> Result<(), ServeError> {
    let mut signals = Signals::new()?;
    let descriptors = Descriptors::raise(config.cores)?;
    // The store is opened before the control socket is bound: creating a store requires an empty directory,
    // and the socket may be in the same one.
    let engine = EngineThread::retaining(&config.memory_dir)?;
    let store = store::open(config, &descriptors, engine.host()).await?;
    let (mut socket, control_listener) = ControlSocket::bind(&config.socket)?;
    let opened = Instant::now();
    let pool = engine.run(Pool::open(store, engine.host(), config.pool.clone())).await?;
    tracing::info!(ms = opened.elapsed().as_millis(), "pool open");

    let Services { plane, control, listeners, background } =
        start_services(config, &descriptors, &pool, control_listener).await?;
    socket.publish()?;
    print_ready_line(config, &control, json);
    notify::notify("READY=1");

    tokio::select! {
        () = signals.first() => {}
        () = pool.fenced() => exit_fenced(socket),
    }
    tracing::info!("stopping");
    notify::notify("STOPPING=1");
    background.iter().for_each(JoinHandle::abort);
    let closing = pool.clone();
    let stop = async {
        drain(plane, &control, listeners).await;
        drop(socket);
        let closed = engine.run(async move { closing.close().await }).await;
        if closed.is_ok() && !pool.retains() {
            engine.remove_memory();
        }
        closed
    };
    tokio::select! {
        biased;
        () = pool.fenced() => exit_without_pool(),
        closed = stop => closed?,
        () = signals.second() => exit_immediately(),
    }
    tracing::info!("stopped");
    Ok(())
}

/// The running parts of a server with an open pool.
struct Services {
    plane: Handle,
    control: Control,
    /// Tasks that serve the listeners of the API.
    listeners: Vec<JoinHandle<()>>,
    /// Tasks that are aborted on a stop.
    background: Vec<JoinHandle<()>>,
}

/// Starts the data plane, the control plane and the background tasks.
async fn start_services(
    config: &ServeConfig,
    descriptors: &Descriptors,
    pool: &Arc<Pool>,
    control_listener: UnixListener,
) -> Result<Services, ServeError> {
    let mut background = vec![tokio::spawn(pressure::watch(pool.clone()))];
    let targets = Arc::new(Targets::load(pool.clone()).await);
    if let Err(e) = targets.apply(&config.iscsi_targets).await {
        tracing::error!("cannot set up the iSCSI targets of the configuration: {e}");
    }
    let units = Arc::new(Units::new());
    background.push(tokio::spawn(iscsi::follow(targets.clone(), units.clone())));
    let mut plane = Plane::new(connection_limits(config, descriptors), config.client_memory);
    let nbd::Listening { addresses: nbd, certificates } = nbd::listen(&mut plane, pool, &config.nbd)?;
    background.push(tokio::spawn(reload_on_hangup(certificates)?));
    let iscsi = iscsi::listen(
        &mut plane,
        pool.clone(),
        targets.clone(),
        units.clone(),
        config.iscsi_limits,
        &config.chap_algorithms,
        &config.iscsi,
    )?;
    let plane = plane.run(config.cores)?;
    let http = bind_http(config.http).await?;
    let info = ServerInfo {
        data: config.data.clone(),
        nbd: nbd.iter().map(ToString::to_string).collect(),
        iscsi: iscsi.iter().map(ToString::to_string).collect(),
        http: http.as_ref().map(|(_, addr)| addr.to_string()),
        imports: config.imports,
        started: Instant::now(),
    };
    let control = Control::new(pool.clone(), targets, units, info);
    background.push(tokio::spawn(classes::learn(control.clone())));
    let socket_listener = Capped::new(control_listener, descriptors.control);
    let mut listeners = vec![listen(socket_listener, &control, Origin::Socket, &[])];
    if let Some((listener, addr)) = http {
        let origin = if addr.ip().is_loopback() { Origin::Loopback } else { Origin::Remote };
        let listener = Capped::new(listener, descriptors.control);
        listeners.push(listen(listener, &control, origin, &config.http_hosts));
    }
    Ok(Services { plane, control, listeners, background })
}

/// Finishes requests in progress, jobs and API calls, within [`DRAIN`].
async fn drain(plane: Handle, control: &Control, listeners: Vec<JoinHandle<()>>) {
    let drained = async {
        tokio::join!(plane.shutdown(), control.stop(DRAIN));
        for listener in listeners {
            // A listener that panicked has no requests left to finish.
            let _ = listener.await;
        }
    };
    // Connections that are still open then are cut, so that time is left to make everything durable.
    if tokio::time::timeout(DRAIN, drained).await.is_err() {
        tracing::warn!(
            "some clients did not receive their replies within {DRAIN:?}; their connections are cut"
        );
    }
}

/// The limits of the configuration, lowered to the number of available descriptors.
fn connection_limits(config: &ServeConfig, descriptors: &Descriptors) -> ConnectionLimits {
    let wanted = config.connections;
    let all = wanted.all.min(descriptors.clients);
    if all < wanted.all {
        let limit = descriptors.limit;
        tracing::warn!(
            wanted = wanted.all,
            connections = all,
            "the limit of {limit} open files allows fewer connections than configured (ulimit -n, LimitNOFILE=)"
        );
    }
    // A part of the connections is reserved for clients that have negotiated.
    ConnectionLimits { all, negotiating: wanted.negotiating.min(all.div_ceil(2)), ..wanted }
}

/// Reloads the certificates of the NBD server on each SIGHUP.
fn reload_on_hangup(certificates: nbd::Certificates) -> std::io::Result<impl Future<Output = ()>> {
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        while hangup.recv().await.is_some() {
            match certificates.reload() {
                Ok(true) => tracing::info!("TLS certificates read again"),
                Ok(false) => {
                    tracing::info!("SIGHUP: TLS is not configured, there are no certificates to reload")
                }
                Err(e) => tracing::error!("cannot reload the TLS certificates, those in use are kept: {e}"),
            }
        }
    })
}

async fn bind_http(addr: Option<SocketAddr>) -> Result<Option<(TcpListener, SocketAddr)>, ServeError> {
    let Some(addr) = addr else { return Ok(None) };
    let fail = |e| ServeError::listen(&addr.to_string(), &e);
    let listener = TcpListener::bind(addr).await.map_err(fail)?;
    let bound = listener.local_addr().map_err(fail)?;
    Ok(Some((listener, bound)))
}

/// Serves the API on a listener until the control plane stops.
fn listen<L>(listener: L, control: &Control, origin: Origin, hosts: &[String]) -> JoinHandle<()>
where
    L: Listener,
    L::Addr: std::fmt::Debug,
{
    let mut stopping: watch::Receiver<bool> = control.stopping();
    let router = api::router(control.clone(), origin, hosts);
    tokio::spawn(async move {
        let stop = async move {
            // An error means that the control plane was dropped, so it has stopped.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        };
        if let Err(e) = axum::serve(listener, router).with_graceful_shutdown(stop).await {
            tracing::error!(error = %e, "an API listener failed");
        }
    })
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

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn first(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => (),
            _ = self.interrupt.recv() => (),
        }
    }

    async fn second(&mut self) {
        self.first().await;
    }
}

/// Ends the process after another server has opened the pool: all connections end unanswered.
fn exit_fenced(socket: ControlSocket) -> ! {
    drop(socket);
    exit_without_pool()
}

fn exit_without_pool() -> ! {
    eprintln!("forebay: {}; exiting", forebay_engine::Error::Fenced);
    std::process::exit(FENCED_STATUS)
}

fn exit_immediately() -> ! {
    eprintln!("forebay: second signal, exiting immediately; the next start recovers from the log");
    std::process::exit(1)
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
