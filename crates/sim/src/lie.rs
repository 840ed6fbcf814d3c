//! A store that violates its contract, to show that the tests detect an engine that does.

use std::sync::Arc;

use forebay_format::{SegmentId, Superblock};
use forebay_store::{BoxFuture, Capacity, IoBuf, ObjectStat, Result, Store};

/// Answers a sync without making anything durable. An engine on this store therefore acknowledges before its
/// data is durable.
pub struct Liar(Arc<dyn Store>);

impl Liar {
    /// A lying store in front of `store`.
    pub fn wrap(store: Arc<dyn Store>, _seed: u64) -> Arc<dyn Store> {
        Arc::new(Liar(store))
    }
}

impl Store for Liar {
    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> BoxFuture<'_, Result<IoBuf>> {
        self.0.append(id, offset, data, expected)
    }
    fn sync(&self, _: SegmentId) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
    fn read(&self, id: SegmentId, offset: u64, len: usize) -> BoxFuture<'_, Result<IoBuf>> {
        self.0.read(id, offset, len)
    }
    fn delete(&self, id: SegmentId) -> BoxFuture<'_, Result<()>> {
        self.0.delete(id)
    }
    fn list(&self) -> BoxFuture<'_, Result<Vec<ObjectStat>>> {
        self.0.list()
    }
    fn read_superblock(&self) -> BoxFuture<'_, Result<[Option<Vec<u8>>; 2]>> {
        self.0.read_superblock()
    }
    fn swap_superblock(&self, new: &Superblock) -> BoxFuture<'_, Result<()>> {
        self.0.swap_superblock(new)
    }
    fn reserve(&self, bytes: u64) -> BoxFuture<'_, ()> {
        self.0.reserve(bytes)
    }
    fn capacity(&self) -> BoxFuture<'_, Result<Capacity>> {
        self.0.capacity()
    }
}
