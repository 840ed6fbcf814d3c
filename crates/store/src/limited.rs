//! A store that limits the space that it uses in another store.
//!
//! Space is accounted as in a directory: the expected length of an object is reserved when it is created, and
//! returned when it is deleted or trimmed. Objects that existed before count with their length. The
//! superblock does not count, because its space is always allocated.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_format::SegmentId;
use parking_lot::Mutex;

use crate::contract::refuse;
use crate::{BoxFuture, Capacity, Completion, IoBuf, Result, Store, StoreError};

/// A store with a space limit.
pub struct Limited {
    inner: Arc<dyn Store>,
    limit: u64,
    taken: Arc<Mutex<Taken>>,
}

/// Space that objects have reserved.
#[derive(Default)]
struct Taken {
    objects: HashMap<SegmentId, u64>,
    bytes: u64,
}

impl Taken {
    /// Increases the reservation of an object to `room` bytes; false if that would exceed `limit`.
    fn grow(&mut self, id: SegmentId, room: u64, limit: u64) -> bool {
        let before = self.objects.get(&id).copied().unwrap_or(0);
        let more = room.saturating_sub(before);
        if more > 0 && self.bytes.saturating_add(more) > limit {
            return false;
        }
        self.bytes += more;
        self.objects.insert(id, before + more);
        true
    }

    /// Reduces the reservation of an object to `room` bytes, when nothing is appended to it any more.
    fn finish(&mut self, id: SegmentId, room: u64) {
        if let Some(taken) = self.objects.get_mut(&id) {
            self.bytes -= *taken - room.min(*taken);
            *taken = room.min(*taken);
        }
    }

    fn release(&mut self, id: SegmentId) {
        self.bytes -= self.objects.remove(&id).unwrap_or(0);
    }
}

impl Limited {
    /// Limits the space used of `inner` to `limit` bytes. If more is in use already, it is kept: operations
    /// that need space fail until enough is freed.
    ///
    /// # Errors
    /// The errors of listing the objects.
    pub async fn new(inner: Arc<dyn Store>, limit: u64) -> Result<Limited> {
        let mut taken = Taken::default();
        for object in inner.list().await? {
            taken.grow(object.id, object.len, u64::MAX);
        }
        Ok(Limited { inner, limit, taken: Arc::new(Mutex::new(taken)) })
    }

    /// Appends `len` bytes by `append`, if there is room for them.
    fn append_by(
        &self,
        id: SegmentId,
        offset: u64,
        len: u64,
        expected: u64,
        append: impl FnOnce() -> Completion<IoBuf>,
    ) -> Completion<IoBuf> {
        let end = offset + len;
        let room = if offset == 0 { end.max(expected) } else { end };
        if !self.taken.lock().grow(id, room, self.limit) {
            return refuse(StoreError::Full);
        }
        let (appended, taken) = (append(), self.taken.clone());
        Completion::of(async move {
            let result = appended.await;
            // The inner store is also full, so the object was not created.
            if offset == 0 && matches!(result, Err(StoreError::Full)) {
                taken.lock().release(id);
            } else if offset > 0 && end == expected && result.is_ok() {
                taken.lock().finish(id, end);
            }
            result
        })
    }
}

impl Store for Limited {
    crate::forward_store!(inner; except append, append_synced, prepare, delete, trim, capacity);

    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        let len = data.len() as u64;
        self.append_by(id, offset, len, expected, || self.inner.append(id, offset, data, expected))
    }

    fn append_synced(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        let len = data.len() as u64;
        self.append_by(id, offset, len, expected, || self.inner.append_synced(id, offset, data, expected))
    }

    fn prepare(&self, id: SegmentId, expected: u64) -> Completion<()> {
        if !self.taken.lock().grow(id, expected, self.limit) {
            return refuse(StoreError::Full);
        }
        let (prepared, taken) = (self.inner.prepare(id, expected), self.taken.clone());
        Completion::of(async move {
            let result = prepared.await;
            if matches!(result, Err(StoreError::Full)) {
                taken.lock().release(id);
            }
            result
        })
    }

    /// Deletes an object. If the future is dropped, its space counts until the store is opened again.
    fn delete(&self, id: SegmentId) -> Completion<()> {
        let (deleted, taken) = (self.inner.delete(id), self.taken.clone());
        Completion::of(async move {
            deleted.await?;
            taken.lock().release(id);
            Ok(())
        })
    }

    fn trim(&self, id: SegmentId, written: u64) -> BoxFuture<'static, Option<u64>> {
        let (trimmed, taken) = (self.inner.trim(id, written), self.taken.clone());
        Box::pin(async move {
            let len = trimmed.await?;
            taken.lock().finish(id, len);
            Some(len)
        })
    }

    /// The smaller of the limit and the capacity of the inner store.
    fn capacity(&self) -> Completion<Capacity> {
        let (inner, taken, limit) = (self.inner.capacity(), self.taken.clone(), self.limit);
        Completion::of(async move {
            let inner = inner.await?;
            let left = limit.saturating_sub(taken.lock().bytes);
            Ok(Capacity { total: inner.total.min(limit), free: inner.free.min(left), ..inner })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DirectoryOptions, DirectoryStore, MemoryStore};

    async fn limited(inner: &Arc<MemoryStore>, limit: u64) -> Limited {
        let inner: Arc<dyn Store> = inner.clone();
        Limited::new(inner, limit).await.unwrap()
    }

    async fn append(store: &Limited, id: u32, offset: u64, len: usize, expected: u64) -> Result<()> {
        store.append(SegmentId(id), offset, IoBuf::zeroed(len), expected).await.map(drop)
    }

    #[tokio::test]
    async fn appends_beyond_the_limit_fail_and_a_delete_returns_space() {
        let store = limited(&Arc::new(MemoryStore::new()), 32 << 10).await;
        append(&store, 1, 0, 4096, 16 << 10).await.unwrap();
        let free = store.capacity().await.unwrap();
        assert_eq!(free, Capacity::new(32 << 10, 16 << 10), "the expected length is reserved");
        append(&store, 1, 4096, 8192, 0).await.unwrap();
        append(&store, 1, 12288, 8192, 0).await.unwrap();
        assert_eq!(
            store.capacity().await.unwrap().free,
            12 << 10,
            "bytes beyond the expected length count too"
        );
        assert_eq!(append(&store, 2, 0, 4096, 16 << 10).await, Err(StoreError::Full));
        append(&store, 3, 0, 4096, 12 << 10).await.unwrap();
        append(&store, 3, 4096, 4096, 8192).await.unwrap();
        assert_eq!(
            store.capacity().await.unwrap().free,
            4096,
            "the reservation beyond the last append is returned"
        );
        store.delete(SegmentId(1)).await.unwrap();
        append(&store, 2, 0, 4096, 16 << 10).await.unwrap();
    }

    #[tokio::test]
    async fn existing_objects_count() {
        let inner = Arc::new(MemoryStore::new());
        append(&limited(&inner, 1 << 20).await, 1, 0, 8192, 0).await.unwrap();
        let narrow = limited(&inner, 4096).await;
        assert_eq!(narrow.capacity().await.unwrap().free, 0);
        assert_eq!(append(&narrow, 1, 8192, 4096, 0).await, Err(StoreError::Full));
        assert_eq!(narrow.read(SegmentId(1), 0, 8192).await.unwrap().len(), 8192, "existing data is kept");
    }

    #[tokio::test]
    async fn trimming_returns_space() {
        let dir = tempfile::tempdir().unwrap();
        let open = || DirectoryStore::open(dir.path(), &DirectoryOptions::default()).unwrap();
        let store = Limited::new(open(), 1 << 20).await.unwrap();
        let data = || IoBuf::from(&[7; 4096][..]);
        store.append(SegmentId(1), 0, data(), 512 << 10).await.unwrap();
        drop(store);
        let store = Limited::new(open(), 1 << 20).await.unwrap();
        store.trim(SegmentId(1), 4096).await;
        assert_eq!(store.list().await.unwrap()[0].len, 4096);
        assert!(store.append(SegmentId(2), 0, data(), (1 << 20) - 4096).await.is_ok());
    }

    #[tokio::test]
    async fn a_full_inner_store_leaves_no_reservation() {
        let inner = Arc::new(MemoryStore::with_capacity(8192));
        let store = limited(&inner, 1 << 20).await;
        assert_eq!(append(&store, 1, 0, 4096, 16 << 10).await, Err(StoreError::Full));
        assert_eq!(store.capacity().await.unwrap(), Capacity::new(8192, 8192));
        append(&store, 1, 0, 4096, 4096).await.unwrap();
    }
}
