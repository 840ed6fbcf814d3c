//! Verifies a pool that no server has open: every superblock copy, every batch, every node, every block.
//!
//! The check writes nothing. It reads the log twice: once batch by batch, which detects damage anywhere, and
//! once from the maps, which detects missing data and determines the affected disks.
//!
//! Objects may be absent that the segment table still lists: the checkpoint is older than their deletion.
//! They hold no live data, otherwise the second pass reports it as missing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forebay_format::{BLOCK, BlockRef, FormatError, PoolId, SegmentId, SegmentRecord, Superblock};
use forebay_store::{Metered, Store};
use hashbrown::HashSet;
use roaring::RoaringTreemap;
use serde::Serialize;

use super::footers::{Epochs, ended_in_order};
use crate::catalogue::Catalogue;
use crate::hash::BuildU64Hasher;
use crate::log::scan_past_gaps;
use crate::lost::{is_lost, location_text};
use crate::map::{Dirty, NeedNode, Node, Ref, Tree};
use crate::read::{Reader, RelocationRef};
use crate::recovery::{Mode, OnLoss, read_checkpoint, recover};
use crate::sync::RwLock;
use crate::text::shorten;
use crate::{Error, Host, PoolConfig, Result};

/// A problem that the check found.
#[derive(Debug, Clone, Serialize)]
pub struct Problem {
    /// Description of the problem.
    pub what: String,
    /// Location on the store.
    pub place: String,
    /// The disks that need the damaged data, by export name.
    pub disks: Vec<String>,
}

/// Counts and results of a check.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CheckReport {
    /// Volumes, snapshots and images.
    pub disks: u64,
    /// Segments.
    pub segments: u64,
    /// Batches.
    pub batches: u64,
    /// Distinct nodes of block maps.
    pub nodes: u64,
    /// Distinct blocks that maps refer to.
    pub blocks: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Problems found; empty for a sound pool.
    pub problems: Vec<Problem>,
}

impl CheckReport {
    fn problem(&mut self, what: impl Into<String>, place: String) {
        self.problems.push(Problem { what: what.into(), place, disks: Vec::new() });
    }
}

/// Verifies the pool on a store that no server has open. `progress` is called periodically.
///
/// # Errors
/// If there is no pool, if it is of a newer format, and if damage prevents opening it: no intact superblock
/// copy, or no intact checkpoint. All other problems are in the report.
pub async fn check(
    store: Arc<dyn Store>,
    host: Arc<dyn Host>,
    mut progress: impl FnMut(&CheckReport),
) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let superblock = check_superblocks(&*store, &mut report).await?;
    let clock = host.clone();
    let store = Arc::new(Metered::new(store, Arc::new(move || clock.now())));
    let config = PoolConfig { dedup_index: 0, ..PoolConfig::default() };
    let pool = recover(store, host, config, Mode::Look, OnLoss::Report).await?;
    let reader = &*pool.reader;
    if let Some(damage) = &pool.damage {
        let what = format!("{damage}; this report covers the pool before that point; see 'forebay recover'");
        report.problem(what, format!("batch {}", damage.id));
    }
    let table: Vec<SegmentRecord> = pool.log.table().iter().copied().collect();
    report.segments = table.len() as u64;
    let mut epochs = Epochs::default();
    let objects: BTreeSet<SegmentId> = reader.source.store.list().await?.iter().map(|o| o.id).collect();
    for record in &table {
        match RelocationRef::of(record) {
            Some(relocation) if objects.contains(&relocation.container) => {
                if let Err(e) = reader.source.read_relocation_map(record.segment, &relocation).await {
                    let place = format!("segment {}, for segment {}", relocation.container, record.segment);
                    report.problem(format!("a relocation map cannot be read ({e})"), place);
                }
            }
            None if objects.contains(&record.segment) => {
                check_segment(reader, superblock.pool, record, &mut epochs, &mut report).await?;
            }
            _ => {}
        }
        report.bytes_read = reader.source.store.counts().read.bytes;
        progress(&report);
    }
    let (checkpoint, _) = read_checkpoint(&reader.source, &superblock).await?;
    let in_place = |r: &&SegmentRecord| r.map.is_none() && objects.contains(&r.segment);
    for record in
        ended_in_order(&table, &epochs, &superblock, &checkpoint.segments).into_iter().filter(in_place)
    {
        if let Err(e) = reader.source.read_footer(record).await {
            let why = match e {
                Error::Format(why) => why.to_string(),
                other => other.to_string(),
            };
            let what = format!(
                "the directory of a segment cannot be read ({why}); its fingerprints will be computed from the batches"
            );
            report.problem(what, format!("segment {}, offset {}", record.segment, record.written));
        }
    }
    check_maps(reader, &pool.applier.catalogue, &mut report, &mut progress).await;
    report.bytes_read = reader.source.store.counts().read.bytes;
    Ok(report)
}

async fn check_superblocks(store: &dyn Store, report: &mut CheckReport) -> Result<Superblock> {
    let copies = store.read_superblock().await?;
    if copies.iter().all(Option::is_none) {
        return Err(Error::NoPool("there is no superblock".into()));
    }
    let best = match Superblock::choose([copies[0].as_deref(), copies[1].as_deref()]) {
        // As on opening a pool: copy 1 is the first to be written.
        Err(e)
            if copies[0].is_none()
                && !matches!(e, FormatError::Newer { .. })
                && store.list().await?.is_empty() =>
        {
            return Err(Error::NoPool(
                "the creation of a pool was interrupted; open it to complete the creation".into(),
            ));
        }
        chosen => chosen?,
    };
    for (i, copy) in copies.iter().enumerate() {
        let place = format!("superblock copy {i}");
        match copy.as_deref().map(Superblock::decode) {
            Some(Ok(_)) => {}
            Some(Err(e)) => report.problem(e.to_string(), place),
            // The first superblock of a new pool has no second copy yet.
            None if best.generation < 2 => {}
            None => report.problem("it is missing", place),
        }
    }
    Ok(best)
}

/// Verifies the batches of a segment, and records the epochs found in them.
async fn check_segment(
    reader: &Reader,
    id: PoolId,
    record: &SegmentRecord,
    epochs: &mut Epochs,
    report: &mut CheckReport,
) -> Result<()> {
    let segment = record.segment;
    let place = |at: u64| format!("segment {segment}, offset {at}");
    let scan = match scan_past_gaps(&*reader.source.store, id, segment, None, u64::from(record.written)).await
    {
        Ok(scan) => scan,
        Err(Error::Store(e)) => {
            report.problem(e.to_string(), place(0));
            return Ok(());
        }
        Err(e) => return Err(e),
    };
    report.batches += scan.batches.len() as u64;
    if scan.header_damaged {
        report.problem("the segment header is damaged", place(0));
    }
    for gap in &scan.gaps {
        report.problem("a batch is damaged", place(gap.offset));
    }
    let first = scan.batches.first().filter(|b| b.header.offset as usize == BLOCK);
    epochs.of_segments.extend(first.map(|b| (segment, b.header.epoch)));
    for batch in &scan.batches {
        let last = epochs.last_group.entry(batch.header.epoch).or_default();
        *last = batch.header.group.max(*last);
    }
    Ok(())
}

/// Walks every map; if damage was found, walks again to determine the affected disks.
async fn check_maps(
    reader: &Reader,
    catalogue: &RwLock<Catalogue>,
    report: &mut CheckReport,
    progress: &mut impl FnMut(&CheckReport),
) {
    let disks: Vec<(String, Tree)> = {
        let catalogue = catalogue.read();
        catalogue.iter().map(|d| (shorten(&catalogue.export_name(d)), d.tree.read().clone())).collect()
    };
    report.disks = disks.len() as u64;
    let mut damaged: BTreeMap<u64, Problem> = BTreeMap::new();
    let (mut seen, mut verified) = (AddressSet::default(), RoaringTreemap::new());
    for (_, tree) in &disks {
        let mut todo: Vec<Ref> = tree.root().into_iter().collect();
        while let Some(reference) = todo.pop() {
            let Some(mut blocks) = step(reader, reference, &mut seen, &mut todo, &mut damaged).await else {
                continue;
            };
            report.nodes += 1;
            blocks.retain(|block| {
                if is_lost(block) {
                    damaged.entry(block.addr.to_u64()).or_insert_with(|| lost_problem(*block));
                    return false;
                }
                verified.insert(block.addr.to_u64())
            });
            report.blocks += blocks.len() as u64;
            verify_blocks(reader, blocks, &mut damaged).await;
        }
        report.bytes_read = reader.source.store.counts().read.bytes;
        progress(report);
    }
    if !damaged.is_empty() {
        for (name, tree) in &disks {
            let needed = needed_by(reader, tree).await;
            let mine = damaged.iter_mut().filter(|(addr, _)| needed.contains(*addr));
            mine.for_each(|(_, problem)| problem.disks.push(name.clone()));
        }
    }
    report.problems.extend(damaged.into_values());
}

/// Addresses of nodes and blocks.
type AddressSet = HashSet<u64, BuildU64Hasher>;

impl Ref {
    fn address(&self) -> Option<u64> {
        match self {
            Ref::Block(block) => Some(block.addr.to_u64()),
            Ref::Node(need) | Ref::Base(need) => Some(need.at.addr.to_u64()),
            Ref::Memory(dirty) => dirty.stored().map(|at| at.addr.to_u64()),
        }
    }
}

/// One step of a walk: appends the references of a node to the list, and returns its blocks. `None` if the
/// node was visited before, or cannot be read.
async fn step(
    reader: &Reader,
    reference: Ref,
    seen: &mut AddressSet,
    todo: &mut Vec<Ref>,
    damaged: &mut BTreeMap<u64, Problem>,
) -> Option<Vec<BlockRef>> {
    if reference.address().is_some_and(|addr| !seen.insert(addr)) {
        return None;
    }
    let (mut blocks, mut base) = (Vec::new(), None);
    let leaf = match reference {
        Ref::Block(_) => return None,
        Ref::Memory(Dirty::Inner(inner)) => {
            Dirty::Inner(inner).references(|r| todo.push(r));
            return Some(blocks);
        }
        Ref::Memory(Dirty::Leaf(leaf)) => leaf,
        Ref::Node(need) | Ref::Base(need) => load(reader, need, damaged).await?,
    };
    leaf.references(|r| match r {
        Ref::Block(block) => blocks.push(block),
        Ref::Base(_) | Ref::Memory(Dirty::Leaf(_)) => base = Some(r),
        other => todo.push(other),
    });
    // Of its base a leaf needs only the entries that it does not list itself; the rest may be gone. The base
    // is not visited as a separate node here, so it is not recorded as seen.
    let base = match base {
        Some(Ref::Base(need)) => load(reader, need, damaged).await,
        Some(Ref::Memory(Dirty::Leaf(node))) => Some(node),
        _ => None,
    };
    if let Some(base) = base {
        leaf.uncovered(&base, |block| blocks.push(block));
    }
    Some(blocks)
}

async fn load(reader: &Reader, need: NeedNode, damaged: &mut BTreeMap<u64, Problem>) -> Option<Node> {
    match reader.nodes.load(need).await {
        Ok(node) => Some(node),
        Err(e) => {
            damaged.insert(need.at.addr.to_u64(), node_problem(need, &e));
            None
        }
    }
}

/// Addresses of all nodes and blocks that one disk needs. Of the base of a leaf it needs only the blocks that
/// the leaf does not list itself.
async fn needed_by(reader: &Reader, tree: &Tree) -> AddressSet {
    let mut needed = AddressSet::default();
    let mut todo: Vec<Ref> = tree.root().into_iter().collect();
    while let Some(reference) = todo.pop() {
        needed.extend(reference.address());
        let (leaf, mut base) = match reference {
            Ref::Block(_) => continue,
            Ref::Memory(Dirty::Inner(inner)) => {
                Dirty::Inner(inner).references(|r| todo.push(r));
                continue;
            }
            Ref::Memory(Dirty::Leaf(leaf)) => (leaf, None),
            Ref::Node(need) | Ref::Base(need) => match reader.nodes.load(need).await {
                Ok(node) => (node, None),
                Err(_) => continue,
            },
        };
        leaf.references(|r| match r {
            Ref::Base(need) => base = Some(Ref::Base(need)),
            Ref::Memory(dirty @ Dirty::Leaf(_)) => base = Some(Ref::Memory(dirty)),
            other => todo.push(other),
        });
        let Some(base) = base else { continue };
        needed.extend(base.address());
        let base = match base {
            Ref::Base(need) => reader.nodes.load(need).await.ok(),
            Ref::Memory(Dirty::Leaf(node)) => Some(node),
            _ => None,
        };
        if let Some(base) = base {
            leaf.uncovered(&base, |block| {
                needed.insert(block.addr.to_u64());
            });
        }
    }
    needed
}

fn node_problem(need: NeedNode, why: &Error) -> Problem {
    Problem {
        what: format!("a node of a block map cannot be read ({why})"),
        place: location_text(&need.at),
        disks: Vec::new(),
    }
}

fn lost_problem(at: BlockRef) -> Problem {
    let what = "a block is lost: data that it depended on could not be read".into();
    Problem { what, place: location_text(&at), disks: Vec::new() }
}

/// Reads blocks and verifies their checksums.
async fn verify_blocks(reader: &Reader, mut blocks: Vec<BlockRef>, damaged: &mut BTreeMap<u64, Problem>) {
    blocks.sort_unstable_by_key(|b| b.addr);
    reader
        .source
        .read_blocks(&blocks, |i, content| {
            let Err(why) = content else { return };
            let problem = Problem {
                what: format!("a block is damaged ({why})"),
                place: location_text(&blocks[i]),
                disks: Vec::new(),
            };
            damaged.insert(blocks[i].addr.to_u64(), problem);
        })
        .await;
}
