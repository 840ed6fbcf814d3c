//! A node of a cluster: it joins, follows the map, and runs a process for each shard that it is to own.
//!
//! A cluster is many pools (*shards*) in one Ceph pool. The nodes share a map of members and shards
//! (`forebay_cluster`); which node owns a shard is decided at the pool of the shard, as for every pool in
//! Ceph (`forebay_store::rados`), so the worst that a mistake of this module can cause is that a shard is
//! owned by the wrong node, or by none, for some time. [`decide`] states the rules.
//!
//! Each shard that a node owns is served by a separate process, `forebay serve --pool`, as ADR 30 decided
//! for servers with one pool: it can be killed, it can lose its pool, and it can be handed over, while the
//! others continue. A shard that a node only watches costs no process: the node looks at the header of the
//! pool once a second, over one client of the Ceph cluster for all shards.

mod decide;
mod figures;
mod gateway;
mod iscsi;
mod listen;
mod metrics;
mod nbd;
mod process;
mod shard;
mod tokens;
mod until;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::ClusterError;
use forebay_cluster::map::{Change, Map, Maps, Node, NodeState, new_shards};
use forebay_control::access::Access;
use forebay_frontend::plane::{self, ListenAddr, ListenError};
use forebay_gateway::link::{self, Identity, IdentityError};
use forebay_store::StoreError;
use forebay_store::rados::librados::LibradosCluster;
use forebay_store::rados::{Cluster, Errno, POOL_HEADER, PoolWatch, RadosAddress, RadosOptions};
use serde_json::json;
use tokio::runtime::{Handle, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;

use self::figures::Figures;
use self::gateway::{Gateway, OwnShards};
pub(crate) use self::gateway::{images, nodes, view};
use self::listen::{Clients, Listeners};
use self::shard::{Seen, ShardTask, Shared};
use self::tokens::TokensInMap;
use crate::config::{NodeConfig, TokenMode};
use crate::serve::listen::socket::ControlSocket;
use crate::serve::{ServeError, Signals, notify, open_audit};

/// Interval at which a node reads what has changed in the map.
const REFRESH: Duration = Duration::from_secs(1);
/// Time for an answer of Ceph, after which the node reports that Ceph does not answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum time for the orderly stop of all shards.
const STOP: Duration = Duration::from_secs(25);
/// Shards of a cluster that its first node creates.
pub(crate) const DEFAULT_SHARDS: u32 = 16;
/// The file in the data directory with the identity of the node.
const ID_FILE: &str = "node-id";

/// Why a node cannot run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A system call failed.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
    /// The data directory cannot be used.
    #[error("cannot use the data directory {path}: {error}")]
    Data {
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// Ceph cannot be reached.
    #[error("cannot open the cluster {cluster}: {source}")]
    Connect {
        /// The address of the cluster.
        cluster: String,
        /// The error.
        source: StoreError,
    },
    /// The objects of the cluster cannot be used.
    #[error("cannot use the cluster {cluster}: {source}")]
    Cluster {
        /// The address of the cluster.
        cluster: String,
        /// The error.
        source: ClusterError,
    },
    /// The control socket cannot be used.
    #[error(transparent)]
    Socket(#[from] ServeError),
    /// An address for NBD cannot be used.
    #[error(transparent)]
    Nbd(#[from] ListenError),
    /// The links of the cluster cannot be used.
    #[error("cannot use the links of the cluster: {0}")]
    Links(#[from] IdentityError),
    /// The address of the node cannot be used.
    #[error(
        "cannot listen on the address {address} of the node: {error}; give an address of this host with --node-address"
    )]
    Address {
        /// The address.
        address: IpAddr,
        /// The error of the system.
        error: std::io::Error,
    },
    /// Another process has joined with the identity of this node.
    #[error("another process has joined the cluster with the identity in {}: do not copy this file to another host", .0.display())]
    Replaced(PathBuf),
    /// An administrator has removed this node.
    #[error("this node was removed from the cluster; remove {} to join again as a new node", .0.display())]
    Removed(PathBuf),
}

/// Runs a node until a signal to stop.
///
/// # Errors
/// If the cluster cannot be reached, or the node was removed from it.
pub fn run(config: NodeConfig, json: bool) -> Result<(), NodeError> {
    crate::log::init(&config.log);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(config, json))?;
    // SAFETY: the call does not return. It runs no exit handlers: those of librados free what a thread that
    // waits for Ceph still uses.
    unsafe { libc::_exit(0) }
}

/// Threads for clients.
fn runtime(threads: usize) -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(threads.max(1)).enable_all().build()
}

/// A connection to the namespace of a cluster.
pub(crate) fn connect(
    cluster: &RadosAddress,
    ceph: &RadosOptions,
) -> Result<Arc<LibradosCluster>, NodeError> {
    LibradosCluster::connect(cluster, ceph)
        .map_err(|source| NodeError::Connect { cluster: cluster.to_string(), source })
}

async fn serve(config: NodeConfig, json: bool) -> Result<(), NodeError> {
    let mut signals = Signals::new()?;
    // Without a handler, a request to reload would end the node.
    let mut reload = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while reload.recv().await.is_some() {
            tracing::warn!(
                "a node does not reload: the process of a shard reads the configuration when it starts"
            );
        }
    });
    let mut joined = tokio::select! {
        joined = Member::join(config) => joined?,
        // Ceph may not answer.
        () = signals.stop() => return Ok(()),
    };
    let (stop, mut tasks, mut serving) = (joined.stop.clone(), JoinSet::new(), JoinSet::new());
    // Neither requests of the API nor data of clients delay the decisions about shards, or the watchdog.
    let (requests, data) = (runtime(1)?, runtime(joined.shared.config.cores)?);
    let http = joined.listeners.as_ref().and_then(Listeners::http);
    let nbd = joined.shared.nbd.clone();
    let portals = joined.serve_iscsi(&mut serving)?;
    let control = joined.serve(&mut serving, (requests.handle(), data.handle()))?;
    print_ready(&joined, &nbd, http, json);
    notify("READY=1");
    let result = tokio::select! {
        removed = joined.follow(&mut tasks) => Err(removed),
        () = signals.stop() => Ok(()),
    };
    tracing::info!("stopping");
    notify("STOPPING=1");
    stop.send_replace(true);
    drop((control, portals));
    requests.shutdown_background();
    data.shutdown_background();
    let ended = async { while tasks.join_next().await.is_some() {} };
    tokio::select! {
        _ = tokio::time::timeout(STOP, ended) => tracing::info!("stopped"),
        // The processes of the shards receive a signal when this one ends.
        () = signals.stop() => tracing::info!("second signal, exiting immediately"),
    }
    result
}

/// This node as a member of the cluster.
struct Member {
    shared: Arc<Shared>,
    /// Until the node serves clients.
    listeners: Option<Listeners>,
    /// The identity of the cluster on its links.
    identity: watch::Sender<Identity>,
    /// The access control of the API.
    access: Arc<Access>,
    name: String,
    id: String,
    /// Identity of this process.
    process: String,
    publish: watch::Sender<Seen>,
    stop: watch::Sender<bool>,
    /// Keeps the identity locked.
    _lock: File,
}

impl Member {
    async fn join(config: NodeConfig) -> Result<Member, NodeError> {
        let data = |error| NodeError::Data { path: config.data.clone(), error };
        let (id, lock) = identity(&config.data).map_err(data)?;
        let failed = |source| NodeError::Cluster { cluster: config.cluster.to_string(), source };
        let (address, ceph) = (config.cluster.clone(), config.ceph.clone());
        let connected = tokio::task::spawn_blocking(move || connect(&address, &ceph)).await;
        let cluster = connected.map_err(std::io::Error::other)??;
        let audit = open_audit(config.audit.as_deref())?;
        let own = config.address.or_else(|| cluster.own_address()).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        // Before the node joins: otherwise a shard would move here, and could not be served.
        let listeners = Listeners::bind(&config, own).await?;
        let portals = match &config.iscsi.announced {
            Some(announced) if !config.iscsi.listen.is_empty() => announced.clone(),
            _ => listeners.portals(own),
        };
        let links = listeners.links()?.to_string();
        let maps = Maps::new(cluster.clone());
        create_if_missing(&cluster, &maps, &config.cluster.name, &new_identity()?).await.map_err(failed)?;
        let process = new_identity()?;
        let addresses = (links.as_str(), portals.as_slice(), listeners.remote_nbd(own));
        let map = join(&maps, &config, (&id, &process), addresses).await?;
        let (number, name) =
            map.node_with_id(&id).map_or((0, String::new()), |node| (node.number, node.name.clone()));
        tracing::info!("joined the cluster {} as node '{name}', number {number}", config.cluster);
        let (identity, _) = watch::channel(Identity::parse(&map.links)?);
        let access = Access::of_cluster(&map.tokens, config.http.tokens == TokenMode::Always, audit);
        let seen = Seen { map: Arc::default(), eligible_since: BTreeMap::new() }.with(map);
        let (publish, map) = watch::channel(seen);
        let (stop, stopping) = watch::channel(false);
        let handover = Semaphore::new(1);
        let look = Notify::new();
        let nbd = listeners.nbd().to_vec();
        let figures = Arc::new(Figures::new());
        let shared = Arc::new(Shared {
            config,
            nbd,
            number,
            portals,
            cluster,
            maps,
            map,
            figures,
            look,
            handover,
            stop: stopping,
        });
        Ok(Member {
            shared,
            listeners: Some(listeners),
            identity,
            access,
            name,
            id,
            process,
            publish,
            stop,
            _lock: lock,
        })
    }

    /// Serves initiators at the iSCSI portals; `None` if the node has none.
    fn serve_iscsi(&mut self, tasks: &mut JoinSet<()>) -> Result<Option<plane::Handle>, NodeError> {
        let Some(listeners) = &mut self.listeners else { return Ok(None) };
        if self.shared.config.iscsi.listen.is_empty() {
            return Ok(None);
        }
        Ok(Some(iscsi::serve(self.shared.clone(), listeners.take_iscsi(), tasks)?))
    }

    /// Serves clients, at the control socket and over links.
    fn serve(
        &mut self,
        tasks: &mut JoinSet<()>,
        threads: (&Handle, &Handle),
    ) -> Result<Option<ControlSocket>, NodeError> {
        let Some(listeners) = self.listeners.take() else { return Ok(None) };
        let own = Arc::new(OwnShards::new(self.shared.config.data.clone()));
        let identity = || self.identity.subscribe();
        let gateway = Arc::new(Gateway::new(self.shared.clone(), own.clone(), identity()));
        let tokens = TokensInMap { shared: self.shared.clone(), access: self.access.clone() };
        let clients = Clients {
            config: self.shared.config.clone(),
            gateway,
            own,
            identity: identity(),
            tokens: Arc::new(tokens),
            process: self.process.clone(),
            stopping: self.stop.subscribe(),
        };
        listeners.serve(tasks, threads, clients).map(Some)
    }

    /// Follows the map, and runs the tasks of the shards. Returns when this node is not a member any more.
    async fn follow(&self, tasks: &mut JoinSet<()>) -> NodeError {
        let mut known = BTreeSet::new();
        loop {
            self.start_tasks(&mut known, tasks);
            tokio::select! {
                () = tokio::time::sleep(REFRESH) => {}
                () = self.shared.look.notified() => tokio::time::sleep(REFRESH / 10).await,
            }
            notify("WATCHDOG=1");
            if let Err(e) = self.refresh().await {
                return e;
            }
        }
    }

    /// Starts the tasks of shards that are new in the map.
    fn start_tasks(&self, known: &mut BTreeSet<u32>, tasks: &mut JoinSet<()>) {
        let map = self.publish.borrow().map.clone();
        for shard in map.shards.values() {
            if known.contains(&shard.number) {
                continue;
            }
            match self.shared.cluster.namespace(&shard.namespace) {
                Ok(namespace) => {
                    let watch = PoolWatch::new(namespace);
                    tasks.spawn(ShardTask::new(self.shared.clone(), shard.number, watch).run());
                    known.insert(shard.number);
                }
                // It is tried again after the next look at the map.
                Err(e) => tracing::warn!("shard {} cannot be watched yet: {e}", shard.number),
            }
        }
    }

    /// Reads what has changed in the map, and keeps this node a member that answers.
    async fn refresh(&self) -> Result<(), NodeError> {
        let before = self.publish.borrow().clone();
        let refreshed = async {
            let refreshed = self.shared.maps.refresh(&before.map).await?;
            match refreshed.as_ref().unwrap_or(&before.map).nodes.get(&self.shared.number) {
                Some(own) if own.is_suspect() && own.process == self.process => {
                    tracing::warn!("another node has taken a shard over from this one, which lives");
                    self.clear_suspicion().await.map(Some)
                }
                _ => Ok(refreshed),
            }
        };
        let map = match tokio::time::timeout(PATIENCE, refreshed).await {
            Ok(Ok(None)) => {
                self.shared.figures.map_was_read();
                return Ok(());
            }
            Ok(Ok(Some(map))) => map,
            Ok(Err(e)) => {
                tracing::warn!("the map of the cluster cannot be read: {e}");
                return Ok(());
            }
            Err(_) => {
                tracing::warn!("Ceph does not answer");
                return Ok(());
            }
        };
        match map.node_with_id(&self.id) {
            None => return Err(NodeError::Removed(self.shared.config.data.join(ID_FILE))),
            Some(own) if own.process != self.process => {
                return Err(NodeError::Replaced(self.shared.config.data.join(ID_FILE)));
            }
            Some(_) => {}
        }
        if map.tokens != before.map.tokens {
            self.access.tokens.replace_document(&map.tokens);
        }
        if map.links != before.map.links {
            tracing::info!("the key of the links between the nodes was replaced");
            self.identity.send_replace(Identity::parse(&map.links)?);
        }
        self.publish.send_replace(before.with(map));
        self.shared.figures.map_was_read();
        Ok(())
    }

    async fn clear_suspicion(&self) -> Result<Map, ClusterError> {
        self.shared
            .maps
            .change(|map| {
                let own = map.nodes.get(&self.shared.number).filter(|node| node.is_suspect());
                let cleared = own.map(|node| Node { suspect: String::new(), ..node.clone() });
                Ok(cleared.map_or_else(Change::default, |node| Change::default().set_node(node)))
            })
            .await
    }
}

/// Creates the cluster, if there is neither one nor a pool in its namespace.
async fn create_if_missing(
    cluster: &Arc<LibradosCluster>,
    maps: &Maps,
    name: &str,
    identity: &str,
) -> Result<(), ClusterError> {
    match maps.read().await {
        Err(ClusterError::NoCluster) => {}
        Ok(_) => return Ok(()),
        Err(e) => return Err(e),
    }
    // A pool of this name could be meant: its disks would seem to be lost.
    match cluster.contents(POOL_HEADER, 0).await {
        Err(Errno(libc::ENOENT)) => {}
        Ok(_) => {
            return Err(ClusterError::Refused(format!(
                "there is a pool and no cluster; make the pool the first shard of a cluster with 'forebay cluster \
                 create --from {name}'"
            )));
        }
        Err(e) => return Err(e.into()),
    }
    match maps.create(name, identity, &new_links()?, &new_shards(name, DEFAULT_SHARDS, None)).await {
        Ok(()) => tracing::info!("created the cluster with {DEFAULT_SHARDS} shards"),
        // Another node was faster.
        Err(ClusterError::Exists(_)) => {}
        Err(e) => return Err(e),
    }
    Ok(())
}

/// Makes this node a member, or records in the map that it has started again.
async fn join(
    maps: &Maps,
    config: &NodeConfig,
    (id, process): (&str, &str),
    (links, portals, nbd): (&str, &[SocketAddr], Vec<SocketAddr>),
) -> Result<Map, NodeError> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = config.name.clone().unwrap_or_else(|| host.trim().to_owned());
    let address = config.address.map_or_else(String::new, |address| address.to_string());
    let joined = maps.change(|map| {
        if map.gone.contains_key(id) {
            return Ok(Change::default());
        }
        if map.node_named(&name).is_some_and(|other| other.id != id) {
            return Err(ClusterError::Refused(format!(
                "another node of the cluster is named '{name}'; give this one another name with --node-name, or remove the \
                 other one with 'forebay node rm {} {name}'",
                config.cluster
            )));
        }
        let known = map.node_with_id(id);
        Ok(Change::default().set_node(Node {
            number: known.map_or_else(|| map.next_number(), |node| node.number),
            id: id.to_owned(),
            name: name.clone(),
            address: address.clone(),
            links: links.to_owned(),
            iscsi: portals.iter().map(ToString::to_string).collect(),
            nbd: nbd.iter().map(ToString::to_string).collect(),
            weight: known.map_or(1.0, |node| node.weight),
            state: known.map_or(NodeState::Up, |node| node.state),
            process: process.to_owned(),
            suspect: String::new(),
        }))
    });
    let failed = |source| NodeError::Cluster { cluster: config.cluster.to_string(), source };
    let map = joined.await.map_err(failed)?;
    match map.gone.contains_key(id) {
        true => Err(NodeError::Removed(config.data.join(ID_FILE))),
        false => Ok(map),
    }
}

/// The identity of the node, which its first start creates, and its file, locked.
///
/// # Errors
/// `WouldBlock` if another process has it.
fn identity(data: &Path) -> std::io::Result<(String, File)> {
    std::fs::create_dir_all(data)?;
    let path = data.join(ID_FILE);
    let mut file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
    file.try_lock().map_err(|e| match e {
        TryLockError::WouldBlock => std::io::Error::new(ErrorKind::WouldBlock, "another node uses it"),
        TryLockError::Error(e) => e,
    })?;
    let mut id = String::new();
    file.read_to_string(&mut id)?;
    if id.trim().is_empty() {
        id = new_identity()?;
        writeln!(file, "{id}")?;
        file.sync_all()?;
        File::open(data)?.sync_all()?;
    }
    Ok((id.trim().to_owned(), file))
}

/// A new key and certificate for the links between nodes.
pub(crate) fn new_links() -> Result<String, ClusterError> {
    link::new_identity().map_err(|e| ClusterError::Refused(e.to_string()))
}

/// A new identity: 128 random bits as text.
pub(crate) fn new_identity() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn print_ready(joined: &Member, nbd: &[ListenAddr], http: Option<SocketAddr>, json: bool) {
    let (cluster, node) = (joined.shared.config.cluster.to_string(), &joined.name);
    let nbd: Vec<_> = nbd.iter().map(ToString::to_string).collect();
    let line = if json {
        json!({ "ready": true, "cluster": cluster, "node": node, "nbd": nbd, "http": http }).to_string()
    } else {
        let http = http.map_or_else(String::new, |http| format!("; API and dashboard on {http}"));
        format!("forebay is ready: node {node} of the cluster {cluster}, NBD on {}{http}", nbd.join(", "))
    };
    let mut out = std::io::stdout().lock();
    // A closed standard output is not an error.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
