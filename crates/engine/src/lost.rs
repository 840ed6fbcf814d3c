//! Lost blocks: references that no reader accepts, for blocks whose contents are lost
//! ([`crate::read::damage`]).

use forebay_format::{BlockRef, Codec, Form, SegmentId, Slot};

use crate::Error;

/// The reference of a block that is lost because the data at `at` cannot be read. The reference has the form
/// of a raw block with less than its full length. Raw blocks are always stored in full, so every reader
/// refuses such a reference, even if the bytes at `at` are readable later.
pub(crate) fn lost(at: BlockRef) -> BlockRef {
    BlockRef { form: Form::raw(Slot::UNIT), ..at }
}

/// Whether a block reference was made by [`lost`].
pub(crate) fn is_lost(at: &BlockRef) -> bool {
    at.form.codec() == Some(Codec::Raw) && at.form != Form::RAW_BLOCK
}

/// The error for reading a lost block.
pub(crate) fn lost_block(at: &BlockRef) -> Error {
    Error::Damaged(format!("{} (lost: data that it depended on could not be read)", location_text(at)))
}

/// The location of a block, for messages.
pub(crate) fn location_text(at: &BlockRef) -> String {
    place_text(at.addr.segment, at.addr.slot.offset())
}

/// The location of a byte of a segment or object, for messages.
pub(crate) fn place_text(segment: SegmentId, offset: u64) -> String {
    format!("segment {segment}, offset {offset}")
}
