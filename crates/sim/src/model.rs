//! The reference model: every disk is a map from block to history, and every name is a history of disks.
//!
//! The history of a name is a cell too: its versions are *eras*. Creating, deleting, rolling back, resetting
//! and resizing begin a new era of a name, with a separate block map; the workload does not let guest
//! operations on the disk overlap them. Snapshots and clones do overlap with writes: until their contents
//! have been read once, such a disk is *taken from* an era of another, at a moment that the reads then
//! determine more closely.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_engine::{Role, SyncMode};
use forebay_format::BLOCK;

use crate::content::{Content, WriteId, describe};
use crate::history::{Cell, End, NEVER, Op, OpId, Ops, Stamp, TimeSet};
use crate::machine::MemoryFate;

/// An era of a name: the name and the number of the era.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EraId {
    /// Name of the disk.
    pub name: String,
    /// Number of the era: the index of its version.
    pub era: usize,
}

/// A disk during one era.
#[derive(Debug, Clone)]
pub struct DiskState {
    /// Role of the disk.
    pub role: Role,
    /// Size of the disk in bytes.
    pub size: u64,
    /// When writes to the disk are durable.
    pub sync: SyncMode,
    /// The disk from which it was cloned.
    pub origin: Option<String>,
    /// Writes to the disk are discarded when the pool is opened again.
    pub desktop: bool,
    /// The disk is reset when its user disconnects.
    pub resets: bool,
    /// The blocks that were ever written or are not zero; all others are zero.
    pub blocks: BTreeMap<u64, Cell<Content>>,
    /// The contents are those of that era at some moment of this era's operation, and are not known yet.
    pub taken_from: Option<EraId>,
    /// A flush promised that all changes acknowledged before this moment are durable.
    pub flushed: Stamp,
    /// The latest beginning of an acknowledged change of the disk.
    pub changed: Stamp,
}

impl DiskState {
    /// An empty disk.
    pub fn empty(role: Role, size: u64, sync: SyncMode) -> DiskState {
        DiskState {
            role,
            size,
            sync,
            origin: None,
            desktop: false,
            resets: false,
            blocks: BTreeMap::new(),
            taken_from: None,
            flushed: 0,
            changed: 0,
        }
    }
    /// Whether the disk can be copied and resized.
    pub fn is_source(&self) -> bool {
        self.taken_from.is_none() && !self.desktop
    }
    /// Number of blocks, including a partial last block.
    pub fn block_count(&self) -> u64 {
        self.size.div_ceil(BLOCK as u64)
    }
    /// The bytes of a block that are within the disk.
    pub fn valid(&self, block: u64) -> usize {
        (self.size - block * BLOCK as u64).min(BLOCK as u64) as usize
    }
}

/// The content that a change puts into a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The write has these bytes.
    Write(WriteId),
    /// The write has zeroes.
    Zero,
    /// Zeroes in whole blocks (a block cut by the end of the disk is whole); partial blocks are unchanged.
    Discard,
}

/// The pieces of a byte range: block and bytes within it.
pub fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, Range<usize>)> {
    const B: u64 = BLOCK as u64;
    let end = offset + len;
    (offset / B..end.div_ceil(B)).map(move |block| {
        let from = offset.max(block * B) - block * B;
        let to = end.min((block + 1) * B) - block * B;
        (block, from as usize..to as usize)
    })
}

/// The reference model of a pool.
#[derive(Clone, Default)]
pub struct Model {
    stamp: Stamp,
    /// Operations since the last recovery.
    pub ops: Ops,
    /// Every name that was used since the last recovery.
    pub names: BTreeMap<String, Cell<Option<DiskState>>>,
    /// A cut before this moment loses data that was promised to be durable.
    pub floor: Stamp,
    /// Whether writes may overlap each other.
    pub overlapping: bool,
    /// Names that one operation creates together.
    pub groups: Vec<(OpId, Vec<String>)>,
    /// The fate of the retained memory of the last process that passed a verdict.
    pub memory: MemoryFate,
    /// Desktops whose users were at work when the process ended, and whether the last of them had left.
    pub sessions: BTreeMap<String, bool>,
    next_write: WriteId,
}

impl Model {
    /// The model of an empty pool.
    pub fn new() -> Model {
        let mut model = Model::default();
        model.restart();
        model
    }

    /// Forgets operations; the current state is the start of the history.
    pub(crate) fn restart(&mut self) {
        self.stamp += 1;
        self.ops = vec![Op { begin: self.stamp, end: End::Acknowledged { at: self.stamp, durable: true } }];
        self.floor = self.stamp;
        self.groups.clear();
        self.sessions.clear();
    }

    /// The model without what reads have found of changes that were not acknowledged. No client was promised
    /// that these stay.
    pub fn of_answers(&self) -> Model {
        let mut model = self.clone();
        let ops = &mut model.ops;
        let eras = model.names.values_mut().flat_map(|cell| &mut cell.versions);
        let disks = eras.filter_map(|era| era.value.as_mut());
        for version in disks.flat_map(|disk| disk.blocks.values_mut()).flat_map(|cell| &mut cell.versions) {
            let Op { begin, end } = ops[version.op.0];
            if version.observed {
                ops.push(Op { begin, end: End::Pending });
                version.op = OpId(ops.len() - 1);
            }
            if version.observed || !matches!(end, End::Acknowledged { .. }) {
                version.seen = NEVER;
            }
        }
        model
    }

    /// Records that a process has the memory of the process before, and so every change that was
    /// acknowledged.
    pub fn expect_all(&mut self) {
        let now = self.tick();
        self.all_flushed(now);
    }

    /// The next moment.
    pub fn tick(&mut self) -> Stamp {
        self.stamp += 1;
        self.stamp
    }

    /// This moment.
    pub fn now(&self) -> Stamp {
        self.stamp
    }

    /// A number for the next write.
    pub fn new_write(&mut self) -> WriteId {
        self.next_write += 1;
        self.next_write
    }

    /// Begins an operation.
    pub fn begin(&mut self) -> OpId {
        let begin = self.tick();
        self.ops.push(Op { begin, end: End::Pending });
        OpId(self.ops.len() - 1)
    }

    /// Returns the moment at which `op` began.
    pub fn begun(&self, op: OpId) -> Stamp {
        self.ops[op.0].begin
    }

    /// Ends an operation that was acknowledged; `durable` if the acknowledgement promised durability.
    pub fn acknowledge(&mut self, op: OpId, durable: bool) -> Stamp {
        let at = self.tick();
        self.ops[op.0].end = End::Acknowledged { at, durable };
        if durable {
            self.floor = self.floor.max(self.begun(op));
        }
        at
    }

    /// Ends a change of `name` that was acknowledged.
    pub fn changed(&mut self, name: &str, op: OpId, durable: bool) {
        self.acknowledge(op, durable);
        let begun = self.begun(op);
        let disk = self.disk_mut(name);
        disk.changed = disk.changed.max(begun);
    }

    /// Begins a flush of `name`; returns the argument of [`Model::flushed`].
    pub fn flush_begins(&mut self, name: &str) -> (Stamp, Stamp) {
        (self.tick(), self.disk(name).map_or(0, |d| d.changed))
    }

    /// A flush of `name` was acknowledged: changes acknowledged before it began are durable. Other disks are
    /// covered only as far as a prefix of history implies.
    pub fn flushed(&mut self, name: &str, (begin, changed): (Stamp, Stamp)) {
        self.tick();
        let disk = self.disk_mut(name);
        disk.flushed = disk.flushed.max(begin);
        self.floor = self.floor.max(changed);
    }

    /// Records that all changes acknowledged before `moment` are durable.
    pub fn all_flushed(&mut self, moment: Stamp) {
        self.floor = self.floor.max(moment);
    }

    /// Ends an operation that failed.
    pub fn fail(&mut self, op: OpId) {
        let at = self.tick();
        self.ops[op.0].end = End::Failed { at };
    }

    /// The newest era of a name, if it contains a disk.
    pub fn disk(&self, name: &str) -> Option<&DiskState> {
        self.names.get(name)?.versions.last()?.value.as_ref()
    }

    /// The immutable contents of a disk, also if it was deleted since.
    pub fn immutable(&self, name: &str) -> Option<&DiskState> {
        self.names.get(name)?.versions.iter().rev().find_map(|v| v.value.as_ref())
    }

    pub(crate) fn disk_mut(&mut self, name: &str) -> &mut DiskState {
        let era = self.names.get_mut(name).and_then(|c| c.versions.last_mut());
        era.and_then(|v| v.value.as_mut()).expect("the workload uses disks that exist")
    }

    /// Returns the newest era of a name.
    pub fn era(&self, name: &str) -> EraId {
        EraId { name: name.to_owned(), era: self.names[name].versions.len() - 1 }
    }

    /// Begins a new era of `name` with the operation `op`.
    pub fn new_era(&mut self, name: &str, op: OpId, disk: Option<DiskState>) {
        let cell = self.names.entry(name.to_owned()).or_insert_with(|| Cell::new(OpId(0), None));
        cell.push(op, disk);
    }

    /// Removes the eras that `op` began: it was rejected and not executed.
    pub fn undo(&mut self, op: OpId) {
        for cell in self.names.values_mut() {
            cell.versions.retain(|v| v.op != op || op == OpId(0));
        }
        self.groups.retain(|(o, _)| *o != op);
    }

    /// Whether the era of a name is certain.
    pub fn is_certain(&self, name: &str) -> bool {
        let newest = self.names.get(name).and_then(|c| c.versions.last());
        newest.is_none_or(|v| matches!(self.ops[v.op.0].end, End::Acknowledged { .. }))
            && self.disk(name).is_none_or(|d| d.taken_from.is_none())
    }

    /// The content of a block now, if certain.
    pub fn certain(&self, name: &str, block: u64) -> Option<Content> {
        let Some(cell) = self.disk(name)?.blocks.get(&block) else { return Some(Content::zero()) };
        let now = TimeSet::span(self.stamp, self.stamp);
        let mut possible = cell.possible(&self.ops, &now).into_iter().map(|i| &cell.versions[i].value);
        let first = possible.next()?;
        possible.all(|c| c == first).then(|| first.clone())
    }

    /// Whether `change` of a range requires the contents of its first and last block.
    pub fn partial_blocks(&self, name: &str, offset: u64, len: u64) -> Vec<u64> {
        let Some(disk) = self.disk(name) else { return Vec::new() };
        let partial = |(block, part): &(u64, Range<usize>)| part.len() < disk.valid(*block);
        let (end, last) = (offset + len, (offset + len - 1) / BLOCK as u64 * BLOCK as u64);
        let mut edges: Vec<_> = pieces(offset, len).take(1).collect();
        edges.extend(pieces(last.max(offset), end - last.max(offset)));
        edges.dedup();
        edges.into_iter().filter(partial).map(|(block, _)| block).collect()
    }

    /// `op` changes a range of `name`. The content of partial blocks must be certain.
    pub fn change(&mut self, name: &str, op: OpId, offset: u64, len: u64, change: Change) {
        let era_op = self.names[name].versions.last().map_or(OpId(0), |v| v.op);
        let disk = self.disk(name).expect("the workload changes disks that exist");
        let known: Vec<(u64, Range<usize>)> = match change {
            Change::Write(_) => pieces(offset, len).collect(),
            // Blocks that were never written are zero already, and stay zero unless there is a concurrent
            // write.
            _ if self.overlapping => pieces(offset, len).collect(),
            _ => {
                let range = offset / BLOCK as u64..(offset + len).div_ceil(BLOCK as u64);
                let part = |b: u64| pieces(offset.max(b * BLOCK as u64), 1).next().map(|p| (b, p.1.start));
                let to = |b: u64| (offset + len - b * BLOCK as u64).min(BLOCK as u64) as usize;
                let parts = disk.blocks.range(range).filter_map(|(&b, _)| part(b));
                parts.map(|(b, from)| (b, from..to(b))).collect()
            }
        };
        let mut new = Vec::new();
        for (block, part) in known {
            let whole = part.len() == disk.valid(block);
            let before = if whole { Some(Content::zero()) } else { self.certain(name, block) };
            let before = before.expect("the content of a block that is changed in part is certain");
            let after = match change {
                Change::Write(w) => before.with(part, w),
                Change::Zero => before.with(part, 0),
                Change::Discard if whole => Content::zero(),
                Change::Discard => continue,
            };
            new.push((block, after));
        }
        let disk = self.disk_mut(name);
        for (block, content) in new {
            let cell = disk.blocks.entry(block).or_insert_with(|| Cell::new(era_op, Content::zero()));
            cell.push(op, content);
        }
    }

    /// Checks the bytes of a read of `name` at `offset`, which took from `begin` until now; `is_durable` if
    /// what it shows must survive a crash.
    pub fn check_read(
        &mut self,
        name: &str,
        offset: u64,
        bytes: &[u8],
        begin: Stamp,
        is_durable: bool,
    ) -> Result<(), String> {
        let end = self.tick();
        let span = TimeSet::span(begin, end);
        let ops = std::mem::take(&mut self.ops);
        let disk = self.disk_mut(name);
        let mut wrong = None;
        for (block, part) in pieces(offset, bytes.len() as u64) {
            let at = (block * BLOCK as u64 + part.start as u64 - offset) as usize;
            let found = &bytes[at..at + part.len()];
            if let Err(why) = check_block(&ops, disk, (block, part), found, &span, is_durable) {
                wrong = Some(format!("read of '{name}' at {offset}, {} bytes: {why}", bytes.len()));
                break;
            }
        }
        self.ops = ops;
        wrong.map_or(Ok(()), Err)
    }

    /// Records that a read from `begin` until now determined the content of `block` of `name`. A crash may
    /// undo it with writes to other blocks, which other clients made and no client flushed.
    pub fn settle(&mut self, name: &str, block: u64, bytes: &[u8], begin: Stamp) -> Result<(), String> {
        let now = TimeSet::span(begin, self.now());
        let end = self.tick();
        let Some(cell) = self.disk(name).and_then(|d| d.blocks.get(&block)) else { return Ok(()) };
        let matching = |i: &usize| cell.versions[*i].value.matches(block, 0..bytes.len(), bytes);
        let Some(i) = cell.possible(&self.ops, &now).into_iter().rfind(matching) else {
            return Err(format!("block {block} of '{name}' holds {}", describe(block * BLOCK as u64, bytes)));
        };
        let content = cell.versions[i].value.clone();
        self.ops.push(Op { begin, end: End::Acknowledged { at: end, durable: false } });
        let op = OpId(self.ops.len() - 1);
        let cell = self.disk_mut(name).blocks.get_mut(&block).expect("found above");
        cell.push_observed(op, content);
        Ok(())
    }

    /// The moments at which `block` had the content `bytes` in era `source`.
    pub(crate) fn moments(&self, source: &EraId, block: u64, bytes: &[u8]) -> TimeSet {
        let disk = self.names[&source.name].versions[source.era].value.as_ref();
        let Some(cell) = disk.and_then(|d| d.blocks.get(&block)) else {
            let zero = bytes.iter().all(|b| *b == 0);
            return if zero { TimeSet::all() } else { TimeSet::empty() };
        };
        let matching = |i: &usize| cell.versions[*i].value.matches(block, 0..bytes.len(), bytes);
        let found = (0..cell.versions.len()).filter(matching);
        // An era's first version exists from its begin; that it is older does not matter to a copy.
        found.fold(TimeSet::empty(), |set, i| set.or(&cell.window(&self.ops, i)))
    }

    /// The possible contents of a disk that was just taken from another: certain contents, and the blocks
    /// whose contents must be read.
    pub fn taken(&self, name: &str) -> (BTreeMap<u64, Content>, Vec<u64>) {
        let (Some(disk), Some(version)) = (self.disk(name), self.names[name].versions.last()) else {
            return Default::default();
        };
        let Some(source) = &disk.taken_from else { return Default::default() };
        let op = self.ops[version.op.0];
        let end = match op.end {
            End::Acknowledged { at, .. } => at,
            _ => NEVER,
        };
        let span = TimeSet::span(op.begin, end);
        let (mut known, mut unknown) = (BTreeMap::new(), Vec::new());
        let from = self.names[&source.name].versions[source.era].value.as_ref();
        for (&block, cell) in from.iter().flat_map(|d| &d.blocks) {
            let possible = cell.possible(&self.ops, &span);
            let mut contents = possible.iter().map(|&i| &cell.versions[i].value);
            match contents.next() {
                Some(first) if contents.all(|c| c == first) => drop(known.insert(block, first.clone())),
                _ => unknown.push(block),
            }
        }
        (known, unknown)
    }

    /// Determines the contents of `name`, which an acknowledged operation took from another disk: `read` has
    /// the blocks that were not certain. Fails if no single moment of the other disk explains them.
    pub fn settle_taken(&mut self, name: &str, read: &BTreeMap<u64, Vec<u8>>) -> Result<(), String> {
        let (mut known, _) = self.taken(name);
        let version = self.names[name].versions.last().expect("it was just made");
        let (op, source) = (version.op, version.value.as_ref().and_then(|d| d.taken_from.clone()));
        let source = source.expect("only a disk that was taken from another is settled");
        let End::Acknowledged { at, .. } = self.ops[op.0].end else { return Ok(()) };
        let mut moments = TimeSet::span(self.begun(op), at);
        for (&block, bytes) in read {
            let now = moments.and(&self.moments(&source, block, bytes));
            if now.is_empty() {
                let found = describe(block * BLOCK as u64, bytes);
                let history = self.explain(&source, block);
                return Err(format!(
                    "'{name}' is no moment of '{}': block {block} holds {found}; until then it was one of \
                     {moments:?}; history of the block: {history}",
                    source.name
                ));
            }
            moments = now;
        }
        let from = self.names.get_mut(&source.name).expect("names are never forgotten");
        let disk = from.versions[source.era].value.as_mut().expect("it was taken from a disk");
        for (&block, bytes) in read {
            let Some(cell) = disk.blocks.get_mut(&block) else { continue };
            let matching =
                |v: &&mut crate::history::Version<Content>| v.value.matches(block, 0..bytes.len(), bytes);
            let mut matching: Vec<_> = cell.versions.iter_mut().filter(matching).collect();
            if let Some(v) = matching.last() {
                known.insert(block, v.value.clone());
            }
            // The snapshot is durable, therefore its contents are durable in its disk, too.
            if let [only] = matching.as_mut_slice() {
                only.seen = only.seen.min(at);
                only.durable = true;
            }
        }
        let disk = self.disk_mut(name);
        disk.taken_from = None;
        let cells = known.into_iter().filter(|(_, c)| !c.is_zero());
        disk.blocks = cells.map(|(b, c)| (b, Cell::new(op, c))).collect();
        Ok(())
    }

    /// Returns the history of a block as text.
    pub(crate) fn explain(&self, era: &EraId, block: u64) -> String {
        let disk = self.names[&era.name].versions[era.era].value.as_ref();
        match disk.and_then(|d| d.blocks.get(&block)) {
            Some(cell) => explain_cell(&self.ops, cell),
            None => "never written".into(),
        }
    }
}

fn explain_cell(ops: &Ops, cell: &Cell<Content>) -> String {
    let one = |v: &crate::history::Version<Content>| {
        let op = ops[v.op.0];
        let end = match op.end {
            End::Pending => "pending".into(),
            End::Failed { at } => format!("{at} failed"),
            End::Acknowledged { at, durable } => format!("{at}{}", if durable { " durable" } else { "" }),
        };
        format!("{:?} [{}..{end}]", v.value, op.begin)
    };
    cell.versions.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn check_block(
    ops: &Ops,
    disk: &mut DiskState,
    (block, part): (u64, Range<usize>),
    found: &[u8],
    span: &TimeSet,
    is_durable: bool,
) -> Result<(), String> {
    let wrong = |history: String| {
        let found = describe(block * BLOCK as u64 + part.start as u64, found);
        Err(format!("block {block} gave {found}; during {span:?} its history was: {history}"))
    };
    let Some(cell) = disk.blocks.get_mut(&block) else {
        return if found.iter().all(|b| *b == 0) { Ok(()) } else { wrong("never written".into()) };
    };
    let possible = cell.possible(ops, span);
    let matches = |i: &usize| cell.versions[*i].value.matches(block, part.clone(), found);
    let matching: Vec<_> = possible.iter().copied().filter(matches).collect();
    match matching.as_slice() {
        [] => wrong(explain_cell(ops, cell)),
        &[only] => {
            if let (Some(begin), Some(end)) = (span.first(), span.last()) {
                cell.saw(ops, only, begin, end);
                // An observed state has no operation whose place in history the read could determine.
                cell.versions[only].durable |= is_durable && !cell.versions[only].observed;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}
