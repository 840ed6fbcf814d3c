//! A disk that exists: a block device, a file, or an export or unit of a server that is not started here.
//!
//! The disks of a scenario are ranges of it, one after the other. Nothing is written to it unless it is empty
//! or the user gave permission; a block device is opened exclusively, so one that is mounted is refused.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::time::Duration;

use super::{Place, System, TargetError, Wanted};
use crate::device::{Endpoint, Needs, has_data};
use crate::error::During;
use crate::scenario::Action;

/// A disk that exists already; see the module documentation.
pub(super) struct Given {
    endpoint: Endpoint,
    version: String,
    size: u64,
    /// First byte and size of the disks of each kind, and their number.
    disks: Vec<(Wanted, u64)>,
    /// Keeps others from mounting a block device.
    _exclusive: Option<File>,
}

const PATIENCE: Duration = Duration::from_secs(10);

impl Given {
    /// Opens it once, to see that it works.
    pub fn open(endpoint: Endpoint, overwrite: bool) -> Result<Given, TargetError> {
        let mut exclusive = None;
        if let Endpoint::File(path) = &endpoint {
            let what = || format!("cannot use {}", path.display());
            if !overwrite && has_data(path).during(what)? {
                return Err(TargetError::HasData(endpoint.to_string()));
            }
            if std::fs::metadata(path).during(what)?.file_type().is_block_device() {
                let flags = libc::O_EXCL;
                exclusive = Some(OpenOptions::new().read(true).custom_flags(flags).open(path).during(what)?);
            }
        } else if !overwrite {
            return Err(TargetError::HasData(endpoint.to_string()));
        }
        let needs = Needs { writes: true, ..Needs::reads(1, PATIENCE) };
        let failed = |source| TargetError::Device { endpoint: endpoint.to_string(), source };
        let size = endpoint.open(needs).map_err(failed)?.size();
        let version = format!("{endpoint}, given");
        Ok(Given { endpoint, version, size, disks: Vec::new(), _exclusive: exclusive })
    }
}

impl System for Given {
    fn version(&self) -> &str {
        &self.version
    }

    fn supports(&self, action: Action) -> bool {
        action == Action::Fill
    }

    fn create(&mut self, disks: &[Wanted]) -> Result<(), TargetError> {
        let mut at = 0;
        for disk in disks {
            self.disks.push((disk.clone(), at));
            at += disk.size * u64::from(disk.count);
        }
        if at > self.size {
            return Err(TargetError::TooSmall {
                endpoint: self.endpoint.to_string(),
                have: self.size,
                need: at,
            });
        }
        Ok(())
    }

    fn clones(&mut self, _origin: &str, _kind: &str, _count: u32) -> Result<(), TargetError> {
        Err(TargetError::Unsupported("a clone"))
    }

    fn place(&self, kind: &str, number: u32) -> Result<Place, TargetError> {
        let found = self.disks.iter().find(|(disk, _)| disk.kind == kind && number < disk.count);
        let (disk, first) = found.ok_or(TargetError::Unsupported("a disk of this kind"))?;
        let base = first + disk.size * u64::from(number);
        Ok(Place { base, ..Place::of(self.endpoint.clone()) })
    }
}
