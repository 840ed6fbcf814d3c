//! Groups: several blocks compressed together, each of which can be read by its number.
//!
//! A larger input compresses better, but costs more to read. So groups are small, and a reader that
//! decompresses a group for one block caches the other blocks of the group, which were neighbours when they
//! were written.

use crate::layout::*;
use crate::{BLOCK, FormatError, Result};

layout!(group, "group of blocks", 8, {
    MEMBERS @ 0, 1, "blocks";
    FRAME_LEN @ 4, 4, "bytes of the zstd frame of all blocks, which follows";
});

/// The header of a group; the frame follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupHeader {
    /// Blocks in the group, at most [`GroupHeader::MAX_MEMBERS`].
    pub members: u8,
    /// Bytes of the compressed frame.
    pub frame_len: u32,
}

impl GroupHeader {
    /// Bytes of the header, which precedes the frame.
    pub const SIZE: usize = group::SIZE;
    /// Maximum number of blocks of a group: a form has six bits for the number of a member.
    pub const MAX_MEMBERS: usize = 64;

    /// Encodes it into the front of `out`.
    pub fn encode(&self, out: &mut [u8]) {
        out[..group::SIZE].fill(0);
        put_u8(out, group::MEMBERS, self.members);
        put_u32(out, group::FRAME_LEN, self.frame_len);
    }

    /// Decodes the header of a group, and returns it with the frame that follows.
    pub fn decode(b: &[u8]) -> Result<(GroupHeader, &[u8])> {
        const WHAT: &str = "group of blocks";
        let (head, rest) = b.split_at_checked(group::SIZE).ok_or(FormatError::Truncated(WHAT))?;
        let header =
            GroupHeader { members: get_u8(head, group::MEMBERS), frame_len: get_u32(head, group::FRAME_LEN) };
        if header.members == 0 || usize::from(header.members) > Self::MAX_MEMBERS {
            return Err(FormatError::Value { what: WHAT, field: "members" });
        }
        // Blocks that do not shrink are stored raw.
        if header.frame_len as usize > usize::from(header.members) * BLOCK {
            return Err(FormatError::Value { what: WHAT, field: "frame_len" });
        }
        let frame = rest.get(..header.frame_len as usize).ok_or(FormatError::Truncated(WHAT))?;
        Ok((header, frame))
    }
}
