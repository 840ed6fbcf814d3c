//! An attached disk: the requests of a guest.
//!
//! Offsets and lengths are in bytes and may be unaligned. Front ends check ranges once (`offset + len` within
//! [`Disk::size`]); a request that slips past because the disk shrank in between fails with `OutOfRange`.

use crate::{GuestStats, Result};

/// Whether a request was done at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fast {
    /// Done.
    Done,
    /// Nothing was done; use the waiting form.
    Wait,
}

/// A run of blocks of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// Nothing is allocated for it (NBD_STATE_HOLE).
    pub hole: bool,
    /// It reads as zeroes (NBD_STATE_ZERO).
    pub zero: bool,
}

/// A disk that a client has open. Cheap to share; the last clone dropped detaches it.
pub struct Disk {}

#[allow(clippy::todo, unused_variables)]
impl Disk {
    /// Export name.
    pub fn name(&self) -> String {
        todo!()
    }
    /// Size in bytes as of now.
    pub fn size(&self) -> u64 {
        todo!()
    }
    /// Whether writes are refused.
    pub fn read_only(&self) -> bool {
        todo!()
    }
    /// Whether an acknowledged write is durable already, so that no flush is needed.
    pub fn write_through(&self) -> bool {
        todo!()
    }
    /// Counters of this disk.
    pub fn stats(&self) -> GuestStats {
        todo!()
    }
    /// Reads into `out` if that needs no waiting; nothing is counted and `out` is undefined on `Wait`.
    pub fn try_read(&self, offset: u64, out: &mut [u8]) -> Result<Fast> {
        todo!()
    }
    /// Reads into `out`.
    pub async fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        todo!()
    }
    /// Writes if that needs no waiting (room in the buffer, no unaligned edge whose sector must be read, not
    /// write-through).
    pub fn try_write(&self, offset: u64, data: &[u8]) -> Result<Fast> {
        todo!()
    }
    /// Writes; durable on return with `fua` or on a write-through disk.
    pub async fn write(&self, offset: u64, data: &[u8], fua: bool) -> Result<()> {
        todo!()
    }
    /// Zeroes a range: as a hole, or with `allocated`, so that it is reported as allocated.
    pub async fn write_zeroes(&self, offset: u64, len: u64, allocated: bool, fua: bool) -> Result<()> {
        todo!()
    }
    /// Discards a range: whole blocks read as zeroes afterwards, partial ones stay.
    pub async fn discard(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        todo!()
    }
    /// Makes everything durable that was acknowledged before the call.
    pub async fn flush(&self) -> Result<()> {
        todo!()
    }
    /// Whether a range is allocated, as runs that cover `len` bytes from `offset` on or stop after `max` runs
    /// (never an empty list for a range that is not empty).
    pub async fn extents(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>> {
        todo!()
    }
    /// Brings a range into the read cache.
    pub async fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        todo!()
    }
}
