//! ext: one group, blocks of 1024 bytes, inodes of 256 bytes.

use super::put;

const BLOCK: usize = 1024;
const BLOCKS: usize = 8192;
const BITMAP: usize = 3;
const TABLE: usize = 8;
const INODES: u32 = 64;
const FREE_FOR_USE: usize = 100;
const DIRECTORY: u16 = 0x4000;
const FILE: u16 = 0x8000;

fn word(disk: &mut [u8], at: usize, value: u32) {
    put(disk, at, &value.to_le_bytes());
}

/// A volume with an empty root directory.
pub fn empty() -> Vec<u8> {
    let mut disk = vec![0; BLOCKS * BLOCK];
    let fields =
        [(0, INODES), (4, BLOCKS as u32), (0x14, 1), (0x20, 8192), (0x28, INODES), (0x4c, 1), (0x54, 11)];
    fields.into_iter().for_each(|(at, value)| word(&mut disk, 1024 + at, value));
    put(&mut disk, 1024 + 0x38, &[0x53, 0xef]);
    put(&mut disk, 1024 + 0x58, &256_u16.to_le_bytes());
    for (at, block) in [(0, BITMAP), (4, BITMAP), (8, TABLE)] {
        word(&mut disk, 2 * BLOCK + at, block as u32);
    }
    disk
}

/// Writes an inode in use, with the root of an extent tree of this depth and with these entries.
fn inode(disk: &mut [u8], number: usize, mode: u16, depth: u16, entries: &[[u8; 12]]) {
    let at = TABLE * BLOCK + (number - 1) * 256;
    put(disk, at, &mode.to_le_bytes());
    word(disk, at + 4, 0x1000_0000);
    put(disk, at + 0x1a, &[1, 0]);
    word(disk, at + 0x20, 0x8_0000);
    node(disk, at + 0x28, depth, entries);
}

fn node(disk: &mut [u8], at: usize, depth: u16, entries: &[[u8; 12]]) {
    put(disk, at, &0xf30a_u16.to_le_bytes());
    put(disk, at + 2, &(entries.len() as u16).to_le_bytes());
    put(disk, at + 6, &depth.to_le_bytes());
    entries.iter().enumerate().for_each(|(i, entry)| put(disk, at + 12 + i * 12, entry));
}

fn extent(logical: u32, len: u16, physical: u32) -> [u8; 12] {
    let mut entry = [0; 12];
    put(&mut entry, 0, &logical.to_le_bytes());
    put(&mut entry, 4, &len.to_le_bytes());
    put(&mut entry, 8, &physical.to_le_bytes());
    entry
}

fn pointer(block: u32) -> [u8; 12] {
    let mut entry = [0; 12];
    put(&mut entry, 4, &block.to_le_bytes());
    entry
}

/// A file whose extent tree references the same block repeatedly on each level, so that it has more extents
/// than the volume has blocks.
pub fn extents() -> Vec<u8> {
    let mut disk = empty();
    let below: Vec<_> = (0..84).map(|i| extent(i * 2, 1, 2000 + i * 2)).collect();
    let first = FREE_FOR_USE as u32;
    inode(&mut disk, 12, FILE, 3, &[pointer(first + 2); 4]);
    node(&mut disk, FREE_FOR_USE * BLOCK, 0, &below);
    node(&mut disk, (FREE_FOR_USE + 1) * BLOCK, 1, &[pointer(first); 84]);
    node(&mut disk, (FREE_FOR_USE + 2) * BLOCK, 2, &[pointer(first + 1); 84]);
    disk
}

/// Files whose extent trees share one block per level, which every entry of the level above references.
pub fn repeated_blocks() -> Vec<u8> {
    let mut disk = empty();
    let first = FREE_FOR_USE as u32;
    for number in 12..INODES as usize {
        inode(&mut disk, number, FILE, 5, &[pointer(first + 4); 4]);
    }
    node(&mut disk, FREE_FOR_USE * BLOCK, 0, &[]);
    for level in 1..5 {
        let at = (FREE_FOR_USE + level) * BLOCK;
        node(&mut disk, at, level as u16, &[pointer(first + level as u32 - 1); 84]);
    }
    disk
}

/// A large `/tmp` in which each entry has a different inode. With `names_overlap`, the names of entries
/// overlap.
pub fn names(names_overlap: bool) -> Vec<u8> {
    let mut disk = empty();
    let first = FREE_FOR_USE as u32;
    inode(&mut disk, 2, DIRECTORY, 0, &[extent(0, 1, first)]);
    inode(&mut disk, 12, DIRECTORY, 0, &[extent(0, 4000, first + 1)]);
    put(&mut disk, FREE_FOR_USE * BLOCK, &[12, 0, 0, 0, 0, 4, 3, 2, b't', b'm', b'p']);
    let (len, name_len) = if names_overlap { (8, 200) } else { (12, 1) };
    let entries = disk[(FREE_FOR_USE + 1) * BLOCK..][..4000 * BLOCK].chunks_exact_mut(BLOCK);
    for (number, entry) in entries.flat_map(|block| block.chunks_exact_mut(len)).enumerate() {
        entry[..8].copy_from_slice(&[0, 0, 0, 0, len as u8, 0, name_len, 2]);
        word(entry, 0, 1000 + number as u32);
        entry[8..].fill(b'n');
    }
    disk
}

/// Several groups with the same bitmap, which has two free and two used blocks in turns.
pub fn claims() -> Vec<u8> {
    const GROUPS: usize = 8;
    let mut disk = empty();
    disk.resize(GROUPS * BLOCKS * BLOCK, 0);
    word(&mut disk, 1024 + 4, (GROUPS * BLOCKS) as u32);
    (0..GROUPS).for_each(|group| word(&mut disk, 2 * BLOCK + group * 32, BITMAP as u32));
    disk[BITMAP * BLOCK..][..BLOCK].fill(0x33);
    disk
}

/// Volumes with all cluster sizes, up to sizes that overflow.
pub fn clusters() -> Vec<Vec<u8>> {
    let of = |log_cluster| {
        let mut disk = empty();
        word(&mut disk, 1024 + 0x1c, log_cluster);
        word(&mut disk, 1024 + 0x64, 0x200);
        disk
    };
    (0..70).map(of).collect()
}
