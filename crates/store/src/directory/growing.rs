//! The objects that were appended to since the store was opened: where each ends, and whether it failed.
//!
//! Of the objects of an earlier opening only an upper bound is known, the file's length; the first append to
//! one is taken at its word.

use std::collections::HashMap;

use forebay_format::SegmentId;
use parking_lot::Mutex;

/// See the module.
#[derive(Default)]
pub(super) struct GrowingObjects(Mutex<HashMap<SegmentId, Growing>>);

struct Growing {
    /// Where the next append goes.
    end: u64,
    appending: bool,
    /// An append or sync failed: no byte since the last good sync can be relied on, ever.
    failed: bool,
}

impl GrowingObjects {
    /// An append begins. False where an earlier one or a sync failed; a panic where it breaks the contract.
    pub(super) fn begin(&self, id: SegmentId, offset: u64) -> bool {
        let mut objects = self.0.lock();
        let fresh = Growing { end: offset, appending: false, failed: false };
        assert!(offset > 0 || !objects.contains_key(&id), "object {id} is created twice");
        let object = objects.entry(id).or_insert(fresh);
        assert!(!object.appending, "two appends at once to object {id}");
        if object.failed {
            return false;
        }
        assert_eq!(object.end, offset, "append to object {id} is not at its end");
        object.appending = true;
        true
    }

    /// An append has ended: at `end`, or with an error.
    pub(super) fn end(&self, id: SegmentId, end: Option<u64>) {
        if let Some(object) = self.0.lock().get_mut(&id) {
            object.appending = false;
            match end {
                Some(end) => object.end = end,
                None => object.failed = true,
            }
        }
    }

    /// A sync failed.
    pub(super) fn fail(&self, id: SegmentId) {
        let failed = Growing { end: 0, appending: false, failed: true };
        self.0.lock().entry(id).or_insert(failed).failed = true;
    }

    /// Whether an append or sync failed.
    pub(super) fn has_failed(&self, id: SegmentId) -> bool {
        self.0.lock().get(&id).is_some_and(|object| object.failed)
    }

    /// The object is gone, or never came to be.
    pub(super) fn forget(&self, id: SegmentId) {
        self.0.lock().remove(&id);
    }
}
