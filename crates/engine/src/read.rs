//! Reading: write buffer, block map, read cache, and for what is in neither, the store.
//!
//! The order is what makes it right: the buffers are asked *before* the map. A commit puts its blocks into the
//! map first and forgets the frozen buffer after, so what is no longer in the buffers is already in the map.
//!
//! A copy by reference ([`crate::copy`]) is the exception: it changes the map over what is frozen. A block of which the
//! buffers have a part would be half of before the copy and half of after it, so its reader waits for the commit to end.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use forebay_format::{BLOCK, BlockRef, MapValue};
use forebay_store::StoreError;

use crate::buffer::{ALL_SECTORS, Page, copy_sectors, sectors, zero_sectors};
use crate::damage::{is_lost, lost_block};
use crate::disk::blocks_of;
use crate::limits::{CHUNK_BLOCKS, READ_RETRIES};
use crate::map::NeedNode;
use crate::pool::Pool;
use crate::volume::Volume;
use crate::{Error, Result};

/// How a disk is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// Only if all is in RAM.
    AtOnce,
    /// Waiting for the store where it must.
    Waiting,
    /// Likewise, by the pool itself: nothing that guests read is kept, counted or known by what this reads.
    Unseen,
}

/// What keeps a read from being gathered.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A node of the map is not in RAM.
    Node(NeedNode),
    /// The map ends before the range does: the disk has become smaller since that was checked.
    OutOfRange,
    /// The block is lost, whatever the store says.
    Lost(BlockRef),
    /// A commit is copying into these blocks.
    Copied(Range<u64>),
}

/// A part of a read that has to come from the store.
pub(crate) struct Gap {
    /// Logical block number.
    pub block: u64,
    /// Where its bytes go in the reader's memory.
    pub at: usize,
    /// Which bytes of the block are wanted.
    pub within: Range<usize>,
    /// Sectors that the write buffer has filled already.
    pub have: u8,
    /// Where the block is stored.
    pub target: BlockRef,
}

impl Gap {
    /// Copies the block into the reader's memory.
    pub fn fill(&self, content: &[u8; BLOCK], out: &mut [u8]) {
        let out = &mut out[self.at..self.at + self.within.len()];
        copy_sectors(content, !self.have, &self.within, out);
    }
}

/// The blocks that a byte range touches, with the part of each that is in it.
pub(crate) fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let end = offset + len as u64;
    blocks_of(offset, len as u64).map(move |block| {
        let start = block * BLOCK as u64;
        let within = offset.max(start) - start..end.min(start + BLOCK as u64) - start;
        (block, within.start as usize..within.end as usize)
    })
}

impl Pool {
    /// Fills `out` from RAM, from its byte `done` on, which moves to where it stopped; lists in `gaps` what is not there,
    /// or the first of it.
    pub(crate) fn gather(
        &self,
        done: &mut usize,
        volume: &Volume,
        offset: u64,
        out: &mut [u8],
        gaps: &mut Vec<Gap>,
        how: How,
    ) -> std::result::Result<(), Stop> {
        while *done < out.len() {
            let first = (offset + *done as u64) / BLOCK as u64;
            let chunk_end = ((first + CHUNK_BLOCKS as u64) * BLOCK as u64 - offset) as usize;
            let chunk = *done..chunk_end.min(out.len());
            self.gather_chunk(volume, offset, chunk.clone(), out, gaps, how)?;
            if how == How::AtOnce && !gaps.is_empty() {
                return Ok(());
            }
            *done = chunk.end;
        }
        Ok(())
    }

    /// Gathers `chunk` of `out`, which stands for the disk's bytes from `offset` on.
    fn gather_chunk(
        &self,
        volume: &Volume,
        offset: u64,
        chunk: Range<usize>,
        out: &mut [u8],
        gaps: &mut Vec<Gap>,
        how: How,
    ) -> std::result::Result<(), Stop> {
        let from = offset + chunk.start as u64;
        let mut have = [0; CHUNK_BLOCKS];
        // Where the buffers have parts of blocks: how many copies had begun.
        let mut copies = None;
        {
            let buffers = volume.buffers.lock();
            if !buffers.is_clean() {
                let mut at = chunk.start;
                for ((block, within), have) in pieces(from, chunk.len()).zip(&mut have) {
                    *have = buffers.overlay(block, &within, &mut out[at..at + within.len()]);
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
        let (known, need) = volume.tree.read().get_range(&self.nodes, first, values);
        if known < values.len() {
            return Err(need.map_or(Stop::OutOfRange, Stop::Node));
        }
        if let Some(copies) = copies {
            let (buffers, blocks) = (volume.buffers.lock(), first..first + count);
            if buffers.is_copied_to(&blocks) || buffers.copies_begun() != copies {
                return Err(Stop::Copied(blocks));
            }
        }
        if volume.is_recorded.load(Relaxed) && how != How::Unseen {
            self.profiles.note(volume, self.host.now(), first, values, &have);
        }
        let mut at = chunk.start;
        for (((block, within), have), value) in pieces(from, chunk.len()).zip(have).zip(values) {
            let part = &mut out[at..at + within.len()];
            if have & sectors(&within) != sectors(&within) {
                match *value {
                    MapValue::Hole | MapValue::Zero => zero_sectors(!have, &within, part),
                    MapValue::At(target) if is_lost(&target) => return Err(Stop::Lost(target)),
                    MapValue::At(target) => {
                        if !self.read_cached(target, &within, have, part, how) {
                            gaps.push(Gap { block, at, within: within.clone(), have, target });
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
        target: BlockRef,
        within: &Range<usize>,
        have: u8,
        out: &mut [u8],
        how: How,
    ) -> bool {
        let get = |offset, out: &mut [u8]| match how {
            How::AtOnce | How::Waiting => self.cache.get(target.addr, offset, out),
            How::Unseen => self.cache.peek(target.addr, offset, out),
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

    /// Reads, waiting for the store where it must. `ahead` is how many bytes behind the last one may be
    /// fetched as well. Whether all of it was in RAM.
    pub(crate) async fn read(
        &self,
        volume: &Volume,
        offset: u64,
        out: &mut [u8],
        ahead: u64,
    ) -> Result<bool> {
        self.read_as(volume, offset, out, ahead, How::Waiting).await
    }

    pub(crate) async fn read_as(
        &self,
        volume: &Volume,
        offset: u64,
        out: &mut [u8],
        ahead: u64,
        how: How,
    ) -> Result<bool> {
        let mut tries = 0;
        loop {
            match self.read_once(volume, offset, out, ahead, how).await {
                Ok(gaps) => return Ok(gaps == 0),
                // The segment was freed after the look-up: what was in it has a new place, or is gone.
                Err(Error::Store(StoreError::NotFound(_))) if tries < READ_RETRIES => tries += 1,
                Err(e) => return Err(self.lost(e)),
            }
        }
    }

    /// Reads, and says how many blocks were not in RAM. Loads the map nodes that are needed one by one, and goes on where
    /// one was missing: the map cache need not hold those of the whole range at one time.
    async fn read_once(
        &self,
        volume: &Volume,
        offset: u64,
        out: &mut [u8],
        ahead: u64,
        how: How,
    ) -> Result<usize> {
        let (mut gaps, mut done) = (Vec::new(), 0);
        loop {
            match self.gather(&mut done, volume, offset, out, &mut gaps, how) {
                Ok(()) => break,
                Err(Stop::OutOfRange) => return Err(Error::OutOfRange),
                Err(Stop::Lost(target)) => return Err(lost_block(&target)),
                Err(Stop::Copied(blocks)) => self.wait_for_copies(volume, &blocks).await?,
                Err(Stop::Node(need)) => {
                    self.load_for_read(volume, need).await?;
                }
            }
        }
        let count = gaps.len();
        if count > 0 {
            self.fill_gaps(volume, gaps, out, ahead, how).await?;
        }
        Ok(count)
    }

    /// Reads one block as the map has it, without the write buffers: the base under a partial write.
    ///
    /// # Errors
    /// With each comes what could not be read: the block, or the node of the map that says which block it is.
    pub(crate) async fn read_base(
        &self,
        volume: &Volume,
        block: u64,
    ) -> std::result::Result<Page, (BlockRef, Error)> {
        let mut page = Box::new([0; BLOCK]);
        let value = loop {
            let found = volume.tree.read().get(&self.nodes, block);
            match found {
                Ok(value) => break value,
                Err(need) => drop(self.load_node(need).await.map_err(|e| (need.at, self.lost(e)))?),
            }
        };
        if let MapValue::At(target) = value {
            if is_lost(&target) {
                return Err((target, lost_block(&target)));
            }
            let within = 0..BLOCK;
            if !self.read_cached(target, &within, 0, &mut page[..], How::Waiting) {
                let gap = Gap { block, at: 0, within, have: !ALL_SECTORS, target };
                let read = self.fill_gaps(volume, vec![gap], &mut page[..], 0, How::Waiting).await;
                read.map_err(|e| (target, self.lost(e)))?;
            }
        }
        Ok(page)
    }
}
