//! The objects that were appended to since the store was opened: the end of each, and whether it failed.
//!
//! For an object of an earlier opening, only an upper bound of its end is known, the length of the file. So
//! the offset of the first append to such an object is not checked.
//!
//! **Zeroes ahead.** A file system records for each preallocated block whether it was ever written, and a
//! sync after the first write to it has to wait for the file system's journal: on ext4, that doubles the
//! duration of a small synced append. So one small synced append in many also writes zeroes after its data,
//! where the contract promises zeroes anyway, and the next appends overwrite these zeroes. And while most
//! bytes are in synced appends that are not large, an object that is created ahead of its first append is
//! filled with zeroes, on another thread, if the disk writes them quickly. The zeroes double the bytes
//! written for synced appends. For large appends, and for appends without a sync, zeroes cost more than they
//! save, so these appends write no zeroes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_format::SegmentId;
use parking_lot::Mutex;

/// The objects to which was appended since the store was opened.
#[derive(Default)]
pub(super) struct GrowingObjects {
    objects: Mutex<HashMap<SegmentId, Growing>>,
    recent: Mutex<Recent>,
    /// Number of appends to all objects that a sync has to follow. Since it is common to all objects, the
    /// numbers of a deleted object are lower than the numbers of a later object with the same id.
    unsynced: AtomicU64,
}

/// Bytes appended since an object was created ahead of its first append.
#[derive(Default)]
struct Recent {
    all: u64,
    /// Bytes of synced appends that are not large.
    filled: u64,
}

/// Maximum size of a synced append for which an object is filled with zeroes.
const FILLED_FOR: u64 = 512 << 10;

/// Zeroes are written after small synced appends, beginning with this append in a succession of them, ...
const FIRST_PADDED: u32 = 2;
/// ... this many bytes at a time.
const ZEROES_AHEAD: u64 = 256 << 10;

struct Growing {
    /// Offset of the next append to the object.
    end: u64,
    /// The object's file was created ahead of the first append.
    prepared: bool,
    /// Whether there was no room to preallocate the object's file.
    without_room: bool,
    appending: bool,
    /// An append or sync failed: bytes after the last successful sync can never be relied on.
    failed: bool,
    /// Number of the last append that a sync has to follow; 0 for none.
    unsynced: u64,
    /// Number of the last append that a sync has followed; 0 for none.
    synced: u64,
    /// Number of small synced appends in a row.
    small: u32,
    /// End of the zeroes that were written ahead of appends.
    zeroed: u64,
}

impl Growing {
    fn new(end: u64) -> Growing {
        Growing {
            end,
            prepared: false,
            without_room: false,
            appending: false,
            failed: false,
            unsynced: 0,
            synced: 0,
            small: 0,
            zeroed: 0,
        }
    }
}

impl GrowingObjects {
    /// Counts the bytes of an append.
    pub(super) fn count(&self, len: u64, synced: bool) {
        let mut recent = self.recent.lock();
        recent.all += len;
        recent.filled += if synced && len <= FILLED_FOR { len } else { 0 };
    }

    /// Whether most bytes since the last call were in synced appends that are not large.
    pub(super) fn gains_from_zeroes(&self) -> bool {
        let Recent { all, filled } = std::mem::take(&mut *self.recent.lock());
        filled > all / 2
    }

    /// Records an object that was created ahead of its first append, and has zeroes up to `zeroed`.
    pub(super) fn prepare(&self, id: SegmentId, zeroed: u64) {
        self.objects.lock().insert(id, Growing { prepared: true, zeroed, ..Growing::new(0) });
    }

    /// Begins an append. Returns whether the object's file exists, or `None` if an earlier append or sync of
    /// the object failed. Panics if the append violates the contract.
    pub(super) fn begin(&self, id: SegmentId, offset: u64) -> Option<bool> {
        let mut objects = self.objects.lock();
        let prepared = offset == 0 && objects.get_mut(&id).is_some_and(|o| std::mem::take(&mut o.prepared));
        assert!(offset > 0 || prepared || !objects.contains_key(&id), "object {id} is created twice");
        let object = objects.entry(id).or_insert(Growing::new(offset));
        assert!(!object.appending, "concurrent appends to object {id}");
        if object.failed {
            return None;
        }
        assert_eq!(object.end, offset, "append to object {id} is not at its end");
        object.appending = true;
        Some(offset > 0 || prepared)
    }

    /// The end of the zeroes to be written together with an append that ends at `end`; `end` for none.
    /// `small` states that it is a small synced one; `most` bytes are preallocated. To be called between
    /// begin and end.
    pub(super) fn zeroes_after(&self, id: SegmentId, end: u64, small: bool, most: u64) -> u64 {
        let mut objects = self.objects.lock();
        let Some(object) = objects.get_mut(&id) else { return end };
        object.small = if small { object.small.saturating_add(1) } else { 0 };
        if object.small < FIRST_PADDED || end <= object.zeroed {
            return end;
        }
        // If the append fails, the whole object fails.
        object.zeroed = (end + ZEROES_AHEAD).min(most).max(end);
        object.zeroed
    }

    /// Records that an object is created without preallocated space.
    pub(super) fn grows_without_room(&self, id: SegmentId) {
        self.objects.lock().entry(id).or_insert(Growing::new(0)).without_room = true;
    }

    /// Whether space was preallocated for an object since the store was opened.
    pub(super) fn has_room(&self, id: SegmentId) -> bool {
        self.objects.lock().get(&id).is_none_or(|object| !object.without_room)
    }

    /// Ends an append: at `end`, or with an error. `synced` states that the append is durable, provided that
    /// everything before it is durable.
    pub(super) fn end(&self, id: SegmentId, end: Option<u64>, synced: bool) {
        if let Some(object) = self.objects.lock().get_mut(&id) {
            object.appending = false;
            if !synced {
                object.unsynced = self.unsynced.fetch_add(1, Relaxed) + 1;
            }
            match end {
                Some(end) => object.end = end,
                None => object.failed = true,
            }
        }
    }

    /// Begins a sync; `None` if all completed appends of the object are durable. Returns the number of the
    /// last append that the sync makes durable, for [`Self::end_sync`].
    pub(super) fn begin_sync(&self, id: SegmentId) -> Option<u64> {
        match self.objects.lock().get(&id) {
            Some(object) => {
                (object.unsynced == 0 || object.unsynced > object.synced).then_some(object.unsynced)
            }
            None => Some(0),
        }
    }

    /// Records a sync that succeeded.
    pub(super) fn end_sync(&self, id: SegmentId, last: u64) {
        if let Some(object) = self.objects.lock().get_mut(&id) {
            object.synced = object.synced.max(last);
        }
    }

    /// Records a failed sync.
    pub(super) fn fail(&self, id: SegmentId) {
        self.objects.lock().entry(id).or_insert(Growing::new(0)).failed = true;
    }

    /// Whether an append or sync of the object failed.
    pub(super) fn has_failed(&self, id: SegmentId) -> bool {
        self.objects.lock().get(&id).is_some_and(|object| object.failed)
    }

    /// Removes an object that was deleted or could not be created.
    pub(super) fn forget(&self, id: SegmentId) {
        self.objects.lock().remove(&id);
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
            assert!(growing.begin(id, end).is_some());
            end += len;
            let zeroes = growing.zeroes_after(id, end, small, most) - end;
            growing.end(id, Some(end), false);
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

    #[test]
    fn no_zeroes_are_written_again_to_an_object_that_was_filled_with_them() {
        let (growing, id, most) = (GrowingObjects::default(), SegmentId(1), 1 << 20);
        growing.prepare(id, most);
        assert_eq!(growing.begin(id, 0), Some(true));
        growing.end(id, Some(8192), false);
        for end in [16384, 24576, 32768] {
            assert_eq!(growing.begin(id, end - 8192), Some(true));
            assert_eq!(growing.zeroes_after(id, end, true, most), end);
            growing.end(id, Some(end), false);
        }
    }

    #[test]
    fn objects_are_filled_while_most_bytes_are_in_synced_appends_that_are_not_large() {
        let growing = GrowingObjects::default();
        assert!(!growing.gains_from_zeroes());
        growing.count(8192, true);
        assert!(growing.gains_from_zeroes());
        assert!(!growing.gains_from_zeroes(), "since the last object");
        growing.count(8192, true);
        growing.count(1 << 20, false);
        assert!(!growing.gains_from_zeroes());
        growing.count(512 << 10, true);
        growing.count((512 << 10) + 4096, true);
        assert!(!growing.gains_from_zeroes());
    }

    #[test]
    fn only_appends_that_are_not_durable_are_synced() {
        let (growing, id) = (GrowingObjects::default(), SegmentId(1));
        let append = |at: u64, synced: bool| {
            assert!(growing.begin(id, at).is_some());
            growing.end(id, Some(at + 4096), synced);
        };
        assert!(growing.begin_sync(id).is_some(), "nothing is known of the object");
        append(0, false);
        let first = growing.begin_sync(id).unwrap();
        append(4096, false);
        growing.end_sync(id, first);
        let second = growing.begin_sync(id).expect("the second append ended after the sync began");
        growing.end_sync(id, second);
        append(8192, true);
        assert!(growing.begin_sync(id).is_none());
        append(12288, false);
        assert!(growing.begin_sync(id).is_some());
    }

    #[test]
    fn the_sync_of_a_deleted_object_covers_no_append_of_its_successor() {
        let (growing, id) = (GrowingObjects::default(), SegmentId(1));
        let append = |at: u64| {
            assert!(growing.begin(id, at).is_some());
            growing.end(id, Some(at + 4096), false);
        };
        append(0);
        append(4096);
        let late = growing.begin_sync(id).unwrap();
        growing.forget(id);
        append(0);
        growing.end_sync(id, late);
        assert!(growing.begin_sync(id).is_some());
    }
}
