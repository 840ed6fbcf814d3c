//! The owner of class maps: scans of disks, and the results.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_format::{DiskId, Role};
use forebay_guest::{ClassMap, Content};

use crate::admin::{DiskMetadata, Metadata};
use crate::block_classes::Learned;
use crate::catalogue::{Catalogue, disk_by_id};
use crate::disk::Disk;
use crate::read::{ReadMode, Reader};
use crate::scan_queue::ScanQueue;
use crate::sync::RwLock;
use crate::{Error, Result};

/// Owns the class maps of all disks.
pub(crate) struct ClassLearner {
    pub scans: Arc<ScanQueue>,
    pub reader: Arc<Reader>,
    pub catalogue: Arc<RwLock<Catalogue>>,
    pub metadata: Arc<Metadata>,
}

/// A disk that is scanned for the classes of its blocks. It does not count as a client, and its reads do not
/// affect the read cache, the counters and boot profiles.
pub struct Peek {
    classes: Arc<ClassLearner>,
    disk: Arc<Disk>,
    contents_version: u64,
}

impl Peek {
    fn new(classes: Arc<ClassLearner>, disk: Arc<Disk>) -> Peek {
        let contents_version = disk.classes.contents_version();
        Peek { classes, disk, contents_version }
    }

    /// Export name of the disk.
    pub fn name(&self) -> String {
        self.classes.catalogue.read().export_name(&self.disk)
    }

    /// Size of the disk in bytes.
    pub fn size(&self) -> u64 {
        self.disk.size()
    }

    /// Reads the current contents of the disk, including all acknowledged writes.
    ///
    /// # Errors
    /// The errors of a read.
    pub async fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.size()) {
            return Err(Error::OutOfRange);
        }
        self.classes.reader.read_as(&self.disk, offset, out, 0, ReadMode::Internal).await.map(drop)
    }

    /// Stores the result of the scan; only in RAM if the disk is a desktop. The result is dropped if the disk
    /// was deleted or got other contents since the scan began.
    ///
    /// # Errors
    /// The errors of a write: the result is not kept.
    pub async fn keep(self, map: ClassMap, file_systems: Vec<Content>) -> Result<()> {
        let learned = Learned { map, file_systems, learned_ms: self.classes.reader.context().host.unix_ms() };
        self.classes.keep(&self.disk, self.contents_version, learned).await
    }
}

impl ClassLearner {
    /// A disk to be scanned now.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn peek(self: &Arc<ClassLearner>, name: &str) -> Result<Peek> {
        let disk = self.catalogue.read().find(name)?;
        Ok(Peek::new(self.clone(), disk))
    }

    /// Waits for a disk that is to be scanned.
    pub async fn next(self: &Arc<ClassLearner>) -> Peek {
        Peek::new(self.clone(), self.scans.next().await)
    }

    async fn keep(&self, disk: &Arc<Disk>, contents_version: u64, learned: Learned) -> Result<()> {
        let is_stale = || disk.classes.contents_version() != contents_version;
        if is_stale() {
            return Ok(());
        }
        if !disk.is_desktop() {
            self.metadata.set(disk, DiskMetadata::Classes, Some(&learned.encode())).await?;
            if is_stale() {
                return self.metadata.set(disk, DiskMetadata::Classes, None).await;
            }
        }
        disk.classes.set(learned);
        self.propagate();
        Ok(())
    }

    /// Gives a new image the class map of the disk from which it was made, and requests a scan of the image.
    pub(crate) async fn give_to_image(&self, image: &Arc<Disk>, from: &Disk) {
        if let Some(learned) = from.classes.learned() {
            let contents_version = image.classes.contents_version();
            if let Err(e) = self.keep(image, contents_version, (*learned).clone()).await {
                tracing::warn!(image = %image.record().name, "cannot keep the block classes: {e}");
            }
        }
        self.scans.request(image);
    }

    /// Shares each class map with the disks that were made from its disk and have no map.
    fn propagate(&self) {
        let catalogue = self.catalogue.read();
        // A disk has a higher id than the disk from which it was made, so one pass in order of ids is
        // sufficient.
        for disk in catalogue.visible() {
            let record = disk.record();
            if let Some(from) = record.origin.or(record.parent).and_then(|from| catalogue.get(from)) {
                disk.classes.share_if_none(from.classes.learned());
            }
        }
    }

    /// The disks whose separate class map is on the store.
    fn with_stored_map(&self) -> BTreeSet<DiskId> {
        let catalogue = self.catalogue.read();
        let records = catalogue.iter().map(|disk| disk.record());
        records.filter(|record| DiskMetadata::Classes.is(record)).filter_map(|record| record.parent).collect()
    }

    /// The task that loads the stored maps after the pool was opened.
    pub(crate) async fn load(self: Arc<ClassLearner>) {
        for disk in self.with_stored_map().into_iter().filter_map(|id| disk_by_id(&self.catalogue, id)) {
            let name = disk.record().name.clone();
            match self.metadata.get(&disk, DiskMetadata::Classes).await.map(|bytes| Learned::decode(&bytes?))
            {
                // A scan may have completed in the meantime; its result is newer.
                Ok(Some(learned)) if !disk.classes.is_scanned() => disk.classes.set(learned),
                Ok(Some(_)) => {}
                Ok(None) => {
                    tracing::warn!(disk = name, "the block classes cannot be decoded and are ignored")
                }
                Err(e) => tracing::warn!(disk = name, "cannot read the block classes: {e}"),
            }
        }
        self.propagate();
        let images: Vec<_> = {
            let catalogue = self.catalogue.read();
            let unscanned = |disk: &&Arc<Disk>| disk.role() == Role::Image && !disk.classes.is_scanned();
            catalogue.visible().filter(unscanned).cloned().collect()
        };
        images.iter().for_each(|image| self.scans.request(image));
    }
}
