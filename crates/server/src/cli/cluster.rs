//! `forebay cluster` and `forebay node`: the nodes and shards of a cluster. The commands read and change the
//! objects of the cluster in Ceph; no node has to run.

use std::collections::BTreeMap;
use std::net::IpAddr;

use clap::{Args, Subcommand};
use forebay_api::{ClusterImageState, ClusterImageView, ClusterView, NodeStateView, NodeView};
use forebay_cluster::ClusterError;
use forebay_cluster::images::Images;
use forebay_cluster::map::{Change, MAX_SHARDS, Map, Maps, Node, NodeState, Shard, new_shards};
use forebay_store::StoreError;
use forebay_store::rados::{
    Membership, PoolConnection, PoolWatch, RadosAddress, RadosOptions, Sight, ownership,
};

use forebay_text::Size;

use super::args::CephArgs;
use super::{CliError, output};
use crate::config::{ClusterFlags, rados_options};
use crate::node::{self, DEFAULT_SHARDS, NodeError};

/// The options of `serve` for a node of a cluster.
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// Join this cluster as a node; the first node creates the cluster
    #[arg(long, value_name = "rados:POOL/NAME", group = "place", conflicts_with_all = ["pool", "standby"])]
    pub cluster: Option<RadosAddress>,
    /// Name of the node [default: the name of the host]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Address at which the shards of the node serve NBD and iSCSI to other hosts [default: none]
    #[arg(long, value_name = "IP")]
    pub node_address: Option<IpAddr>,
    /// Seconds without a change of the membership before shards move to their homes [default: 60]
    #[arg(long, value_name = "S")]
    pub settle: Option<u64>,
}

impl JoinArgs {
    pub(super) fn flags(&self) -> ClusterFlags {
        ClusterFlags {
            join: self.cluster.clone(),
            name: self.node_name.clone(),
            address: self.node_address,
            settle_s: self.settle,
        }
    }
}

/// A cluster, and how to reach it.
#[derive(Debug, Args)]
pub struct AddressArgs {
    /// The cluster
    #[arg(value_name = "rados:POOL/NAME", group = "place")]
    cluster: RadosAddress,
    /// How to reach Ceph.
    #[command(flatten)]
    ceph: CephArgs,
}

/// `forebay cluster …`
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Create a cluster, of new shards or with an existing pool as its first shard
    Create {
        /// The cluster.
        #[command(flatten)]
        address: AddressArgs,
        /// Number of shards
        #[arg(long, value_name = "N", default_value_t = DEFAULT_SHARDS, value_parser = clap::value_parser!(u32).range(1..=1024))]
        shards: u32,
        /// Existing pool in the same Ceph pool that becomes the first shard; its server must be stopped
        #[arg(long, value_name = "NAME")]
        from: Option<String>,
    },
    /// Add shards: four for each node are a good number
    Grow {
        /// The cluster.
        #[command(flatten)]
        address: AddressArgs,
        /// Number of shards afterwards
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SHARDS as u32)))]
        shards: u32,
    },
    /// Let a node own a shard for as long as it can
    Pin {
        /// The cluster.
        #[command(flatten)]
        address: AddressArgs,
        /// Number of the shard
        shard: u32,
        /// Name of the node
        #[arg(required_unless_present = "remove")]
        node: Option<String>,
        /// Let the cluster choose the node again
        #[arg(long, conflicts_with = "node")]
        remove: bool,
    },
    /// Show the nodes and the shards, and which node owns each shard; takes about three seconds
    Status {
        /// The cluster.
        #[command(flatten)]
        address: AddressArgs,
    },
}

/// `forebay node …`
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List the nodes
    #[command(alias = "ls")]
    List {
        /// The cluster.
        #[command(flatten)]
        address: AddressArgs,
    },
    /// Let a node hand over all its shards, and give it no others
    Drain {
        /// The cluster.
        #[command(flatten)]
        address: AddressArgs,
        /// Name of the node
        name: String,
        /// Give the node shards again
        #[arg(long)]
        cancel: bool,
    },
    /// Change a node's share of the shards
    Weight {
        /// The cluster.
        #[command(flatten)]
        address: AddressArgs,
        /// Name of the node
        name: String,
        /// The share, relative to other nodes: a node with 2 gets twice as many shards as one with 1
        weight: f64,
    },
    /// Remove a node that owns no shard: one that was drained, or that does not answer
    Rm {
        /// The cluster.
        #[command(flatten)]
        address: AddressArgs,
        /// Name of the node
        name: String,
    },
}

/// A cluster that is open for a command.
struct Open {
    address: RadosAddress,
    options: RadosOptions,
    cluster: std::sync::Arc<forebay_store::rados::librados::LibradosCluster>,
    maps: Maps,
}

impl Open {
    fn new(args: AddressArgs) -> Result<Open, CliError> {
        let options = rados_options(args.ceph.ceph_conf, args.ceph.ceph_user)?;
        let cluster = node::connect(&args.cluster, &options)?;
        Ok(Open { address: args.cluster, options, maps: Maps::new(cluster.clone()), cluster })
    }

    fn failed(&self, source: ClusterError) -> CliError {
        NodeError::Cluster { cluster: self.address.to_string(), source }.into()
    }

    async fn read(&self) -> Result<Map, CliError> {
        self.maps.read().await.map_err(|e| self.failed(e))
    }

    async fn change(&self, decide: impl FnMut(&Map) -> Result<Change, ClusterError>) -> Result<(), CliError> {
        self.maps.change(decide).await.map(drop).map_err(|e| self.failed(e))
    }
}

fn block_on<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(CliError::System)?.block_on(work)
}

pub(super) fn run(command: ClusterCommand, json: bool) -> Result<(), CliError> {
    match command {
        ClusterCommand::Create { address, shards, from } => {
            block_on(create(Open::new(address)?, shards, from, json))
        }
        ClusterCommand::Grow { address, shards } => block_on(grow(Open::new(address)?, shards)),
        ClusterCommand::Pin { address, shard, node, .. } => {
            block_on(pin(Open::new(address)?, shard, node.as_deref()))
        }
        ClusterCommand::Status { address } => block_on(status(Open::new(address)?, json)),
    }
}

pub(super) fn run_node(command: NodeCommand, json: bool) -> Result<(), CliError> {
    match command {
        NodeCommand::List { address } => {
            let map = block_on(async { Open::new(address)?.read().await })?;
            output::print_result(&node::nodes(&map), json, |nodes| nodes_text(nodes))
        }
        NodeCommand::Drain { address, name, cancel } => block_on(drain(Open::new(address)?, &name, cancel)),
        NodeCommand::Weight { address, name, weight } => {
            block_on(set_weight(Open::new(address)?, &name, weight))
        }
        NodeCommand::Rm { address, name } => block_on(remove(Open::new(address)?, &name)),
    }
}

async fn create(open: Open, shards: u32, from: Option<String>, json: bool) -> Result<(), CliError> {
    if let Some(from) = &from {
        let pool = RadosAddress { pool: open.address.pool.clone(), name: from.clone() };
        let options = open.options.clone();
        let found = tokio::task::spawn_blocking(move || ownership(&pool, &options)).await;
        let why = match found.map_err(|e| CliError::System(std::io::Error::other(e)))? {
            Ok(pool) if pool.alive == Some(true) => {
                format!("a server has the pool '{from}': stop the server first")
            }
            // It would take the shard, and nodes would wait for it.
            Ok(pool) if pool.standbys.iter().any(|standby| standby.alive) => {
                format!("a standby waits for the pool '{from}': stop all its servers first, and disable them")
            }
            Ok(_) => String::new(),
            Err(StoreError::Io { errno: libc::ENOENT, .. }) => {
                format!("there is no pool '{from}' in the Ceph pool '{}'", open.address.pool)
            }
            Err(source) => {
                let cluster = format!("rados:{}/{from}", open.address.pool);
                return Err(NodeError::Connect { cluster, source }.into());
            }
        };
        if !why.is_empty() {
            return Err(open.failed(ClusterError::Refused(why)));
        }
    }
    let all = new_shards(&open.address.name, shards, from.as_deref());
    let identity = node::new_identity().map_err(CliError::System)?;
    let links = node::new_links().map_err(|e| open.failed(e))?;
    open.maps.create(&open.address.name, &identity, &links, &all).await.map_err(|e| open.failed(e))?;
    if let Some(from) = from {
        enter(&open, from).await?;
    }
    output::print_result(&view(&open, &open.read().await?, None), json, |_| {
        format!(
            "created the cluster {} with {shards} shards; start nodes: forebay serve --cluster {}",
            open.address, open.address
        )
    })
}

/// Enters the cluster into the header of an existing pool, which becomes its first shard.
async fn enter(open: &Open, pool: String) -> Result<(), CliError> {
    let address = RadosAddress { pool: open.address.pool.clone(), name: pool };
    let (options, cluster, named) = (open.options.clone(), open.address.name.clone(), address.to_string());
    let entered = tokio::task::spawn_blocking(move || {
        PoolConnection::new(&address, &options, Membership::ShardOf(cluster.clone()))?.enter_cluster(&cluster)
    });
    match entered.await.map_err(|e| CliError::System(std::io::Error::other(e)))? {
        Ok(()) => Ok(()),
        Err(e) => Err(open.failed(ClusterError::Refused(format!(
            "the cluster was created, and {named} becomes its first shard when a node opens it; until then \
             other servers can open it: {e}"
        )))),
    }
}

async fn status(open: Open, json: bool) -> Result<(), CliError> {
    let map = open.read().await?;
    // All shards are observed at the same time.
    let mut looks = tokio::task::JoinSet::new();
    for shard in map.shards.values() {
        let (number, namespace) = (shard.number, open.cluster.namespace(&shard.namespace));
        looks.spawn(async move {
            let found = PoolWatch::new(namespace.ok()?).observe().await;
            Some((number, found.ok()??))
        });
    }
    let mut seen = BTreeMap::new();
    while let Some(look) = looks.join_next().await {
        seen.extend(look.ok().flatten());
    }
    let images = Images::new(open.cluster.clone()).read().await.map_err(|e| open.failed(e))?;
    let view = ClusterView { images: node::images(&images), ..view(&open, &map, Some(&seen)) };
    output::print_result(&view, json, status_text)
}

async fn grow(open: Open, shards: u32) -> Result<(), CliError> {
    let mut before = 0;
    open.change(|map| {
        let last = map.shards.keys().max().copied().unwrap_or(0);
        before = last;
        if shards < last {
            let why = format!("the cluster has {last} shards; shards cannot be removed");
            return Err(ClusterError::Refused(why));
        }
        let all = new_shards(&open.address.name, shards, None);
        Ok(all.into_iter().skip(last as usize).fold(Change::default(), Change::set_shard))
    })
    .await?;
    output::line(&match shards - before {
        0 => format!("the cluster has {shards} shards already"),
        added => format!("added {added} shards; the nodes create their pools"),
    })
}

async fn pin(open: Open, number: u32, name: Option<&str>) -> Result<(), CliError> {
    open.change(|map| {
        let shard = map.shards.get(&number).ok_or_else(|| {
            ClusterError::Refused(format!(
                "the cluster has no shard {number}, only 1 to {}",
                map.shards.len()
            ))
        })?;
        let pin = name.map(|name| find(map, name)).transpose()?.map(|node| node.number);
        Ok(Change::default().set_shard(Shard { pin, ..shard.clone() }))
    })
    .await?;
    output::line(&match name {
        Some(name) => format!(
            "shard {number} moves to the node '{name}', and stays there while the node can own shards"
        ),
        None => format!("shard {number} moves as the cluster chooses"),
    })
}

async fn set_weight(open: Open, name: &str, weight: f64) -> Result<(), CliError> {
    if !(0.01..=100.0).contains(&weight) {
        return Err(open.failed(ClusterError::Refused("a weight is a number from 0.01 to 100".to_owned())));
    }
    open.change(|map| Ok(Change::default().set_node(Node { weight, ..find(map, name)?.clone() }))).await?;
    output::line(&format!(
        "the node '{name}' has the weight {weight}; its share of the shards moves within minutes"
    ))
}

async fn drain(open: Open, name: &str, cancel: bool) -> Result<(), CliError> {
    let state = if cancel { NodeState::Up } else { NodeState::Draining };
    open.change(|map| {
        let node = find(map, name)?;
        let others = map.candidates().iter().filter(|other| other.node != node.number).count();
        if state == NodeState::Draining && others == 0 {
            let why = format!("no other node can have the shards of '{name}': start another node first");
            return Err(ClusterError::Refused(why));
        }
        Ok(Change::default().set_node(Node { state, ..node.clone() }))
    })
    .await?;
    let text = match cancel {
        true => format!("the node '{name}' gets shards again"),
        false => format!(
            "the node '{name}' hands its shards over; 'forebay cluster status {}' shows when it has none",
            open.address
        ),
    };
    output::line(&text)
}

async fn remove(open: Open, name: &str) -> Result<(), CliError> {
    // The former member has the key of the links.
    let links = node::new_links().map_err(|e| open.failed(e))?;
    open.change(|map| {
        let node = find(map, name)?;
        let owned = map.shards.values().filter(|shard| shard.owner == Some(node.number)).count();
        if owned > 0 && !node.is_suspect() {
            return Err(ClusterError::Refused(format!(
                "the node '{name}' owns {owned} shards: drain it first with 'forebay node drain', and wait until it owns none"
            )));
        }
        Ok(Change::default().remove_node(node.clone()).set_links(links.clone()))
    })
    .await?;
    output::line(&format!(
        "removed the node '{name}'. Its host still has the key of the Ceph user: replace the key, unless the host stays \
         trusted"
    ))
}

fn find<'a>(map: &'a Map, name: &str) -> Result<&'a Node, ClusterError> {
    map.node_named(name).ok_or_else(|| {
        let names: Vec<_> = map.nodes.values().map(|node| node.name.as_str()).collect();
        ClusterError::Refused(format!("no node is named '{name}'; the nodes are: {}", names.join(", ")))
    })
}

fn view(open: &Open, map: &Map, seen: Option<&BTreeMap<u32, (Sight, bool)>>) -> ClusterView {
    let state = |seen: Option<&(Sight, bool)>| match seen {
        None => "missing",
        Some((sight, _)) if sight.owner.is_none() || sight.is_free => "free",
        Some((_, false)) => "silent",
        Some((sight, true)) if sight.is_serving => "serving",
        Some(_) => "opening",
    };
    let states = seen.map(|seen| map.shards.keys().map(|shard| (*shard, state(seen.get(shard)))).collect());
    node::view(&open.address.pool, open.address.to_string(), map, &states.unwrap_or_default())
}

fn state_text(state: NodeStateView) -> &'static str {
    match state {
        NodeStateView::Up => "up",
        NodeStateView::Draining => "draining",
        NodeStateView::Suspect => "suspect",
    }
}

fn nodes_text(nodes: &[NodeView]) -> String {
    let mut t =
        output::table(&["NODE", "NUMBER", "STATE", "ADDRESS", "SHARDS", "HOME OF", "ISCSI"], &[1, 4, 5]);
    for node in nodes {
        let address = if node.address.is_empty() { "-" } else { &node.address };
        let (number, owned, homes) =
            (node.number.to_string(), node.owned.to_string(), node.homes.to_string());
        let iscsi = if node.iscsi.is_empty() { "-".to_owned() } else { node.iscsi.join(" ") };
        t.add_row([&node.name, &number, state_text(node.state), address, &owned, &homes, &iscsi]);
    }
    output::render(t)
}

fn status_text(view: &ClusterView) -> String {
    let mut t = output::table(&["SHARD", "STATE", "OWNER", "HOME", "POOL", "NBD"], &[0]);
    let text = |name: &Option<String>| name.clone().unwrap_or_else(|| "-".to_owned());
    for shard in &view.shards {
        let (number, nbd) = (shard.number.to_string(), shard.nbd.join(" "));
        let state = shard.state.as_deref().unwrap_or("-");
        t.add_row([&number, state, &text(&shard.owner), &text(&shard.home), &shard.pool, &nbd]);
    }
    let mut text = format!("{}\n{}", nodes_text(&view.nodes), output::render(t));
    if !view.images.is_empty() {
        text = format!("{text}\n{}", images_text(&view.images));
    }
    text
}

fn images_text(images: &[ClusterImageView]) -> String {
    let mut t = output::table(&["IMAGE", "STATE", "SIZE", "STORED", "SHARD", "USED BY SHARDS"], &[2, 3, 4]);
    for image in images {
        let state = match image.state {
            ClusterImageState::Publishing => "publishing",
            ClusterImageState::Live => "every shard",
            ClusterImageState::Deleting => "deleting",
        };
        let used_by: Vec<String> = image.used_by.iter().map(u32::to_string).collect();
        let (size, stored) = (Size(image.size_bytes).to_string(), Size(image.stored_bytes).to_string());
        t.add_row([&image.name, state, &size, &stored, &image.shard.to_string(), &used_by.join(" ")]);
    }
    output::render(t)
}
