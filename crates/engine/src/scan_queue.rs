//! The queue of disks to be scanned, and the policy of when a disk is scanned again.
//!
//! Images are scanned when they are made, and when a pool is opened that has an image without a stored map. A
//! volume is scanned again when much was written to blocks that belonged to no file: these are new files,
//! which the map does not contain. Other writes change the contents of files or metadata, which a running
//! guest does all the time.
//!
//! Many desktops of an image write the same data to the same blocks, and a map for each of them would take
//! much memory. So all desktops of one image count as one disk for the minimum interval between scans.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use forebay_format::{DiskId, Role};
use hashbrown::HashMap;
use tokio::sync::Notify;

use crate::catalogue::{Catalogue, disk_by_id};
use crate::context::Context;
use crate::disk::Disk;
use crate::limits::{CLASS_MAPS_BYTES, LEARN_BYTES, LEARN_PAUSE};
use crate::sync::{Mutex, RwLock};

/// The disks to be scanned, in order.
pub(crate) struct ScanQueue {
    cx: Arc<Context>,
    catalogue: Arc<RwLock<Catalogue>>,
    queue: Mutex<VecDeque<DiskId>>,
    wake: Notify,
    last: Mutex<LastChanges>,
}

/// The host time at which a volume, or any desktop of an image, was last found to have changed. Entries older
/// than [`LEARN_PAUSE`] do not count, and are dropped when the table has doubled.
#[derive(Default)]
struct LastChanges {
    times: HashMap<DiskId, Duration>,
    /// Number of entries after old entries were last dropped.
    kept: usize,
}

impl LastChanges {
    /// Records that a disk was found to have changed. Returns false if it was also found to have changed
    /// within the last [`LEARN_PAUSE`].
    fn record(&mut self, disk: DiskId, now: Duration) -> bool {
        let counts = |last: &Duration| now.saturating_sub(*last) < LEARN_PAUSE;
        if self.times.get(&disk).is_some_and(counts) {
            return false;
        }
        if self.times.len() > 2 * self.kept {
            self.times.retain(|_, last| counts(last));
            self.kept = self.times.len();
        }
        self.times.insert(disk, now);
        true
    }
}

impl ScanQueue {
    pub fn new(cx: Arc<Context>, catalogue: Arc<RwLock<Catalogue>>) -> ScanQueue {
        ScanQueue { cx, catalogue, queue: Mutex::default(), wake: Notify::new(), last: Mutex::default() }
    }

    /// Waits for a disk that is to be scanned.
    pub async fn next(&self) -> Arc<Disk> {
        loop {
            let next = self.queue.lock().pop_front();
            match next.map(|id| disk_by_id(&self.catalogue, id)) {
                Some(Some(disk)) => return disk,
                Some(None) => {}
                None => self.wake.notified().await,
            }
        }
    }

    /// Appends a disk to the queue, if scans are enabled.
    pub fn request(&self, disk: &Disk) {
        if !self.cx.config.learn_classes {
            return;
        }
        let mut queue = self.queue.lock();
        if !queue.contains(&disk.id()) {
            queue.push_back(disk.id());
        }
        self.wake.notify_one();
    }

    /// Appends a volume to the queue if enough was written to blocks that belonged to no file, and the last
    /// scan was long enough ago.
    pub fn request_if_changed(&self, disk: &Disk) {
        if disk.classes.changed_bytes() < LEARN_BYTES
            || !self.cx.config.learn_classes
            || disk.role() != Role::Volume
        {
            return;
        }
        let origin = disk.record().origin.filter(|_| disk.is_desktop());
        let (now, key) = (self.cx.host.now(), origin.unwrap_or(disk.id()));
        // Counts as a scan even if it fails or is not requested below.
        if !self.last.lock().record(key, now) {
            return;
        }
        disk.classes.forget_changed_bytes();
        if self.class_maps_bytes() < CLASS_MAPS_BYTES {
            self.request(disk);
        }
    }

    /// Bytes of all class maps that disks do not share.
    fn class_maps_bytes(&self) -> usize {
        self.catalogue.read().iter().map(|disk| disk.classes.separate_bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_scanned_again_after_a_pause_and_old_entries_are_dropped() {
        let (mut last, mut now) = (LastChanges::default(), Duration::ZERO);
        for round in 0..10 {
            for id in (0..100).map(|n| DiskId(round * 100 + n)).chain([DiskId(u32::MAX)]) {
                assert!(last.record(id, now) && !last.record(id, now + LEARN_PAUSE / 2));
            }
            assert!(last.times.len() <= 304, "{} entries of 101 that count", last.times.len());
            now += LEARN_PAUSE;
        }
    }
}
