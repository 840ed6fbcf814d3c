//! The catalogue in memory: the disks of a pool and their names.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use forebay_format::{DiskId, DiskRecord, MAX_NAME, Role, SECTOR};

use crate::disk::Disk;
use crate::limits::MAX_DISK_BYTES;
use crate::sync::RwLock;
use crate::text::shorten;
use crate::{Error, Result};

/// How one disk depends on another disk, or on the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Relation {
    /// The dependent disk is hidden, and contains metadata of the other disk or a document of the pool.
    Metadata,
    /// The dependent disk is a snapshot, and the other disk is its volume.
    Snapshot,
    /// The dependent disk is a clone of the other disk.
    Clone,
}

/// All disks of a pool.
#[derive(Default)]
pub(crate) struct Catalogue {
    disks: BTreeMap<DiskId, Arc<Disk>>,
    names: BTreeMap<String, DiskId>,
    /// The relations of all disks: the disk that is depended on (`None`: the pool), the kind, and the
    /// dependent disk.
    relations: BTreeSet<(Option<DiskId>, Relation, DiskId)>,
    /// The images by identity.
    images: BTreeSet<([u8; 16], DiskId)>,
    next: u32,
}

/// The relations in which a disk depends on others.
fn relations_of(record: &DiskRecord) -> impl Iterator<Item = (Option<DiskId>, Relation, DiskId)> {
    let parent = match record.role {
        Role::Metadata => Some((record.parent, Relation::Metadata)),
        _ => record.parent.map(|parent| (Some(parent), Relation::Snapshot)),
    };
    let origin = record.origin.map(|origin| (Some(origin), Relation::Clone));
    let id = record.id;
    parent.into_iter().chain(origin).map(move |(of, relation)| (of, relation, id))
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
        self.index(&disk);
        self.disks.insert(disk.id(), disk);
    }

    /// Adds a disk to the indexes. Metadata disks are not in the index of names. An image of the cluster is
    /// not, either: a disk of the pool may have its name.
    fn index(&mut self, disk: &Disk) {
        match disk.role() {
            Role::Metadata => {}
            Role::ClusterImage => drop(self.images.insert((disk.record().uuid, disk.id()))),
            Role::Image => {
                self.images.insert((disk.record().uuid, disk.id()));
                self.names.insert(self.export_name(disk), disk.id());
            }
            Role::Volume | Role::Snapshot | Role::Import => {
                self.names.insert(self.export_name(disk), disk.id());
            }
        }
        self.relations.extend(relations_of(&disk.record()));
    }

    fn remove_from_indexes(&mut self, disk: &Disk) {
        let name = self.export_name(disk);
        if self.names.get(&name) == Some(&disk.id()) {
            self.names.remove(&name);
        }
        self.images.remove(&(disk.record().uuid, disk.id()));
        for relation in relations_of(&disk.record()) {
            self.relations.remove(&relation);
        }
    }

    pub fn remove(&mut self, id: DiskId) -> Option<Arc<Disk>> {
        let disk = self.disks.remove(&id)?;
        self.remove_from_indexes(&disk);
        Some(disk)
    }

    /// Changes the record of a disk, and its kind as the record states. The names of the snapshots of a
    /// volume begin with the name of the volume, so they change with it.
    pub fn update(&mut self, disk: &Disk, record: DiskRecord) {
        let is_renamed = disk.record().name != record.name;
        let named_after = if is_renamed {
            self.related(Some(disk.id()), Relation::Snapshot).cloned().collect()
        } else {
            vec![]
        };
        named_after.iter().for_each(|snapshot| self.remove_from_indexes(snapshot));
        self.remove_from_indexes(disk);
        disk.set_kind(record);
        self.index(disk);
        named_after.iter().for_each(|snapshot| self.index(snapshot));
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

    /// The images of the pool, and the images of the cluster that are attached, with this identity.
    pub fn images_with(&self, uuid: [u8; 16]) -> impl Iterator<Item = &Arc<Disk>> {
        let ids = self.images.range((uuid, DiskId(0))..=(uuid, DiskId(u32::MAX)));
        ids.filter_map(|(_, id)| self.disks.get(id))
    }

    /// The images of the pool, and the images of the cluster that are attached.
    pub fn images(&self) -> impl Iterator<Item = &Arc<Disk>> {
        self.images.iter().filter_map(|(_, id)| self.disks.get(id))
    }

    /// Returns an error if an export name is in use.
    pub fn check_free(&self, name: &str) -> Result<()> {
        if self.names.contains_key(name) { Err(Error::Exists(shorten(name))) } else { Ok(()) }
    }

    /// Number of disks that have names: all disks except metadata disks and images of the cluster.
    pub fn named(&self) -> usize {
        self.names.len()
    }

    /// All disks, ordered by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Disk>> {
        self.disks.values()
    }

    /// Disks visible to users.
    pub fn visible(&self) -> impl Iterator<Item = &Arc<Disk>> {
        self.iter().filter(|d| d.role().is_visible())
    }

    /// Disks visible to users whose export names follow `name`; each disk with its export name, ordered by
    /// it.
    pub fn after(&self, name: &str) -> impl Iterator<Item = (&String, &Arc<Disk>)> {
        let following = self.names.range::<str, _>((Excluded(name), Unbounded));
        let disks = following.filter_map(|(name, id)| Some((name, self.disks.get(id)?)));
        disks.filter(|(_, disk)| disk.role().is_visible())
    }

    /// The disks that depend on a disk, or on the pool, ordered by id.
    pub fn related(&self, to: Option<DiskId>, how: Relation) -> impl Iterator<Item = &Arc<Disk>> {
        let ids = self.relations.range((to, how, DiskId(0))..=(to, how, DiskId(u32::MAX)));
        ids.filter_map(|(.., id)| self.disks.get(id))
    }

    /// Number of snapshots of a volume.
    pub fn snapshots(&self, of: DiskId) -> usize {
        self.related(Some(of), Relation::Snapshot).filter(|d| d.role().is_visible()).count()
    }

    /// Number of clones of a snapshot or image, and the name of one of them.
    pub fn clones(&self, of: DiskId) -> (usize, Option<String>) {
        let mut clones = self.related(Some(of), Relation::Clone);
        let first = clones.next().map(|d| self.export_name(d));
        (clones.count() + usize::from(first.is_some()), first)
    }
}

/// The snapshots of a volume, the oldest first. The catalogue is locked only for this look-up.
pub(crate) fn snapshots_of(catalogue: &RwLock<Catalogue>, volume: DiskId) -> Vec<Arc<Disk>> {
    let catalogue = catalogue.read();
    catalogue
        .related(Some(volume), Relation::Snapshot)
        .filter(|disk| disk.role() == Role::Snapshot)
        .cloned()
        .collect()
}

/// Checks a name for a new disk or snapshot.
///
/// # Errors
/// [`Error::BadName`], with the reason and a part of the name.
pub fn check_name(name: &str) -> Result<()> {
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

/// Whether a character can make a name look like another name: it is a zero-width character, or a mark of
/// the bidirectional algorithm (Unicode Standard Annex 9). Only new names are checked: disks that were
/// created by an older release may have such characters in their names.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::map::Tree;
    use crate::testing::{parts, volume};

    /// A disk is created or changed with this record, or removed.
    fn step() -> impl Strategy<Value = (DiskRecord, bool)> {
        let roles = prop::sample::select(vec![Role::Volume, Role::Image, Role::Snapshot, Role::Metadata]);
        let other = || prop::option::of((1..6u32).prop_map(DiskId));
        (1..6u32, roles, other(), other(), 0..3, prop::bool::weighted(0.3)).prop_map(
            |(id, role, parent, origin, name, is_removed)| {
                let name = format!("v{id}-{name}");
                (DiskRecord { role, parent, origin, name, ..volume(id, 4096) }, is_removed)
            },
        )
    }

    proptest! {
        #[test]
        fn the_indexes_agree_with_the_records(steps in prop::collection::vec(step(), 1..40)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let parts = runtime.block_on(parts());
            let mut catalogue = Catalogue::new(1);
            for (record, is_removed) in steps {
                let id = record.id;
                match catalogue.get(id).cloned() {
                    _ if is_removed => drop(catalogue.remove(id)),
                    Some(disk) => catalogue.update(&disk, record),
                    None => {
                        let retained = parts.reader.context().retained.clone();
                        catalogue.insert(Arc::new(Disk::new(record, Tree::new(1), retained)));
                    }
                }
                for to in [None].into_iter().chain((1..6).map(|id| Some(DiskId(id)))) {
                    for how in [Relation::Metadata, Relation::Snapshot, Relation::Clone] {
                        let found: Vec<_> = catalogue.related(to, how).map(|d| d.id()).collect();
                        let is_related = |r: &DiskRecord| match how {
                            Relation::Metadata => r.role == Role::Metadata && r.parent == to,
                            Relation::Snapshot => r.role != Role::Metadata && to.is_some() && r.parent == to,
                            Relation::Clone => to.is_some() && r.origin == to,
                        };
                        let wanted = catalogue.iter().filter(|d| is_related(&d.record()));
                        prop_assert_eq!(found, wanted.map(|d| d.id()).collect::<Vec<_>>());
                    }
                }
            }
        }
    }
}
