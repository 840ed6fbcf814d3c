//! Crafted disks: small ones that claim to be large. Each one targets a list or a loop of a parser.

pub mod ext;
pub mod ntfs;
pub mod xfs;

/// Writes the bytes of a field, in the byte order of the disk.
pub fn put(disk: &mut [u8], at: usize, bytes: &[u8]) {
    disk[at..at + bytes.len()].copy_from_slice(bytes);
}
