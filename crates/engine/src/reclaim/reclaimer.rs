//! The owner of space reclamation: its entry points, and the results of the last mark. A [`Reclaim`] is one
//! reclaim that is under way; [`super`] argues its crash safety.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_format::{BLOCK, DiskId, SegmentId, Stream};
use hashbrown::HashMap;
use tokio::sync::{mpsc, oneshot};

use super::clean::Cleaner;
use super::counts::Counts;
use super::mark::{Mark, MarkResult};
use super::run::{Reclaim, ReportProgress};
use super::scratch::Scratch;
use super::victims::{Objects, is_used};
use crate::commit::{Committer, Taken};
use crate::context::Context;
use crate::hash::BuildU64Hasher;
use crate::read::Reader;
use crate::space::SpaceGovernor;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicBool;
use crate::text::shorten;
use crate::yield_counter::YieldCounter;
use crate::{DiskSpace, Error, GcPhase, GcProgress, Mutation, Result, SpaceStats};

/// The results of the last mark.
#[derive(Default)]
struct Figures {
    pool: Option<SpaceStats>,
    disks: HashMap<DiskId, DiskSpace, BuildU64Hasher>,
}

/// What a reclaim has freed.
pub(super) struct Freed {
    pub bytes: u64,
    /// Every object that was worth cleaning was cleaned.
    exhausted: bool,
    /// Names of the disks whose maps are damaged, as text for messages; `None` if all maps are sound.
    damaged: Option<String>,
    /// The segments of images of the cluster to which the pool refers; `None` if a map could not be read.
    image_segments: Option<BTreeSet<SegmentId>>,
}

/// Maximum number of names that a message lists.
const NAMES: usize = 8;

/// Reclaims space: marks, cleans and deletes, one reclaim at a time.
pub(crate) struct Reclaimer {
    pub(super) cx: Arc<Context>,
    pub(super) committer: Arc<Committer>,
    pub(super) reader: Arc<Reader>,
    pub(super) space: Arc<SpaceGovernor>,
    cleaner: Cleaner,
    /// Number of the last batch of history when the pool was opened.
    pub(super) opened_at: u64,
    /// The results of the last mark.
    figures: Mutex<Figures>,
    /// The counts of the last mark. A reclaim under way holds the lock, so that only one runs at a time.
    pub(super) counts: tokio::sync::Mutex<Option<Counts>>,
    /// Disks whose maps the last mark could not read completely.
    damaged: Mutex<BTreeSet<DiskId>>,
    pub(super) stopped: AtomicBool,
}

impl Reclaimer {
    pub fn new(
        reader: Arc<Reader>,
        space: Arc<SpaceGovernor>,
        committer: Arc<Committer>,
        opened_at: u64,
    ) -> Reclaimer {
        Reclaimer {
            cx: committer.context().clone(),
            cleaner: Cleaner::new(reader.clone(), space.clone(), committer.clone()),
            reader,
            space,
            committer,
            opened_at,
            figures: Mutex::default(),
            counts: tokio::sync::Mutex::new(None),
            damaged: Mutex::default(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Marks live slots, and frees dead slots where this frees enough for its cost; returns the bytes freed.
    /// Calls `progress` from time to time.
    ///
    /// The reclaim runs in a separate task and completes even if the caller is dropped: a container must not
    /// be left half written, nor the barrier set.
    ///
    /// # Errors
    /// [`Error::MapsDamaged`] if slots had to be kept that may or may not be garbage: the rest is freed.
    /// Other errors end the reclaim early.
    pub async fn reclaim(
        self: &Arc<Reclaimer>,
        progress: &(dyn Fn(GcProgress) + Send + Sync),
    ) -> Result<u64> {
        let freed = self.run_in_task(true, progress).await?;
        match freed.damaged {
            Some(disks) => Err(Error::MapsDamaged { disks, freed_bytes: freed.bytes }),
            None => Ok(freed.bytes),
        }
    }

    /// The segments of images of the cluster to which the pool refers, as found by a reclaim that begins now;
    /// see [`crate::pool`], `cluster_image`.
    ///
    /// # Errors
    /// [`Error::MapsDamaged`] if a map could not be read, so that it may refer to others.
    pub async fn image_segments_in_use(self: &Arc<Reclaimer>) -> Result<BTreeSet<SegmentId>> {
        let freed = self.run_in_task(false, &|_| ()).await?;
        let disks = freed.damaged.unwrap_or_default();
        freed.image_segments.ok_or(Error::MapsDamaged { disks, freed_bytes: freed.bytes })
    }

    async fn run_in_task(
        self: &Arc<Reclaimer>,
        requested: bool,
        progress: &(dyn Fn(GcProgress) + Send + Sync),
    ) -> Result<Freed> {
        let (steps, mut received) = mpsc::unbounded_channel();
        let (end, ended) = oneshot::channel();
        let reclaimer = self.clone();
        let task = async move {
            // Sending fails if the caller was dropped.
            let freed = reclaimer.run(requested, &|step| _ = steps.send(step)).await;
            let _ = end.send(freed);
        };
        self.cx.host.spawn("reclaim", Box::pin(task));
        while let Some(step) = received.recv().await {
            progress(step);
        }
        ended.await.map_err(|_| Error::Closed)?
    }

    /// Reclaims space. `requested`: a caller requested the reclaim and waits for it; otherwise it is
    /// automatic.
    pub(super) async fn run(&self, requested: bool, report: ReportProgress<'_>) -> Result<Freed> {
        report(GcProgress::default());
        let mut counts = self.counts.lock().await;
        self.cx.check_running()?;
        // From here on the barrier records references that commits make; the checkpoint contains all earlier
        // references.
        self.committer.write_log().await?.barrier = Some(Default::default());
        let under_way = self.space.begin_reclaim(self.cx.host.now());
        let mut done = self.run_locked(&mut counts, requested, report).await;
        if let Ok(mut log) = self.committer.write_log().await
            && let Some(barrier) = log.barrier.take()
            && let Ok(Freed { image_segments: Some(segments), .. }) = &mut done
        {
            segments.extend(barrier.image_segments());
        }
        let checked = self.committer.check_space().await;
        under_way.end(self.cx.host.now(), done.as_ref().is_ok_and(|freed| freed.exhausted));
        checked.and(done)
    }

    async fn run_locked(
        &self,
        counts: &mut Option<Counts>,
        requested: bool,
        report: ReportProgress<'_>,
    ) -> Result<Freed> {
        if requested {
            self.end_used_segments().await?;
        }
        let before = self.space.garbage.before_mark();
        let taken = self.committer.take_checkpoint(self.cx.config.renew_pages).await;
        let (taken, with_pages) = taken.inspect_err(|_| self.space.garbage.mark_failed(&before))?;
        self.space.garbage.mark_begins(&before);
        if self.cx.config.mutation != Mutation::PublishEarly {
            self.committer.renew_older_copy().await?;
        }
        let scratch = Arc::new(Scratch::new(
            self.reader.clone(),
            self.committer.clone(),
            self.space.reserve.segment_bytes,
        ));
        let progress = |done| report(GcProgress { done, ..GcProgress::default() });
        let mark =
            Mark { reader: &self.reader, committer: &self.committer, scratch: &scratch, progress: &progress };
        // If the mark fails, the counts are partly changed, so the next mark is a full one.
        let mut marked = mark.find(&taken, counts.take()).await?;
        let objects = self.survey(&taken, &with_pages, &mut marked).await?;
        mark.add_up(&mut marked).await?;
        self.record_figures(&marked, &objects).await;
        let damaged = self.record_damaged_maps(&taken, &marked);
        let mut reclaim = Reclaim::new(&self.cleaner, report, &taken, requested);
        let freed = reclaim.run(&marked, objects).await;
        tracing::info!(
            nodes = marked.visited(),
            "reclaimed {} KiB of the store; moved {} KiB",
            reclaim.progress.freed_bytes >> 10,
            reclaim.progress.moved_bytes >> 10
        );
        let image_segments = marked.image_segments();
        *counts = marked.into_counts();
        if let Some(space) = &mut self.figures.lock().pool {
            // Live data that was moved, in particular data of images, takes less room now.
            let GcProgress { freed_bytes, moved_bytes, .. } = reclaim.progress;
            let dead = freed_bytes.saturating_sub(reclaim.moved_live);
            space.live_bytes = (space.live_bytes + moved_bytes).saturating_sub(reclaim.moved_live);
            space.reclaimable_bytes = space.reclaimable_bytes.saturating_sub(dead);
            self.space.garbage.set_reclaimable(self.space.garbage.reclaimable().saturating_sub(dead));
        }
        let exhausted = freed?;
        if requested {
            // The room preallocated for the open container becomes free as well.
            let ended = self.committer.write_log().await?.end_segment(Stream::Moved).await;
            self.committer.latching(ended)?;
        }
        report(GcProgress { phase: GcPhase::Done, ..reclaim.progress });
        Ok(Freed { bytes: reclaim.progress.freed_bytes, exhausted, damaged, image_segments })
    }

    /// Records for each disk whether its map is damaged, and logs newly damaged maps once. Returns the names
    /// of all disks with unreadable nodes.
    fn record_damaged_maps(&self, taken: &Taken, marked: &MarkResult) -> Option<String> {
        let warned = std::mem::replace(&mut *self.damaged.lock(), marked.damaged.clone());
        for (record, found) in taken.checkpoint.disks.iter().zip(&taken.map_damage) {
            let Some(disk) = self.committer.disk(record.id) else { continue };
            if marked.damaged_maps.contains(&record.id) {
                disk.record_map_damage(&"a reclaim could not read all of it");
            } else if !marked.damaged.contains(&record.id) {
                disk.map_is_sound(*found);
            }
        }
        let mut names = Vec::new();
        for id in &marked.damaged {
            // The disk may have been deleted or renamed since the checkpoint.
            let disk = self.committer.disk(*id);
            let record = taken.checkpoint.disks.iter().find(|d| d.id == *id);
            let name = match (disk, record) {
                (Some(disk), _) => self.committer.export_name(&disk),
                (None, Some(record)) => record.name.clone(),
                (None, None) => continue,
            };
            if !warned.contains(id) {
                tracing::warn!(disk = %name, "the block map is damaged: older segments are not reclaimed");
            }
            names.push(format!("'{}'", shorten(&name)));
        }
        let more = names.len().saturating_sub(NAMES);
        names.truncate(NAMES);
        let listed = names.join(", ");
        match more {
            _ if listed.is_empty() => None,
            0 => Some(listed),
            more => Some(format!("{listed} and {more} others")),
        }
    }

    /// Ends open segments with guests' data of which more than a sixteenth is used: an open segment cannot be
    /// cleaned.
    async fn end_used_segments(&self) -> Result<()> {
        let mut log = self.committer.write_log().await?;
        let bytes = self.space.reserve.segment_bytes;
        for stream in [Stream::Data, Stream::Short] {
            let room = log.open_segment(stream, bytes).map_or(bytes, |(_, room)| room);
            if is_used(bytes - room, bytes) {
                let ended = log.end_segment(stream).await;
                self.committer.latching(ended)?;
            }
        }
        Ok(())
    }

    async fn record_figures(&self, marked: &MarkResult, objects: &Objects) {
        let (mut yields, mut stored, mut kept, mut live) = (YieldCounter::default(), 0, 0, 0);
        let mut reclaimable = 0;
        for object in objects.iter() {
            yields.step().await;
            stored += object.bytes;
            reclaimable += object.reclaimable();
            kept += if object.stuck { object.bytes.saturating_sub(object.live) } else { 0 };
        }
        for (segment, of) in marked.live() {
            yields.step().await;
            live += if segment.is_of_image() { 0 } else { of.stored };
        }
        let pool = SpaceStats {
            as_of_ms: self.cx.host.unix_ms(),
            logical_bytes: marked.logical_bytes,
            mapped_bytes: marked.mapped * BLOCK as u64,
            unique_bytes: marked.blocks() * BLOCK as u64,
            live_bytes: live,
            reclaimable_bytes: reclaimable,
            damaged_disks: marked.damaged.len() as u64,
        };
        self.space.garbage.marked(stored, stored.saturating_sub(live).saturating_sub(kept));
        *self.figures.lock() = Figures { pool: Some(pool), disks: marked.disks.clone() };
    }

    /// The space of the pool, as of the last mark.
    pub fn pool_space(&self) -> Option<SpaceStats> {
        self.figures.lock().pool
    }

    /// The space of a disk, as of the last mark.
    pub fn disk_space(&self, id: DiskId) -> Option<DiskSpace> {
        self.figures.lock().disks.get(&id).copied()
    }
}
