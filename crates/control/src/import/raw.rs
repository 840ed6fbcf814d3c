//! Raw disks: the file contains the disk's bytes. Holes of the file are skipped.

use super::file::ImageFile;
use super::{Image, Result, Run};

/// A raw disk image.
pub(super) struct Raw(ImageFile);

impl Raw {
    /// Creates the disk of `file`.
    pub fn new(file: ImageFile) -> Raw {
        Raw(file)
    }
}

impl Image for Raw {
    fn size(&self) -> u64 {
        self.0.len()
    }

    fn run(&mut self, offset: u64) -> Result<Run> {
        self.0.run(offset)
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.0.read_at(offset, out)
    }
}
