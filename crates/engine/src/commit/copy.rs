//! Applies copies by reference; see [`crate::handle::copy`].

use std::ops::Range;

use forebay_format::FANOUT;
use tokio::task::yield_now;

use super::apply::Applier;
use crate::disk::{Disk, blocks};
use crate::limits::{COMMIT_READS, COPY_STEPS, COPY_VALUE_BYTES};
use crate::map::{Held, NeedNode, Tree};
use crate::read::with_nodes;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering::Relaxed;
use crate::{BoxFuture, Error, Result};

/// A copy that is being applied.
struct Copying<'a> {
    /// The map of the source.
    from: Tree,
    /// Number of blocks that were copied.
    done: u64,
    /// The part of `done` whose references were copied block by block.
    copied: u64,
    /// Nodes that the rest of the copy needs.
    held: Vec<Held<'a>>,
}

impl Applier {
    /// Copies `count` references of `source`, from block `from` on, into the map of `disk`, from block
    /// `first` on. Ranges that are damaged in the map of the source are then damaged in the map of `disk`
    /// too.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]: nothing was changed. Any other error: the copy is incomplete although it is in
    /// the log.
    pub async fn copy_range(
        &self,
        disk: &Disk,
        first: u64,
        source: &Disk,
        from: u64,
        count: u64,
    ) -> Result<()> {
        let fits =
            |disk: &Disk, first: u64| first.checked_add(count).is_some_and(|end| end <= blocks(disk.size()));
        if !fits(disk, first) || !fits(source, from) {
            return Err(Error::OutOfRange);
        }
        // A clone of the source's map does not change even if source and destination are the same disk, and
        // only one tree is locked at a time. A stand-in for damage in the clone affects only the copy.
        let state =
            Mutex::new(Copying { from: source.tree.read().clone(), done: 0, copied: 0, held: Vec::new() });
        let load = |need| -> BoxFuture<'_, Result<()>> {
            Box::pin(self.load_for_copy(disk, source, &state, need, from..from + count))
        };
        let nodes = &self.nodes().cache;
        let mut is_done = false;
        while !is_done {
            let step = || {
                let mut state = state.lock();
                let Copying { from: copied_from, done, copied, .. } = &mut *state;
                let mut tree = disk.tree.write();
                for _ in 0..COPY_STEPS {
                    if *done == count {
                        return Ok(true);
                    }
                    let n = tree.copy(nodes, first + *done, copied_from, from + *done, count - *done)?;
                    *copied += if n <= FANOUT as u64 { n } else { 0 };
                    *done += n;
                }
                Ok(false)
            };
            is_done = with_nodes(step, load).await?;
            yield_now().await;
        }
        let copied = state.lock().copied;
        // Subtrees were shared without being read, so damage in them may be undetected.
        disk.add_map_damage(source);
        self.appended.fetch_add(copied * COPY_VALUE_BYTES, Relaxed);
        Ok(())
    }

    /// Loads the nodes that the remaining copy needs. The node that stopped the copy is loaded, or replaced
    /// by a stand-in.
    async fn load_for_copy<'a>(
        &'a self,
        disk: &Disk,
        source: &Disk,
        state: &Mutex<Copying<'a>>,
        need: NeedNode,
        blocks: Range<u64>,
    ) -> Result<()> {
        let nodes = &self.nodes().cache;
        let missing = {
            let state = state.lock();
            state.from.missing(nodes, blocks.start + state.done..blocks.end, COMMIT_READS)
        };
        let mut held = Held::new(nodes);
        self.nodes().load_and_hold(&missing, &mut held, COMMIT_READS).await;
        state.lock().held.push(held);
        let stand_in = |need, why: &Error| {
            if state.lock().from.stand_in(nodes, need)? {
                source.record_map_damage(why);
                return Ok(true);
            }
            let replaced = disk.tree.write().stand_in(nodes, need)?;
            if replaced {
                disk.record_map_damage(why);
            }
            Ok(replaced)
        };
        self.nodes().load_or_stand_in(need, stand_in).await
    }
}
