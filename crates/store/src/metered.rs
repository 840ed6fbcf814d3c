//! Counters of store operations and bytes; no other module counts them.
//!
//! An operation is counted when it is issued, with its requested bytes, whether or not it succeeds or its
//! future is kept: this is the load on the store. Service times include only operations that succeed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_format::{SegmentId, Superblock};

use crate::mean::Mean;
use crate::superblock::COPY_BYTES;
use crate::{BoxFuture, Capacity, IoBuf, ObjectStat, Result, Selection, Store};

/// Operations and bytes of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpCount {
    /// Operations.
    pub ops: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Counts of a [`Metered`] store since its creation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Reads of objects and of the superblock (both copies: one operation).
    pub read: OpCount,
    /// Appends and superblock swaps.
    pub write: OpCount,
    /// Syncs of objects; the one inside a superblock swap is part of the swap.
    pub sync: u64,
    /// Deletes.
    pub delete: u64,
    /// Lists of all objects.
    pub list: u64,
    /// Failed operations of any kind.
    pub failed: u64,
}

#[derive(Default)]
struct Counter {
    ops: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    fn add(&self, bytes: usize) {
        self.ops.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }
    fn get(&self) -> OpCount {
        OpCount { ops: self.ops.load(Relaxed), bytes: self.bytes.load(Relaxed) }
    }
}

#[derive(Default)]
struct Meters {
    read: Counter,
    write: Counter,
    sync: AtomicU64,
    delete: AtomicU64,
    list: AtomicU64,
    failed: AtomicU64,
    /// Seconds of an append, and of a sync.
    append_time: Mean,
    sync_time: Mean,
}

/// Returns the time since some fixed moment.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// A store that counts the operations passed to another one.
pub struct Metered {
    inner: Arc<dyn Store>,
    clock: Clock,
    meters: Meters,
}

impl Metered {
    /// Counts the operations passed to `inner`, and measures them by `clock`.
    pub fn new(inner: Arc<dyn Store>, clock: Clock) -> Metered {
        Metered { inner, clock, meters: Meters::default() }
    }

    /// The inner store.
    pub fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    /// The current counts.
    pub fn counts(&self) -> StoreCounts {
        let m = &self.meters;
        StoreCounts {
            read: m.read.get(),
            write: m.write.get(),
            sync: m.sync.load(Relaxed),
            delete: m.delete.load(Relaxed),
            list: m.list.load(Relaxed),
            failed: m.failed.load(Relaxed),
        }
    }

    /// The present cost of a commit, in microseconds: the running mean of an append plus that of a sync. 0
    /// before the first.
    pub fn commit_us(&self) -> u64 {
        let us = |mean: &Mean| (mean.get().unwrap_or(0.0) * 1e6) as u64;
        us(&self.meters.append_time) + us(&self.meters.sync_time)
    }

    /// Returns the result of an operation that was issued already, and measures its time since `start`.
    fn watch<'a, T: Send + 'a>(
        &'a self,
        op: BoxFuture<'a, Result<T>>,
        timed: Option<(&'a Mean, Duration)>,
    ) -> BoxFuture<'a, Result<T>> {
        Box::pin(async move {
            let result = op.await;
            match (&result, timed) {
                (Ok(_), Some((mean, start))) => mean.add((self.clock)().saturating_sub(start).as_secs_f64()),
                (Ok(_), None) => {}
                (Err(_), _) => {
                    self.meters.failed.fetch_add(1, Relaxed);
                }
            }
            result
        })
    }
}

impl Store for Metered {
    crate::forward_store!(inner; overdue, trim, is_shared, max_object_bytes, reserve);

    /// Not counted: the append that would create the object otherwise counts once, too.
    fn prepare(&self, id: SegmentId, expected: u64) -> BoxFuture<'static, Result<()>> {
        self.inner.prepare(id, expected)
    }

    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> BoxFuture<'_, Result<IoBuf>> {
        self.meters.write.add(data.len());
        let timed = Some((&self.meters.append_time, (self.clock)()));
        self.watch(self.inner.append(id, offset, data, expected), timed)
    }

    /// Its time counts as that of the append, and the sync as taking none: their sum is the time of both.
    fn append_synced(
        &self,
        id: SegmentId,
        offset: u64,
        data: IoBuf,
        expected: u64,
    ) -> BoxFuture<'_, Result<IoBuf>> {
        self.meters.write.add(data.len());
        self.meters.sync.fetch_add(1, Relaxed);
        self.meters.sync_time.add(0.0);
        let timed = Some((&self.meters.append_time, (self.clock)()));
        self.watch(self.inner.append_synced(id, offset, data, expected), timed)
    }

    fn sync(&self, id: SegmentId) -> BoxFuture<'_, Result<()>> {
        self.meters.sync.fetch_add(1, Relaxed);
        let timed = Some((&self.meters.sync_time, (self.clock)()));
        self.watch(self.inner.sync(id), timed)
    }

    fn read(&self, id: SegmentId, offset: u64, len: usize) -> BoxFuture<'_, Result<IoBuf>> {
        self.meters.read.add(len);
        self.watch(self.inner.read(id, offset, len), None)
    }

    fn delete(&self, id: SegmentId) -> BoxFuture<'_, Result<()>> {
        self.meters.delete.fetch_add(1, Relaxed);
        self.watch(self.inner.delete(id), None)
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<ObjectStat>>> {
        self.meters.list.fetch_add(1, Relaxed);
        self.watch(self.inner.list(), None)
    }

    fn list_lengths_of(&self, selected: Selection) -> BoxFuture<'_, Result<Vec<ObjectStat>>> {
        self.meters.list.fetch_add(1, Relaxed);
        self.watch(self.inner.list_lengths_of(selected), None)
    }

    /// Not counted: few lengths.
    fn tail(&self, listed: Vec<SegmentId>, from: SegmentId) -> BoxFuture<'_, Result<Vec<ObjectStat>>> {
        self.watch(self.inner.tail(listed, from), None)
    }

    fn read_superblock(&self) -> BoxFuture<'_, Result<[Option<Vec<u8>>; 2]>> {
        self.meters.read.add(2 * COPY_BYTES);
        self.watch(self.inner.read_superblock(), None)
    }

    fn swap_superblock(&self, new: &Superblock) -> BoxFuture<'_, Result<()>> {
        self.meters.write.add(COPY_BYTES);
        self.watch(self.inner.swap_superblock(new), None)
    }

    /// Not counted, because it causes no I/O.
    fn capacity(&self) -> BoxFuture<'_, Result<Capacity>> {
        self.inner.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;

    #[tokio::test]
    async fn counts_operations_and_bytes() {
        let store = Metered::new(Arc::new(MemoryStore::new()), Arc::new(|| Duration::ZERO));
        let id = SegmentId(1);
        store.append(id, 0, IoBuf::zeroed(8192), 0).await.unwrap();
        store.append(id, 8192, IoBuf::zeroed(4096), 0).await.unwrap();
        store.sync(id).await.unwrap();
        store.read(id, 0, 4096).await.unwrap();
        store.sync(SegmentId(2)).await.unwrap_err();
        drop(store.delete(id));
        let expected = StoreCounts {
            read: OpCount { ops: 1, bytes: 4096 },
            write: OpCount { ops: 2, bytes: 12288 },
            sync: 2,
            delete: 1,
            list: 0,
            failed: 1,
        };
        assert_eq!(store.counts(), expected);
    }
}
