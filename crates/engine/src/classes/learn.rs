//! When a disk is to be scanned, and keeping what was found.
//!
//! Images are scanned when they are made, and when a pool is opened that has one without a note. A volume is scanned
//! anew when a good deal was written to it where no file was: new files, of which the map knows nothing. All else that
//! is written changes what files hold, or metadata, which a guest that runs does all the time.
//!
//! A fleet of desktops writes the same things to the same places, and a map for each of them would take much memory. So
//! all desktops of one image count as one when it is asked whether the last scan was long enough ago.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_format::{CatalogueOp, DiskId, DiskRecord, Role};
use forebay_guest::{ClassMap, Content};
use hashbrown::HashMap;
use tokio::sync::Notify;

use super::Known;
use crate::limits::{CLASS_MAPS_BYTES, LEARN_BYTES, LEARN_PAUSE};
use crate::notes::Note;
use crate::pool::Pool;
use crate::read::How;
use crate::sync::Mutex;
use crate::volume::Volume;
use crate::{Error, Result};

/// What is to be scanned.
#[derive(Default)]
pub(crate) struct Learning {
    queue: Mutex<VecDeque<DiskId>>,
    wake: Notify,
    /// When a volume, or a desktop of an image, was last found to have changed, where that is not long ago.
    last: Mutex<HashMap<DiskId, Duration>>,
}

/// A disk that is looked at to learn its classes. It is no client, and its reads leave no trace.
pub struct Peek {
    pool: Arc<Pool>,
    volume: Arc<Volume>,
    contents: u64,
}

impl Peek {
    fn new(pool: Arc<Pool>, volume: Arc<Volume>) -> Peek {
        let contents = volume.classes.contents.load(Relaxed);
        Peek { pool, volume, contents }
    }

    /// Export name.
    pub fn name(&self) -> String {
        self.pool.catalogue.read().export_name(&self.volume)
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.volume.size()
    }

    /// Reads what the disk holds now, every write acknowledged before included.
    ///
    /// # Errors
    /// Those of a read.
    pub async fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.size()) {
            return Err(Error::OutOfRange);
        }
        self.pool.read_as(&self.volume, offset, out, 0, How::Unseen).await.map(drop)
    }

    /// Keeps what was found; for good, unless the disk is a desktop. It is dropped where the disk is gone, or has
    /// other contents by now.
    ///
    /// # Errors
    /// Those of a write: it is not kept.
    pub async fn keep(self, map: ClassMap, file_systems: Vec<Content>) -> Result<()> {
        let known = Known { map, file_systems, learned_ms: self.pool.host.unix_ms() };
        self.pool.keep_classes(&self.volume, self.contents, known).await
    }
}

impl Pool {
    /// A disk to be scanned now.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn peek(self: &Arc<Pool>, name: &str) -> Result<Peek> {
        let volume = self.catalogue.read().find(name)?;
        Ok(Peek::new(self.clone(), volume))
    }

    /// Waits for a disk that is to be scanned.
    pub async fn next_to_learn(self: &Arc<Pool>) -> Peek {
        loop {
            let next = self.learning.queue.lock().pop_front();
            match next.map(|id| self.volume(id)) {
                Some(Some(volume)) => return Peek::new(self.clone(), volume),
                Some(None) => {}
                None => self.learning.wake.notified().await,
            }
        }
    }

    /// Has a disk be scanned when there is time.
    pub(crate) fn learn(&self, volume: &Volume) {
        if !self.config.learn_classes {
            return;
        }
        let mut queue = self.learning.queue.lock();
        if !queue.contains(&volume.id()) {
            queue.push_back(volume.id());
        }
        self.learning.wake.notify_one();
    }

    /// Has a volume be scanned if enough was written to it where no file was, and the last time was long enough ago.
    pub(crate) fn learn_if_changed(&self, volume: &Volume) {
        if volume.classes.news.load(Relaxed) < LEARN_BYTES
            || !self.config.learn_classes
            || volume.role() != Role::Volume
        {
            return;
        }
        let origin = volume.record().origin.filter(|_| volume.is_desktop());
        let (now, key) = (self.host.now(), origin.unwrap_or(volume.id()));
        let mut last = self.learning.last.lock();
        last.retain(|_, last| now.saturating_sub(*last) < LEARN_PAUSE);
        if last.contains_key(&key) {
            return;
        }
        // Whatever comes of it, the next one is not before its time.
        last.insert(key, now);
        drop(last);
        volume.classes.news.store(0, Relaxed);
        if self.class_maps_bytes() < CLASS_MAPS_BYTES {
            self.learn(volume);
        }
    }

    /// Memory of the maps that disks have of their own.
    fn class_maps_bytes(&self) -> usize {
        let of = |volume: &Arc<Volume>| {
            let state = volume.classes.state.read();
            state.known.as_ref().filter(|_| state.own).map_or(0, |known| known.map.len() * size_of::<u64>())
        };
        self.catalogue.read().iter().map(of).sum()
    }

    async fn keep_classes(&self, volume: &Arc<Volume>, contents: u64, known: Known) -> Result<()> {
        let is_stale = || volume.classes.contents.load(Relaxed) != contents;
        if is_stale() {
            return Ok(());
        }
        if !volume.is_desktop() {
            self.set_note(volume, Note::Classes, Some(&known.encode())).await?;
            if is_stale() {
                return self.set_note(volume, Note::Classes, None).await;
            }
        }
        volume.classes.set(known);
        self.spread_classes();
        Ok(())
    }

    /// An image that was made of another disk has what is known of that, until it is scanned itself.
    pub(crate) async fn image_has_classes_of(&self, image: &Arc<Volume>, from: &Volume) {
        if let Some(known) = from.classes.known() {
            let contents = image.classes.contents.load(Relaxed);
            if let Err(e) = self.keep_classes(image, contents, (*known).clone()).await {
                tracing::warn!(image = %image.record().name, "cannot keep the classes of its blocks: {e}");
            }
        }
        self.learn(image);
    }

    /// Hands what is known of disks on to those that came from them, if nothing is known of these.
    fn spread_classes(&self) {
        let catalogue = self.catalogue.read();
        // Whoever came from a disk has a higher number, so one pass reaches all.
        for disk in catalogue.visible() {
            let record = disk.record();
            if let Some(from) = record.origin.or(record.parent).and_then(|from| catalogue.get(from)) {
                let inherited = from.classes.known();
                let mut state = disk.classes.state.write();
                if !state.own && state.known.is_none() {
                    state.known = inherited;
                }
            }
        }
    }

    /// The disks that have a map of their own on the store.
    fn with_class_notes(&self) -> BTreeSet<DiskId> {
        let catalogue = self.catalogue.read();
        let notes = catalogue.iter().map(|disk| disk.record()).filter(|record| Note::Classes.is(record));
        notes.filter_map(|note| note.parent).collect()
    }

    /// The changes that drop the maps of disks that get other contents.
    pub(crate) fn forget_classes(&self, disks: &BTreeSet<DiskId>) -> Vec<CatalogueOp> {
        let catalogue = self.catalogue.read();
        let is_of_one = |record: &DiskRecord| {
            Note::Classes.is(record) && record.parent.is_some_and(|parent| disks.contains(&parent))
        };
        let notes = catalogue.iter().filter(|disk| is_of_one(&disk.record()));
        notes.map(|note| CatalogueOp::Delete { disk: note.id() }).collect()
    }

    /// The task that reads the maps back after the pool was opened.
    pub(crate) async fn load_classes(self: Arc<Pool>) {
        for disk in self.with_class_notes().into_iter().filter_map(|id| self.volume(id)) {
            let name = disk.record().name.clone();
            match self.note(&disk, Note::Classes).await.map(|note| Known::decode(&note?)) {
                // It may have been scanned meanwhile.
                Ok(Some(known)) if !disk.classes.state.read().own => disk.classes.set(known),
                Ok(Some(_)) => {}
                Ok(None) => {
                    tracing::warn!(disk = name, "the classes of its blocks make no sense, and are dropped")
                }
                Err(e) => tracing::warn!(disk = name, "cannot read the classes of its blocks: {e}"),
            }
        }
        self.spread_classes();
        let images: Vec<_> = {
            let catalogue = self.catalogue.read();
            let unknown = |disk: &&Arc<Volume>| disk.role() == Role::Image && !disk.classes.state.read().own;
            catalogue.visible().filter(unknown).cloned().collect()
        };
        images.iter().for_each(|image| self.learn(image));
    }
}
