//! Reading ahead of the sequential readers of a disk ([`crate::streams`]): the blocks that a stream requests
//! next are read into the cache before they are requested.
//!
//! **Stale data.** Reading ahead inserts blocks only into the read cache, and the cache holds blocks by
//! address, whose content never changes ([`crate::cache`]). It looks addresses up in the map, but passes no
//! address to a client's read: this read looks up the addresses itself, after it has looked into the write
//! buffers ([`super::reader`]). So if a block is written, discarded or rolled back in between, it has another
//! address, or none, when it is requested, and the data that was read ahead is never used. The location of an
//! address is held valid by a token, as in every read ([`super::relocation`]).
//!
//! **One read.** Blocks that are read ahead are registered as misses under way before the store read begins.
//! A client that requests such a block waits for this read, as it would wait for the read of another client.
//!
//! **Damage and failures** are reported only when a client requests the block: the block is then read again.
//! Blocks that cannot be located without reading a relocation map are not read ahead.
//!
//! **Other readers** are not delayed: each read ahead needs a permit ([`super::admission`]), and is skipped
//! if no permit is free. Its blocks do not evict blocks that were used again ([`Rank::Low`]). Each chunk is a
//! separate task of the engine, so other tasks can run in between.

use std::ops::Range;
use std::sync::Arc;

use forebay_format::{BLOCK, BlockRef, FANOUT, MapValue};
use futures_util::future::join_all;

use super::gap::Origin;
use super::reader::Reader;
use super::relocation::{Location, Token};
use super::run::{Run, Wanted};
use crate::block_classes::Classifier;
use crate::block_ranges::blocks_of;
use crate::cache::{MissRole, Owner, Rank};
use crate::disk::{Disk, blocks};
use crate::limits::{
    AHEAD_CACHE_SHARE, AHEAD_CHUNK, AHEAD_GAP, AHEAD_WINDOW, BATCH_BYTES, CHUNK_BLOCKS, READAHEAD_MIN,
};
use crate::lost::is_lost;
use crate::map::NeedNode;
use crate::streams::{Limits, Seen};

/// Number of leaves of the map that are loaded together: the leaves of 32 MiB, but at most as many as fit
/// into a small part of the map cache.
const AHEAD_LEAVES: u64 = 32;
/// Number of bytes of the map cache for which one leaf is loaded.
const NODES_SHARE: u64 = 256 << 10;
/// Maximum number of node loads for one plan. More loads would be needed only if the map cache is too small
/// to keep the nodes.
const NODE_LOADS: u32 = 16;

/// Why the planning of a chunk stopped.
enum Stop {
    /// The planning stopped at a block that cannot be read ahead now.
    Block(u64),
    /// The planning stopped at a block whose map node is not in RAM.
    Node(u64, NeedNode),
}

/// A part of a client's read, and what is known about it.
pub(crate) struct SequentialRead {
    blocks: Range<u64>,
    request: Range<u64>,
    seen: Seen,
}

impl SequentialRead {
    /// Bytes to read together with the read; `otherwise` if the read is not known to be sequential.
    pub fn together(&self, otherwise: u64) -> u64 {
        let len = (self.blocks.end - self.blocks.start) * BLOCK as u64;
        match self.seen.together {
            // The blocks that follow are being read already.
            Some(_) if self.seen.is_expected => 0,
            Some(blocks) => (blocks * BLOCK as u64).max(READAHEAD_MIN).saturating_sub(len),
            None => otherwise.saturating_sub(len),
        }
    }
}

impl Reader {
    fn limits_ahead(&self, disk: &Disk) -> Limits {
        let cached = self.cache.budget() / AHEAD_CACHE_SHARE / BLOCK as u64;
        Limits { end: blocks(disk.size()), window: AHEAD_WINDOW.min(cached) }
    }

    /// Records a client's read that may wait, a part of its `request`. Called before the read.
    pub fn begin_sequential(
        self: &Arc<Reader>,
        disk: &Arc<Disk>,
        (offset, len): (u64, u64),
        request: &Range<u64>,
    ) -> SequentialRead {
        let blocks = blocks_of(offset, len);
        let request = blocks_of(request.start, request.end.saturating_sub(request.start));
        let mut seen = disk.streams.begin(&blocks, &request, &self.limits_ahead(disk));
        if let Some(plan) = seen.plan.take() {
            self.read_ahead(disk, plan);
        }
        SequentialRead { blocks, request, seen }
    }

    /// Records the end of the read; `together` bytes after it were read with it.
    pub fn end_sequential(
        self: &Arc<Reader>,
        disk: &Arc<Disk>,
        read: &SequentialRead,
        origin: Origin,
        together: u64,
    ) {
        if origin == Origin::Store {
            let (together, limits) = (together / BLOCK as u64, self.limits_ahead(disk));
            let plan = disk.streams.missed(&read.blocks, &read.request, &read.seen, together, &limits);
            plan.into_iter().for_each(|plan| self.read_ahead(disk, plan));
        }
    }

    /// Records a client's read that did not wait.
    pub fn hit_sequential(self: &Arc<Reader>, disk: &Arc<Disk>, offset: u64, len: u64) {
        if disk.streams.is_active()
            && let Some(plan) = disk.streams.hit(&blocks_of(offset, len), &self.limits_ahead(disk))
        {
            self.read_ahead(disk, plan);
        }
    }

    /// Begins to read blocks that are not cached, as far as that is possible now.
    fn read_ahead(self: &Arc<Reader>, disk: &Arc<Disk>, plan: Range<u64>) {
        self.continue_ahead(disk, plan, NODE_LOADS);
    }

    fn continue_ahead(self: &Arc<Reader>, disk: &Arc<Disk>, plan: Range<u64>, loads: u32) {
        let (mut classifier, mut at, mut is_cached) = (Classifier::default(), plan.start, true);
        while at < plan.end && !self.cx.is_closing() {
            let chunk = at..plan.end.min(at + AHEAD_CHUNK);
            match self.begin_chunk(disk, &chunk, &mut classifier) {
                Ok(begun) => is_cached &= !begun,
                Err(Stop::Block(at)) => return disk.streams.stopped(&plan, at),
                Err(Stop::Node(at, need)) if loads > 0 => {
                    return self.load_and_continue(disk, need, at..plan.end, loads - 1);
                }
                Err(Stop::Node(at, _)) => return disk.streams.stopped(&plan, at),
            }
            at = chunk.end;
        }
        if is_cached {
            disk.streams.was_cached(&plan);
        }
    }

    /// Continues to read ahead after loading a node of the map, together with the nodes of the blocks that
    /// follow.
    fn load_and_continue(self: &Arc<Reader>, disk: &Arc<Disk>, need: NeedNode, rest: Range<u64>, loads: u32) {
        let mut needs = vec![need];
        let (leaves, end) = ((self.cx.config.map_cache / NODES_SHARE).min(AHEAD_LEAVES), blocks(disk.size()));
        for first in (1..leaves).map(|n| (rest.start / FANOUT as u64 + n) * FANOUT as u64) {
            if first < end {
                let (_, need) = disk.tree.read().get_range(&self.nodes.cache, first, &mut [MapValue::Hole]);
                needs.extend(need.filter(|need| !needs.contains(need)));
            }
        }
        let (reader, disk) = (self.clone(), disk.clone());
        let task = async move {
            match reader.nodes.load_ahead(&needs).await {
                true => reader.continue_ahead(&disk, rest, loads),
                false => disk.streams.stopped(&rest, rest.start),
            }
        };
        self.cx.host.spawn("read ahead", Box::pin(task));
    }

    /// Begins to read those blocks of a chunk that are neither cached nor being read. Returns whether there
    /// are any.
    fn begin_chunk(
        self: &Arc<Reader>,
        disk: &Disk,
        chunk: &Range<u64>,
        classifier: &mut Classifier,
    ) -> Result<bool, Stop> {
        let token = self.source.relocation.enter();
        let wanted = self.find_chunk(disk, &token, chunk, classifier)?;
        if wanted.is_empty() {
            return Ok(false);
        }
        let Some(permit) = self.admission.try_ahead(disk, (wanted.len() * BLOCK) as u64) else {
            return Err(Stop::Block(chunk.start));
        };
        let mut runs: Vec<Run> = Vec::new();
        for (target, rank, location) in wanted {
            let MissRole::Leader(leader) = self.misses.enter(target.addr) else { continue };
            let wanted = Wanted { target, gap: None, rank, owner: Owner::of(disk.id()), leader };
            match runs.last_mut() {
                Some(run) if run.spans(&location, AHEAD_GAP, BATCH_BYTES as u64) => {
                    run.push(wanted, location);
                }
                _ => runs.push(Run::new(wanted, location)),
            }
        }
        if !runs.is_empty() {
            let reader = self.clone();
            let task = async move {
                // A failed read is repeated by the client that requests its blocks.
                join_all(runs.into_iter().map(|run| reader.read_run(run))).await;
                drop((token, permit));
            };
            self.cx.host.spawn("read ahead", Box::pin(task));
        }
        Ok(true)
    }

    /// The blocks of a chunk to be read.
    fn find_chunk(
        &self,
        disk: &Disk,
        token: &Token,
        chunk: &Range<u64>,
        classifier: &mut Classifier,
    ) -> Result<Vec<(BlockRef, Rank, Location)>, Stop> {
        let mut values = [MapValue::Hole; CHUNK_BLOCKS];
        let values = &mut values[..(chunk.end - chunk.start) as usize];
        let (known, need) = disk.tree.read().get_range(&self.nodes.cache, chunk.start, values);
        if known < values.len() {
            let stop = need.map_or(Stop::Block(chunk.start), |need| Stop::Node(chunk.start, need));
            return Err(stop);
        }
        let mut wanted = Vec::new();
        for (block, value) in (chunk.start..).zip(values) {
            let MapValue::At(target) = *value else { continue };
            let rank = self.rank_ahead(disk, classifier, block);
            if is_lost(&target) || rank == Rank::Never || self.cache.contains(target.addr) {
                continue;
            }
            let Some(location) = self.source.locate_cached(token, &target) else {
                return Err(Stop::Block(chunk.start));
            };
            wanted.push((target, rank, location));
        }
        Ok(wanted)
    }
}
