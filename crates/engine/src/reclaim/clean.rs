//! Moves the live slots out of a segment, so that the object in which it is stored can be deleted.
//!
//! **The steps.** The live slots of a segment, its *survivors*, are read, verified, packed and written into a
//! *container*, a segment of the `moved` stream, piece by piece. Each write is a separate group of the log,
//! so that commits can run in between. Then a last group is written, which holds the relocation map and
//! records that the segment is stored in the container. This group is the *publication*. When it is durable,
//! the segment table and the locations in [`crate::read`] are updated.
//!
//! **Crash safety of a publication.** Before the publication, nothing refers to the copies. After the
//! publication, nothing refers to the originals except readers that looked up a location before. These
//! readers hold a token. The object is not deleted while a reader holds a token, nor before a checkpoint
//! contains the publication ([`super`]). A crash before the publication leaves pieces that no map lists, in a
//! container that is cleaned like any other object. A crash after the publication leaves an object in which
//! no segment is stored, which the next reclaim deletes.
//!
//! A slot that the relocation map does not list is lost for good. Therefore, before the publication is
//! written:
//!
//! - the map lists every slot that the mark found live. If a live slot is missing from the segment's
//!   directory, or cannot be read back completely, the segment stays where it is: damage must not cause
//!   further loss;
//! - no reference to a slot that the map leaves out was made since the mark began. This is checked against
//!   the barrier under the lock of the log, under which such references are made;
//! - both superblock copies reference the checkpoint of the mark or a later one. So recovery never begins
//!   from maps in which more slots were live, whichever copy it reads.
//!
//! Survivors keep their order, so slots that were written together stay adjacent. Blocks are compressed with
//! zstd in groups if that takes less room than their current form ([`crate::stored`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use forebay_format::{
    BLOCK, BlockRef, DirectoryEntry, Form, Relocation, RelocationMap, SegmentId, SegmentRecord, Slot,
    SlotKind, Stream,
};
use forebay_store::{Store, StoreError};
use hashbrown::HashSet;
use roaring::RoaringBitmap;
use tokio::task::yield_now;

use crate::commit::Committer;
use crate::context::Context;
use crate::limits::{CLEAN_PAUSE, MAX_SEGMENT_BYTES, MOVE_BYTES, PACK_GROUPS};
use crate::log::{Barrier, Item, Log, block_at, directory_entry};
use crate::read::{Reader, RelocationRef};
use crate::space::SpaceGovernor;
use crate::stored::{GROUP_BLOCKS, compress_group, store_singly};
use crate::sync::Mutex;
use crate::workers::map;
use crate::{Error, Mutation, Result};

/// The outcome of moving a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MoveOutcome {
    /// The segment is stored in the container.
    Moved,
    /// The segment stays in its object until a later mark: a slot is damaged or was referenced again, or the
    /// container ended.
    Kept,
}

/// The cleaner's share of the time, in percent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace(pub u64);

impl Pace {
    /// How long to pause after work that took `took`.
    fn pause(self, took: Duration) -> Duration {
        let share = u32::try_from(self.0.clamp(1, 100)).unwrap_or(100);
        (took * (100 - share) / share).min(CLEAN_PAUSE)
    }
}

/// A live slot, and its present size on the store.
#[derive(Debug, Clone, Copy)]
struct Survivor {
    entry: DirectoryEntry,
    stored_len: usize,
}

/// Bytes to be written, and the survivors whose blocks they contain.
struct Piece {
    bytes: Vec<u8>,
    survivors: Vec<(Survivor, Form)>,
}

/// Moves segments out of objects.
pub(super) struct Cleaner {
    pub cx: Arc<Context>,
    pub committer: Arc<Committer>,
    pub reader: Arc<Reader>,
    pub space: Arc<SpaceGovernor>,
    /// Segments that are not cleaned because they are damaged, and for which a warning was logged.
    damaged: Mutex<HashSet<SegmentId>>,
}

impl Cleaner {
    pub fn new(reader: Arc<Reader>, space: Arc<SpaceGovernor>, committer: Arc<Committer>) -> Cleaner {
        Cleaner { cx: committer.context().clone(), reader, space, committer, damaged: Mutex::default() }
    }

    /// Moves the live slots of a segment into a container, in the steps of the module.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and other errors with which cleaning must end.
    pub async fn relocate(
        &self,
        record: &SegmentRecord,
        live: &RoaringBitmap,
        pace: Pace,
    ) -> Result<MoveOutcome> {
        let (mut survivors, dropped) = match self.survivors(record, live).await {
            Ok(found) => found,
            Err(e) => return self.keep_damaged(record.segment, e),
        };
        if self.cx.config.mutation == Mutation::SkipSurvivor && survivors.len() > 1 {
            survivors.remove(survivors.len() / 2);
        }
        self.begin_container(&survivors).await?;
        let mut map = RelocationMap {
            segment: record.segment,
            container: SegmentId(0),
            entries: Vec::with_capacity(survivors.len()),
        };
        let mut pieces = Vec::new();
        let mut steps = survivors.chunks(MOVE_BYTES / BLOCK).peekable();
        while let Some(step) = steps.next() {
            self.cx.check_running()?;
            let begin = self.cx.host.now();
            if let Err(e) = self.pack(record.segment, step, &mut pieces).await {
                return self.keep_damaged(record.segment, e);
            }
            let packed: usize = pieces.iter().map(|p| p.bytes.len()).sum();
            if packed >= MOVE_BYTES || steps.peek().is_none() {
                if !self.write_pieces(&pieces, &mut map).await? {
                    return Ok(MoveOutcome::Kept);
                }
                pieces.clear();
            }
            let took = self.cx.host.now().saturating_sub(begin);
            self.cx.host.sleep(pace.pause(took)).await;
        }
        map.entries.sort_unstable_by_key(|e| e.slot);
        if self.cx.config.mutation == Mutation::FreeEarly {
            self.reader.source.store.delete(SegmentId(record.container)).await?;
        }
        self.publish(record, &map, &dropped).await
    }

    /// The live slots of a segment, in order, and its dead slots.
    async fn survivors(
        &self,
        record: &SegmentRecord,
        live: &RoaringBitmap,
    ) -> Result<(Vec<Survivor>, Vec<DirectoryEntry>)> {
        let all: Vec<Survivor> = match RelocationRef::of(record) {
            Some(relocation) => {
                let map = self.reader.source.read_relocation_map(record.segment, &relocation).await?;
                let stored_len = |e: &Relocation| match e.place_form.codec() {
                    Some(forebay_format::Codec::ZstdGroup) => e.units as usize * Slot::UNIT / GROUP_BLOCKS,
                    _ => e.units as usize * Slot::UNIT,
                };
                let survivor =
                    |e: &Relocation| Survivor { entry: directory_entry(e), stored_len: stored_len(e) };
                map.entries.iter().map(survivor).collect()
            }
            None => {
                let survivor =
                    |entry: DirectoryEntry| Survivor { entry, stored_len: entry.form.stored_len() };
                self.reader.source.read_directory(record).await?.into_iter().map(survivor).collect()
            }
        };
        let (survivors, dead): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|s| live.contains(s.entry.slot.0));
        let found: BTreeSet<Slot> = survivors.iter().map(|s| s.entry.slot).collect();
        if found.len() as u64 != live.len() || found.len() != survivors.len() {
            return Err(Error::Damaged(format!("the directory of segment {}", record.segment)));
        }
        Ok((survivors, dead.into_iter().map(|s| s.entry).collect()))
    }

    /// Keeps a segment that cannot be read completely, and logs a warning once. Returns other errors.
    fn keep_damaged(&self, segment: SegmentId, why: Error) -> Result<MoveOutcome> {
        match why {
            Error::Damaged(_) | Error::Format(_) | Error::Store(_) => {
                if self.damaged.lock().insert(segment) {
                    tracing::warn!(%segment, "not cleaned: {why}");
                }
                Ok(MoveOutcome::Kept)
            }
            other => Err(other),
        }
    }

    /// Ends the open container if the survivors do not fit and it is at least three quarters full. A
    /// container with more room stays open and becomes longer than other segments: otherwise many half-empty
    /// containers would result.
    async fn begin_container(&self, survivors: &[Survivor]) -> Result<()> {
        let bytes: usize = survivors.iter().map(|s| s.stored_len).sum();
        let wanted = (bytes + RelocationMap::encoded_len(survivors.len())) as u64;
        let mut log = self.committer.write_log().await?;
        let segment_bytes = self.space.reserve.segment_bytes;
        let open = log.open_segment(Stream::Moved, segment_bytes);
        if open.is_some_and(|(_, room)| room < wanted && room <= segment_bytes / 4) {
            let ended = log.end_segment(Stream::Moved).await;
            self.committer.latching(ended)?;
        }
        Ok(())
    }

    /// Reads survivors, verifies them, and adds them to the pieces.
    async fn pack(&self, segment: SegmentId, survivors: &[Survivor], out: &mut Vec<Piece>) -> Result<()> {
        for run in survivors.chunk_by(|a, b| a.entry.kind == b.entry.kind) {
            match run[0].entry.kind {
                SlotKind::Block => self.pack_blocks(segment, run, out).await?,
                SlotKind::Node => self.pack_nodes(segment, run, out).await?,
            }
        }
        Ok(())
    }

    async fn pack_blocks(&self, segment: SegmentId, run: &[Survivor], out: &mut Vec<Piece>) -> Result<()> {
        let refs: Vec<BlockRef> = run.iter().map(|s| block_at(segment, &s.entry)).collect();
        let mut plain = vec![0; run.len() * BLOCK];
        let mut damaged = None;
        self.reader
            .source
            .read_blocks(&refs, |i, content| match content {
                Ok(content) => plain[i * BLOCK..][..BLOCK].copy_from_slice(content),
                Err(e) => damaged = Some(e),
            })
            .await;
        if let Some(e) = damaged {
            return Err(e);
        }
        let groups: Vec<_> = run.chunks(GROUP_BLOCKS).zip(plain.chunks(GROUP_BLOCKS * BLOCK)).collect();
        let workers = self.cx.host.workers();
        // Few groups are packed at a time, since commits wait for them, but enough to make it worthwhile to
        // wake the other threads.
        for some in groups.chunks(PACK_GROUPS * workers.threads()) {
            let pack = |(group, blocks)| pack_group(group, blocks, self.cx.config.compress);
            out.extend(map(workers, some.to_vec(), pack).into_iter().flatten());
            yield_now().await;
        }
        Ok(())
    }

    async fn pack_nodes(&self, segment: SegmentId, run: &[Survivor], out: &mut Vec<Piece>) -> Result<()> {
        let refs: Vec<BlockRef> = run.iter().map(|s| block_at(segment, &s.entry)).collect();
        let mut nodes: Vec<Vec<u8>> = vec![Vec::new(); run.len()];
        let mut damaged = None;
        self.reader
            .source
            .read_nodes(&refs, |i, bytes| match bytes {
                Ok(bytes) => nodes[i] = bytes.to_vec(),
                Err(e) => damaged = Some(e),
            })
            .await;
        if let Some(e) = damaged {
            return Err(e);
        }
        let piece = |(survivor, bytes): (&Survivor, _)| Piece {
            bytes,
            survivors: vec![(*survivor, survivor.entry.form)],
        };
        out.extend(run.iter().zip(nodes).map(piece));
        Ok(())
    }

    /// Writes pieces as a separate group and lists them in the map. Returns false if they were not written,
    /// or were written into another container than the earlier pieces: all slots that a map lists must be in
    /// one container.
    async fn write_pieces(&self, pieces: &[Piece], map: &mut RelocationMap) -> Result<bool> {
        let items: Vec<Item> = pieces.iter().map(|p| Item::Blob(&p.bytes)).collect();
        let bytes: usize = pieces.iter().map(|p| p.bytes.len()).sum();
        let written = self.write_group(&mut *self.committer.write_log().await?, &items).await?;
        let Some(placed) = written else { return Ok(false) };
        self.space.cleaner_wrote(bytes as u64);
        for (piece, at) in pieces.iter().zip(placed) {
            if map.container == SegmentId(0) {
                map.container = at.addr.segment;
            }
            if map.container != at.addr.segment {
                return Ok(false);
            }
            let units = (piece.bytes.len() / Slot::UNIT) as u32;
            map.entries.extend(piece.survivors.iter().map(|(survivor, place_form)| {
                let DirectoryEntry { slot, form, kind, crc, fingerprint } = survivor.entry;
                let (place, place_form) = (at.addr.slot, *place_form);
                Relocation { slot, form, kind, crc, fingerprint, place, place_form, units }
            }));
        }
        Ok(true)
    }

    /// Writes the relocation map, which completes the move. Does not write it if a slot that the map leaves
    /// out was referenced since the mark began.
    async fn publish(
        &self,
        record: &SegmentRecord,
        map: &RelocationMap,
        dropped: &[DirectoryEntry],
    ) -> Result<MoveOutcome> {
        let bytes = map.encode();
        let mut log = self.committer.write_log().await?;
        let room = log.open_segment(Stream::Moved, MAX_SEGMENT_BYTES.into());
        if room.is_none_or(|(id, room)| id != map.container || room < (bytes.len() + 2 * BLOCK) as u64) {
            return Ok(MoveOutcome::Kept);
        }
        let listed = |slot: u32| map.entries.binary_search_by_key(&slot, |e| e.slot.0).is_ok();
        if self.is_used(log.barrier.as_ref(), record.segment, listed) {
            return Ok(MoveOutcome::Kept);
        }
        let dropped = dropped.iter().filter(|e| e.kind == SlotKind::Block).map(|e| (e.fingerprint, e.slot));
        self.committer.forget_slots(record.segment, dropped);
        let items = [Item::Relocate { segment: record.segment, map: &bytes }];
        let Some(placed) = self.write_group(&mut log, &items).await? else { return Ok(MoveOutcome::Kept) };
        let at = placed.first().map_or(0, |p| p.addr.slot.offset()) as u32;
        log.moved(record.segment, map.container, (at, bytes.len() as u32));
        self.space.cleaner_wrote(bytes.len() as u64);
        self.reader.source.relocation.set(log.table().get(record.segment));
        Ok(MoveOutcome::Moved)
    }

    /// Writes a group; returns `None` if the group's object does not answer while other objects do. Then the
    /// container has ended.
    async fn write_group(&self, log: &mut Log, items: &[Item<'_>]) -> Result<Option<Vec<BlockRef>>> {
        match log.write_group(Stream::Moved, items, self.cx.host.workers()).await {
            Err(StoreError::Overdue) => Ok(None),
            written => self.committer.latching(written).map(Some),
        }
    }

    /// Whether a slot of a segment that is not `kept` may have been referenced since the mark began.
    pub fn is_used(&self, barrier: Option<&Barrier>, segment: SegmentId, kept: impl Fn(u32) -> bool) -> bool {
        self.cx.config.mutation != Mutation::DropBarrier
            && barrier.is_some_and(|barrier| barrier.has_any_but(segment, kept))
    }
}

/// Packs up to [`GROUP_BLOCKS`] blocks: as a group if that needs no more room than their current form,
/// otherwise each separately. Without `pack`, only blocks that are compressed already are compressed again.
fn pack_group(group: &[Survivor], blocks: &[u8], pack: bool) -> Vec<Piece> {
    let mut bytes = Vec::new();
    let stored_len: usize = group.iter().map(|s| s.stored_len).sum();
    let pack = pack || stored_len < blocks.len();
    let shrinks = pack && compress_group(blocks, &mut bytes);
    if shrinks && bytes.len() <= stored_len {
        let survivors = group.iter().zip(0..).map(|(s, i)| (*s, Form::member(i))).collect();
        return vec![Piece { bytes, survivors }];
    }
    let each = |(survivor, block): (&Survivor, &[u8])| {
        let (form, bytes) = store_singly(block.first_chunk()?, pack);
        Some(Piece { bytes, survivors: vec![(*survivor, form)] })
    };
    group.iter().zip(blocks.chunks_exact(BLOCK)).filter_map(each).collect()
}
