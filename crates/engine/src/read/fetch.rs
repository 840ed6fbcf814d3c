//! Cache misses: each block is read from the store once, even if several readers wait for it.

use std::sync::Arc;

use forebay_format::{BLOCK, MapValue, crc32c};
use futures_util::future::join_all;

use super::gap::{Gap, ReadMode};
use super::reader::Reader;
use super::relocation::Token;
use super::run::{Fetched, Run, Wanted, push, unpack_run};
use super::store::damage;
use crate::block_classes::Classifier;
use crate::cache::{MissRole, Owner, Rank};
use crate::disk::Disk;
use crate::limits::{AHEAD_GAP, BATCH_BYTES, CHUNK_BLOCKS};
use crate::lost::is_lost;
use crate::{Error, Result};

impl Reader {
    /// Reads the blocks of `gaps` into `out`, and up to `ahead` bytes after the last block into the cache.
    /// Returns whether this call read the store itself, rather than waiting for other reads.
    pub async fn fill_gaps(
        &self,
        disk: &Disk,
        gaps: Vec<Gap>,
        out: &mut [u8],
        ahead: u64,
        mode: ReadMode,
    ) -> Result<bool> {
        let mut has_read = false;
        let mut classifier = Classifier::default();
        let mut todo: Vec<usize> = (0..gaps.len()).collect();
        let mut ahead = ahead;
        while !todo.is_empty() {
            let mut followed = Vec::new();
            let mut runs: Vec<Run> = Vec::new();
            let token = self.source.relocation.enter();
            for i in std::mem::take(&mut todo) {
                let gap = &gaps[i];
                match self.misses.enter(gap.target.addr) {
                    MissRole::Follower(f) => followed.push((i, f)),
                    MissRole::Leader(leader) => {
                        if !self.fill_from_cache(disk, gap, out) {
                            let location = self.source.locate(&token, &gap.target).await?;
                            let rank = match mode.is_internal() {
                                true => Rank::Never,
                                false => self.rank(classifier.of(disk.id(), &disk.classes, gap.block)),
                            };
                            let (target, gap, owner) = (gap.target, Some(i), Owner::of(disk.id()));
                            push(&mut runs, Wanted { target, gap, rank, owner, leader }, location);
                        }
                    }
                }
            }
            if let Some(last) = runs.last_mut() {
                self.extend(disk, &token, last, &gaps, std::mem::take(&mut ahead), &mut classifier);
            }
            has_read |= !runs.is_empty();
            for done in join_all(runs.into_iter().map(|run| self.read_run(run))).await {
                for (gap, fetched) in done? {
                    gaps[gap].fill(fetched.content(), out);
                }
            }
            drop(token);
            for (i, follower) in followed {
                match follower.await {
                    Some(fetched) => gaps[i].fill(fetched.content(), out),
                    None => todo.push(i),
                }
            }
        }
        Ok(has_read)
    }

    /// Fills a gap if its block is cached. This is a separate function, so that the future of the caller does
    /// not contain the block.
    fn fill_from_cache(&self, disk: &Disk, gap: &Gap, out: &mut [u8]) -> bool {
        let mut block = [0; BLOCK];
        let is_cached = self.cache.probe(gap.target.addr, 0, &mut block, Owner::of(disk.id()));
        if is_cached {
            gap.fill(&block, out);
        }
        is_cached
    }

    /// Adds blocks that follow the last block of a run both on the disk and in the store. Blocks among them
    /// that are cached, or that another reader is fetching, are skipped.
    fn extend(
        &self,
        disk: &Disk,
        token: &Token,
        run: &mut Run,
        gaps: &[Gap],
        ahead: u64,
        classifier: &mut Classifier,
    ) {
        let Some(mut block) = run.wanted.last().and_then(|w| w.gap).map(|g| gaps[g].block + 1) else {
            return;
        };
        let end = crate::disk::blocks(disk.size());
        let mut left = (ahead / BLOCK as u64).min(end.saturating_sub(block)) as usize;
        while left > 0 {
            let mut values = [MapValue::Hole; CHUNK_BLOCKS];
            let values = &mut values[..left.min(CHUNK_BLOCKS)];
            let (known, _) = disk.tree.read().get_range(&self.nodes.cache, block, values);
            for (block, value) in (block..).zip(&values[..known]) {
                let MapValue::At(target) = *value else { return };
                if is_lost(&target) {
                    return;
                }
                let Some(location) = self.source.locate_cached(token, &target) else { return };
                if run.len() * BLOCK >= BATCH_BYTES || !run.spans(&location, AHEAD_GAP, BATCH_BYTES as u64) {
                    return;
                }
                let rank = self.rank_ahead(disk, classifier, block);
                if rank == Rank::Never || self.cache.contains(target.addr) {
                    continue;
                }
                if let MissRole::Leader(leader) = self.misses.enter(target.addr) {
                    let owner = Owner::of(disk.id());
                    run.push(Wanted { target, gap: None, rank, owner, leader }, location);
                }
            }
            if known < values.len() {
                return;
            }
            block += known as u64;
            left -= known;
        }
    }

    /// The rank of a block that is read ahead. Reading ahead counts as its first use, so that the read which
    /// follows is not a second use: otherwise, reading a disk sequentially would evict frequently used
    /// blocks. Desktops are exempt: the next clones of the same image will read the same blocks.
    pub(super) fn rank_ahead(&self, disk: &Disk, classifier: &mut Classifier, block: u64) -> Rank {
        match self.rank(classifier.of(disk.id(), &disk.classes, block)) {
            Rank::Normal if !disk.is_desktop() => Rank::Low,
            other => other,
        }
    }

    /// Records the requested blocks of a run as damaged if the medium cannot read them. If such a block is
    /// written again with the same content, it is then stored again.
    fn record_unreadable(&self, run: &Run, why: &Error) {
        if matches!(why, Error::Store(why) if why.concerns_one_place()) {
            let requested = run.wanted.iter().filter(|wanted| wanted.gap.is_some());
            requested.for_each(|wanted| self.source.record_damaged(&wanted.target));
        }
    }

    /// Reads a run with one store read, verifies and caches its blocks, and passes them to the followers.
    /// Returns the blocks that fill a gap, with the index of that gap. Damage to other blocks is not
    /// reported: a reader that requests one reads it again.
    pub async fn read_run(&self, run: Run) -> Result<Vec<(usize, Fetched)>> {
        let Some((first, last)) = run.locations.first().zip(run.locations.last()) else {
            return Ok(Vec::new());
        };
        let len = last.offset + last.len as u64 - first.offset;
        let stored = match run.wanted.iter().any(|wanted| wanted.gap.is_some()) {
            true => {
                let read = self.source.read_exact(first.object, first.offset, len as usize).await;
                read.inspect_err(|e| self.record_unreadable(&run, e))?
            }
            false => match self.source.read_if_whole(first.object, first.offset, len as usize).await? {
                Some(stored) => stored,
                None => return Ok(Vec::new()),
            },
        };
        let (buf, sound) = unpack_run(&run.locations, stored);
        let buf = Arc::new(buf);
        let mut waiting = Vec::new();
        let mut damaged = None;
        for (i, (wanted, sound)) in run.wanted.into_iter().zip(sound).enumerate() {
            let (fetched, location) = (Fetched { run: buf.clone(), at: i * BLOCK }, &run.locations[i]);
            if !sound || crc32c(fetched.content()) != wanted.target.crc {
                if wanted.gap.is_some() {
                    self.source.count_damage(location.object, location.offset);
                    self.source.record_damaged(&wanted.target);
                    damaged = Some(damage(location.object, location.offset));
                }
                continue;
            }
            self.cache.insert_as(wanted.target.addr, fetched.content(), wanted.rank, wanted.owner);
            waiting.extend(wanted.gap.map(|gap| (gap, fetched.clone())));
            wanted.leader.complete(fetched);
        }
        match damaged {
            Some(damage) => Err(damage),
            None => Ok(waiting),
        }
    }
}
