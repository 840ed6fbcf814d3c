//! One reclaim after its mark: drops dead segments, cleans objects and deletes empty ones. Its crash safety
//! is argued in [`super`].

use std::time::Duration;

use forebay_format::{SegmentId, Stream};
use forebay_store::{Capacity, Store};
use hashbrown::HashMap;
use tokio::task::yield_now;

use super::clean::{Cleaner, MoveOutcome, Pace};
use super::mark::MarkResult;
use super::victims::{Effort, Object, Objects, choose};
use crate::commit::Taken;
use crate::hash::BuildU64Hasher;
use crate::limits::{CLEAN_DUTY, CLEAN_DUTY_ASKED, DROPS_AT_A_TIME, ROOM_MARGIN, ROOM_SHARE};
use crate::yield_counter::YieldCounter;
use crate::{Error, GcPhase, GcProgress, Mutation, Result};

/// How often a deletion checks whether readers still hold locations in moved segments.
const READERS_CHECK: Duration = Duration::from_millis(1);
/// Maximum bytes of emptied objects that wait for a checkpoint, in segments.
const MAX_EMPTIED: u64 = 8;
/// Minimum room above the reserve with which emptied objects wait for a checkpoint, in segments.
const ROOM_TO_WAIT: u64 = 2;
/// The part of a segment that a checkpoint may need, as one part in this number, while the store has less
/// room than a segment.
const CHECKPOINT_PART: u64 = 16;

pub(super) type ReportProgress<'a> = &'a (dyn Fn(GcProgress) + Send + Sync);

/// The room that the store has, in bytes.
struct Headroom {
    free: u64,
    /// The free room that the cleaner maintains.
    target: u64,
    total: u64,
    /// The store owns less room than was requested, so the room that the file system reports does not count.
    is_short: bool,
}

/// A reclaim in progress, after its mark.
pub(super) struct Reclaim<'a> {
    cleaner: &'a Cleaner,
    report: ReportProgress<'a>,
    /// The checkpoint whose maps were marked.
    taken: &'a Taken,
    pub progress: GcProgress,
    /// Bytes that the live slots took that were moved, where they were before.
    pub moved_live: u64,
    /// A caller requested the reclaim and waits for it.
    requested: bool,
    /// Number of segments that are stored in each object, except in containers that this reclaim fills.
    residents: HashMap<u32, u32, BuildU64Hasher>,
    /// Objects that were emptied since the last checkpoint, and their bytes.
    emptied: Vec<(SegmentId, u64)>,
}

impl<'a> Reclaim<'a> {
    pub fn new(
        cleaner: &'a Cleaner,
        report: ReportProgress<'a>,
        taken: &'a Taken,
        requested: bool,
    ) -> Reclaim<'a> {
        let progress = GcProgress { phase: GcPhase::Clean, ..GcProgress::default() };
        Reclaim {
            cleaner,
            report,
            taken,
            progress,
            moved_live: 0,
            requested,
            residents: HashMap::default(),
            emptied: Vec::new(),
        }
    }

    /// Drops dead segments and cleans the objects that are worth cleaning. Returns true if all of them were
    /// cleaned; false if cleaning ended early, or only the sparsest objects had to be cleaned.
    pub async fn run(&mut self, marked: &MarkResult, objects: Objects) -> Result<bool> {
        self.drop_dead(marked, &objects).await?;
        let (mut yields, mut empty) = (YieldCounter::default(), Vec::new());
        for object in objects.iter() {
            yields.step().await;
            if object.covered && self.is_empty(object.id) {
                empty.push((object.id, object.bytes));
            }
        }
        self.delete(empty).await?;

        let room = self.headroom().await?;
        let effort = match room.free < room.target {
            _ if self.requested => Effort::All,
            true => Effort::Bytes(room.target - room.free + room.total / ROOM_MARGIN),
            false => Effort::Easy,
        };
        let victims = choose(&objects, effort).await;
        self.progress.total = victims.objects.len() as u64;
        for victim in victims.objects {
            (self.report)(self.progress);
            self.cleaner.cx.check_running()?;
            if !self.may_clean(victim).await? || !self.clean(victim, marked).await? {
                // If there is no room for a checkpoint either, the next reclaim deletes the emptied objects.
                match self.delete_emptied().await {
                    Ok(()) | Err(Error::NoSpace) => return Ok(false),
                    Err(e) => return Err(e),
                }
            }
            if self.is_empty(victim.id) {
                self.emptied.push((victim.id, victim.bytes));
            }
            self.progress.done += 1;
            if self.must_delete_emptied().await? {
                self.delete_emptied().await?;
            } else if self.cleaner.committer.checkpoint_due() {
                self.cleaner.committer.checkpoint().await?;
            }
        }
        self.delete_emptied().await?;
        Ok(effort != Effort::Easy && victims.are_all)
    }

    /// Whether there is room for the live slots of an object. Without this check, a move that does not fit
    /// could use up the room that the next checkpoint needs.
    async fn may_clean(&self, victim: &Object) -> Result<bool> {
        let (room, spare) =
            (self.headroom().await?, self.cleaner.space.reserve.segment_bytes / CHECKPOINT_PART);
        if room.is_short {
            // Half of the room that the store still owns remains for deletions.
            return Ok(victim.packed.saturating_add(spare) <= room.free / 2);
        }
        Ok(self.cleaner.committer.read_log().await.may_move(victim.packed, room.free, spare))
    }

    /// Whether the emptied objects must be deleted before more are emptied.
    async fn must_delete_emptied(&self) -> Result<bool> {
        let bytes: u64 = self.emptied.iter().map(|(_, bytes)| bytes).sum();
        let segment_bytes = self.cleaner.space.reserve.segment_bytes;
        if bytes == 0 || bytes >= MAX_EMPTIED * segment_bytes || self.cleaner.committer.checkpoint_due() {
            return Ok(bytes > 0);
        }
        let room = self.headroom().await?;
        Ok(room.free < self.cleaner.space.reserve.bytes(room.total) + ROOM_TO_WAIT * segment_bytes)
    }

    /// Deletes the emptied objects after making a checkpoint that covers the publications that emptied them.
    async fn delete_emptied(&mut self) -> Result<()> {
        if self.emptied.is_empty() {
            return Ok(());
        }
        if self.cleaner.cx.config.mutation != Mutation::DeleteUncovered {
            self.cleaner.committer.checkpoint_in_both_copies().await?;
        }
        let emptied = std::mem::take(&mut self.emptied);
        self.delete(emptied).await
    }

    /// Removes segments without live slots from the table, so that no new reference to them can be made. The
    /// log is locked for a few of these segments at a time. Counts the segments that are stored in each
    /// object.
    async fn drop_dead(&mut self, marked: &MarkResult, objects: &Objects) -> Result<()> {
        let log = self.cleaner.committer.read_log().await;
        let (table, open) = (log.table().clone(), log.open_segments());
        drop(log);
        let (mut yields, mut dead) = (YieldCounter::default(), Vec::new());
        for record in table.iter() {
            yields.step().await;
            let object = objects.get(record.segment);
            // The record of a container is unused if its object does not exist: the object was deleted before
            // a crash.
            let unused = match record.stream {
                Stream::Moved => object.is_none(),
                _ => !marked.live().contains_key(&record.segment) && !marked.is_uncertain(record),
            };
            let with_pages = object.is_some_and(|o| o.with_pages);
            if unused
                && !with_pages
                && record.last_seq <= self.taken.head.seq
                && !open.contains(&record.segment)
            {
                dead.push(record.segment);
            } else if record.stream != Stream::Moved {
                *self.residents.entry(record.container).or_default() += 1;
            }
        }
        for some in dead.chunks(DROPS_AT_A_TIME) {
            let mut log = self.cleaner.committer.write_log().await?;
            for segment in some {
                let Some(record) = log.table().get(*segment).copied() else { continue };
                if self.cleaner.is_used(log.barrier.as_ref(), *segment, |_| false) {
                    *self.residents.entry(record.container).or_default() += 1;
                    continue;
                }
                log.forget(*segment);
                self.cleaner.reader.source.relocation.forget(*segment);
                self.cleaner.committer.forget_segment(*segment);
            }
            drop(log);
            yield_now().await;
        }
        Ok(())
    }

    /// Whether no segment is stored in an object. A container's own record does not count.
    fn is_empty(&self, object: SegmentId) -> bool {
        self.residents.get(&object.0).is_none_or(|segments| *segments == 0)
    }

    /// Moves all segments out of an object. Returns false if there is no room for that; segments that were
    /// moved before stay moved.
    async fn clean(&mut self, victim: &Object, marked: &MarkResult) -> Result<bool> {
        for segment in &victim.residents {
            let record = self.cleaner.committer.read_log().await.table().get(*segment).copied();
            let Some(record) = record.filter(|_| marked.live().contains_key(segment)) else { continue };
            let live = marked.slots(*segment).await?;
            let before = self.cleaner.space.reclaims.moved.get().bytes;
            let moved = self.cleaner.relocate(&record, &live, self.pace().await?).await;
            self.progress.moved_bytes += self.cleaner.space.reclaims.moved.get().bytes - before;
            match moved {
                Ok(MoveOutcome::Moved) => {
                    self.moved_live += marked.live().get(segment).map_or(0, |live| live.stored);
                    if record.stream != Stream::Moved
                        && let Some(left) = self.residents.get_mut(&record.container)
                    {
                        *left -= 1;
                    }
                }
                Ok(MoveOutcome::Kept) => break,
                Err(Error::NoSpace) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// The cleaner's share of the time for the next segment. The share increases as guests use up the free
    /// room that the cleaner maintains, up to all of the time when only the reserve is left. It settles where
    /// the cleaner frees as much as guests write.
    async fn pace(&self) -> Result<Pace> {
        self.cleaner.committer.check_space().await?;
        let base = if self.requested { CLEAN_DUTY_ASKED } else { CLEAN_DUTY };
        Ok(Pace(self.cleaner.space.situation().clean_duty(base)))
    }

    /// Deletes objects once no reader holds a location in them.
    async fn delete(&mut self, objects: Vec<(SegmentId, u64)>) -> Result<()> {
        if objects.is_empty() {
            return Ok(());
        }
        let ignore_readers = self.cleaner.cx.config.mutation == Mutation::IgnoreReaders;
        while !ignore_readers && !self.cleaner.reader.source.relocation.is_settled() {
            self.cleaner.cx.check_running()?;
            self.cleaner.cx.host.sleep(READERS_CHECK).await;
        }
        for (id, bytes) in objects {
            self.cleaner.cx.fencing(self.cleaner.reader.source.store.delete(id).await)?;
            let mut log = self.cleaner.committer.write_log().await?;
            // The record of a moved segment stays in the table as long as one of its slots is live.
            if log.table().get(id).is_some_and(|r| r.stream == Stream::Moved) {
                log.forget(id);
            }
            drop(log);
            self.progress.freed_bytes += bytes;
            self.cleaner.space.reclaims.freed.add(bytes);
        }
        self.cleaner.space.sample_freed(self.cleaner.cx.host.now());
        self.cleaner.committer.check_space().await?;
        Ok(())
    }

    /// The free room of the store, and the free room that the cleaner maintains.
    async fn headroom(&self) -> Result<Headroom> {
        let capacity = self.cleaner.reader.source.store.capacity().await;
        let Capacity { free, total, is_short } = self.cleaner.cx.fencing(capacity)?;
        let target = self.cleaner.space.reserve.bytes(total) + total / ROOM_SHARE;
        Ok(Headroom { free, target, total, is_short })
    }
}
