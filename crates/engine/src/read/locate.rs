//! Address translation: from the address of a slot to bytes of an object. Relocation maps are read on demand.

use std::sync::Arc;

use forebay_format::{Address, BlockRef, RelocationMap, SegmentId, Slot};
use forebay_store::StoreError;

use super::relocation::{Location, RelocationIndex, RelocationRef, Token};
use super::store::{StoreReader, damage};
use crate::cache::MissRole;
use crate::{Error, Result};

impl StoreReader {
    /// The location of a block or node, if it can be determined without a store read.
    pub fn locate_cached(&self, token: &Token, at: &BlockRef) -> Option<Location> {
        let segment = at.addr.segment;
        match self.relocation.find(token, segment) {
            None => Some(Location::unmoved(at)),
            Some(map_ref) => self.relocation.index(segment, map_ref.container)?.find(at),
        }
    }

    /// The location of a block or node. See [`super::relocation`].
    ///
    /// # Errors
    /// Those of the store; [`Error::Damaged`] if the relocation map is damaged; [`StoreError::NotFound`] if
    /// it does not list the slot.
    pub async fn locate(&self, token: &Token, at: &BlockRef) -> Result<Location> {
        let segment = at.addr.segment;
        let Some(map_ref) = self.relocation.find(token, segment) else { return Ok(Location::unmoved(at)) };
        let index = self.relocation_index(segment, &map_ref).await?;
        index.find(at).ok_or(Error::Store(StoreError::NotFound(segment)))
    }

    /// The index of a moved segment. It is read once, even if several readers wait for it.
    async fn relocation_index(
        &self,
        segment: SegmentId,
        map_ref: &RelocationRef,
    ) -> Result<Arc<RelocationIndex>> {
        loop {
            let known = self.relocation.index(segment, map_ref.container);
            if let Some(index) = known {
                return Ok(index);
            }
            match self.relocation.misses.enter(Address { segment, slot: Slot(0) }) {
                MissRole::Leader(leader) => {
                    let index =
                        Arc::new(RelocationIndex::new(&self.read_relocation_map(segment, map_ref).await?));
                    self.relocation.keep(segment, index.clone());
                    leader.complete(index.clone());
                    return Ok(index);
                }
                // The leader may have looked up another container of the segment.
                MissRole::Follower(follower) => {
                    if let Some(index) = follower.await
                        && index.container == map_ref.container
                    {
                        return Ok(index);
                    }
                }
            }
        }
    }

    /// Reads and verifies a relocation map.
    pub async fn read_relocation_map(
        &self,
        segment: SegmentId,
        map_ref: &RelocationRef,
    ) -> Result<RelocationMap> {
        let (container, offset) = (map_ref.container, u64::from(map_ref.offset));
        let bytes = self.read_exact(container, offset, map_ref.len as usize).await?;
        RelocationMap::decode(&bytes, segment, container).map_err(|e| {
            self.count_damage(container, offset);
            tracing::error!(%segment, "its relocation map is damaged: {e}");
            damage(container, offset)
        })
    }
}
