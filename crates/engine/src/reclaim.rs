//! Giving room back: mark, drop what is dead, move what is live out of objects with little of it, delete
//! objects.
//!
//! **The argument.** A reclaim begins with a checkpoint, and has both superblock copies name it (or a later
//! one) before anything is dropped or moved; so the loss of either copy harms nothing, and recovery never
//! begins from maps in which more was live than the mark found. The mark walks all that the checkpoint
//! reaches ([`crate::mark`]). Then
//!
//! - a segment is *dropped* when nothing in it is live, all its batches are covered by the checkpoint, and no
//!   reference to it was made since the mark began;
//! - a segment is *moved* out of an object that is worth cleaning ([`crate::victims`], [`crate::clean`]);
//! - neither is done to what damage hides from the mark: a segment that may hold it stays as it is;
//! - an object is *deleted* when no segment rests in it, the checkpoint covers all its batches, nothing live was
//!   written there (which may be though no table has it), and no reader has a place in it any more
//!   ([`crate::places`]). An object that this reclaim emptied waits for a second checkpoint, named by both superblock
//!   copies as well: that one has the segments where they were moved to. So no deletion rests on anything behind the
//!   checkpoint of either copy. A log that is damaged there, and is given up from there on ([`crate::loss`]), takes
//!   publications with it, and what they moved is then still where it was before.
//!
//! What waits is bounded: the second checkpoint is made when [`EMPTIED_AT_MOST`] segments' worth of bytes wait, when
//! room is short, and at the end of the reclaim. It costs what a checkpoint costs, some map nodes that guests changed
//! since the last one.
//!
//! A crash between any two of these leaves objects in which nothing rests: what was deleted is missed by
//! nobody, and what was not is found by the next reclaim, which looks at the store's own list of objects.
//! Nothing else has to be remembered, so there is nothing to be resumed.
//!
//! Checkpoints that fall due while it cleans are made in between; they only ever come after that of the mark.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_format::{BLOCK, DiskId, SegmentId, SegmentRecord, Stream};
use forebay_store::{Capacity, Store};
use hashbrown::HashMap;
use tokio::sync::{mpsc, oneshot};

use crate::catalogue::shorten;
use crate::checkpoint::Taken;
use crate::clean::{Moved, Pace};
use crate::hash::BuildU64Hasher;
use crate::limits::{CLEAN_DUTY, CLEAN_DUTY_ASKED, ROOM_MARGIN, ROOM_SHARE};
use crate::mark::{Mark, Marked};
use crate::pool::Pool;
use crate::victims::{Effort, Object, choose, worth_cleaning};
use crate::{DiskSpace, Error, GcPhase, GcProgress, Mutation, Result, SpaceStats};

/// What the last mark found.
#[derive(Default)]
pub(crate) struct Space {
    pub pool: Option<SpaceStats>,
    pub disks: HashMap<DiskId, DiskSpace, BuildU64Hasher>,
}

/// How often readers of an object that is to go are looked for again.
const READERS_CHECK: Duration = Duration::from_millis(1);

type Report<'a> = &'a (dyn Fn(GcProgress) + Send + Sync);

/// What came of a reclaim.
pub(crate) struct Freed {
    pub bytes: u64,
    /// All that was worth it was cleaned.
    exhausted: bool,
    /// Names of the disks whose maps are damaged, for people; none if all are sound.
    damaged: Option<String>,
}

/// Names that a message lists at most.
const NAMES: usize = 8;

/// Room of the store, in bytes.
struct Headroom {
    free: u64,
    /// The cleaner sees to it that so much is free.
    wanted: u64,
    total: u64,
}

/// A reclaim under way.
struct Reclaim<'a> {
    pool: &'a Pool,
    report: Report<'a>,
    taken: Taken,
    progress: GcProgress,
    asked: bool,
    /// Objects that were emptied since the last checkpoint, and their bytes.
    emptied: Vec<(SegmentId, u64)>,
}

/// Bytes of emptied objects that wait for a checkpoint at most, in segments.
const EMPTIED_AT_MOST: u64 = 8;
/// Room beside the reserve with less than which they do not wait, in segments.
const ROOM_TO_WAIT: u64 = 2;

impl Pool {
    /// Finds what is live and frees the rest, as far as it is worth it; returns the bytes freed. `progress`
    /// is told now and then.
    ///
    /// It is a task of its own, so that it runs to its end though the caller goes: what it writes must not be left
    /// half written, nor the barrier set.
    ///
    /// # Errors
    /// [`Error::MapsDamaged`] where it had to keep what is not known to be garbage: it has freed the rest. Others
    /// end it early.
    pub async fn reclaim(self: &Arc<Pool>, progress: &(dyn Fn(GcProgress) + Send + Sync)) -> Result<u64> {
        let (tell, mut told) = mpsc::unbounded_channel();
        let (end, ended) = oneshot::channel();
        let pool = self.clone();
        let task = async move {
            // Whoever has gone is not told.
            let freed = pool.reclaim_as(true, &|step| _ = tell.send(step)).await;
            let _ = end.send(freed);
        };
        self.host.spawn("reclaim", Box::pin(task));
        while let Some(step) = told.recv().await {
            progress(step);
        }
        let freed = ended.await.map_err(|_| Error::Closed)??;
        match freed.damaged {
            Some(disks) => Err(Error::MapsDamaged { disks, freed_bytes: freed.bytes }),
            None => Ok(freed.bytes),
        }
    }

    /// Reclaims; `asked` by somebody who waits, or by itself.
    pub(crate) async fn reclaim_as(&self, asked: bool, report: Report<'_>) -> Result<Freed> {
        report(GcProgress::default());
        let _alone = self.upkeep.lock.lock().await;
        self.check_latch()?;
        // From here on what commits refer to is noted; all that they did before is in the checkpoint.
        self.log.lock().await.barrier = Some(Default::default());
        let begin = self.host.now();
        let before = self.reclaim_begins();
        let done = self.reclaim_alone(asked, report).await;
        self.log.lock().await.barrier = None;
        let checked = self.check_space().await;
        self.reclaim_ended(begin, before, done.as_ref().is_ok_and(|freed| freed.exhausted));
        checked.and(done)
    }

    async fn reclaim_alone(&self, asked: bool, report: Report<'_>) -> Result<Freed> {
        if asked {
            self.end_used_segments().await?;
        }
        let before = self.upkeep.before_mark();
        let taken = self.make_checkpoint().await.inspect_err(|_| self.upkeep.no_mark(&before))?;
        self.upkeep.mark_begins(self.appended.load(Relaxed), &before);
        if self.config.mutation != Mutation::PublishEarly {
            self.renew_older_copy().await?;
        }
        let total = taken.checkpoint.disks.len() as u64;
        let mut mark = Mark::new(self);
        let count = |done| report(GcProgress { done, total, ..GcProgress::default() });
        mark.find(&taken, &count).await?;
        let objects = self.survey(&taken, mark.found()).await?;
        let marked = mark.add_up(&taken).await?;
        self.note_space(&marked, &objects);
        let damaged = self.note_damaged_maps(&taken, &marked);
        let progress = GcProgress { phase: GcPhase::Clean, ..GcProgress::default() };
        let mut reclaim = Reclaim { pool: self, report, taken, progress, asked, emptied: Vec::new() };
        let freed = reclaim.run(&marked, objects).await;
        tracing::info!(
            freed = reclaim.progress.freed_bytes,
            moved = reclaim.progress.moved_bytes,
            "space reclaimed"
        );
        if let Some(space) = &mut self.space.lock().pool {
            let gained = reclaim.progress.freed_bytes.saturating_sub(reclaim.progress.moved_bytes);
            space.reclaimable_bytes = space.reclaimable_bytes.saturating_sub(gained);
        }
        let exhausted = freed?;
        if asked {
            // What is set aside for more to be moved is room as well.
            let ended = self.log.lock().await.end_segment(Stream::Moved).await;
            self.latching(ended)?;
        }
        report(GcProgress { phase: GcPhase::Done, ..reclaim.progress });
        Ok(Freed { bytes: reclaim.progress.freed_bytes, exhausted, damaged })
    }

    /// Warns once of each disk of which the mark could not read everything; gives the names of all of them.
    fn note_damaged_maps(&self, taken: &Taken, marked: &Marked) -> Option<String> {
        let warned = std::mem::replace(&mut *self.upkeep.damaged.lock(), marked.damaged.clone());
        for (disk, found) in taken.checkpoint.disks.iter().zip(&taken.map_damage) {
            let Some(volume) = self.volume(disk.id) else { continue };
            if marked.damaged_maps.contains(&disk.id) {
                volume.note_map_damage(&"a reclaim could not read all of it");
            } else if !marked.damaged.contains(&disk.id) {
                volume.map_is_sound(*found);
            }
        }
        let mut names = Vec::new();
        for id in &marked.damaged {
            // It may be gone by now, or have another name.
            let volume = self.volume(*id);
            let record = taken.checkpoint.disks.iter().find(|d| d.id == *id);
            let name = match (volume, record) {
                (Some(volume), _) => self.catalogue.read().export_name(&volume),
                (None, Some(record)) => record.name.clone(),
                (None, None) => continue,
            };
            if !warned.contains(id) {
                tracing::warn!(disk = %name, "its block map is damaged: what is older is not reclaimed");
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

    /// Ends the segments that take the data of guests if more than a little is in them: what is open is not cleaned.
    async fn end_used_segments(&self) -> Result<()> {
        let mut log = self.log.lock().await;
        let bytes = self.segment_bytes;
        for stream in [Stream::Data, Stream::Short] {
            let room = log.open_segment(stream, bytes).map_or(bytes, |(_, room)| room);
            if bytes - room > bytes / 16 {
                let ended = log.end_segment(stream).await;
                self.latching(ended)?;
            }
        }
        Ok(())
    }

    fn note_space(&self, marked: &Marked, objects: &[Object]) {
        let stored: u64 = objects.iter().map(|o| o.bytes).sum();
        let live: u64 = marked.live.values().map(|l| l.stored).sum();
        let stuck = objects.iter().filter(|o| o.stuck);
        let kept: u64 = stuck.map(|o| o.bytes.saturating_sub(o.live)).sum();
        let of_disks = marked.disks.values();
        let pool = SpaceStats {
            as_of_ms: self.host.unix_ms(),
            logical_bytes: marked.logical_bytes,
            mapped_bytes: of_disks.map(|d| d.mapped_bytes).sum(),
            unique_bytes: marked.blocks * BLOCK as u64,
            live_bytes: live,
            reclaimable_bytes: stored.saturating_sub(live).saturating_sub(kept),
            damaged_disks: marked.damaged.len() as u64,
        };
        self.upkeep.stored.store(stored, Relaxed);
        *self.space.lock() = Space { pool: Some(pool), disks: marked.disks.clone() };
    }

    /// The room that there is, and that there should be.
    async fn headroom(&self) -> Result<Headroom> {
        let Capacity { free, total } = self.store.capacity().await?;
        Ok(Headroom { free, wanted: self.reserve(total) + total / ROOM_SHARE, total })
    }
}

impl Reclaim<'_> {
    /// Frees what is dead and cleans what is worth it. False where it ended before, or had no need to go on.
    async fn run(&mut self, marked: &Marked, objects: Vec<Object>) -> Result<bool> {
        self.drop_dead(marked, &objects).await;
        let ids: Vec<SegmentId> = objects.iter().filter(|o| o.covered).map(|o| o.id).collect();
        let bytes: HashMap<SegmentId, u64, BuildU64Hasher> =
            objects.iter().map(|o| (o.id, o.bytes)).collect();
        let bytes = |id: &SegmentId| bytes.get(id).copied().unwrap_or(0);
        let empty = self.empty_of(&ids).await;
        self.delete(empty.iter().map(|id| (*id, bytes(id))).collect()).await?;

        let room = self.pool.headroom().await?;
        let effort = match room.free < room.wanted {
            _ if self.asked => Effort::All,
            true => Effort::Bytes(room.wanted - room.free + room.total / ROOM_MARGIN),
            false => Effort::Easy,
        };
        let victims = choose(&objects, effort);
        self.progress.total = victims.len() as u64;
        for victim in &victims {
            (self.report)(self.progress);
            self.pool.check_running()?;
            if !self.clean(victim, marked).await? {
                // Where there is no room for a checkpoint either, the next reclaim deletes them.
                match self.delete_emptied().await {
                    Ok(()) | Err(Error::NoSpace) => return Ok(false),
                    Err(e) => return Err(e),
                }
            }
            let gone = self.empty_of(&[victim.id]).await;
            self.emptied.extend(gone.iter().map(|id| (*id, bytes(id))));
            self.progress.done += 1;
            if self.emptied_must_go().await? {
                self.delete_emptied().await?;
            } else if self.pool.checkpoint_due() {
                self.pool.make_checkpoint().await?;
            }
        }
        self.delete_emptied().await?;
        Ok(effort != Effort::Easy && victims.len() == worth_cleaning(&objects, effort))
    }

    /// Whether what was emptied is not to wait for more.
    async fn emptied_must_go(&self) -> Result<bool> {
        let bytes: u64 = self.emptied.iter().map(|(_, bytes)| bytes).sum();
        let segment_bytes = self.pool.segment_bytes;
        if bytes == 0 || bytes >= EMPTIED_AT_MOST * segment_bytes || self.pool.checkpoint_due() {
            return Ok(bytes > 0);
        }
        let room = self.pool.headroom().await?;
        Ok(room.free < self.pool.reserve(room.total) + ROOM_TO_WAIT * segment_bytes)
    }

    /// Deletes what was emptied, when a checkpoint covers the publications that emptied it.
    async fn delete_emptied(&mut self) -> Result<()> {
        if self.emptied.is_empty() {
            return Ok(());
        }
        if self.pool.config.mutation != Mutation::DeleteUncovered {
            self.pool.make_checkpoint().await?;
            self.pool.renew_older_copy().await?;
        }
        let emptied = std::mem::take(&mut self.emptied);
        self.delete(emptied).await
    }

    /// Forgets segments in which nothing is live, so that nothing new can refer to them.
    async fn drop_dead(&self, marked: &Marked, objects: &[Object]) {
        let mut log = self.pool.log.lock().await;
        let dead = |r: &&SegmentRecord| {
            // Of a container only the object counts, which went before a crash.
            let unused = match r.stream {
                Stream::Moved => objects.binary_search_by_key(&r.segment, |o| o.id).is_err(),
                _ => !marked.live.contains_key(&r.segment) && !marked.is_uncertain(r),
            };
            let covered = r.last_seq <= self.taken.head.seq && !log.is_open(r.segment);
            unused && covered && !self.pool.is_used(log.barrier.as_ref(), r.segment, |_| false)
        };
        let dead: Vec<SegmentId> = log.table().values().filter(dead).map(|r| r.segment).collect();
        for segment in dead {
            log.forget(segment);
            self.pool.places.forget(segment);
        }
    }

    /// Those objects in which no segment rests. Of a container its own record does not count.
    async fn empty_of(&self, objects: &[SegmentId]) -> Vec<SegmentId> {
        let log = self.pool.log.lock().await;
        let rests = |r: &&SegmentRecord| r.stream != Stream::Moved;
        let used: BTreeSet<u32> = log.table().values().filter(rests).map(|r| r.container).collect();
        objects.iter().filter(|id| !used.contains(&id.0) && !log.is_open(**id)).copied().collect()
    }

    /// Moves everything out of an object. False where there is no room for that: what was freed so far is
    /// free.
    async fn clean(&mut self, victim: &Object, marked: &Marked) -> Result<bool> {
        for segment in &victim.residents {
            let record = self.pool.log.lock().await.table().get(segment).copied();
            let (Some(record), Some(live)) = (record, marked.live.get(segment)) else { continue };
            let before = self.pool.counters.moved.get().bytes;
            let moved = self.pool.relocate(&record, live, self.pace().await?).await;
            self.progress.moved_bytes += self.pool.counters.moved.get().bytes - before;
            match moved {
                Ok(Moved::Yes) => {}
                Ok(Moved::No) => break,
                Err(Error::NoSpace) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// The share of the time for the next segment: more and more of it as guests use up the room that is to be
    /// free, all of it when there is none but the reserve. So it settles where as much is freed as is written.
    async fn pace(&self) -> Result<Pace> {
        self.pool.check_space().await?;
        let calm = if self.asked { CLEAN_DUTY_ASKED } else { CLEAN_DUTY };
        Ok(Pace(self.pool.situation().clean_duty(calm)))
    }

    /// Deletes objects when the last reader is through with them.
    async fn delete(&mut self, objects: Vec<(SegmentId, u64)>) -> Result<()> {
        if objects.is_empty() {
            return Ok(());
        }
        while !self.pool.places.is_settled() {
            self.pool.check_running()?;
            self.pool.host.sleep(READERS_CHECK).await;
        }
        for (id, bytes) in objects {
            self.pool.store.delete(id).await?;
            let mut log = self.pool.log.lock().await;
            // A segment that was moved is known as long as something in it is live.
            if log.table().get(&id).is_some_and(|r| r.stream == Stream::Moved) {
                log.forget(id);
            }
            drop(log);
            self.progress.freed_bytes += bytes;
            self.pool.counters.freed.add(bytes);
        }
        self.pool.note_freed();
        self.pool.check_space().await?;
        Ok(())
    }
}
