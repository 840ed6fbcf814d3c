//! Changes of counts, collected in any order and returned in order of address, with one sum for each address.
//!
//! The changes are sorted in small runs, which are kept encoded. When the runs of all collections exceed
//! their share of the budget, they are merged into one run, which is written to the store
//! ([`super::scratch`]). A merge reads all runs side by side. The budget therefore limits the memory even for
//! a large pool.
//!
//! The longest step is sorting one run, which takes a few milliseconds; other tasks run between two steps.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use forebay_format::{Address, BlobRef, BlockRef, Form};

use super::scratch::Scratch;
use super::varint::{Reading, put_varint};
use crate::yield_counter::YieldCounter;
use crate::{Error, Result};

/// A change of the count of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Delta {
    pub at: BlockRef,
    /// Number of references added, minus the number of references removed.
    pub by: i64,
    /// For a reference to a node as a child: index of the node, see [`crate::map::NeedNode::index_bits`].
    pub index: u32,
    /// The slot holds a block, not a node.
    pub is_block: bool,
    /// The slot is reached from an image that no earlier mark knew.
    pub of_image: bool,
}

impl Delta {
    fn key(&self) -> u64 {
        self.at.addr.to_u64()
    }

    /// Adds another change of the same slot.
    fn add(&mut self, other: &Delta) {
        self.by += other.by;
        self.of_image |= other.of_image;
        // The reference of a lost block has another form than the block itself.
        if other.at.form.stored_len() > self.at.form.stored_len() {
            self.at = other.at;
        }
    }

    fn is_void(&self) -> bool {
        self.by == 0 && !self.of_image
    }
}

const BLOCK_FLAG: u64 = 1;
const IMAGE_FLAG: u64 = 2;
const NEGATIVE_FLAG: u64 = 4;
const FLAG_BITS: u32 = 3;

/// Appends a change that follows the change with number `previous`. With `whole`, everything is included that
/// is needed to read a node.
fn encode(delta: &Delta, previous: u64, whole: bool, out: &mut Vec<u8>) {
    put_varint(out, delta.key() - previous);
    let flags = [(delta.is_block, BLOCK_FLAG), (delta.of_image, IMAGE_FLAG), (delta.by < 0, NEGATIVE_FLAG)];
    let flags: u64 = flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum();
    put_varint(out, delta.by.unsigned_abs() << FLAG_BITS | flags);
    out.push(delta.at.form.0);
    if whole {
        out.extend_from_slice(&delta.at.crc.to_le_bytes());
        out.extend_from_slice(&delta.index.to_le_bytes());
    }
}

fn decode(bytes: &mut Reading<'_>, previous: u64, whole: bool) -> Option<Delta> {
    let key = previous.checked_add(bytes.varint()?)?;
    let word = bytes.varint()?;
    let by = i64::try_from(word >> FLAG_BITS).ok()?;
    let form = Form(bytes.byte()?);
    let (crc, index) = if whole { (bytes.word()?, bytes.word()?) } else { (0, 0) };
    Some(Delta {
        at: BlockRef { addr: Address::from_u64(key), form, crc },
        by: if word & NEGATIVE_FLAG == 0 { by } else { -by },
        index,
        is_block: word & BLOCK_FLAG != 0,
        of_image: word & IMAGE_FLAG != 0,
    })
}

/// Changes in the order of their addresses, encoded.
#[derive(Debug, Clone)]
enum Run {
    Memory(Arc<Vec<u8>>),
    Stored(Vec<BlobRef>),
}

/// The changes that were collected for a mark.
#[derive(Debug)]
pub(super) struct Deltas {
    /// The changes are encoded with the references by which nodes are to be read.
    whole: bool,
    /// Number of changes in one run.
    run: usize,
    recent: Vec<Delta>,
    runs: Vec<Run>,
    /// Bytes of the runs in memory.
    bytes: usize,
}

impl Deltas {
    /// Collects changes of nodes that will be read, in runs of `run` changes.
    pub fn of_nodes(run: usize) -> Deltas {
        Deltas { whole: true, ..Deltas::of_slots(run) }
    }

    /// Collects changes of slots, in runs of `run` changes.
    pub fn of_slots(run: usize) -> Deltas {
        Deltas { whole: false, run, recent: Vec::new(), runs: Vec::new(), bytes: 0 }
    }

    /// Bytes of memory that would become free if the runs were written to the store.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn push(&mut self, delta: Delta) {
        self.recent.push(delta);
        if self.recent.len() >= self.run {
            self.end_run();
        }
    }

    fn end_run(&mut self) {
        // Equal changes are merged in the order in which they were collected.
        self.recent.sort_by_key(Delta::key);
        let (mut bytes, mut previous) = (Vec::new(), 0);
        for same in self.recent.chunk_by(|a, b| a.key() == b.key()) {
            let Some((first, others)) = same.split_first() else { continue };
            let mut sum = *first;
            others.iter().for_each(|other| sum.add(other));
            if !sum.is_void() {
                encode(&sum, previous, self.whole, &mut bytes);
                previous = sum.key();
            }
        }
        self.recent.clear();
        if !bytes.is_empty() {
            bytes.shrink_to_fit();
            self.bytes += bytes.len();
            self.runs.push(Run::Memory(Arc::new(bytes)));
        }
    }

    /// Writes the runs in memory to the store, as one run.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: nothing has changed. Other errors end the mark.
    pub async fn spill(&mut self, scratch: &Scratch) -> Result<()> {
        let in_memory = |run: &&Run| matches!(run, Run::Memory(_));
        let merge = Merge::of(self.runs.iter().filter(in_memory).cloned(), self.whole, scratch).await?;
        let pieces = write_run(merge, scratch).await?;
        self.runs.retain(|run| !in_memory(&run));
        self.runs.push(Run::Stored(pieces));
        self.bytes = 0;
        Ok(())
    }

    /// All changes in order of address; the collection is empty afterwards.
    pub async fn take<'a>(&mut self, scratch: &'a Scratch) -> Result<Merge<'a>> {
        self.end_run();
        self.recent = Vec::new();
        self.bytes = 0;
        Merge::of(std::mem::take(&mut self.runs).into_iter(), self.whole, scratch).await
    }
}

async fn write_run(mut merge: Merge<'_>, scratch: &Scratch) -> Result<Vec<BlobRef>> {
    let (mut writer, mut previous) = (scratch.writer(), 0);
    while let Some(delta) = merge.next().await? {
        encode(&delta, previous, merge.whole, writer.buffer());
        previous = delta.key();
        writer.end_item().await?;
    }
    writer.finish().await
}

/// A run that is being read.
struct Cursor {
    bytes: Arc<Vec<u8>>,
    at: usize,
    pieces: VecDeque<BlobRef>,
    /// The next change. Once this change was taken, its number.
    head: Option<Delta>,
    previous: u64,
}

impl Cursor {
    /// Reads the next change into `head`.
    async fn advance(&mut self, whole: bool, scratch: &Scratch) -> Result<()> {
        while self.at == self.bytes.len() {
            let Some(piece) = self.pieces.pop_front() else {
                self.head = None;
                return Ok(());
            };
            (self.bytes, self.at) = (Arc::new(scratch.read(&piece).await?), 0);
        }
        let mut reading = Reading::new(&self.bytes[self.at..]);
        let delta = decode(&mut reading, self.previous, whole);
        let delta = delta.ok_or_else(|| Error::Damaged("temporary data of a mark".into()))?;
        self.at = self.bytes.len() - reading.left();
        self.previous = delta.key();
        self.head = Some(delta);
        Ok(())
    }
}

/// A merge of several runs, which are read side by side.
pub(super) struct Merge<'a> {
    scratch: &'a Scratch,
    whole: bool,
    runs: Vec<Cursor>,
    /// The next address in each run.
    heap: BinaryHeap<Reverse<(u64, usize)>>,
    yields: YieldCounter,
    /// The first change of the next segment.
    ahead: Option<Delta>,
}

impl<'a> Merge<'a> {
    async fn of(runs: impl Iterator<Item = Run>, whole: bool, scratch: &'a Scratch) -> Result<Merge<'a>> {
        let mut merge = Merge {
            scratch,
            whole,
            runs: Vec::new(),
            heap: BinaryHeap::new(),
            yields: YieldCounter::default(),
            ahead: None,
        };
        for (i, run) in runs.enumerate() {
            let (bytes, pieces) = match run {
                Run::Memory(bytes) => (bytes, VecDeque::new()),
                Run::Stored(pieces) => (Arc::default(), pieces.into()),
            };
            let mut cursor = Cursor { bytes, at: 0, pieces, head: None, previous: 0 };
            cursor.advance(whole, scratch).await?;
            merge.heap.extend(cursor.head.map(|head| Reverse((head.key(), i))));
            merge.runs.push(cursor);
        }
        Ok(merge)
    }

    /// The sum of the changes of the next address.
    pub async fn next(&mut self) -> Result<Option<Delta>> {
        loop {
            let Some(mut sum) = self.pop().await? else { return Ok(None) };
            while self.heap.peek().is_some_and(|Reverse((key, _))| *key == sum.key()) {
                if let Some(other) = self.pop().await? {
                    sum.add(&other);
                }
            }
            if !sum.is_void() {
                return Ok(Some(sum));
            }
        }
    }

    /// The sums of all changes of the next segment; not empty.
    pub async fn next_segment(&mut self) -> Result<Option<Vec<Delta>>> {
        let first = match self.ahead.take() {
            None => self.next().await?,
            ahead => ahead,
        };
        let Some(first) = first else { return Ok(None) };
        let mut all = vec![first];
        while let Some(delta) = self.next().await? {
            if delta.at.addr.segment != first.at.addr.segment {
                self.ahead = Some(delta);
                break;
            }
            all.push(delta);
        }
        Ok(Some(all))
    }

    async fn pop(&mut self) -> Result<Option<Delta>> {
        let Some(Reverse((_, i))) = self.heap.pop() else { return Ok(None) };
        let run = &mut self.runs[i];
        let head = run.head.take();
        run.advance(self.whole, self.scratch).await?;
        self.heap.extend(run.head.map(|head| Reverse((head.key(), i))));
        self.yields.step().await;
        Ok(head)
    }
}
