//! Misses: what the store is asked for, once, however many readers wait for it.

use std::ops::Range;
use std::sync::Arc;

use forebay_format::{Address, BLOCK, BlockRef, Codec, Form, FormatError, MapValue, Slot, crc32c};
use forebay_store::{IoBuf, Store};
use futures_util::future::join_all;

use crate::cache::{Leader, Turn};
use crate::limits::{BATCH_BYTES, CHUNK_BLOCKS};
use crate::map::{NeedNode, Node};
use crate::pool::Pool;
use crate::read::Gap;
use crate::volume::Volume;
use crate::{Error, Result};

/// A block that a leader has read: the buffer of its run, and where in it the block begins.
#[derive(Clone)]
pub(crate) struct Fetched {
    run: Arc<IoBuf>,
    at: usize,
}

impl Fetched {
    fn content(&self) -> &[u8; BLOCK] {
        self.run[self.at..].first_chunk().expect("a fetched block lies whole in its run")
    }
}

/// A block to be read: its reference, who waits for it here (an index into the gaps), and the duty to tell others.
struct Wanted {
    target: BlockRef,
    gap: Option<usize>,
    leader: Leader<Fetched>,
}

/// Blocks that lie one behind the other on the store.
type Run = Vec<Wanted>;

impl Pool {
    /// Reads what `gaps` name into `out`, and up to `ahead` bytes behind the last into the cache.
    pub(crate) async fn fill_gaps(
        &self,
        volume: &Volume,
        gaps: Vec<Gap>,
        out: &mut [u8],
        ahead: u64,
    ) -> Result<()> {
        let mut todo: Vec<usize> = (0..gaps.len()).collect();
        let mut ahead = ahead;
        while !todo.is_empty() {
            let mut followed = Vec::new();
            let mut runs: Vec<Run> = Vec::new();
            for i in std::mem::take(&mut todo) {
                let gap = &gaps[i];
                match self.misses.enter(gap.target.addr) {
                    Turn::Follower(f) => followed.push((i, f)),
                    Turn::Leader(leader) => {
                        let mut block = [0; BLOCK];
                        if self.cache.probe(gap.target.addr, 0, &mut block) {
                            gap.fill(&block, out);
                        } else {
                            push(&mut runs, Wanted { target: gap.target, gap: Some(i), leader });
                        }
                    }
                }
            }
            if let Some(last) = runs.last_mut() {
                self.extend(volume, last, &gaps, std::mem::take(&mut ahead));
            }
            for done in join_all(runs.into_iter().map(|run| self.read_run(run))).await {
                for (gap, fetched) in done? {
                    gaps[gap].fill(fetched.content(), out);
                }
            }
            for (i, follower) in followed {
                match follower.await {
                    Some(fetched) => gaps[i].fill(fetched.content(), out),
                    None => todo.push(i),
                }
            }
        }
        Ok(())
    }

    /// Adds blocks to a run that follow its last one both on the disk and on the store, and that nobody has.
    fn extend(&self, volume: &Volume, run: &mut Run, gaps: &[Gap], ahead: u64) {
        let Some(mut block) = run.last().and_then(|w| w.gap).map(|g| gaps[g].block + 1) else { return };
        let end = crate::volume::blocks(volume.size());
        let mut left = (ahead / BLOCK as u64).min(end.saturating_sub(block)) as usize;
        while left > 0 {
            let mut values = [MapValue::Hole; CHUNK_BLOCKS];
            let values = &mut values[..left.min(CHUNK_BLOCKS)];
            let (known, _) = volume.tree.read().get_range(&self.nodes, block, values);
            for value in &values[..known] {
                let MapValue::At(target) = *value else { return };
                if !extends(run, &target) || self.cache.contains(target.addr) {
                    return;
                }
                let Turn::Leader(leader) = self.misses.enter(target.addr) else { return };
                run.push(Wanted { target, gap: None, leader });
            }
            if known < values.len() {
                return;
            }
            block += known as u64;
            left -= known;
        }
    }

    /// Reads a run with one store read; verifies, caches, and tells the followers.
    async fn read_run(&self, run: Run) -> Result<Vec<(usize, Fetched)>> {
        let Some(first) = run.first().map(|w| w.target.addr) else { return Ok(Vec::new()) };
        if run.iter().any(|w| w.target.form != Form::RAW_BLOCK) {
            return Err(FormatError::Value { what: "block reference", field: "form" }.into());
        }
        let start = first.slot.offset();
        let buf = Arc::new(self.read_exact(first, start, run.len() * BLOCK).await?);
        let mut waiting = Vec::new();
        let mut damaged = None;
        for (i, wanted) in run.into_iter().enumerate() {
            let fetched = Fetched { run: buf.clone(), at: i * BLOCK };
            if crc32c(fetched.content()) != wanted.target.crc {
                self.count_damage(wanted.target.addr);
                // A block that was only read ahead is no one's error yet.
                if wanted.gap.is_some() {
                    damaged = Some(wanted.target.addr);
                }
                continue;
            }
            self.cache.insert(wanted.target.addr, fetched.content());
            waiting.extend(wanted.gap.map(|gap| (gap, fetched.clone())));
            wanted.leader.complete(fetched);
        }
        match damaged {
            Some(addr) => Err(damage(addr)),
            None => Ok(waiting),
        }
    }

    /// Reads `len` bytes, all of them, at an offset of a segment that need not be aligned.
    pub(crate) async fn read_exact(&self, addr: Address, offset: u64, len: usize) -> Result<IoBuf> {
        let Range { start, end } = offset..offset + len as u64;
        let from = start / IoBuf::ALIGN as u64 * IoBuf::ALIGN as u64;
        let until = end.next_multiple_of(IoBuf::ALIGN as u64);
        let mut buf = self.store.read(addr.segment, from, (until - from) as usize).await?;
        if from + (buf.len() as u64) < end {
            self.count_damage(addr);
            return Err(damage(addr));
        }
        let skip = (start - from) as usize;
        if skip > 0 {
            buf.copy_within(skip..skip + len, 0);
        }
        buf.set_len(len);
        Ok(buf)
    }

    /// Brings a node of a block map into RAM; one read, however many wait for it.
    pub(crate) async fn load_node(&self, need: NeedNode) -> Result<Node> {
        loop {
            if let Some(node) = self.nodes.find(need) {
                return Ok(node);
            }
            match self.node_misses.enter(need.at.addr) {
                Turn::Leader(leader) => {
                    let node = self.read_node(need).await?;
                    self.nodes.insert(need.at, node.clone());
                    leader.complete(());
                    return Ok(node);
                }
                // What the leader found may not be fit for what is needed here; so it is looked up again.
                Turn::Follower(f) => drop(f.await),
            }
        }
    }

    async fn read_node(&self, need: NeedNode) -> Result<Node> {
        let BlockRef { addr, form, crc } = need.at;
        if form.codec() != Some(Codec::Raw) {
            return Err(FormatError::Value { what: "map node reference", field: "form" }.into());
        }
        let bytes = self.read_exact(addr, addr.slot.offset(), form.stored_len()).await?;
        if crc32c(&bytes) != crc {
            self.count_damage(addr);
            return Err(damage(addr));
        }
        Ok(need.accept(&bytes)?)
    }

    fn count_damage(&self, addr: Address) {
        self.counters.damaged.add(BLOCK as u64);
        tracing::error!(segment = %addr.segment, slot = addr.slot.0, "damaged data on the store");
    }
}

/// The error for bytes that are not what was written.
pub(crate) fn damage(addr: Address) -> Error {
    Error::Damaged(format!("segment {}, offset {}", addr.segment, addr.slot.offset()))
}

/// Whether `next` lies right behind `block` on the store, both as they are.
pub(crate) fn follows(block: &BlockRef, next: &BlockRef) -> bool {
    block.form == Form::RAW_BLOCK
        && next.form == Form::RAW_BLOCK
        && next.addr.segment == block.addr.segment
        && next.addr.slot.0 as usize == block.addr.slot.0 as usize + BLOCK / Slot::UNIT
}

/// Whether a run can take a block.
fn extends(run: &Run, target: &BlockRef) -> bool {
    run.last().is_some_and(|last| follows(&last.target, target)) && (run.len() + 1) * BLOCK <= BATCH_BYTES
}

fn push(runs: &mut Vec<Run>, wanted: Wanted) {
    match runs.last_mut() {
        Some(run) if extends(run, &wanted.target) => run.push(wanted),
        _ => runs.push(vec![wanted]),
    }
}
