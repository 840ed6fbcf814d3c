//! XFS, version 4: one group, blocks of 1024 bytes, inodes of 256 bytes.

use super::put;

const BLOCK: usize = 1024;
const BLOCKS: u32 = 4096;
const INODE_TREE: usize = 4;
const INODES: usize = 8;
const TREE: usize = 100;
const FILE: u16 = 0x8000;

/// A volume with one inode chunk. Its first inode is a file with a data fork of this format and number of
/// extents.
fn with_file(format: u8, extents: u32, fork: &[u8]) -> Vec<u8> {
    let mut disk = vec![0; BLOCKS as usize * BLOCK];
    put(&mut disk, 0, b"XFSB");
    for (at, value) in [(4, BLOCK as u32), (12, BLOCKS), (84, BLOCKS), (88, 1)] {
        put(&mut disk, at, &value.to_be_bytes());
    }
    put(&mut disk, 56, &32_u64.to_be_bytes());
    put(&mut disk, 100, &4_u16.to_be_bytes());
    put(&mut disk, 102, &512_u16.to_be_bytes());
    put(&mut disk, 104, &256_u16.to_be_bytes());
    (disk[123], disk[124]) = (2, 12);
    put(&mut disk, 1024, b"XAGI");
    put(&mut disk, 1024 + 20, &(INODE_TREE as u32).to_be_bytes());
    put(&mut disk, 1024 + 24, &1_u32.to_be_bytes());
    let leaf = INODE_TREE * BLOCK;
    put(&mut disk, leaf, b"IABT\0\0\0\x01");
    put(&mut disk, leaf + 16, &(INODES as u32 * 4).to_be_bytes());
    let inode = INODES * BLOCK;
    put(&mut disk, inode, b"IN");
    put(&mut disk, inode + 2, &FILE.to_be_bytes());
    (disk[inode + 4], disk[inode + 5]) = (2, format);
    disk[inode + 19] = 1;
    put(&mut disk, inode + 56, &(1_u64 << 40).to_be_bytes());
    put(&mut disk, inode + 76, &extents.to_be_bytes());
    put(&mut disk, inode + 100, fork);
    disk
}

fn extent(logical: u64, physical: u64, len: u64) -> [u8; 16] {
    (u128::from(logical) << 73 | u128::from(physical) << 21 | u128::from(len)).to_be_bytes()
}

/// Writes a node of a B+tree: unused keys, and the same pointer in all entries.
fn node(disk: &mut [u8], block: usize, level: u8, below: usize) {
    let at = block * BLOCK;
    put(disk, at, b"BMAP\0\0\0\x3e");
    disk[at + 5] = level;
    (0..62).for_each(|i| put(disk, at + 24 + 62 * 8 + i * 8, &(below as u64).to_be_bytes()));
}

/// A file whose B+tree references the same block repeatedly on each level.
pub fn extents() -> Vec<u8> {
    let mut root = [0; 156];
    (root[1], root[3]) = (3, 9);
    (0..9).for_each(|i| put(&mut root, 4 + 9 * 8 + i * 8, &(TREE as u64 + 2).to_be_bytes()));
    let mut disk = with_file(3, 0, &root);
    node(&mut disk, TREE + 2, 2, TREE + 1);
    node(&mut disk, TREE + 1, 1, TREE);
    node(&mut disk, TREE, 0, 0);
    (0..62).for_each(|i| {
        put(&mut disk, TREE * BLOCK + 24 + i * 16, &extent(i as u64 * 2, 1000 + i as u64 * 2, 1))
    });
    disk
}

/// Adjacent extents at the maximum logical offset. The file begins with a swap header, so that its extents
/// are evaluated.
pub fn far_extents() -> Vec<u8> {
    let most = (1 << 54) - 1;
    let extents = [extent(0, 1000, 4), extent(most, 1004, 2), extent(most, 1006, 2), extent(1, 2000, 5)];
    let mut disk = with_file(2, 4, &extents.concat());
    let head = 1000 * BLOCK;
    put(&mut disk, head + 1024, &[1, 0, 0, 0, 0, 0, 0xff]);
    put(&mut disk, head + 4086, b"SWAPSPACE2");
    disk
}
