//! The log: the only writer of segments and of the superblock.
//!
//! **The commit argument.** A *group* is what one commit writes: one or more batches, the last of them marked.
//! [`Log::write_group`] appends them one after the other, each linked to the one before by sequence number and
//! checksum, and then syncs every segment that it touched. Only after that does the caller change maps and
//! answer guests. So at a crash:
//!
//! - during an append: the group has no valid end, recovery drops it; nobody was told that it is durable;
//! - between append and sync: the group may be there wholly, in part or not at all; either it is applied as a
//!   whole (nobody minds that an unanswered write happened) or dropped;
//! - after the sync: the group is whole, and so is every group before it, because each was synced before the
//!   next was begun; the chain from the checkpoint reaches it.
//!
//! **When there is no room**, that can be survived where nothing was promised yet, which is an append alone:
//!
//! | the store is full at | what is known | what the log does |
//! |---|---|---|
//! | an append of a group, or the footer of a segment that ends within it | that batch is not whole, so the group is not history; nothing was synced | gives the group up: leaves the segment, goes back to the group's start; [`StoreError::Full`], and the caller may write it again |
//! | the footer of a segment that is ended outside of a group | as above | ends the segment without a footer; no error |
//! | a sync | nothing about the bytes since the last one, for ever (delayed allocation, thin volumes, quotas) | fails for good, as after any failed sync |
//! | a superblock write: checkpoint, new epoch, a copy renewed for the cleaner | that copy may be old, new or torn; the other one is whole | fails for good; a restart begins from a whole copy, and either will do |
//! | a deletion | the object may be there | no concern of the log: [`crate::reclaim`] tries it again |
//!
//! After a group was given up, the epoch goes up by one before anything else is appended: whatever the failed group
//! left cannot be taken for the new one, since for one sequence number the highest epoch wins. So it does after a
//! footer that finds no room. What fails for good latches the pool; the log is not used again. Such an error is never
//! [`StoreError::Full`] ([`for_good`]), so that no caller takes it for one that can be survived.

mod draft;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forebay_format::{
    BLOCK, BatchHeader, BlockRef, DirectoryEntry, GROUP_END, SegmentFooter, SegmentHeader, SegmentId,
    SegmentRecord, SegmentState, Stream, Superblock,
};
use forebay_store::{BoxFuture, IoBuf, Store, StoreError};

pub(crate) use draft::{Draft, Item, OnBlock, block_at};

use crate::limits::{BATCH_BYTES, MAX_SEGMENT_BYTES};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A group that is being written.
struct Writing<'s, 'b, 'c> {
    store: &'s dyn Store,
    stream: Stream,
    /// Sequence number of its first batch.
    first_seq: u64,
    /// The append of the batch before; it goes on while the next batch is laid out.
    under_way: Option<BoxFuture<'s, Result<IoBuf, StoreError>>>,
    placed: Vec<BlockRef>,
    on_block: &'b mut OnBlock<'c>,
}

/// The segment that a stream appends to.
struct Open {
    id: SegmentId,
    offset: u64,
    directory: Vec<DirectoryEntry>,
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
    table: BTreeMap<SegmentId, SegmentRecord>,
    unsynced: Vec<SegmentId>,
    next_segment: u32,
    /// The epoch must rise before the next append; see the module.
    raise_epoch: bool,
    /// What failed. Whoever comes next, be it the commit or a checkpoint, must not build on it: a group that is
    /// durable behind one that is not would be lost, though it was acknowledged.
    failed: Option<StoreError>,
    /// While a mark is under way: addresses that were referred to since it began.
    pub barrier: Option<BTreeSet<u64>>,
    /// Buffers for reuse: one is filled while another is being written.
    spares: Vec<IoBuf>,
    /// Bytes appended since the pool was opened; for whoever decides when a checkpoint is due.
    pub appended: Arc<AtomicU64>,
}

impl Log {
    /// The log as recovery leaves it. `superblock` is the one on the store, already of this epoch.
    pub fn new(
        store: Arc<dyn Store>,
        superblock: Superblock,
        head: Head,
        table: BTreeMap<SegmentId, SegmentRecord>,
        next_segment: u32,
    ) -> Log {
        Log {
            store,
            superblock,
            head,
            open: BTreeMap::new(),
            table,
            unsynced: Vec::new(),
            next_segment,
            raise_epoch: false,
            failed: None,
            barrier: None,
            spares: Vec::new(),
            appended: Arc::default(),
        }
    }

    /// The newest batch.
    pub fn head(&self) -> Head {
        self.head
    }

    /// The superblock as it is on the store.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Next segment number.
    pub fn next_segment(&self) -> u32 {
        self.next_segment
    }

    /// All segments, as of now.
    pub fn table(&self) -> &BTreeMap<SegmentId, SegmentRecord> {
        &self.table
    }

    /// Whether a segment is being appended to.
    pub fn is_open(&self, id: SegmentId) -> bool {
        self.open.values().any(|o| o.id == id)
    }

    /// Forgets a segment whose object was deleted.
    pub fn forget(&mut self, id: SegmentId) {
        debug_assert!(!self.is_open(id));
        self.table.remove(&id);
    }

    /// The open segment of a stream, and how many bytes of batches it can still take.
    pub fn open_segment(&self, stream: Stream, most: u64) -> Option<(SegmentId, u64)> {
        self.open.get(&stream).map(|o| (o.id, most.saturating_sub(o.offset)))
    }

    /// The live slots of a segment rest elsewhere from now on: that is durable.
    pub fn moved(&mut self, segment: SegmentId, container: SegmentId, map: (u32, u32)) {
        if let Some(record) = self.table.get_mut(&segment) {
            (record.container, record.map) = (container.0, Some(map));
        }
    }

    /// Largest batch that fits: four of them in a segment at least.
    pub fn batch_limit(&self) -> usize {
        BATCH_BYTES.min(self.superblock.segment_bytes as usize / 4)
    }

    /// Writes drafts as one group, durably. Says for each payload item, in order, where it is; `on_block` is
    /// shown each block of a disk while it is laid out, before it is durable. After an error other than `Full`
    /// the log must not be used again; `Full` means that an append found no room, and the group was given up.
    pub async fn write_group(
        &mut self,
        stream: Stream,
        drafts: &[Draft<'_>],
        on_block: &mut OnBlock<'_>,
    ) -> Result<Vec<BlockRef>, StoreError> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        let written = self.try_write_group(stream, drafts, on_block).await;
        self.failed = written.as_ref().err().filter(|e| **e != StoreError::Full).cloned();
        written
    }

    async fn try_write_group(
        &mut self,
        stream: Stream,
        drafts: &[Draft<'_>],
        on_block: &mut OnBlock<'_>,
    ) -> Result<Vec<BlockRef>, StoreError> {
        debug_assert!(self.unsynced.is_empty(), "every group is synced before the next");
        if self.raise_epoch {
            let epoch = self.superblock.epoch + 1;
            self.swap_superblock(|s| s.epoch = epoch).await?;
            self.raise_epoch = false;
        }
        let (start, first_new) = (self.head, self.next_segment);
        let before = self.open.get(&stream).and_then(|o| self.table.get(&o.id)).copied();
        let store = self.store.clone();
        let mut group = Writing {
            store: &*store,
            stream,
            first_seq: start.seq + 1,
            under_way: None,
            placed: Vec::new(),
            on_block,
        };
        if let Err(e) = self.append_all(drafts, &mut group).await {
            if e == StoreError::Full {
                self.give_up(stream, start, before, SegmentId(first_new));
            }
            return Err(e);
        }
        self.sync_all().await?;
        Ok(group.placed)
    }

    async fn append_all(
        &mut self,
        drafts: &[Draft<'_>],
        group: &mut Writing<'_, '_, '_>,
    ) -> Result<(), StoreError> {
        for (i, draft) in drafts.iter().enumerate() {
            self.append(draft, i + 1 == drafts.len(), group).await?;
        }
        self.settle(group).await
    }

    /// Waits for the append that is under way.
    async fn settle(&mut self, group: &mut Writing<'_, '_, '_>) -> Result<(), StoreError> {
        if let Some(append) = group.under_way.take() {
            self.spares.push(append.await?);
        }
        Ok(())
    }

    /// Forgets a group that found no room: `before` is the record of the segment in which it began, and
    /// segments from `first_new` on are its own.
    fn give_up(&mut self, stream: Stream, start: Head, before: Option<SegmentRecord>, first_new: SegmentId) {
        self.open.remove(&stream);
        self.unsynced.clear();
        self.table.split_off(&first_new);
        if let Some(record) = before {
            self.table.insert(record.segment, SegmentRecord { state: SegmentState::Sealed, ..record });
        }
        self.head = start;
        self.raise_epoch = true;
    }

    /// Lays out a batch while the one before it is being written, and begins to write it. Everything here is
    /// noted as if it had succeeded; whoever learns that it did not gives the whole group up.
    async fn append(
        &mut self,
        draft: &Draft<'_>,
        last: bool,
        group: &mut Writing<'_, '_, '_>,
    ) -> Result<(), StoreError> {
        let segment_bytes = self.superblock.segment_bytes as u64;
        // What is moved of one segment stays together; the cleaner begins a new container in time.
        let most = if group.stream == Stream::Moved { MAX_SEGMENT_BYTES as u64 } else { segment_bytes };
        if self.open.get(&group.stream).is_some_and(|o| o.offset + draft.len() as u64 > most) {
            self.settle(group).await?;
            self.seal(group.stream).await?;
        }
        let seq = self.head.seq + 1;
        let (id, start) = match self.open.get(&group.stream) {
            Some(o) => (o.id, o.offset),
            None => {
                let id = SegmentId(self.next_segment);
                self.next_segment += 1;
                (id, 0)
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
            group: group.first_seq,
        };
        let (chain, directory) =
            draft::fill(&header, draft, &mut buf[(at - start) as usize..], &mut group.placed, group.on_block);
        self.settle(group).await?;
        group.under_way = Some(group.store.append(id, start, buf, segment_bytes));
        self.note(group.stream, id, start + total as u64, Head { seq, chain }, directory);
        self.appended.fetch_add(total as u64, Relaxed);
        Ok(())
    }

    /// Notes that a batch is going to refer to a block that is stored already; see [`crate::dedup`].
    pub fn refer(&mut self, to: &BlockRef) {
        if let Some(barrier) = &mut self.barrier {
            barrier.insert(to.addr.to_u64());
        }
    }

    /// Memory for `len` bytes, whatever is in it.
    fn buffer(&mut self, len: usize) -> IoBuf {
        let mut buf = self.spares.pop().filter(|b| b.capacity() >= len);
        let mut buf = buf.take().unwrap_or_else(|| IoBuf::with_capacity(len));
        buf.set_len(len);
        buf
    }

    /// Notes a batch with which segment `id` ends at byte `end`.
    fn note(
        &mut self,
        stream: Stream,
        id: SegmentId,
        end: u64,
        head: Head,
        mut directory: Vec<DirectoryEntry>,
    ) {
        self.head = head;
        if !self.unsynced.contains(&id) {
            self.unsynced.push(id);
        }
        let open = self.open.entry(stream).or_insert(Open { id, offset: 0, directory: Vec::new() });
        open.offset = end;
        open.directory.append(&mut directory);
        let record = self.table.entry(id).or_insert(SegmentRecord {
            segment: id,
            stream,
            state: SegmentState::Open,
            footer: false,
            container: id.0,
            written: 0,
            first_seq: head.seq,
            last_seq: head.seq,
            map: None,
        });
        record.written = end as u32;
        record.last_seq = head.seq;
    }

    /// Ends the segment of a stream, durably, outside of a group. Where there is no room for its footer it ends
    /// without.
    pub async fn end_segment(&mut self, stream: Stream) -> Result<(), StoreError> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        let ended = self.try_end_segment(stream).await;
        self.failed = ended.as_ref().err().cloned();
        ended
    }

    async fn try_end_segment(&mut self, stream: Stream) -> Result<(), StoreError> {
        match self.seal(stream).await {
            Err(StoreError::Full) => {
                if let Some(open) = self.open.remove(&stream) {
                    self.close_record(open.id, false);
                    // So that it can be told from segments that must have one; see `crate::footers`.
                    self.raise_epoch = true;
                }
            }
            other => other?,
        }
        self.sync_all().await
    }

    /// Makes durable what was appended since the last time.
    async fn sync_all(&mut self) -> Result<(), StoreError> {
        for id in std::mem::take(&mut self.unsynced) {
            self.store.sync(id).await.map_err(|e| for_good(e, SYNC))?;
        }
        Ok(())
    }

    /// Writes the footer of a stream's segment, after which the next append opens a new one.
    async fn seal(&mut self, stream: Stream) -> Result<(), StoreError> {
        let Some(open) = self.open.get(&stream) else { return Ok(()) };
        let footer = SegmentFooter {
            pool: self.superblock.pool,
            segment: open.id,
            offset: open.offset as u32,
            last_seq: self.table.get(&open.id).map_or(0, |r| r.last_seq),
            count: 0,
            directory_crc: 0,
        };
        let (id, offset) = (open.id, open.offset);
        let bytes = footer.encode(&open.directory);
        self.store.append(id, offset, IoBuf::from(&bytes[..]), offset + bytes.len() as u64).await?;
        if !self.unsynced.contains(&id) {
            self.unsynced.push(id);
        }
        self.open.remove(&stream);
        // A checkpoint says so only when the footer is synced: it is taken between groups.
        self.close_record(id, true);
        Ok(())
    }

    fn close_record(&mut self, id: SegmentId, footer: bool) {
        if let Some(r) = self.table.get_mut(&id) {
            (r.state, r.footer) = (SegmentState::Sealed, footer);
        }
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

/// What a failed sync is called.
pub(crate) const SYNC: &str = "sync of a segment";
/// What a failed superblock write is called.
pub(crate) const SWAP: &str = "writing the superblock";

/// The error of an operation after which nothing is known: a want of room is one like others there. See the module.
pub(crate) fn for_good(e: StoreError, what: &str) -> StoreError {
    match e {
        StoreError::Full => StoreError::Io {
            what: what.to_owned(),
            reason: "the store has no room left".to_owned(),
            errno: ENOSPC,
        },
        other => other,
    }
}

/// "No space left on device" (`errno(3)`).
const ENOSPC: i32 = 28;
