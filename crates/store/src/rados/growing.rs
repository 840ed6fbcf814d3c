//! The segments to which this owner appends or will append, and which of these segments accept no more
//! appends.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_format::SegmentId;
use parking_lot::Mutex;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    /// The segment exists, and nothing was appended to it yet.
    Prepared,
    #[default]
    Sound,
    /// An operation on the segment has failed.
    Failed,
}

/// The state of each segment.
#[derive(Default)]
pub(super) struct Growing(Mutex<HashMap<SegmentId, State>>);

/// An append in progress. If it is dropped without [`Growth::end`], its outcome is unknown.
pub(super) struct Growth {
    growing: Arc<Growing>,
    id: SegmentId,
    is_settled: bool,
}

impl Growing {
    /// Begins an append to a segment; `None` if an earlier append to it failed.
    pub fn begin(self: &Arc<Self>, id: SegmentId) -> Option<Growth> {
        let mut segments = self.0.lock();
        let state = segments.entry(id).or_default();
        if *state == State::Failed {
            return None;
        }
        *state = State::Sound;
        drop(segments);
        Some(Growth { growing: self.clone(), id, is_settled: false })
    }

    /// Whether an append to the segment failed, or was dropped.
    pub fn has_failed(&self, id: SegmentId) -> bool {
        self.0.lock().get(&id) == Some(&State::Failed)
    }

    /// Records a segment that was created ahead of its first append.
    pub fn prepare(&self, id: SegmentId) {
        self.0.lock().insert(id, State::Prepared);
    }

    /// Whether the segment was created ahead of its first append.
    pub fn is_prepared(&self, id: SegmentId) -> bool {
        self.0.lock().get(&id) == Some(&State::Prepared)
    }

    /// Whether this owner has appended to the segment.
    pub fn is_known(&self, id: SegmentId) -> bool {
        self.0.lock().contains_key(&id)
    }

    /// Removes a segment whose object does not exist any more.
    pub fn forget(&self, id: SegmentId) {
        self.0.lock().remove(&id);
    }
}

impl Growth {
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// Records that the append succeeded.
    pub fn end(mut self) {
        self.is_settled = true;
    }

    /// Records that the append had no effect, because its object does not exist.
    pub fn cancel(mut self) {
        self.is_settled = true;
        self.growing.forget(self.id);
    }
}

impl Drop for Growth {
    fn drop(&mut self) {
        if !self.is_settled {
            self.growing.0.lock().insert(self.id, State::Failed);
        }
    }
}
