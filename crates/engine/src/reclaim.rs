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
//!   ([`crate::places`]). The log before the checkpoint is not needed for recovery, and the publications that
//!   moved its contents are durable, so nothing looks for it again.
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
use crate::victims::{Effort, Object, choose};
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
    /// Names of the disks whose maps are damaged, for people; none if all are sound.
    damaged: Option<String>,
}

/// Names that a message lists at most.
const NAMES: usize = 8;

/// Room of the store, in bytes.
struct Headroom {
    free: u64,
    /// Without so much nothing is taken from guests.
    reserve: u64,
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
}

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
        // What the reclaim writes itself counts against it. Where the store is full nobody else writes, and its
        // checkpoint counts as well: else each one would free what the one before has written, for ever.
        let full = self.commit.full.load(Relaxed);
        let written = || if full { self.appended.load(Relaxed) } else { self.counters.moved.get().bytes };
        let before = written();
        self.upkeep.reclaim_begins();
        let done = self.reclaim_alone(asked, report).await;
        self.log.lock().await.barrier = None;
        let checked = self.check_space().await;
        let gained = done.as_ref().map_or(0, |freed| freed.bytes.saturating_sub(written() - before));
        self.reclaim_ended(begin, gained);
        checked.and(done)
    }

    async fn reclaim_alone(&self, asked: bool, report: Report<'_>) -> Result<Freed> {
        if asked {
            self.end_used_segments().await?;
        }
        let taken = self.make_checkpoint().await?;
        self.upkeep.mark_begins(self.appended.load(Relaxed));
        if self.config.mutation != Mutation::PublishEarly {
            let swapped = self.log.lock().await.swap_superblock(|_| {}).await;
            self.latching(swapped)?;
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
        let mut reclaim = Reclaim { pool: self, report, taken, progress, asked };
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
        freed?;
        if asked {
            // What is set aside for more to be moved is room as well.
            let ended = self.log.lock().await.end_segment(Stream::Moved).await;
            self.latching(ended)?;
        }
        report(GcProgress { phase: GcPhase::Done, ..reclaim.progress });
        Ok(Freed { bytes: reclaim.progress.freed_bytes, damaged })
    }

    /// Warns once of each disk of which the mark could not read everything; gives the names of all of them.
    fn note_damaged_maps(&self, taken: &Taken, marked: &Marked) -> Option<String> {
        let warned = std::mem::replace(&mut *self.upkeep.damaged.lock(), marked.damaged.clone());
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
        let bytes = log.superblock().segment_bytes.into();
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
        let reserve = self.reserve(total);
        Ok(Headroom { free, reserve, wanted: reserve + total / ROOM_SHARE, total })
    }
}

impl Reclaim<'_> {
    async fn run(&mut self, marked: &Marked, objects: Vec<Object>) -> Result<()> {
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
                break;
            }
            let gone = self.empty_of(&[victim.id]).await;
            self.delete(gone.iter().map(|id| (*id, bytes(id))).collect()).await?;
            self.progress.done += 1;
            if self.pool.checkpoint_due() {
                self.pool.make_checkpoint().await?;
            }
        }
        Ok(())
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
        let room = self.pool.headroom().await?;
        let margin = (room.wanted - room.reserve).max(1);
        let used_up = room.wanted.saturating_sub(room.free).min(margin) * 100 / margin;
        let calm = if self.asked { CLEAN_DUTY_ASKED } else { CLEAN_DUTY };
        Ok(Pace(calm + (100 - calm) * used_up / 100))
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
        self.pool.check_space().await?;
        Ok(())
    }
}
