//! Prefetching: reads many blocks of a disk in few large reads, sorted by location.

use forebay_format::{BLOCK, BlockRef, FANOUT, MapValue};
use futures_util::StreamExt as _;
use futures_util::stream;
use hashbrown::HashMap;
use serde::Serialize;

use super::reader::Reader;
use super::relocation::Location;
use super::run::{Run, Wanted};
use crate::cache::{MissRole, Owner, Rank};
use crate::disk::{Disk, blocks};
use crate::hash::BuildU64Hasher;
use crate::limits::CHUNK_BLOCKS;
use crate::lost::is_lost;
use crate::map::NeedNode;
use crate::{Error, Result};

/// Maximum number of blocks of one read: they are unpacked without yielding to other tasks.
const READ_BLOCKS: usize = 1024;
/// Number of concurrent reads of a prefetch.
const READS: usize = 4;
/// Maximum bytes of one read of a prefetch, as stored.
const READ_BYTES: u64 = 4 << 20;
/// Maximum bytes between two blocks of one read: a hard disk reads over such a gap faster than it seeks.
const GAP: u64 = 1 << 20;

/// Result of a prefetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Prefetched {
    /// Bytes of the disk that were read.
    pub bytes: u64,
    /// Number of store reads, without reads of the block map.
    pub reads: u64,
    /// Bytes of the disk that were in RAM already.
    pub cached_bytes: u64,
}

impl std::ops::AddAssign for Prefetched {
    fn add_assign(&mut self, other: Prefetched) {
        self.bytes += other.bytes;
        self.reads += other.reads;
        self.cached_bytes += other.cached_bytes;
    }
}

impl Reader {
    /// Loads the nodes of a block map that lead to the `wanted` blocks, all nodes of a level at once.
    pub async fn load_map(&self, image: &Disk, wanted: &[u64]) {
        // Maximum number of rounds. It is more than the levels of a map, because a sparse leaf may also need
        // its base leaf.
        const ROUNDS: usize = 16;
        let end = blocks(image.size());
        let mut leaves: Vec<u64> = wanted.iter().map(|block| block / FANOUT as u64).collect();
        leaves.sort_unstable();
        leaves.dedup();
        for _ in 0..ROUNDS {
            let mut needs: HashMap<u64, NeedNode, BuildU64Hasher> = HashMap::default();
            leaves.retain(|leaf| {
                let mut values = [MapValue::Hole; CHUNK_BLOCKS];
                let chunks = (0..FANOUT as u64).step_by(CHUNK_BLOCKS);
                let tree = image.tree.read();
                let needed = chunks.map(|at| leaf * FANOUT as u64 + at).find_map(|first| {
                    let count = end.saturating_sub(first).min(CHUNK_BLOCKS as u64);
                    let (known, need) =
                        tree.get_range(&self.nodes.cache, first, &mut values[..count as usize]);
                    need.filter(|_| known < count as usize)
                });
                needs.extend(needed.map(|need| (need.at.addr.to_u64(), need)));
                needed.is_some()
            });
            if needs.is_empty() {
                return;
            }
            let needs: Vec<_> = needs.into_values().collect();
            for (need, node) in needs.iter().zip(self.nodes.read_uncached(&needs).await) {
                match node {
                    Ok(node) => self.nodes.cache.insert(need.at, node),
                    Err(e) => return tracing::warn!("cannot prefetch a block map: {e}"),
                }
            }
        }
    }

    /// The references of those `wanted` blocks that are stored and whose map nodes are in RAM.
    pub fn stored_refs(&self, image: &Disk, wanted: &[u64]) -> Vec<BlockRef> {
        let mut stored = Vec::with_capacity(wanted.len());
        for run in wanted.chunk_by(|a, b| *b == a + 1).flat_map(|run| run.chunks(CHUNK_BLOCKS)) {
            let mut values = [MapValue::Hole; CHUNK_BLOCKS];
            let (known, _) = image.tree.read().get_range(&self.nodes.cache, run[0], &mut values[..run.len()]);
            stored.extend(values[..known].iter().filter_map(|value| match value {
                MapValue::At(target) if !is_lost(target) => Some(*target),
                _ => None,
            }));
        }
        stored
    }

    /// Prefetches the blocks of `window`: registers them as being read, sorts them by location, and reads
    /// them. Errors of store reads are logged.
    pub async fn prefetch_window(&self, image: &Disk, window: &[u64]) -> Result<Prefetched> {
        let mut done = Prefetched::default();
        let token = self.source.relocation.enter();
        let mut found: Vec<(Location, usize, Wanted)> = Vec::new();
        for (rank, target) in self.stored_refs(image, window).into_iter().enumerate() {
            if self.cache.contains(target.addr) {
                done.cached_bytes += BLOCK as u64;
                continue;
            }
            let location = match self.source.locate(&token, &target).await {
                Ok(location) => location,
                Err(Error::Store(_) | Error::Damaged(_)) => continue,
                Err(e) => return Err(e),
            };
            // If a guest is reading a block already, the block is left to that read.
            if let MissRole::Leader(leader) = self.misses.enter(target.addr) {
                let owner = Owner::of(image.id());
                let wanted = Wanted { target, gap: None, rank: Rank::High, owner, leader };
                found.push((location, rank, wanted));
            }
        }
        found.sort_by_key(|(location, ..)| (location.object, location.offset));
        let mut runs: Vec<(usize, Run)> = Vec::new();
        for (location, rank, wanted) in found {
            match runs.last_mut() {
                Some((first, run)) if run.spans(&location, GAP, READ_BYTES) && run.len() < READ_BLOCKS => {
                    *first = rank.min(*first);
                    run.push(wanted, location);
                }
                _ => runs.push((rank, Run::new(wanted, location))),
            }
        }
        // The blocks that are needed first are read first.
        runs.sort_by_key(|(first, _)| *first);
        (done.reads, done.bytes) = (runs.len() as u64, 0);
        let mut reads = stream::iter(runs.into_iter().map(|(_, run)| async {
            let bytes = run.len() as u64 * BLOCK as u64;
            self.read_run(run).await.map(|_| bytes)
        }))
        .buffer_unordered(READS);
        while let Some(read) = reads.next().await {
            match read {
                Ok(bytes) => done.bytes += bytes,
                Err(e) => tracing::warn!("cannot prefetch blocks of a boot: {e}"),
            }
        }
        Ok(done)
    }
}
