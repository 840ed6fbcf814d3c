//! What each block of a disk is expected to contain.
//!
//! A block's content is determined by its position and a version, so it can be verified without a copy.
//! Version 0 is unknown (never written), 1 was written before the first phase, each later write has another
//! one. Only one stream at a time writes a range (the scenario's check ensures it), so a version is read and
//! written by one thread.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::load::{Content, Fill};

/// The state of a disk; see the module documentation.
pub(super) struct DiskState {
    /// Name of the disk, for messages.
    pub name: String,
    /// Bytes of a block.
    pub grain: u64,
    pub size: u64,
    /// Distinguishes the writes of clones of one disk.
    number: u32,
    content: Content,
    versions: Vec<AtomicU32>,
    next: AtomicU32,
}

/// The version of what was written before the first phase.
pub(super) const PREFILLED: u32 = 1;

impl DiskState {
    /// A disk without content. Clones have the seed of their origin and different numbers.
    pub fn new(name: String, size: u64, grain: u64, fill: &Fill, seed: u64, number: u32) -> DiskState {
        DiskState {
            name,
            grain,
            size,
            number,
            content: Content::of(seed, fill).in_units_of(grain),
            versions: (0..size / grain).map(|_| AtomicU32::new(0)).collect(),
            next: AtomicU32::new(PREFILLED + 1),
        }
    }

    /// The disk contains what was written before the first phase.
    pub fn set_prefilled(&self) {
        self.versions.iter().for_each(|v| v.store(PREFILLED, Relaxed));
    }

    /// A version for a write.
    pub fn next_version(&self) -> u32 {
        self.next.fetch_add(1, Relaxed)
    }

    fn content_version(&self, version: u32) -> u64 {
        let number = if version == PREFILLED { 0 } else { self.number };
        u64::from(number) << 32 | u64::from(version)
    }

    /// The data of a write.
    pub fn fill(&self, offset: u64, version: u32, data: &mut [u8]) {
        self.content.fill(offset, self.content_version(version), data);
    }

    /// Whether the data of a block is that of a version.
    pub fn matches(&self, block: u32, version: u32, data: &[u8]) -> bool {
        self.content.matches(u64::from(block) * self.grain, self.content_version(version), data)
    }

    /// The blocks of a range.
    pub fn blocks(&self, offset: u64, len: u32) -> std::ops::Range<u32> {
        (offset / self.grain) as u32..((offset + u64::from(len)).div_ceil(self.grain)) as u32
    }

    /// The version of a block.
    pub fn version(&self, block: u32) -> u32 {
        self.versions.get(block as usize).map_or(0, |v| v.load(Relaxed))
    }

    /// Records that a block has this version now.
    pub fn set_version(&self, block: u32, version: u32) {
        if let Some(v) = self.versions.get(block as usize) {
            v.store(version, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_what_was_prefilled_and_nothing_else() {
        let disk = |n| DiskState::new("d".into(), 1 << 20, 4096, &Fill::Noise, 7, n);
        let (origin, clone) = (disk(0), disk(1));
        let mut data = vec![0; 4096];
        origin.fill(8192, PREFILLED, &mut data);
        assert!(clone.matches(2, PREFILLED, &data));
        origin.fill(8192, 2, &mut data);
        assert!(origin.matches(2, 2, &data) && !clone.matches(2, 2, &data));
        assert_eq!(origin.blocks(8192, 8192), 2..4);
        assert_eq!(origin.version(5), 0);
        origin.set_version(5, 9);
        assert_eq!((origin.version(5), origin.version(9999)), (9, 0));
    }
}
