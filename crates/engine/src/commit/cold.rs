//! Cold writes: writes whose commit requires reads. See [`super::warm`].

use std::sync::Arc;

use forebay_format::FANOUT;

use super::intake::Intake;
use super::warm::{Warm, base_at, by_leaf};
use crate::disk::Disk;
use crate::limits::{COLD_BLOCKS, COLD_READS};
use crate::map::Touch;

impl Intake {
    /// Whether a disk has the maximum number of outstanding cold writes, so that the next write waits.
    pub fn has_max_cold_writes(&self, disk: &Disk) -> bool {
        disk.cold.count() >= COLD_BLOCKS
    }

    /// Records which of the blocks just written are cold. The blocks in `partial` were written partially.
    pub fn record_cold(
        &self,
        disk: &Arc<Disk>,
        blocks: std::ops::Range<u64>,
        partial: impl Iterator<Item = u64>,
    ) {
        let mut cold: Vec<Touch> = Vec::new();
        for block in partial {
            let is_warm = match base_at(&self.reader.nodes.cache, disk, block) {
                Ok(target) => target.is_none_or(|target| self.reader.cache.contains(target.addr)),
                Err(_) => false,
            };
            if !is_warm && cold.last().is_none_or(|last| last.block != block) {
                cold.push(Touch { block, count: 1, is_read: true });
            }
        }
        {
            let tree = disk.tree.read();
            let (mut block, end) = (blocks.start, blocks.end.min(tree.blocks()));
            while block < end {
                let next = (block / FANOUT as u64 + 1) * FANOUT as u64;
                let touch = Touch { block, count: (next.min(end) - block) as usize, is_read: false };
                let is_known = cold.iter().any(|t| t.is_read && (block..next).contains(&t.block));
                if !is_known && !tree.is_warm(&self.reader.nodes.cache, touch) {
                    cold.push(touch);
                }
                block = next;
            }
        }
        if cold.is_empty() {
            return;
        }
        if disk.cold.push(cold) {
            self.cold.lock().push_back(disk.clone());
        }
        self.cold_wake.notify_one();
    }

    /// The task that reads ahead for cold writes, disk by disk.
    pub async fn warm_loop(self: Arc<Intake>) {
        loop {
            self.cold_wake.notified().await;
            loop {
                let next = self.cold.lock().pop_front();
                let Some(disk) = next else { break };
                let touches = disk.cold.take();
                let count = touches.len();
                let touches = by_leaf(touches);
                let mut warm = Warm::new(&self.reader);
                warm.read_ahead(vec![(disk.clone(), touches)], COLD_READS).await;
                disk.cold.done(count);
            }
            if self.cx.check_running().is_err() {
                return;
            }
        }
    }
}
