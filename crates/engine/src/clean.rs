//! Moving what is live out of a segment, so that the object in which it rests can go.
//!
//! **The steps.** What survives of a segment is read, verified, packed and written into a *container*, a
//! segment of the `moved` stream, piece by piece, each piece a group of the log of its own, so that commits
//! come in between. Then one last group is written, which holds the relocation map and says that the segment
//! rests there: the *publication*. When that is durable, the segment table and [`crate::places`] say the
//! same.
//!
//! **The argument.** Up to the publication nothing refers to the copies. After it nothing refers to the
//! originals, but readers that found their place before; they hold a view, and the object is not deleted
//! while they do, nor before a checkpoint has the publication in it ([`crate::reclaim`]). A crash before the publication leaves pieces that no map names, in a container that is
//! cleaned like any other; a crash after it leaves an object in which nothing rests, which the next reclaim
//! deletes.
//!
//! What the publication leaves out is gone for good, so before it is written:
//!
//! - what the map lists is all that the mark found live. A slot that is live but not in the segment's
//!   directory, or that does not read back whole, keeps the segment where it is: what is damaged must not get
//!   lost on top;
//! - no reference was made since the mark began to a slot that it leaves out (the barrier, looked at under
//!   the lock of the log, under which such references are made);
//! - both superblock copies name the checkpoint of the mark, or a later one. So recovery never begins from
//!   maps in which more was live, whichever copy it has.
//!
//! Survivors keep their order, so what was read together still is. Blocks are grouped and compressed with
//! zstd where that takes less room than they have now ([`crate::stored`]).

use std::collections::BTreeSet;
use std::time::Duration;

use forebay_format::{
    Address, BLOCK, BlockRef, DirectoryEntry, Form, Relocation, RelocationMap, SegmentId, SegmentRecord,
    Slot, SlotKind, Stream,
};
use forebay_store::Store;
use tokio::task::yield_now;

use crate::limits::{CLEAN_PAUSE, MAX_SEGMENT_BYTES, MOVE_BYTES};
use crate::log::{Draft, Item, block_at};
use crate::mark::Live;
use crate::places::Rest;
use crate::pool::Pool;
use crate::stored::{GROUP_BLOCKS, compress, compress_group};
use crate::{Error, Mutation, Result};

/// What became of a segment that was to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    /// It rests elsewhere.
    Yes,
    /// It stays where it is, until another mark: something in it is damaged, or has come into use.
    No,
}

/// A live slot, and how many bytes it takes where it is.
#[derive(Debug, Clone, Copy)]
struct Survivor {
    entry: DirectoryEntry,
    takes: usize,
}

/// Bytes to be written, and the survivors in them.
struct Piece {
    bytes: Vec<u8>,
    survivors: Vec<(Survivor, Form)>,
}

/// How fast the cleaner goes: its share of the time, in percent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace(pub u64);

impl Pace {
    /// How long to pause after work that took `took`.
    pub fn pause(self, took: Duration) -> Duration {
        let share = u32::try_from(self.0.clamp(1, 100)).unwrap_or(100);
        (took * (100 - share) / share).min(CLEAN_PAUSE)
    }
}

impl Pool {
    /// Moves the live slots of a segment into a container, in the order of the module.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and whatever else means that cleaning must end.
    pub(crate) async fn relocate(&self, record: &SegmentRecord, live: &Live, pace: Pace) -> Result<Moved> {
        let (mut survivors, dropped) = match self.survivors(record, live).await {
            Ok(found) => found,
            Err(e) => return self.leave_alone(record.segment, e),
        };
        if self.config.mutation == Mutation::SkipSurvivor && survivors.len() > 1 {
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
            self.check_running()?;
            let begin = self.host.now();
            if let Err(e) = self.pack(record.segment, step, &mut pieces).await {
                return self.leave_alone(record.segment, e);
            }
            let packed: usize = pieces.iter().map(|p| p.bytes.len()).sum();
            if packed >= MOVE_BYTES || steps.peek().is_none() {
                if !self.write_pieces(&pieces, &mut map).await? {
                    return Ok(Moved::No);
                }
                pieces.clear();
            }
            let took = self.host.now().saturating_sub(begin);
            self.host.sleep(pace.pause(took)).await;
        }
        map.entries.sort_unstable_by_key(|e| e.slot);
        if self.config.mutation == Mutation::FreeEarly {
            self.store.delete(SegmentId(record.container)).await?;
        }
        self.publish(record, &map, &dropped).await
    }

    /// The live slots of a segment, in order, and the others.
    async fn survivors(
        &self,
        record: &SegmentRecord,
        live: &Live,
    ) -> Result<(Vec<Survivor>, Vec<DirectoryEntry>)> {
        let all: Vec<Survivor> = match Rest::of(record) {
            Some(rest) => {
                let map = self.read_relocation_map(record.segment, &rest).await?;
                let takes = |e: &Relocation| match e.place_form.codec() {
                    Some(forebay_format::Codec::ZstdGroup) => e.units as usize * Slot::UNIT / GROUP_BLOCKS,
                    _ => e.units as usize * Slot::UNIT,
                };
                let survivor = |e: &Relocation| Survivor { entry: directory_entry(e), takes: takes(e) };
                map.entries.iter().map(survivor).collect()
            }
            None => {
                let survivor = |entry: DirectoryEntry| Survivor { entry, takes: entry.form.stored_len() };
                self.read_directory(record).await?.into_iter().map(survivor).collect()
            }
        };
        let (survivors, dead): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|s| live.slots.contains(s.entry.slot.0));
        let found: BTreeSet<Slot> = survivors.iter().map(|s| s.entry.slot).collect();
        if found.len() as u64 != live.slots.len() || found.len() != survivors.len() {
            return Err(Error::Damaged(format!("the directory of segment {}", record.segment)));
        }
        Ok((survivors, dead.into_iter().map(|s| s.entry).collect()))
    }

    /// A segment that cannot be read whole stays as it is. It is warned about once.
    fn leave_alone(&self, segment: SegmentId, why: Error) -> Result<Moved> {
        match why {
            Error::Damaged(_) | Error::Format(_) | Error::Store(_) => {
                if self.upkeep.left_alone.lock().insert(segment) {
                    tracing::warn!(%segment, "not cleaned: {why}");
                }
                Ok(Moved::No)
            }
            other => Err(other),
        }
    }

    /// Sees to a container for all of these. One that is three quarters full is ended if they would not fit; one
    /// that is not becomes longer than other segments, for half-empty ones would be many.
    async fn begin_container(&self, survivors: &[Survivor]) -> Result<()> {
        let bytes: usize = survivors.iter().map(|s| s.takes).sum();
        let wanted = (bytes + RelocationMap::encoded_len(survivors.len())) as u64;
        let mut log = self.log.lock().await;
        let segment_bytes = log.superblock().segment_bytes.into();
        let open = log.open_segment(Stream::Moved, segment_bytes);
        if open.is_some_and(|(_, room)| room < wanted && room <= segment_bytes / 4) {
            let ended = log.end_segment(Stream::Moved).await;
            self.latching(ended)?;
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
        self.read_blocks(&refs, |i, content| match content {
            Ok(content) => plain[i * BLOCK..][..BLOCK].copy_from_slice(content),
            Err(e) => damaged = Some(e),
        })
        .await;
        if let Some(e) = damaged {
            return Err(e);
        }
        for (group, blocks) in run.chunks(GROUP_BLOCKS).zip(plain.chunks(GROUP_BLOCKS * BLOCK)) {
            pack_group(group, blocks, self.config.compress, out);
            yield_now().await;
        }
        Ok(())
    }

    async fn pack_nodes(&self, segment: SegmentId, run: &[Survivor], out: &mut Vec<Piece>) -> Result<()> {
        let refs: Vec<BlockRef> = run.iter().map(|s| block_at(segment, &s.entry)).collect();
        let mut nodes: Vec<Vec<u8>> = vec![Vec::new(); run.len()];
        let mut damaged = None;
        self.read_nodes(&refs, |i, bytes| match bytes {
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

    /// Writes pieces as a group of their own and lists them in the map. False where the container has come to
    /// its end: what one map lists must be in one container.
    async fn write_pieces(&self, pieces: &[Piece], map: &mut RelocationMap) -> Result<bool> {
        let items: Vec<Item> = pieces.iter().map(|p| Item::Blob(&p.bytes)).collect();
        let bytes: usize = pieces.iter().map(|p| p.bytes.len()).sum();
        let placed = {
            let mut log = self.log.lock().await;
            let drafts = Draft::split(&items, log.batch_limit());
            let written = log.write_group(Stream::Moved, &drafts, &mut |_, _, _| {}).await;
            self.latching(written)?
        };
        self.note_moved(bytes as u64);
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

    /// Writes the relocation map, and with it makes the move hold; unless something that it leaves out has
    /// come into use.
    async fn publish(
        &self,
        record: &SegmentRecord,
        map: &RelocationMap,
        dropped: &[DirectoryEntry],
    ) -> Result<Moved> {
        let bytes = map.encode();
        let mut log = self.log.lock().await;
        let room = log.open_segment(Stream::Moved, MAX_SEGMENT_BYTES.into());
        if room.is_none_or(|(id, room)| id != map.container || room < (bytes.len() + 2 * BLOCK) as u64) {
            return Ok(Moved::No);
        }
        let listed = |slot: u64| map.entries.binary_search_by_key(&slot, |e| e.slot.0.into()).is_ok();
        if self.is_used(log.barrier.as_ref(), record.segment, listed) {
            return Ok(Moved::No);
        }
        let dropped = dropped.iter().filter(|e| e.kind == SlotKind::Block).map(|e| (e.fingerprint, e.slot));
        self.dedup.lock().dropped(record.segment, dropped);
        let items = [Item::Relocate { segment: record.segment, map: &bytes }];
        let drafts = Draft::split(&items, usize::MAX);
        let written = log.write_group(Stream::Moved, &drafts, &mut |_, _, _| {}).await;
        let placed = self.latching(written)?;
        let at = placed.first().map_or(0, |p| p.addr.slot.offset()) as u32;
        log.moved(record.segment, map.container, (at, bytes.len() as u32));
        self.note_moved(bytes.len() as u64);
        self.places.set(log.table().get(&record.segment));
        Ok(Moved::Yes)
    }

    fn note_moved(&self, bytes: u64) {
        self.counters.moved.add(bytes);
        self.upkeep.cleaner_wrote(bytes);
    }

    /// Whether a slot of a segment came into use since the mark began that is not among those `kept`.
    pub(crate) fn is_used(
        &self,
        barrier: Option<&BTreeSet<u64>>,
        segment: SegmentId,
        kept: impl Fn(u64) -> bool,
    ) -> bool {
        let first = Address { segment, slot: Slot(0) }.to_u64();
        let slots = first..first + u64::from(Slot::LIMIT);
        self.config.mutation != Mutation::DropBarrier
            && barrier.is_some_and(|b| b.range(slots).any(|addr| !kept(addr - first)))
    }
}

/// Packs up to [`GROUP_BLOCKS`] blocks: together where that takes less room than they do now, else each on
/// its own. Without `pack` only what is packed already is packed again.
fn pack_group(group: &[Survivor], blocks: &[u8], pack: bool, out: &mut Vec<Piece>) {
    let mut bytes = Vec::new();
    let takes: usize = group.iter().map(|s| s.takes).sum();
    let pack = pack || takes < blocks.len();
    let shrinks = pack && compress_group(blocks, &mut bytes);
    if shrinks && bytes.len() <= takes {
        let survivors = group.iter().zip(0..).map(|(s, i)| (*s, Form::member(i))).collect();
        out.push(Piece { bytes, survivors });
        return;
    }
    for (survivor, block) in group.iter().zip(blocks.chunks_exact(BLOCK)) {
        let Some(block) = block.first_chunk() else { continue };
        let mut bytes = Vec::new();
        let form = if pack { compress(block, &mut bytes) } else { Form::RAW_BLOCK };
        if bytes.is_empty() {
            bytes.extend_from_slice(block);
        }
        bytes.resize(form.stored_len(), 0);
        out.push(Piece { bytes, survivors: vec![(*survivor, form)] });
    }
}

/// What a relocation map says of a slot itself.
pub(crate) fn directory_entry(e: &Relocation) -> DirectoryEntry {
    DirectoryEntry { slot: e.slot, form: e.form, kind: e.kind, crc: e.crc, fingerprint: e.fingerprint }
}
