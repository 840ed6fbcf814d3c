//! The numbers of new segments, which all streams share, and the objects that are created before their first
//! append.

use std::ops::Range;
use std::sync::Arc;

use forebay_format::SegmentId;
use forebay_store::{BoxFuture, Store, StoreError, for_good};
use futures_util::future::{Either, select, select_ok};

use crate::sync::Mutex;

/// Number of segments that are created when an object does not answer. The first one that exists is used,
/// because its OSDs answer. The others remain empty, without reserved room, and a reclaim deletes them.
const CANDIDATES: u32 = 4;

/// The segment that is created ahead, for later batches.
pub(super) struct NextSegment {
    store: Arc<dyn Store>,
    number: u32,
    prepared: Option<Prepared>,
}

/// The object of the next segment, created ahead of use.
struct Prepared {
    /// The segments that are being created; the first segment that exists is used.
    ids: Range<u32>,
    /// The value is only taken out of the lock. It needs a lock because threads that read the log share it.
    created: Mutex<BoxFuture<'static, Result<SegmentId, StoreError>>>,
}

impl NextSegment {
    pub fn new(store: Arc<dyn Store>, number: u32) -> NextSegment {
        NextSegment { store, number, prepared: None }
    }

    /// Number of the next segment, unless an object with a higher number is used.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Skips numbers: no segment below `number` is opened any more.
    #[cfg(test)]
    pub fn skip_to(&mut self, number: u32) {
        self.number = self.number.max(number);
    }

    /// Returns the segment to be opened. If its object was prepared, waits until it exists; if it is overdue,
    /// waits for another object.
    pub async fn take(&mut self) -> Result<SegmentId, StoreError> {
        while let Some(Prepared { ids, created }) = self.prepared.take() {
            debug_assert_eq!(ids.start, self.number);
            self.number = ids.end;
            match select(created.into_inner(), self.store.overdue(0)).await {
                // Another try can succeed: the store may have room by then, or this segment may need less
                // room.
                Either::Left((Err(StoreError::Full), _)) => {
                    let id = SegmentId(ids.start);
                    let deleted = self.store.delete(id).await;
                    return deleted.map(|()| id).map_err(|e| for_good(e, "deletion of a prepared segment"));
                }
                Either::Left((created, _)) => return created,
                Either::Right(_) => self.create(CANDIDATES, 0),
            }
        }
        self.number += 1;
        Ok(SegmentId(self.number - 1))
    }

    /// Begins to create the object of the next segment with this length, unless its creation has begun.
    pub fn prepare(&mut self, len: u64) {
        if self.prepared.is_none() {
            self.create(1, len);
        }
    }

    /// Begins to create several objects, in place of the prepared object. The first object that answers is
    /// used.
    pub fn prepare_elsewhere(&mut self) {
        if let Some(prepared) = self.prepared.take() {
            self.number = prepared.ids.end;
        }
        self.create(CANDIDATES, 0);
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

    /// Deletes the prepared object, which is not used any more. A failure is ignored: a reclaim deletes the
    /// object later.
    pub async fn discard(&mut self) {
        let Some(Prepared { ids, created }) = self.prepared.take() else { return };
        // The number of the object is not used again.
        self.number = ids.end;
        let _ = created.into_inner().await;
        for id in ids.map(SegmentId) {
            if let Err(e) = self.store.delete(id).await {
                tracing::debug!(segment = %id, "cannot delete a segment that was not used: {e}");
            }
        }
    }
}
