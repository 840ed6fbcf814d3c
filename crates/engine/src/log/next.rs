//! The numbers of segments, which all streams share, and objects that are created ahead of use.

use std::ops::Range;
use std::sync::Arc;

use forebay_format::SegmentId;
use forebay_store::{BoxFuture, Store, StoreError, for_good};
use futures_util::future::{Either, select, select_ok};

use crate::sync::Mutex;

/// Segments that are created when an object does not answer. The first one that exists is used: its OSDs
/// answer. The others remain empty, and a reclaim deletes them.
const CANDIDATES: u32 = 4;

/// The next segment.
pub(super) struct NextSegment {
    store: Arc<dyn Store>,
    number: u32,
    prepared: Option<Prepared>,
}

/// The object of the next segment, created ahead of use.
struct Prepared {
    /// The segments of which the first one that exists is used.
    ids: Range<u32>,
    /// Only taken out; in a lock because the log is shared by threads that read it.
    created: Mutex<BoxFuture<'static, Result<SegmentId, StoreError>>>,
}

impl NextSegment {
    pub fn new(store: Arc<dyn Store>, number: u32) -> NextSegment {
        NextSegment { store, number, prepared: None }
    }

    /// Its number, unless an object with a higher one is used.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// No segment below this number is opened any more.
    #[cfg(test)]
    pub fn skip_to(&mut self, number: u32) {
        self.number = self.number.max(number);
    }

    /// The segment to be opened. If its object was prepared, waits until it exists, or another one if it is
    /// overdue. `len` is the length of a segment.
    pub async fn take(&mut self, len: u64) -> Result<SegmentId, StoreError> {
        while let Some(Prepared { ids, created }) = self.prepared.take() {
            debug_assert_eq!(ids.start, self.number);
            self.number = ids.end;
            match select(created.into_inner(), self.store.overdue(0)).await {
                // There may be room by now, or this segment may need less.
                Either::Left((Err(StoreError::Full), _)) => {
                    let id = SegmentId(ids.start);
                    let deleted = self.store.delete(id).await;
                    return deleted.map(|()| id).map_err(|e| for_good(e, "deletion of a prepared segment"));
                }
                Either::Left((created, _)) => return created,
                Either::Right(_) => self.create(CANDIDATES, len),
            }
        }
        self.number += 1;
        Ok(SegmentId(self.number - 1))
    }

    /// Begins to create its object, unless it has begun.
    pub fn prepare(&mut self, len: u64) {
        if self.prepared.is_none() {
            self.create(1, len);
        }
    }

    /// Begins to create several objects, of which one is used that answers; a prepared one is not.
    pub fn prepare_elsewhere(&mut self, len: u64) {
        if let Some(prepared) = self.prepared.take() {
            self.number = prepared.ids.end;
        }
        self.create(CANDIDATES, len);
    }

    fn create(&mut self, count: u32, len: u64) {
        let ids = self.number..self.number + count;
        let created: Vec<BoxFuture<'static, Result<SegmentId, StoreError>>> = ids
            .clone()
            .map(|id| {
                let created = self.store.prepare(SegmentId(id), len);
                Box::pin(async move { created.await.map(|()| SegmentId(id)) }) as _
            })
            .collect();
        let first = Box::pin(async { select_ok(created).await.map(|(id, _)| id) });
        self.prepared = Some(Prepared { ids, created: Mutex::new(first) });
    }

    /// Deletes a prepared object, which is not used any more. Best effort: a reclaim deletes it otherwise.
    pub async fn discard(&mut self) {
        let Some(Prepared { ids, created }) = self.prepared.take() else { return };
        // Its number is not used again.
        self.number = ids.end;
        let _ = created.into_inner().await;
        for id in ids.map(SegmentId) {
            if let Err(e) = self.store.delete(id).await {
                tracing::debug!(segment = %id, "cannot delete a segment that was not used: {e}");
            }
        }
    }
}
