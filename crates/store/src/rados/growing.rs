//! The segments to which this owner appends or is going to, and which of them accept nothing more.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_format::SegmentId;
use parking_lot::Mutex;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    /// It exists, and nothing was appended yet.
    Prepared,
    #[default]
    Sound,
    /// An operation on it failed.
    Failed,
}

/// The state of each.
#[derive(Default)]
pub(super) struct Growing(Mutex<HashMap<SegmentId, State>>);

/// An append in progress. Dropped without [`Growth::end`], its outcome is unknown.
pub(super) struct Growth {
    growing: Arc<Growing>,
    id: SegmentId,
    is_settled: bool,
}

impl Growing {
    /// Begins an append; `None` if an earlier one failed.
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

    /// Whether an append failed, or was dropped.
    pub fn has_failed(&self, id: SegmentId) -> bool {
        self.0.lock().get(&id) == Some(&State::Failed)
    }

    /// Records a segment that was created ahead of its first append.
    pub fn prepare(&self, id: SegmentId) {
        self.0.lock().insert(id, State::Prepared);
    }

    /// Whether it was created ahead of its first append.
    pub fn is_prepared(&self, id: SegmentId) -> bool {
        self.0.lock().get(&id) == Some(&State::Prepared)
    }

    /// Whether this owner has appended to it.
    pub fn is_known(&self, id: SegmentId) -> bool {
        self.0.lock().contains_key(&id)
    }

    /// The object does not exist any more.
    pub fn forget(&self, id: SegmentId) {
        self.0.lock().remove(&id);
    }
}

impl Growth {
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// The append succeeded.
    pub fn end(mut self) {
        self.is_settled = true;
    }

    /// The append had no effect, because there is no such object.
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
