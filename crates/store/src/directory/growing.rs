//! The objects that were appended to since the store was opened: the end of each, and whether it failed.
//!
//! Of the objects of an earlier opening only an upper bound of the end is known, the file's length; the
//! offset of the first append to one is not checked.
//!
//! **Zeroes ahead.** A file system records for each preallocated block whether it was ever written, and a
//! sync after the first write to it has to wait for the file system's journal: on ext4, that doubles the
//! duration of a small synced append. So one such append in many also writes zeroes after its data, where the
//! contract promises zeroes anyway, and the next ones overwrite them. They double the bytes written for small
//! synced appends; other appends gain nothing from zeroes, and write none.

use std::collections::HashMap;

use forebay_format::SegmentId;
use parking_lot::Mutex;

/// The objects appended to in this opening.
#[derive(Default)]
pub(super) struct GrowingObjects(Mutex<HashMap<SegmentId, Growing>>);

/// Zeroes are written after small synced appends, from the second one in succession on, ...
const FIRST_PADDED: u32 = 2;
/// ... this many bytes at a time.
const ZEROES_AHEAD: u64 = 256 << 10;

struct Growing {
    /// Offset of the next append.
    end: u64,
    /// Its file was created ahead of the first append.
    prepared: bool,
    appending: bool,
    /// An append or sync failed: bytes after the last successful sync can never be relied on.
    failed: bool,
    /// Small synced appends in succession.
    small: u32,
    /// End of the zeroes that were written ahead.
    zeroed: u64,
}

impl Growing {
    fn new(end: u64) -> Growing {
        Growing { end, prepared: false, appending: false, failed: false, small: 0, zeroed: 0 }
    }
}

impl GrowingObjects {
    /// Records an object that was created ahead of its first append.
    pub(super) fn prepare(&self, id: SegmentId) {
        self.0.lock().insert(id, Growing { prepared: true, ..Growing::new(0) });
    }

    /// Whether an object was created ahead of its first append, which begins now.
    pub(super) fn take_prepared(&self, id: SegmentId) -> bool {
        let mut objects = self.0.lock();
        let prepared = objects.get(&id).is_some_and(|object| object.prepared);
        if prepared {
            objects.remove(&id);
        }
        prepared
    }

    /// Begins an append. Returns false if an earlier append or a sync failed; panics if it violates the
    /// contract.
    pub(super) fn begin(&self, id: SegmentId, offset: u64) -> bool {
        let mut objects = self.0.lock();
        assert!(offset > 0 || !objects.contains_key(&id), "object {id} is created twice");
        let object = objects.entry(id).or_insert(Growing::new(offset));
        assert!(!object.appending, "concurrent appends to object {id}");
        if object.failed {
            return false;
        }
        assert_eq!(object.end, offset, "append to object {id} is not at its end");
        object.appending = true;
        true
    }

    /// The end of the zeroes to be written together with an append that ends at `end`; `end` for none.
    /// `small` states that it is a small synced one; `most` bytes are preallocated. To be called between
    /// begin and end.
    pub(super) fn zeroes_after(&self, id: SegmentId, end: u64, small: bool, most: u64) -> u64 {
        let mut objects = self.0.lock();
        let Some(object) = objects.get_mut(&id) else { return end };
        object.small = if small { object.small.saturating_add(1) } else { 0 };
        if object.small < FIRST_PADDED || end <= object.zeroed {
            return end;
        }
        // If the append fails, the object fails.
        object.zeroed = (end + ZEROES_AHEAD).min(most).max(end);
        object.zeroed
    }

    /// Ends an append: at `end`, or with an error.
    pub(super) fn end(&self, id: SegmentId, end: Option<u64>) {
        if let Some(object) = self.0.lock().get_mut(&id) {
            object.appending = false;
            match end {
                Some(end) => object.end = end,
                None => object.failed = true,
            }
        }
    }

    /// Records a failed sync.
    pub(super) fn fail(&self, id: SegmentId) {
        self.0.lock().entry(id).or_insert(Growing::new(0)).failed = true;
    }

    /// Whether an append or sync failed.
    pub(super) fn has_failed(&self, id: SegmentId) -> bool {
        self.0.lock().get(&id).is_some_and(|object| object.failed)
    }

    /// Removes an object that was deleted or could not be created.
    pub(super) fn forget(&self, id: SegmentId) {
        self.0.lock().remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_are_written_ahead_of_small_synced_appends_only() {
        let (growing, id, most) = (GrowingObjects::default(), SegmentId(1), 900 << 10);
        let mut end = 0;
        let mut append = |len: u64, small: bool| {
            assert!(growing.begin(id, end));
            end += len;
            let zeroes = growing.zeroes_after(id, end, small, most) - end;
            growing.end(id, Some(end));
            zeroes
        };
        assert_eq!([append(65536, false), append(8192, true)], [0, 0]);
        assert_eq!(append(8192, true), ZEROES_AHEAD);
        assert!((0..32).all(|_| append(8192, true) == 0), "they overwrite zeroes");
        assert_eq!(append(8192, true), ZEROES_AHEAD);
        assert_eq!([append(65536, false), append(262_144, false), append(8192, true)], [0, 0, 0]);
        assert_eq!(append(8192, true), (900 << 10) - 696_320, "not beyond the preallocated space");
        assert_eq!(append(8192, true), 0);
    }
}
