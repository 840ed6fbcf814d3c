//! Where stored blocks rest: from an address to bytes of an object.
//!
//! A slot rests where it was written, at the offset that is its number.

use forebay_format::{BlockRef, Form, SegmentId};

use crate::pool::Pool;
use crate::{Error, Result};

/// Bytes of an object in which a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Located {
    /// The object.
    pub object: SegmentId,
    /// Byte offset of the block as it is stored, or of its group.
    pub offset: u64,
    /// Bytes of the block as it is stored, or of its group.
    pub len: usize,
    /// How it is stored.
    pub form: Form,
}

impl Located {
    /// Whether the bytes of `next` follow these, or are these: then one read serves both.
    pub fn leads_to(&self, next: &Located) -> bool {
        let follows = next.offset == self.offset + self.len as u64;
        let same_group = (next.offset, next.len) == (self.offset, self.len);
        next.object == self.object && (follows || same_group)
    }
}

impl Pool {
    /// Where a block or node rests, if that is known without waiting.
    pub(crate) fn try_locate(&self, at: &BlockRef) -> Option<Located> {
        Some(Located {
            object: at.addr.segment,
            offset: at.addr.slot.offset(),
            len: at.form.stored_len(),
            form: at.form,
        })
    }

    /// Where a block or node rests.
    pub(crate) async fn locate(&self, at: &BlockRef) -> Result<Located> {
        self.try_locate(at).ok_or_else(|| Error::Damaged(format!("segment {}", at.addr.segment)))
    }
}
