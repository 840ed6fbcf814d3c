//! How a change reaches the disk of the namespace.
//!
//! A change is a few records in different blocks: inodes, entries, a reply. All blocks of a change are
//! written in one group of the log, so a loss of the write buffers leaves all of them or none. If the process
//! ends and the write buffers are retained, only the first blocks of the change may be there. Therefore the
//! blocks of a change are preceded by a record of the *journal*, with everything that the change writes; it
//! has a number and a checksum. Opening the namespace applies the newest valid record again:
//!
//! - the record is not valid: none of the blocks that follow it was written; the record before it was
//!   followed by all of its blocks, because changes are written one after the other;
//! - the record is valid: applying it writes what may be missing, and writes the rest again.
//!
//! The journal has two slots, which are used in turns. So the record before the one that is being written
//! stays whole, although no opening needs it: the record that is not valid is then known to be the newer one.
//!
//! Data of a small file, and the target of a link, precede the record. They are one block, which is replaced
//! as a whole, and of which only the bytes within the size are valid.

use forebay_engine::{BlockRoom, DiskHandle};
use forebay_format::crc32c;

use crate::layout::{
    BLOCK, Block, ENTRIES, ENTRIES_PER_BLOCK, ENTRY, INLINE, INODE, INODES, INODES_PER_BLOCK, JOURNAL,
    JOURNAL_BLOCKS, REPLIES, REPLIES_PER_BLOCK, SUPERBLOCK, Superblock, encode_entry, encode_inode, put,
    u16_at, u32_at, u64_at,
};
use crate::replies::REPLY;
use crate::table::{Change, Table};
use crate::{Error, Result};

/// Maximum number of blocks of a change: the journal, the data of a small file, the superblock, a reply, and
/// inodes and entries in different blocks.
pub(crate) const CHANGE_BLOCKS: usize = JOURNAL_BLOCKS + 3 + 2 * OBJECTS;
/// Maximum number of inodes, and of entries, of a change.
const OBJECTS: usize = 6;

const MAGIC: u64 = u64::from_le_bytes(*b"FBJOURN1");
/// Bytes of the header of a record: magic, sequence number, length of the patches, checksum.
const HEADER: usize = 24;
/// Bytes of the header of a patch: block, offset in the block, length.
const PATCH: usize = 12;
const SLOT_BYTES: usize = JOURNAL_BLOCKS * BLOCK;

/// Bytes that a change writes into a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Patch {
    pub block: u64,
    pub at: usize,
    pub bytes: Vec<u8>,
}

/// The first block of the slot for a record.
fn slot(sequence: u64) -> u64 {
    JOURNAL + (sequence % 2) * JOURNAL_BLOCKS as u64
}

/// A record of the journal.
fn encode(sequence: u64, patches: &[Patch]) -> Vec<u8> {
    let mut out = vec![0; HEADER];
    for patch in patches {
        out.extend_from_slice(&patch.block.to_le_bytes());
        out.extend_from_slice(&(patch.at as u16).to_le_bytes());
        out.extend_from_slice(&(patch.bytes.len() as u16).to_le_bytes());
        out.extend_from_slice(&patch.bytes);
    }
    let len = (out.len() - HEADER) as u32;
    put(&mut out, 0, &MAGIC.to_le_bytes());
    put(&mut out, 8, &sequence.to_le_bytes());
    put(&mut out, 16, &len.to_le_bytes());
    let sum = crc32c(&out);
    put(&mut out, 20, &sum.to_le_bytes());
    assert!(out.len() <= SLOT_BYTES, "a change of {} bytes", out.len());
    out.resize(out.len().next_multiple_of(BLOCK), 0);
    out
}

/// The number and the patches of a record; `None` if it is not valid.
pub(crate) fn decode(slot: &[u8]) -> Option<(u64, Vec<Patch>)> {
    if u64_at(slot, 0) != MAGIC {
        return None;
    }
    let (sequence, len) = (u64_at(slot, 8), u32_at(slot, 16) as usize);
    let mut record = slot.get(..HEADER + len)?.to_vec();
    let sum = u32_at(&record, 20);
    put(&mut record, 20, &[0; 4]);
    if crc32c(&record) != sum {
        return None;
    }
    let (mut at, mut patches) = (HEADER, Vec::new());
    while at < record.len() {
        let header = record.get(at..at + PATCH)?;
        let (block, start) = (u64_at(header, 0), usize::from(u16_at(header, 8)));
        let bytes = record.get(at + PATCH..at + PATCH + usize::from(u16_at(header, 10)))?.to_vec();
        if start + bytes.len() > BLOCK {
            return None;
        }
        at += PATCH + bytes.len();
        patches.push(Patch { block, at: start, bytes });
    }
    Some((sequence, patches))
}

/// The newest valid record of the journal.
pub(crate) async fn newest(disk: &DiskHandle) -> Result<Option<(u64, Vec<Patch>)>> {
    let mut found = None;
    for number in 0..2 {
        let mut bytes = vec![0; SLOT_BYTES];
        disk.read(slot(number) * BLOCK as u64, &mut bytes).await?;
        let record = decode(&bytes).filter(|(sequence, _)| sequence % 2 == number);
        found = match (found, record) {
            (Some((one, patches)), Some((other, _))) if one > other => Some((one, patches)),
            (found, record) => record.or(found),
        };
    }
    Ok(found)
}

/// The records of a table in one block.
fn compose<'a>(
    per_block: usize,
    len: usize,
    index: usize,
    record: impl Fn(usize) -> Option<Vec<u8>> + 'a,
) -> Block {
    let mut block = [0; BLOCK];
    for n in 0..per_block {
        if let Some(bytes) = record(index * per_block + n) {
            block[n * len..(n + 1) * len].copy_from_slice(&bytes);
        }
    }
    block
}

impl Table {
    fn patches(&self, change: &Change) -> Vec<Patch> {
        let mut patches = Vec::new();
        if change.superblock {
            let bytes = self.superblock().encode().to_vec();
            patches.push(Patch { block: SUPERBLOCK, at: 0, bytes });
        }
        for number in change.inodes.iter().map(|number| *number as usize) {
            let (block, at) = (number / INODES_PER_BLOCK, number % INODES_PER_BLOCK * INODE);
            let bytes = encode_inode(&self.inodes[number]).to_vec();
            patches.push(Patch { block: INODES + block as u64, at, bytes });
        }
        for slot in change.entries.iter().map(|slot| *slot as usize) {
            let (block, at) = (slot / ENTRIES_PER_BLOCK, slot % ENTRIES_PER_BLOCK * ENTRY);
            let bytes = encode_entry(self.entries[slot].as_deref()).to_vec();
            patches.push(Patch { block: ENTRIES + block as u64, at, bytes });
        }
        for &slot in &change.replies {
            let (block, at) = (slot / REPLIES_PER_BLOCK, slot % REPLIES_PER_BLOCK * REPLY);
            let bytes = self.replies.encode(slot).to_vec();
            patches.push(Patch { block: REPLIES + block as u64, at, bytes });
        }
        patches
    }

    /// The present contents of a block of a table.
    fn block(&self, block: u64) -> Block {
        if block >= ENTRIES {
            let entry = |slot: usize| Some(encode_entry(self.entries.get(slot)?.as_deref()).to_vec());
            compose(ENTRIES_PER_BLOCK, ENTRY, (block - ENTRIES) as usize, entry)
        } else if block >= INODES {
            let inode = |number: usize| Some(encode_inode(self.inodes.get(number)?).to_vec());
            compose(INODES_PER_BLOCK, INODE, (block - INODES) as usize, inode)
        } else if block >= REPLIES {
            let reply = |slot: usize| Some(self.replies.encode(slot).to_vec());
            compose(REPLIES_PER_BLOCK, REPLY, (block - REPLIES) as usize, reply)
        } else {
            let mut out = [0; BLOCK];
            out[..Superblock::BYTES].copy_from_slice(&self.superblock().encode());
            out
        }
    }

    /// Writes a change that was made to the table.
    ///
    /// # Errors
    /// The errors of a pool that does not run. The table then differs from the disk, and is not used again.
    pub fn write(&mut self, disk: &DiskHandle, room: &mut BlockRoom<'_>, change: &Change) -> Result<()> {
        if self.is_broken {
            return Err(Error::Engine(forebay_engine::Error::Closed));
        }
        let patches = self.patches(change);
        self.sequence += 1;
        let record = encode(self.sequence, &patches);
        let mut touched: Vec<u64> = patches.iter().map(|patch| patch.block).collect();
        touched.sort_unstable();
        touched.dedup();
        let contents: Vec<(u64, Block)> = touched.iter().map(|block| (*block, self.block(*block))).collect();
        let mut blocks: Vec<(u64, &Block)> = Vec::with_capacity(CHANGE_BLOCKS);
        if let Some((number, data)) = &change.inline {
            blocks.push((INLINE + u64::from(*number), data));
        }
        let (parts, _) = record.as_chunks::<BLOCK>();
        blocks.extend(parts.iter().enumerate().map(|(n, part)| (slot(self.sequence) + n as u64, part)));
        blocks.extend(contents.iter().map(|(block, content)| (*block, content)));
        let written = disk.write_blocks(room, &blocks);
        self.is_broken = written.is_err();
        Ok(written?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_valid_only_as_a_whole() {
        let patches: Vec<Patch> = (0..9)
            .map(|n| Patch { block: INODES + n, at: 256 * (n as usize % 16), bytes: vec![n as u8 + 1; 256] })
            .collect();
        let mut record = encode(7, &patches);
        record.resize(SLOT_BYTES, 0);
        assert_eq!(decode(&record), Some((7, patches.clone())));
        for at in 0..HEADER + 9 * (PATCH + 256) {
            let mut torn = record.clone();
            torn[at] ^= 0x10;
            assert_eq!(decode(&torn), None, "byte {at}");
        }
        // The first block of a new record, and the rest of an older record in the same slot.
        let other: Vec<Patch> =
            (0..30).map(|n| Patch { block: ENTRIES + n, at: 0, bytes: vec![n as u8; 288] }).collect();
        let mut torn = encode(9, &other);
        torn.resize(SLOT_BYTES, 0);
        torn[BLOCK..].copy_from_slice(&record[BLOCK..]);
        assert_eq!(decode(&torn), None);
    }
}
