//! VHD, the format of Virtual PC, Hyper-V and Azure (Virtual Hard Disk Image Format Specification 1.0), fixed
//! and dynamic.
//!
//! A fixed disk is the raw disk followed by a footer of 512 bytes. A dynamic disk begins with a copy of the
//! footer and a header, and its block allocation table refers to blocks, each of which begins with a bitmap
//! of the sectors that were written. Sectors that were not written are zero in the file, so the bitmap is
//! ignored, as QEMU does. The size is that in the footer. The geometry of the footer is a rounded value.

use super::error::Remedy;
use super::file::ImageFile;
use super::file::bytes::{be32, be64};
use super::{Image, Result, Run};

/// The first bytes of the footer of a VHD file.
const MAGIC: &[u8] = b"conectix";
/// Length of the footer and of a sector.
const FOOTER_LEN: u64 = 512;
/// Length of the header of a dynamic disk.
const HEADER_LEN: u64 = 1024;
/// Entry of the table for a block that is not in the file.
const NOT_ALLOCATED: u32 = u32::MAX;
/// Maximum size of a block; in practice, 2 MiB.
const MAX_BLOCK: u64 = 1 << 30;

/// Type of a disk (footer, byte 60).
mod kind {
    pub const FIXED: u32 = 2;
    pub const DYNAMIC: u32 = 3;
    pub const DIFFERENCING: u32 = 4;
}

/// Whether a file begins or ends with a footer.
pub(super) fn is_vhd(file: &ImageFile) -> Result<bool> {
    let starts = |at| -> Result<bool> { Ok(file.read_array::<8>(at)? == MAGIC) };
    Ok(file.len() > FOOTER_LEN && (starts(0)? || starts(file.len() - FOOTER_LEN)?))
}

/// An open VHD file.
pub(super) struct Vhd {
    file: ImageFile,
    size: u64,
    /// Table of blocks; `None` for a fixed disk.
    blocks: Option<Blocks>,
}

struct Blocks {
    /// Size of a block without its bitmap, in bytes.
    size: u64,
    bitmap_len: u64,
    table: Vec<u32>,
}

impl Blocks {
    /// Returns the offset of block `index` in the file; `None` for a block of zeroes.
    fn at(&self, index: u64) -> Option<u64> {
        let sector = self.table[index as usize];
        (sector != NOT_ALLOCATED).then(|| u64::from(sector) * FOOTER_LEN + self.bitmap_len)
    }
}

impl Vhd {
    /// Reads the footer, and the header and the table of a dynamic disk.
    pub fn open(file: ImageFile) -> Result<Vhd> {
        let Some(footer) = footer(&file)? else { return file.damaged("neither of its footers is valid") };
        let size = be64(&footer, 48);
        let blocks = match be32(&footer, 60) {
            kind::FIXED => {
                let end = size.saturating_add(FOOTER_LEN);
                if end > file.len() {
                    return Err(file.truncated(end));
                }
                None
            }
            kind::DYNAMIC => Some(blocks(&file, be64(&footer, 16), size)?),
            kind::DIFFERENCING => {
                let remedy = Remedy::Say("merge it with its parent on its host, and import the result");
                return file.unsupported("is a differencing disk, which is not supported", remedy);
            }
            _ => return file.damaged("its footer has an unknown type of disk"),
        };
        Ok(Vhd { file, size, blocks })
    }
}

/// Returns the valid footer at the end of the file, or its copy at the start.
fn footer(file: &ImageFile) -> Result<Option<Vec<u8>>> {
    for at in [file.len().saturating_sub(FOOTER_LEN), 0] {
        let footer = file.read_vec(at, FOOTER_LEN)?;
        if footer.starts_with(MAGIC) && checksum_ok(&footer, 64) {
            return Ok(Some(footer));
        }
    }
    Ok(None)
}

/// Whether the checksum at `at` is the complement of the sum of all other bytes.
fn checksum_ok(bytes: &[u8], at: usize) -> bool {
    let rest = bytes[..at].iter().chain(&bytes[at + 4..]);
    !rest.map(|b| u32::from(*b)).sum::<u32>() == be32(bytes, at)
}

/// Reads the header at `at` and the block allocation table of a dynamic disk.
fn blocks(file: &ImageFile, at: u64, size: u64) -> Result<Blocks> {
    let header = file.read_vec(at, HEADER_LEN)?;
    if !header.starts_with(b"cxsparse") || !checksum_ok(&header, 36) {
        return file.damaged("the header of its blocks is invalid");
    }
    let block = u64::from(be32(&header, 32));
    if !block.is_power_of_two() || !(FOOTER_LEN..=MAX_BLOCK).contains(&block) {
        return file.damaged("its block size is out of range");
    }
    let needed = size.div_ceil(block);
    if needed > be32(&header, 28).into() {
        return file.damaged("the length of its block allocation table does not match its size");
    }
    let table = file.read_vec(be64(&header, 16), needed * 4)?;
    let table = table.chunks_exact(4).map(|e| be32(e, 0)).collect();
    let bitmap_len = (block / FOOTER_LEN).div_ceil(8).next_multiple_of(FOOTER_LEN);
    Ok(Blocks { size: block, bitmap_len, table })
}

impl Image for Vhd {
    fn size(&self) -> u64 {
        self.size
    }

    fn run(&mut self, offset: u64) -> Result<Run> {
        let Some(blocks) = &self.blocks else {
            let run = self.file.run(offset)?;
            return Ok(Run { len: run.len.min(self.size - offset), data: run.data });
        };
        let index = offset / blocks.size;
        let end = ((index + 1) * blocks.size).min(self.size);
        Ok(Run { len: end - offset, data: blocks.at(index).is_some() })
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        let Some(blocks) = &self.blocks else { return self.file.read_contents(offset, out) };
        match blocks.at(offset / blocks.size) {
            Some(at) => self.file.read_contents(at + offset % blocks.size, out),
            None => {
                out.fill(0);
                Ok(())
            }
        }
    }
}
