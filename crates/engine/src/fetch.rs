//! Misses: what the store is asked for, once, however many readers wait for it.

use std::ops::Range;
use std::sync::Arc;

use forebay_format::{BLOCK, BlockRef, Codec, Form, FormatError, MapValue, SegmentId, crc32c};
use forebay_store::{IoBuf, Store};
use futures_util::future::join_all;

use crate::cache::{Leader, Rank, Turn};
use crate::classes::Classifier;
use crate::damage::is_lost;
use crate::limits::{AHEAD_GAP, BATCH_BYTES, CHUNK_BLOCKS};
use crate::map::{NeedNode, Node};
use crate::places::{Located, View};
use crate::pool::Pool;
use crate::read::{Gap, How};
use crate::stored::{unpack, unpack_group};
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

/// A block to be read: its reference, who waits for it here (an index into the gaps), what it is worth to the cache, and
/// the duty to tell others.
pub(crate) struct Wanted {
    pub target: BlockRef,
    pub gap: Option<usize>,
    pub rank: Rank,
    pub leader: Leader<Fetched>,
}

/// Blocks that one store read serves, in the order in which they rest.
pub(crate) struct Run {
    wanted: Vec<Wanted>,
    places: Vec<Located>,
}

impl Run {
    pub fn new(wanted: Wanted, place: Located) -> Run {
        Run { wanted: vec![wanted], places: vec![place] }
    }

    /// Blocks.
    pub fn len(&self) -> usize {
        self.wanted.len()
    }

    /// Whether a place is behind the last one, over no more than `gap` bytes that nobody asked for, and the read would
    /// be of no more than `most` bytes.
    pub fn spans(&self, place: &Located, gap: u64, most: u64) -> bool {
        self.places.first().zip(self.places.last()).is_some_and(|(first, last)| {
            let behind = place.offset >= last.offset + last.len as u64 || last.leads_to(place);
            let end = place.offset + place.len as u64;
            place.object == last.object
                && behind
                && place.offset <= last.offset + last.len as u64 + gap
                && end - first.offset <= most
        })
    }

    pub fn push(&mut self, wanted: Wanted, place: Located) {
        self.wanted.push(wanted);
        self.places.push(place);
    }
}

impl Pool {
    /// Reads what `gaps` name into `out`, and up to `ahead` bytes behind the last into the cache.
    pub(crate) async fn fill_gaps(
        &self,
        volume: &Volume,
        gaps: Vec<Gap>,
        out: &mut [u8],
        ahead: u64,
        how: How,
    ) -> Result<()> {
        let mut classifier = Classifier::default();
        let mut todo: Vec<usize> = (0..gaps.len()).collect();
        let mut ahead = ahead;
        while !todo.is_empty() {
            let mut followed = Vec::new();
            let mut runs: Vec<Run> = Vec::new();
            let view = self.places.view();
            for i in std::mem::take(&mut todo) {
                let gap = &gaps[i];
                match self.misses.enter(gap.target.addr) {
                    Turn::Follower(f) => followed.push((i, f)),
                    Turn::Leader(leader) => {
                        let mut block = [0; BLOCK];
                        if self.cache.probe(gap.target.addr, 0, &mut block) {
                            gap.fill(&block, out);
                        } else {
                            let place = self.locate(&view, &gap.target).await?;
                            let rank = match how {
                                How::Unseen => Rank::Never,
                                _ => self.rank(classifier.of(volume, gap.block)),
                            };
                            let (target, gap) = (gap.target, Some(i));
                            push(&mut runs, Wanted { target, gap, rank, leader }, place);
                        }
                    }
                }
            }
            if let Some(last) = runs.last_mut() {
                self.extend(volume, &view, last, &gaps, std::mem::take(&mut ahead), &mut classifier);
            }
            for done in join_all(runs.into_iter().map(|run| self.read_run(run))).await {
                for (gap, fetched) in done? {
                    gaps[gap].fill(fetched.content(), out);
                }
            }
            drop(view);
            for (i, follower) in followed {
                match follower.await {
                    Some(fetched) => gaps[i].fill(fetched.content(), out),
                    None => todo.push(i),
                }
            }
        }
        Ok(())
    }

    /// Adds blocks to a run that follow its last one both on the disk and on the store. Some that somebody has already
    /// may lie in between.
    fn extend(
        &self,
        volume: &Volume,
        view: &View,
        run: &mut Run,
        gaps: &[Gap],
        ahead: u64,
        classifier: &mut Classifier,
    ) {
        let Some(mut block) = run.wanted.last().and_then(|w| w.gap).map(|g| gaps[g].block + 1) else {
            return;
        };
        let end = crate::volume::blocks(volume.size());
        let mut left = (ahead / BLOCK as u64).min(end.saturating_sub(block)) as usize;
        while left > 0 {
            let mut values = [MapValue::Hole; CHUNK_BLOCKS];
            let values = &mut values[..left.min(CHUNK_BLOCKS)];
            let (known, _) = volume.tree.read().get_range(&self.nodes, block, values);
            for (block, value) in (block..).zip(&values[..known]) {
                let MapValue::At(target) = *value else { return };
                if is_lost(&target) {
                    return;
                }
                let Some(place) = self.try_locate(view, &target) else { return };
                if run.len() * BLOCK >= BATCH_BYTES || !run.spans(&place, AHEAD_GAP, BATCH_BYTES as u64) {
                    return;
                }
                // The first use of what is read ahead is no second one: else whoever reads all of a disk in order would
                // push out what is used often. But what one desktop has read ahead, others of its fleet want next.
                let rank = match self.rank(classifier.of(volume, block)) {
                    Rank::Normal if !volume.is_desktop() => Rank::Low,
                    other => other,
                };
                if rank == Rank::Never || self.cache.contains(target.addr) {
                    continue;
                }
                if let Turn::Leader(leader) = self.misses.enter(target.addr) {
                    run.push(Wanted { target, gap: None, rank, leader }, place);
                }
            }
            if known < values.len() {
                return;
            }
            block += known as u64;
            left -= known;
        }
    }

    /// Reads a run with one store read; verifies, caches, and tells the followers.
    pub(crate) async fn read_run(&self, run: Run) -> Result<Vec<(usize, Fetched)>> {
        let Some((first, last)) = run.places.first().zip(run.places.last()) else { return Ok(Vec::new()) };
        let len = last.offset + last.len as u64 - first.offset;
        let stored = self.read_exact(first.object, first.offset, len as usize).await?;
        let (buf, sound) = plain(&run.places, stored);
        let buf = Arc::new(buf);
        let mut waiting = Vec::new();
        let mut damaged = None;
        for (i, (wanted, sound)) in run.wanted.into_iter().zip(sound).enumerate() {
            let (fetched, place) = (Fetched { run: buf.clone(), at: i * BLOCK }, &run.places[i]);
            if !sound || crc32c(fetched.content()) != wanted.target.crc {
                self.count_damage(place.object, place.offset);
                self.note_damaged(&wanted.target);
                // A block that was only read ahead is no one's error yet.
                if wanted.gap.is_some() {
                    damaged = Some(damage(place.object, place.offset));
                }
                continue;
            }
            self.cache.insert_as(wanted.target.addr, fetched.content(), wanted.rank);
            waiting.extend(wanted.gap.map(|gap| (gap, fetched.clone())));
            wanted.leader.complete(fetched);
        }
        match damaged {
            Some(damage) => Err(damage),
            None => Ok(waiting),
        }
    }

    /// Reads `len` bytes, all of them, at an offset of an object that need not be aligned.
    pub(crate) async fn read_exact(&self, object: SegmentId, offset: u64, len: usize) -> Result<IoBuf> {
        let Range { start, end } = offset..offset + len as u64;
        let from = start / IoBuf::ALIGN as u64 * IoBuf::ALIGN as u64;
        let until = end.next_multiple_of(IoBuf::ALIGN as u64);
        let mut buf = self.store.read(object, from, (until - from) as usize).await?;
        if from + (buf.len() as u64) < end {
            self.count_damage(object, offset);
            return Err(damage(object, offset));
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
                    let node = need.accept(&self.read_node_bytes(&need.at).await?)?;
                    self.nodes.insert(need.at, node.clone());
                    leader.complete(());
                    return Ok(node);
                }
                // What the leader found may not be fit for what is needed here; so it is looked up again.
                Turn::Follower(f) => drop(f.await),
            }
        }
    }

    /// The bytes of a stored node, verified.
    async fn read_node_bytes(&self, at: &BlockRef) -> Result<IoBuf> {
        let view = self.places.view();
        let place = self.locate(&view, at).await?;
        let bytes = self.read_exact(place.object, place.offset, place.len).await?;
        self.verify_node(at, &place, &bytes)?;
        Ok(bytes)
    }

    /// An error if `bytes`, which rest at `place`, are not the node that was stored.
    pub(crate) fn verify_node(&self, at: &BlockRef, place: &Located, bytes: &[u8]) -> Result<()> {
        if at.form.of_node().is_none() || place.form != at.form {
            return Err(FormatError::Value { what: "map node reference", field: "form" }.into());
        }
        if crc32c(bytes) != at.crc {
            self.count_damage(place.object, place.offset);
            return Err(damage(place.object, place.offset));
        }
        Ok(())
    }

    pub(crate) fn count_damage(&self, object: SegmentId, offset: u64) {
        self.counters.damaged.add(BLOCK as u64);
        tracing::error!(segment = %object, offset, "damaged data on the store");
    }
}

/// The error for bytes that are not what was written.
pub(crate) fn damage(object: SegmentId, offset: u64) -> Error {
    Error::Damaged(format!("segment {object}, offset {offset}"))
}

/// Whether a run of places can take another.
pub(crate) fn extends(run: &[Located], place: &Located) -> bool {
    run.last().is_some_and(|last| last.leads_to(place)) && (run.len() + 1) * BLOCK <= BATCH_BYTES
}

/// The plain blocks of a run of places, one behind the other, and of each whether it could be unpacked. `stored` are
/// the bytes from the first place to the end of the last.
pub(crate) fn plain(run: &[Located], stored: IoBuf) -> (IoBuf, Vec<bool>) {
    if stored.len() == run.len() * BLOCK && run.iter().all(|place| place.form == Form::RAW_BLOCK) {
        return (stored, vec![true; run.len()]);
    }
    let mut blocks = IoBuf::with_capacity(run.len() * BLOCK);
    blocks.set_len(run.len() * BLOCK);
    let start = run.first().map_or(0, |place| place.offset);
    let mut group: Option<(u64, Option<Vec<u8>>)> = None;
    let unpack = |(place, out): (&Located, &mut [u8])| {
        let Ok(out) = <&mut [u8; BLOCK]>::try_from(out) else { return false };
        let bytes = &stored[(place.offset - start) as usize..][..place.len];
        if place.form.codec() != Some(Codec::ZstdGroup) {
            return unpack(place.form, bytes, out).is_ok();
        }
        if group.as_ref().is_none_or(|(at, _)| *at != place.offset) {
            group = Some((place.offset, unpack_group(bytes).ok()));
        }
        match &group {
            Some((_, Some(blocks))) => member(blocks, place.form, out),
            _ => false,
        }
    };
    let sound = run.iter().zip(blocks.chunks_exact_mut(BLOCK)).map(unpack).collect();
    (blocks, sound)
}

/// Copies the member that `form` names out of an unpacked group; false where there is none.
fn member(blocks: &[u8], form: Form, out: &mut [u8; BLOCK]) -> bool {
    let block = blocks.chunks_exact(BLOCK).nth(form.member_number().into());
    block.map(|block| out.copy_from_slice(block)).is_some()
}

fn push(runs: &mut Vec<Run>, wanted: Wanted, place: Located) {
    match runs.last_mut() {
        Some(run) if extends(&run.places, &place) => run.push(wanted, place),
        _ => runs.push(Run::new(wanted, place)),
    }
}
