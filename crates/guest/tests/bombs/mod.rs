//! Disks that no tool makes: small ones that claim to be large. Each goes for one list or loop of a parser.

pub mod ext;
pub mod ntfs;
pub mod xfs;

/// What a field is, and where; numbers are given as they stand on the disk.
pub fn put(disk: &mut [u8], at: usize, bytes: &[u8]) {
    disk[at..at + bytes.len()].copy_from_slice(bytes);
}
