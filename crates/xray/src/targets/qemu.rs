//! `qemu-nbd`, one server for each disk: on qcow2 files, or on images of RBD by librbd.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::Command;

use super::ceph::Cluster;
use super::servers::{Process, Server, WorkDir, run, serve_by_qemu, version};
use super::{Act, Place, Surroundings, System, TargetError, Wanted, disk_name};
use crate::device::Endpoint;
use crate::scenario::Action;

/// A disk and its server, while it runs.
struct Export {
    name: String,
    server: Option<Server>,
    /// Whether the disk is the origin of clones, which must not change, and whose image a server would lock.
    frozen: bool,
}

/// A target of `qemu-nbd` servers; see the module documentation. Its fields drop in order: the servers, then
/// the data.
pub(super) struct QemuSystem {
    exports: BTreeMap<String, Vec<Export>>,
    cluster: Option<Cluster>,
    dir: WorkDir,
    version: String,
}

impl QemuSystem {
    /// Makes a target whose disks are qcow2 files.
    pub fn qcow2(around: &Surroundings) -> Result<QemuSystem, TargetError> {
        let version = version("qemu-nbd", "qemu-utils")?;
        Ok(QemuSystem {
            exports: BTreeMap::new(),
            cluster: None,
            dir: WorkDir::create(&around.parent)?,
            version,
        })
    }

    /// Makes a target whose disks are images of RBD.
    pub fn librbd(around: &Surroundings) -> Result<QemuSystem, TargetError> {
        let version = format!("librbd by {}", version("qemu-nbd", "qemu-utils")?);
        let cluster = Some(Cluster::start(around)?);
        Ok(QemuSystem { exports: BTreeMap::new(), cluster, dir: WorkDir::create(&around.parent)?, version })
    }

    /// Format and address of a disk.
    fn image(&self, name: &str) -> (&'static str, OsString) {
        match &self.cluster {
            None => ("qcow2", self.dir.data(&format!("{name}.qcow2")).into_os_string()),
            Some(c) => ("raw", format!("rbd:test/{name}:conf={}", c.conf().display()).into()),
        }
    }

    fn serve(&self, name: &str) -> Result<Server, TargetError> {
        let (format, image) = self.image(name);
        let label = if self.cluster.is_some() { "librbd" } else { "qemu-nbd" };
        Ok(serve_by_qemu(&self.dir, label, name, format, &image)?)
    }

    fn rbd(&self, args: &[&str]) -> Result<(), TargetError> {
        let Some(cluster) = &self.cluster else { return Err(TargetError::Unsupported("a command of RBD")) };
        let conf = cluster.conf();
        Ok(run(Command::new("rbd").arg("--conf").arg(conf).args(args).current_dir(cluster.dir()))
            .map(drop)?)
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Export> {
        self.exports.values_mut().flatten()
    }

    /// Makes a clone that is not served yet. The origin is not served any more: a server locks its image.
    fn clone_image(&mut self, origin: &str, name: &str) -> Result<(), TargetError> {
        let first = self.exports.get_mut(origin).and_then(|e| e.first_mut());
        let first = first.ok_or(TargetError::Unsupported("a disk of this kind"))?;
        if let Some(mut server) = first.server.take() {
            server.process.stop()?;
        }
        first.frozen = true;
        let origin = first.name.clone();
        if self.cluster.is_some() {
            let snapshot = format!("test/{origin}@base");
            // From the second clone on, the snapshot exists.
            let _ = self.rbd(&["snap", "create", "--no-progress", &snapshot]);
            let _ = self.rbd(&["snap", "protect", &snapshot]);
            return self.rbd(&["clone", &snapshot, &format!("test/{name}")]);
        }
        let mut command = Command::new("qemu-img");
        command.args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"]);
        command.arg(self.dir.data(&format!("{origin}.qcow2"))).arg(self.dir.data(&format!("{name}.qcow2")));
        Ok(run(&mut command).map(drop)?)
    }

    fn add(&mut self, kind: &str, names: Vec<String>) -> Result<(), TargetError> {
        let exports = names.into_iter().map(|name| Export { name, server: None, frozen: false }).collect();
        self.exports.insert(kind.to_owned(), exports);
        self.start()
    }
}

impl System for QemuSystem {
    fn version(&self) -> &str {
        &self.version
    }

    fn supports(&self, action: Action) -> bool {
        match action {
            Action::Clone | Action::Kill | Action::Pause | Action::Restart | Action::Fill => true,
            Action::Snapshot | Action::OsdKill | Action::NodeKill | Action::NodeStart => {
                self.cluster.is_some()
            }
            Action::Upgrade
            | Action::Handover
            | Action::RollingUpgrade
            | Action::Reserve
            | Action::CompareAndWrite => false,
        }
    }

    fn servers(&mut self) -> Vec<&mut Process> {
        self.all().filter_map(|e| Some(&mut e.server.as_mut()?.process)).collect()
    }

    fn start(&mut self) -> Result<(), TargetError> {
        let exports = self.exports.values().flatten().filter(|e| e.server.is_none() && !e.frozen);
        let names: Vec<String> = exports.map(|e| e.name.clone()).collect();
        for name in names {
            let server = self.serve(&name)?;
            if let Some(export) = self.all().find(|e| e.name == name) {
                export.server = Some(server);
            }
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.all().for_each(|export| export.server = None);
    }

    fn create(&mut self, disks: &[Wanted]) -> Result<(), TargetError> {
        for disk in disks {
            let names: Vec<String> = (0..disk.count).map(|n| disk_name(&disk.kind, n)).collect();
            for name in &names {
                if self.cluster.is_some() {
                    self.rbd(&["create", "--size", &format!("{}B", disk.size), &format!("test/{name}")])?;
                } else {
                    let mut command = Command::new("qemu-img");
                    command.args(["create", "-q", "-f", "qcow2"]);
                    command.arg(self.dir.data(&format!("{name}.qcow2"))).arg(disk.size.to_string());
                    run(&mut command)?;
                }
            }
            self.add(&disk.kind, names)?;
        }
        Ok(())
    }

    fn clones(&mut self, origin: &str, kind: &str, count: u32) -> Result<(), TargetError> {
        let names: Vec<String> = (0..count).map(|n| disk_name(kind, n)).collect();
        names.iter().try_for_each(|name| self.clone_image(origin, name))?;
        self.add(kind, names)
    }

    fn place(&self, kind: &str, number: u32) -> Result<Place, TargetError> {
        let export = self.exports.get(kind).and_then(|e| e.get(number as usize));
        let export = export.ok_or(TargetError::Unsupported("a disk of this kind"))?;
        let target = crate::nbd::Target::Unix(self.dir.socket(&export.name));
        Ok(Place::of(Endpoint::Nbd(target, String::new())))
    }

    fn special(&mut self, act: &Act) -> Result<(), TargetError> {
        match act {
            Act::Snapshot(kind, name) => {
                let disks: Vec<String> =
                    self.exports.get(kind).into_iter().flatten().map(|e| e.name.clone()).collect();
                for disk in disks {
                    self.rbd(&["snap", "create", "--no-progress", &format!("test/{disk}@{name}")])?;
                }
            }
            Act::Clone(origin, name, count) => {
                for n in 0..*count {
                    self.clone_image(origin, &disk_name(name, n))?;
                }
            }
            // The clients of the cluster run again at once, as on another host whose manager has noticed
            // the failure without delay: there is no such manager here, so this is the best case.
            Act::NodeKill => {
                self.act(&Act::Kill)?;
                self.start()?;
            }
            Act::NodeStart => {}
            Act::OsdKill(n) | Act::OsdStart(n) => {
                let what = if matches!(act, Act::OsdKill(_)) { "kill-osd" } else { "start-osd" };
                self.cluster.as_ref().ok_or(TargetError::Unsupported("an OSD"))?.osd(what, *n)?;
            }
            _ => return Err(TargetError::Unsupported("this event")),
        }
        Ok(())
    }
}
