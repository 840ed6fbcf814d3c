//! Counters of store operations and bytes; no other module counts them.
//!
//! An operation is counted when it is issued, with its requested bytes, whether or not it succeeds or its
//! future is kept: this is the load on the store. Service times include only operations that succeed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_format::{SegmentId, Superblock};

use crate::completion::{Observed, Observer};
use crate::mean::Mean;
use crate::superblock::COPY_BYTES;
use crate::{Completion, IoBuf, ObjectStat, Selection, Store};

/// A count of operations and bytes of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpCount {
    /// Number of operations.
    pub ops: u64,
    /// Bytes of these operations.
    pub bytes: u64,
}

/// Counts of a [`Metered`] store since its creation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Reads of objects and of the superblock. A read of both superblock copies counts as one operation.
    pub read: OpCount,
    /// Appends and superblock swaps.
    pub write: OpCount,
    /// Syncs of objects. The sync within a superblock swap counts as part of the swap.
    pub sync: u64,
    /// Number of deleted objects.
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

struct Meters {
    clock: Clock,
    read: Counter,
    write: Counter,
    sync: AtomicU64,
    delete: AtomicU64,
    list: AtomicU64,
    failed: AtomicU64,
    /// Mean seconds of an [`APPEND`], and of a [`SYNC`].
    times: [Mean; 2],
}

/// Kinds of operations whose time is measured.
const APPEND: usize = 0;
const SYNC: usize = 1;

impl Observer for Meters {
    fn ended(&self, operation: Observed, is_success: bool) {
        match (is_success, operation) {
            (true, Some((kind, begun))) => {
                self.times[kind].add((self.clock)().saturating_sub(begun).as_secs_f64());
            }
            (true, None) => {}
            (false, _) => drop(self.failed.fetch_add(1, Relaxed)),
        }
    }
}

/// Returns the time since some fixed moment.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// A store that counts the operations that it passes to another store.
pub struct Metered {
    inner: Arc<dyn Store>,
    meters: Arc<Meters>,
}

impl Metered {
    /// Counts the operations passed to `inner`, and measures them by `clock`.
    pub fn new(inner: Arc<dyn Store>, clock: Clock) -> Metered {
        let meters = Meters {
            clock,
            read: Counter::default(),
            write: Counter::default(),
            sync: AtomicU64::new(0),
            delete: AtomicU64::new(0),
            list: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            times: Default::default(),
        };
        Metered { inner, meters: Arc::new(meters) }
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

    /// The present cost of a commit, in microseconds: the running mean of an append plus the running mean of
    /// a sync. 0 before the first append.
    pub fn commit_us(&self) -> u64 {
        self.meters.times.iter().map(|mean| (mean.get().unwrap_or(0.0) * 1e6) as u64).sum()
    }

    /// Begins to measure an operation of this kind.
    fn timed(&self, kind: usize) -> Observed {
        Some((kind, (self.meters.clock)()))
    }

    /// Counts the failure of an operation that was issued already, and measures its time if it is measured.
    fn watch<T>(&self, issued: Completion<T>, operation: Observed) -> Completion<T> {
        issued.observed(self.meters.clone(), operation)
    }
}

/// Two operations are not counted: the creation of an object ahead of its first append, because the append
/// that would create it counts, too; and a query of the capacity, because it causes no I/O.
impl Store for Metered {
    crate::forward_store!(
        inner; except append, append_synced, sync, read, delete, list_lengths_of, tail, read_superblock,
        swap_superblock
    );

    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        self.meters.write.add(data.len());
        let timed = self.timed(APPEND);
        self.watch(self.inner.append(id, offset, data, expected), timed)
    }

    /// If the append includes the time of the sync, the sync that follows adds no time: their sum is the
    /// time of both.
    fn append_synced(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        self.meters.write.add(data.len());
        let timed = self.timed(APPEND);
        self.watch(self.inner.append_synced(id, offset, data, expected), timed)
    }

    fn sync(&self, id: SegmentId) -> Completion<()> {
        self.meters.sync.fetch_add(1, Relaxed);
        let timed = self.timed(SYNC);
        self.watch(self.inner.sync(id), timed)
    }

    fn read(&self, id: SegmentId, offset: u64, len: usize) -> Completion<IoBuf> {
        self.meters.read.add(len);
        self.watch(self.inner.read(id, offset, len), None)
    }

    fn delete(&self, id: SegmentId) -> Completion<()> {
        self.meters.delete.fetch_add(1, Relaxed);
        self.watch(self.inner.delete(id), None)
    }

    fn list_lengths_of(&self, selected: Selection) -> Completion<Vec<ObjectStat>> {
        self.meters.list.fetch_add(1, Relaxed);
        self.watch(self.inner.list_lengths_of(selected), None)
    }

    /// Queries of few lengths are not counted.
    fn tail(&self, listed: Vec<SegmentId>, from: SegmentId) -> Completion<Vec<ObjectStat>> {
        self.watch(self.inner.tail(listed, from), None)
    }

    fn read_superblock(&self) -> Completion<[Option<Vec<u8>>; 2]> {
        self.meters.read.add(2 * COPY_BYTES);
        self.watch(self.inner.read_superblock(), None)
    }

    fn swap_superblock(&self, new: &Superblock) -> Completion<()> {
        self.meters.write.add(COPY_BYTES);
        self.watch(self.inner.swap_superblock(new), None)
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
