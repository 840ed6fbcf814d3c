//! Forebay: a server, or a pair of which one serves and the other one stands by, started for the run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::ceph::Cluster;
use super::node::Node;
use super::servers::{Forebay, Process, StoreOps, version_of};
use super::{Act, ForebayKind, Place, Surroundings, System, TargetError, Transport, Wanted, disk_name};
use crate::device::Endpoint;
use crate::iscsi::Address;
use crate::nbd::Target;
use crate::nvme::Namespace;
use crate::scenario::Action;

const IQN: &str = "iqn.2026-01.org.example:xray";
/// The NVMe name of the target.
const NQN: &str = "nqn.2026-01.org.example:xray";
const NO_CLUSTER: TargetError = TargetError::Unsupported("an event of a Ceph cluster");

/// A Forebay target; see the module documentation. Its fields drop in order: the servers end before their
/// pool.
pub(super) struct ForebaySystem {
    /// The nodes: one, or a pair.
    nodes: Vec<Node>,
    /// The node that serves.
    serving: usize,
    cluster: Option<Cluster>,
    binary: PathBuf,
    transport: Transport,
    version: String,
    /// The names of the disks of each kind.
    disks: BTreeMap<String, Vec<String>>,
    luns: Vec<String>,
}

impl ForebaySystem {
    /// Starts the target on an empty pool.
    pub fn start(around: &Surroundings, kind: &ForebayKind) -> Result<ForebaySystem, TargetError> {
        if !around.forebay.is_file() {
            let what = format!(
                "{} does not exist: build forebay-server, or give --forebay",
                around.forebay.display()
            );
            return Err(TargetError::Unavailable(what));
        }
        let version = version_of(&around.forebay)?;
        let cluster = if kind.rados { Some(Cluster::start(around)?) } else { None };
        let node = |number| Node::new(around, kind, cluster.as_ref(), number);
        let nodes: Vec<Node> = (0..kind.nodes.max(1)).map(node).collect::<Result<_, _>>()?;
        let mut system = ForebaySystem {
            nodes,
            serving: 0,
            cluster,
            binary: around.forebay.clone(),
            transport: kind.transport,
            version: if kind.nodes > 1 { format!("{version}, {} servers", kind.nodes) } else { version },
            disks: BTreeMap::new(),
            luns: Vec::new(),
        };
        system.start()?;
        if system.transport.has_targets() {
            system.server()?.cli(&["target", "create", IQN, "--open"])?;
        }
        for number in 1..system.nodes.len() {
            system.stand_by(number)?;
        }
        Ok(system)
    }

    /// The server that has the pool.
    fn server(&mut self) -> Result<&mut Forebay, TargetError> {
        self.nodes[self.serving].running()
    }

    /// Starts the server of a node that does not serve.
    fn stand_by(&mut self, number: usize) -> Result<String, TargetError> {
        let cluster = self.cluster.as_ref().ok_or(NO_CLUSTER)?;
        self.nodes[number].stand_by(&self.binary, cluster)
    }

    /// Number of the node that does not serve, in a target with two nodes.
    fn other(&self) -> Result<usize, TargetError> {
        match self.nodes.len() {
            2 => Ok(1 - self.serving),
            _ => Err(TargetError::Unsupported("an event of a second node")),
        }
    }

    /// Ends the node that serves; the other one takes the pool over.
    fn kill_node(&mut self) -> Result<(), TargetError> {
        let other = self.other()?;
        self.nodes[other].running()?;
        self.server()?.server.process.kill()?;
        self.nodes[self.serving].server = None;
        self.serving = other;
        Ok(self.server()?.wait_ready()?)
    }

    fn start_node(&mut self) -> Result<(), TargetError> {
        let other = self.other()?;
        if self.nodes[other].server.is_some() {
            return Err(TargetError::Unsupported("the start of a node that runs"));
        }
        self.stand_by(other).map(drop)
    }

    /// Moves the pool to the other node; the former one stands by.
    fn hand_over(&mut self) -> Result<(), TargetError> {
        let other = self.other()?;
        let cluster = self.cluster.as_ref().ok_or(NO_CLUSTER)?;
        let heir = self.nodes[other].wait_standby(&self.binary, cluster)?;
        self.server()?.cli(&["pool", "handover", "--to", &heir])?;
        self.serving = other;
        Ok(self.server()?.wait_ready()?)
    }

    /// Replaces the process that stands by, hands the pool over to it, and waits until the former owner,
    /// which executes its program again, stands by.
    fn rolling_upgrade(&mut self) -> Result<(), TargetError> {
        let (first, other) = (self.serving, self.other()?);
        self.nodes[other].running()?.server.process.stop()?;
        self.nodes[other].server = None;
        self.stand_by(other)?;
        self.hand_over()?;
        let cluster = self.cluster.as_ref().ok_or(NO_CLUSTER)?;
        self.nodes[first].wait_standby(&self.binary, cluster).map(drop)
    }

    fn endpoint(&self, node: &Node, name: &str) -> Result<Endpoint, TargetError> {
        Ok(match self.transport {
            Transport::Unix => Endpoint::Nbd(Target::Unix(node.dir.socket("forebay")), name.to_owned()),
            Transport::Tcp => Endpoint::Nbd(Target::Tcp(node.address.clone()), name.to_owned()),
            Transport::Iscsi | Transport::Nvme => {
                let lun = self.luns.iter().position(|n| n == name).and_then(|n| u8::try_from(n).ok());
                let lun = lun.ok_or(TargetError::Unsupported("a unit above 255"))?;
                if self.transport == Transport::Nvme {
                    let (portal, subsystem) = (node.address.clone(), NQN.to_owned());
                    return Ok(Endpoint::Nvme(Namespace { portal, subsystem, number: u32::from(lun) + 1 }));
                }
                Endpoint::Iscsi(Address { portal: node.address.clone(), target: IQN.to_owned(), lun })
            }
        })
    }

    fn add(&mut self, kind: &str, names: Vec<String>) -> Result<(), TargetError> {
        if self.transport.has_targets() {
            for name in &names {
                let lun = self.luns.len().to_string();
                self.server()?.cli(&["lun", "map", IQN, name, "--lun", &lun, "--write-back"])?;
                self.luns.push(name.clone());
            }
        }
        self.disks.insert(kind.to_owned(), names);
        Ok(())
    }

    fn cluster(&self) -> Result<&Cluster, TargetError> {
        self.cluster.as_ref().ok_or(NO_CLUSTER)
    }

    fn clone_disk(&mut self, origin: &str, name: &str, count: u32) -> Result<Vec<String>, TargetError> {
        let origin = self.first(origin)?;
        Ok(self.server()?.clone_disks(&origin, name, count, &[])?)
    }

    fn first(&self, kind: &str) -> Result<String, TargetError> {
        let name = self.disks.get(kind).and_then(|names| names.first());
        name.cloned().ok_or(TargetError::Unsupported("a disk of this kind"))
    }
}

impl System for ForebaySystem {
    fn version(&self) -> &str {
        &self.version
    }

    fn supports(&self, action: Action) -> bool {
        let is_pair = self.nodes.len() > 1;
        match action {
            Action::OsdKill => self.cluster.is_some(),
            Action::NodeKill | Action::NodeStart | Action::Handover | Action::RollingUpgrade => is_pair,
            // Another node takes over: that is `NodeKill`.
            Action::Kill | Action::Pause | Action::Restart => !is_pair,
            Action::Reserve | Action::CompareAndWrite => self.transport == Transport::Iscsi,
            Action::Snapshot | Action::Clone | Action::Upgrade | Action::Fill => true,
        }
    }

    fn servers(&mut self) -> Vec<&mut Process> {
        let servers = self.nodes.iter_mut().filter_map(|n| n.server.as_mut());
        servers.map(|s| &mut s.server.process).collect()
    }

    fn start(&mut self) -> Result<(), TargetError> {
        self.nodes[self.serving].start(&self.binary)
    }

    fn forget(&mut self) {
        self.nodes[self.serving].server = None;
    }

    fn create(&mut self, disks: &[Wanted]) -> Result<(), TargetError> {
        for disk in disks {
            let names: Vec<String> = (0..disk.count).map(|n| disk_name(&disk.kind, n)).collect();
            for name in &names {
                self.server()?.create(name, disk.size)?;
            }
            self.add(&disk.kind, names)?;
        }
        Ok(())
    }

    fn clones(&mut self, origin: &str, kind: &str, count: u32) -> Result<(), TargetError> {
        let names = self.clone_disk(origin, kind, count)?;
        self.add(kind, names)
    }

    fn place(&self, kind: &str, number: u32) -> Result<Place, TargetError> {
        let names = self.disks.get(kind);
        let name = names.and_then(|names| names.get(number as usize));
        let name = name.ok_or(TargetError::Unsupported("a disk of this kind"))?;
        let (before, serving_on) = self.nodes.split_at(self.serving);
        let mut endpoints = serving_on.iter().chain(before).map(|node| self.endpoint(node, name));
        let first = endpoints.next().ok_or(TargetError::Unsupported("a disk without a server"))??;
        Ok(Place { others: endpoints.collect::<Result<_, _>>()?, ..Place::of(first) })
    }

    fn special(&mut self, act: &Act) -> Result<(), TargetError> {
        match act {
            Act::Snapshot(kind, name) => {
                for disk in self.disks.get(kind).cloned().unwrap_or_default() {
                    self.server()?.cli(&["snapshot", "create", &disk, name])?;
                }
            }
            Act::Clone(origin, name, count) => drop(self.clone_disk(origin, name, *count)?),
            Act::Upgrade => self.server()?.upgrade()?,
            Act::OsdKill(n) => self.cluster()?.osd("kill-osd", *n)?,
            Act::OsdStart(n) => self.cluster()?.osd("start-osd", *n)?,
            Act::NodeKill => self.kill_node()?,
            Act::NodeStart => self.start_node()?,
            Act::Handover => self.hand_over()?,
            Act::RollingUpgrade => self.rolling_upgrade()?,
            _ => return Err(TargetError::Unsupported("this event")),
        }
        Ok(())
    }

    fn store(&self) -> Option<StoreOps> {
        StoreOps::of(&self.nodes[self.serving].server.as_ref()?.stats().ok()?).ok()
    }
}
