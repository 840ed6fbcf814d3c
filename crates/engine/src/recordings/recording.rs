//! Recordings of boots: the blocks that the first client of a clone reads through its block map, in order.

use std::ops::{DerefMut, Range};
use std::time::Duration;

use forebay_format::{DiskId, MapValue};
use roaring::RoaringTreemap;

use super::list::Recorder;
use crate::disk::Disk;
use crate::sync::Mutex;

/// A boot that is being recorded.
pub(crate) struct Recording {
    pub image: DiskId,
    pub clone: DiskId,
    pub recorder: Recorder,
    /// Blocks that the clone has written since the recording began.
    pub written: RoaringTreemap,
    pub began: Duration,
    /// Host time at which a new block was last read.
    pub last_new: Duration,
    /// The recording is to end, because that was requested.
    pub end: bool,
}

/// The boots that are being recorded.
#[derive(Default)]
pub(crate) struct Recordings(Mutex<Vec<Recording>>);

impl Recordings {
    /// Records blocks that a recorded clone writes: they no longer belong to its image, even after they have
    /// left the write buffer.
    pub fn record_written(&self, clone: &Disk, blocks: &Range<u64>) {
        let mut recordings = self.0.lock();
        if let Some(recording) = recordings.iter_mut().find(|r| r.clone == clone.id()) {
            recording.written.insert_range(blocks.clone());
        }
    }

    /// Records blocks that a recorded clone reads, from block `first` on. A block is recorded if its value in
    /// `values` refers to a stored block, the clone has not written it, and it is not in the write buffer
    /// (`have` is 0).
    pub fn record_read(&self, clone: &Disk, now: Duration, first: u64, values: &[MapValue], have: &[u8]) {
        let mut recordings = self.0.lock();
        let Some(recording) = recordings.iter_mut().find(|r| r.clone == clone.id()) else { return };
        for ((block, value), have) in (first..).zip(values).zip(have) {
            if matches!(value, MapValue::At(_))
                && *have == 0
                && !recording.written.contains(block)
                && recording.recorder.record(block)
            {
                recording.last_new = now;
            }
        }
    }

    /// Locks the recordings; they are changed only under this lock.
    pub fn lock(&self) -> impl DerefMut<Target = Vec<Recording>> {
        self.0.lock()
    }

    pub fn is_recorded(&self, image: DiskId) -> bool {
        self.0.lock().iter().any(|r| r.image == image)
    }
}
