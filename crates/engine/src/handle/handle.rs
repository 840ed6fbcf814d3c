//! An attached disk: the requests of its client.
//!
//! Offsets and lengths are in bytes and may be unaligned. Front ends check ranges once (`offset + len` within
//! [`DiskHandle::size`]); if the disk shrinks after that check, the request fails with [`Error::OutOfRange`].
//!
//! **Reads of uncommitted data.** A write is in the buffers, and visible to reads, before it is durable. A
//! crash, or a takeover by another server, undoes a write that was neither durable nor answered. A client
//! whose writes are durable when they are answered must not see such a write and miss it later, also if
//! another client made it. So a read of this client that found data in the buffers is answered after the
//! commit of this data. If the pool has stopped, the read fails. While the store is full, the read returns
//! the data in the buffers: the buffers keep a write that was refused because the store is full, and commit
//! it when there is room. A read that showed the older contents would let the refused write take effect
//! after this read.

use std::ops::Range;
use std::sync::Arc;

use forebay_format::{BLOCK, DiskId, Role, SECTOR, SyncMode};
use forebay_retained::Reservation;
use tokio::task::yield_now;

use crate::admin::{DiskMetadata, Metadata};
use crate::commit::{Admitted, Answer, Intake};
use crate::disk::Disk;
use crate::limit::Kind;
use crate::limits::{READAHEAD_DESKTOP, READAHEAD_MAX, READAHEAD_MIN, TURN_BYTES};
use crate::map::RunKind;
use crate::marks::Marks;
use crate::read::{Gathered, Origin, ReadMode, Reader};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use crate::{Client, Coalesce, Error, GuestStats, Mutation, PoolConfig, RemoteAnswers, Result, Room};

/// Result of a request that does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fast {
    /// The request was completed at once.
    Done,
    /// Nothing was done; the caller has to use the form of the request that waits.
    Wait,
}

/// Where a read found its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFrom {
    /// All data of the read was in RAM.
    Ram,
    /// Some of the data was in the store.
    Store,
}

/// A disk that a client has open, or several clients of a front end that share the handle. Dropping it
/// detaches them.
pub struct DiskHandle {
    pub(super) reader: Arc<Reader>,
    pub(crate) intake: Arc<Intake>,
    pub(crate) disk: Arc<Disk>,
    metadata: Arc<Metadata>,
    marks: Arc<Marks>,
    /// The client that has the disk open; the disk is marked for answers to it. `None` for an import, which a
    /// crash removes.
    client: Option<Client>,
    /// The client may not use the disk: see [`DiskHandle::check_ready`].
    is_refused: AtomicBool,
    name: String,
    disconnected_cleanly: AtomicBool,
    /// The number of clients that share the handle.
    clients: AtomicUsize,
    /// Number of lost writes of the disk that were reported to this client; see [`crate::read::damage`].
    known_losses: AtomicU64,
}

impl Drop for DiskHandle {
    fn drop(&mut self) {
        if self.disk.detach(self.disconnected_cleanly.load(Relaxed), self.clients.load(Relaxed)) {
            self.intake.wake_resets();
        }
    }
}

impl DiskHandle {
    /// A handle to a disk that has counted this client already ([`Disk::attach`]).
    pub(crate) fn new(
        metadata: Arc<Metadata>,
        marks: Arc<Marks>,
        disk: Arc<Disk>,
        name: String,
        client: Option<Client>,
    ) -> DiskHandle {
        DiskHandle {
            reader: metadata.reader.clone(),
            intake: metadata.intake.clone(),
            metadata,
            marks,
            client,
            is_refused: AtomicBool::new(false),
            known_losses: AtomicU64::new(disk.reported_losses()),
            disk,
            name,
            disconnected_cleanly: AtomicBool::new(false),
            clients: AtomicUsize::new(1),
        }
    }

    /// Number of this disk, which is never reused.
    pub fn id(&self) -> DiskId {
        self.disk.id()
    }

    /// Reports how many clients share this handle; 1 until this is called. One call at a time.
    pub fn set_clients(&self, clients: usize) {
        self.disk.change_clients(self.clients.swap(clients, Relaxed), clients);
    }

    /// Records that the client ends its connection cleanly. A client that loses its connection may reconnect
    /// and continue, so a desktop is reset automatically only after a clean disconnect. From the return on,
    /// no other client can attach before the reset is complete.
    pub fn mark_clean_disconnect(&self) {
        if !self.disconnected_cleanly.swap(true, Relaxed)
            && self.reader.context().config.mutation != Mutation::ReuseDesktop
        {
            self.disk.record_clean_disconnect();
        }
    }

    /// Export name of the disk.
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// Identity of the disk that guests and initiators see; it never changes.
    pub fn uuid(&self) -> [u8; 16] {
        self.disk.record().uuid
    }

    /// How often the contents of the disk were replaced or cut off since the pool was opened: by a
    /// rollback, a reset, or by shrinking. It does not change while this handle exists.
    pub fn replacements(&self) -> u64 {
        self.disk.replacements()
    }

    /// The state of free room for this disk: in the store, and within the quota of its tenant.
    pub fn room(&self) -> Room {
        self.intake.room().max(self.disk.occupied.room())
    }

    /// Current size of the disk in bytes.
    pub fn size(&self) -> u64 {
        self.disk.size()
    }

    /// Whether the handle refuses writes.
    pub fn read_only(&self) -> bool {
        matches!(self.disk.role(), Role::Snapshot | Role::Image)
    }

    /// Whether writes are durable when they are acknowledged, so that no flush is needed.
    pub fn write_through(&self) -> bool {
        is_write_through(&self.disk, self.client, &self.reader.context().config)
    }

    /// Whether a change is durable when it is answered.
    pub fn is_durable(&self, fua: bool) -> bool {
        !self.disk.is_desktop() && (self.write_through() || (fua && self.disk.sync() == SyncMode::Flush))
    }

    /// Waits until the disk is marked, unless a change is durable when it is answered; see [`crate::marks`].
    pub(super) async fn mark_unless_durable(&self, fua: bool) -> Result<()> {
        match self.client {
            Some(client) if !self.is_durable(fua) => self.marks.ensure(&self.disk, client.clientele()).await,
            _ => Ok(()),
        }
    }

    /// Whether an acknowledged write of the disk was lost because of damage, and no flush of this client has
    /// reported it yet.
    pub fn has_unreported_losses(&self) -> bool {
        self.disk.has_losses(&self.known_losses)
    }

    /// Counters of guest operations on this disk.
    pub fn stats(&self) -> GuestStats {
        self.disk.guest.get()
    }

    /// The persistent reservations that a front end stores with this disk; `None` if it has none.
    ///
    /// # Errors
    /// The errors of a read; [`Error::Damaged`] if they cannot be read.
    pub async fn reservations(&self) -> Result<Option<Vec<u8>>> {
        self.metadata.get(&self.disk, DiskMetadata::Reservations).await
    }

    /// Durably replaces or removes the persistent reservations. They are deleted with the disk, survive a
    /// rollback or reset, and are not copied to clones.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the disk was deleted; the errors of a write.
    pub async fn set_reservations(&self, content: Option<&[u8]>) -> Result<()> {
        self.metadata.set(&self.disk, DiskMetadata::Reservations, content).await
    }

    /// Makes the requests of this client fail, as long as answered writes of the client may be lost.
    pub(crate) fn refuse_until_resumed(&self) {
        self.is_refused.store(true, Relaxed);
    }

    /// Whether the client can use the disk.
    ///
    /// # Errors
    /// [`Error::MemoryLost`] if it may have had writes answered that are lost, and no administrator has
    /// resumed the disk yet.
    pub fn check_ready(&self) -> Result<()> {
        if let Some(client) = self.client
            && self.is_refused.load(Relaxed)
        {
            self.marks.check(&self.disk, client, &self.name)?;
            self.is_refused.store(false, Relaxed);
        }
        Ok(())
    }

    pub(crate) fn check(&self, offset: u64, len: u64) -> Result<()> {
        self.check_ready()?;
        match offset.checked_add(len) {
            Some(end) if end <= self.size() => Ok(()),
            _ => Err(Error::OutOfRange),
        }
    }

    pub(crate) fn check_read(&self, offset: u64, len: u64) -> Result<()> {
        self.reader.context().check_fenced()?;
        self.check(offset, len)
    }

    /// Whether another server has opened the pool, so that no request may be answered.
    pub fn is_fenced(&self) -> bool {
        self.reader.context().is_fenced()
    }

    pub(crate) fn check_write(&self, offset: u64, len: u64) -> Result<()> {
        if self.read_only() {
            return Err(Error::ReadOnly(self.name.clone()));
        }
        self.check(offset, len)
    }

    /// Waits until the limits of the disk and of its tenant permit a request of `bytes`, and counts the
    /// request.
    pub(super) async fn begin(&self, kind: Kind, bytes: u64) {
        self.disk.limiter.take(kind, bytes, &*self.reader.context().host).await.use_up();
    }

    /// Reads into `out` if that is possible without waiting. On [`Fast::Wait`], nothing is counted and `out`
    /// is undefined.
    pub fn try_read(&self, offset: u64, out: &mut [u8]) -> Result<Fast> {
        self.check_read(offset, out.len() as u64)?;
        let mut found = Gathered::default();
        let read = self.reader.gather(&mut 0, &self.disk, offset, out, &mut found, ReadMode::CachedOnly);
        let waits_for_commit = found.is_uncommitted && self.is_durable(false);
        if read.is_err() || !found.gaps.is_empty() || waits_for_commit {
            return Ok(Fast::Wait);
        }
        self.reader.context().check_fenced()?;
        match self.disk.limiter.try_take(Kind::Read, out.len() as u64, &*self.reader.context().host) {
            Some(tokens) => tokens.use_up(),
            None => return Ok(Fast::Wait),
        }
        self.count_read(offset, out.len(), true);
        self.reader.hit_sequential(&self.disk, offset, out.len() as u64);
        Ok(Fast::Done)
    }

    /// Reads the disk from `offset` into `out`.
    pub async fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let request = offset..offset.saturating_add(out.len() as u64);
        self.read_part(request, offset, out).await.map(|_| ())
    }

    /// Works like [`DiskHandle::read`], for a part of a client's `request`, a range of bytes. Other parts of
    /// the request may be read ahead.
    pub async fn read_part(&self, request: Range<u64>, offset: u64, out: &mut [u8]) -> Result<ReadFrom> {
        let len = out.len() as u64;
        self.check_read(offset, len)?;
        self.begin(Kind::Read, len).await;
        let read = self.reader.begin_sequential(&self.disk, (offset, len), &request);
        let has_room = self.disk.is_desktop() && self.reader.cache.has_room();
        let together = read.together(if has_room { READAHEAD_DESKTOP } else { READAHEAD_MIN });
        let origin = self.read_lasting(offset, out, together).await?;
        self.reader.context().check_fenced()?;
        self.reader.end_sequential(&self.disk, &read, origin, together);
        self.count_read(offset, out.len(), origin == Origin::Ram);
        Ok(if origin == Origin::Ram { ReadFrom::Ram } else { ReadFrom::Store })
    }

    /// Reads for the server itself: without an effect on the read cache, the counters, the limits and the
    /// recordings of boots. The read waits for its share of the store as the read of a client does.
    pub(crate) async fn read_in_background(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.check_read(offset, out.len() as u64)?;
        self.reader.read_as(&self.disk, offset, out, 0, ReadMode::Background).await?;
        self.reader.context().check_fenced()
    }

    /// Reads what no crash or takeover undoes, for a client whose writes are durable when they are answered;
    /// see the module documentation. The contents from before the wait are returned after the wait, so a
    /// stream of writes to the same blocks does not delay the read for ever.
    async fn read_lasting(&self, offset: u64, out: &mut [u8], ahead: u64) -> Result<Origin> {
        let read = self.reader.read_as(&self.disk, offset, out, ahead, ReadMode::Wait).await?;
        let waits_for_commit = read.is_uncommitted && self.is_durable(false);
        if waits_for_commit {
            match self.intake.flush_disk(&self.disk).await {
                Ok(()) | Err(Error::NoSpace) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(read.origin)
    }

    fn count_read(&self, offset: u64, len: usize, hit: bool) {
        let before = self.disk.guest.read.next(len as u64);
        self.reader.record_class(&self.disk, before, offset, hit);
    }

    /// Writes if that is possible without waiting: there is room in the buffer, the range is whole sectors,
    /// and the disk is marked and not write-through.
    pub fn try_write(&self, offset: u64, data: &[u8]) -> Result<Fast> {
        if self.write_through() {
            self.check_write(offset, data.len() as u64)?;
            return Ok(Fast::Wait);
        }
        let answer = self.client.map_or(Answer::Later, |client| Answer::IfMarked(client.clientele()));
        self.try_write_for(offset, data, answer)
    }

    /// Works like [`DiskHandle::try_write`], but also to a write-through disk or a disk that is not marked.
    /// The request is answered after [`DiskHandle::finish`], when it is durable.
    pub fn try_write_durably(&self, offset: u64, data: &[u8]) -> Result<Fast> {
        self.try_write_for(offset, data, Answer::WhenDurable { is_last: true })
    }

    fn try_write_for(&self, offset: u64, data: &[u8], answer: Answer) -> Result<Fast> {
        self.check_write(offset, data.len() as u64)?;
        if !aligned(offset, data.len() as u64) {
            return Ok(Fast::Wait);
        }
        let Some(mut admitted) = self.intake.try_admit(&self.disk, data.len() as u64)? else {
            return Ok(Fast::Wait);
        };
        if !self.intake.write_sectors(&self.disk, offset, data, &mut admitted.room, answer)? {
            return Ok(Fast::Wait);
        }
        admitted.tokens.use_up();
        self.disk.guest.write.add(data.len() as u64);
        Ok(Fast::Done)
    }

    /// Writes `data`. On return it is durable if `fua` is set or the disk is write-through.
    pub async fn write(&self, offset: u64, data: &[u8], fua: bool) -> Result<()> {
        self.check_write(offset, data.len() as u64)?;
        self.mark_unless_durable(fua).await?;
        let answer = match self.is_durable(fua) {
            true => Answer::WhenDurable { is_last: true },
            false => Answer::Later,
        };
        self.write_part_for(offset, data, answer).await?;
        self.finish(fua).await
    }

    /// Works like [`DiskHandle::write`], for a part of a request that is answered after
    /// [`DiskHandle::finish`].
    pub async fn write_part(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.write_part_for(offset, data, Answer::Later).await
    }

    async fn write_part_for(&self, offset: u64, data: &[u8], answer: Answer) -> Result<()> {
        self.check_write(offset, data.len() as u64)?;
        self.disk.occupied.check(offset, data)?;
        let tokens = self.intake.begin_write(&self.disk, data.len() as u64).await;
        let (mut at, end) = (offset, offset + data.len() as u64);
        // While another disk flushes, each piece is admitted separately, so that a long request need not fit
        // into one group.
        let mut whole = match self.intake.is_divided(&self.disk, end - at) {
            true => None,
            false => Some(self.intake.admit_piece(&self.disk, end - at).await?),
        };
        // Once the first piece is written, a request that fails or is dropped has changed the disk.
        tokens.use_up();
        // Pieces end at block boundaries, so that only the ends of the range are partial blocks.
        while at < end {
            if at > offset {
                yield_now().await;
            }
            let step = if whole.is_some() { TURN_BYTES } else { self.intake.piece() };
            let until = ((at / step + 1) * step).min(end);
            let mut separate = None;
            let room = match &mut whole {
                Some(room) => room,
                None => separate.insert(self.intake.admit_piece(&self.disk, until - at).await?),
            };
            room.spend(until - at);
            let answer = match answer {
                Answer::WhenDurable { .. } => Answer::WhenDurable { is_last: until == end },
                other => other,
            };
            let piece = &data[(at - offset) as usize..(until - offset) as usize];
            self.write_bytes(at, piece, &mut room.room, answer).await?;
            at = until;
        }
        self.disk.guest.write.add(data.len() as u64);
        Ok(())
    }

    /// Waits until changes may be acknowledged. With `fua` or on a write-through disk that is when they are
    /// durable, otherwise when the disk is marked.
    pub async fn finish(&self, fua: bool) -> Result<()> {
        if self.is_durable(fua) {
            self.intake.flush_disk(&self.disk).await?;
            self.disk.check_losses(&self.known_losses)?;
        }
        // The mark may have been removed since the first check, or the disk may have become a desktop again.
        self.mark_unless_durable(fua).await
    }

    fn change(&self, blocks: Range<u64>, change: impl FnOnce(&mut crate::buffer::WriteBuffer)) -> Result<()> {
        self.intake.change(&self.disk, blocks, |buffers, blocks| buffers.change(blocks, change))
    }

    /// Zeroes a range. The range becomes a hole; with `allocated`, it is reported as allocated.
    pub async fn write_zeroes(&self, offset: u64, len: u64, allocated: bool, fua: bool) -> Result<()> {
        self.check_write(offset, len)?;
        self.mark_unless_durable(fua).await?;
        self.write_zeroes_part(offset, len, allocated).await?;
        self.finish(fua).await
    }

    /// Works like [`DiskHandle::write_zeroes`], for a part of a request that is answered after
    /// [`DiskHandle::finish`].
    pub async fn write_zeroes_part(&self, offset: u64, len: u64, allocated: bool) -> Result<()> {
        self.check_write(offset, len)?;
        // Zeroes that stay allocated are entries of the map, even where the map had none: on a full store,
        // such requests could use up the room that discards and deletions need.
        let admitted = self.intake.admit_request(&self.disk, 0, u64::from(allocated)).await?;
        let Admitted { mut room, tokens, .. } = admitted;
        tokens.use_up();
        self.zero(offset, len, allocated, &mut room).await?;
        self.disk.guest.discard.add(len);
        Ok(())
    }

    pub(crate) async fn zero(
        &self,
        offset: u64,
        len: u64,
        allocated: bool,
        room: &mut Reservation,
    ) -> Result<()> {
        let whole = self.whole_blocks(offset, len);
        if whole.is_empty() {
            self.write_zero_bytes(offset, len, room).await?;
        } else {
            let first = whole.start * BLOCK as u64;
            if offset < first {
                self.write_zero_bytes(offset, first - offset, room).await?;
            }
            let last = self.discard_blocks(whole, offset + len, allocated, room)? * BLOCK as u64;
            if offset + len > last {
                self.write_zero_bytes(last, offset + len - last, room).await?;
            }
        }
        Ok(())
    }

    /// Writes zeroes into partial blocks: fewer bytes than two blocks.
    async fn write_zero_bytes(&self, offset: u64, len: u64, room: &mut Reservation) -> Result<()> {
        self.write_bytes(offset, &[0; 2 * BLOCK][..len as usize], room, Answer::Later).await
    }

    /// Discards a range: whole blocks read as zeroes afterwards, partial blocks are not changed.
    pub async fn discard(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.check_write(offset, len)?;
        self.mark_unless_durable(fua).await?;
        let Admitted { mut room, tokens, .. } = self.intake.admit_request(&self.disk, 0, 0).await?;
        let whole = self.whole_blocks(offset, len);
        self.discard_blocks(whole, offset + len, false, &mut room)?;
        tokens.use_up();
        self.disk.guest.discard.add(len);
        self.finish(fua).await
    }

    /// Zeroes whole blocks of a request that ends at `end`. Their former contents become garbage when the
    /// change is committed. Returns the end of the zeroed blocks. The last block is left out if the end of
    /// the disk cut it off and the disk has grown since: its remaining part may have been written.
    fn discard_blocks(
        &self,
        mut whole: Range<u64>,
        end: u64,
        allocated: bool,
        room: &mut Reservation,
    ) -> Result<u64> {
        let garbage = self.garbage_of(&whole);
        self.change(whole.clone(), |buffer| {
            if whole.end * BLOCK as u64 > end && self.size() > end {
                whole.end -= 1;
            }
            self.intake.add_discards(garbage);
            self.disk.occupied.free(whole.clone());
            buffer.zero(whole.clone(), allocated, Some(room));
        })?;
        if !whole.is_empty() && !self.disk.is_desktop() {
            // Leaves between both ends are dropped without being read.
            for end in [whole.start, whole.end - 1] {
                self.intake.record_cold(&self.disk, end..end + 1, std::iter::empty());
            }
        }
        Ok(whole.end)
    }

    /// Bytes that become garbage when these blocks are replaced. There are none if all blocks are holes: a
    /// guest that trims its free space includes blocks that it never wrote.
    pub(crate) fn garbage_of(&self, blocks: &Range<u64>) -> u64 {
        let count = blocks.end - blocks.start;
        if count == 0 {
            return 0;
        }
        match self.disk.tree.read().run(&self.reader.nodes.cache, blocks.start, count) {
            Ok((RunKind::Hole, holes)) if holes >= count => 0,
            _ => count * BLOCK as u64,
        }
    }

    /// The blocks that are entirely within a range. If the end of the disk cuts off the last block, this
    /// block counts as entire.
    pub(crate) fn whole_blocks(&self, offset: u64, len: u64) -> Range<u64> {
        let end = offset + len;
        let last = if end == self.size() { end.div_ceil(BLOCK as u64) } else { end / BLOCK as u64 };
        let first = offset.div_ceil(BLOCK as u64);
        first..last.max(first)
    }

    /// Makes all writes durable that were acknowledged before the call.
    ///
    /// # Errors
    /// [`Error::Damaged`], once for each client, if an acknowledged write was lost because of damage; see
    /// `read/damage.rs`. All other writes are durable then.
    pub async fn flush(&self) -> Result<()> {
        self.disk.guest.flush.add(0);
        self.flush_changes().await
    }

    /// Flushes like [`DiskHandle::flush`], but does not count a flush.
    pub(crate) async fn flush_changes(&self) -> Result<()> {
        match self.disk.sync() {
            SyncMode::Never if !self.is_durable(true) => self.reader.context().check_fenced()?,
            _ => self.intake.flush_disk(&self.disk).await?,
        }
        self.disk.check_losses(&self.known_losses)
    }

    /// Reads a range of the disk into the read cache.
    pub async fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.check_read(offset, len)?;
        let mut scratch = vec![0; len.min(READAHEAD_MAX) as usize];
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let mut part = self.zeroes(at, end - at)?;
            if part == 0 {
                part = (end - at).min(READAHEAD_MAX);
                self.begin(Kind::Read, part).await;
                self.reader.read(&self.disk, at, &mut scratch[..part as usize], 0).await?;
            }
            at += part;
            yield_now().await;
        }
        Ok(())
    }
}

/// Whether a range consists of whole sectors.
pub(crate) fn aligned(offset: u64, len: u64) -> bool {
    offset.is_multiple_of(SECTOR as u64) && len.is_multiple_of(SECTOR as u64)
}

/// Whether writes of a client to a disk are durable when they are acknowledged.
pub(crate) fn is_write_through(disk: &Disk, client: Option<Client>, config: &PoolConfig) -> bool {
    let sync = disk.sync();
    let is_durable_to_remote = match client {
        Some(Client::Relayed) => true,
        Some(Client::Remote) => config.remote_answers == RemoteAnswers::Durable,
        Some(Client::Local { .. }) | None => false,
    };
    sync == SyncMode::Always
        || (!disk.is_desktop()
            && (config.coalesce == Coalesce::Off || (is_durable_to_remote && sync != SyncMode::Never)))
}

#[cfg(test)]
mod tests {
    use forebay_store::MemoryStore;

    use super::*;
    use crate::testing::TokioHost;
    use crate::{CloneRequest, Pool};

    /// The disk has grown after the blocks of the request were determined, and the rest of the block that its
    /// end had cut off was written.
    #[tokio::test]
    async fn a_discard_up_to_the_former_end_spares_the_rest_of_the_block() {
        const END: u64 = 10 * BLOCK as u64 + 512;
        let store = Arc::new(MemoryStore::new());
        let pool = Pool::open(store, TokioHost::new(), PoolConfig::default()).await.unwrap();
        for first in [0, 10] {
            let name = format!("v{first}");
            pool.create_volume(&name, END, SyncMode::Flush, 0).await.unwrap();
            let disk = pool.attach(&name).unwrap();
            disk.write(0, &[1; END as usize], false).await.unwrap();
            let begin = first * BLOCK as u64;
            let whole = disk.whole_blocks(begin, END - begin);
            assert_eq!(whole, first..11);
            pool.resize(&name, 2 * END).await.unwrap();
            disk.write(END, &[2; BLOCK - 512], false).await.unwrap();
            let mut room = disk.intake.admit(&disk.disk, 0).await.unwrap().room;
            assert_eq!(disk.discard_blocks(whole, END, false, &mut room).unwrap(), 10);
            let mut block = [0; BLOCK];
            disk.read(10 * BLOCK as u64, &mut block).await.unwrap();
            assert!(block[..512] == [1; 512] && block[512..] == [2; BLOCK - 512]);
        }
    }

    /// Clients have hundreds of thousands of requests in progress.
    #[tokio::test]
    async fn futures_of_requests_are_small() {
        let pool = Pool::open(Arc::new(MemoryStore::new()), TokioHost::new(), PoolConfig::default());
        let pool = pool.await.unwrap();
        pool.create_volume("v", 1 << 20, SyncMode::Flush, 0).await.unwrap();
        let (disk, mut out) = (pool.attach("v").unwrap(), [0; BLOCK]);
        let (read, write) = (size_of_val(&disk.read(0, &mut out)), size_of_val(&disk.write(0, &[], false)));
        assert!(read < 2048 && write < 2048, "{read} and {write} bytes");
    }

    /// A durable write may wait while its disk is a volume, and continue when it is a desktop again because
    /// there was no room to make it a volume.
    #[tokio::test]
    async fn a_durable_write_to_a_desktop_keeps_blocks_apart() {
        let config = PoolConfig { coalesce: Coalesce::Off, ..PoolConfig::default() };
        let pool = Pool::open(Arc::new(MemoryStore::new()), TokioHost::new(), config).await.unwrap();
        let image = pool.begin_import("golden", 8 * BLOCK as u64, 0).await.unwrap();
        pool.finish_import(image).await.unwrap();
        let desktop = CloneRequest { name: "pc".into(), write_cache: 1 << 20, ..CloneRequest::default() };
        pool.clone_disk("golden", &[desktop]).await.unwrap();
        let pc = pool.attach("pc").unwrap();
        let blocks = [0, 0, 1, 2, 0, 3].map(|byte| [byte; BLOCK]);
        let data = blocks.as_flattened();
        let mut room = pc.intake.admit(&pc.disk, data.len() as u64).await.unwrap().room;
        pc.write_bytes(0, data, &mut room, Answer::WhenDurable { is_last: true }).await.unwrap();
        pool.persist("pc", SyncMode::Flush).await.unwrap();
        let mut read = vec![9; data.len()];
        pc.read(0, &mut read).await.unwrap();
        assert!(read == data);
    }
}
