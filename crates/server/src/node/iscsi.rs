//! The iSCSI portals of a node: initiators discover the targets of all shards there, and are redirected to
//! the owner of the shard of a target.
//!
//! The owner of each shard publishes its targets and its portal in the pool of the shard, as every owner of a
//! pool in Ceph does for servers that wait for the pool (`forebay_store::rados::NoticeBoard`). The node reads
//! these notices only when an initiator needs them:
//!
//! | request | reads |
//! |---|---|
//! | discovery, and a login to a target that is not known to admit the initiator | the notices of all shards, at most once in [`Owners::pause`] |
//! | login to a known target | the notice of its shard; logins that wait for it share one read |
//!
//! A notice that has not changed costs one read of some attributes. So a node without logins reads nothing,
//! and clients that no target admits cause at most [`READS`] reads a second, whatever the number of shards.
//!
//! An initiator is redirected only if the portal of the owner accepts a connection: otherwise the shard is
//! being taken over, and the login waits.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_cluster::map::Map;
use forebay_frontend::iscsi::{
    self, ClusterPortals, ClusterTargets, Notice, PortGroups, Settings, ShardOwners,
};
use forebay_frontend::plane::{Bound, ConnectionLimits, Handle, Plane};
use forebay_frontend::targets::TargetMap;
use forebay_store::rados::NoticeBoard;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::NodeError;
use super::shard::Shared;
use crate::config::IscsiPortals;
use crate::serve::{Descriptors, ServeError, lowered};

/// Maximum number of notices that are read in a second for discoveries and unknown targets.
const READS: u32 = 200;
/// Minimum pause between two reads of the notices of all shards.
const MIN_PAUSE: Duration = Duration::from_millis(250);
/// Notices that are read at the same time.
const AT_ONCE: usize = 32;
/// Maximum time for reading one notice.
const READ: Duration = Duration::from_secs(5);
/// Maximum time in which the portal of an owner accepts a connection.
const ANSWER: Duration = Duration::from_secs(1);

/// Begins to serve the portals. They are closed when the returned handle is dropped.
pub(super) fn serve(shared: Arc<Shared>, bound: Bound, tasks: &mut JoinSet<()>) -> Result<Handle, NodeError> {
    let config = &shared.config.iscsi;
    let targets = Arc::new(ClusterTargets::default());
    let owners = Arc::new(Owners::new(shared.clone(), targets.clone()));
    let mut plane = Plane::with_bound(connections(config)?, config.memory, bound);
    let settings = Settings {
        limits: config.limits,
        chap_algorithms: &config.chap_algorithms,
        groups: Arc::new(PortGroups::new(1)),
        known: Arc::default(),
        addresses: &config.listen,
        portals: config.announced.as_deref(),
        is_shard: false,
    };
    let cluster = ClusterPortals::new(targets.clone(), owners.clone());
    iscsi::listen_for_cluster(&mut plane, cluster, &settings).map_err(ServeError::from)?;
    tasks.spawn(async move { owners.serve().await });
    tasks.spawn(follow_nodes(shared, targets));
    Ok(plane.run(1)?)
}

/// The limits on connections, lowered to the descriptors of the process.
fn connections(config: &IscsiPortals) -> Result<ConnectionLimits, NodeError> {
    Ok(lowered(config.connections, Descriptors::raise(1)?.clients / 2))
}

/// Keeps the portals of the other nodes up to date.
async fn follow_nodes(shared: Arc<Shared>, targets: Arc<ClusterTargets>) {
    let mut map = shared.map.clone();
    loop {
        targets.set_others(portals_after(&map.borrow_and_update().map, shared.number));
        if map.changed().await.is_err() {
            return;
        }
    }
}

/// The portals of all other nodes that can own shards. Each node begins with the nodes that follow it, so
/// that initiators that discover few portals know different ones.
fn portals_after(map: &Map, own: u32) -> Vec<SocketAddr> {
    let following = map.nodes.range(own.saturating_add(1)..).chain(map.nodes.range(..own));
    let eligible = following.map(|(_, node)| node).filter(|node| node.is_eligible());
    eligible.flat_map(|node| &node.iscsi).filter_map(|portal| portal.parse().ok()).collect()
}

/// What was read about one shard.
struct Board {
    notices: NoticeBoard,
    /// The last notice, if any was read.
    last: Option<Arc<Vec<u8>>>,
    /// Where the owner that published the notice serves iSCSI.
    portals: Vec<SocketAddr>,
    /// When the last look at the owner began, and what it found: the portals that accept a connection.
    looked: Option<(Instant, Option<Vec<SocketAddr>>)>,
    /// The last error, which was logged.
    error: Option<String>,
}

impl Board {
    fn new(notices: NoticeBoard) -> Board {
        Board { notices, last: None, portals: Vec::new(), looked: None, error: None }
    }

    /// Reads the notice. Returns the targets if they may have changed.
    async fn read(&mut self) -> Result<Option<TargetMap>, String> {
        let read = timeout(READ, self.notices.read_last()).await;
        let read = read.map_err(|_| "Ceph does not answer".to_owned())?.map_err(|e| e.to_string())?;
        let Some(bytes) = read else { return Ok(Some(TargetMap::new())) };
        if self.last.as_ref().is_some_and(|last| Arc::ptr_eq(last, &bytes)) {
            return Ok(None);
        }
        let Notice { portals, targets, .. } = Notice::decode(&bytes)?;
        (self.last, self.portals) = (Some(bytes), portals);
        Ok(Some(targets))
    }

    /// The portals that accept a connection.
    async fn answering(&self) -> Vec<SocketAddr> {
        let mut answering = Vec::new();
        for portal in &self.portals {
            if timeout(ANSWER, TcpStream::connect(portal)).await.is_ok_and(|connected| connected.is_ok()) {
                answering.push(*portal);
            }
        }
        answering
    }
}

type SharedBoard = Arc<tokio::sync::Mutex<Board>>;

/// The owners of all shards, as far as initiators need them.
struct Owners {
    shared: Arc<Shared>,
    targets: Arc<ClusterTargets>,
    boards: Mutex<BTreeMap<u32, SharedBoard>>,
    /// Number of requests to read all notices.
    requested: AtomicU64,
    request: Notify,
    /// The requests that were served, and whether all notices could be read.
    served: watch::Sender<(u64, bool)>,
}

impl Owners {
    fn new(shared: Arc<Shared>, targets: Arc<ClusterTargets>) -> Owners {
        Owners {
            shared,
            targets,
            boards: Mutex::default(),
            requested: AtomicU64::new(0),
            request: Notify::new(),
            served: watch::Sender::new((0, false)),
        }
    }

    /// The board of a shard; `None` if the shard is not in the map, or Ceph cannot be used.
    fn board(&self, shard: u32) -> Option<SharedBoard> {
        let mut boards = self.boards.lock();
        if let Some(board) = boards.get(&shard) {
            return Some(board.clone());
        }
        let map = self.shared.map.borrow().map.clone();
        let namespace = self.shared.cluster.namespace(&map.shards.get(&shard)?.namespace).ok()?;
        let board = Arc::new(tokio::sync::Mutex::new(Board::new(NoticeBoard::of(namespace))));
        boards.insert(shard, board.clone());
        Some(board)
    }

    /// Learns what the notice of a shard contains, and reports errors that are new. False if the notice
    /// cannot be read.
    async fn learn(targets: &ClusterTargets, shard: u32, board: &mut Board) -> bool {
        let error = match board.read().await {
            Ok(read) => {
                // With the board: an older notice never replaces a newer one.
                read.into_iter().for_each(|of_shard| targets.learn(shard, of_shard));
                None
            }
            Err(e) => Some(e),
        };
        if let Some(error) = error.as_ref().filter(|_| board.error != error) {
            tracing::warn!("the iSCSI targets of shard {shard} cannot be read: {error}");
        }
        board.error = error;
        board.error.is_none()
    }

    /// Reads all notices each time when this was requested.
    async fn serve(self: Arc<Self>) {
        loop {
            self.request.notified().await;
            // A later request is not served by this.
            let (requested, begun) = (self.requested.load(Relaxed), Instant::now());
            let is_complete = self.read_all().await;
            self.served.send_replace((requested, is_complete));
            tokio::time::sleep_until(begun + self.pause()).await;
        }
    }

    /// Pause after the beginning of a read of all notices.
    fn pause(&self) -> Duration {
        let shards = self.shared.map.borrow().map.shards.len();
        (Duration::from_secs(1) / READS * u32::try_from(shards).unwrap_or(u32::MAX)).max(MIN_PAUSE)
    }

    /// Reads all notices. False if one of them could not be read.
    async fn read_all(self: &Arc<Self>) -> bool {
        let shards: Vec<u32> = self.shared.map.borrow().map.shards.keys().copied().collect();
        let mut is_complete = true;
        for some in shards.chunks(AT_ONCE) {
            let mut reads = JoinSet::new();
            for shard in some.iter().copied() {
                let Some(board) = self.board(shard) else {
                    is_complete = false;
                    continue;
                };
                let targets = self.targets.clone();
                reads.spawn(async move { Owners::learn(&targets, shard, &mut *board.lock().await).await });
            }
            while let Some(read) = reads.join_next().await {
                is_complete &= read.unwrap_or(false);
            }
        }
        self.targets.publish();
        is_complete
    }
}

impl ShardOwners for Owners {
    fn refresh(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(async {
            let number = self.requested.fetch_add(1, Relaxed) + 1;
            self.request.notify_one();
            // The sender is in `self`.
            let mut served = self.served.subscribe();
            served.wait_for(|(served, _)| *served >= number).await.is_ok_and(|served| served.1)
        })
    }

    fn owner(&self, shard: u32) -> Pin<Box<dyn Future<Output = Option<Vec<SocketAddr>>> + Send + '_>> {
        Box::pin(async move {
            let (asked, board) = (Instant::now(), self.board(shard)?);
            let mut board = board.lock().await;
            // Logins that wait for the lock share a look that began after all of them. An older one does not
            // count: the target may have moved to another shard since, and the owner would refuse the login.
            if let Some((begun, found)) = &board.looked
                && *begun >= asked
            {
                return found.clone();
            }
            let begun = Instant::now();
            let found = match Owners::learn(&self.targets, shard, &mut board).await {
                true => Some(board.answering().await).filter(|portals| !portals.is_empty()),
                false => None,
            };
            board.looked = Some((begun, found.clone()));
            found
        })
    }
}

#[cfg(test)]
mod tests {
    use forebay_cluster::map::{Node, NodeState};

    use super::*;

    #[test]
    fn initiators_discover_the_nodes_that_follow_first() {
        let node = |number: u32, suspect: &str, iscsi: &[&str]| Node {
            number,
            id: number.to_string(),
            name: format!("n{number}"),
            address: String::new(),
            links: String::new(),
            iscsi: iscsi.iter().map(ToString::to_string).collect(),
            nbd: Vec::new(),
            weight: 1.0,
            state: NodeState::Up,
            process: "p".to_owned(),
            suspect: suspect.to_owned(),
        };
        let nodes = [
            node(1, "", &["10.0.0.1:3260", "[fd00::1]:3260"]),
            node(2, "", &["10.0.0.2:3260"]),
            node(3, "p", &["10.0.0.3:3260"]),
            node(4, "", &["?"]),
            node(5, "", &["10.0.0.5:3260"]),
        ];
        let map = Map { nodes: nodes.map(|node| (node.number, node)).into(), ..Map::default() };
        let parse =
            |portals: &[&str]| portals.iter().map(|p| p.parse().unwrap()).collect::<Vec<SocketAddr>>();
        let after_two = parse(&["10.0.0.5:3260", "10.0.0.1:3260", "[fd00::1]:3260"]);
        assert_eq!(portals_after(&map, 2), after_two, "without the node that does not answer");
        assert_eq!(portals_after(&map, 5), parse(&["10.0.0.1:3260", "[fd00::1]:3260", "10.0.0.2:3260"]));
    }
}
