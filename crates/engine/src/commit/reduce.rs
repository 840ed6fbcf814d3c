//! Data reduction: decides which blocks of a group are stored, and in which form.
//!
//! For each block, in this order: a block of zeroes needs no slot; a block that the disk has already
//! (*unchanged*) needs nothing; a block that is stored already, in the pool or earlier in the same group,
//! becomes a reference; any other block is new, and is compressed if that saves space. On a disk with a
//! volatile cache, writes are acknowledged before they are reduced. A flush waits for the reduction, as it
//! waits for the append, which the reduction makes shorter.
//!
//! A group is reduced in *slices*: while one slice is appended to the log, the next slice is reduced. The
//! contents of a slice are examined ([`super::examine`]) and compressed on all [workers](crate::workers). In
//! between, one thread does the work that depends on the order of blocks: the look-ups in maps and index.
//!
//! **Unchanged** is determined without a store read. The map holds the checksum of the present block. If the
//! checksums are equal, the content is compared with the block in the read cache, or by its fingerprint with
//! the index. Two kinds of blocks are never unchanged: a block over a range that the same group zeroes,
//! whatever the map still holds; and a block that a read found damaged, so that writing its content again
//! repairs it.
//!
//! Blocks of some [classes](crate::classes), such as those of a page file, are not looked up, indexed or
//! compressed: the same content is unlikely to be written again, and these blocks are soon overwritten.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use forebay_format::{BLOCK, BlockRef, DiskId, Fingerprint, Form, MapValue, SegmentRecord};
use futures_util::future::join_all;
use hashbrown::HashMap;

use super::examine::{Examined, Given, examine};
use super::group_changes::{GroupChange, Written};
use crate::block_classes::Classifier;
use crate::cache::Rank;
use crate::context::Context;
use crate::dedup::{Dedup, Fingerprinter, Misses};
use crate::limits::WORKER_BLOCKS;
use crate::log::{Item, Log};
use crate::read::Reader;
use crate::stats::{Counter, ReductionStats};
use crate::stored::Compressor;
use crate::sync::Mutex;
use crate::workers::{Workers, map};

/// Maximum number of segments whose directories one slice reads, since flushes wait for these reads: this
/// number, ...
const DIRECTORIES_LEAST: usize = 4;
/// ... plus one segment for each group of this many blocks.
const DIRECTORY_FOR: usize = 1024;
/// Estimated size of a directory, as one part in this number of its segment: 32 bytes for each block of some
/// 2 KiB.
const DIRECTORY_PART: u64 = 64;

/// Minimum number of consecutive blocks that count as a large write.
const LARGE_BLOCKS: usize = 16;

/// The decision how a block is logged.
enum Outcome {
    Zero,
    Unchanged,
    /// The block is stored in the pool already.
    Known(BlockRef),
    /// The block is equal to the `n`th new block of this group.
    Same(usize),
    New(New),
}

/// A new block, which is to be stored.
struct New {
    form: Form,
    /// Compressed form of the block, in one of the buffers of [`Reduced`]; empty if the block is stored raw.
    packed: (usize, Range<usize>),
    crc: u32,
    fingerprint: Fingerprint,
}

/// The decisions on the blocks of a slice.
pub(super) struct Reduced<'a> {
    changes: Vec<GroupChange<'a>>,
    /// The outcome of each block, in the order of the blocks.
    outcomes: Vec<Outcome>,
    /// Ranks of the blocks in the read cache.
    ranks: Vec<Rank>,
    packed: Vec<Vec<u8>>,
}

/// A block that is neither zero nor unchanged.
pub(super) struct Candidate<'a> {
    content: &'a [u8; BLOCK],
    crc: u32,
    /// Fingerprint of the block; `None` if the block is not to be deduplicated.
    fingerprint: Option<Fingerprint>,
    compress: bool,
    /// The present block of the disk, if its checksum is equal.
    now: Option<BlockRef>,
    outcome: usize,
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

/// Numbers of blocks, by their outcome.
#[derive(Default)]
struct Counters {
    zero: Counter,
    unchanged: Counter,
    duplicate: Counter,
    /// Number of stored blocks, and their stored bytes.
    new: Counter,
}

impl Reducer {
    pub fn new(reader: Arc<Reader>, key: [u8; 32], dedup: Dedup) -> Reducer {
        Reducer {
            cx: reader.context().clone(),
            reader,
            key,
            dedup: Mutex::new(dedup),
            counters: Counters::default(),
        }
    }

    /// The counters of the reducer and of the index.
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

    /// Begins to reduce a group, on the threads of `workers`.
    pub(super) fn begin<'r>(&'r self, workers: &'r dyn Workers) -> Reduction<'r> {
        Reduction {
            reducer: self,
            workers,
            keys: HashMap::new(),
            classifier: Classifier::default(),
            visible: None,
            new: HashMap::new(),
            stored: 0,
        }
    }

    /// Looks candidates up in the index, and reads directories where more hits are likely. The index may be
    /// wrong, since it was rebuilt from stored data that may be damaged; so a block with a different checksum
    /// is not treated as a duplicate.
    async fn look_up(&self, log: &Log, candidates: &[Candidate<'_>]) -> Vec<Option<BlockRef>> {
        let usable = |c: &Candidate<'_>, at: &BlockRef| {
            at.crc == c.crc && log.table().contains(at.addr.segment) && !self.reader.source.is_damaged(at)
        };
        let mut known: Vec<_> = {
            let mut dedup = self.dedup.lock();
            dedup.fetch(candidates.iter().filter_map(|c| c.fingerprint.as_ref()));
            let find = |c: &Candidate<'_>| dedup.find(c.fingerprint.as_ref()?).filter(|at| usable(c, at));
            candidates.iter().map(find).collect()
        };
        let chosen = self.choose_directories(log, candidates, &known);
        if chosen.is_empty() {
            return known;
        }
        let missed = candidates.iter().zip(&known).enumerate().filter(|(_, (_, known))| known.is_none());
        let misses = Misses::new(missed.filter_map(|(i, (c, _))| Some((i, c.fingerprint.as_ref()?))));
        // The directories are read concurrently, since flushes wait for them.
        let read = chosen.iter().map(|record| async move {
            match log.open_directory(record.segment) {
                Some(directory) => Ok(Cow::Borrowed(directory)),
                None => self.reader.source.read_directory(record).await.map(Cow::Owned),
            }
        });
        for (record, directory) in chosen.iter().zip(join_all(read).await) {
            let segment = record.segment;
            let directory = match directory {
                Ok(directory) => directory,
                Err(e) => {
                    tracing::warn!(%segment, "cannot read a directory of fingerprints: {e}");
                    continue;
                }
            };
            let mut new_hits = 0;
            misses.search(segment, &directory, |i, at| {
                if known[i].is_none() && usable(&candidates[i], &at) {
                    known[i] = Some(at);
                    new_hits += 1;
                }
            });
            // The directory of an open segment is in memory, and not complete.
            if let Cow::Owned(directory) = directory {
                let hits: Vec<_> =
                    known.iter().flatten().filter(|at| at.addr.segment == segment).copied().collect();
                self.dedup.lock().keep(segment, &directory, &hits, new_hits);
            }
        }
        known
    }

    /// Chooses the segments whose directories are worth reading for these candidates, of which `known` are
    /// stored already.
    fn choose_directories<'a>(
        &self,
        log: &'a Log,
        candidates: &[Candidate<'_>],
        known: &[Option<BlockRef>],
    ) -> Vec<&'a SegmentRecord> {
        let mut dedup = self.dedup.lock();
        let blocks = candidates.iter().zip(known);
        let leads = dedup.leads(blocks.filter_map(|(c, known)| Some((c.fingerprint.as_ref()?, *known))));
        let most = DIRECTORIES_LEAST + candidates.len() / DIRECTORY_FOR;
        let records = leads.iter().filter_map(|segment| log.table().get(*segment));
        // The directory of a segment that was sealed within this group is not read: it lists slots that may
        // be abandoned. The length of a directory is estimated.
        let affordable = records.filter(|record| match log.is_open(record.segment) {
            true => true,
            false if !log.is_synced(record.segment) => false,
            false => dedup.afford(u64::from(record.written) / DIRECTORY_PART),
        });
        affordable.take(most).collect()
    }

    fn count(&self, outcomes: &[Outcome]) {
        let counters = &self.counters;
        for outcome in outcomes {
            match outcome {
                Outcome::Zero => counters.zero.add(BLOCK as u64),
                Outcome::Unchanged => counters.unchanged.add(BLOCK as u64),
                Outcome::Known(_) | Outcome::Same(_) => counters.duplicate.add(BLOCK as u64),
                Outcome::New(new) => counters.new.add(new.form.stored_len() as u64),
            }
        }
    }

    /// Adds the stored blocks of a group to the index. Called when all appends of the group have succeeded:
    /// from then on either the group is durable, or the pool latches.
    pub fn record_stored(&self, blocks: impl Iterator<Item = (Fingerprint, BlockRef)>) {
        let blocks: Vec<_> = blocks.collect();
        self.dedup.lock().insert_all(&blocks);
    }
}

/// The reduction of one group.
pub(super) struct Reduction<'r> {
    reducer: &'r Reducer,
    workers: &'r dyn Workers,
    keys: HashMap<u32, Arc<Fingerprinter>>,
    classifier: Classifier,
    /// The disk of the previous block, and whether its blocks are cached when they are written.
    visible: Option<(DiskId, bool)>,
    /// The new blocks of the group so far, by fingerprint, with their checksums.
    new: HashMap<Fingerprint, (usize, u32)>,
    /// Number of new blocks of the group so far.
    stored: usize,
}

impl Reduction<'_> {
    /// Decides on the blocks of a slice. The caller holds the log until the group is logged.
    pub async fn reduce<'a>(&mut self, log: &mut Log, changes: Vec<GroupChange<'a>>) -> Reduced<'a> {
        let reducer = self.reducer;
        let mut given = Vec::with_capacity(changes.len());
        for run in changes.chunk_by(GroupChange::is_before) {
            let is_in_run = run.len() >= LARGE_BLOCKS;
            given.extend(
                run.iter().filter_map(GroupChange::written).map(|block| self.given(block, is_in_run)),
            );
        }
        let chunks = given.chunks(WORKER_BLOCKS).collect();
        let examined = map(self.workers, chunks, |chunk| examine(chunk, &reducer.reader.cache));
        let (mut outcomes, mut candidates) = (Vec::with_capacity(given.len()), Vec::new());
        let mut ranks = Vec::with_capacity(given.len());
        for (given, examined) in given.iter().zip(examined.into_iter().flatten()) {
            outcomes.push(match examined {
                Examined::Zero { known: false } => Outcome::Zero,
                Examined::Zero { known: true } | Examined::Unchanged => Outcome::Unchanged,
                Examined::Other { crc, fingerprint, now, rank } => {
                    ranks.resize(outcomes.len(), Rank::Never);
                    ranks.push(rank);
                    let (content, compress, outcome) = (given.content, given.compress, outcomes.len());
                    candidates.push(Candidate { content, crc, fingerprint, compress, now, outcome });
                    Outcome::Unchanged
                }
            });
        }
        ranks.resize(outcomes.len(), Rank::Never);
        let known = reducer.look_up(log, &candidates).await;
        let new = self.decide(log, candidates, known, &mut outcomes);
        let packed = self.compress(&new, &mut outcomes);
        reducer.count(&outcomes);
        Reduced { changes, outcomes, ranks, packed }
    }

    /// What is known about a block without examining its contents.
    fn given<'a>(&mut self, written: &Written<'a>, is_in_run: bool) -> Given<'a> {
        let Written { disk, block, content, crc, fingerprint, over_zeroes } = *written;
        let (reducer, id) = (self.reducer, disk.id());
        self.classifier.count_written(id, &disk.classes, block);
        let class = self.classifier.of_written(id, &disk.classes, block);
        let treatment = reducer.cx.config.classes.of(class);
        // A damaged block is stored again, even if the read cache has its content.
        let is_sound = |now: &MapValue| match now {
            MapValue::At(now) => !reducer.reader.source.is_damaged(now),
            _ => true,
        };
        let now = match over_zeroes {
            true => None,
            false => disk.tree.read().get(&reducer.reader.nodes.cache, block).ok().filter(is_sound),
        };
        let fingerprinter = treatment.dedup.then(|| {
            let domain = disk.dedup_domain();
            let made = self.keys.entry(domain);
            made.or_insert_with(|| Arc::new(Fingerprinter::new(&reducer.key, domain))).clone()
        });
        let compress = reducer.cx.config.compress && treatment.compress;
        let visible = match self.visible {
            Some((known, visible)) if known == id => visible,
            _ => disk.role().is_visible() || disk.is_internal(),
        };
        self.visible = Some((id, visible));
        // The rank is at most normal: blocks that are written repeatedly, such as metadata, would leave stale
        // versions at a high rank.
        let rank = if visible { reducer.reader.rank(class).min(Rank::Normal) } else { Rank::Never };
        Given { content, crc, fingerprint, now, fingerprinter, compress, rank, is_in_run }
    }

    /// Decides on the candidates, of which `known` are stored already. Returns the new blocks.
    fn decide<'a>(
        &mut self,
        log: &mut Log,
        candidates: Vec<Candidate<'a>>,
        known: Vec<Option<BlockRef>>,
        outcomes: &mut [Outcome],
    ) -> Vec<Candidate<'a>> {
        let mut new = Vec::with_capacity(candidates.len());
        self.new.reserve(candidates.len());
        for (candidate, known) in candidates.into_iter().zip(known) {
            let fingerprint = candidate.fingerprint;
            // As in `look_up`, equal fingerprints do not suffice: the checksums are compared too.
            let first = || match self.new.get(&fingerprint?) {
                Some((first, crc)) if *crc == candidate.crc => Some(*first),
                _ => None,
            };
            let outcome = match known {
                Some(known) if candidate.now.is_some_and(|now| now.addr == known.addr) => Outcome::Unchanged,
                Some(known) => {
                    log.refer(&known);
                    Outcome::Known(known)
                }
                None => match first() {
                    Some(first) => Outcome::Same(first),
                    None => {
                        let this = (self.stored, candidate.crc);
                        self.new.extend(fingerprint.map(|fingerprint| (fingerprint, this)));
                        self.stored += 1;
                        new.push(candidate);
                        continue;
                    }
                },
            };
            outcomes[candidate.outcome] = outcome;
        }
        new
    }

    /// Compresses new blocks, and sets their outcomes. Returns the buffers of their compressed forms.
    fn compress(&self, new: &[Candidate<'_>], outcomes: &mut [Outcome]) -> Vec<Vec<u8>> {
        let chunks: Vec<_> = new.chunks(WORKER_BLOCKS).collect();
        let packed = map(self.workers, chunks, |chunk| {
            let (mut compressor, mut packed) = (Compressor::default(), Vec::new());
            let forms = chunk.iter().map(|candidate| {
                let start = packed.len();
                let form = match candidate.compress {
                    true => compressor.append(candidate.content, &mut packed),
                    false => Form::RAW_BLOCK,
                };
                (form, start..packed.len())
            });
            (forms.collect::<Vec<_>>(), packed)
        });
        let (mut new, mut buffers) = (new.iter(), Vec::with_capacity(packed.len()));
        for (n, (forms, buffer)) in packed.into_iter().enumerate() {
            for ((form, range), candidate) in forms.into_iter().zip(&mut new) {
                let Candidate { crc, fingerprint, outcome, .. } = *candidate;
                // The default, all zeroes, stands for no fingerprint: the index neither stores nor finds it.
                let fingerprint = fingerprint.unwrap_or_default();
                outcomes[outcome] = Outcome::New(New { form, packed: (n, range), crc, fingerprint });
            }
            buffers.push(buffer);
        }
        buffers
    }
}

impl Reduced<'_> {
    /// The items of the log for the changes of a slice.
    pub fn items(&self) -> Vec<Item<'_>> {
        let mut items = Vec::with_capacity(self.changes.len());
        let mut outcomes = self.outcomes.iter().zip(&self.ranks);
        for change in &self.changes {
            match change {
                GroupChange::Zeroes { disk, block, count, allocated } => items.push(Item::Zero {
                    disk: disk.id(),
                    block: *block,
                    count: *count,
                    allocated: *allocated,
                }),
                GroupChange::Block(written) => {
                    let (outcome, rank) = outcomes.next().expect("every block has an outcome");
                    self.push(&mut items, written, outcome, *rank);
                }
                GroupChange::Lost { disk, block, target } => {
                    items.push(Item::Reference { disk: disk.id(), block: *block, target: *target });
                }
            }
        }
        items
    }

    fn push<'b>(&'b self, items: &mut Vec<Item<'b>>, written: &Written<'b>, outcome: &Outcome, rank: Rank) {
        let (disk, block, content) = (written.disk.id(), written.block, written.content);
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
            Outcome::New(New { form, packed: (n, ref range), crc, fingerprint }) => {
                let stored = if range.is_empty() { &content[..] } else { &self.packed[n][range.clone()] };
                items.push(Item::Block { disk, block, content, stored, form, crc, fingerprint, rank });
            }
        }
    }
}
