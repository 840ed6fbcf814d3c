//! Opening a pool: what a crash, or a clean stop, has left becomes the pool again.
//!
//! 1. The newer valid superblock is taken and replaced by one with the next epoch: from here on, whoever held
//!    the pool before is fenced out.
//! 2. The checkpoint gives catalogue, roots and segment table.
//! 3. The segments that may hold later batches are scanned: those that the checkpoint calls open, from where
//!    it left them, and those with numbers that it had not given out yet.
//! 4. History is picked out ([`crate::history`]); where it ends because of damage, the pool is not opened
//!    ([`crate::loss`]). It is synced (a batch that is only in some cache must not
//!    become part of what later ones build on), and applied in order.
//! 5. New batches go into new segments. What the old ones hold beyond history stays behind, never to be taken
//!    for history: the next batch has a higher epoch, and later ones link to it.
//!
//! **Moved segments.** All relocations in history are noted before any batch is applied, whatever their place
//! in it: to apply a batch, map nodes are read, and what they rested in when the checkpoint was made may have
//! been deleted since. A node that is needed then is one that the checkpoint reaches. It is where the last
//! relocation says, for the cleaner moves all that its own mark found live, and it publishes and deletes only
//! after both superblock copies name the checkpoint of that mark, or a later one. So whichever copy this
//! begins from, its checkpoint reaches nothing in a moved segment that the mark had not found. Were the
//! copies not both of that age, the older one's maps could need nodes that the move left out.
//!
//! Time is bounded by the bytes of log since the checkpoint, and by the room set aside in the segments that were open.
//! Nothing is deleted here.
//!
//! **What damage does.**
//!
//! | damaged or missing | what opening does |
//! |---|---|
//! | one superblock copy | takes the other one, whose checkpoint may be older: the log since then is all there |
//! | both copies | refuses: nothing says where to begin |
//! | a piece of the checkpoint | refuses: catalogue and maps are in it |
//! | a batch behind the checkpoint, a segment, or its header, and a later group is there | refuses, and says what would be lost ([`crate::loss`]); but opens where it held map nodes only |
//! | a place behind the checkpoint cannot be read, and may hold the next group | the same: that was durable, perhaps |
//! | a batch behind the checkpoint, and nothing of a later group is there | opens in front of it: it cannot be told from a group that a crash interrupted |
//! | anything in front of the checkpoint | opens: reads and checks find it |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use forebay_format::{
    Address, BLOCK, BlockRef, Checkpoint, DiskId, Entry, FormatError, PoolId, SegmentId, SegmentRecord,
    SegmentState, Superblock,
};
use forebay_store::{Metered, ObjectStat, Store, StoreError};
use futures_util::{StreamExt, stream};

use crate::apply::Change;
use crate::catalogue::Catalogue;
use crate::dedup::Dedup;
use crate::history::{History, history};
use crate::limits::{MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, SCANS_AT_ONCE, SEGMENTS_AT_LEAST};
use crate::log::{Head, Log, SWAP, SYNC, for_good};
use crate::loss::LogDamage;
use crate::map::Tree;
use crate::plausible::{check_ids, check_record, check_superblock};
use crate::pool::Pool;
use crate::scan::{Scanned, SegmentScan, scan_past_gaps};
use crate::volume::{Volume, blocks};
use crate::{Error, Host, PoolConfig, Result};

/// What a pool is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// To be held and written.
    Own,
    /// To be looked at; nothing is written.
    Look,
}

/// What is done where the log is damaged in front of flushed writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnLoss {
    /// Nothing is opened.
    Refuse,
    /// The pool is opened as it was in front of the damage.
    Report,
    /// As [`OnLoss::Report`], if the damage is this one; see [`LogDamage::id`].
    Accept(u64),
}

impl OnLoss {
    fn judge(self, damage: Option<&LogDamage>) -> Result<()> {
        match damage {
            Some(damage) if self != OnLoss::Report && self != OnLoss::Accept(damage.id) => {
                Err(Error::LogDamaged(Box::new(damage.clone())))
            }
            _ => Ok(()),
        }
    }
}

/// A pool that was recovered. No task runs yet.
pub(crate) struct Recovered {
    pub pool: Pool,
    /// Segments of which the fingerprints were of use.
    pub warm: Vec<SegmentId>,
    /// Flushed writes that the pool is without.
    pub damage: Option<LogDamage>,
}

impl Pool {
    /// Recovers the pool on a store, or makes a new one where the store is empty.
    ///
    /// # Errors
    /// [`Error::LogDamaged`] where `on_loss` does not let it open without what is lost.
    pub(crate) async fn recover(
        store: Arc<Metered>,
        host: Arc<dyn Host>,
        config: PoolConfig,
        mode: Mode,
        on_loss: OnLoss,
    ) -> Result<Recovered> {
        let begin = host.now();
        let mut superblock = find(&store, &*host, &config, mode).await?;
        let objects = store.list().await?;
        let head = Head { seq: superblock.seq, chain: superblock.chain };
        let blobs = superblock.blobs.clone();
        check_ids(&Checkpoint::default(), &objects)?;
        let next = objects.iter().map(|o| o.id.0 + 1).max().unwrap_or(1);
        let log = Log::new(store.clone(), superblock.clone(), head, BTreeMap::new(), next);
        let pool = Pool::assemble(store, host, config, log, Catalogue::default());
        let checkpoint = pool.read_checkpoint(&blobs).await?.unwrap_or_default();
        if checkpoint.seq != superblock.seq && !blobs.is_empty() {
            return Err(FormatError::Foreign { what: "checkpoint", field: "seq" }.into());
        }
        check_ids(&checkpoint, &objects)?;
        pool.load_catalogue(&checkpoint)?;

        let mut table: BTreeMap<_, _> = checkpoint.segments.iter().map(|r| (r.segment, *r)).collect();
        let History { applied, head, bridged, lost, newest_epoch } =
            history(pool.scan_log(&objects, &checkpoint, &table).await?, head);
        for gap in &bridged {
            let (segment, offset) = (gap.segment, gap.offset);
            tracing::warn!(%segment, offset, "the log is damaged where it holds no writes; run 'forebay check'");
        }
        if mode == Mode::Own {
            raise_epoch_above(newest_epoch, &pool.store, &mut superblock).await?;
        }
        note_segments(&mut table, &applied)?;
        pool.places.set(table.values());
        pool.replay(&applied).await?;
        let damage = match &lost {
            Some(lost) => Some(LogDamage::new(&pool, lost, &missing_segments(&objects, &checkpoint))?),
            None => None,
        };
        on_loss.judge(damage.as_ref())?;
        if mode == Mode::Own {
            let touched: BTreeSet<SegmentId> = applied.iter().map(|b| b.header.segment).collect();
            for segment in touched {
                let synced = pool.store.sync(segment).await;
                synced.map_err(|e| for_good(e, SYNC))?;
            }
        }
        pool.counters.recovered_batches.store(applied.len() as u64, Relaxed);
        let replayed: u64 = applied.iter().map(|b| b.end - b.header.offset as u64).sum();
        {
            let mut log = pool.log.lock().await;
            let next = next.max(checkpoint.next_segment);
            let mut recovered = Log::new(pool.store.clone(), superblock, head, table, next);
            recovered.appended = pool.appended.clone();
            *log = recovered;
            // Counts towards the next checkpoint, or a pool that crashes often would replay ever more.
            log.appended.fetch_add(replayed, Relaxed);
            // Objects that are in no table, or in which nothing rests, are what a crash left behind.
            let rests = |o: &ObjectStat| log.table().get(&o.id).is_some_and(|r| r.map.is_none());
            let orphans = !objects.iter().all(rests);
            pool.upkeep.reclaim_due.store(orphans, Relaxed);
            pool.upkeep.opened_at.store(head.seq, Relaxed);
            pool.upkeep.stored.store(objects.iter().map(|o| o.len).sum(), Relaxed);
        }
        let took = pool.host.now().saturating_sub(begin);
        pool.counters.recovery_ms.store(took.as_millis() as u64, Relaxed);
        tracing::info!(
            batches = applied.len(),
            megabytes = replayed >> 20,
            ms = took.as_millis() as u64,
            "recovered"
        );
        let mut dedup = Dedup::new(pool.config.dedup_index, checkpoint.sampling.saturating_sub(1));
        dedup.segments_left = pool.segments_with_blocks().await.len() as u64;
        *pool.dedup.lock() = dedup;
        Ok(Recovered { pool, warm: checkpoint.warm, damage })
    }

    /// Scans the segments that may hold batches that the checkpoint does not cover.
    async fn scan_log(
        &self,
        objects: &[ObjectStat],
        checkpoint: &Checkpoint,
        table: &BTreeMap<SegmentId, SegmentRecord>,
    ) -> Result<Vec<SegmentScan>> {
        let mut scans = Vec::new();
        for object in objects {
            let record = table.get(&object.id).copied();
            match record {
                Some(r) if r.state == SegmentState::Sealed => continue,
                None if object.id.0 < checkpoint.next_segment => continue,
                _ => {}
            }
            scans.push(scan_past_gaps(&*self.store, self.id, object.id, record, object.len));
        }
        let mut scans = stream::iter(scans).buffered(SCANS_AT_ONCE);
        let mut scanned = Vec::new();
        while let Some(found) = scans.next().await {
            scanned.push(found?);
        }
        let unreadable = scanned.iter().flat_map(|s| &s.gaps).find(|g| g.unreadable);
        if let Some(gap) = unreadable
            && !self.store_answers(gap.segment).await
        {
            let what = format!("scan of segment {}", gap.segment);
            return Err(StoreError::Io { what, reason: "the store does not answer".into(), errno: 0 }.into());
        }
        Ok(scanned)
    }

    fn load_catalogue(&self, checkpoint: &Checkpoint) -> Result<()> {
        let mut catalogue = Catalogue::new(checkpoint.next_disk);
        // Volumes before snapshots, whose names begin with theirs.
        let (snapshots, others): (Vec<_>, Vec<_>) = checkpoint.disks.iter().partition(|d| d.parent.is_some());
        for disk in others.into_iter().chain(snapshots) {
            check_record(disk)?;
            let tree = Tree::from_record(disk.root, disk.height, blocks(disk.size))?;
            catalogue.insert(Arc::new(Volume::new(disk.clone(), tree)));
        }
        *self.catalogue.write() = catalogue;
        Ok(())
    }

    /// Applies batches in order.
    async fn replay(&self, batches: &[Scanned]) -> Result<()> {
        let mut pending = Pending::default();
        for batch in batches {
            for entry in batch.entries() {
                let entry = entry?;
                self.check_entry(&entry)?;
                if self.config.mutation.skips(&entry) {
                    continue;
                }
                match entry {
                    Entry::Put { disk, block, slot, form, crc, .. } => {
                        let addr = Address { segment: batch.header.segment, slot };
                        pending.add(self, disk, Change::put(block, BlockRef { addr, form, crc })).await?;
                    }
                    Entry::Reference { disk, block, target } => {
                        pending.add(self, disk, Change::put(block, target)).await?;
                    }
                    Entry::Zero { disk, block, count, allocated } => {
                        pending.add(self, disk, Change::zero(block, count, allocated)).await?;
                    }
                    Entry::Catalogue(op) => {
                        pending.apply(self).await?;
                        self.apply_op(&op).await?;
                    }
                    Entry::Node { .. } | Entry::Blob { .. } | Entry::Relocate { .. } => {}
                }
            }
        }
        pending.apply(self).await
    }
}

/// Changes to one disk, which are applied together.
#[derive(Default)]
struct Pending {
    disk: DiskId,
    changes: Vec<Change>,
}

impl Pending {
    async fn add(&mut self, pool: &Pool, disk: DiskId, change: Change) -> Result<()> {
        if disk != self.disk {
            self.apply(pool).await?;
            self.disk = disk;
        }
        self.changes.push(change);
        Ok(())
    }

    /// As the commit does: damage is of the blocks below it, and any other error fails the opening.
    async fn apply(&mut self, pool: &Pool) -> Result<()> {
        let changes = std::mem::take(&mut self.changes);
        match pool.volume(self.disk) {
            Some(volume) => pool.apply_changes(&volume, &changes).await,
            None => Ok(()),
        }
    }
}

/// Finds the superblock. To own the pool, gives it the next epoch; makes a pool where the store is empty.
async fn find(store: &Metered, host: &dyn Host, config: &PoolConfig, mode: Mode) -> Result<Superblock> {
    // A small store gets small segments: what is set aside for the open ones must not be what a full store
    // lacks to carry out a deletion.
    let share = u32::try_from(store.capacity().await?.total / SEGMENTS_AT_LEAST).unwrap_or(u32::MAX);
    let segment_bytes = config.segment_bytes.min(share).clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES)
        / BLOCK as u32
        * BLOCK as u32;
    let copies = store.read_superblock().await?;
    let empty = store.list().await?.is_empty();
    let mut superblock = match Superblock::choose([copies[0].as_deref(), copies[1].as_deref()]) {
        Ok(superblock) => superblock,
        Err(newer @ FormatError::Newer { .. }) => return Err(newer.into()),
        // The first copy to be written is number 1. Where it alone is there, damaged, and no segment is, the
        // making of a pool was interrupted: there is nothing to be lost.
        Err(_) if copies[0].is_none() && empty => new_superblock(host),
        Err(_) if copies.iter().all(Option::is_none) => {
            return Err(Error::NoPool("there are segments, but the superblock is gone".into()));
        }
        Err(e) => return Err(e.into()),
    };
    check_superblock(&superblock)?;
    if mode == Mode::Look {
        return Ok(superblock);
    }
    superblock.generation += 1;
    superblock.epoch += 1;
    superblock.segment_bytes = segment_bytes;
    store.swap_superblock(&superblock).await.map_err(|e| for_good(e, SWAP))?;
    Ok(superblock)
}

/// Raises the epoch above that of all batches that were found. It is above them unless the newest superblock copy was
/// damaged: then the older one may have led to an epoch that was used before, and one number would stand for two lives.
async fn raise_epoch_above(newest: u64, store: &Metered, superblock: &mut Superblock) -> Result<()> {
    if newest >= superblock.epoch {
        let beyond = FormatError::Value { what: "batch", field: "epoch" };
        superblock.epoch = newest.checked_add(1).ok_or(beyond)?;
        superblock.generation += 1;
        store.swap_superblock(superblock).await.map_err(|e| for_good(e, SWAP))?;
    }
    Ok(())
}

/// Segments that are not there, though the checkpoint calls them open, or though later ones are there: a deletion would
/// be covered by the checkpoint.
fn missing_segments(objects: &[ObjectStat], checkpoint: &Checkpoint) -> Vec<SegmentId> {
    let there: BTreeSet<u32> = objects.iter().map(|o| o.id.0).collect();
    let open = checkpoint.segments.iter().filter(|r| r.state == SegmentState::Open).map(|r| r.segment.0);
    let last = there.last().copied().unwrap_or(0);
    let later = (checkpoint.next_segment..last).take(MISSING_AT_MOST);
    open.chain(later).filter(|id| !there.contains(id)).map(SegmentId).collect()
}

/// Segments that a report looks for.
const MISSING_AT_MOST: usize = 1 << 16;

/// The superblock of a new pool, before its first generation.
fn new_superblock(host: &dyn Host) -> Superblock {
    let (mut pool, mut fingerprint_key) = ([0; 16], [0; 32]);
    host.random(&mut pool);
    host.random(&mut fingerprint_key);
    Superblock {
        pool: PoolId(pool),
        generation: 0,
        epoch: 0,
        fingerprint_key,
        created_ms: host.unix_ms(),
        segment_bytes: 0,
        seq: 0,
        chain: 0,
        blobs: Vec::new(),
    }
}

/// Brings the segment table up to what history says. No segment is continued.
fn note_segments(table: &mut BTreeMap<SegmentId, SegmentRecord>, applied: &[Scanned]) -> Result<()> {
    table.values_mut().for_each(|r| r.state = SegmentState::Sealed);
    for batch in applied {
        let segment = batch.header.segment;
        // History has batches of segments with a header only.
        let Some(stream) = batch.stream else { continue };
        let record = table.entry(segment).or_insert(SegmentRecord {
            segment,
            stream,
            state: SegmentState::Sealed,
            footer: false,
            container: segment.0,
            written: 0,
            first_seq: batch.header.seq,
            last_seq: 0,
            map: None,
        });
        record.written = batch.end as u32;
        record.last_seq = batch.header.seq;
        for entry in batch.entries() {
            if let Entry::Relocate { segment: moved, slot, len } = entry?
                && let Some(record) = table.get_mut(&moved)
            {
                (record.container, record.map) = (segment.0, Some((slot.offset() as u32, len)));
            }
        }
    }
    Ok(())
}
