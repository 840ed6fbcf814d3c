//! A store that violates its contract, to show that the tests detect an engine that does.

use std::sync::Arc;

use forebay_format::SegmentId;
use forebay_store::{Completion, IoBuf, Store};

/// Answers a sync, and an append that requests one, without making anything durable. An engine on this store
/// therefore acknowledges before its data is durable.
pub struct Liar(Arc<dyn Store>);

impl Liar {
    /// A lying store in front of `store`.
    pub fn wrap(store: Arc<dyn Store>, _seed: u64) -> Arc<dyn Store> {
        Arc::new(Liar(store))
    }
}

impl Store for Liar {
    forebay_store::forward_store!(0; except append_synced, sync);

    fn append_synced(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        self.0.append(id, offset, data, expected)
    }

    fn sync(&self, _: SegmentId) -> Completion<()> {
        Completion::ended(Ok(()))
    }
}
