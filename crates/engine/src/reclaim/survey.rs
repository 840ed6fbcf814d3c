//! The survey: lists all objects of the store after a mark, with their live and garbage bytes.

use std::collections::BTreeSet;

use forebay_format::{BLOCK, RelocationMap, SegmentId, Stream};
use forebay_store::{ObjectStat, Store};
use futures_util::{StreamExt, stream};

use super::mark::MarkResult;
use super::reclaimer::Reclaimer;
use super::victims::{Object, Objects, gains_by_groups, is_used, moved_bytes};
use crate::commit::Taken;
use crate::limits::{MOVE_BYTES, NODE_READS, YIELD_STEPS};
use crate::log::SegmentTable;
use crate::read::RelocationRef;
use crate::yield_counter::YieldCounter;
use crate::{Error, Mutation, Result};

impl Reclaimer {
    /// Lists all objects after a mark; `with_pages` are the objects that hold pages of its checkpoint.
    /// Completes the result of the mark: the bytes of live slots in moved segments, and the horizon.
    pub(super) async fn survey(
        &self,
        taken: &Taken,
        with_pages: &BTreeSet<SegmentId>,
        marked: &mut MarkResult,
    ) -> Result<Objects> {
        let has_pages =
            |id: &SegmentId| with_pages.contains(id) && self.cx.config.mutation != Mutation::FreePages;
        let (table, blobs, open) = {
            let log = self.committer.read_log().await;
            let blobs: Vec<_> = log.superblock().blobs.iter().map(|blob| blob.segment).collect();
            (log.table().clone(), blobs, log.open_segments())
        };
        // For a listed segment, only its batches count, and their length is in its record.
        let records = table.clone();
        let unknown = Box::new(move |id| !records.contains(id));
        let stats = self.cx.fencing(self.reader.source.store.list_lengths_of(unknown).await)?;
        if self.cx.config.mutation != Mutation::DropUnseen {
            marked.set_horizon(&table, self.opened_at);
        }
        self.measure_moved(&table, marked).await?;
        let (mut yields, mut objects) = (YieldCounter::default(), Objects::default());
        for stat in &stats {
            yields.step().await;
            objects.push(listed(stat, taken, has_pages(&stat.id), marked));
        }
        drop(stats);
        for record in table.iter() {
            yields.step().await;
            let Some(object) = objects.get_mut(record.segment) else { continue };
            let id = record.segment;
            let in_use = open.contains(&id) || blobs.contains(&id) || has_pages(&id);
            object.bytes = object.bytes.min(record.written.into());
            object.covered = record.last_seq <= taken.head.seq && !in_use;
            let is_data = matches!(record.stream, Stream::Data | Stream::Short);
            object.ends_if_requested = open.contains(&id)
                && is_data
                && !has_pages(&id)
                && is_used(record.written.into(), self.space.reserve.segment_bytes);
        }
        for record in table.iter() {
            yields.step().await;
            if record.stream != Stream::Moved
                && marked.is_uncertain(record)
                && let Some(object) = objects.get_mut(SegmentId(record.container))
            {
                object.stuck = true;
            }
            let Some(live) = marked.live().get(&record.segment).copied() else { continue };
            let Some(object) = objects.get_mut(SegmentId(record.container)) else { continue };
            // The age of moved data is the time since it was written, not since it was moved.
            object.age = object.age.min(taken.head.seq.saturating_sub(record.last_seq));
            let relocation = RelocationRef::of(record);
            object.to_pack |= self.cx.config.compress && relocation.is_none() && gains_by_groups(&live);
            // The relocation map of the segment could not be read.
            object.stuck |= relocation.is_some() && live.moved != relocation;
            object.residents.push(record.segment);
            object.live += live.stored;
            let map = RelocationMap::encoded_len(live.slots as usize) as u64;
            // The relocation map is a separate batch, and so is each step of a move, padded to a block; the
            // container has a header, which may be shared. The sum is rather too high: a segment that was
            // just moved must not be worth moving again.
            let heads = 4 + 2 * live.stored / MOVE_BYTES as u64;
            object.packed += live.stored + map + heads * BLOCK as u64;
        }
        Ok(objects)
    }

    /// Determines the bytes that the live slots of moved segments take now. A segment is left out if its
    /// relocation map cannot be read.
    async fn measure_moved(&self, table: &SegmentTable, marked: &mut MarkResult) -> Result<()> {
        let (mut yields, mut moved) = (YieldCounter::default(), Vec::new());
        for record in table.iter() {
            yields.step().await;
            if let Some(relocation) = RelocationRef::of(record)
                && let Some(live) = marked.live().get(&record.segment)
                && live.moved != Some(relocation)
            {
                moved.push((record.segment, relocation));
            }
        }
        for some in moved.chunks(YIELD_STEPS) {
            let reads = some.iter().map(|at| self.moved_size(at, marked));
            let reads: Vec<_> = stream::iter(reads.collect::<Vec<_>>()).buffered(NODE_READS).collect().await;
            for ((segment, relocation), size) in some.iter().zip(reads) {
                if let (Some(size), Some(live)) = (size?, marked.live_mut(*segment)) {
                    (live.stored, live.moved) = (size, Some(*relocation));
                }
            }
        }
        Ok(())
    }

    /// Bytes that the live slots of a moved segment take; `None` if its relocation map cannot be read.
    async fn moved_size(
        &self,
        (segment, relocation): &(SegmentId, RelocationRef),
        marked: &MarkResult,
    ) -> Result<Option<u64>> {
        match self.reader.source.read_relocation_map(*segment, relocation).await {
            Ok(map) => {
                let slots = marked.slots(*segment).await?;
                Ok(Some(moved_bytes(&map, |slot| slots.contains(slot.0))))
            }
            Err(Error::Damaged(_) | Error::Store(_)) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Returns an object as the store lists it.
fn listed(stat: &ObjectStat, taken: &Taken, with_pages: bool, marked: &MarkResult) -> Object {
    // An object that no table lists was left by a crash, unless it was created after the mark began: then it
    // has a higher number. But a segment of the last checkpoint may be in no table either, if recovery found
    // its batches damaged: nodes in it may still be intact.
    let is_old = stat.id.0 < taken.checkpoint.next_segment;
    Object {
        id: stat.id,
        bytes: stat.len,
        covered: is_old && !marked.may_be_in_use(stat.id) && !with_pages,
        ends_if_requested: false,
        with_pages,
        stuck: false,
        to_pack: false,
        age: taken.head.seq,
        residents: Vec::new(),
        live: 0,
        packed: 0,
    }
}
