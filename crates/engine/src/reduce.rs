//! Reduction: what of a group has to be stored, and how.
//!
//! Of each block, in this order: is it all zero (no slot); is it as the disk has it already (nothing at all);
//! is it stored already, in the pool or earlier in the same group (a reference); else it is new, and is
//! compressed if that saves something. This runs after writes to a disk with a volatile cache were acknowledged,
//! on the engine's thread; a flush waits for it, as for the append that it makes shorter.
//!
//! **Unchanged** is judged without a read: the map has the checksum of what is there; only where it is the same
//! is the content compared, with the read cache, or by its fingerprint with the index. A block over a range that
//! the same group zeroes is not unchanged, whatever the map says yet.
//!
//! Blocks of some [classes](crate::classes), such as a page file's, are not looked up, entered in the index or
//! compressed: nobody will ever write the same, and they are written anew before long.

use std::cmp::Reverse;
use std::ops::Range;

use forebay_format::{BLOCK, BlockRef, DiskId, Fingerprint, Form, MapValue, SegmentId, crc32c};
use futures_util::future::join_all;
use hashbrown::HashMap;

use crate::classes::Classifier;
use crate::commit::{Completed, Group};
use crate::damage::is_lost;
use crate::dedup::Fingerprinter;
use crate::log::{Item, Log};
use crate::pool::Pool;
use crate::stored::compress;
use crate::volume::Volume;
use crate::zero::is_zero;

/// Segments whose directories one commit reads at most, for it is waited for: so many, ...
const DIRECTORIES_LEAST: usize = 4;
/// ... and one more for each so many blocks.
const DIRECTORY_FOR: usize = 1024;

/// What becomes of a block.
enum Outcome {
    Zero,
    Unchanged,
    /// Stored already.
    Known(BlockRef),
    /// The same as the `n`th new block of this group.
    Same(usize),
    New(New),
}

/// A block to be stored.
struct New {
    form: Form,
    /// Where in `packed` it is in compressed form; nowhere if it is raw.
    packed: Range<usize>,
    crc: u32,
    fingerprint: Fingerprint,
}

/// What becomes of the blocks of a group, in the order of [`blocks_of`].
pub(crate) struct Reduced {
    outcomes: Vec<Outcome>,
    packed: Vec<u8>,
}

/// A block that is neither zero nor unchanged.
struct Candidate<'a> {
    content: &'a [u8; BLOCK],
    crc: u32,
    /// None where it is not to be deduplicated.
    fingerprint: Option<Fingerprint>,
    compress: bool,
    /// The block that the disk has there now, if the checksum says that it could be the same.
    now: Option<BlockRef>,
    outcome: usize,
}

/// The blocks of a group with their disks, in the order in which they are logged.
fn blocks_of<'a>(
    group: &'a Group,
    completed: &'a Completed,
) -> impl Iterator<Item = (&'a Volume, u64, &'a [u8; BLOCK], bool)> {
    group.frozen.iter().flat_map(move |(volume, buffer)| {
        let blocks = buffer.sorted_blocks().into_iter();
        blocks.filter_map(move |(block, dirty)| {
            let content = match completed.get(&(volume.id(), block)) {
                None => &dirty.page,
                Some(Ok(page)) => page,
                Some(Err(_)) => return None,
            };
            Some((&**volume, block, &**content, buffer.base_is_zero(block)))
        })
    })
}

impl Pool {
    /// Says what becomes of the blocks of a group. The caller holds the log, and goes on holding it until the
    /// group is logged.
    pub(crate) async fn reduce(&self, log: &mut Log, group: &Group, completed: &Completed) -> Reduced {
        let (mut outcomes, mut candidates) = (Vec::new(), Vec::new());
        let mut keys: HashMap<u32, Fingerprinter> = HashMap::new();
        let mut classifier = Classifier::default();
        for (volume, block, content, over_zeroes) in blocks_of(group, completed) {
            classifier.count_written(volume, block);
            let treatment = self.config.classes.of(classifier.of_written(volume, block));
            let now = if over_zeroes { None } else { volume.tree.read().get(&self.nodes, block).ok() };
            if is_zero(content) {
                outcomes.push(if now == Some(MapValue::Zero) { Outcome::Unchanged } else { Outcome::Zero });
                continue;
            }
            let crc = crc32c(content);
            let now = match now {
                Some(MapValue::At(now)) if now.crc == crc && !is_lost(&now) => Some(now),
                _ => None,
            };
            if now.is_some_and(|now| self.is_cached_as(now, content)) {
                outcomes.push(Outcome::Unchanged);
                continue;
            }
            let fingerprint = treatment.dedup.then(|| {
                let key = keys
                    .entry(volume.dedup_domain())
                    .or_insert_with_key(|domain| Fingerprinter::new(&self.fingerprint_key, *domain));
                key.of(content)
            });
            let compress = self.config.compress && treatment.compress;
            let outcome = outcomes.len();
            candidates.push(Candidate { content, crc, fingerprint, compress, now, outcome });
            outcomes.push(Outcome::Unchanged);
        }
        let mut packed = Vec::new();
        let known = self.look_up(log, &candidates).await;
        let (mut new, mut scratch): (HashMap<Fingerprint, usize>, _) = (HashMap::new(), Vec::new());
        let mut stored = 0;
        for (candidate, known) in candidates.into_iter().zip(known) {
            outcomes[candidate.outcome] = match known {
                Some(known) if candidate.now.is_some_and(|now| now.addr == known.addr) => Outcome::Unchanged,
                Some(known) => {
                    log.refer(&known);
                    Outcome::Known(known)
                }
                None => match candidate.fingerprint.and_then(|fingerprint| new.get(&fingerprint)) {
                    Some(first) => Outcome::Same(*first),
                    None => {
                        new.extend(candidate.fingerprint.map(|fingerprint| (fingerprint, stored)));
                        stored += 1;
                        let mut form = Form::RAW_BLOCK;
                        let start = packed.len();
                        if candidate.compress {
                            form = compress(candidate.content, &mut scratch);
                            packed.extend_from_slice(&scratch);
                        }
                        let Candidate { crc, fingerprint, .. } = candidate;
                        // Zero is that of none: the index takes no such fingerprint, and finds none.
                        let fingerprint = fingerprint.unwrap_or_default();
                        Outcome::New(New { form, packed: start..packed.len(), crc, fingerprint })
                    }
                },
            };
        }
        let reduced = Reduced { outcomes, packed };
        self.count(&reduced);
        reduced
    }

    /// Whether the read cache has a block, and it is `content`.
    fn is_cached_as(&self, at: BlockRef, content: &[u8; BLOCK]) -> bool {
        let mut cached = [0; BLOCK];
        self.cache.probe(at.addr, 0, &mut cached) && cached == *content
    }

    /// Looks candidates up in the index; reads directories where that pays. The index may be wrong, since what it was
    /// read back from may be; so a block whose checksum is another one is not taken for the same.
    async fn look_up(&self, log: &Log, candidates: &[Candidate<'_>]) -> Vec<Option<BlockRef>> {
        let usable = |c: &Candidate<'_>, at: &BlockRef| {
            at.crc == c.crc && log.table().contains_key(&at.addr.segment) && !self.is_damaged(at)
        };
        let mut known: Vec<_> = {
            let mut dedup = self.dedup.lock();
            let find = |c: &Candidate<'_>| dedup.find(c.fingerprint.as_ref()?).filter(|at| usable(c, at));
            candidates.iter().map(find).collect()
        };
        if !self.dedup.lock().is_sampled() {
            return known;
        }
        let mut hits: HashMap<SegmentId, Vec<BlockRef>> = HashMap::new();
        known.iter().flatten().for_each(|at| hits.entry(at.addr.segment).or_default().push(*at));
        let mut hits: Vec<_> = hits.into_iter().collect();
        // Those with the most first; then by number, so that a run can be repeated.
        hits.sort_unstable_by_key(|(segment, hits)| (Reverse(hits.len()), *segment));
        let mut chosen = Vec::new();
        for (segment, hits) in hits.into_iter().take(DIRECTORIES_LEAST + candidates.len() / DIRECTORY_FOR) {
            let Some(record) = log.table().get(&segment) else { continue };
            // About as long as its directory: a block is rarely shorter than a quarter.
            let bytes = u64::from(record.written) / 128;
            if log.is_open(segment) || !self.dedup.lock().wants_directory(&hits, bytes) {
                continue;
            }
            chosen.push((segment, hits, record));
        }
        // All at once: flushes wait for this.
        let read = join_all(chosen.iter().map(|(_, _, record)| self.read_directory(record))).await;
        for ((segment, hits, _), directory) in chosen.into_iter().zip(read) {
            match directory {
                Ok(directory) => {
                    let missed = candidates.iter().zip(&mut known).filter(|(_, known)| known.is_none());
                    let missed = missed.filter_map(|(c, known)| Some((c.fingerprint.as_ref()?, known)));
                    self.dedup.lock().search_directory(segment, &directory, &hits, missed);
                }
                Err(e) => tracing::warn!(%segment, "cannot read a directory of fingerprints: {e}"),
            }
        }
        for (candidate, known) in candidates.iter().zip(&mut known) {
            *known = known.filter(|at| usable(candidate, at));
        }
        known
    }

    fn count(&self, reduced: &Reduced) {
        let counters = &self.counters.reduction;
        for outcome in &reduced.outcomes {
            match outcome {
                Outcome::Zero => counters.zero.add(BLOCK as u64),
                Outcome::Unchanged => counters.unchanged.add(BLOCK as u64),
                Outcome::Known(_) | Outcome::Same(_) => counters.duplicate.add(BLOCK as u64),
                Outcome::New(new) => counters.new.add(new.form.stored_len() as u64),
            }
        }
    }

    /// Tells the index what a group has stored. Called when it is durable.
    pub(crate) fn note_stored(&self, items: &[Item<'_>], places: &[BlockRef]) {
        let mut dedup = self.dedup.lock();
        let blocks = items.iter().filter_map(|item| match item {
            Item::Block { fingerprint, .. } => Some(*fingerprint),
            _ => None,
        });
        blocks.zip(places).for_each(|(fingerprint, at)| dedup.insert(fingerprint, *at));
    }
}

/// A group as items of the log: of each disk zeroed ranges, then blocks; then changes to the catalogue.
pub(crate) fn items<'a>(group: &'a Group, completed: &'a Completed, reduced: &'a Reduced) -> Vec<Item<'a>> {
    let mut items = Vec::new();
    let mut outcomes = reduced.outcomes.iter();
    let mut blocks = blocks_of(group, completed).peekable();
    for (volume, buffer) in &group.frozen {
        let disk = volume.id();
        items.extend(buffer.zeroes().map(|(range, allocated)| Item::Zero {
            disk,
            block: range.start,
            count: range.end - range.start,
            allocated,
        }));
        while let Some((_, block, content, _)) = blocks.next_if(|(of, ..)| of.id() == disk)
            && let Some(outcome) = outcomes.next()
        {
            push(&mut items, disk, block, content, outcome, &reduced.packed);
        }
        for (block, _) in buffer.partial_blocks() {
            if let Some(Err(lost)) = completed.get(&(disk, block)) {
                items.push(Item::Reference { disk, block, target: *lost });
            }
        }
    }
    items.extend(group.ops.iter().flat_map(|p| &p.ops).map(Item::Op));
    items
}

fn push<'a>(
    items: &mut Vec<Item<'a>>,
    disk: DiskId,
    block: u64,
    content: &'a [u8; BLOCK],
    outcome: &Outcome,
    packed: &'a [u8],
) {
    match *outcome {
        Outcome::Unchanged => {}
        Outcome::Zero => match items.last_mut() {
            // What is zeroed piece by piece is one range.
            Some(Item::Zero { disk: d, block: first, count, allocated: true })
                if *d == disk && *first + *count == block =>
            {
                *count += 1;
            }
            _ => items.push(Item::Zero { disk, block, count: 1, allocated: true }),
        },
        Outcome::Known(target) => items.push(Item::Reference { disk, block, target }),
        Outcome::Same(first) => items.push(Item::Same { disk, block, first }),
        Outcome::New(New { form, packed: ref range, crc, fingerprint }) => {
            let stored = if range.is_empty() { &content[..] } else { &packed[range.clone()] };
            items.push(Item::Block { disk, block, content, stored, form, crc, fingerprint });
        }
    }
}
