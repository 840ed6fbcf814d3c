//! The parsers' access to the disk: reads and work are charged to a budget, and a fault determines whether a
//! parser continues.
//!
//! A read is charged by its bytes; each record, entry or step costs one unit of work. Both budgets are
//! finite, so every scan ends, even on a disk with loops.
//!
//! The cost of a scan is also bounded by the data on the disk, because a guest can trigger scans repeatedly
//! by writing to its disk. Reads of each region of the disk are limited ([`REGION_CHARGE`]): valid file
//! systems do not require more than a few reads of a structure, but a crafted one could reference the same
//! block in a million places. Work beyond a fixed amount is earned by bytes that are read for the first or
//! second time. Zeroes, which cost the guest nothing, have a separate budget in proportion to the size of the
//! disk, and earn little.

use crate::class::Class;
use crate::map::Builder;

/// Read access to a virtual disk.
pub trait Blocks {
    /// Size of the disk in bytes.
    fn size(&self) -> u64;
    /// Fills `out` with the bytes at `offset`. Never called beyond [`Blocks::size`].
    fn read(&mut self, offset: u64, out: &mut [u8]) -> std::result::Result<(), ReadError>;
    /// Called regularly while a scan works without reading, so that the implementation can throttle it.
    /// Returning false ends the scan.
    fn pause(&mut self) -> bool {
        true
    }
}

/// The error of a failed read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the disk at byte {offset}")]
pub struct ReadError {
    /// Offset of the failed read.
    pub offset: u64,
    /// The cause of the failure, if it is known.
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

/// The budget of a scan. It limits actual reads, work and memory, not the sizes that a disk claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of calls of [`Blocks::read`].
    pub reads: u64,
    /// Maximum number of bytes that are read.
    pub read_bytes: u64,
    /// Maximum number of records, entries, extents and path components that are examined.
    pub work: u64,
    /// Bytes of memory for directories and files.
    pub names_bytes: usize,
    /// Bytes of memory for each list of a single file: its extents, or its records.
    pub file_bytes: usize,
    /// Maximum number of classified ranges; they take 16 bytes each during the scan.
    pub claims: usize,
    /// Maximum number of runs of the resulting map; they take 8 bytes each.
    pub runs: usize,
}

impl Default for Limits {
    /// Sufficient for a terabyte with a few million files; uses at most about 200 MiB of memory.
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
    /// Maximum memory of a scan in bytes, including the buffers of fixed size.
    pub fn memory_bytes(&self) -> usize {
        // A growing list exists twice while it is reallocated, with a capacity up to twice its length.
        let charges = CHARGES * size_of::<u32>();
        let walking = self.names_bytes + 4 * self.file_bytes + self.claims * 48 + BUFFERS + charges;
        // Names and files are freed before the sweep. Each claim can result in four runs: itself and its
        // neighbours.
        let sweeping = self.claims * (32 + 4 * 8 * 3) + BUFFERS + charges;
        walking.max(sweeping)
    }

    /// Maximum length of a list of a single file, with entries of `each` bytes. Half of the memory is
    /// reserved, because a growing list exists twice while it is reallocated.
    pub(crate) fn max_per_file(&self, each: usize) -> usize {
        self.file_bytes / (2 * each)
    }
}

/// Memory for chunks of tables and bitmaps, blocks and starts of files.
const BUFFERS: usize = 1 << 20;

/// Bytes of a region of the disk. Reads are counted per region.
const REGION: u64 = 16 << 10;
/// Number of read counters. A region's counter is chosen by a hash of its number.
const CHARGES: usize = 1 << 20;
/// Maximum bytes read per region: 32 times its size.
const REGION_CHARGE: u32 = 32 * REGION as u32;
/// Minimum charge of a read, for its fixed cost. It is low enough that inodes of 128 bytes can be read once
/// each.
const READ_CHARGE: u64 = 2 << 10;
/// Initial work budget of every disk.
const FREE_WORK: u64 = 16 << 20;
/// Units of work that a non-zero byte earns when it is read for the first and for the second time.
const WORK_PER_BYTE: u64 = 1;
/// Zero bytes that earn one unit of work: the size of the smallest record that is examined.
const ZEROES_PER_WORK: u64 = 128;
/// Budget of zero bytes: a fixed part, and a part of 1/64 of the disk's size, which covers the unused inodes
/// of ext.
const FREE_ZEROES: u64 = 256 << 20;
const ZEROES_OF_SIZE: u64 = 64;
/// Units of work between two calls of [`Blocks::pause`].
const WORK_PER_PAUSE: u64 = 1 << 16;

/// Why a structure was not parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The structure is invalid or unreadable: skip it and continue.
    Invalid,
    /// The budget is exhausted: end the scan.
    BudgetExhausted,
}

pub(crate) type Result<T> = std::result::Result<T, Fault>;

/// Converts `Invalid` to `None`; only `BudgetExhausted` is propagated.
pub(crate) trait Tolerate<T> {
    fn tolerate(self) -> Result<Option<T>>;
}

impl<T> Tolerate<T> for Result<T> {
    fn tolerate(self) -> Result<Option<T>> {
        match self {
            Ok(value) => Ok(Some(value)),
            Err(Fault::Invalid) => Ok(None),
            Err(Fault::BudgetExhausted) => Err(Fault::BudgetExhausted),
        }
    }
}

/// Returns `Invalid` if a structure violates `condition`.
pub(crate) fn ensure(condition: bool) -> Result<()> {
    if condition { Ok(()) } else { Err(Fault::Invalid) }
}

/// The disk, the remaining budget, and the claims so far.
pub(crate) struct Disk<'a> {
    blocks: &'a mut dyn Blocks,
    size: u64,
    left: Limits,
    /// Units of work that can still be earned.
    unearned: u64,
    /// Number of zero bytes that may still be read.
    zeroes: u64,
    /// Counters of reads of regions with non-zero data.
    charges: Vec<u32>,
    /// Units of work since the last call of [`Blocks::pause`].
    since_pause: u64,
    /// The budget at the beginning of the scan.
    pub limits: Limits,
    /// The claims that were found so far.
    pub found: Builder,
    /// Number of failed reads within the disk.
    pub failed_reads: u64,
    /// Something was skipped because a limit was reached.
    pub incomplete: bool,
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
            incomplete: false,
        }
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn left(&self) -> Limits {
        self.left
    }

    /// Charges `units` of work to the budget.
    pub fn work(&mut self, units: u64) -> Result<()> {
        self.left.work = self.left.work.checked_sub(units).ok_or(Fault::BudgetExhausted)?;
        self.since_pause += units;
        if self.since_pause >= WORK_PER_PAUSE {
            self.since_pause = 0;
            return if self.blocks.pause() { Ok(()) } else { Err(Fault::BudgetExhausted) };
        }
        Ok(())
    }

    /// Charges `bytes` of memory for names; false if the limit is reached.
    pub fn charge_memory(&mut self, bytes: usize) -> bool {
        let left = self.left.names_bytes.checked_sub(bytes);
        self.left.names_bytes = left.unwrap_or(0);
        self.incomplete |= left.is_none();
        left.is_some()
    }

    pub fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        let len = out.len() as u64;
        ensure(offset.checked_add(len).is_some_and(|end| end <= self.size))?;
        self.left.reads = self.left.reads.checked_sub(1).ok_or(Fault::BudgetExhausted)?;
        self.left.read_bytes = self.left.read_bytes.checked_sub(len).ok_or(Fault::BudgetExhausted)?;
        if regions(offset, len).any(|(slot, _)| self.charges[slot] >= REGION_CHARGE) {
            // The structure is skipped as if it were unreadable; other parts of the disk may be valid.
            self.incomplete = true;
            return self.work(1).and(Err(Fault::Invalid));
        }
        self.blocks.read(offset, out).map_err(|_| {
            self.failed_reads += 1;
            Fault::Invalid
        })?;
        self.charge(offset, out)
    }

    /// Charges a read to the counters of its regions, and credits the work that it earns.
    fn charge(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let len = bytes.len() as u64;
        if is_zero(bytes) {
            self.zeroes = self.zeroes.checked_sub(len).ok_or(Fault::BudgetExhausted)?;
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

/// Returns the counters of the regions that a read covers, each with the number of bytes in the region.
fn regions(offset: u64, len: u64) -> impl Iterator<Item = (usize, u64)> {
    let end = offset + len;
    (offset / REGION..end.div_ceil(REGION)).map(move |region| {
        let part = ((region + 1) * REGION).min(end) - (region * REGION).max(offset);
        // Fibonacci hashing: neighbouring regions have different counters.
        let slot = region.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - CHARGES.ilog2());
        (slot as usize, part)
    })
}

/// Whether all bytes are zero.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(256).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}

/// A range of the disk that may contain a file system. Offsets are relative to its start.
pub(crate) struct Volume<'d, 'a> {
    pub disk: &'d mut Disk<'a>,
    start: u64,
    len: u64,
}

impl<'d, 'a> Volume<'d, 'a> {
    /// Creates the volume `start..start + len`, limited to the end of the disk.
    pub fn new(disk: &'d mut Disk<'a>, start: u64, len: u64) -> Volume<'d, 'a> {
        let start = start.min(disk.size);
        let len = len.min(disk.size - start);
        Volume { disk, start, len }
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        ensure(offset.checked_add(out.len() as u64).is_some_and(|end| end <= self.len))?;
        self.disk.read(self.start + offset, out)
    }

    /// Reads `len` bytes. The caller must bound `len`.
    pub fn read_vec(&mut self, offset: u64, len: usize) -> Result<Vec<u8>> {
        ensure(offset.checked_add(len as u64).is_some_and(|end| end <= self.len))?;
        let mut bytes = vec![0; len];
        self.read(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Claims a range, limited to the end of the volume.
    pub fn claim(&mut self, offset: u64, len: u64, class: Class) {
        let len = len.min(self.len.saturating_sub(offset));
        if len != 0 {
            self.disk.found.claim(self.start + offset, len, class);
        }
    }
}
