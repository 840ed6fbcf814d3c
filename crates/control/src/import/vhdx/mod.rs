//! VHDX, the format of Hyper-V (MS-VHDX), fixed and dynamic.
//!
//! The block allocation table (BAT) has an entry for each payload block, and after each chunk of them an
//! entry for a sector bitmap block, which only differencing disks use. A file that was not closed cleanly has
//! changes of the other structures in its log ([`log`]).

mod log;

use std::cell::Cell;

use super::error::Remedy;
use super::file::ImageFile;
use super::file::bytes::{array, le16, le32, le64};
use super::{Image, Result, Run};

/// The first bytes of a VHDX file.
pub(super) const MAGIC: &[u8] = b"vhdxfile";
/// Offsets of the two headers (VHDX, 2.2).
const HEADERS: [u64; 2] = [64 << 10, 128 << 10];
/// Length of a header.
const HEADER_LEN: u64 = 4 << 10;
/// Offsets of the two region tables.
const REGION_TABLES: [u64; 2] = [192 << 10, 256 << 10];
/// Length of a region table and of the metadata table.
const TABLE_LEN: u64 = 64 << 10;
/// Maximum size of a virtual disk (VHDX, 2.6.2.2).
const MAX_SIZE: u64 = 64 << 40;

type Guid = [u8; 16];
const REGION_BAT: Guid = *b"\x66\x77\xc2\x2d\x23\xf6\x00\x42\x9d\x64\x11\x5e\x9b\xfd\x4a\x08";
const REGION_METADATA: Guid = *b"\x06\xa2\x7c\x8b\x90\x47\x9a\x4b\xb8\xfe\x57\x5f\x05\x0f\x88\x6e";
const ITEM_PARAMETERS: Guid = *b"\x37\x67\xa1\xca\x36\xfa\x43\x4d\xb3\xb6\x33\xf0\xaa\x44\xe7\x6b";
const ITEM_SIZE: Guid = *b"\x24\x42\xa5\x2f\x1b\xcd\x76\x48\xb2\x11\x5d\xbe\xd8\x3b\xf4\xb8";
const ITEM_SECTOR: Guid = *b"\x1d\xbf\x41\x81\x6f\xa9\x09\x47\xba\x47\xf2\x33\xa8\xfa\xab\x5f";

/// States of a payload block (2.5.1.1) in a disk without a parent.
mod state {
    pub const NOT_PRESENT: u64 = 0;
    pub const UNDEFINED: u64 = 1;
    pub const ZERO: u64 = 2;
    pub const UNMAPPED: u64 = 3;
    pub const PRESENT: u64 = 6;
}

/// An open VHDX file.
pub(super) struct Vhdx {
    file: Replayed,
    size: u64,
    sector_size: u64,
    block_size: u64,
    /// Payload block entries between two sector bitmap entries of the BAT.
    chunk_ratio: u64,
    bat: Vec<u64>,
}

/// The metadata items that are used.
struct Metadata {
    size: u64,
    block_size: u64,
    sector_size: u64,
}

/// A file with the changes that are in its log.
struct Replayed {
    file: ImageFile,
    pages: log::Pages,
    /// Bytes beyond the end of the file that were read as contents of the disk.
    beyond: Cell<u64>,
}

impl Replayed {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset.saturating_add(out.len() as u64);
        if end > self.pages.file_len(&self.file) {
            return Err(self.file.truncated(end));
        }
        // Beyond its end, the file has zeroes and the changes in its log.
        let present = self.file.len().saturating_sub(offset).min(out.len() as u64);
        let (present, beyond) = out.split_at_mut(present as usize);
        if !present.is_empty() {
            self.file.read_at(offset, present)?;
        }
        beyond.fill(0);
        self.pages.apply(&self.file, offset, out)
    }

    /// Reads a structure. It is in the part of the file that exists, so no allocation exceeds the file.
    fn read_vec(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        let mut bytes = self.file.read_vec(offset, len)?;
        self.pages.apply(&self.file, offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads contents of the disk, and charges them (see [`ImageFile::charge`]) even if they are beyond the
    /// end of the file.
    fn read_contents(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let len = out.len() as u64;
        let present = self.file.len().saturating_sub(offset).min(len);
        self.file.charge(present)?;
        self.beyond.set(self.beyond.get().saturating_add(len - present));
        if self.beyond.get() > self.pages.file_len(&self.file) - self.file.len() {
            return self.damaged("its tables refer to the same data more than once");
        }
        self.read_at(offset, out)
    }

    fn damaged<T>(&self, what: &'static str) -> Result<T> {
        self.file.damaged(what)
    }
}

impl Vhdx {
    /// Reads headers, region table, metadata and BAT.
    pub fn open(file: ImageFile) -> Result<Vhdx> {
        if file.read_array::<8>(0)? != MAGIC {
            return file.damaged("it is not a VHDX file");
        }
        let header = current_header(&file)?;
        let id = array::<16>(&header, 48);
        let pages = if id == [0; 16] {
            // The log is empty.
            log::Pages::default()
        } else {
            log::Pages::read(&file, le64(&header, 72), le32(&header, 68).into(), id)?
        };
        let file = Replayed { file, pages, beyond: Cell::new(0) };
        let regions = region_table(&file)?;
        let (metadata_at, metadata_len) = region(&file, &regions, REGION_METADATA)?;
        let metadata = read_metadata(&file, metadata_at, metadata_len)?;
        let (bat_at, bat_len) = region(&file, &regions, REGION_BAT)?;
        let chunk_ratio = (metadata.sector_size << 23) / metadata.block_size;
        let blocks = metadata.size.div_ceil(metadata.block_size);
        let entries = blocks + blocks.saturating_sub(1) / chunk_ratio;
        if entries * 8 > bat_len {
            return file.damaged("the length of its block allocation table does not match its size");
        }
        let bat = file.read_vec(bat_at, entries * 8)?;
        let bat = bat.chunks_exact(8).map(|e| le64(e, 0)).collect();
        let Metadata { size, block_size, sector_size } = metadata;
        Ok(Vhdx { file, size, sector_size, block_size, chunk_ratio, bat })
    }

    /// Returns the offset of block `index` in the file; `None` for a block of zeroes.
    fn block(&self, index: u64) -> Result<Option<u64>> {
        let entry = self.bat[(index + index / self.chunk_ratio) as usize];
        match entry & 7 {
            state::NOT_PRESENT | state::UNDEFINED | state::ZERO | state::UNMAPPED => Ok(None),
            state::PRESENT => Ok(Some(entry >> 20 << 20)),
            _ => self.file.damaged("a block has an invalid state"),
        }
    }
}

impl Image for Vhdx {
    fn size(&self) -> u64 {
        self.size
    }

    fn sector_size(&self) -> u64 {
        self.sector_size
    }

    fn run(&mut self, offset: u64) -> Result<Run> {
        let index = offset / self.block_size;
        let end = ((index + 1) * self.block_size).min(self.size);
        Ok(Run { len: end - offset, data: self.block(index)?.is_some() })
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        match self.block(offset / self.block_size)? {
            Some(at) => self.file.read_contents(at.saturating_add(offset % self.block_size), out),
            None => {
                out.fill(0);
                Ok(())
            }
        }
    }
}

/// Whether the checksum of a structure is correct: a CRC-32C at byte 4.
fn checksum_ok(bytes: &[u8]) -> bool {
    let mut zeroed = bytes.to_vec();
    zeroed[4..8].fill(0);
    forebay_format::crc32c(&zeroed) == le32(bytes, 4)
}

/// Returns the current header: the valid one with the higher sequence number.
fn current_header(file: &ImageFile) -> Result<Vec<u8>> {
    let mut newest: Option<Vec<u8>> = None;
    for at in HEADERS {
        let header = file.read_vec(at, HEADER_LEN)?;
        let valid = header.starts_with(b"head") && checksum_ok(&header);
        if valid && newest.as_ref().is_none_or(|n| le64(&header, 8) > le64(n, 8)) {
            newest = Some(header);
        }
    }
    let Some(header) = newest else { return file.damaged("neither of its headers is valid") };
    if le16(&header, 66) != 1 || le16(&header, 64) != 0 {
        let remedy = Remedy::Say("convert it on a Hyper-V host");
        return file.unsupported("is a VHDX file of a later version", remedy);
    }
    Ok(header)
}

fn region_table(file: &Replayed) -> Result<Vec<u8>> {
    for at in REGION_TABLES {
        let table = file.read_vec(at, TABLE_LEN)?;
        if table.starts_with(b"regi") && checksum_ok(&table) && le32(&table, 8) <= 2047 {
            return Ok(table);
        }
    }
    file.damaged("neither of its region tables is valid")
}

/// Returns the offset and length of a region.
fn region(file: &Replayed, table: &[u8], wanted: Guid) -> Result<(u64, u64)> {
    let count = le32(table, 8) as usize;
    let mut entries = table[16..].chunks_exact(32).take(count);
    match entries.find(|e| array::<16>(e, 0) == wanted) {
        Some(e) => Ok((le64(e, 16), le32(e, 24).into())),
        None => file.damaged("its region table lacks a required region"),
    }
}

fn read_metadata(file: &Replayed, at: u64, len: u64) -> Result<Metadata> {
    let table = file.read_vec(at, TABLE_LEN)?;
    let count = usize::from(le16(&table, 10));
    if !table.starts_with(b"metadata") || count > 2047 {
        return file.damaged("its metadata table is invalid");
    }
    let item = |wanted: Guid, size: u64| {
        let mut entries = table[32..].chunks_exact(32).take(count);
        let Some(e) = entries.find(|e| array::<16>(e, 0) == wanted) else {
            return file.damaged("its metadata lacks a required item");
        };
        let (offset, length) = (u64::from(le32(e, 16)), u64::from(le32(e, 20)));
        if length < size || offset < TABLE_LEN || offset + length > len {
            return file.damaged("the offset or length of a metadata item is out of range");
        }
        file.read_vec(at.saturating_add(offset), size)
    };
    let parameters = item(ITEM_PARAMETERS, 8)?;
    if le32(&parameters, 4) & 2 != 0 {
        let remedy = Remedy::Say("merge it with its parent on its host, and import the result");
        return file.file.unsupported("is a differencing disk, which is not supported", remedy);
    }
    let metadata = Metadata {
        block_size: le32(&parameters, 0).into(),
        size: le64(&item(ITEM_SIZE, 8)?, 0),
        sector_size: le32(&item(ITEM_SECTOR, 4)?, 0).into(),
    };
    let block_ok =
        metadata.block_size.is_power_of_two() && (1 << 20..=256 << 20).contains(&metadata.block_size);
    let sector_ok = matches!(metadata.sector_size, 512 | 4096);
    if !block_ok || !sector_ok || metadata.size > MAX_SIZE {
        return file.damaged("its block, sector or disk size is out of range");
    }
    Ok(metadata)
}
