//! A Forebay server, started for the run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use super::ceph::Cluster;
use super::{Act, Place, StoreOps, Surroundings, System, TargetError, Transport, Wanted, disk_name};
use crate::ats::servers::portal;
use crate::bench::servers::{Forebay, ForebayConfig, version_of};
use crate::bench::workdir::WorkDir;
use crate::device::Endpoint;
use crate::iscsi::Address;
use crate::nbd::Target;
use crate::scenario::Action;
use crate::vdi::counters::Counters;

const IQN: &str = "iqn.2026-01.org.example:xray";

/// See the module. Fields drop in order: the server ends before its pool.
pub(super) struct ForebaySystem {
    /// `None` while it is killed.
    server: Option<Forebay>,
    cluster: Option<Cluster>,
    dir: WorkDir,
    binary: PathBuf,
    config: ForebayConfig,
    transport: Transport,
    /// Address of NBD over TCP, or of iSCSI.
    address: String,
    version: String,
    /// The names of the disks of each kind.
    disks: BTreeMap<String, Vec<String>>,
    luns: Vec<String>,
}

impl ForebaySystem {
    /// Starts it on an empty pool.
    pub fn start(
        around: &Surroundings,
        transport: Transport,
        rados: bool,
        cache: u64,
        settings: &str,
    ) -> Result<ForebaySystem, TargetError> {
        if !around.forebay.is_file() {
            let what = format!(
                "{} does not exist: build forebay-server, or give --forebay",
                around.forebay.display()
            );
            return Err(TargetError::Unavailable(what));
        }
        let cluster = if rados { Some(Cluster::start(around)?) } else { None };
        let dir = WorkDir::create(&around.parent)?;
        let address = portal()?;
        let mut config = ForebayConfig::new("forebay", cache).with(settings);
        match transport {
            Transport::Unix => {}
            Transport::Tcp => config.options.extend(["--nbd".to_owned(), address.clone()]),
            Transport::Iscsi => config.options.extend(["--iscsi".to_owned(), address.clone()]),
        }
        if let Some(cluster) = &cluster {
            let conf = cluster.conf().display().to_string();
            config.options.extend(["--pool".into(), "rados:test/xray".into(), "--ceph-conf".into(), conf]);
        }
        let server = Forebay::start(&dir, &around.forebay, &config)?;
        if transport == Transport::Iscsi {
            server.cli(&["target", "create", IQN, "--open"])?;
        }
        let version = version_of(&around.forebay)?;
        Ok(ForebaySystem {
            server: Some(server),
            cluster,
            dir,
            binary: around.forebay.clone(),
            config,
            transport,
            address,
            version,
            disks: BTreeMap::new(),
            luns: Vec::new(),
        })
    }

    fn server(&mut self) -> Result<&mut Forebay, TargetError> {
        self.server.as_mut().ok_or(TargetError::Unsupported("this event while the server is killed"))
    }

    fn add(&mut self, kind: &str, names: Vec<String>) -> Result<(), TargetError> {
        if self.transport == Transport::Iscsi {
            for name in &names {
                let lun = self.luns.len().to_string();
                self.server()?.cli(&["lun", "map", IQN, name, "--lun", &lun, "--write-back"])?;
                self.luns.push(name.clone());
            }
        }
        self.disks.insert(kind.to_owned(), names);
        Ok(())
    }

    fn boot(&mut self) -> Result<(), TargetError> {
        self.server = Some(Forebay::start(&self.dir, &self.binary, &self.config)?);
        Ok(())
    }

    fn cluster(&self) -> Result<&Cluster, TargetError> {
        self.cluster.as_ref().ok_or(TargetError::Unsupported("an event of a Ceph cluster"))
    }

    fn clone_disk(&mut self, origin: &str, name: &str, count: u32) -> Result<Vec<String>, TargetError> {
        let origin = self.first(origin)?;
        let count = count.to_string();
        let made = self.server()?.cli(&["volume", "clone", &origin, name, "--count", &count])?;
        let name = |disk: &Value| Some(disk.get("name")?.as_str()?.to_owned());
        Ok(match made.as_array() {
            Some(disks) => disks.iter().filter_map(name).collect(),
            None => name(&made).into_iter().collect(),
        })
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
        action != Action::OsdKill || self.cluster.is_some()
    }

    fn pids(&self) -> Vec<u32> {
        self.server.iter().map(|s| s.server.process.id()).collect()
    }

    fn create(&mut self, disks: &[Wanted]) -> Result<(), TargetError> {
        for disk in disks {
            let names: Vec<String> = (0..disk.count).map(|n| disk_name(&disk.kind, n)).collect();
            for name in &names {
                self.server()?.cli(&["volume", "create", name, "--size", &disk.size.to_string()])?;
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
        let endpoint = match self.transport {
            Transport::Unix => Endpoint::Nbd(Target::Unix(self.dir.socket(self.config.name)), name.clone()),
            Transport::Tcp => Endpoint::Nbd(Target::Tcp(self.address.clone()), name.clone()),
            Transport::Iscsi => {
                let lun = self.luns.iter().position(|n| n == name).and_then(|n| u8::try_from(n).ok());
                let lun = lun.ok_or(TargetError::Unsupported("a unit above 255"))?;
                Endpoint::Iscsi(Address { portal: self.address.clone(), target: IQN.to_owned(), lun })
            }
        };
        Ok(Place { endpoint, base: 0 })
    }

    fn act(&mut self, act: &Act) -> Result<(), TargetError> {
        match act {
            Act::Snapshot(kind, name) => {
                for disk in self.disks.get(kind).cloned().unwrap_or_default() {
                    self.server()?.cli(&["snapshot", "create", &disk, name])?;
                }
            }
            Act::Clone(origin, name, count) => drop(self.clone_disk(origin, name, *count)?),
            Act::Kill => {
                self.server()?.server.process.kill()?;
                self.server = None;
            }
            Act::Start => self.boot()?,
            Act::Pause => self.server()?.server.process.pause()?,
            Act::Continue => self.server()?.server.process.resume()?,
            Act::Restart => {
                self.server()?.server.process.stop()?;
                self.server = None;
                self.boot()?;
            }
            Act::Upgrade => self.server()?.upgrade()?,
            Act::OsdKill(n) => self.cluster()?.osd("kill-osd", *n)?,
            Act::OsdStart(n) => self.cluster()?.osd("start-osd", *n)?,
        }
        Ok(())
    }

    fn store(&self) -> Option<StoreOps> {
        let c = Counters::now(self.server.as_ref()?).ok()?;
        Some(StoreOps {
            guest_ops: c.guest_ops,
            read_ops: c.read_ops,
            write_ops: c.write_ops,
            read_bytes: c.read_bytes,
            write_bytes: c.write_bytes,
            sync_ops: c.sync_ops,
        })
    }
}
