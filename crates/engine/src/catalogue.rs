//! The catalogue in memory: which disks there are and what they are called.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_format::{DiskId, MAX_NAME, Role, SECTOR};

use crate::limits::MAX_DISK_BYTES;
use crate::volume::Volume;
use crate::{Error, Result};

/// All disks of a pool.
#[derive(Default)]
pub(crate) struct Catalogue {
    disks: BTreeMap<DiskId, Arc<Volume>>,
    names: BTreeMap<String, DiskId>,
    next: u32,
}

impl Catalogue {
    /// An empty catalogue that will hand out disk ids from `next` on.
    pub fn new(next: u32) -> Catalogue {
        Catalogue { next: next.max(1), ..Catalogue::default() }
    }

    /// The id that the next disk gets.
    pub fn next_id(&self) -> u32 {
        self.next
    }

    /// Sets a disk id aside.
    pub fn take_id(&mut self) -> DiskId {
        self.next += 1;
        DiskId(self.next - 1)
    }

    pub fn insert(&mut self, disk: Arc<Volume>) {
        self.next = self.next.max(disk.id().0 + 1);
        self.name(&disk);
        self.disks.insert(disk.id(), disk);
    }

    /// Notes under what name a disk is found. Notes are not looked for by name.
    fn name(&mut self, disk: &Volume) {
        if disk.role() != Role::Note {
            self.names.insert(self.export_name(disk), disk.id());
        }
    }

    pub fn remove(&mut self, id: DiskId) -> Option<Arc<Volume>> {
        let disk = self.disks.remove(&id)?;
        if disk.role() != Role::Note {
            self.names.remove(&self.export_name(&disk));
        }
        Some(disk)
    }

    /// Called after a disk's role or name has changed.
    pub fn renamed(&mut self, id: DiskId) {
        self.names.retain(|_, i| *i != id);
        if let Some(disk) = self.get(id).cloned() {
            self.name(&disk);
        }
    }

    /// Name by which a disk is exported: of a snapshot, `volume@snapshot`. An import has none that a user
    /// could give, but its name is reserved.
    pub fn export_name(&self, disk: &Volume) -> String {
        let record = disk.record();
        match record.parent.and_then(|p| self.disks.get(&p)) {
            Some(parent) if record.role == Role::Snapshot => {
                format!("{}@{}", parent.record().name, record.name)
            }
            _ => record.name.clone(),
        }
    }

    pub fn get(&self, id: DiskId) -> Option<&Arc<Volume>> {
        self.disks.get(&id)
    }

    /// By export name; imports under way are not found.
    pub fn find(&self, name: &str) -> Result<Arc<Volume>> {
        let disk = self.names.get(name).and_then(|id| self.disks.get(id));
        let visible = disk.filter(|d| d.role().is_visible());
        visible.cloned().ok_or_else(|| Error::NotFound(shorten(name)))
    }

    /// Whether a name is free.
    pub fn check_free(&self, name: &str) -> Result<()> {
        if self.names.contains_key(name) { Err(Error::Exists(shorten(name))) } else { Ok(()) }
    }

    /// By id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Volume>> {
        self.disks.values()
    }

    /// Disks that users know of.
    pub fn visible(&self) -> impl Iterator<Item = &Arc<Volume>> {
        self.iter().filter(|d| d.role().is_visible())
    }

    /// Snapshots of a volume.
    pub fn snapshots(&self, of: DiskId) -> usize {
        self.visible().filter(|d| d.record().parent == Some(of)).count()
    }

    /// Clones of a snapshot or image: how many, and the name of one.
    pub fn clones(&self, of: DiskId) -> (usize, Option<String>) {
        let mut clones = self.iter().filter(|d| d.record().origin == Some(of));
        let first = clones.next().map(|d| self.export_name(d));
        (clones.count() + usize::from(first.is_some()), first)
    }
}

/// A name cut to a length that fits into a message.
pub(crate) fn shorten(name: &str) -> String {
    const SHOWN: usize = 64;
    let mut shown: String = name.chars().map(|c| if c.is_control() { '?' } else { c }).take(SHOWN).collect();
    if name.chars().count() > SHOWN {
        shown.push('…');
    }
    shown
}

/// Checks a name for a disk or a snapshot.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let bad = |why| Err(Error::BadName { name: shorten(name), why });
    if name.is_empty() {
        bad("it is empty")
    } else if name.len() > MAX_NAME {
        bad("it is longer than 255 bytes")
    } else if name.contains('/') {
        bad("it contains '/'")
    } else if name.contains('@') {
        bad("it contains '@', which separates a volume from its snapshot")
    } else if name.chars().any(char::is_control) {
        bad("it contains control characters")
    } else if name != name.trim() {
        bad("it begins or ends with a space")
    } else if name == "." || name == ".." {
        bad("it would be a path")
    } else {
        Ok(())
    }
}

/// Checks a size for a disk.
pub(crate) fn check_size(size: u64) -> Result<()> {
    let bad = |why| Err(Error::BadSize { size, why });
    if size == 0 {
        bad("a disk needs at least one sector")
    } else if !size.is_multiple_of(SECTOR as u64) {
        bad("it is not a multiple of 512")
    } else if size > MAX_DISK_BYTES {
        bad("disks are at most 64 TiB")
    } else {
        Ok(())
    }
}
