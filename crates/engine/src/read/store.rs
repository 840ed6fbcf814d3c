//! Reads of the store: exact lengths, verification, and the statistics of damage.

use std::ops::Range;
use std::sync::Arc;

use forebay_format::{Address, BLOCK, BlockRef, FormatError, PoolId, SegmentId, crc32c};
use forebay_store::{IoBuf, Metered, Store, StoreError};
use hashbrown::HashSet;

use super::relocation::{Location, Relocation};
use crate::context::Context;
use crate::lost::place_text;
use crate::stats::Counter;
use crate::sync::Mutex;
use crate::{Error, Result};

/// Reads objects of the store by address.
pub(crate) struct StoreReader {
    pub store: Arc<Metered>,
    pub cx: Arc<Context>,
    /// The pool to which the objects belong.
    pub pool: PoolId,
    pub relocation: Relocation,
    /// Addresses of blocks and nodes that were found damaged. No new references to them are created.
    damaged: Mutex<HashSet<Address>>,
    /// Number of reads that found damage.
    pub damage: Counter,
}

impl StoreReader {
    /// Makes a reader of `store` without moved segments. Relocation maps use at most a quarter of the map
    /// cache's budget.
    pub fn new(store: Arc<Metered>, cx: Arc<Context>, pool: PoolId) -> StoreReader {
        StoreReader {
            relocation: Relocation::new(cx.config.map_cache / 4),
            store,
            cx,
            pool,
            damaged: Mutex::default(),
            damage: Counter::default(),
        }
    }

    /// Reads at most `len` bytes of an object.
    pub async fn read(&self, object: SegmentId, offset: u64, len: usize) -> Result<IoBuf> {
        self.cx.fencing(self.store.read(object, offset, len).await)
    }

    /// Reads exactly `len` bytes of an object; `offset` and `len` need not be aligned.
    ///
    /// # Errors
    /// The errors of the store; [`Error::Damaged`] if the object ends before.
    pub async fn read_exact(&self, object: SegmentId, offset: u64, len: usize) -> Result<IoBuf> {
        match self.read_if_whole(object, offset, len).await? {
            Some(bytes) => Ok(bytes),
            None => {
                self.count_damage(object, offset);
                Err(damage(object, offset))
            }
        }
    }

    /// Works like [`StoreReader::read_exact`], but returns `None` if the object ends before the range. Used
    /// for a read that was not requested, so that its damage is not reported.
    pub async fn read_if_whole(&self, object: SegmentId, offset: u64, len: usize) -> Result<Option<IoBuf>> {
        let Range { start, end } = offset..offset + len as u64;
        let from = start / IoBuf::ALIGN as u64 * IoBuf::ALIGN as u64;
        let until = end.next_multiple_of(IoBuf::ALIGN as u64);
        let mut buf = self.read(object, from, (until - from) as usize).await?;
        if from + (buf.len() as u64) < end {
            return Ok(None);
        }
        let skip = (start - from) as usize;
        if skip > 0 {
            buf.copy_within(skip..skip + len, 0);
        }
        buf.set_len(len);
        Ok(Some(buf))
    }

    /// Returns an error unless `bytes`, read from `location`, are the node that `at` references.
    pub fn verify_node(&self, at: &BlockRef, location: &Location, bytes: &[u8]) -> Result<()> {
        if at.form.of_node().is_none() || location.form != at.form {
            return Err(FormatError::Value { what: "map node reference", field: "form" }.into());
        }
        if crc32c(bytes) != at.crc {
            self.count_damage(location.object, location.offset);
            return Err(damage(location.object, location.offset));
        }
        Ok(())
    }

    /// Counts and logs a read that found damage.
    pub fn count_damage(&self, object: SegmentId, offset: u64) {
        self.damage.add(BLOCK as u64);
        tracing::error!(segment = %object, offset, "damaged data on the store");
    }

    /// Records that a block or node is damaged.
    pub fn record_damaged(&self, at: &BlockRef) {
        self.damaged.lock().insert(at.addr);
    }

    /// Number of blocks and nodes that were found damaged.
    pub fn damaged_places(&self) -> u64 {
        self.damaged.lock().len() as u64
    }

    /// Whether a block or node is known to be damaged.
    pub fn is_damaged(&self, at: &BlockRef) -> bool {
        self.damaged.lock().contains(&at.addr)
    }

    /// Converts an error for an object that is certainly referenced: if the object does not exist, it is
    /// damaged.
    pub fn not_found_is_corruption(&self, e: Error) -> Error {
        match e {
            Error::Store(StoreError::NotFound(segment)) => {
                self.count_damage(segment, 0);
                Error::Damaged(format!("segment {segment}"))
            }
            other => other,
        }
    }
}

/// The error for stored bytes that differ from the bytes that were written.
pub(crate) fn damage(object: SegmentId, offset: u64) -> Error {
    Error::Damaged(place_text(object, offset))
}
