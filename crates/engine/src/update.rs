//! Changes that depend on what is there: sectors that are written in part, and [`Disk::update`].
//!
//! All are optimistic. The blocks are *watched* ([`crate::buffer`]), read, and changed in memory of their own; under
//! the lock of the buffers it is then found out whether anybody wrote to them since the watch began. If so, all is
//! done again; else the result goes into the buffer under that same lock. Nothing is locked while anybody waits, and
//! only those who were overtaken do their work again: somebody always gets on.
//!
//! **Why it is linearizable.** An update that ends reads and writes as if at one moment, that at which its watch was
//! found unhit, under the lock. Whatever changes what a block reads as passes under the same lock and hits the watch:
//! writes, zeroes and discards go through [`Buffers::change`](crate::buffer::Buffers::change). A commit moves blocks
//! from the buffer into the map, and changes nothing that a reader sees. A copy by reference ([`crate::copy`])
//! changes the map, bit by bit, while its commit is under way; as long as it is, the watch counts as hit, and when it
//! ends, it hits. All else that gives a disk other contents (rollback, reset, a smaller size) wants it without
//! clients. So a watch that was not hit says that no block of the range changed from before the first of them was
//! read until now. The read may have been in many parts, and torn while it lasted: then somebody wrote meanwhile, and
//! it was in vain. That goes for an update that decides to write nothing, too: what it saw stood there at the moment
//! at which its watch ended.

use std::ops::{ControlFlow, Range};

use forebay_format::SECTOR;

use crate::disk::{aligned, blocks_of};
use crate::read::pieces;
use crate::volume::Volume;
use crate::{Disk, Result};

impl Disk {
    /// Reads a range and writes it anew in one atomic step (SBC-3, 5.2 COMPARE AND WRITE, and ORWRITE). `decide` is
    /// given the `len` bytes at `offset`, and may change them: where it says `Continue` they are written, where it says
    /// `Break` nothing is. It is asked again, with what is there then, as often as somebody else writes to these
    /// blocks meanwhile, so it must have no effect but on the bytes.
    ///
    /// Against everything else that happens to the disk it is as if it happened at one moment, over the whole
    /// range. What is elsewhere on the disk never waits for it. The memory that it takes is `len`: callers bound that.
    ///
    /// A write is durable on return with `fua` or on a write-through disk; on the latter that is also true of what
    /// `Break` was decided on.
    ///
    /// # Errors
    /// Those of [`Disk::read`] and [`Disk::write`].
    pub async fn update<T>(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        mut decide: impl FnMut(&mut [u8]) -> ControlFlow<T>,
    ) -> Result<ControlFlow<T>> {
        self.check_write(offset, len)?;
        self.pool.wait_for_room(&self.volume, len).await?;
        let sectors = sectors_of(offset, len);
        let bytes = (offset - sectors.start) as usize..(offset + len - sectors.start) as usize;
        let parts = [sectors.clone()];
        let decided = self.rewrite(sectors, &parts, |whole| decide(&mut whole[bytes.clone()])).await?;
        if decided.is_continue() {
            self.volume.guest.write.add(len);
            self.settle(fua).await?;
        } else {
            self.volume.guest.read.add(len);
            // Nobody may learn, from a disk that promises it, of what a crash could still undo.
            self.settle(false).await?;
        }
        Ok(decided)
    }

    /// Writes any bytes: the sectors at the edges that are written in part are read first.
    pub(crate) async fn write_bytes(&self, offset: u64, data: &[u8]) -> Result<()> {
        if data.is_empty() || aligned(offset, data.len() as u64) {
            return self.pool.write_sectors(&self.volume, offset, data);
        }
        let sectors = sectors_of(offset, data.len() as u64);
        let (first, last) = (sectors.start + SECTOR as u64, sectors.end - SECTOR as u64);
        let edges = [sectors.start..first, last.max(first)..sectors.end];
        let at = (offset - sectors.start) as usize;
        let put = |whole: &mut [u8]| {
            whole[at..at + data.len()].copy_from_slice(data);
            ControlFlow::<()>::Continue(())
        };
        self.rewrite(sectors, &edges, put).await.map(drop)
    }

    /// Lets `decide` change whole sectors, of which `parts` are read first, and writes them; or neither.
    async fn rewrite<T>(
        &self,
        sectors: Range<u64>,
        parts: &[Range<u64>],
        mut decide: impl FnMut(&mut [u8]) -> ControlFlow<T>,
    ) -> Result<ControlFlow<T>> {
        let mut whole = vec![0; (sectors.end - sectors.start) as usize];
        if whole.is_empty() {
            return Ok(decide(&mut whole));
        }
        let blocks = blocks_of(sectors.start, whole.len() as u64);
        loop {
            let id = self.volume.buffers.lock().watch(blocks.clone());
            let watch = Watched { volume: &self.volume, id: Some(id) };
            for part in parts.iter().filter(|part| !part.is_empty()) {
                let at = (part.start - sectors.start) as usize..(part.end - sectors.start) as usize;
                self.pool.read(&self.volume, part.start, &mut whole[at], 0).await?;
            }
            let decided = decide(&mut whole);
            let done = match decided {
                ControlFlow::Continue(()) => self.write_unless_hit(watch, sectors.start, &whole)?,
                ControlFlow::Break(_) => !watch.end(),
            };
            if done {
                return Ok(decided);
            }
            self.pool.wait_for_copies(&self.volume, &blocks).await?;
        }
    }

    /// Writes whole sectors if nobody else wrote to the watched blocks.
    fn write_unless_hit(&self, watch: Watched<'_>, offset: u64, data: &[u8]) -> Result<bool> {
        let (mut watch, mut done) = (watch, false);
        self.pool.change(&self.volume, blocks_of(offset, data.len() as u64), |buffers, blocks| {
            if watch.id.take().is_some_and(|id| buffers.unwatch(id)) {
                return 0;
            }
            done = true;
            buffers.change(blocks, |buffer| {
                let mut at = 0;
                for (block, within) in pieces(offset, data.len()) {
                    let next = at + within.len();
                    buffer.write(block, within, &data[at..next]);
                    at = next;
                }
            })
        })?;
        Ok(done)
    }
}

/// The whole sectors that a byte range touches.
fn sectors_of(offset: u64, len: u64) -> Range<u64> {
    let sector = SECTOR as u64;
    if len == 0 { offset..offset } else { offset / sector * sector..(offset + len).next_multiple_of(sector) }
}

/// A watch, which ends with this.
struct Watched<'a> {
    volume: &'a Volume,
    id: Option<u64>,
}

impl Watched<'_> {
    /// Ends it; says whether it was hit.
    fn end(mut self) -> bool {
        self.id.take().is_some_and(|id| self.volume.buffers.lock().unwatch(id))
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.volume.buffers.lock().unwatch(id);
        }
    }
}
