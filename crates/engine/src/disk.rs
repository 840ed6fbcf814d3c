//! An attached disk: the requests of a guest.
//!
//! Offsets and lengths are in bytes and may be unaligned. Front ends check ranges once (`offset + len` within
//! [`Disk::size`]); a request that slips past because the disk shrank in between fails with `OutOfRange`.

use std::ops::Range;
use std::sync::Arc;

use forebay_format::{BLOCK, DiskId, FANOUT, Role, SECTOR, SyncMode};

use forebay_store::StoreError;
use tokio::task::yield_now;

use crate::limits::{
    LEAF_STEPS, READ_RETRIES, READAHEAD_DESKTOP, READAHEAD_MAX, READAHEAD_MIN, TURN_BYTES, TURN_STEPS,
};
use crate::map::RunKind;
use crate::notes::Note;
use crate::pool::Pool;
use crate::read::How;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use crate::volume::Volume;
use crate::{Coalesce, Error, GuestStats, Mutation, Result, Room};

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

/// A disk that a client has open. Dropping it detaches the client.
pub struct Disk {
    pub(crate) pool: Arc<Pool>,
    pub(crate) volume: Arc<Volume>,
    name: String,
    /// Where the last read that waited ended, and how far ahead the next one may read.
    next_read: AtomicU64,
    ahead: AtomicU64,
    said_goodbye: AtomicBool,
    /// Lost writes of the disk that this client knows of; see [`crate::damage`].
    known_losses: AtomicU64,
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.volume.detach(self.said_goodbye.load(Relaxed)) {
            self.pool.desktops.wake_resets();
        }
    }
}

impl Disk {
    /// A handle to a volume that counts its client already.
    pub(crate) fn new(pool: Arc<Pool>, volume: Arc<Volume>, name: String) -> Disk {
        Disk {
            known_losses: AtomicU64::new(volume.reported_losses()),
            pool,
            volume,
            name,
            next_read: AtomicU64::new(0),
            ahead: AtomicU64::new(READAHEAD_MIN),
            said_goodbye: AtomicBool::new(false),
        }
    }

    pub(crate) fn id(&self) -> DiskId {
        self.volume.id()
    }

    /// The client ends its connection in good order. One that is cut off may come back and go on, so only after
    /// this is a desktop reset by itself. From the return on no other client attaches before the reset is done.
    pub fn say_goodbye(&self) {
        if !self.said_goodbye.swap(true, Relaxed) && self.pool.config.mutation != Mutation::ReuseDesktop {
            self.volume.leave();
        }
    }

    /// Export name.
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// Identity that guests and initiators see; stays the same for the disk's life.
    pub fn uuid(&self) -> [u8; 16] {
        self.volume.record().uuid
    }

    /// Whether the store has room for more.
    pub fn room(&self) -> Room {
        self.pool.room()
    }

    /// Size in bytes as of now.
    pub fn size(&self) -> u64 {
        self.volume.size()
    }

    /// Whether writes are refused.
    pub fn read_only(&self) -> bool {
        matches!(self.volume.role(), Role::Snapshot | Role::Image)
    }

    /// Whether an acknowledged write is durable already, so that no flush is needed.
    pub fn write_through(&self) -> bool {
        let coalesced = self.pool.config.coalesce != Coalesce::Off || self.volume.is_desktop();
        self.volume.sync() == SyncMode::Always || !coalesced
    }

    /// Counters of this disk.
    pub fn stats(&self) -> GuestStats {
        self.volume.guest.get()
    }

    /// The persistent reservations that a front end keeps with this disk; `None` where there are none.
    ///
    /// # Errors
    /// Those of a read; [`Error::Damaged`] where they cannot be read.
    pub async fn reservations(&self) -> Result<Option<Vec<u8>>> {
        self.pool.note(&self.volume, Note::Reservations).await
    }

    /// Replaces them, durably, or removes them. They go with the disk, stay when it is rolled back or reset, and
    /// no clone has them.
    ///
    /// # Errors
    /// [`Error::NotFound`] where the disk is gone; those of a write.
    pub async fn set_reservations(&self, content: Option<&[u8]>) -> Result<()> {
        self.pool.set_note(&self.volume, Note::Reservations, content).await
    }

    pub(crate) fn check(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size() => Ok(()),
            _ => Err(Error::OutOfRange),
        }
    }

    pub(crate) fn check_write(&self, offset: u64, len: u64) -> Result<()> {
        if self.read_only() {
            return Err(Error::ReadOnly(self.name.clone()));
        }
        self.check(offset, len)
    }

    /// Reads into `out` if that needs no waiting; on `Wait` nothing is counted and `out` is undefined.
    pub fn try_read(&self, offset: u64, out: &mut [u8]) -> Result<Fast> {
        self.check(offset, out.len() as u64)?;
        let mut gaps = Vec::new();
        let found = self.pool.gather(&mut 0, &self.volume, offset, out, &mut gaps, How::AtOnce);
        if found.is_err() || !gaps.is_empty() {
            return Ok(Fast::Wait);
        }
        self.count_read(offset, out.len(), true);
        Ok(Fast::Done)
    }

    /// Reads into `out`.
    pub async fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.check(offset, out.len() as u64)?;
        let sequential = self.next_read.swap(offset + out.len() as u64, Relaxed) == offset;
        let ahead = if sequential {
            (self.ahead.load(Relaxed) * 2).min(READAHEAD_MAX)
        } else if self.volume.is_desktop() && self.pool.cache.has_room() {
            READAHEAD_DESKTOP
        } else {
            READAHEAD_MIN
        };
        self.ahead.store(ahead, Relaxed);
        let ahead = ahead.saturating_sub(out.len() as u64);
        let hit = self.pool.read(&self.volume, offset, out, ahead).await?;
        self.count_read(offset, out.len(), hit);
        Ok(())
    }

    fn count_read(&self, offset: u64, len: usize, hit: bool) {
        let before = self.volume.guest.read.next(len as u64);
        self.volume.classes.note_read(before, offset, hit);
    }

    /// Writes if that needs no waiting (room in the buffer, whole sectors, not write-through).
    pub fn try_write(&self, offset: u64, data: &[u8]) -> Result<Fast> {
        self.check_write(offset, data.len() as u64)?;
        if self.write_through()
            || !aligned(offset, data.len() as u64)
            || self.pool.is_paced(&self.volume)
            || !self.pool.admit(&self.volume, data.len() as u64)?
        {
            return Ok(Fast::Wait);
        }
        self.pool.write_sectors(&self.volume, offset, data)?;
        self.volume.guest.write.add(data.len() as u64);
        Ok(Fast::Done)
    }

    /// Writes; durable on return with `fua` or on a write-through disk.
    pub async fn write(&self, offset: u64, data: &[u8], fua: bool) -> Result<()> {
        self.check_write(offset, data.len() as u64)?;
        self.pool.wait_for_room(&self.volume, data.len() as u64).await?;
        let (mut at, end) = (offset, offset + data.len() as u64);
        // In pieces that end between blocks, so that only the ends of the range are written in part.
        while at < end {
            if at > offset {
                yield_now().await;
            }
            let until = ((at / TURN_BYTES + 1) * TURN_BYTES).min(end);
            self.write_bytes(at, &data[(at - offset) as usize..(until - offset) as usize]).await?;
            at = until;
        }
        self.volume.guest.write.add(data.len() as u64);
        self.settle(fua).await
    }

    /// What a change must wait for before it is answered.
    pub(crate) async fn settle(&self, fua: bool) -> Result<()> {
        let durable = self.write_through() || (fua && self.volume.sync() == SyncMode::Flush);
        if !durable {
            return Ok(());
        }
        self.pool.flush_volume(&self.volume).await?;
        self.volume.check_losses(&self.known_losses)
    }

    fn change(&self, blocks: Range<u64>, change: impl FnOnce(&mut crate::buffer::WriteBuffer)) -> Result<()> {
        self.pool.change(&self.volume, blocks, |buffers, blocks| buffers.change(blocks, change))
    }

    /// Zeroes a range: as a hole, or with `allocated`, so that it is reported as allocated.
    pub async fn write_zeroes(&self, offset: u64, len: u64, allocated: bool, fua: bool) -> Result<()> {
        self.check_write(offset, len)?;
        self.pool.wait_for_room(&self.volume, 0).await?;
        self.zero(offset, len, allocated).await?;
        self.volume.guest.discard.add(len);
        self.settle(fua).await
    }

    pub(crate) async fn zero(&self, offset: u64, len: u64, allocated: bool) -> Result<()> {
        let whole = self.whole_blocks(offset, len);
        if whole.is_empty() {
            self.write_bytes(offset, &[0; 2 * BLOCK][..len as usize]).await?;
        } else {
            let (first, last) = (whole.start * BLOCK as u64, whole.end * BLOCK as u64);
            if offset < first {
                self.write_bytes(offset, &[0; BLOCK][..(first - offset) as usize]).await?;
            }
            self.discard_blocks(whole, allocated)?;
            if offset + len > last {
                self.write_bytes(last, &[0; BLOCK][..(offset + len - last) as usize]).await?;
            }
        }
        Ok(())
    }

    /// Discards a range: whole blocks read as zeroes afterwards, partial ones stay.
    pub async fn discard(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.check_write(offset, len)?;
        self.pool.wait_for_room(&self.volume, 0).await?;
        let whole = self.whole_blocks(offset, len);
        self.discard_blocks(whole, false)?;
        self.volume.guest.discard.add(len);
        self.settle(fua).await
    }

    /// Zeroes whole blocks. What they held is garbage when that is committed.
    fn discard_blocks(&self, whole: Range<u64>, allocated: bool) -> Result<()> {
        let garbage = self.held_bytes(&whole);
        self.change(whole.clone(), |buffer| {
            self.pool.upkeep.discards.fetch_add(garbage, Relaxed);
            buffer.zero(whole.clone(), allocated);
        })?;
        if !whole.is_empty() && !self.volume.is_desktop() {
            // The leaves in between go as a whole.
            for end in [whole.start, whole.end - 1] {
                self.pool.note_cold(&self.volume, end..end + 1, std::iter::empty());
            }
        }
        Ok(())
    }

    /// Bytes that become garbage with these blocks: none if nothing is there, for a guest that trims its free space
    /// names all that it never used, too.
    pub(crate) fn held_bytes(&self, blocks: &Range<u64>) -> u64 {
        let count = blocks.end - blocks.start;
        if count == 0 {
            return 0;
        }
        match self.volume.tree.read().run(&self.pool.nodes, blocks.start, count) {
            Ok((RunKind::Hole, holes)) if holes >= count => 0,
            _ => count * BLOCK as u64,
        }
    }

    /// The blocks that lie wholly in a range; a block that the end of the disk cuts counts as whole.
    pub(crate) fn whole_blocks(&self, offset: u64, len: u64) -> Range<u64> {
        let end = offset + len;
        let last = if end == self.size() { end.div_ceil(BLOCK as u64) } else { end / BLOCK as u64 };
        let first = offset.div_ceil(BLOCK as u64);
        first..last.max(first)
    }

    /// Makes everything durable that was acknowledged before the call.
    ///
    /// # Errors
    /// [`Error::Damaged`], once for each client, where an acknowledged write is lost to damage; see [`crate::damage`].
    /// All else was made durable then.
    pub async fn flush(&self) -> Result<()> {
        self.volume.guest.flush.add(0);
        self.flush_changes().await
    }

    pub(crate) async fn flush_changes(&self) -> Result<()> {
        match self.volume.sync() {
            SyncMode::Never => {}
            SyncMode::Flush | SyncMode::Always => self.pool.flush_volume(&self.volume).await?,
        }
        self.volume.check_losses(&self.known_losses)
    }

    /// Whether a range is allocated, as runs that cover `len` bytes from `offset` on or stop after `max` runs
    /// (never an empty list for a range that is not empty).
    ///
    /// What is dirty is committed first, so that the block map alone can tell; of a desktop, which does not commit,
    /// the write buffer is asked as well. Where that fails, the whole range is reported as data, which is always
    /// true enough.
    pub async fn extents(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>> {
        self.check(offset, len)?;
        if self.pool.flush_volume(&self.volume).await.is_err() {
            return Ok(vec![Extent { len, hole: false, zero: false }]);
        }
        let end = offset + len;
        let mut at = offset;
        let mut extents: Vec<Extent> = Vec::new();
        let mut tries = 0;
        let blocks = blocks_of(offset, len);
        let buffered = if self.volume.is_desktop() {
            self.volume.buffers.lock().runs(blocks.clone())
        } else {
            Vec::new()
        };
        let mut buffered = buffered.into_iter().peekable();
        let mut steps = 0;
        while at < end && extents.len() < max.max(1) {
            steps += LEAF_STEPS;
            if steps >= TURN_STEPS {
                steps = 0;
                yield_now().await;
            }
            let block = at / BLOCK as u64;
            while buffered.next_if(|(run, _)| run.end <= block).is_some() {}
            let mut most = blocks.end - block;
            if let Some((run, kind)) = buffered.peek() {
                if run.contains(&block) {
                    let kind = match kind {
                        None => RunKind::Data,
                        Some(true) => RunKind::Zero,
                        Some(false) => RunKind::Hole,
                    };
                    at = extend(&mut extents, kind, at, (run.end * BLOCK as u64).min(end));
                    continue;
                }
                most = most.min(run.start - block);
            }
            let run = self.volume.tree.read().run(&self.pool.nodes, block, most);
            let (kind, count) = match run {
                Ok(run) => run,
                Err(need) => match self.pool.load_for_read(&self.volume, need).await {
                    Ok(_) => continue,
                    // Freed since the look-up, which the next one will not meet.
                    Err(Error::Store(StoreError::NotFound(_))) if tries < READ_RETRIES => {
                        tries += 1;
                        continue;
                    }
                    Err(e) => return Err(e),
                },
            };
            steps += count / FANOUT as u64 * LEAF_STEPS;
            at = extend(&mut extents, kind, at, ((block + count.max(1)) * BLOCK as u64).min(end));
        }
        Ok(extents)
    }

    /// Brings a range into the read cache.
    pub async fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len)?;
        let mut scratch = vec![0; len.min(READAHEAD_MAX) as usize];
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let mut part = self.zeroes(at, end - at)?;
            if part == 0 {
                part = (end - at).min(READAHEAD_MAX);
                self.pool.read(&self.volume, at, &mut scratch[..part as usize], 0).await?;
            }
            at += part;
            yield_now().await;
        }
        Ok(())
    }

    /// How many bytes from `offset` on, at most `len`, read as zeroes without being looked at one by one, since the
    /// block map has them as holes. 0 does not say that there is anything else.
    ///
    /// It takes as long as a read from RAM, whatever `len` is. As with a read, what is written meanwhile may be seen
    /// or not.
    ///
    /// # Errors
    /// As [`Disk::try_read`].
    pub fn zeroes(&self, offset: u64, len: u64) -> Result<u64> {
        self.check(offset, len)?;
        let blocks = blocks_of(offset, len);
        // The buffers before the map, as for a read.
        let Some(written) = self.volume.buffers.lock().first_written(&blocks) else { return Ok(0) };
        if written <= blocks.start {
            return Ok(0);
        }
        let run = self.volume.tree.read().run(&self.pool.nodes, blocks.start, written - blocks.start);
        Ok(match run {
            Ok((RunKind::Hole | RunKind::Zero, count)) => {
                ((blocks.start + count) * BLOCK as u64).min(offset + len) - offset
            }
            // A node that is not at hand is left to a read, which loads it.
            Ok((RunKind::Data, _)) | Err(_) => 0,
        })
    }
}

/// Adds a run from `at` to `until`, which is returned.
fn extend(extents: &mut Vec<Extent>, kind: RunKind, at: u64, until: u64) -> u64 {
    let (hole, zero) = match kind {
        RunKind::Hole => (true, true),
        RunKind::Zero => (false, true),
        RunKind::Data => (false, false),
    };
    match extents.last_mut() {
        Some(last) if (last.hole, last.zero) == (hole, zero) => last.len += until - at,
        _ => extents.push(Extent { len: until - at, hole, zero }),
    }
    until
}

pub(crate) fn aligned(offset: u64, len: u64) -> bool {
    offset.is_multiple_of(SECTOR as u64) && len.is_multiple_of(SECTOR as u64)
}

/// The blocks that a byte range touches; none where it is empty.
pub(crate) fn blocks_of(offset: u64, len: u64) -> Range<u64> {
    let first = offset / BLOCK as u64;
    first..if len == 0 { first } else { (offset + len).div_ceil(BLOCK as u64) }
}
