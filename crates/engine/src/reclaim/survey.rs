//! The survey: lists all objects of the store after a mark, with their live and garbage bytes.

use forebay_format::{BLOCK, RelocationMap, SegmentId, SegmentRecord, Stream};
use forebay_store::Store;
use hashbrown::HashMap;

use super::mark::MarkResult;
use super::reclaimer::Reclaimer;
use super::victims::{Object, gains_by_groups, moved_bytes};
use crate::commit::Taken;
use crate::hash::BuildU64Hasher;
use crate::limits::MOVE_BYTES;
use crate::read::RelocationRef;
use crate::{Error, Mutation, Result};

impl Reclaimer {
    /// Lists all objects after a mark. Completes the result of the mark: the bytes of live slots in moved
    /// segments, and the horizon.
    pub(super) async fn survey(&self, taken: &Taken, marked: &mut MarkResult) -> Result<Vec<Object>> {
        let listed = self.reader.source.store.list().await?;
        let (records, blobs, open) = {
            let log = self.committer.log.lock().await;
            let records: Vec<SegmentRecord> = log.table().values().copied().collect();
            let open: Vec<bool> = records.iter().map(|r| log.is_open(r.segment)).collect();
            let blobs: Vec<_> = log.superblock().blobs.iter().map(|blob| blob.segment).collect();
            (records, blobs, open)
        };
        if self.cx.config.mutation != Mutation::DropUnseen {
            marked.set_horizon(&records, self.opened_at);
        }
        let mut objects: HashMap<SegmentId, Object, BuildU64Hasher> = HashMap::default();
        for stat in &listed {
            let object = Object {
                id: stat.id,
                bytes: stat.len,
                // An object that no table lists was left by a crash, unless it was created after the mark
                // began: then it has a higher number. But a segment of the last checkpoint may be in no table
                // either, if recovery found its batches damaged: nodes in it may still be intact.
                covered: stat.id.0 < taken.checkpoint.next_segment && !marked.may_be_in_use(stat.id),
                stuck: false,
                to_pack: false,
                age: taken.head.seq,
                residents: Vec::new(),
                live: 0,
                packed: 0,
            };
            objects.insert(stat.id, object);
        }
        for (record, open) in records.iter().zip(open) {
            let Some(object) = objects.get_mut(&record.segment) else { continue };
            object.bytes = object.bytes.min(record.written.into());
            object.covered = record.last_seq <= taken.head.seq && !open && !blobs.contains(&record.segment);
        }
        for record in &records {
            if record.stream != Stream::Moved
                && marked.is_uncertain(record)
                && let Some(object) = objects.get_mut(&SegmentId(record.container))
            {
                object.stuck = true;
            }
            let Some(mut live) = marked.live().get(&record.segment).copied() else { continue };
            let Some(object) = objects.get_mut(&SegmentId(record.container)) else { continue };
            // The age of moved data is the time since it was written, not since it was moved.
            object.age = object.age.min(taken.head.seq.saturating_sub(record.last_seq));
            let relocation = RelocationRef::of(record);
            object.to_pack |= self.cx.config.compress && relocation.is_none() && gains_by_groups(&live);
            if let Some(relocation) = relocation
                && live.moved != Some(relocation)
            {
                match self.reader.source.read_relocation_map(record.segment, &relocation).await {
                    Ok(map) => {
                        let slots = marked.slots(record.segment).await?;
                        live.stored = moved_bytes(&map, |slot| slots.contains(slot.0));
                        live.moved = Some(relocation);
                        if let Some(kept) = marked.live_mut(record.segment) {
                            *kept = live;
                        }
                    }
                    Err(Error::Damaged(_) | Error::Store(_)) => object.stuck = true,
                    Err(e) => return Err(e),
                }
            }
            object.residents.push(record.segment);
            object.live += live.stored;
            let map = RelocationMap::encoded_len(live.slots as usize) as u64;
            // The relocation map is a separate batch, and so is each step of a move, padded to a block; the
            // container has a header, which may be shared. The sum is rather too high: a segment that was
            // just moved must not be worth moving again.
            let heads = 4 + 2 * live.stored / MOVE_BYTES as u64;
            object.packed += live.stored + map + heads * BLOCK as u64;
        }
        let mut objects: Vec<Object> = objects.into_values().collect();
        objects.sort_by_key(|o| o.id);
        Ok(objects)
    }
}
