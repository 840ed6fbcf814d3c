//! A node of a cluster: it joins, follows the map, and runs a process for each shard that it is to own.
//!
//! A cluster is many pools (*shards*) in one Ceph pool. The nodes share a map of members and shards
//! (`forebay_cluster`); which node owns a shard is decided at the pool of the shard, as for every pool in Ceph
//! (`forebay_store::rados`), so the worst that a mistake of this module can cause is that a shard is owned by
//! the wrong node, or by none, for some time. [`decide`] states the rules.
//!
//! Each shard that a node owns is served by a process of its own, `forebay serve --pool`, as ADR 30 decided
//! for servers with one pool: it can be killed, it can lose its pool, and it can be handed over, while the
//! others continue. A shard that a node only watches costs no process: the node looks at the header of the
//! pool once a second, over one client of the Ceph cluster for all shards.

mod decide;
mod process;
mod shard;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::ClusterError;
use forebay_cluster::map::{Change, Map, Maps, Node, NodeState, new_shards};
use forebay_store::StoreError;
use forebay_store::rados::librados::LibradosCluster;
use forebay_store::rados::{PoolWatch, RadosAddress, RadosOptions};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::shard::{Seen, ShardTask, Shared};
use crate::log::LogConfig;

/// Interval at which a node reads what has changed in the map.
const REFRESH: Duration = Duration::from_secs(1);
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
    /// An administrator has removed this node.
    #[error("this node was removed from the cluster; remove {} to join again as a new node", .0.display())]
    Removed(PathBuf),
}

/// The configuration of a node.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The cluster, as `rados:POOL/NAME`.
    pub cluster: RadosAddress,
    /// How to reach Ceph.
    pub ceph: RadosOptions,
    /// The configuration file, whose other sections apply to each shard.
    pub file: Option<PathBuf>,
    /// The directory of the node's files.
    pub data: PathBuf,
    /// The name of the node; the host's name if `None`.
    pub name: Option<String>,
    /// The address at which the shards of this node serve NBD to other hosts; none if `None`.
    pub address: Option<IpAddr>,
    /// The read cache of all shards of this node together, in bytes.
    pub cache: u64,
    /// Data-plane threads of each shard.
    pub cores: usize,
    /// Directory of the retained memory; the default if `None`.
    pub memory_dir: Option<PathBuf>,
    /// The program that serves a shard: this one.
    pub program: PathBuf,
    /// Time without a change of the membership before shards are handed over.
    pub settle: Duration,
    /// The log.
    pub log: LogConfig,
}

/// Runs a node until a signal to stop.
///
/// # Errors
/// If the cluster cannot be reached, or the node was removed from it.
pub fn run(config: NodeConfig, json: bool) -> Result<(), NodeError> {
    crate::log::init(&config.log);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(config, json))
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
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let id = identity(&config.data).map_err(|error| NodeError::Data { path: config.data.clone(), error })?;
    let failed = |source| NodeError::Cluster { cluster: config.cluster.to_string(), source };
    let cluster = connect(&config.cluster, &config.ceph)?;
    let maps = Maps::new(cluster.clone());
    create_if_missing(&cluster, &maps, &config.cluster.name, &new_identity()?).await.map_err(failed)?;
    let process = new_identity()?;
    let map = join(&maps, &config, &id, &process).await.map_err(failed)?;
    let number = map.node_with_id(&id).map_or(0, |node| node.number);
    let name = map.nodes.get(&number).map_or_else(String::new, |node| node.name.clone());
    tracing::info!("joined the cluster {} as node '{name}', number {number}", config.cluster);
    let seen = Seen { map: Arc::new(map), members_since: Instant::now() };
    let (publish, followed) = watch::channel(seen);
    let (stop, stopping) = watch::channel(false);
    let shared = Arc::new(Shared {
        number,
        maps: maps.clone(),
        map: followed,
        handover: Semaphore::new(1),
        stop: stopping,
        config,
    });
    print_ready(&shared.config, &name, json);
    let mut tasks = JoinSet::new();
    let mut known = BTreeSet::new();
    let result = loop {
        start_tasks(&shared, &cluster, &mut known, &mut tasks);
        tokio::select! {
            _ = terminate.recv() => break Ok(()),
            _ = interrupt.recv() => break Ok(()),
            () = tokio::time::sleep(REFRESH) => {}
        }
        if let Err(e) = follow(&shared, &publish, &id, &process).await {
            break Err(e);
        }
    };
    tracing::info!("stopping");
    stop.send_replace(true);
    while tasks.join_next().await.is_some() {}
    tracing::info!("stopped");
    result
}

/// Starts the tasks of shards that are new in the map.
fn start_tasks(
    shared: &Arc<Shared>,
    cluster: &Arc<LibradosCluster>,
    known: &mut BTreeSet<u32>,
    tasks: &mut JoinSet<()>,
) {
    let map = shared.map.borrow().map.clone();
    for shard in map.shards.values() {
        if known.contains(&shard.number) {
            continue;
        }
        match cluster.namespace(&shard.namespace) {
            Ok(namespace) => {
                tasks.spawn(ShardTask::new(shared.clone(), shard.number, PoolWatch::new(namespace)).run());
            }
            // It is tried again after the next look at the map.
            Err(e) => {
                tracing::warn!("shard {} cannot be watched yet: {e}", shard.number);
                return;
            }
        }
        known.insert(shard.number);
    }
}

/// Reads what has changed in the map, and keeps this node a member that answers.
async fn follow(
    shared: &Shared,
    publish: &watch::Sender<Seen>,
    id: &str,
    process: &str,
) -> Result<(), NodeError> {
    let before = publish.borrow().clone();
    let map = match shared.maps.refresh(&before.map).await {
        Ok(None) => return Ok(()),
        Ok(Some(map)) => map,
        Err(e) => {
            tracing::warn!("the map of the cluster cannot be read: {e}");
            return Ok(());
        }
    };
    let Some(own) = map.node_with_id(id) else {
        return Err(NodeError::Removed(shared.config.data.join(ID_FILE)));
    };
    if own.process != process {
        tracing::error!(
            "another process has joined the cluster with the identity of this node: do not copy {ID_FILE}"
        );
    }
    if own.is_suspect() && own.process == process {
        tracing::warn!("another node has taken a shard over from this one, which lives");
        let number = own.number;
        let cleared = shared.maps.change(|map| {
            let Some(node) = map.nodes.get(&number).filter(|node| node.is_suspect()) else {
                return Ok(Change::default());
            };
            Ok(Change::default().set_node(Node { suspect: String::new(), ..node.clone() }))
        });
        if let Err(e) = cleared.await {
            tracing::warn!("this node cannot report that it lives: {e}");
        }
    }
    let members_since = if map.nodes == before.map.nodes { before.members_since } else { Instant::now() };
    publish.send_replace(Seen { map: Arc::new(map), members_since });
    Ok(())
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
    if PoolWatch::new(cluster.clone()).look(Duration::ZERO).await.is_ok_and(|pool| pool.is_some()) {
        let why = format!(
            "there is a pool and no cluster; make the pool the first shard of a cluster with 'forebay cluster create \
             --from {name}'"
        );
        return Err(ClusterError::Refused(why));
    }
    match maps.create(name, identity, &new_shards(name, DEFAULT_SHARDS, None)).await {
        Ok(()) => tracing::info!("created the cluster with {DEFAULT_SHARDS} shards"),
        // Another node was faster.
        Err(ClusterError::Exists(_)) => {}
        Err(e) => return Err(e),
    }
    Ok(())
}

/// Makes this node a member, or tells the others that it has started again.
async fn join(maps: &Maps, config: &NodeConfig, id: &str, process: &str) -> Result<Map, ClusterError> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = config.name.clone().unwrap_or_else(|| host.trim().to_owned());
    let address = config.address.map_or_else(String::new, |address| address.to_string());
    maps.change(|map| {
        if map.node_named(&name).is_some_and(|other| other.id != id) {
            return Err(ClusterError::Refused(format!(
                "another node of the cluster is named '{name}'; give this one another name with --node-name, or remove the \
                 other one with 'forebay node rm {name}'"
            )));
        }
        let known = map.node_with_id(id);
        let next = map.nodes.keys().next_back().map_or(1, |last| last.saturating_add(1));
        Ok(Change::default().set_node(Node {
            number: known.map_or(next, |node| node.number),
            id: id.to_owned(),
            name: name.clone(),
            address: address.clone(),
            weight: known.map_or(1.0, |node| node.weight),
            state: known.map_or(NodeState::Up, |node| node.state),
            process: process.to_owned(),
            suspect: String::new(),
        }))
    })
    .await
}

/// The identity of the node, which its first start creates.
fn identity(data: &Path) -> std::io::Result<String> {
    std::fs::create_dir_all(data)?;
    let path = data.join(ID_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    let (id, new) = (new_identity()?, data.join(format!("{ID_FILE}.new")));
    let mut file = std::fs::File::create(&new)?;
    writeln!(file, "{id}")?;
    file.sync_all()?;
    std::fs::rename(&new, &path)?;
    std::fs::File::open(data)?.sync_all()?;
    Ok(id)
}

/// A new identity: 128 random bits as text.
pub(crate) fn new_identity() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn print_ready(config: &NodeConfig, name: &str, json: bool) {
    let line = match json {
        true => json!({ "ready": true, "cluster": config.cluster.to_string(), "node": name }).to_string(),
        false => format!("forebay is ready: node {name} of the cluster {}", config.cluster),
    };
    let mut out = std::io::stdout().lock();
    // A closed standard output is not an error.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
