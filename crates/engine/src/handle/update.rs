//! Changes that depend on the present contents: writes of partial sectors, and [`DiskHandle::update`].
//!
//! All of them are optimistic. The blocks are *watched* ([`crate::buffer`]), read, and changed in private
//! memory. Then, under the lock of the buffers, the watch is checked for writes since it began. If there were
//! any, everything is repeated; otherwise the result is written to the buffer under the same lock. No lock is
//! held while a request waits, and an update is repeated only if another change to its blocks succeeded, so
//! some request always makes progress.
//!
//! **Linearizability.** A completed update takes effect at one moment: the check, under the lock, that found
//! its watch not hit. Every change to the contents of a block is made under the same lock and hits the watch:
//!
//! - Writes, zeroes and discards go through [`Buffers::change`](crate::buffer::Buffers::change).
//! - A commit moves blocks from the buffer to the map, which does not change the contents that readers see.
//! - A copy by reference ([`crate::handle::copy`]) changes the map gradually while its commit is under way.
//!   During that time the watch counts as hit, and the end of the copy hits it.
//! - All other operations that replace the contents of a disk (rollback, reset, shrinking) require that it
//!   has no clients.
//!
//! So if a watch was not hit, no block of the range has changed from before the first of them was read until
//! the check. The range may be read in many parts, and such a read can be torn; but then a block was changed
//! during the read, the watch was hit, and the result is discarded. The argument also holds for an update
//! that decides not to write: the disk had the contents that it read at the moment at which its watch ended.

use std::ops::{ControlFlow, Range};

use forebay_format::SECTOR;
use forebay_retained::Reservation;

use super::handle::{DiskHandle, aligned};
use crate::Result;
use crate::block_ranges::{blocks_of, pieces};
use crate::commit::Answer;
use crate::disk::Disk;

impl DiskHandle {
    /// Reads a range, changes it, and writes it in one atomic step (SBC-3, 5.2 COMPARE AND WRITE, and
    /// ORWRITE). `decide` receives the `len` bytes at `offset` and may change them. If it returns `Continue`,
    /// they are written; if it returns `Break`, nothing is written. It is called again, with the current
    /// bytes, each time another request has written to these blocks since they were read, so it must have no
    /// side effects.
    ///
    /// The update is atomic over the whole range with respect to all other requests. Requests to other blocks
    /// never wait for it. It allocates `len` bytes, which callers have to bound.
    ///
    /// A write is durable on return with `fua` or on a write-through disk; on the latter, the contents on
    /// which `Break` was decided are durable as well.
    ///
    /// # Errors
    /// The errors of [`DiskHandle::read`] and [`DiskHandle::write`].
    pub async fn update<T>(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        mut decide: impl FnMut(&mut [u8]) -> ControlFlow<T>,
    ) -> Result<ControlFlow<T>> {
        self.check_write(offset, len)?;
        self.mark_unless_durable(fua).await?;
        let mut admitted = self.intake.admit_request(&self.disk, len, len).await?;
        admitted.spend(len);
        let sectors = sectors_of(offset, len);
        let bytes = (offset - sectors.start) as usize..(offset + len - sectors.start) as usize;
        let parts = [sectors.clone()];
        let decide = |whole: &mut [u8]| decide(&mut whole[bytes.clone()]);
        let decided = self.rewrite(sectors, &parts, &mut admitted.room, decide).await?;
        admitted.tokens.use_up();
        if decided.is_continue() {
            self.disk.guest.write.add(len);
            self.finish(fua).await?;
        } else {
            self.disk.guest.read.add(len);
            // A write-through disk must not return contents that a crash could still undo.
            self.finish(false).await?;
        }
        Ok(decided)
    }

    /// Writes bytes at any alignment: partial sectors at both ends are read first.
    pub(super) async fn write_bytes(
        &self,
        offset: u64,
        data: &[u8],
        room: &mut Reservation,
        answer: Answer,
    ) -> Result<()> {
        if data.is_empty() || aligned(offset, data.len() as u64) {
            return self.intake.write_sectors(&self.disk, offset, data, room, answer).map(drop);
        }
        let sectors = sectors_of(offset, data.len() as u64);
        let (first, last) = (sectors.start + SECTOR as u64, sectors.end - SECTOR as u64);
        let edges = [sectors.start..first, last.max(first)..sectors.end];
        let at = (offset - sectors.start) as usize;
        let put = |whole: &mut [u8]| {
            whole[at..at + data.len()].copy_from_slice(data);
            ControlFlow::<()>::Continue(())
        };
        self.rewrite(sectors, &edges, room, put).await.map(drop)
    }

    /// Reads `parts` of a range of whole sectors, calls `decide` with the range, and writes it unless
    /// `decide` returns `Break`. Repeats this until no other change has intervened.
    async fn rewrite<T>(
        &self,
        sectors: Range<u64>,
        parts: &[Range<u64>],
        room: &mut Reservation,
        mut decide: impl FnMut(&mut [u8]) -> ControlFlow<T>,
    ) -> Result<ControlFlow<T>> {
        let mut whole = vec![0; (sectors.end - sectors.start) as usize];
        if whole.is_empty() {
            return Ok(decide(&mut whole));
        }
        let blocks = blocks_of(sectors.start, whole.len() as u64);
        loop {
            let id = self.disk.buffers.lock().watch(blocks.clone());
            let watch = Watched { disk: &self.disk, id: Some(id) };
            for part in parts.iter().filter(|part| !part.is_empty()) {
                let at = (part.start - sectors.start) as usize..(part.end - sectors.start) as usize;
                self.reader.read(&self.disk, part.start, &mut whole[at], 0).await?;
            }
            let decided = decide(&mut whole);
            let done = match decided {
                ControlFlow::Continue(()) => self.write_unless_hit(watch, sectors.start, &whole, room)?,
                ControlFlow::Break(_) => !watch.end(),
            };
            if done {
                return Ok(decided);
            }
            self.intake.wait_for_copies(&self.disk, &blocks).await?;
        }
    }

    /// Writes whole sectors unless the watched blocks were changed; returns whether it wrote.
    fn write_unless_hit(
        &self,
        watch: Watched<'_>,
        offset: u64,
        data: &[u8],
        room: &mut Reservation,
    ) -> Result<bool> {
        let (mut watch, mut done, mut within_quota) = (watch, false, Ok(()));
        self.intake.change(&self.disk, blocks_of(offset, data.len() as u64), |buffers, blocks| {
            if watch.id.take().is_some_and(|id| buffers.unwatch(id)) {
                return 0;
            }
            within_quota = self.disk.occupied.write(offset, data);
            if within_quota.is_err() {
                return 0;
            }
            done = true;
            buffers.change(blocks, |buffer| {
                let mut at = 0;
                for (block, within) in pieces(offset, data.len()) {
                    let next = at + within.len();
                    buffer.write(block, within, &data[at..next], Some(room));
                    at = next;
                }
            })
        })?;
        within_quota.map(|()| done)
    }
}

/// A byte range, extended to whole sectors.
fn sectors_of(offset: u64, len: u64) -> Range<u64> {
    let sector = SECTOR as u64;
    if len == 0 { offset..offset } else { offset / sector * sector..(offset + len).next_multiple_of(sector) }
}

/// A watch that ends when this guard is dropped.
struct Watched<'a> {
    disk: &'a Disk,
    id: Option<u64>,
}

impl Watched<'_> {
    /// Ends the watch; returns whether its blocks were changed.
    fn end(mut self) -> bool {
        self.id.take().is_some_and(|id| self.disk.buffers.lock().unwatch(id))
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.disk.buffers.lock().unwatch(id);
        }
    }
}
