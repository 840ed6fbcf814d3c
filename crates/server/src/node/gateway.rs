//! The node as a gateway: where the shards of the cluster are served, and what of them is served here.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use forebay_api::{
    ClusterImageState, ClusterImageView, ClusterView, NodeStateView, NodeView, PortalsView, ShardView,
};
use forebay_cluster::images::{Catalogue, Image, Images, Seen, State, Uuid};
use forebay_cluster::map::{Map, Node, NodeState};
use forebay_cluster::names::{Kind, Names, of_target};
use forebay_frontend::plane::ListenAddr;
use forebay_gateway::api::Cluster;
use forebay_gateway::link::{self, Identity, Local, Service};
use forebay_gateway::{BoxFuture, NbdClient, Shards, Stream};
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, watch};

use super::figures::Figures;
use super::process::directory_of;
use super::shard::Shared;
use super::until::Until;
use crate::config::SOCKET_NAME;
use crate::serve::RELAY_SOCKET;

/// Number of forwarded requests at the API of a shard at the same time: half of its connections.
const REQUESTS: usize = 32;

/// Most nodes whose addresses clients get.
const MAX_PORTALS: usize = 16;

/// The shards that this node owns, for its own clients and for those of other nodes.
pub(super) struct OwnShards {
    data: PathBuf,
    /// Places for requests at the API of each shard. The node itself, and administrators at the socket of the
    /// shard, need the others.
    requests: Mutex<BTreeMap<u32, Arc<Semaphore>>>,
}

impl OwnShards {
    pub fn new(data: PathBuf) -> OwnShards {
        OwnShards { data, requests: Mutex::default() }
    }

    /// A stream to the API of a shard. Waits for a place.
    async fn api(&self, shard: u32) -> io::Result<Stream> {
        let places =
            self.requests.lock().entry(shard).or_insert_with(|| Arc::new(Semaphore::new(REQUESTS))).clone();
        // The semaphore is never closed.
        let place = places.acquire_owned().await.map_err(io::Error::other)?;
        let stream = Box::new(self.socket(shard, SOCKET_NAME).await?);
        let end = Box::pin(async move {
            let _place = place;
            std::future::pending().await
        });
        Ok(Box::new(Until { stream, end }))
    }

    async fn socket(&self, shard: u32, name: &str) -> io::Result<UnixStream> {
        let path = directory_of(&self.data, shard).join(name);
        UnixStream::connect(path).await.map_err(|e| match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                io::Error::other(format!("shard {shard} is not served by this node"))
            }
            _ => e,
        })
    }
}

impl Local for OwnShards {
    fn open(&self, shard: u32, service: Service) -> BoxFuture<'_, io::Result<Stream>> {
        Box::pin(async move {
            match service {
                Service::Api => self.api(shard).await,
                Service::Nbd(client) => {
                    let mut stream = self.socket(shard, RELAY_SOCKET).await?;
                    stream.write_all(&client.preamble()).await?;
                    Ok(Box::new(stream) as Stream)
                }
            }
        })
    }
}

/// The gateway of a node.
pub(super) struct Gateway {
    shared: Arc<Shared>,
    names: Names,
    images: Images,
    own: Arc<OwnShards>,
    identity: watch::Receiver<Identity>,
}

impl Gateway {
    pub fn new(shared: Arc<Shared>, own: Arc<OwnShards>, identity: watch::Receiver<Identity>) -> Gateway {
        let (names, images) = (Names::new(shared.cluster.clone()), Images::new(shared.cluster.clone()));
        Gateway { shared, names, images, own, identity }
    }

    /// The figures of the node.
    pub fn figures(&self) -> &Arc<Figures> {
        &self.shared.figures
    }

    pub fn map(&self) -> Arc<Map> {
        self.shared.map.borrow().map.clone()
    }

    /// Opens a stream to a service of the present owner of a shard.
    async fn connect(&self, shard: u32, service: Service) -> io::Result<Stream> {
        let connected = match self.place_of(shard)? {
            None => self.own.open(shard, service).await,
            Some(links) => {
                let identity = self.identity.borrow().clone();
                link::connect(links, &identity, (shard, service), &self.shared.figures.links).await
            }
        };
        if connected.is_err() {
            // The shard may have another owner than the map of this node states.
            self.shared.look.notify_one();
        }
        connected
    }

    /// Completes when the shard has another owner than now in the map of this node.
    fn moved(&self, shard: u32) -> BoxFuture<'static, ()> {
        let mut map = self.shared.map.clone();
        let owner = move |map: &Map| map.shards.get(&shard).map(|shard| (shard.owner, shard.term));
        let now = owner(&map.borrow_and_update().map);
        Box::pin(async move {
            while map.changed().await.is_ok() {
                if owner(&map.borrow_and_update().map) != now {
                    return;
                }
            }
            // The node ends.
            std::future::pending::<()>().await;
        })
    }

    /// The address of the links of the owner of a shard; `None` if this node is the owner.
    fn place_of(&self, shard: u32) -> io::Result<Option<SocketAddr>> {
        let map = self.map();
        let owner = map.shards.get(&shard).and_then(|shard| shard.owner);
        let owner = owner.ok_or_else(|| io::Error::other(format!("no node has opened shard {shard} yet")))?;
        if owner == self.shared.number {
            return Ok(None);
        }
        let node = map.nodes.get(&owner);
        let node = node.ok_or_else(|| io::Error::other("its last owner is not a member any more"))?;
        let unreachable =
            |_| io::Error::other(format!("the node '{}' has no address for other nodes", node.name));
        node.links.parse().map(Some).map_err(unreachable)
    }
}

impl Shards for Gateway {
    fn locate<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Option<u32>>> {
        Box::pin(async move {
            let found = self.names.look_up(name).await.map_err(io::Error::other)?;
            Ok(found.filter(|found| found.kind != Kind::Target).map(|found| found.shard))
        })
    }

    fn names(&self) -> BoxFuture<'_, io::Result<Vec<String>>> {
        Box::pin(async move {
            let all = self.names.list().await.map_err(io::Error::other)?;
            let present = all.into_iter().filter(|name| !name.is_pending && name.kind != Kind::Target);
            let mut names: Vec<_> = present.map(|found| found.name).collect();
            names.sort();
            Ok(names)
        })
    }

    fn connect_nbd<'a>(&'a self, shard: u32, client: &'a NbdClient) -> BoxFuture<'a, io::Result<Stream>> {
        let moved = self.moved(shard);
        Box::pin(async move {
            let stream = self.connect(shard, Service::Nbd(client.clone())).await?;
            Ok(Box::new(Until { stream, end: moved }) as Stream)
        })
    }
}

impl Cluster for Gateway {
    fn connect_api(&self, shard: u32) -> BoxFuture<'_, io::Result<Stream>> {
        Box::pin(async move {
            let is_own = matches!(self.place_of(shard), Ok(None));
            let connected = self.connect(shard, Service::Api).await;
            let figures = &self.shared.figures;
            let count = match (&connected, is_own) {
                (Ok(_), true) => &figures.api_own,
                (Ok(_), false) => &figures.api_other,
                (Err(_), _) => &figures.api_failed,
            };
            count.fetch_add(1, Relaxed);
            connected
        })
    }

    fn locate_target<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Option<u32>>> {
        Box::pin(async move {
            let found = self.names.look_up(&of_target(name)).await.map_err(io::Error::other)?;
            Ok(found.map(|found| found.shard))
        })
    }

    fn locate_all<'a>(&'a self, names: &'a [&'a str]) -> BoxFuture<'a, io::Result<BTreeMap<String, u32>>> {
        Box::pin(async move {
            let found = self.names.look_up_all(names).await.map_err(io::Error::other)?;
            Ok(found.into_iter().map(|(name, found)| (name, found.shard)).collect())
        })
    }

    fn is_shared<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<bool>> {
        Box::pin(async move {
            let found = self.names.look_up(name).await.map_err(io::Error::other)?;
            if found.is_none_or(|found| found.kind != Kind::Image) {
                return Ok(false);
            }
            Ok(self.images.live(name).await.map_err(io::Error::other)?.is_some())
        })
    }

    fn images(&self) -> BoxFuture<'_, io::Result<Vec<ClusterImageView>>> {
        Box::pin(async move { Ok(images(&self.images.read().await.map_err(io::Error::other)?)) })
    }

    fn view(&self) -> ClusterView {
        view(
            &self.shared.config.cluster.pool,
            self.shared.config.cluster.to_string(),
            &self.map(),
            &BTreeMap::new(),
        )
    }

    fn shards(&self) -> Vec<u32> {
        self.map().shards.keys().copied().collect()
    }

    fn own_shards(&self) -> Vec<u32> {
        let map = self.map();
        let own = map.shards.values().filter(|shard| shard.owner == Some(self.shared.number));
        own.map(|shard| shard.number).collect()
    }

    fn portals(&self, local: bool) -> Vec<PortalsView> {
        // Clients of this host can use all listeners. The map has those for other hosts.
        let map = self.map();
        let announced = map.nodes.get(&self.shared.number).map(|node| node.nbd.clone()).unwrap_or_default();
        let is_of_host = |address: &ListenAddr| match address {
            ListenAddr::Unix(_) => true,
            ListenAddr::Tcp(text) => is_loopback(text),
        };
        let own =
            self.shared.nbd.iter().filter(|address| local && is_of_host(address)).map(ToString::to_string);
        let own = own.filter(|address| !announced.contains(address)).collect();
        portals(&map, self.shared.number, own)
    }
}

fn is_loopback(address: &str) -> bool {
    address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
}

/// Where clients connect: to the node `own`, which has these sockets for clients of its host, and to the
/// nodes after it that have addresses for other hosts.
fn portals(map: &Map, own: u32, sockets: Vec<String>) -> Vec<PortalsView> {
    let following = map.nodes.range(own..).chain(map.nodes.range(..own)).map(|(_, node)| node);
    let is_useful = |node: &&Node| {
        node.number == own || node.is_eligible() && !(node.nbd.is_empty() && node.iscsi.is_empty())
    };
    let of_node = |node: &Node| PortalsView {
        node: node.name.clone(),
        nbd: node.nbd.clone(),
        iscsi: node.iscsi.clone(),
    };
    let mut portals: Vec<_> = following.filter(is_useful).take(MAX_PORTALS).map(of_node).collect();
    if let Some(first) = portals.first_mut().filter(|_| map.nodes.contains_key(&own)) {
        first.nbd.splice(0..0, sockets);
    }
    portals
}

/// The images of a cluster for people, by name.
pub(crate) fn images(all: &Catalogue) -> Vec<ClusterImageView> {
    let image = |(uuid, seen): (&Uuid, &Seen<Image>)| ClusterImageView {
        name: seen.value.name.clone(),
        state: match seen.value.state {
            State::Publishing => ClusterImageState::Publishing,
            State::Live => ClusterImageState::Live,
            State::Deleting => ClusterImageState::Deleting,
        },
        size_bytes: seen.value.size,
        stored_bytes: seen.value.bytes,
        shard: seen.value.home,
        used_by: all.users(*uuid).map(|(shard, _)| shard).collect(),
    };
    let mut images: Vec<_> = all.images.iter().map(image).collect();
    images.sort_by(|a, b| a.name.cmp(&b.name));
    images
}

/// The nodes of a cluster for people.
pub(crate) fn nodes(map: &Map) -> Vec<NodeView> {
    // Counted once: a cluster has thousands of shards.
    let (mut homes, mut owned) = (BTreeMap::new(), BTreeMap::new());
    for shard in map.shards.values() {
        shard.home.into_iter().for_each(|home| *homes.entry(home).or_insert(0) += 1);
        shard.owner.into_iter().for_each(|owner| *owned.entry(owner).or_insert(0) += 1);
    }
    let of_node = |node: &Node| NodeView {
        number: node.number,
        name: node.name.clone(),
        address: node.address.clone(),
        iscsi: node.iscsi.clone(),
        state: match node.state {
            NodeState::Draining => NodeStateView::Draining,
            NodeState::Up if node.is_suspect() => NodeStateView::Suspect,
            NodeState::Up => NodeStateView::Up,
        },
        homes: homes.get(&node.number).copied().unwrap_or(0),
        owned: owned.get(&node.number).copied().unwrap_or(0),
    };
    map.nodes.values().map(of_node).collect()
}

/// A cluster for people. `states` are the states of the shards by number, if the pools were examined.
pub(crate) fn view(
    pool: &str,
    cluster: String,
    map: &Map,
    states: &BTreeMap<u32, &'static str>,
) -> ClusterView {
    let name = |number: Option<u32>| map.nodes.get(&number?).map(|node| node.name.clone());
    let shards = map.shards.values().map(|shard| ShardView {
        number: shard.number,
        pool: format!("rados:{pool}/{}", shard.namespace),
        home: name(shard.home),
        owner: name(shard.owner),
        state: states.get(&shard.number).map(|state| (*state).to_owned()),
        nbd: shard.nbd.clone(),
    });
    let shards = shards.collect();
    ClusterView { cluster, version: map.version, nodes: nodes(map), shards, images: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_told_the_addresses_of_nodes_that_serve_them() {
        let node = |number: u32, nbd: &[&str]| Node {
            number,
            name: format!("n{number}"),
            id: number.to_string(),
            address: String::new(),
            links: String::new(),
            iscsi: Vec::new(),
            nbd: nbd.iter().map(ToString::to_string).collect(),
            weight: 1.0,
            state: NodeState::Up,
            process: "p".to_owned(),
            suspect: String::new(),
        };
        let draining = Node { state: NodeState::Draining, ..node(3, &["10.0.0.3:1"]) };
        let suspect = Node { suspect: "p".to_owned(), ..node(4, &["10.0.0.4:1"]) };
        let nodes = [node(1, &["10.0.0.1:1"]), node(2, &[]), draining, suspect, node(5, &[])];
        let map =
            Map { nodes: nodes.into_iter().map(|node| (node.number, node)).collect(), ..Map::default() };
        let names = |own, sockets: &[&str]| -> Vec<(String, Vec<String>)> {
            let sockets = sockets.iter().map(ToString::to_string).collect();
            portals(&map, own, sockets).into_iter().map(|one| (one.node, one.nbd)).collect()
        };
        let first = ("n1".to_owned(), vec!["10.0.0.1:1".to_owned()]);
        assert_eq!(names(2, &["unix:/a"]), [("n2".to_owned(), vec!["unix:/a".to_owned()]), first.clone()]);
        assert_eq!(names(1, &[]), [first], "a node without addresses serves no other hosts");
        assert_eq!(names(3, &[])[0].0, "n3", "a node that drains forwards its clients");
    }
}
