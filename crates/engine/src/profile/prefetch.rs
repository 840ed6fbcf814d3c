//! Prefetching a boot profile: much of an image in few large reads.

use forebay_format::{BLOCK, BlockRef, FANOUT, MapValue};
use futures_util::StreamExt as _;
use futures_util::stream;
use hashbrown::HashMap;
use serde::Serialize;
use tokio::task::yield_now;

use super::Profile;
use crate::cache::{Rank, Turn};
use crate::damage::is_lost;
use crate::fetch::{Run, Wanted};
use crate::hash::BuildU64Hasher;
use crate::limits::CHUNK_BLOCKS;
use crate::map::NeedNode;
use crate::places::Located;
use crate::pool::Pool;
use crate::volume::{Volume, blocks};
use crate::{Error, Result};

/// Blocks that are announced, sorted and read together: 512 MiB, so most boots as a whole. What a boot reads one after
/// the other rests far apart: of smaller windows each would be many reads. A guest may wait for all of it, some seconds
/// of a slow disk at the very beginning of its boot.
const WINDOW: usize = 1 << 17;
/// Blocks of one read: what is unpacked before other tasks have their turn. And how many reads are under way at once.
const READ_BLOCKS: usize = 1024;
const READS: usize = 4;
/// Bytes of one read as they are stored.
const READ_BYTES: u64 = 4 << 20;
/// So much may lie between two blocks that are read together: a disk passes over it sooner than it moves its head.
const GAP: u64 = 1 << 20;

/// What a prefetch did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Prefetched {
    /// Bytes of the disk that were read.
    pub bytes: u64,
    /// Reads of the store that it took, but for those of the block map.
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

impl Pool {
    /// Prefetches as much of a profile as is worth keeping in the read cache, unless that is under way or was just
    /// done. What cannot be read is left to those who need it, and to their errors.
    pub(super) async fn prefetch_profile(
        &self,
        image: &Volume,
        profile: &Profile,
        asked: bool,
    ) -> Prefetched {
        let mut done = Prefetched::default();
        // The rest of the cache is for what this boot does not share with the first one.
        let budget = self.cache.stats().budget / 4 * 3 / BLOCK as u64;
        if budget == 0 || !self.profiles.begin_prefetch(image.id(), self.host.now(), asked) {
            return done;
        }
        let _done = Done { pool: self, image };
        let mut left = budget.min(profile.blocks()) as usize;
        let end = blocks(image.size());
        let runs = profile.runs.iter().map(|run| run.start.min(end)..run.end.min(end));
        let wanted: Vec<u64> = runs.flatten().take(left).collect();
        self.load_map(image, &wanted).await;
        for window in wanted.chunks(WINDOW) {
            if left == 0 || self.check_running().is_err() {
                break;
            }
            left -= window.len();
            match self.prefetch_window(image, window).await {
                Ok(window) => done += window,
                Err(e) => tracing::warn!(image = %image.record().name, "prefetching its boot: {e}"),
            }
            yield_now().await;
        }
        let Prefetched { bytes, reads, cached_bytes } = done;
        if bytes > 0 {
            tracing::info!(image = %image.record().name, bytes, reads, cached_bytes, "boot prefetched");
        }
        done
    }

    /// Brings what of a block map leads to blocks into RAM, all of a level at once.
    async fn load_map(&self, image: &Volume, wanted: &[u64]) {
        // More levels than a map has; sparse leaves stand on another one.
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
                    let (known, need) = tree.get_range(&self.nodes, first, &mut values[..count as usize]);
                    need.filter(|_| known < count as usize)
                });
                needs.extend(needed.map(|need| (need.at.addr.to_u64(), need)));
                needed.is_some()
            });
            if needs.is_empty() {
                return;
            }
            let needs: Vec<_> = needs.into_values().collect();
            for (need, node) in needs.iter().zip(self.pass_nodes(&needs).await) {
                match node {
                    Ok(node) => self.nodes.insert(need.at, node),
                    Err(e) => return tracing::warn!("prefetching a block map: {e}"),
                }
            }
        }
    }

    /// What the map says of blocks, of those that it can tell of at once.
    fn stored(&self, image: &Volume, wanted: &[u64]) -> Vec<BlockRef> {
        let mut stored = Vec::with_capacity(wanted.len());
        for run in wanted.chunk_by(|a, b| *b == a + 1).flat_map(|run| run.chunks(CHUNK_BLOCKS)) {
            let mut values = [MapValue::Hole; CHUNK_BLOCKS];
            let (known, _) = image.tree.read().get_range(&self.nodes, run[0], &mut values[..run.len()]);
            stored.extend(values[..known].iter().filter_map(|value| match value {
                MapValue::At(target) if !is_lost(target) => Some(*target),
                _ => None,
            }));
        }
        stored
    }

    /// Blocks of a profile that are cached now, as far as the map can be asked without waiting.
    pub(super) async fn cached_of(&self, image: &Volume, profile: &Profile) -> Result<u64> {
        let mut cached = 0;
        for window in profile.runs.iter().cloned().flatten().collect::<Vec<_>>().chunks(WINDOW) {
            let stored = self.stored(image, window);
            cached += stored.iter().filter(|at| self.cache.contains(at.addr)).count() as u64;
            yield_now().await;
        }
        Ok(cached)
    }

    /// Announces, sorts and reads.
    async fn prefetch_window(&self, image: &Volume, window: &[u64]) -> Result<Prefetched> {
        let mut done = Prefetched::default();
        let view = self.places.view();
        let mut found: Vec<(Located, usize, Wanted)> = Vec::new();
        for (rank, target) in self.stored(image, window).into_iter().enumerate() {
            if self.cache.contains(target.addr) {
                done.cached_bytes += BLOCK as u64;
                continue;
            }
            let place = match self.locate(&view, &target).await {
                Ok(place) => place,
                Err(Error::Store(_) | Error::Damaged(_)) => continue,
                Err(e) => return Err(e),
            };
            // Where a guest is reading it already, it is for the guest.
            if let Turn::Leader(leader) = self.misses.enter(target.addr) {
                found.push((place, rank, Wanted { target, gap: None, rank: Rank::High, leader }));
            }
        }
        found.sort_by_key(|(place, ..)| (place.object, place.offset));
        let mut runs: Vec<(usize, Run)> = Vec::new();
        for (place, rank, wanted) in found {
            match runs.last_mut() {
                Some((first, run)) if run.spans(&place, GAP, READ_BYTES) && run.len() < READ_BLOCKS => {
                    *first = rank.min(*first);
                    run.push(wanted, place);
                }
                _ => runs.push((rank, Run::new(wanted, place))),
            }
        }
        // What is needed first comes first.
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
                Err(e) => tracing::warn!("prefetching a boot: {e}"),
            }
        }
        Ok(done)
    }
}

/// Notes when a prefetch ends, however it does.
struct Done<'a> {
    pool: &'a Pool,
    image: &'a Volume,
}

impl Drop for Done<'_> {
    fn drop(&mut self) {
        let now = self.pool.host.now();
        self.pool.profiles.prefetched.lock().insert(self.image.id(), Some(now));
    }
}
