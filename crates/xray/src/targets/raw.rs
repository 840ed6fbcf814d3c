//! Servers of raw files: `nbdkit` and `tgtd`.

use std::collections::BTreeMap;

use super::servers::{Process, Server, Tgtd, Unit, WorkDir, nbdkit_files, portal, program, version};
use super::{Place, Surroundings, System, TargetError, Wanted, disk_name, empty_file};
use crate::error::During;
use crate::scenario::Action;

enum Running {
    Nbdkit(Server),
    Tgtd(Tgtd),
}

impl Running {
    fn process(&mut self) -> &mut Process {
        match self {
            Running::Nbdkit(server) => &mut server.process,
            Running::Tgtd(tgtd) => &mut tgtd.process,
        }
    }
}

/// A target of raw files; see the module documentation. Its fields drop in order: the server, then the data.
pub(super) struct RawSystem {
    /// The server; `None` before the disks exist, and while it is killed.
    server: Option<Running>,
    dir: WorkDir,
    version: String,
    /// The portal of `tgtd`; `None` for `nbdkit`.
    portal: Option<String>,
    /// The disks of each kind, by their numbers in `files`.
    disks: BTreeMap<String, Vec<usize>>,
    files: Vec<String>,
}

impl RawSystem {
    /// Starts `nbdkit` on raw files.
    pub fn nbdkit(around: &Surroundings) -> Result<RawSystem, TargetError> {
        RawSystem::new(around, version("nbdkit", "nbdkit")?, None)
    }

    /// Starts `tgtd` on raw files.
    pub fn tgtd(around: &Surroundings) -> Result<RawSystem, TargetError> {
        if program("tgtd").is_none() {
            let what = "tgtd is not installed: run apt-get install tgt".to_owned();
            return Err(TargetError::Unavailable(what));
        }
        RawSystem::new(around, format!("tgtd {}", version("tgtd", "tgt")?), Some(portal()?))
    }

    fn new(around: &Surroundings, version: String, portal: Option<String>) -> Result<RawSystem, TargetError> {
        let dir = WorkDir::create(&around.parent)?;
        let files = dir.data("disks");
        std::fs::create_dir(&files).during(|| format!("cannot create {}", files.display()))?;
        Ok(RawSystem { server: None, dir, version, portal, disks: BTreeMap::new(), files: Vec::new() })
    }
}

impl System for RawSystem {
    fn version(&self) -> &str {
        &self.version
    }

    fn supports(&self, action: Action) -> bool {
        let of_both = matches!(action, Action::Kill | Action::Pause | Action::Restart | Action::Fill);
        // `tgtd` 1.0 has no COMPARE AND WRITE.
        of_both || self.portal.is_some() && action == Action::Reserve
    }

    fn servers(&mut self) -> Vec<&mut Process> {
        self.server.as_mut().map(Running::process).into_iter().collect()
    }

    fn start(&mut self) -> Result<(), TargetError> {
        let files = self.dir.data("disks");
        let server = match &self.portal {
            None => Running::Nbdkit(nbdkit_files(&self.dir, &files)?),
            Some(portal) => {
                let unit =
                    |(name, lun): (&String, u8)| Unit { lun, file: files.join(name), write_cache: true };
                let units: Vec<Unit> = self.files.iter().zip(1..=u8::MAX).map(unit).collect();
                if units.len() < self.files.len() {
                    return Err(TargetError::Unsupported("more than 255 disks"));
                }
                Running::Tgtd(Tgtd::start(&self.dir, portal, &units)?)
            }
        };
        self.server = Some(server);
        Ok(())
    }

    fn forget(&mut self) {
        self.server = None;
    }

    fn create(&mut self, disks: &[Wanted]) -> Result<(), TargetError> {
        for disk in disks {
            for n in 0..disk.count {
                let name = disk_name(&disk.kind, n);
                empty_file(&self.dir.data("disks").join(&name), disk.size)?;
                self.disks.entry(disk.kind.clone()).or_default().push(self.files.len());
                self.files.push(name);
            }
        }
        self.start()
    }

    fn clones(&mut self, _origin: &str, _kind: &str, _count: u32) -> Result<(), TargetError> {
        Err(TargetError::Unsupported("a clone"))
    }

    fn place(&self, kind: &str, number: u32) -> Result<Place, TargetError> {
        let index = self.disks.get(kind).and_then(|d| d.get(number as usize));
        let index = *index.ok_or(TargetError::Unsupported("a disk of this kind"))?;
        let endpoint = match &self.server {
            Some(Running::Nbdkit(server)) => server.disk(&self.files[index]).endpoint,
            Some(Running::Tgtd(tgtd)) => {
                let lun = u8::try_from(index + 1);
                tgtd.disk(lun.map_err(|_| TargetError::Unsupported("more than 255 disks"))?).endpoint
            }
            None => return Err(TargetError::Unsupported("a disk while the server is killed")),
        };
        Ok(Place::of(endpoint))
    }
}
