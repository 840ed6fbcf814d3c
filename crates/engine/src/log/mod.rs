//! The log: the only writer of segments and of the superblock.
//!
//! **The commit argument.** A *group* is the output of one commit: one or more batches, the last of which is
//! marked. [`Log::append`] appends the batches in order, each linked to its predecessor by sequence number
//! and checksum. A batch is prepared while its predecessor is written, and its append begins when the append
//! of the predecessor has ended. If a segment ends within the group, its footer is written at the same time
//! as the first batch of the next segment. [`Log::end_group`] then syncs every segment to which the group was
//! appended. Only after that does the caller change maps and answer guests. Therefore, after a crash:
//!
//! - during an append: the group has no valid end and recovery drops it; it was not reported as durable to
//!   any client;
//! - between append and sync: the group may be present in full, in part or not at all; recovery either
//!   applies it as a whole (unacknowledged writes may take effect) or drops it;
//! - after the sync: the group is complete, and so is every earlier group, because each group was synced
//!   before the next group began; the chain from the checkpoint reaches the group.
//!
//! **When the store is full**, the log can continue only if the failed operation belongs to data that was not
//! promised to any client, that is, at an append:
//!
//! | the store is full at | state of the store | action of the log |
//! |---|---|---|
//! | an append of a group, or the footer of a segment that ends within it | nothing was synced; the group is incomplete, or only the footer is missing | abandons the group: leaves the segment, deletes those that the group began, returns to its start; [`StoreError::Full`], and the caller may write it again. If a complete group cannot be deleted, fails permanently |
//! | the footer of a segment that is ended outside of a group | as above | ends the segment without a footer; no error |
//! | a sync | the bytes since the last sync are undefined, permanently (delayed allocation, thin volumes, quotas) | fails permanently, as after any failed sync |
//! | a superblock write: checkpoint, new epoch, a copy renewed for the cleaner | that copy may be old, new or torn; the other copy is intact | fails permanently; a restart begins from an intact copy, and both copies are valid starting points |
//! | a deletion | the object may still exist | not handled by the log: [`crate::reclaim`] retries it |
//!
//! After a group is abandoned, the epoch is raised by one before the next append. So recovery cannot take
//! remains of the abandoned group for the new group: of several batches with one sequence number, it uses the
//! batch of the highest epoch. The epoch is also raised after a footer for which there was no room. A
//! permanent failure latches the pool; the log is not used again. Such an error is never [`StoreError::Full`]
//! ([`for_good`]), so that no caller treats it as recoverable.
//!
//! A new segment is preallocated, so that a full store is noticed when a segment begins. After a group was
//! abandoned, checkpoints and the cleaner begin segments without preallocation: otherwise a store with less
//! room than one segment could not free any room.
//!
//! **When an object does not answer** while other objects do, for example because an OSD hangs, a group need
//! not wait for this object. If an append is overdue ([`Store::overdue`]), the log abandons the group, and
//! the caller writes the group again at once ([`StoreError::Overdue`]), into a segment whose object was just
//! created. Unlike a failed append, an abandoned append may still take effect, at any time. This does no
//! harm:
//!
//! | the abandoned append takes effect | recovery |
//! |---|---|
//! | and the group is not durable elsewhere | may find the group complete, and applies it: no other group was acknowledged in its place, and the same group was to be written again |
//! | and the group is durable in another segment | finds each number of the group twice, and uses the batch of the higher epoch |
//! | after another owner has taken the pool over | does not happen: the store fences its object |
//! | after a checkpoint | does not read it: the segment is not open any more |
//!
//! Recovery never combines batches of the abandoned group with batches of its second copy: a batch links to
//! its predecessor by checksum, which includes the epoch. One case remains: there may be no room for the
//! second copy of the group. The group must then not be reported as abandoned, since recovery could still
//! find its first copy, so the log fails permanently. To make this case rare, no room is preallocated for the
//! rest of the segment when a group is written again.
//!
//! A group of the cleaner is abandoned whenever an append is overdue, since commits wait for the log. The
//! group is not written again, because all slots of a segment must be moved into one object: the segment
//! stays where it is. The abandoned group may take effect later as well. If it holds copies, nothing refers
//! to them. If it is the publication of a segment ([`crate::reclaim`]), the publication is valid until a
//! later group refers to a slot that the publication leaves out. But such a later group has the same numbers
//! and a higher epoch, so recovery uses it in place of the publication.
//!
//! The object of the next segment is *prepared* when an open segment is half full: the empty object is
//! created before a stream needs it, and a commit waits for its creation only if the creation is not complete
//! by then. For recovery, the object is like a segment whose first append was interrupted by a crash: it
//! holds nothing. All streams share the prepared object, since they share the numbers of segments. A prepared
//! object that is no longer needed is deleted. The prepared object of a crashed server is in no table, so a
//! reclaim deletes it.

mod appends;
mod barrier;
mod describe;
mod draft;
mod figures;
mod next;
mod scan;
mod table;

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_format::{
    BLOCK, BatchHeader, BlockRef, DirectoryEntry, GROUP_END, SegmentFooter, SegmentHeader, SegmentId,
    SegmentRecord, SegmentState, Stream, Superblock,
};
pub(crate) use forebay_store::for_good;
use forebay_store::{BoxFuture, Completion, IoBuf, Store, StoreError};
use futures_util::future::{join, pending};

use appends::Appends;
pub(crate) use barrier::Barrier;
pub(crate) use describe::describe;
use draft::{Draft, Medium, fill};
pub(crate) use draft::{Item, block_at, directory_entry};
pub(crate) use figures::LogFigures;
use next::NextSegment;
pub(crate) use scan::{Gap, Neighbour, Scanned, SegmentScan, scan_past_gaps, scan_segment};
pub(crate) use table::SegmentTable;

use crate::cache::ReadCache;
use crate::limits::{BATCH_BYTES, MAX_SEGMENT_BYTES};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::workers::Workers;

/// Number of buffers that are kept for reuse.
const SPARES: usize = 2;
/// How often a group is abandoned because an append is overdue. After that it waits: objects that are slow,
/// but do answer, would otherwise make a large group begin again and again.
const MOST_LEFT_BEHIND: u32 = 3;

/// A group that is being written.
pub(crate) struct Writing<'a> {
    store: &'a dyn Store,
    medium: Medium<'a>,
    stream: Stream,
    /// The newest batch before the group.
    start: Head,
    /// Record of the segment in which the group begins, as it was before the group.
    before: Option<SegmentRecord>,
    /// The first segment that belongs to the group; all later segments belong to it too.
    first_new: SegmentId,
    /// The append of the previous batch, and of the footer of the segment that ended before it; they continue
    /// while the next batch is prepared.
    under_way: Appends,
    /// The group continues in another segment if an append is overdue.
    may_move_on: bool,
    /// The last batch of the group was appended, or its append is under way.
    is_ended: bool,
    placed: Vec<BlockRef>,
}

impl Writing<'_> {
    /// Watches an append of `len` bytes that has begun.
    fn watch(&mut self, append: Completion<IoBuf>, len: usize) {
        let overdue: BoxFuture<'static, ()> = match self.may_move_on {
            true => self.store.overdue(len),
            false => Box::pin(pending()),
        };
        self.under_way.add(append, overdue);
    }

    /// The references of the payload items so far, in order.
    pub fn placed(&self) -> &[BlockRef] {
        &self.placed
    }
}

/// The open segment of a stream, to which the stream appends.
struct Open {
    id: SegmentId,
    offset: u64,
    directory: Vec<DirectoryEntry>,
    /// Length of the directory at the last sync.
    durable: usize,
    /// The store has reserved room for the whole segment.
    preallocated: bool,
}

/// Sequence number and checksum of the newest batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub seq: u64,
    pub chain: u64,
}

/// The log of an open pool.
pub(crate) struct Log {
    store: Arc<dyn Store>,
    superblock: Superblock,
    head: Head,
    open: BTreeMap<Stream, Open>,
    table: SegmentTable,
    unsynced: Vec<SegmentId>,
    next: NextSegment,
    /// The epoch must be raised before the next append; see the module documentation.
    raise_epoch: bool,
    /// A group found no room in the store, and no segment was preallocated since.
    is_short: bool,
    /// How often the present group was abandoned because an append was overdue. These appends may still take
    /// effect. Groups of the cleaner do not count.
    left_behind: u32,
    /// The first failure. No later operation (commit or checkpoint) may build on a failed one: a durable
    /// group after a group that is not durable would be lost although it was acknowledged.
    failed: Option<StoreError>,
    /// While a reclaim is under way: the addresses referenced since its mark began.
    pub barrier: Option<Barrier>,
    /// Buffers for reuse: one buffer is filled while another is written.
    spares: Vec<IoBuf>,
    /// Bytes appended since the pool was opened; determines when a checkpoint is due.
    pub appended: Arc<AtomicU64>,
}

impl Log {
    /// Creates the log from the state that recovery found. `superblock` is the superblock on the store, which
    /// has this epoch already.
    pub fn new(
        store: Arc<dyn Store>,
        superblock: Superblock,
        head: Head,
        table: SegmentTable,
        next_segment: u32,
    ) -> Log {
        Log {
            next: NextSegment::new(store.clone(), next_segment),
            store,
            superblock,
            head,
            open: BTreeMap::new(),
            table,
            unsynced: Vec::new(),
            raise_epoch: false,
            is_short: false,
            left_behind: 0,
            failed: None,
            barrier: None,
            spares: Vec::new(),
            appended: Arc::default(),
        }
    }

    /// Returns the newest batch of the log.
    pub fn head(&self) -> Head {
        self.head
    }

    /// The superblock as it is on the store.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Number of the next segment to be opened.
    pub fn next_segment(&self) -> u32 {
        self.next.number()
    }

    /// All segments. Loops over all of them use a copy, which is cheap.
    pub fn table(&self) -> &SegmentTable {
        &self.table
    }

    /// Adds records of segments that do not exist, for measurements.
    #[cfg(test)]
    pub fn grow(&mut self, records: impl IntoIterator<Item = SegmentRecord>) {
        for record in records {
            self.next.skip_to(record.segment.0 + 1);
            self.table.insert(record);
        }
    }

    /// Whether the cleaner may write `bytes` bytes. While the log is not short of room, it always may.
    /// Otherwise the bytes must fit into the room that is preallocated for the cleaner's open segment, or
    /// the store must have room for them and for `spare` more bytes, for the checkpoint after which emptied
    /// objects are deleted.
    pub fn may_move(&self, bytes: u64, free: u64, spare: u64) -> bool {
        let reserved = self.open.get(&Stream::Moved).filter(|open| open.preallocated);
        let left =
            reserved.map_or(0, |open| u64::from(self.superblock.segment_bytes).saturating_sub(open.offset));
        !self.is_short || bytes <= left || bytes.saturating_add(spare) <= free
    }

    /// The segments that are open for appending.
    pub fn open_segments(&self) -> Vec<SegmentId> {
        self.open.values().map(|o| o.id).collect()
    }

    /// Whether a segment is open for appending.
    pub fn is_open(&self, id: SegmentId) -> bool {
        self.open.values().any(|o| o.id == id)
    }

    /// The slots of a segment that is open for appending, in their order; `None` if the segment is not open.
    /// Slots of a group that is being written are not included.
    pub fn open_directory(&self, id: SegmentId) -> Option<&[DirectoryEntry]> {
        let open = self.open.values().find(|o| o.id == id)?;
        open.directory.get(..open.durable)
    }

    /// Whether no slot of a segment belongs to a group that is being written, which may be abandoned.
    pub fn is_synced(&self, id: SegmentId) -> bool {
        !self.unsynced.contains(&id)
    }

    /// Removes a segment whose object was deleted.
    pub fn forget(&mut self, id: SegmentId) {
        debug_assert!(!self.is_open(id));
        self.table.remove(id);
    }

    /// The open segment of a stream, and how many more bytes of batches fit into it when its size is limited
    /// to `most`.
    pub fn open_segment(&self, stream: Stream, most: u64) -> Option<(SegmentId, u64)> {
        self.open.get(&stream).map(|o| (o.id, most.saturating_sub(o.offset)))
    }

    /// Records a relocation that is durable: the live slots of a segment are in another container from now
    /// on.
    pub fn moved(&mut self, segment: SegmentId, container: SegmentId, map: (u32, u32)) {
        self.table.change(segment, |r| (r.container, r.map) = (container.0, Some(map)));
    }

    /// Breaks the rule that a group has a higher epoch when it is written again.
    pub fn keep_epoch(&mut self) {
        self.raise_epoch = false;
    }

    /// Size limit of a batch: at least four fit into a segment.
    pub fn batch_limit(&self) -> usize {
        BATCH_BYTES.min(self.superblock.segment_bytes as usize / 4)
    }

    /// Writes items as one group, durably. Returns the reference of each payload item, in order.
    ///
    /// # Errors
    /// `Full`, if an append found no room, and `Overdue`, for a group of the cleaner whose append was
    /// overdue: the group was abandoned. After another error the log must not be used again.
    pub async fn write_group(
        &mut self,
        stream: Stream,
        items: &[Item<'_>],
        workers: &dyn Workers,
    ) -> Result<Vec<BlockRef>, StoreError> {
        loop {
            let was_short = self.is_short;
            match self.try_write_group(stream, items, workers).await {
                // A checkpoint must not fail because room for a whole segment cannot be reserved. The cleaner
                // cannot use the rest of a segment: the slots and the map of a moved segment must be in one
                // container.
                Err(StoreError::Full) if stream == Stream::Map && !was_short => {}
                Err(StoreError::Overdue) if stream != Stream::Moved => {}
                other => return other,
            }
        }
    }

    async fn try_write_group(
        &mut self,
        stream: Stream,
        items: &[Item<'_>],
        workers: &dyn Workers,
    ) -> Result<Vec<BlockRef>, StoreError> {
        let store = self.store.clone();
        let mut writing = self.begin_group(stream, &*store, workers, None).await?;
        self.append(&mut writing, items, true).await?;
        self.end_group(writing, |_| {}).await
    }

    /// The store, for [`Log::begin_group`].
    pub fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// Begins a group. [`Log::append`] writes the group, called once or several times, and [`Log::end_group`]
    /// ends it. Until then, or until one of these calls fails, no other group may begin. The blocks of the
    /// group are inserted into `cache`, since recently written blocks are likely to be read soon. They are
    /// cached before they are durable, but no reader can see them then: no map has their addresses yet, and
    /// if the group fails, no map ever will.
    pub async fn begin_group<'a>(
        &mut self,
        stream: Stream,
        store: &'a dyn Store,
        workers: &'a dyn Workers,
        cache: Option<&'a ReadCache>,
    ) -> Result<Writing<'a>, StoreError> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        debug_assert!(self.unsynced.is_empty(), "every group is synced before the next");
        if self.raise_epoch {
            let epoch = self.superblock.epoch + 1;
            self.swap_superblock(|s| s.epoch = epoch).await?;
            self.raise_epoch = false;
        }
        Ok(Writing {
            store,
            medium: Medium { workers, cache },
            stream,
            start: self.head,
            before: self.open.get(&stream).and_then(|o| self.table.get(o.id)).copied(),
            first_new: SegmentId(self.next_segment()),
            under_way: Appends::default(),
            // The cleaner does not repeat an abandoned group, and commits would wait for an overdue one.
            may_move_on: stream == Stream::Moved || self.left_behind < MOST_LEFT_BEHIND,
            is_ended: false,
            placed: Vec::new(),
        })
    }

    /// Appends items to a group, as one or more batches, of which the last one ends the group if `last` is
    /// set. The last append may still be under way on return.
    ///
    /// # Errors
    /// As [`Log::write_group`]; and [`StoreError::Overdue`]: the caller has to write the same group again, at
    /// once.
    pub async fn append(
        &mut self,
        group: &mut Writing<'_>,
        items: &[Item<'_>],
        last: bool,
    ) -> Result<(), StoreError> {
        if items.is_empty() && !last {
            return Ok(());
        }
        let drafts = Draft::split(items, self.batch_limit());
        for (draft, left) in drafts.iter().zip((0..drafts.len()).rev()) {
            let appended = self.append_batch(draft, last && left == 0, group).await;
            self.check_append(group, appended).await?;
        }
        Ok(())
    }

    /// Makes a group durable, whose last batch was appended. `appended` is called with the references of its
    /// payload items when all of its batches are appended, while they are being synced: from then on, the
    /// group takes effect unless the log fails for good.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub async fn end_group(
        &mut self,
        mut group: Writing<'_>,
        appended: impl FnOnce(&[BlockRef]),
    ) -> Result<Vec<BlockRef>, StoreError> {
        let settled = self.settle(&mut group).await;
        self.check_append(&mut group, settled).await?;
        if group.stream != Stream::Moved {
            self.left_behind = 0;
        }
        let found_room = !frees_room(group.stream) && self.next_segment() > group.first_new.0;
        self.is_short &= !found_room;
        let (synced, ()) = join(self.sync_all(), async { appended(&group.placed) }).await;
        self.failed = synced.as_ref().err().cloned();
        synced.map(|()| group.placed)
    }

    /// Checks the result of an append: abandons the group if there was no room for it, and records any other
    /// failure. The group is borrowed mutably because its appends cannot be shared by threads.
    async fn check_append(
        &mut self,
        group: &mut Writing<'_>,
        appended: Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        match &appended {
            Ok(()) => {}
            Err(StoreError::Overdue) => self.move_on(group),
            Err(StoreError::Full) => {
                let given_up = self.give_up(group).await;
                self.failed = given_up.as_ref().err().cloned();
                given_up?;
            }
            Err(e) => self.failed = Some(e.clone()),
        }
        appended
    }

    /// Waits for the appends that are under way.
    async fn settle(&mut self, group: &mut Writing<'_>) -> Result<(), StoreError> {
        // Two batch buffers alternate: one is filled while the other is written. Buffers of footers are too
        // small for batches.
        let (most, spares) = (self.batch_limit(), &mut self.spares);
        let reuse = |buf: IoBuf| {
            if spares.len() < SPARES && buf.capacity() >= most {
                spares.push(buf);
            }
        };
        group.under_way.settle(reuse).await
    }

    /// Abandons a group for which there was no room. Deletes its segments: if the group is tried repeatedly,
    /// a reclaim between two attempts must not count these segments as a gain.
    ///
    /// # Errors
    /// The error of a deletion, if the group was appended to its end and only a footer found no room:
    /// recovery would find the group complete, so it must not be reported as abandoned. Likewise if an
    /// earlier attempt may still become complete.
    async fn give_up(&mut self, group: &mut Writing<'_>) -> Result<(), StoreError> {
        if self.left_behind > 0 {
            return Err(for_good(StoreError::Full, "writing a group again"));
        }
        self.abandon(group);
        self.is_short = true;
        let begun = group.first_new.0..self.next_segment();
        self.next.discard().await;
        for id in begun.map(SegmentId) {
            // If the deletion fails, the next reclaim deletes the remaining objects.
            let deleted = self.store.delete(id).await;
            if group.is_ended {
                deleted.map_err(|e| for_good(e, "deletion of an abandoned segment"))?;
            }
        }
        Ok(())
    }

    /// Returns to the state before a group. The log continues in another segment, with a higher epoch.
    fn abandon(&mut self, group: &Writing<'_>) {
        self.open.remove(&group.stream);
        self.unsynced.clear();
        self.table.remove_from(group.first_new);
        if let Some(record) = group.before {
            self.table.insert(SegmentRecord { state: SegmentState::Sealed, ..record });
        }
        self.head = group.start;
        self.raise_epoch = true;
    }

    /// Abandons a group because an append is overdue. A reclaim deletes the segments that the group began,
    /// since their objects may not answer now. A prepared object may not answer either, so other objects are
    /// created.
    fn move_on(&mut self, group: &Writing<'_>) {
        tracing::warn!(stream = ?group.stream, "an append is overdue; continuing in another segment");
        self.abandon(group);
        if group.stream != Stream::Moved {
            self.left_behind += 1;
        }
        self.next.prepare_elsewhere();
    }

    /// Lays out a batch while the previous one is being written, and begins to write it. The state is updated
    /// on the assumption of success; when a failure is detected, the whole group is abandoned.
    async fn append_batch(
        &mut self,
        draft: &Draft<'_>,
        last: bool,
        group: &mut Writing<'_>,
    ) -> Result<(), StoreError> {
        let segment_bytes = self.superblock.segment_bytes as u64;
        // Relocated slots of one segment stay together. The cleaner begins a new container when needed.
        let most = if group.stream == Stream::Moved { MAX_SEGMENT_BYTES as u64 } else { segment_bytes };
        let fits = |o: &&Open| o.offset + draft.len() as u64 <= most;
        let seq = self.head.seq + 1;
        let (id, start, preallocated) = match self.open.get(&group.stream).filter(fits) {
            Some(o) => (o.id, o.offset, o.preallocated),
            None => {
                let id = self.next.take().await?;
                // The last free room is reserved for two kinds of groups: groups that free room, and groups
                // that cannot be abandoned.
                let is_needed = self.left_behind > 0 || (self.is_short && frees_room(group.stream));
                (id, 0, !is_needed)
            }
        };
        let at = start.max(BLOCK as u64);
        let total = (at - start) as usize + draft.len();
        let mut buf = self.buffer(total);
        if start == 0 {
            let header = SegmentHeader {
                pool: self.superblock.pool,
                segment: id,
                stream: group.stream,
                epoch: self.superblock.epoch,
                first_seq: seq,
            };
            buf[..BLOCK].copy_from_slice(&header.encode());
        }
        let header = BatchHeader {
            pool: self.superblock.pool,
            epoch: self.superblock.epoch,
            seq,
            chain: self.head.chain,
            segment: id,
            offset: at as u32,
            flags: if last { GROUP_END } else { 0 },
            group: group.start.seq + 1,
        };
        let (chain, directory) =
            fill(&header, draft, &mut buf[(at - start) as usize..], &mut group.placed, &group.medium);
        self.settle(group).await?;
        if start == 0
            && let Some((footer, len)) = self.seal(group.stream, group.store)
        {
            group.watch(footer, len);
        }
        // If the batch is the only one of its group, and all else in the segment is durable, one operation
        // appends and syncs it.
        let is_only = last && seq == group.start.seq + 1 && start > 0 && self.unsynced.is_empty();
        let end = start + total as u64;
        let is_synced = is_only && preallocated && end < segment_bytes;
        // The last append to a segment is always a footer.
        let expected = match start > 0 || preallocated {
            true if start > 0 && end == segment_bytes => segment_bytes + BLOCK as u64,
            true => segment_bytes,
            false => total as u64,
        };
        let append = match is_synced {
            true => group.store.append_synced(id, start, buf, expected),
            false => group.store.append(id, start, buf, expected),
        };
        group.watch(append, total);
        group.is_ended = last;
        let appended = Open { id, offset: start + total as u64, directory, durable: 0, preallocated };
        self.note(group.stream, appended, Head { seq, chain });
        self.appended.fetch_add(total as u64, Relaxed);
        if end >= segment_bytes / 2 && !self.is_short {
            self.next.prepare(segment_bytes);
        }
        Ok(())
    }

    /// Deletes the prepared object of the next segment, which is not used any more. A failure is ignored.
    pub async fn discard_prepared(&mut self) {
        self.next.discard().await;
    }

    /// Records a new reference to a stored block in the mark's barrier; see [`crate::dedup`].
    pub fn refer(&mut self, to: &BlockRef) {
        if let Some(barrier) = &mut self.barrier {
            barrier.insert(to.addr);
        }
    }

    /// A buffer of `len` bytes, with arbitrary content.
    fn buffer(&mut self, len: usize) -> IoBuf {
        // Every buffer is large enough for any batch, so that it can be reused; only a batch with a single
        // large item may need more.
        let usual = self.batch_limit() + BLOCK;
        let spare = self.spares.pop().filter(|b| b.capacity() >= len);
        let mut buf = spare.unwrap_or_else(|| IoBuf::with_capacity(len.max(usual)));
        buf.set_len(len);
        buf
    }

    /// Records a batch: `appended` is the open segment up to the end of the batch, including its entries.
    fn note(&mut self, stream: Stream, mut appended: Open, head: Head) {
        self.head = head;
        let (id, end) = (appended.id, appended.offset);
        if !self.unsynced.contains(&id) {
            self.unsynced.push(id);
        }
        match self.open.get_mut(&stream) {
            Some(open) => {
                open.offset = end;
                open.directory.append(&mut appended.directory);
            }
            None => drop(self.open.insert(stream, appended)),
        }
        let new = SegmentRecord {
            segment: id,
            stream,
            state: SegmentState::Open,
            footer: false,
            container: id.0,
            written: 0,
            first_seq: head.seq,
            last_seq: head.seq,
            map: None,
        };
        let record = self.table.get(id).copied().unwrap_or(new);
        self.table.insert(SegmentRecord { written: end as u32, last_seq: head.seq, ..record });
    }

    /// Ends the segment of a stream, durably, outside of a group. If there is no room for the footer, or the
    /// footer is overdue, the segment ends without it.
    pub async fn end_segment(&mut self, stream: Stream) -> Result<(), StoreError> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        let ended = self.try_end_segment(stream).await;
        self.failed = ended.as_ref().err().cloned();
        ended
    }

    async fn try_end_segment(&mut self, stream: Stream) -> Result<(), StoreError> {
        let store = self.store.clone();
        let id = self.open.get(&stream).map(|open| open.id);
        if let (Some(id), Some((footer, len))) = (id, self.seal(stream, &*store)) {
            let mut footer = Appends::one(footer, store.overdue(len));
            match footer.settle(drop).await {
                Err(StoreError::Full | StoreError::Overdue) => {
                    // Everything before the footer is durable, and an object is not synced after a failure.
                    self.unsynced.retain(|unsynced| *unsynced != id);
                    self.close_record(id, false);
                    // The epoch distinguishes this segment from segments that must have a footer; see
                    // `crate::offline::footers`.
                    self.raise_epoch = true;
                }
                other => other?,
            }
        }
        self.sync_all().await
    }

    /// Syncs the segments appended to since the last sync.
    async fn sync_all(&mut self) -> Result<(), StoreError> {
        for id in std::mem::take(&mut self.unsynced) {
            self.store.sync(id).await.map_err(|e| for_good(e, SYNC))?;
        }
        self.open.values_mut().for_each(|open| open.durable = open.directory.len());
        Ok(())
    }

    /// Begins to write the footer of a stream's open segment; no append to it may be under way. The next
    /// append opens a new segment. As with batches, success is assumed. Returns the append and its length.
    fn seal(&mut self, stream: Stream, store: &dyn Store) -> Option<(Completion<IoBuf>, usize)> {
        let Open { id, offset, directory, .. } = self.open.remove(&stream)?;
        let footer = SegmentFooter {
            pool: self.superblock.pool,
            segment: id,
            offset: offset as u32,
            last_seq: self.table.get(id).map_or(0, |r| r.last_seq),
            count: 0,
            directory_crc: 0,
        };
        let bytes = footer.encode(&directory);
        if !self.unsynced.contains(&id) {
            self.unsynced.push(id);
        }
        // A checkpoint records the end of the segment only when the footer is synced: checkpoints are taken
        // between groups.
        self.close_record(id, true);
        Some((store.append(id, offset, IoBuf::from(&bytes[..]), offset + bytes.len() as u64), bytes.len()))
    }

    fn close_record(&mut self, id: SegmentId, footer: bool) {
        self.table.change(id, |r| (r.state, r.footer) = (SegmentState::Sealed, footer));
    }

    /// Replaces the superblock, durably.
    pub async fn swap_superblock(&mut self, change: impl FnOnce(&mut Superblock)) -> Result<(), StoreError> {
        let mut next = self.superblock.clone();
        change(&mut next);
        next.generation += 1;
        if let Err(e) = self.store.swap_superblock(&next).await {
            let e = for_good(e, SWAP);
            self.failed = Some(e.clone());
            return Err(e);
        }
        self.superblock = next;
        Ok(())
    }
}

/// Whether a reclaim needs to write to this stream.
fn frees_room(stream: Stream) -> bool {
    matches!(stream, Stream::Map | Stream::Moved)
}

/// Operation named in the error of a failed sync.
pub(crate) const SYNC: &str = "sync of a segment";
/// Operation named in the error of a failed superblock write.
pub(crate) const SWAP: &str = "writing the superblock";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parts;
    use crate::workers::Inline;

    #[tokio::test]
    async fn few_buffers_are_kept_however_many_segments_end() {
        let mut log = parts().await.log;
        let blob = [7; 64 << 10];
        let items: Vec<Item> = (0..12).map(|_| Item::Blob(&blob)).collect();
        for _ in 0..40 {
            log.write_group(Stream::Data, &items, &Inline).await.unwrap();
        }
        assert!(log.next_segment() > 20);
        assert!(log.spares.len() <= SPARES, "{} buffers", log.spares.len());
    }
}
