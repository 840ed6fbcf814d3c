//! Data reduction: decides which blocks of a group are stored, and in which form.
//!
//! For each block, in this order: a block of zeroes needs no slot; a block that the disk has already
//! (*unchanged*) needs nothing; a block that is stored already, in the pool or earlier in the same group,
//! becomes a reference; any other block is new, and is compressed if that saves space. This runs after writes
//! to a disk with a volatile cache were acknowledged, on the engine's thread; a flush waits for it, as it
//! waits for the append, which it makes shorter.
//!
//! **Unchanged** is determined without a store read. The map holds the checksum of the present block; only if
//! it is equal is the content compared, with the read cache, or by fingerprint with the index. A block over a
//! range that the same group zeroes is never unchanged, whatever the map still holds.
//!
//! Blocks of some [classes](crate::classes), such as those of a page file, are not looked up, indexed or
//! compressed: the same content is unlikely to be written again, and they are soon overwritten.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use forebay_format::{BLOCK, BlockRef, DiskId, Fingerprint, Form, MapValue, SegmentId, crc32c};
use futures_util::future::join_all;
use hashbrown::HashMap;

use super::group::{Completed, Group};
use crate::classes::Classifier;
use crate::context::Context;
use crate::dedup::{Dedup, Fingerprinter};
use crate::disk::Disk;
use crate::log::{Item, Log};
use crate::lost::is_lost;
use crate::read::Reader;
use crate::stats::{Counter, ReductionStats};
use crate::stored::compress;
use crate::sync::Mutex;
use crate::zero::is_zero;

/// Most segments whose directories one commit reads, since flushes wait for it: this number, ...
const DIRECTORIES_LEAST: usize = 4;
/// ... plus one for each group of this many blocks.
const DIRECTORY_FOR: usize = 1024;

/// The decision on a block.
enum Outcome {
    Zero,
    Unchanged,
    /// Stored in the pool already.
    Known(BlockRef),
    /// The same as the `n`th new block of this group.
    Same(usize),
    New(New),
}

/// A block to be stored.
struct New {
    form: Form,
    /// Range of its compressed form in `packed`; empty if it is raw.
    packed: Range<usize>,
    crc: u32,
    fingerprint: Fingerprint,
}

/// The decisions on the blocks of a group, in the order of [`blocks_of`].
pub(crate) struct Reduced {
    outcomes: Vec<Outcome>,
    packed: Vec<u8>,
}

/// A block that is neither zero nor unchanged.
struct Candidate<'a> {
    content: &'a [u8; BLOCK],
    crc: u32,
    /// `None` if it is not to be deduplicated.
    fingerprint: Option<Fingerprint>,
    compress: bool,
    /// The present block of the disk, if its checksum is equal.
    now: Option<BlockRef>,
    outcome: usize,
}

/// A block of a group.
struct GroupBlock<'a> {
    disk: &'a Disk,
    block: u64,
    content: &'a [u8; BLOCK],
    /// The checksum of the content, if it was computed when the block was written.
    crc: Option<u32>,
    /// It is over a range that the group zeroes.
    over_zeroes: bool,
}

/// The blocks of a group, in the order in which they are logged.
fn blocks_of<'a>(group: &'a Group, completed: &'a Completed) -> impl Iterator<Item = GroupBlock<'a>> {
    group.frozen.iter().flat_map(move |(disk, buffer)| {
        let blocks = buffer.sorted_blocks().into_iter();
        blocks.filter_map(move |(block, dirty)| {
            let (content, crc) = match completed.get(&(disk.id(), block)) {
                None => (&*dirty.page, Some(dirty.page.crc())),
                Some(Ok(page)) => (&**page, None),
                Some(Err(_)) => return None,
            };
            Some(GroupBlock { disk, block, content, crc, over_zeroes: buffer.base_is_zero(block) })
        })
    })
}

/// Decides which blocks are stored, and owns the dedup index.
pub(crate) struct Reducer {
    cx: Arc<Context>,
    reader: Arc<Reader>,
    /// Key of the pool's fingerprints.
    key: [u8; 32],
    pub dedup: Mutex<Dedup>,
    counters: Counters,
}

/// Blocks, by their outcome.
#[derive(Default)]
struct Counters {
    zero: Counter,
    unchanged: Counter,
    duplicate: Counter,
    /// Stored blocks, with their stored bytes.
    new: Counter,
}

impl Reducer {
    pub fn new(reader: Arc<Reader>, key: [u8; 32], dedup: Dedup) -> Reducer {
        Reducer {
            cx: reader.cx.clone(),
            reader,
            key,
            dedup: Mutex::new(dedup),
            counters: Counters::default(),
        }
    }

    /// The counters, and those of the index.
    pub fn stats(&self) -> ReductionStats {
        let Counters { zero, unchanged, duplicate, new } = &self.counters;
        let mut stats = ReductionStats {
            zero_blocks: zero.get().ops,
            unchanged_blocks: unchanged.get().ops,
            duplicate_blocks: duplicate.get().ops,
            new_blocks: new.get().ops,
            new_bytes: new.get().bytes,
            ..ReductionStats::default()
        };
        self.dedup.lock().stats(&mut stats);
        stats
    }

    /// Decides on the blocks of a group. The caller holds the log until the group is logged.
    pub async fn reduce(&self, log: &mut Log, group: &Group, completed: &Completed) -> Reduced {
        let (mut outcomes, mut candidates) = (Vec::new(), Vec::new());
        let mut keys: HashMap<u32, Fingerprinter> = HashMap::new();
        let mut classifier = Classifier::default();
        for GroupBlock { disk, block, content, crc, over_zeroes } in blocks_of(group, completed) {
            classifier.count_written(disk.id(), &disk.classes, block);
            let treatment = self.cx.config.classes.of(classifier.of_written(disk.id(), &disk.classes, block));
            let now =
                if over_zeroes { None } else { disk.tree.read().get(&self.reader.nodes.cache, block).ok() };
            if is_zero(content) {
                outcomes.push(if now == Some(MapValue::Zero) { Outcome::Unchanged } else { Outcome::Zero });
                continue;
            }
            let crc = crc.unwrap_or_else(|| crc32c(content));
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
                    .entry(disk.dedup_domain())
                    .or_insert_with_key(|domain| Fingerprinter::new(&self.key, *domain));
                key.of(content)
            });
            let compress = self.cx.config.compress && treatment.compress;
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
                        // The default, all zeroes, means none: the index neither stores nor finds it.
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

    /// Whether the read cache holds the block `at` and it equals `content`.
    fn is_cached_as(&self, at: BlockRef, content: &[u8; BLOCK]) -> bool {
        let mut cached = [0; BLOCK];
        self.reader.cache.probe(at.addr, 0, &mut cached) && cached == *content
    }

    /// Looks candidates up in the index, and reads directories where more hits are likely. The index may be
    /// wrong, since it was rebuilt from stored data that may be damaged; so a block with a different checksum
    /// is not treated as a duplicate.
    async fn look_up(&self, log: &Log, candidates: &[Candidate<'_>]) -> Vec<Option<BlockRef>> {
        let usable = |c: &Candidate<'_>, at: &BlockRef| {
            at.crc == c.crc
                && log.table().contains_key(&at.addr.segment)
                && !self.reader.source.is_damaged(at)
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
        // By number of hits; then by segment number, so that a run is reproducible.
        hits.sort_unstable_by_key(|(segment, hits)| (Reverse(hits.len()), *segment));
        let mut chosen = Vec::new();
        for (segment, hits) in hits.into_iter().take(DIRECTORIES_LEAST + candidates.len() / DIRECTORY_FOR) {
            let Some(record) = log.table().get(&segment) else { continue };
            // Estimated length of the directory; a stored block is rarely shorter than a quarter of a raw
            // one.
            let bytes = u64::from(record.written) / 128;
            if log.is_open(segment) || !self.dedup.lock().wants_directory(&hits, bytes) {
                continue;
            }
            chosen.push((segment, hits, record));
        }
        // All concurrently, since flushes wait for them.
        let read =
            join_all(chosen.iter().map(|(_, _, record)| self.reader.source.read_directory(record))).await;
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
        let counters = &self.counters;
        for outcome in &reduced.outcomes {
            match outcome {
                Outcome::Zero => counters.zero.add(BLOCK as u64),
                Outcome::Unchanged => counters.unchanged.add(BLOCK as u64),
                Outcome::Known(_) | Outcome::Same(_) => counters.duplicate.add(BLOCK as u64),
                Outcome::New(new) => counters.new.add(new.form.stored_len() as u64),
            }
        }
    }

    /// Adds the stored blocks of a group to the index. Called when the group is durable.
    pub fn record_stored(&self, items: &[Item<'_>], refs: &[BlockRef]) {
        let mut dedup = self.dedup.lock();
        let blocks = items.iter().filter_map(|item| match item {
            Item::Block { fingerprint, .. } => Some(*fingerprint),
            _ => None,
        });
        blocks.zip(refs).for_each(|(fingerprint, at)| dedup.insert(fingerprint, *at));
    }
}

/// Converts a group to items of the log: for each disk zeroed ranges, then blocks; finally changes to the
/// catalogue.
pub(crate) fn items<'a>(group: &'a Group, completed: &'a Completed, reduced: &'a Reduced) -> Vec<Item<'a>> {
    let mut items = Vec::new();
    let mut outcomes = reduced.outcomes.iter();
    let mut blocks = blocks_of(group, completed).peekable();
    for (disk, buffer) in &group.frozen {
        let id = disk.id();
        items.extend(buffer.zeroes().map(|(range, allocated)| Item::Zero {
            disk: id,
            block: range.start,
            count: range.end - range.start,
            allocated,
        }));
        while let Some(b) = blocks.next_if(|b| b.disk.id() == id)
            && let Some(outcome) = outcomes.next()
        {
            push(&mut items, id, b.block, b.content, outcome, &reduced.packed);
        }
        for (block, _) in buffer.partial_blocks() {
            if let Some(Err(lost)) = completed.get(&(id, block)) {
                items.push(Item::Reference { disk: id, block, target: *lost });
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
            // Adjacent blocks of zeroes form one range.
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
