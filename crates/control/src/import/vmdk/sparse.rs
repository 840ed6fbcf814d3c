//! A sparse extent of a VMDK: the grain directory points to grain tables, and these point to grains. In a
//! stream-optimised extent, grains are compressed and preceded by markers, and the grain directory is at the
//! end of the file.

use super::super::compress::decompress_zlib;
use super::super::error::Remedy;
use super::super::file::ImageFile;
use super::super::file::bytes::{le16, le32, le64};
use super::super::{Image, Result, Run};
use super::SECTOR;
use super::descriptor::{Descriptor, is_descriptor};

/// The first bytes of a sparse extent.
pub const MAGIC: &[u8] = b"KDMV";
/// Bytes of the header.
const HEADER: u64 = 512;
/// Grain directory offset in the header of a file whose footer, a copy of the header at the end, has the
/// actual offset (`GD_AT_END`).
const GD_AT_END: u64 = u64::MAX;
/// Maximum grain size in sectors. In practice, 128 KiB is not exceeded.
const MAX_GRAIN: u64 = 4096;
/// Maximum number of entries of a grain table.
const MAX_TABLE: u64 = 4096;
/// Maximum number of grain tables: a directory of 64 MiB, for 500 TiB with the usual sizes.
const MAX_TABLES: u64 = 16 << 20;
/// Maximum size of an extent.
const MAX_SIZE: u64 = 64 << 40;

/// What to do about a variant that is not known.
const UNKNOWN: Remedy = Remedy::Say("convert it to raw with the program that made it");

/// Flags of the header.
mod flag {
    /// A grain table entry of 1 means that the grain is zero.
    pub const ZERO_GRAIN: u32 = 1 << 2;
    pub const COMPRESSED: u32 = 1 << 16;
    pub const MARKERS: u32 = 1 << 17;
}

/// The location of a grain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grain {
    Zero,
    /// The grain is at this offset in the file.
    At(u64),
}

/// An open sparse extent.
pub(super) struct Sparse {
    file: ImageFile,
    size: u64,
    grain: u64,
    table_entries: u64,
    zero_grain: bool,
    compressed: bool,
    described: bool,
    directory: Vec<u32>,
    /// The cached grain table: its index in the directory and its bytes.
    table: (Option<u64>, Vec<u8>),
    /// The cached decompressed grain: its index and its bytes.
    decompressed: (Option<u64>, Vec<u8>),
}

impl Sparse {
    /// Reads header, descriptor and grain directory.
    pub fn open(file: ImageFile) -> Result<Sparse> {
        let mut header = file.read_vec(0, HEADER)?;
        check(&file, &header)?;
        let described = check_descriptor(&file, &header)?;
        if le64(&header, 56) == GD_AT_END {
            // The last sector is the end-of-stream marker, and the sector before it the footer.
            header = file.read_vec(file.len().saturating_sub(2 * SECTOR), HEADER)?;
            check(&file, &header)?;
        }
        let flags = le32(&header, 8);
        let (capacity, grain, table_entries) =
            (le64(&header, 12), le64(&header, 20), u64::from(le32(&header, 44)));
        let compressed = flags & flag::COMPRESSED != 0;
        if compressed && le16(&header, 77) != 1 {
            return file.unsupported("uses an unknown compression type", UNKNOWN);
        }
        if compressed != (flags & flag::MARKERS != 0) {
            return file.damaged("its header flags are inconsistent");
        }
        let size = capacity.checked_mul(SECTOR).filter(|s| *s <= MAX_SIZE);
        let size = size.ok_or_else(|| file.damaged_or("its size is out of range"))?;
        let grain_ok = grain.is_power_of_two() && (1..=MAX_GRAIN).contains(&grain);
        if !grain_ok || !(1..=MAX_TABLE).contains(&table_entries) {
            return file.damaged("its grain size is out of range");
        }
        let tables = capacity.div_ceil(grain * table_entries);
        if tables > MAX_TABLES {
            return file.damaged("its grain directory is too long");
        }
        let at = le64(&header, 56).saturating_mul(SECTOR);
        let directory = file.read_vec(at, tables * 4)?;
        let directory = directory.chunks_exact(4).map(|e| le32(e, 0)).collect();
        Ok(Sparse {
            file,
            size,
            grain: grain * SECTOR,
            table_entries,
            zero_grain: flags & flag::ZERO_GRAIN != 0,
            compressed,
            described,
            directory,
            table: (None, Vec::new()),
            decompressed: (None, Vec::new()),
        })
    }

    /// Whether the extent contains the descriptor of its disk. Otherwise it may be a part of a disk.
    pub fn is_described(&self) -> bool {
        self.described
    }

    /// The file of the extent.
    pub fn file(&self) -> &ImageFile {
        &self.file
    }

    /// Returns the location of grain `index`. If it is zero, also returns how many grains from it on are
    /// known to be zero; otherwise 1.
    fn grain(&mut self, index: u64) -> Result<(Grain, u64)> {
        let (table, entry) = (index / self.table_entries, index % self.table_entries);
        let table_sector = u64::from(self.directory[table as usize]);
        if table_sector == 0 || (table_sector == 1 && self.zero_grain) {
            return Ok((Grain::Zero, self.table_entries - entry));
        }
        if self.table.0 != Some(table) {
            let bytes = self.file.read_vec(table_sector * SECTOR, self.table_entries * 4)?;
            self.table = (Some(table), bytes);
        }
        match u64::from(le32(&self.table.1, entry as usize * 4)) {
            0 => Ok((Grain::Zero, 1)),
            1 if self.zero_grain => Ok((Grain::Zero, 1)),
            sector => Ok((Grain::At(sector * SECTOR), 1)),
        }
    }

    /// Decompresses a grain, unless it is cached. Its marker has the disk sector (8 bytes) and the length of
    /// the compressed data (4 bytes), which follows.
    fn load_compressed(&mut self, index: u64, at: u64) -> Result<()> {
        if self.decompressed.0 == Some(index) {
            return Ok(());
        }
        self.decompressed.0 = None;
        let marker: [u8; 12] = self.file.read_array(at)?;
        let (sector, len) = (le64(&marker, 0), u64::from(le32(&marker, 8)));
        // Compressed data is hardly longer than the grain.
        if sector != index * (self.grain / SECTOR) || len > 2 * self.grain + 1024 {
            return self.file.damaged("the marker of a grain does not match its grain table");
        }
        self.file.charge(12 + len)?;
        let compressed = self.file.read_vec(at.saturating_add(12), len)?;
        self.decompressed.1.resize(self.grain as usize, 0);
        let needed = (self.size - index * self.grain).min(self.grain) as usize;
        match decompress_zlib(&compressed, &mut self.decompressed.1) {
            Ok(got) if got >= needed => (),
            _ => return self.file.damaged("a compressed grain cannot be decompressed"),
        }
        self.decompressed.0 = Some(index);
        Ok(())
    }
}

fn check(file: &ImageFile, header: &[u8]) -> Result<()> {
    if !header.starts_with(MAGIC) {
        return file.damaged("its header or footer is missing");
    }
    if !(1..=3).contains(&le32(header, 4)) {
        return file.unsupported("is a VMDK file of an unknown version", UNKNOWN);
    }
    // The header contains line ends, which a transfer in text mode converts.
    if header[73..77] != *b"\n \r\n" {
        return file.damaged("it was transferred in text mode");
    }
    Ok(())
}

/// Checks the optional embedded descriptor: a delta disk is refused. Returns whether there is a descriptor.
fn check_descriptor(file: &ImageFile, header: &[u8]) -> Result<bool> {
    let (at, sectors) = (le64(header, 28), le64(header, 36));
    if at == 0 || sectors == 0 {
        return Ok(false);
    }
    if sectors > super::MAX_DESCRIPTOR / SECTOR {
        return file.damaged("its descriptor is too long");
    }
    let text = file.read_vec(at.saturating_mul(SECTOR), sectors * SECTOR)?;
    // The extents of a split disk have space for a descriptor, which is blank.
    if is_descriptor(&text) { Descriptor::parse(file, &text).map(|_| true) } else { Ok(false) }
}

impl Image for Sparse {
    fn size(&self) -> u64 {
        self.size
    }

    fn run(&mut self, offset: u64) -> Result<Run> {
        let index = offset / self.grain;
        let (grain, count) = self.grain(index)?;
        let end = ((index + count) * self.grain).min(self.size);
        Ok(Run { len: end - offset, data: grain != Grain::Zero })
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        let (index, skip) = (offset / self.grain, offset % self.grain);
        match self.grain(index)?.0 {
            Grain::Zero => out.fill(0),
            Grain::At(at) if self.compressed => {
                self.load_compressed(index, at)?;
                let skip = skip as usize;
                out.copy_from_slice(&self.decompressed.1[skip..skip + out.len()]);
            }
            Grain::At(at) => self.file.read_contents(at + skip, out)?,
        }
        Ok(())
    }
}
