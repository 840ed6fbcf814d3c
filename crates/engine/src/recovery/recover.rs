//! The steps of recovery; [`super`] argues their correctness.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_format::{DiskId, SegmentId, SegmentState, Superblock};
use forebay_retained::Retained;
use forebay_store::{Metered, ObjectStat, Store, StoreError};
use futures_util::{FutureExt, StreamExt, stream};

use super::checkpoint::read_checkpoint;
use super::history::{History, history};
use super::loss::measure_loss;
use super::memory::{MemoryLoss, MemoryState, OpenedMemory, TakenOver, open_memory, take_over};
use super::plausible::{check_ids, check_record};
use super::replay::{record_segments, replay};
use super::superblock::{Mode, disown_memory, load_superblock, raise_epoch_above};
use crate::catalogue::Catalogue;
use crate::commit::{Applier, segments_with_blocks};
use crate::context::Context;
use crate::dedup::Dedup;
use crate::disk::{Disk, blocks};
use crate::limits::SCANS_AT_ONCE;
use crate::log::{Gap, Head, Log, SYNC, Scanned, SegmentScan, for_good, scan_past_gaps};
use crate::log_damage::LogDamage;
use crate::map::Tree;
use crate::memory::NO_COVER;
use crate::progress::CommitProgress;
use crate::read::{Reader, StoreReader};
use crate::sync::RwLock;
use crate::sync::atomic::AtomicU64;
use crate::tables::{Contents, StoredTables};
use crate::write_caches::WriteCaches;
use crate::{Error, Host, PoolConfig, Result};

/// The reaction to damage to the log that loses flushed writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnLoss {
    /// The pool is not opened if flushed writes would be lost.
    Refuse,
    /// The pool is opened in the state before the damage.
    Report,
    /// Like [`OnLoss::Report`], if the damage has this identifier; see [`LogDamage::id`].
    Accept(u64),
}

impl OnLoss {
    fn check(self, damage: Option<&LogDamage>) -> Result<()> {
        match damage {
            Some(damage) if self != OnLoss::Report && self != OnLoss::Accept(damage.id) => {
                Err(Error::LogDamaged(Box::new(damage.clone())))
            }
            _ => Ok(()),
        }
    }
}

/// The parts of a recovered pool. No task runs yet.
pub(crate) struct Recovered {
    pub reader: Arc<Reader>,
    pub progress: Arc<CommitProgress>,
    pub caches: Arc<WriteCaches>,
    pub applier: Applier,
    pub log: Log,
    /// The tables of the current checkpoint.
    pub tables: StoredTables,
    pub dedup: Dedup,
    /// Segments whose fingerprints were used before the pool was closed.
    pub warm: Vec<SegmentId>,
    /// Bytes of the pool on the store.
    pub stored: u64,
    /// Number of batches that were replayed.
    pub batches: u64,
    /// Duration of the recovery.
    pub took: std::time::Duration,
    /// Damage to the log because of which flushed writes are missing.
    pub damage: Option<LogDamage>,
    /// The contents of retained memory, which are in the buffers of the disks.
    pub taken: TakenOver,
}

/// Recovers the pool on a store, or creates a new pool if the store is empty.
///
/// # Errors
/// [`Error::LogDamaged`] if flushed writes are lost and `on_loss` does not accept this; the errors of the
/// store.
pub(crate) async fn recover(
    store: Arc<Metered>,
    host: Arc<dyn Host>,
    config: PoolConfig,
    mode: Mode,
    on_loss: OnLoss,
) -> Result<Recovered> {
    let begin = host.now();
    let mut superblock = load_superblock(&store, &*host, &config, mode).await?;
    let head = Head { seq: superblock.seq, chain: superblock.chain };
    let OpenedMemory { retained, state } = open_memory(&*host, &config, mode, &superblock)?;
    // Declared after the contents, so that it is dropped before them: dropping the contents removes their
    // records.
    let untouched = Untouched(Some(retained.clone()));
    let cx = Context::new(host, config, retained);
    let progress = Arc::new(CommitProgress::default());
    let source = StoreReader::new(store.clone(), cx.clone(), superblock.pool);
    let reader = Arc::new(Reader::new(source, progress.clone()));
    let source = &*reader.source;
    let (checkpoint, tables) = read_checkpoint(source, &superblock).await?;
    let objects = log_objects(&store, &checkpoint).await?;
    check_ids(&checkpoint, &objects)?;
    let catalogue = Arc::new(RwLock::new(load_catalogue(&checkpoint, &cx)?));
    let caches = Arc::new(WriteCaches::new(cx.config.desktops));
    let appended = Arc::new(AtomicU64::new(0));
    let applier = Applier::new(reader.clone(), catalogue, caches.clone(), appended.clone());

    let History { applied, head, bridged, lost, newest_epoch } =
        history(scan_log(source, &objects, &checkpoint).await?, head);
    bridged.iter().for_each(warn_of_gap);
    if mode == Mode::Own {
        raise_epoch_above(newest_epoch, &store, &mut superblock).await?;
    }
    let mut table = checkpoint.segments.clone();
    record_segments(&mut table, &applied)?;
    source.relocation.set(table.iter());
    let replaced = replay(&applier, &applied, cx.config.mutation).await?;
    let missing = || missing_segments(&objects, &checkpoint);
    let measure = |lost| measure_loss(&applier.catalogue.read(), lost, &missing());
    let damage = lost.as_ref().map(measure).transpose()?;
    on_loss.check(damage.as_ref())?;
    if mode == Mode::Own {
        sync_log(&store, &applied).await?;
        let ended = objects.iter().filter(|o| may_continue(&checkpoint, o.id));
        let written = |id| table.get(id).map_or(0, |record| record.written.into());
        let trimmed = |o: &ObjectStat| store.trim(o.id, written(o.id)).map(drop);
        stream::iter(ended).for_each_concurrent(SCANS_AT_ONCE, trimmed).await;
    }
    let own = (mode == Mode::Own).then_some((&*store, &mut superblock));
    let taken = take_memory(state, &applier, head.seq, &replaced, own).await?;
    let replayed: u64 = applied.iter().map(|b| b.end - b.header.offset as u64).sum();
    let next = objects.iter().map(|o| o.id.0 + 1).max().unwrap_or(1).max(checkpoint.next_segment);
    let mut log = Log::new(store, superblock, head, table, next);
    log.appended = appended;
    // Replayed bytes count towards the next checkpoint; otherwise a pool that crashes often would replay more
    // each time.
    log.appended.fetch_add(replayed, crate::sync::atomic::Ordering::Relaxed);
    let mut dedup = Dedup::new(cx.config.dedup_index, checkpoint.sampling.saturating_sub(1));
    dedup.segments_left = segments_with_blocks(log.table()).len() as u64;
    untouched.recovered();
    let took = cx.host.now().saturating_sub(begin);
    let (batches, ms) = (applied.len() as u64, took.as_millis() as u64);
    tracing::info!("recovered {} MiB of the log, {batches} batches, in {ms} ms", replayed >> 20);
    let (warm, stored) = (checkpoint.warm, log.table().in_place_bytes());
    Ok(Recovered {
        reader,
        progress,
        caches,
        applier,
        log,
        tables,
        dedup,
        warm,
        stored,
        batches,
        took,
        damage,
        taken,
    })
}

/// Gives the contents of the retained memory back to the disks. If the memory was lost, or history does not
/// reach its floor, all of its contents are lost. `own` is the store and the superblock of a pool that is
/// opened to be changed.
async fn take_memory(
    state: MemoryState,
    applier: &Applier,
    head: u64,
    replaced: &[(DiskId, u64)],
    own: Option<(&Metered, &mut Superblock)>,
) -> Result<TakenOver> {
    let all = |why| Ok(TakenOver { loss: MemoryLoss::All(why), ..TakenOver::default() });
    let contents = match state {
        MemoryState::Lost(why) => return all(why),
        MemoryState::Kept(contents) => contents,
    };
    if contents.floor <= head {
        return Ok(take_over(applier, contents, head, replaced));
    }
    let cx = applier.context();
    if let Some((store, superblock)) = own {
        disown_memory(&*cx.host, store, superblock).await?;
    }
    cx.retained.set_cover(NO_COVER);
    all("the log is older than the retained memory, as after a restore from a backup".to_owned())
}

/// Guard that leaves the retained memory as it is if the opening fails or is cancelled.
struct Untouched(Option<Arc<Retained>>);

impl Untouched {
    /// Records that the contents belong to the recovered pool now.
    fn recovered(mut self) {
        self.0 = None;
    }
}

impl Drop for Untouched {
    fn drop(&mut self) {
        if let Some(retained) = &self.0 {
            retained.leave();
        }
    }
}

/// Whether a segment may hold batches that the checkpoint does not cover.
fn may_continue(checkpoint: &Contents, id: SegmentId) -> bool {
    let record = checkpoint.segments.get(id);
    record.map_or(id.0 >= checkpoint.next_segment, |r| r.state == SegmentState::Open)
}

/// The objects for which [`may_continue`] holds. All other objects are in the segment table with their
/// lengths; if one is missing or shorter, reads and checks detect that.
async fn log_objects(store: &Metered, checkpoint: &Contents) -> Result<Vec<ObjectStat>> {
    let open = checkpoint.segments.iter().filter(|r| r.state == SegmentState::Open).map(|r| r.segment);
    Ok(store.tail(open.collect(), SegmentId(checkpoint.next_segment)).await?)
}

fn warn_of_gap(gap: &Gap) {
    let (segment, offset) = (gap.segment, gap.offset);
    tracing::warn!(%segment, offset, "the log is damaged, but no writes are affected; run 'forebay check'");
}

/// Syncs the segments that hold replayed batches: later batches must not build on a batch that is only in a
/// cache.
async fn sync_log(store: &Metered, applied: &[Scanned]) -> Result<()> {
    let segments: BTreeSet<SegmentId> = applied.iter().map(|b| b.header.segment).collect();
    for segment in segments {
        store.sync(segment).await.map_err(|e| for_good(e, SYNC))?;
    }
    Ok(())
}

/// Scans the segments that may hold batches that the checkpoint does not cover.
async fn scan_log(
    source: &StoreReader,
    objects: &[ObjectStat],
    checkpoint: &Contents,
) -> Result<Vec<SegmentScan>> {
    let mut scans = Vec::new();
    for object in objects {
        if !may_continue(checkpoint, object.id) {
            continue;
        }
        let record = checkpoint.segments.get(object.id).copied();
        scans.push(scan_past_gaps(&*source.store, source.pool, object.id, record, object.len));
    }
    let mut scans = stream::iter(scans).buffered(SCANS_AT_ONCE);
    let mut scanned = Vec::new();
    while let Some(found) = scans.next().await {
        scanned.push(found?);
    }
    let unreadable = scanned.iter().flat_map(|s| &s.gaps).find(|g| g.unreadable);
    if let Some(gap) = unreadable
        && !source.store_answers(gap.segment).await
    {
        let what = format!("scan of segment {}", gap.segment);
        return Err(StoreError::Io { what, reason: "the store does not answer".into(), errno: 0 }.into());
    }
    Ok(scanned)
}

fn load_catalogue(checkpoint: &Contents, cx: &Context) -> Result<Catalogue> {
    let mut catalogue = Catalogue::new(checkpoint.next_disk);
    // Volumes precede their snapshots, whose export names depend on them.
    let (snapshots, others): (Vec<_>, Vec<_>) = checkpoint.disks.iter().partition(|d| d.parent.is_some());
    for disk in others.into_iter().chain(snapshots) {
        check_record(disk)?;
        let tree = Tree::from_record(disk.root, disk.height, blocks(disk.size))?;
        catalogue.insert(Arc::new(Disk::new(disk.clone(), tree, cx.retained.clone())));
    }
    Ok(catalogue)
}

/// Segments that are missing although the checkpoint lists them as open, or although later segments exist. A
/// deletion would be reflected in the checkpoint.
fn missing_segments(objects: &[ObjectStat], checkpoint: &Contents) -> Vec<SegmentId> {
    let existing: BTreeSet<u32> = objects.iter().map(|o| o.id.0).collect();
    let open = checkpoint.segments.iter().filter(|r| r.state == SegmentState::Open).map(|r| r.segment.0);
    let last = existing.last().copied().unwrap_or(0);
    let later = (checkpoint.next_segment..last).take(MAX_MISSING);
    open.chain(later).filter(|id| !existing.contains(id)).map(SegmentId).collect()
}

/// Maximum number of segment numbers that a report checks.
const MAX_MISSING: usize = 1 << 16;
