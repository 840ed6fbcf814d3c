//! The catalogue in memory: the disks of a pool and their names.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_format::{DiskId, MAX_NAME, Role, SECTOR};

use crate::disk::Disk;
use crate::limits::MAX_DISK_BYTES;
use crate::sync::RwLock;
use crate::text::shorten;
use crate::{Error, Result};

/// All disks of a pool.
#[derive(Default)]
pub(crate) struct Catalogue {
    disks: BTreeMap<DiskId, Arc<Disk>>,
    names: BTreeMap<String, DiskId>,
    next: u32,
}

impl Catalogue {
    /// An empty catalogue that assigns disk ids from `next` on.
    pub fn new(next: u32) -> Catalogue {
        Catalogue { next: next.max(1), ..Catalogue::default() }
    }

    /// The id that the next disk will get.
    pub fn next_id(&self) -> u32 {
        self.next
    }

    /// Reserves a disk id.
    pub fn take_id(&mut self) -> DiskId {
        self.next += 1;
        DiskId(self.next - 1)
    }

    pub fn insert(&mut self, disk: Arc<Disk>) {
        self.next = self.next.max(disk.id().0 + 1);
        self.name(&disk);
        self.disks.insert(disk.id(), disk);
    }

    /// Adds a disk to the index of names. Metadata disks are not in that index.
    fn name(&mut self, disk: &Disk) {
        if disk.role() != Role::Metadata {
            self.names.insert(self.export_name(disk), disk.id());
        }
    }

    pub fn remove(&mut self, id: DiskId) -> Option<Arc<Disk>> {
        let disk = self.disks.remove(&id)?;
        if disk.role() != Role::Metadata {
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

    /// Name by which a disk is exported: for a snapshot, `volume@snapshot`. An import has no name that a user
    /// could specify, but its future name is reserved.
    pub fn export_name(&self, disk: &Disk) -> String {
        let record = disk.record();
        match record.parent.and_then(|p| self.disks.get(&p)) {
            Some(parent) if record.role == Role::Snapshot => {
                format!("{}@{}", parent.record().name, record.name)
            }
            _ => record.name.clone(),
        }
    }

    /// Finds a disk by its id.
    pub fn get(&self, id: DiskId) -> Option<&Arc<Disk>> {
        self.disks.get(&id)
    }

    /// Finds a disk by its export name. Imports that are under way are not found.
    pub fn find(&self, name: &str) -> Result<Arc<Disk>> {
        let disk = self.names.get(name).and_then(|id| self.disks.get(id));
        let visible = disk.filter(|d| d.role().is_visible());
        visible.cloned().ok_or_else(|| Error::NotFound(shorten(name)))
    }

    /// Returns an error if an export name is in use.
    pub fn check_free(&self, name: &str) -> Result<()> {
        if self.names.contains_key(name) { Err(Error::Exists(shorten(name))) } else { Ok(()) }
    }

    /// All disks, ordered by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Disk>> {
        self.disks.values()
    }

    /// Disks visible to users.
    pub fn visible(&self) -> impl Iterator<Item = &Arc<Disk>> {
        self.iter().filter(|d| d.role().is_visible())
    }

    /// Number of snapshots of a volume.
    pub fn snapshots(&self, of: DiskId) -> usize {
        self.visible().filter(|d| d.record().parent == Some(of)).count()
    }

    /// Number of clones of a snapshot or image, and the name of one of them.
    pub fn clones(&self, of: DiskId) -> (usize, Option<String>) {
        let mut clones = self.iter().filter(|d| d.record().origin == Some(of));
        let first = clones.next().map(|d| self.export_name(d));
        (clones.count() + usize::from(first.is_some()), first)
    }
}

/// Checks a name for a new disk or snapshot.
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
    } else if name.chars().any(is_deceptive) {
        bad("it contains invisible characters, or ones that change the direction of the text")
    } else if name != name.trim() {
        bad("it begins or ends with a space")
    } else if name == "." || name == ".." {
        bad("it is a relative path")
    } else {
        Ok(())
    }
}

/// Whether a character makes a name look like another one: zero-width characters, and marks of the
/// bidirectional algorithm (Unicode Standard Annex 9). Disks of older releases may have them.
fn is_deceptive(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
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

/// Finds a disk by its id. The lock is not held on return, so that the caller may lock the catalogue again,
/// or wait.
pub(crate) fn disk_by_id(catalogue: &RwLock<Catalogue>, id: DiskId) -> Option<Arc<Disk>> {
    catalogue.read().get(id).cloned()
}
