//! The disk as the parsers see it: reads that are counted, and a fault that says whether to go on.
//!
//! Everything that a parser does is paid for here: a read by its bytes, a record, an entry or a step by one unit of
//! work. Both budgets are finite, so every scan ends, whatever loops a disk holds.
//!
//! What a scan costs is also bounded by what the disk holds, as a guest can have its disk scanned again and again by
//! writing to it. A region of the disk is read only so often ([`REGION_CHARGE`]): no file system has structures that
//! must be read more than a few times, and a crafted one would name the same block in a million places. Work beyond a
//! fixed amount is earned by bytes that are read for the first or second time. Zeroes, which cost the guest nothing,
//! have a budget of their own, by the size of the disk, and earn little.

use crate::class::Class;
use crate::map::Builder;

/// A virtual disk that is read.
pub trait Blocks {
    /// Its size in bytes.
    fn size(&self) -> u64;
    /// Fills `out` with the bytes at `offset`. Never called beyond [`Blocks::size`].
    fn read(&mut self, offset: u64, out: &mut [u8]) -> std::result::Result<(), ReadError>;
    /// Called regularly while a scan works without reading, so that it can rest. False ends the scan.
    fn pause(&mut self) -> bool {
        true
    }
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
        let charges = CHARGES * size_of::<u32>();
        let walking = self.names_bytes + 4 * self.file_bytes + self.claims * 48 + BUFFERS + charges;
        // Names and files are forgotten by then. Four runs may come of each claim: itself and what is beside it.
        let sweeping = self.claims * (32 + 4 * 8 * 3) + BUFFERS + charges;
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

/// Bytes of a region of the disk, whose reads are counted together.
const REGION: u64 = 16 << 10;
/// Regions of the disk are counted in as many counters, chosen by a hash of their number.
const CHARGES: usize = 1 << 20;
/// Most bytes that are read of a region: 32 times what it has.
const REGION_CHARGE: u32 = 32 * REGION as u32;
/// What a read counts as at least, for what it costs apart from its bytes. Inodes of 128 bytes can still be read once
/// each.
const READ_CHARGE: u64 = 2 << 10;
/// Work that every disk is worth.
const FREE_WORK: u64 = 16 << 20;
/// Units of work that a byte earns which is not zero, when it is read for the first time and for the second.
const WORK_PER_BYTE: u64 = 1;
/// Zero bytes that earn a unit of work: those of the smallest record that is looked at.
const ZEROES_PER_WORK: u64 = 128;
/// Zero bytes that may be read of any disk, and the part of the disk's size by which there are more: what ext keeps for
/// unused inodes.
const FREE_ZEROES: u64 = 256 << 20;
const ZEROES_OF_SIZE: u64 = 64;
/// Units of work between two chances to rest.
const WORK_PER_PAUSE: u64 = 1 << 16;

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
    /// Work that is not earned yet.
    unearned: u64,
    /// Zero bytes that may still be read.
    zeroes: u64,
    /// Bytes read of regions that hold something.
    charges: Vec<u32>,
    /// Work since the last chance to rest.
    since_pause: u64,
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
        let left = Limits { work: limits.work.min(FREE_WORK), ..limits };
        Disk {
            blocks,
            size,
            left,
            unearned: limits.work - left.work,
            zeroes: FREE_ZEROES + size / ZEROES_OF_SIZE,
            charges: vec![0; CHARGES],
            since_pause: 0,
            limits,
            found,
            failed_reads: 0,
            cut: false,
        }
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
        self.since_pause += units;
        if self.since_pause >= WORK_PER_PAUSE {
            self.since_pause = 0;
            return if self.blocks.pause() { Ok(()) } else { Err(Fault::Spent) };
        }
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
        if regions(offset, len).any(|(slot, _)| self.charges[slot] >= REGION_CHARGE) {
            // It is left out like what cannot be read; the rest of the disk may be sound.
            self.cut = true;
            return self.work(1).and(Err(Fault::Bad));
        }
        self.blocks.read(offset, out).map_err(|_| {
            self.failed_reads += 1;
            Fault::Bad
        })?;
        self.charge(offset, out)
    }

    /// Counts what was read, and lets it earn work.
    fn charge(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let len = bytes.len() as u64;
        if is_zero(bytes) {
            self.zeroes = self.zeroes.checked_sub(len).ok_or(Fault::Spent)?;
            self.earn(len / ZEROES_PER_WORK);
            return Ok(());
        }
        let mut earned = 0;
        for (slot, part) in regions(offset, len) {
            let charge = &mut self.charges[slot];
            if u64::from(*charge) < 2 * REGION {
                earned += part * WORK_PER_BYTE;
            }
            *charge = charge.saturating_add(part.max(READ_CHARGE) as u32);
        }
        self.earn(earned);
        Ok(())
    }

    fn earn(&mut self, units: u64) {
        let units = units.min(self.unearned);
        self.unearned -= units;
        self.left.work += units;
    }
}

/// The counters of the regions that a read touches, each with the bytes there.
fn regions(offset: u64, len: u64) -> impl Iterator<Item = (usize, u64)> {
    let end = offset + len;
    (offset / REGION..end.div_ceil(REGION)).map(move |region| {
        let part = ((region + 1) * REGION).min(end) - (region * REGION).max(offset);
        // Fibonacci hashing: neighbours get counters of their own.
        let slot = region.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - CHARGES.ilog2());
        (slot as usize, part)
    })
}

/// Whether all bytes are zero.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(256).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
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
