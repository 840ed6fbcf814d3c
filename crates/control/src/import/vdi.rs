//! VDI, the format of VirtualBox: dynamic and fixed images of version 1.
//!
//! A map has the number of the data block of each block of the disk. The data blocks follow each other, each
//! after a prologue whose length the header states. A fixed image is the same with all blocks allocated. The
//! file of a snapshot has only the blocks that differ from its parent, so it is refused.
//!
//! The map is read in pages, since the map of a large disk has hundreds of MiB.

use super::error::Remedy;
use super::file::ImageFile;
use super::file::bytes::{array, le32, le64};
use super::{Image, Result, Run};

/// The signature, and its offset in the file.
pub(super) const MAGIC: (usize, &[u8]) = (64, b"\x7f\x10\xda\xbe");
/// Bytes of the file that have fields which are read.
const HEADER: u64 = 0x1c8;
/// Version of the header: the high half is the major version.
const MAJOR: u32 = 1;
/// Sizes of a block. VirtualBox writes blocks of 1 MiB.
const BLOCK_SIZES: std::ops::RangeInclusive<u64> = 4 << 10..=64 << 20;
/// Maximum size of a disk, the same as of disks of the pool.
const MAX_SIZE: u64 = 64 << 40;
/// Entries of the map from which on a block has no data: it is zero, or was never written.
const NO_DATA: u32 = 0xffff_fffe;
/// Bytes of the map that are read at once, and their entries.
const PAGE: u64 = 64 << 10;
const PAGE_ENTRIES: u64 = PAGE / 4;
/// Maximum length of a run in bytes. The limit lets the caller report progress.
const MAX_RUN: u64 = 64 << 20;

/// What to do about an image that depends on others.
const CLONE: Remedy = Remedy::Say(
    "clone the medium with 'VBoxManage clonemedium disk FILE NEW.vdi', which has all data, and import the clone",
);

/// An open VDI file.
pub(super) struct Vdi {
    file: ImageFile,
    size: u64,
    block_size: u64,
    /// Offset of the map in the file.
    map_at: u64,
    /// Number of blocks of the disk.
    blocks: u64,
    /// Offset of the first data block, and the length of the prologue of each one.
    data_at: u64,
    prologue: u64,
    /// The cached page of the map: its number and its bytes.
    page: (Option<u64>, Vec<u8>),
}

impl Vdi {
    /// Reads the header.
    pub fn open(file: ImageFile) -> Result<Vdi> {
        let header = file.read_vec(0, HEADER)?;
        if header.get(MAGIC.0..MAGIC.0 + 4) != Some(MAGIC.1) {
            return file.damaged("it is not a VDI file");
        }
        if le32(&header, 0x44) >> 16 != MAJOR {
            return file
                .unsupported("is a VDI file of another version than 1", Remedy::Convert { from: "vdi" });
        }
        let parents: [[u8; 16]; 2] = [array(&header, 0x1a8), array(&header, 0x1b8)];
        match le32(&header, 0x4c) {
            1 | 2 if parents == [[0; 16]; 2] => {}
            1..=4 => {
                return file
                    .unsupported("is a snapshot or differencing image, which needs its parent", CLONE);
            }
            _ => return file.damaged("its type is unknown"),
        }
        let (map_at, data_at) = (u64::from(le32(&header, 0x154)), u64::from(le32(&header, 0x158)));
        let (size, block_size) = (le64(&header, 0x170), u64::from(le32(&header, 0x178)));
        let (prologue, blocks) = (u64::from(le32(&header, 0x17c)), u64::from(le32(&header, 0x180)));
        if le32(&header, 0x168) != 512 {
            return file
                .unsupported("has sectors of another size than 512 bytes", Remedy::Convert { from: "vdi" });
        }
        if !block_size.is_power_of_two() || !BLOCK_SIZES.contains(&block_size) || prologue > block_size {
            return file.damaged("the size of its blocks is out of range");
        }
        if size > MAX_SIZE || blocks < size.div_ceil(block_size) {
            return file.damaged("its map does not match its size");
        }
        let blocks = size.div_ceil(block_size);
        let map_end = map_at + blocks * 4;
        if map_end > file.len() {
            return Err(file.truncated(map_end));
        }
        Ok(Vdi { file, size, block_size, map_at, blocks, data_at, prologue, page: (None, Vec::new()) })
    }

    /// Returns the offset in the file of a block of the disk; `None` if the block has no data.
    fn locate(&mut self, block: u64) -> Result<Option<u64>> {
        let number = block / PAGE_ENTRIES;
        if self.page.0 != Some(number) {
            let first = number * PAGE_ENTRIES;
            let entries = (self.blocks - first).min(PAGE_ENTRIES);
            self.page = (Some(number), self.file.read_vec(self.map_at + first * 4, entries * 4)?);
        }
        let entry = le32(&self.page.1, (block % PAGE_ENTRIES) as usize * 4);
        let at =
            |entry: u32| self.data_at + u64::from(entry) * (self.block_size + self.prologue) + self.prologue;
        Ok((entry < NO_DATA).then(|| at(entry)))
    }
}

impl Image for Vdi {
    fn size(&self) -> u64 {
        self.size
    }

    fn run(&mut self, offset: u64) -> Result<Run> {
        let block = offset / self.block_size;
        let first = self.locate(block)?;
        let most = (block + (MAX_RUN / self.block_size).max(1)).min(self.blocks);
        let mut end = block + 1;
        // The data of several blocks is read block by block.
        while first.is_none() && end < most && self.locate(end)?.is_none() {
            end += 1;
        }
        let end = (end * self.block_size).min(self.size);
        Ok(Run { len: end - offset, data: first.is_some() })
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        match self.locate(offset / self.block_size)? {
            Some(at) => self.file.read_contents(at + offset % self.block_size, out),
            None => {
                out.fill(0);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A disk of three blocks and a half, with these changes of the header.
    fn image(map: [u32; 4], changes: &[(usize, u32)]) -> (tempfile::NamedTempFile, Result<Vdi>) {
        let mut header = vec![0; 1024];
        header[MAGIC.0..MAGIC.0 + 4].copy_from_slice(MAGIC.1);
        let size = 3 * MIB + MIB / 2;
        let fields = [
            (0x44, 0x0001_0001),
            (0x4c, 1),
            (0x154, 512),
            (0x158, 1024),
            (0x168, 512),
            (0x170, size as u32),
            (0x178, MIB as u32),
            (0x180, 4),
        ];
        for (at, number) in fields.iter().chain(changes) {
            header[*at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        for (i, entry) in map.iter().enumerate() {
            header[512 + 4 * i..][..4].copy_from_slice(&entry.to_le_bytes());
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(&header, 0).unwrap();
        for block in 0..2 {
            file.as_file()
                .write_all_at(&vec![block + 1; MIB as usize], 1024 + u64::from(block) * MIB)
                .unwrap();
        }
        let opened = Vdi::open(ImageFile::open(file.path()).unwrap());
        (file, opened)
    }

    #[test]
    fn blocks_are_found_by_the_map() {
        let (_file, vdi) = image([1, u32::MAX, NO_DATA, 0], &[]);
        let mut vdi = vdi.unwrap();
        let run = |vdi: &mut Vdi, at| vdi.run(at).map(|run| (run.len, run.data)).unwrap();
        assert_eq!(run(&mut vdi, 512), (MIB - 512, true));
        assert_eq!(run(&mut vdi, MIB), (2 * MIB, false));
        assert_eq!(run(&mut vdi, 3 * MIB), (MIB / 2, true));
        let mut sector = [0; 512];
        for (at, byte) in [(0, 2), (MIB - 512, 2), (3 * MIB, 1)] {
            vdi.read(at, &mut sector).unwrap();
            assert_eq!(sector, [byte; 512], "at {at}");
        }
    }

    #[test]
    fn prologues_of_blocks_are_skipped() {
        let (_file, vdi) = image([0, 1, u32::MAX, u32::MAX], &[(0x17c, 512)]);
        let mut sectors = [0; 1024];
        vdi.unwrap().read(MIB - 1024, &mut sectors).unwrap();
        // The prologue was the beginning of the first block, so the end is that of the next one.
        assert_eq!((sectors[511], sectors[512]), (1, 2));
    }

    #[test]
    fn images_that_need_a_parent_or_are_invalid_are_refused() {
        for (changes, part) in [
            (&[(0x4c, 4)][..], "differencing"),
            (&[(0x4c, 3)], "differencing"),
            (&[(0x1a8, 7)], "clonemedium"),
            (&[(0x4c, 9)], "type"),
            (&[(0x44, 2)], "version"),
            (&[(0x178, 3000)], "size of its blocks"),
            (&[(0x178, 0)], "size of its blocks"),
            (&[(0x17c, u32::MAX)], "size of its blocks"),
            (&[(0x180, 3)], "map"),
            (&[(0x174, 1 << 20)], "map"),
            (&[(0x154, u32::MAX)], "truncated"),
            (&[(0x168, 4096)], "sectors"),
            (&[(64, 0)], "not a VDI"),
        ] {
            let error = image([0; 4], changes).1.err().expect(part).to_string();
            assert!(error.contains(part), "{changes:?}: {error}");
        }
        // Each block is the content of one place of the disk.
        let (_file, vdi) = image([0; 4], &[]);
        let (mut vdi, mut block) = (vdi.unwrap(), vec![0; MIB as usize]);
        let read = (0..3).try_for_each(|n| vdi.read(n * MIB, &mut block));
        assert!(read.unwrap_err().to_string().contains("more than once"));
    }
}
