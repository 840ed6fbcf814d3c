//! What the disk of the namespace contains, byte by byte. All numbers are little-endian.
//!
//! | blocks | contents |
//! |---|---|
//! | 0 | superblock: magic, version, identity, number of inode slots and of entry slots that were used |
//! | 8..16 | journal: two slots of four blocks ([`crate::journal`]) |
//! | 64..320 | replies: 64 records a block, a ring ([`crate::replies`]) |
//! | from 2^12 on | inodes: 16 a block; inode 0 is not used, inode 1 is the root |
//! | from 2^18 on | entries of directories: 14 a block |
//! | from 2^21 on | the data of inode `n` in block `n`, if the file is small, or the target of a link |

use std::sync::Arc;

use crate::table::{Entry, Inode};
use crate::types::Kind;

/// Bytes of a block.
pub(crate) const BLOCK: usize = forebay_format::BLOCK;
/// A block of the disk.
pub(crate) type Block = [u8; BLOCK];

pub(crate) const SUPERBLOCK: u64 = 0;
pub(crate) const JOURNAL: u64 = 8;
/// Blocks of each of the two slots of the journal.
pub(crate) const JOURNAL_BLOCKS: usize = 4;
pub(crate) const REPLIES: u64 = 64;
pub(crate) const REPLIES_PER_BLOCK: usize = 64;
pub(crate) const REPLY_BLOCKS: usize = 256;
pub(crate) const INODES: u64 = 1 << 12;
pub(crate) const INODE: usize = 256;
pub(crate) const INODES_PER_BLOCK: usize = BLOCK / INODE;
pub(crate) const ENTRIES: u64 = 1 << 18;
pub(crate) const ENTRY: usize = 288;
pub(crate) const ENTRIES_PER_BLOCK: usize = BLOCK / ENTRY;
pub(crate) const INLINE: u64 = 1 << 21;
/// Bytes of the disk of the namespace.
pub(crate) const DISK_BYTES: u64 = (INLINE + (1 << 20)) * BLOCK as u64;

/// Maximum bytes of a name.
pub const NAME_MAX: usize = 255;
/// Maximum number of files, directories and links, those included that are being removed.
pub const FILES_MAX: usize = 1 << 17;
/// Maximum number of names in all directories.
pub const NAMES_MAX: usize = 1 << 18;
/// Maximum number of names of a file, and of directories in a directory.
pub const LINKS_MAX: u32 = 1 << 17;
/// Maximum bytes of a file: the largest disk whose block map has four levels.
pub const FILE_MAX: u64 = 16 << 40;
/// Maximum bytes of a file whose data is in the namespace.
pub(crate) const INLINE_MAX: u64 = BLOCK as u64;

const _: () = assert!(REPLIES + REPLY_BLOCKS as u64 <= INODES);
const _: () = assert!(INODES + (FILES_MAX / INODES_PER_BLOCK) as u64 <= ENTRIES);
const _: () = assert!(INLINE > ENTRIES + (NAMES_MAX / ENTRIES_PER_BLOCK) as u64);
const _: () = assert!(FILES_MAX <= 1 << 20);

const MAGIC: &[u8; 8] = b"FBFILES\0";
const VERSION: u32 = 1;

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes[at..at + 2].try_into().map_or(0, u16::from_le_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// The superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Random identity of the namespace, in its handles.
    pub identity: u64,
    /// Number of inode slots, from 0 on, that were ever used.
    pub inodes: u32,
    /// Number of entry slots that were ever used.
    pub entries: u32,
}

impl Superblock {
    /// Bytes that are encoded.
    pub const BYTES: usize = 32;

    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        put(&mut out, 0, MAGIC);
        put(&mut out, 8, &VERSION.to_le_bytes());
        put(&mut out, 12, &self.inodes.to_le_bytes());
        put(&mut out, 16, &self.identity.to_le_bytes());
        put(&mut out, 24, &self.entries.to_le_bytes());
        out
    }

    pub fn decode(block: &Block) -> Result<Superblock, &'static str> {
        let (inodes, entries) = (u32_at(block, 12), u32_at(block, 24));
        if &block[..8] != MAGIC {
            Err("its superblock is not valid")
        } else if u32_at(block, 8) != VERSION {
            Err("it was written by a newer release")
        } else if inodes as usize > FILES_MAX || entries as usize > NAMES_MAX {
            Err("its superblock counts too many files")
        } else {
            Ok(Superblock { identity: u64_at(block, 16), inodes, entries })
        }
    }
}

/// Encodes an inode. A free inode keeps its generation.
pub(crate) fn encode_inode(inode: &Inode) -> [u8; INODE] {
    let mut out = [0; INODE];
    put(&mut out, 4, &inode.generation.to_le_bytes());
    let Some(kind) = inode.kind else { return out };
    out[0] = kind as u8;
    out[1] = u8::from(inode.verifier.is_some());
    put(&mut out, 2, &inode.mode.to_le_bytes());
    put(&mut out, 8, &inode.links.to_le_bytes());
    put(&mut out, 12, &inode.uid.to_le_bytes());
    put(&mut out, 16, &inode.gid.to_le_bytes());
    put(&mut out, 20, &inode.disk.to_le_bytes());
    put(&mut out, 24, &inode.size.to_le_bytes());
    put(&mut out, 32, &inode.accessed.to_le_bytes());
    put(&mut out, 40, &inode.modified.to_le_bytes());
    put(&mut out, 48, &inode.changed.to_le_bytes());
    put(&mut out, 56, &inode.verifier.unwrap_or_default());
    put(&mut out, 64, &inode.parent.to_le_bytes());
    put(&mut out, 72, &inode.next_cookie.to_le_bytes());
    out
}

/// Decodes an inode.
pub(crate) fn decode_inode(bytes: &[u8]) -> Result<Inode, &'static str> {
    let generation = u32_at(bytes, 4);
    let kind = match bytes[0] {
        0 => return Ok(Inode { generation, ..Inode::default() }),
        1 => Kind::File,
        2 => Kind::Directory,
        3 => Kind::Symlink,
        _ => return Err("an inode has an unknown type"),
    };
    let size = u64_at(bytes, 24);
    if size > FILE_MAX || (u32_at(bytes, 20) == 0 && size > INLINE_MAX && kind != Kind::Directory) {
        return Err("an inode has an impossible size");
    }
    let mut verifier = [0; 8];
    verifier.copy_from_slice(&bytes[56..64]);
    Ok(Inode {
        kind: Some(kind),
        generation,
        mode: u16_at(bytes, 2),
        links: u32_at(bytes, 8),
        uid: u32_at(bytes, 12),
        gid: u32_at(bytes, 16),
        disk: u32_at(bytes, 20),
        size,
        accessed: u64_at(bytes, 32),
        modified: u64_at(bytes, 40),
        changed: u64_at(bytes, 48),
        verifier: (bytes[1] & 1 != 0).then_some(verifier),
        parent: u32_at(bytes, 64),
        next_cookie: u64_at(bytes, 72),
        ..Inode::default()
    })
}

/// Encodes an entry; `None` is a free slot.
pub(crate) fn encode_entry(entry: Option<&Entry>) -> [u8; ENTRY] {
    let mut out = [0; ENTRY];
    let Some(entry) = entry else { return out };
    put(&mut out, 0, &entry.dir.to_le_bytes());
    put(&mut out, 4, &entry.child.to_le_bytes());
    put(&mut out, 8, &entry.cookie.to_le_bytes());
    out[16] = entry.name.len() as u8;
    put(&mut out, 17, &entry.name);
    out
}

/// Decodes an entry; `None` is a free slot.
pub(crate) fn decode_entry(bytes: &[u8]) -> Option<Entry> {
    let (dir, len) = (u32_at(bytes, 0), usize::from(bytes[16]));
    (dir != 0).then(|| Entry {
        dir,
        child: u32_at(bytes, 4),
        cookie: u64_at(bytes, 8),
        name: Arc::from(&bytes[17..17 + len]),
    })
}
