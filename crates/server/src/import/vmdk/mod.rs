//! VMDK, VMware's format (Virtual Disk Format 5.0).
//!
//! A disk is a list of extents. A descriptor, a small text, names them and their files: flat ones are the
//! bytes of the disk, sparse ones have tables. A monolithic sparse or stream-optimised file is one sparse
//! extent with the descriptor inside.

mod descriptor;
mod sparse;

use super::file::ImageFile;
use super::{Image, ImportError, Result, Run};
use descriptor::{Descriptor, ExtentKind};
use sparse::Sparse;

pub(super) use descriptor::is_descriptor;
pub(super) use sparse::MAGIC as SPARSE_MAGIC;

/// Bytes of the unit in which VMDK counts.
const SECTOR: u64 = 512;
/// Longest descriptor file.
const MAX_DESCRIPTOR: u64 = 1 << 20;

/// Opens a sparse file, or a descriptor and the files that it names.
pub(super) fn open(file: ImageFile) -> Result<Box<dyn Image>> {
    if file.read_vec(0, file.len().min(4))? == SPARSE_MAGIC {
        let sparse = Sparse::open(file)?;
        return Ok(Box::new(sparse));
    }
    if file.len() > MAX_DESCRIPTOR {
        return file.damaged("it is neither a sparse VMDK nor a descriptor");
    }
    let text = file.read_vec(0, file.len())?;
    let descriptor = Descriptor::parse(&file, &text)?;
    let mut extents = Vec::new();
    let mut start = 0u64;
    for e in &descriptor.extents {
        let len = e.sectors.checked_mul(SECTOR).ok_or_else(|| file.damaged_or("an extent is too long"))?;
        let end = start.checked_add(len).ok_or_else(|| file.damaged_or("its extents are too long"))?;
        let body = match &e.kind {
            ExtentKind::Zero => Body::Zero,
            ExtentKind::Flat { name, offset_sectors } => {
                let flat = file.open_sibling(name)?;
                let skip = offset_sectors.saturating_mul(SECTOR);
                if skip.checked_add(len).is_none_or(|end| end > flat.len()) {
                    let (path, offset) = (flat.shown().to_owned(), skip.saturating_add(len));
                    return Err(ImportError::Truncated { path, len: flat.len(), offset });
                }
                Body::Flat { file: flat, skip }
            }
            ExtentKind::Sparse { name } => {
                let sparse = Sparse::open(file.open_sibling(name)?)?;
                if sparse.size() < len {
                    return file.damaged("an extent is shorter than the descriptor says");
                }
                Body::Sparse(Box::new(sparse))
            }
        };
        extents.push(Extent { start, end, body });
        start = end;
    }
    if start == 0 {
        return file.damaged("its descriptor names no extents");
    }
    Ok(Box::new(Extents { extents, current: 0 }))
}

/// One part of a disk.
struct Extent {
    start: u64,
    end: u64,
    body: Body,
}

enum Body {
    Zero,
    Flat { file: ImageFile, skip: u64 },
    Sparse(Box<Sparse>),
}

/// A disk made of extents, none of them empty, without gaps.
struct Extents {
    extents: Vec<Extent>,
    /// The extent used last.
    current: usize,
}

impl Extents {
    fn at(&mut self, offset: u64) -> &mut Extent {
        let e = &self.extents[self.current];
        if !(e.start..e.end).contains(&offset) {
            self.current = self.extents.partition_point(|e| e.end <= offset);
        }
        &mut self.extents[self.current]
    }
}

impl Image for Extents {
    fn size(&self) -> u64 {
        self.extents.last().map_or(0, |e| e.end)
    }

    fn run(&mut self, offset: u64) -> Result<Run> {
        let e = self.at(offset);
        let (inner, rest) = (offset - e.start, e.end - offset);
        let run = match &mut e.body {
            Body::Zero => Run { len: rest, data: false },
            Body::Flat { file, skip } => file.run(*skip + inner)?,
            Body::Sparse(sparse) => sparse.run(inner)?,
        };
        Ok(Run { len: run.len.min(rest), data: run.data })
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        let e = self.at(offset);
        let inner = offset - e.start;
        match &mut e.body {
            Body::Zero => {
                out.fill(0);
                Ok(())
            }
            Body::Flat { file, skip } => file.read_at(*skip + inner, out),
            Body::Sparse(sparse) => sparse.read(inner, out),
        }
    }
}
