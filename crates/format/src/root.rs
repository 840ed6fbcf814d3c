//! The root of a checkpoint: it leads to the pages of all tables.

use crate::layout::*;
use crate::superblock::blob_ref;
use crate::{BlobRef, FormatError, Result, SegmentId};

pub(crate) const MAGIC: &[u8; 8] = b"FBCHROOT";
const WHAT: &str = "checkpoint root";

layout!(checkpoint_root, "checkpoint root", 48, {
    MAGIC @ 0, 8, "`FBCHROOT`";
    SEQ @ 8, 8, "sequence number of the last batch that the checkpoint covers";
    NEXT_DISK @ 16, 4, "next disk id";
    NEXT_SEGMENT @ 20, 4, "next segment id";
    DIRECTORIES @ 24, 4, "directory references, which follow by ascending table and number";
    WARM @ 28, 4, "segment ids, four bytes each, which follow those: fingerprints of these were found last";
    SAMPLING @ 32, 1, "the fingerprint index kept one of 2^n fingerprints";
});
layout!(directory_ref, "directory reference", 32, {
    TABLE @ 0, 1, "the table";
    NUMBER @ 4, 4, "number of the directory page";
    PAGE @ 8, 24, "the page, as a blob reference";
});

/// Largest value of [`CheckpointRoot::sampling`].
const MAX_SAMPLING: u8 = 64;

/// The location of a directory page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryRef {
    /// Number of the table to which the page belongs.
    pub table: u8,
    /// Number of the directory page.
    pub number: u32,
    /// Location of the directory page.
    pub at: BlobRef,
}

/// The root of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CheckpointRoot {
    /// Sequence number of the last batch that the checkpoint covers.
    pub seq: u64,
    /// Id of the next disk.
    pub next_disk: u32,
    /// Id of the next segment.
    pub next_segment: u32,
    /// The directory pages of all tables.
    pub directories: Vec<DirectoryRef>,
    /// Segments in which fingerprints were found most recently, to preload the index.
    pub warm: Vec<SegmentId>,
    /// The fingerprint index kept one of `2^sampling` fingerprints.
    pub sampling: u8,
}

impl CheckpointRoot {
    fn bad_field(&self) -> Option<&'static str> {
        if !self.directories.is_sorted_by(|a, b| (a.table, a.number) < (b.table, b.number)) {
            Some("directories")
        } else if !self.directories.iter().all(|d| d.at.is_valid()) {
            Some("page")
        } else if self.sampling > MAX_SAMPLING {
            Some("sampling")
        } else {
            None
        }
    }

    /// Encodes the root; the caller splits the bytes into pieces.
    pub fn encode(&self) -> Vec<u8> {
        use {checkpoint_root as l, directory_ref as d};
        assert_eq!(self.bad_field(), None, "the encoded root would be rejected when decoded");
        let mut b = vec![0; l::SIZE];
        put_bytes(&mut b, l::MAGIC, MAGIC);
        put_u64(&mut b, l::SEQ, self.seq);
        put_u32(&mut b, l::NEXT_DISK, self.next_disk);
        put_u32(&mut b, l::NEXT_SEGMENT, self.next_segment);
        put_u32(&mut b, l::DIRECTORIES, self.directories.len() as u32);
        put_u32(&mut b, l::WARM, self.warm.len() as u32);
        put_u8(&mut b, l::SAMPLING, self.sampling);
        for directory in &self.directories {
            let mut at = [0; d::SIZE];
            put_u8(&mut at, d::TABLE, directory.table);
            put_u32(&mut at, d::NUMBER, directory.number);
            put_bytes(&mut at, d::PAGE, &directory.at.encode());
            b.extend_from_slice(&at);
        }
        self.warm.iter().for_each(|s| b.extend_from_slice(&s.0.to_le_bytes()));
        b
    }

    /// Decodes the joined pieces, whose checksums the caller must have verified.
    pub fn decode(b: &[u8]) -> Result<CheckpointRoot> {
        use {checkpoint_root as l, directory_ref as d};
        let bad = |field| FormatError::Value { what: WHAT, field };
        let (head, rest) = b.split_at_checked(l::SIZE).ok_or(FormatError::Truncated(WHAT))?;
        if &head[l::MAGIC] != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        let count = get_u32(head, l::DIRECTORIES) as usize;
        let (table, rest) = rest.split_at_checked(count * d::SIZE).ok_or(FormatError::Truncated(WHAT))?;
        let warm = get_u32(head, l::WARM) as usize;
        let (warm, rest) = rest.split_at_checked(warm * 4).ok_or(FormatError::Truncated(WHAT))?;
        if !rest.is_empty() {
            return Err(bad("length"));
        }
        let directory = |at: &[u8]| {
            let page = get_array::<{ blob_ref::SIZE }>(at, d::PAGE);
            Ok(DirectoryRef {
                table: get_u8(at, d::TABLE),
                number: get_u32(at, d::NUMBER),
                at: BlobRef::decode(&page).ok_or(bad("page"))?,
            })
        };
        let root = CheckpointRoot {
            seq: get_u64(head, l::SEQ),
            next_disk: get_u32(head, l::NEXT_DISK),
            next_segment: get_u32(head, l::NEXT_SEGMENT),
            directories: table.chunks_exact(d::SIZE).map(directory).collect::<Result<_>>()?,
            warm: warm.chunks_exact(4).map(|b| SegmentId(get_u32(b, 0..4))).collect(),
            sampling: get_u8(head, l::SAMPLING),
        };
        match root.bad_field() {
            Some(field) => Err(bad(field)),
            None => Ok(root),
        }
    }
}
