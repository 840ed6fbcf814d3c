//! VMDK, the format of VMware (Virtual Disk Format 5.0).
//!
//! A disk is a list of extents. A text descriptor lists the extents and their files: flat extents contain the
//! bytes of the disk, sparse extents have grain tables. A monolithic sparse or stream-optimised file is one
//! sparse extent with an embedded descriptor.
//!
//! Each extent file is opened once to compare it with its line in the descriptor, and again when it is read.
//! At most one extent file is open at a time, so that the number of extents affects neither file descriptors
//! nor memory.

mod descriptor;
mod sparse;

use descriptor::{Descriptor, ExtentKind};
use sparse::Sparse;

use super::error::Remedy;
use super::file::{FileIdentity, ImageFile};
use super::{Image, Result, Run};

pub(super) use descriptor::is_descriptor;
pub(super) use sparse::MAGIC as SPARSE_MAGIC;

/// Sector size; VMDK counts in sectors.
const SECTOR: u64 = 512;
/// Maximum length of a descriptor. VMware writes a few hundred bytes, plus about 50 for each extent.
const MAX_DESCRIPTOR: u64 = 256 << 10;
/// Maximum number of extents: twice the number of a disk of 4 TiB in extents of 2 GiB.
const MAX_EXTENTS: usize = 4096;

/// Opens a sparse file, or a descriptor and the files that it references. A sparse file without a descriptor
/// may be one extent of a split disk, so it is opened only if the user has named the format.
pub(super) fn open(file: ImageFile, format_is_given: bool) -> Result<Box<dyn Image>> {
    if file.read_vec(0, file.len().min(4))? == SPARSE_MAGIC {
        let sparse = Sparse::open(file)?;
        if !sparse.is_described() && !format_is_given {
            let remedy = Remedy::Say(
                "import the small file with the descriptor instead, or, if this file is the whole disk, import it with \
                 --format vmdk",
            );
            return sparse.file().unsupported("is one extent of a disk in several files", remedy);
        }
        return Ok(Box::new(sparse));
    }
    if file.len() > MAX_DESCRIPTOR {
        return file.damaged("it is neither a sparse VMDK nor a descriptor");
    }
    let text = file.read_vec(0, file.len())?;
    let descriptor = Descriptor::parse(&file, &text)?;
    let mut extents = Vec::with_capacity(descriptor.extents.len());
    let mut used = Vec::with_capacity(descriptor.extents.len());
    let mut start = 0u64;
    for line in descriptor.extents {
        let len = line.sectors.checked_mul(SECTOR).ok_or_else(|| file.damaged_or("an extent is too long"))?;
        let end = start.checked_add(len).ok_or_else(|| file.damaged_or("its extents are too long"))?;
        let extent = Extent { start, end, kind: line.kind };
        used.extend(extent.open(&file)?.used(len)?);
        extents.push(extent);
        start = end;
    }
    // Each file counts its contents separately (`ImageFile::charge`). Without this check, a small descriptor
    // could repeat a large file 4096 times.
    used.sort_unstable();
    if used.windows(2).any(|pair| pair[0].identity == pair[1].identity && pair[1].start < pair[0].end) {
        return file.damaged("its extents refer to the same data more than once");
    }
    if start == 0 {
        return file.damaged("its descriptor lists no extents");
    }
    Ok(Box::new(Extents { descriptor: file, extents, current: None }))
}

/// An extent: a range of the disk.
struct Extent {
    start: u64,
    end: u64,
    kind: ExtentKind,
}

impl Extent {
    /// Opens the extent's file, which is in the directory of the `descriptor`, and checks its length.
    fn open(&self, descriptor: &ImageFile) -> Result<Body> {
        let len = self.end - self.start;
        match &self.kind {
            ExtentKind::Zero => Ok(Body::Zero),
            ExtentKind::Flat { name, offset_sectors } => {
                let flat = descriptor.open_sibling(name)?;
                let skip = offset_sectors.saturating_mul(SECTOR);
                let end = skip.saturating_add(len);
                if end > flat.len() {
                    return Err(flat.truncated(end));
                }
                Ok(Body::Flat { file: flat, skip })
            }
            ExtentKind::Sparse { name } => {
                let sparse = Sparse::open(descriptor.open_sibling(name)?)?;
                if sparse.size() < len {
                    return descriptor.damaged("an extent is shorter than its line in the descriptor");
                }
                Ok(Body::Sparse(Box::new(sparse)))
            }
        }
    }
}

/// An extent whose file is open.
enum Body {
    Zero,
    Flat { file: ImageFile, skip: u64 },
    Sparse(Box<Sparse>),
}

/// The part of a file that an extent uses. Parts of one file are ordered by their start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Used {
    identity: FileIdentity,
    start: u64,
    end: u64,
}

impl Body {
    /// Returns the part of the file that an extent of `len` bytes uses; `None` without a file.
    fn used(&self, len: u64) -> Result<Option<Used>> {
        let (file, start, end) = match self {
            Body::Zero => return Ok(None),
            Body::Flat { file, skip } => (file, *skip, skip.saturating_add(len)),
            Body::Sparse(sparse) => (sparse.file(), 0, u64::MAX),
        };
        Ok(Some(Used { identity: file.identity()?, start, end }))
    }
}

/// A disk of contiguous, non-empty extents.
struct Extents {
    descriptor: ImageFile,
    extents: Vec<Extent>,
    /// The open extent: its index and its file.
    current: Option<(usize, Body)>,
}

impl Extents {
    /// Returns the start, the end and the open file of the extent at `offset`.
    fn at(&mut self, offset: u64) -> Result<(u64, u64, &mut Body)> {
        let index = self.extents.partition_point(|e| e.end <= offset);
        let extent = &self.extents[index];
        let current = match self.current.take() {
            Some((open, body)) if open == index => (open, body),
            // Closes the previous extent before opening the next.
            other => {
                drop(other);
                (index, extent.open(&self.descriptor)?)
            }
        };
        let (_, body) = self.current.insert(current);
        Ok((extent.start, extent.end, body))
    }
}

impl Image for Extents {
    fn size(&self) -> u64 {
        self.extents.last().map_or(0, |e| e.end)
    }

    fn run(&mut self, offset: u64) -> Result<Run> {
        let (start, end, body) = self.at(offset)?;
        let (inner, rest) = (offset - start, end - offset);
        let run = match body {
            Body::Zero => Run { len: rest, data: false },
            Body::Flat { file, skip } => file.run(*skip + inner)?,
            Body::Sparse(sparse) => sparse.run(inner)?,
        };
        Ok(Run { len: run.len.min(rest), data: run.data })
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        let (start, _, body) = self.at(offset)?;
        let inner = offset - start;
        match body {
            Body::Zero => {
                out.fill(0);
                Ok(())
            }
            Body::Flat { file, skip } => file.read_at(*skip + inner, out),
            Body::Sparse(sparse) => sparse.read(inner, out),
        }
    }
}
