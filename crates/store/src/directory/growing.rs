//! The objects that were appended to since the store was opened: the end of each, and whether it failed.
//!
//! Of the objects of an earlier opening only an upper bound of the end is known, the file's length; the
//! offset of the first append to one is not checked.

use std::collections::HashMap;

use forebay_format::SegmentId;
use parking_lot::Mutex;

/// The objects appended to in this opening.
#[derive(Default)]
pub(super) struct GrowingObjects(Mutex<HashMap<SegmentId, Growing>>);

struct Growing {
    /// Offset of the next append.
    end: u64,
    appending: bool,
    /// An append or sync failed: bytes after the last successful sync can never be relied on.
    failed: bool,
}

impl GrowingObjects {
    /// Begins an append. Returns false if an earlier append or a sync failed; panics if it violates the
    /// contract.
    pub(super) fn begin(&self, id: SegmentId, offset: u64) -> bool {
        let mut objects = self.0.lock();
        let fresh = Growing { end: offset, appending: false, failed: false };
        assert!(offset > 0 || !objects.contains_key(&id), "object {id} is created twice");
        let object = objects.entry(id).or_insert(fresh);
        assert!(!object.appending, "concurrent appends to object {id}");
        if object.failed {
            return false;
        }
        assert_eq!(object.end, offset, "append to object {id} is not at its end");
        object.appending = true;
        true
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
        let failed = Growing { end: 0, appending: false, failed: true };
        self.0.lock().entry(id).or_insert(failed).failed = true;
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
