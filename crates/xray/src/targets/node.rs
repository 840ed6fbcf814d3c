//! One server of Forebay with its directories. Two of them on one Ceph cluster are a pair: one serves the
//! pool, the other one stands by.
//!
//! Both run on this host. A server recognizes that a process of the same host has ended, and acquires the
//! pool at once; of another host it has to observe the heartbeat first. Therefore each node of a pair runs in
//! a mount namespace in which the host has another boot id, and the failure of a host is measured.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use super::ceph::Cluster;
use super::servers::{Forebay, ForebayConfig, WorkDir, portal, run};
use super::{ForebayKind, Surroundings, TargetError, Transport};
use crate::error::During;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const POOL: &str = "rados:test/xray";
/// Interval between questions to the cluster.
const ASK: Duration = Duration::from_millis(100);

/// A node of a pair; see the module documentation. Its fields drop in order: the server ends before its
/// files.
pub(super) struct Node {
    /// The server; `None` while it is killed.
    pub server: Option<Forebay>,
    pub dir: WorkDir,
    config: ForebayConfig,
    /// Address of NBD over TCP, or of iSCSI.
    pub address: String,
}

impl Node {
    /// Prepares a node; its number distinguishes it from the other node of a pair.
    pub fn new(
        around: &Surroundings,
        kind: &ForebayKind,
        cluster: Option<&Cluster>,
        number: u32,
    ) -> Result<Node, TargetError> {
        let dir = WorkDir::create(&around.parent)?;
        let address = portal()?;
        let mut config = ForebayConfig::new("forebay", kind.cache.0).with(&kind.settings);
        match kind.transport {
            Transport::Unix => {}
            Transport::Tcp => config.options.extend(["--nbd".to_owned(), address.clone()]),
            Transport::Nvme => config.options.extend(["--nvme".to_owned(), address.clone()]),
            Transport::Iscsi => config.options.extend(["--iscsi".to_owned(), address.clone()]),
        }
        if let Some(cluster) = cluster {
            let conf = cluster.conf().display().to_string();
            config.options.extend(["--pool".into(), POOL.into(), "--ceph-conf".into(), conf]);
        }
        if kind.nodes > 1 {
            config.options.push("--standby".to_owned());
            config.wrapper = other_host(&dir.data("boot"), number)?;
        }
        Ok(Node { server: None, dir, config, address })
    }

    /// Starts its server, and waits until it serves.
    pub fn start(&mut self, binary: &Path) -> Result<(), TargetError> {
        self.server = Some(Forebay::start(&self.dir, binary, &self.config)?);
        Ok(())
    }

    /// Starts the node's server next to a server that serves, and waits until it stands by. Returns its name
    /// in the pool.
    pub fn stand_by(&mut self, binary: &Path, cluster: &Cluster) -> Result<String, TargetError> {
        self.server = Some(Forebay::launch(&self.dir, binary, &self.config)?);
        self.wait_standby(binary, cluster)
    }

    /// Waits until the node's server stands by.
    pub fn wait_standby(&mut self, binary: &Path, cluster: &Cluster) -> Result<String, TargetError> {
        let process = &mut self.running()?.server.process;
        let pid = process.id();
        let mut name = None;
        process.wait_until(|| {
            name = standby(binary, cluster, pid).ok().flatten();
            if name.is_none() {
                sleep(ASK);
            }
            name.is_some()
        })?;
        name.ok_or(TargetError::Unsupported("a standby"))
    }

    /// Returns the server of the node, which must run.
    pub fn running(&mut self) -> Result<&mut Forebay, TargetError> {
        self.server.as_mut().ok_or(TargetError::Unsupported("this event while the server is killed"))
    }
}

/// `HOST:PROCESS` of a process that stands by, if it is announced.
fn standby(binary: &Path, cluster: &Cluster, pid: u32) -> Result<Option<String>, TargetError> {
    let mut command = Command::new(binary);
    command.args(["pool", "show", POOL, "--json", "--ceph-conf"]).arg(cluster.conf());
    let shown: Value = serde_json::from_slice(&run(&mut command)?.stdout).unwrap_or_default();
    let alive = shown["standbys"].as_array().into_iter().flatten().filter(|s| s["alive"] == true);
    let end = format!(", process {pid}");
    let mut names = alive.filter_map(|s| s["server"].as_str()?.strip_prefix("host ")?.strip_suffix(&end));
    Ok(names.next().map(|host| format!("{host}:{pid}")))
}

/// A program and its arguments that run a command as on a host with another boot id, which `file` contains.
fn other_host(file: &Path, number: u32) -> Result<Vec<String>, TargetError> {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        let what = "two nodes on one host need root, for a mount namespace each: use sudo";
        return Err(TargetError::Unavailable(what.to_owned()));
    }
    let id = format!("{:08x}-0000-4000-8000-{number:012x}\n", std::process::id());
    std::fs::write(file, id).during(|| format!("cannot write {}", file.display()))?;
    let script = format!("mount --bind \"$0\" {BOOT_ID}; exec \"$@\"");
    let file = file.display().to_string();
    Ok(["unshare", "--mount", "sh", "-ec", &script, &file].map(str::to_owned).to_vec())
}
