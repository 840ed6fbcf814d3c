//! Reads of disks: from the write buffer, the block map and the read cache, and otherwise from the store.
//!
//! **Buffers before the map.** A read looks into the write buffers *before* it looks into the block map. A
//! commit first enters its blocks into the map and only then drops the frozen buffer; so a block that a read
//! no longer finds in the buffers is already in the map that it looks into next.
//!
//! **Copies.** A copy by reference ([`crate::handle::copy`]) is the exception: it changes the map below
//! frozen blocks. If the buffers hold only a part of a block, the read could combine that part, from before
//! the copy, with a base from after it. So a read of such a block waits until the commit of the copy ends.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_format::{BLOCK, BlockRef, MapValue};
use forebay_guest::{CachePriority, Class};
use forebay_store::StoreError;

use super::admission::ReadAdmission;
use super::gap::{Gap, Gathered, Origin, Outcome, ReadMode};
use super::nodes::{NodeReader, with_nodes};
use super::run::Fetched;
use super::store::StoreReader;
use crate::block_classes::ReadsByClass;
use crate::block_ranges::pieces;
use crate::buffer::{ALL_SECTORS, BlockBox, copy_sectors, sectors, zero_sectors};
use crate::cache::{MissTable, Owner, Rank, ReadCache};
use crate::context::Context;
use crate::disk::Disk;
use crate::limits::{CHUNK_BLOCKS, READ_RETRIES};
use crate::lost::{is_lost, lost_block};
use crate::map::NeedNode;
use crate::pacing::{GroupBytes, Pacing};
use crate::progress::CommitProgress;
use crate::recordings::Recordings;
use crate::{BoxFuture, ClassReads, Error, Result};

/// Reads disks. It holds everything that a read needs, and nothing that could change a disk.
pub(crate) struct Reader {
    pub(super) cx: Arc<Context>,
    pub source: Arc<StoreReader>,
    pub nodes: NodeReader,
    pub cache: ReadCache,
    pub(super) misses: MissTable<Fetched>,
    pub(super) admission: Arc<ReadAdmission>,
    pub pacing: Arc<Pacing>,
    recordings: Arc<Recordings>,
    reads_by_class: ReadsByClass,
    progress: Arc<CommitProgress>,
}

/// Why [`Reader::gather`] stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A node of the map is not in RAM.
    Node(NeedNode),
    /// The range extends beyond the end of the map: the disk was shrunk after the range was checked.
    OutOfRange,
    /// The block is lost ([`crate::lost`]).
    Lost(BlockRef),
    /// A commit is copying to these blocks.
    Copied(Range<u64>),
}

impl Reader {
    /// A reader with empty caches.
    pub fn new(source: StoreReader, progress: Arc<CommitProgress>) -> Reader {
        let cx = source.cx.clone();
        let (source, pacing) = (Arc::new(source), Arc::<Pacing>::default());
        Reader {
            nodes: NodeReader::new(source.clone()),
            cache: ReadCache::new(cx.config.read_cache),
            misses: MissTable::default(),
            admission: Arc::new(ReadAdmission::new(cx.clone(), pacing.clone())),
            pacing,
            recordings: Arc::default(),
            reads_by_class: ReadsByClass::default(),
            progress,
            source,
            cx,
        }
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.cx
    }

    /// The recordings of boots, to which the reads of the recorded clones are added.
    pub fn recordings(&self) -> &Arc<Recordings> {
        &self.recordings
    }

    /// Records that a client changes blocks of a disk whose reads may be recorded.
    pub fn record_written(&self, disk: &Disk, blocks: &Range<u64>) {
        if disk.is_recorded() {
            self.recordings.record_written(disk, blocks);
        }
    }

    /// Counts a read of a client by the class of its block; see [`Classes::record_read`].
    ///
    /// [`Classes::record_read`]: crate::block_classes::Classes::record_read
    pub fn record_class(&self, disk: &Disk, before: u64, offset: u64, hit: bool) {
        disk.classes.record_read(before, offset, hit, &self.reads_by_class);
    }

    /// Estimates of the reads of each class.
    pub fn class_reads(&self) -> Vec<ClassReads> {
        self.reads_by_class.get()
    }

    /// Records that a group, whose commit took `took`, is durable at `now`.
    pub fn record_group(&self, bytes: &GroupBytes, took: Duration, now: Duration) {
        self.pacing.record_group(bytes, took, now, self.admission.has_waiting());
    }

    /// The rank that blocks of a class have in the read cache.
    pub fn rank(&self, class: Class) -> Rank {
        match self.cx.config.classes.of(class).cache {
            CachePriority::Never => Rank::Never,
            CachePriority::Low => Rank::Low,
            CachePriority::Normal => Rank::Normal,
            CachePriority::High => Rank::High,
        }
    }

    /// Fills `out` from RAM, starting at its byte `done`, and advances `done` to the byte at which it
    /// stopped. With [`ReadMode::CachedOnly`] it stops after the first chunk that is not entirely in RAM.
    pub fn gather(
        &self,
        done: &mut usize,
        disk: &Disk,
        offset: u64,
        out: &mut [u8],
        found: &mut Gathered,
        mode: ReadMode,
    ) -> std::result::Result<(), Stop> {
        while *done < out.len() {
            let first = (offset + *done as u64) / BLOCK as u64;
            let chunk_end = ((first + CHUNK_BLOCKS as u64) * BLOCK as u64 - offset) as usize;
            let chunk = *done..chunk_end.min(out.len());
            self.gather_chunk(disk, offset, chunk.clone(), out, found, mode)?;
            if mode == ReadMode::CachedOnly && !found.gaps.is_empty() {
                return Ok(());
            }
            *done = chunk.end;
        }
        Ok(())
    }

    /// Gathers one `chunk` of `out`; `offset` is the disk's offset of the first byte of `out`.
    fn gather_chunk(
        &self,
        disk: &Disk,
        offset: u64,
        chunk: Range<usize>,
        out: &mut [u8],
        found: &mut Gathered,
        mode: ReadMode,
    ) -> std::result::Result<(), Stop> {
        let from = offset + chunk.start as u64;
        let mut have = [0; CHUNK_BLOCKS];
        // Number of copies that had begun, if the buffers hold only a part of a block.
        let mut copies = None;
        {
            let buffers = disk.buffers.lock();
            if !buffers.is_clean() {
                let mut at = chunk.start;
                for ((block, within), have) in pieces(from, chunk.len()).zip(&mut have) {
                    *have = buffers.overlay(block, &within, &mut out[at..at + within.len()]);
                    found.is_uncommitted |= *have & sectors(&within) != 0;
                    if *have != 0 && *have & sectors(&within) != sectors(&within) {
                        copies = Some(buffers.copies_begun());
                    }
                    at += within.len();
                }
            }
        }
        let first = from / BLOCK as u64;
        let count = (from + chunk.len() as u64).div_ceil(BLOCK as u64) - first;
        let mut values = [MapValue::Hole; CHUNK_BLOCKS];
        let values = &mut values[..count as usize];
        let (known, need) = disk.tree.read().get_range(&self.nodes.cache, first, values);
        if known < values.len() {
            return Err(need.map_or(Stop::OutOfRange, Stop::Node));
        }
        if let Some(copies) = copies {
            let (buffers, blocks) = (disk.buffers.lock(), first..first + count);
            if buffers.is_copied_to(&blocks) || buffers.copies_begun() != copies {
                return Err(Stop::Copied(blocks));
            }
        }
        if disk.is_recorded() && !mode.is_internal() {
            self.recordings.record_read(disk, self.cx.host.now(), first, values, &have);
        }
        let mut at = chunk.start;
        for (((block, within), have), value) in pieces(from, chunk.len()).zip(have).zip(values) {
            let part = &mut out[at..at + within.len()];
            if have & sectors(&within) != sectors(&within) {
                match *value {
                    MapValue::Hole | MapValue::Zero => zero_sectors(!have, &within, part),
                    MapValue::At(target) if is_lost(&target) => return Err(Stop::Lost(target)),
                    MapValue::At(target) => {
                        if !self.read_cached(disk, target, &within, have, part, mode) {
                            found.gaps.push(Gap { block, at, within: within.clone(), have, target });
                        }
                    }
                }
            }
            at += within.len();
        }
        Ok(())
    }

    fn read_cached(
        &self,
        disk: &Disk,
        target: BlockRef,
        within: &Range<usize>,
        have: u8,
        out: &mut [u8],
        mode: ReadMode,
    ) -> bool {
        let reader = Owner::of(disk.id());
        let get = |offset, out: &mut [u8]| match mode {
            // After a miss the caller reads again, and waits.
            ReadMode::CachedOnly => self.cache.probe(target.addr, offset, out, reader),
            ReadMode::Wait => self.cache.get(target.addr, offset, out, reader),
            ReadMode::Internal | ReadMode::Background => self.cache.peek(target.addr, offset, out),
        };
        if have == 0 {
            return get(within.start, out);
        }
        let mut block = [0; BLOCK];
        let hit = get(0, &mut block);
        if hit {
            copy_sectors(&block, !have, within, out);
        }
        hit
    }

    /// Reads `out.len()` bytes at `offset`, waiting for the store if necessary. Up to `ahead` further bytes
    /// may be fetched into the cache.
    pub async fn read(&self, disk: &Disk, offset: u64, out: &mut [u8], ahead: u64) -> Result<Origin> {
        self.read_as(disk, offset, out, ahead, ReadMode::Wait).await.map(|read| read.origin)
    }

    /// Reads like [`Reader::read`], but in the mode `mode`.
    pub async fn read_as(
        &self,
        disk: &Disk,
        offset: u64,
        out: &mut [u8],
        ahead: u64,
        mode: ReadMode,
    ) -> Result<Outcome> {
        let mut tries = 0;
        loop {
            match self.read_once(disk, offset, out, ahead, mode).await {
                Ok(read) => return Ok(read),
                // The segment was freed after the look-up: its blocks were moved or are no longer referenced.
                Err(Error::Store(StoreError::NotFound(_))) if tries < READ_RETRIES => tries += 1,
                Err(e) => return Err(self.source.not_found_is_corruption(e)),
            }
        }
    }

    /// Reads once. Map nodes are loaded one at a time, and
    /// the read continues at the block for which one was missing; so the map cache need not hold all nodes of
    /// the range at the same time.
    async fn read_once(
        &self,
        disk: &Disk,
        offset: u64,
        out: &mut [u8],
        ahead: u64,
        mode: ReadMode,
    ) -> Result<Outcome> {
        let (mut found, mut done) = (Gathered::default(), 0);
        let gather = || self.gather(&mut done, disk, offset, out, &mut found, mode);
        with_nodes(gather, |stop| Box::pin(self.resolve(disk, stop))).await?;
        let Gathered { mut gaps, is_uncommitted } = found;
        if gaps.is_empty() {
            return Ok(Outcome { origin: Origin::Ram, is_uncommitted });
        }
        let mut has_read = false;
        while !gaps.is_empty() {
            let needs_permit = matches!(mode, ReadMode::Wait | ReadMode::Background);
            let most =
                if needs_permit { self.admission.max_bytes(&disk.reads) / BLOCK as u64 } else { u64::MAX };
            let rest = gaps.split_off(usize::try_from(most).unwrap_or(usize::MAX).min(gaps.len()));
            let ahead = if rest.is_empty() { ahead } else { 0 };
            let bytes = (gaps.len() * BLOCK) as u64 + ahead;
            let _permit = match needs_permit {
                true => Some(self.admission.admit(&disk.reads, bytes).await?),
                false => None,
            };
            let piece = std::mem::replace(&mut gaps, rest);
            has_read |= self.fill_gaps(disk, piece, out, ahead, mode).await?;
        }
        let origin = if has_read { Origin::Store } else { Origin::OtherReads };
        Ok(Outcome { origin, is_uncommitted })
    }

    /// Removes the cause for which [`Reader::gather`] stopped. Returns an error if that is not possible.
    async fn resolve(&self, disk: &Disk, stop: Stop) -> Result<()> {
        match stop {
            Stop::Node(need) => self.nodes.load_for_read(disk, need).await.map(drop),
            Stop::Copied(blocks) => self.progress.wait_for_copies(&self.cx, disk, &blocks).await,
            Stop::OutOfRange => Err(Error::OutOfRange),
            Stop::Lost(target) => Err(lost_block(&target)),
        }
    }

    /// Reads one block from the map, ignoring the write buffers: the base of a partial write.
    ///
    /// # Errors
    /// Each with the reference that could not be read: that of the block, or of a node above it.
    pub async fn read_base(
        &self,
        disk: &Disk,
        block: u64,
    ) -> std::result::Result<BlockBox, (BlockRef, Error)> {
        let mut page = Box::new([0; BLOCK]);
        let load = |need: NeedNode| -> BoxFuture<'_, std::result::Result<(), (BlockRef, Error)>> {
            let failed = move |e| (need.at, self.source.not_found_is_corruption(e));
            Box::pin(async move { self.nodes.load(need).await.map(drop).map_err(failed) })
        };
        let value = with_nodes(|| disk.tree.read().get(&self.nodes.cache, block), load).await?;
        if let MapValue::At(target) = value {
            if is_lost(&target) {
                return Err((target, lost_block(&target)));
            }
            let within = 0..BLOCK;
            if !self.read_cached(disk, target, &within, 0, &mut page[..], ReadMode::Wait) {
                let gap = Gap { block, at: 0, within, have: !ALL_SECTORS, target };
                let read = self.fill_gaps(disk, vec![gap], &mut page[..], 0, ReadMode::Wait).await;
                read.map_err(|e| (target, self.source.not_found_is_corruption(e)))?;
            }
        }
        Ok(page)
    }
}
