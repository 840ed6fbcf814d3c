//! The disk as the parsers see it: reads that are counted, and a fault that says whether to go on.
//!
//! Everything that a parser does is paid for here: a read by its bytes, a record, an entry or a step by one unit of
//! work. Both budgets are finite, so every scan ends, whatever loops a disk holds.

use crate::class::Class;
use crate::map::Builder;

/// A virtual disk that is read.
pub trait Blocks {
    /// Its size in bytes.
    fn size(&self) -> u64;
    /// Fills `out` with the bytes at `offset`. Never called beyond [`Blocks::size`].
    fn read(&mut self, offset: u64, out: &mut [u8]) -> std::result::Result<(), ReadError>;
}

/// The disk could not be read there.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the disk at byte {offset}")]
pub struct ReadError {
    /// Where the read began.
    pub offset: u64,
    /// Why, if there is more to say.
    pub source: Option<std::io::Error>,
}

impl Blocks for &[u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> std::result::Result<(), ReadError> {
        let from = usize::try_from(offset).ok().and_then(|at| self.get(at..)?.get(..out.len()));
        out.copy_from_slice(from.ok_or(ReadError { offset, source: None })?);
        Ok(())
    }
}

/// What a scan may spend. What a disk claims does not count, only what is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Calls of [`Blocks::read`].
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Records, entries, extents and parts of paths that are looked at.
    pub work: u64,
    /// Bytes of memory for what is remembered of directories and files.
    pub names_bytes: usize,
    /// Bytes of memory for each list of what a single file consists of: its pieces, or its records.
    pub file_bytes: usize,
    /// Ranges that are found; 16 bytes each while the scan goes on.
    pub claims: usize,
    /// Runs of the map that comes out; 8 bytes each.
    pub runs: usize,
}

impl Default for Limits {
    /// Enough for a terabyte with some millions of files; at most some 200 MiB of memory.
    fn default() -> Limits {
        Limits {
            reads: 8 << 20,
            read_bytes: 32 << 30,
            work: 1 << 30,
            names_bytes: 64 << 20,
            file_bytes: 16 << 20,
            claims: 2 << 20,
            runs: 2 << 20,
        }
    }
}

impl Limits {
    /// Bytes of memory that a scan takes at most, the buffers that have one size included.
    pub fn memory_bytes(&self) -> usize {
        // A list that grows is there twice while it moves, in a room up to twice as large as needed.
        let walking = self.names_bytes + 4 * self.file_bytes + self.claims * 48 + BUFFERS;
        // Names and files are forgotten by then. Four runs may come of each claim: itself and what is beside it.
        let sweeping = self.claims * (32 + 4 * 8 * 3) + BUFFERS;
        walking.max(sweeping)
    }

    /// How many things of so many bytes may be known of a single file. Half as many as there is room for, as a list
    /// that grows is there twice while it moves.
    pub(crate) fn of_a_file(&self, each: usize) -> usize {
        self.file_bytes / (2 * each)
    }
}

/// Chunks of tables and bitmaps, blocks, heads of files.
const BUFFERS: usize = 1 << 20;

/// Why something was not parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It makes no sense or cannot be read: leave it out and go on.
    Bad,
    /// The budget is spent: stop.
    Spent,
}

pub(crate) type Result<T> = std::result::Result<T, Fault>;

/// `Bad` as nothing; only `Spent` goes up.
pub(crate) trait Tolerate<T> {
    fn tolerate(self) -> Result<Option<T>>;
}

impl<T> Tolerate<T> for Result<T> {
    fn tolerate(self) -> Result<Option<T>> {
        match self {
            Ok(value) => Ok(Some(value)),
            Err(Fault::Bad) => Ok(None),
            Err(Fault::Spent) => Err(Fault::Spent),
        }
    }
}

/// What makes no sense where it is not so.
pub(crate) fn sane(condition: bool) -> Result<()> {
    if condition { Ok(()) } else { Err(Fault::Bad) }
}

/// The disk, what may still be spent on it, and what was found.
pub(crate) struct Disk<'a> {
    blocks: &'a mut dyn Blocks,
    size: u64,
    left: Limits,
    /// What there was to spend at first.
    pub limits: Limits,
    /// What was found.
    pub found: Builder,
    /// Reads that failed, at places that are on the disk.
    pub failed_reads: u64,
    /// Something was left out for want of room.
    pub cut: bool,
}

impl<'a> Disk<'a> {
    pub fn new(blocks: &'a mut dyn Blocks, limits: Limits) -> Disk<'a> {
        let size = blocks.size();
        let found = Builder::new(size, limits.claims);
        Disk { blocks, size, left: limits, limits, found, failed_reads: 0, cut: false }
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn left(&self) -> Limits {
        self.left
    }

    /// Does `units` of work.
    pub fn work(&mut self, units: u64) -> Result<()> {
        self.left.work = self.left.work.checked_sub(units).ok_or(Fault::Spent)?;
        Ok(())
    }

    /// Remembers something of `bytes` bytes; false when there is no room for it.
    pub fn remember(&mut self, bytes: usize) -> bool {
        let left = self.left.names_bytes.checked_sub(bytes);
        self.left.names_bytes = left.unwrap_or(0);
        self.cut |= left.is_none();
        left.is_some()
    }

    pub fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        let len = out.len() as u64;
        sane(offset.checked_add(len).is_some_and(|end| end <= self.size))?;
        self.left.reads = self.left.reads.checked_sub(1).ok_or(Fault::Spent)?;
        self.left.read_bytes = self.left.read_bytes.checked_sub(len).ok_or(Fault::Spent)?;
        self.blocks.read(offset, out).map_err(|_| {
            self.failed_reads += 1;
            Fault::Bad
        })
    }
}

/// A range of the disk that may hold a file system. Offsets are from its start.
pub(crate) struct Volume<'d, 'a> {
    pub disk: &'d mut Disk<'a>,
    start: u64,
    len: u64,
}

impl<'d, 'a> Volume<'d, 'a> {
    /// The part of `start..start + len` that is on the disk.
    pub fn new(disk: &'d mut Disk<'a>, start: u64, len: u64) -> Volume<'d, 'a> {
        let start = start.min(disk.size);
        let len = len.min(disk.size - start);
        Volume { disk, start, len }
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        sane(offset.checked_add(out.len() as u64).is_some_and(|end| end <= self.len))?;
        self.disk.read(self.start + offset, out)
    }

    /// `len` bytes; `len` must be bounded by the caller.
    pub fn read_vec(&mut self, offset: u64, len: usize) -> Result<Vec<u8>> {
        sane(offset.checked_add(len as u64).is_some_and(|end| end <= self.len))?;
        let mut bytes = vec![0; len];
        self.read(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Claims what lies inside the volume.
    pub fn claim(&mut self, offset: u64, len: u64, class: Class) {
        let len = len.min(self.len.saturating_sub(offset));
        if len != 0 {
            self.disk.found.claim(self.start + offset, len, class);
        }
    }
}
