//! The allocation state of a disk: its extents.

use forebay_format::{BLOCK, FANOUT};
use forebay_store::StoreError;
use tokio::task::yield_now;

use super::handle::DiskHandle;
use crate::block_ranges::blocks_of;
use crate::limits::{LEAF_STEPS, READ_RETRIES, TURN_STEPS};
use crate::map::{NeedNode, RunKind};
use crate::read::with_nodes;
use crate::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use crate::{Error, Result};

/// Threshold of buffered blocks of a desktop. Above it, the state is looked up for this many blocks of the
/// disk at a time, which takes some hundred microseconds.
const BUFFERED_BLOCKS: u64 = 1 << 14;

/// A range of the disk with one allocation state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length of the extent in bytes.
    pub len: u64,
    /// The range is not allocated (`NBD_STATE_HOLE`).
    pub hole: bool,
    /// The range reads as zeroes (`NBD_STATE_ZERO`).
    pub zero: bool,
}

impl DiskHandle {
    /// Returns the extents of `len` bytes from `offset` on, at most `max` of them, but at least one unless
    /// the range is empty.
    ///
    /// Dirty data is committed first, so that the block map alone has the state; for a desktop, which does
    /// not commit, the write buffer is included. If the commit fails, the whole range is reported as data,
    /// which is always a valid answer.
    pub async fn extents(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>> {
        self.check(offset, len)?;
        if let Err(error) = self.intake.flush_disk(&self.disk).await {
            if matches!(error, Error::Fenced) {
                return Err(error);
            }
            return Ok(vec![Extent { len, hole: false, zero: false }]);
        }
        self.extents_without_flush(offset, len, max).await
    }

    /// Works like [`DiskHandle::extents`] for a disk whose contents do not change, so that all of them are in
    /// the block map: equal requests return equal extents, also while no commit is possible.
    pub(crate) async fn extents_without_flush(
        &self,
        offset: u64,
        len: u64,
        max: usize,
    ) -> Result<Vec<Extent>> {
        self.check(offset, len)?;
        let end = offset + len;
        let mut at = offset;
        let mut extents: Vec<Extent> = Vec::new();
        // Number of nodes that were freed between look-up and load.
        let freed = AtomicUsize::new(0);
        let blocks = blocks_of(offset, len);
        // For a desktop, the buffered runs are looked up for some blocks at a time.
        let is_desktop = self.disk.is_desktop();
        let mut window = blocks.start..if is_desktop { blocks.start } else { blocks.end };
        let mut buffered = Vec::new().into_iter().peekable();
        let mut steps = 0;
        while at < end && extents.len() < max.max(1) {
            steps += LEAF_STEPS;
            if steps >= TURN_STEPS {
                steps = 0;
                yield_now().await;
            }
            let block = at / BLOCK as u64;
            if block >= window.end {
                let buffers = self.disk.buffers.lock();
                let most = if buffers.written() > BUFFERED_BLOCKS { BUFFERED_BLOCKS } else { u64::MAX };
                window = block..block.saturating_add(most).min(blocks.end);
                buffered = buffers.runs(window.clone()).into_iter().peekable();
                drop(buffers);
                steps = TURN_STEPS;
            }
            while buffered.next_if(|(run, _)| run.end <= block).is_some() {}
            let mut most = window.end - block;
            if let Some((run, kind)) = buffered.peek() {
                if run.contains(&block) {
                    let kind = match kind {
                        None => RunKind::Data,
                        Some(true) => RunKind::Zero,
                        Some(false) => RunKind::Hole,
                    };
                    at = extend(&mut extents, kind, at, (run.end * BLOCK as u64).min(end));
                    continue;
                }
                most = most.min(run.start - block);
            }
            let look_up = || self.disk.tree.read().run(&self.reader.nodes.cache, block, most);
            let (kind, count) = with_nodes(look_up, |need| Box::pin(self.load(need, &freed))).await?;
            steps += count / FANOUT as u64 * LEAF_STEPS;
            at = extend(&mut extents, kind, at, ((block + count.max(1)) * BLOCK as u64).min(end));
        }
        Ok(extents)
    }

    /// Returns the number of bytes from `offset` on, at most `len`, that read as zeroes according to the
    /// block map alone. 0 does not imply that the range contains data.
    ///
    /// It takes as long as a read from RAM, for any `len`. As with a read, concurrent writes may or may not
    /// be included.
    ///
    /// # Errors
    /// As [`DiskHandle::try_read`].
    pub fn zeroes(&self, offset: u64, len: u64) -> Result<u64> {
        self.check(offset, len)?;
        let blocks = blocks_of(offset, len);
        // The buffers are looked up before the map, as in a read.
        let Some(written) = self.disk.buffers.lock().first_written(&blocks) else { return Ok(0) };
        if written <= blocks.start {
            return Ok(0);
        }
        let run = self.disk.tree.read().run(&self.reader.nodes.cache, blocks.start, written - blocks.start);
        Ok(match run {
            Ok((RunKind::Hole | RunKind::Zero, count)) => {
                ((blocks.start + count) * BLOCK as u64).min(offset + len) - offset
            }
            // If a node is not in RAM, a read will load it.
            Ok((RunKind::Data, _)) | Err(_) => 0,
        })
    }

    /// Loads a node. If the node was freed since the look-up, the caller retries, a limited number of times:
    /// the next look-up does not need this node.
    async fn load(&self, need: NeedNode, freed: &AtomicUsize) -> Result<()> {
        match self.reader.nodes.load_for_read(&self.disk, need).await {
            Err(Error::Store(StoreError::NotFound(_))) if freed.fetch_add(1, Relaxed) < READ_RETRIES => {
                Ok(())
            }
            other => other.map(drop),
        }
    }
}

/// Adds an extent from `at` to `until`; returns `until`.
fn extend(extents: &mut Vec<Extent>, kind: RunKind, at: u64, until: u64) -> u64 {
    let (hole, zero) = match kind {
        RunKind::Hole => (true, true),
        RunKind::Zero => (false, true),
        RunKind::Data => (false, false),
    };
    match extents.last_mut() {
        Some(last) if (last.hole, last.zero) == (hole, zero) => last.len += until - at,
        _ => extents.push(Extent { len: until - at, hole, zero }),
    }
    until
}
