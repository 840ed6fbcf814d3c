//! Verifies a pool that no server has open: every superblock copy, every batch, every node, every block.
//!
//! The check writes nothing. It reads the log twice: once batch by batch, which detects damage anywhere, and
//! once from the maps, which detects missing data and determines the affected disks.
//!
//! Objects may be absent that the segment table still lists: the checkpoint is older than their deletion.
//! They hold no live data, otherwise the second pass reports it as missing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forebay_format::{BLOCK, BlockRef, PoolId, SegmentId, SegmentRecord, Superblock};
use forebay_store::{Metered, Store};
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use hashbrown::HashSet;
use roaring::RoaringTreemap;
use serde::Serialize;

use super::footers::{Epochs, ended_in_order};
use crate::catalogue::Catalogue;
use crate::hash::BuildU64Hasher;
use crate::limits::{BLOCK_READS, BLOCK_RUN, CHECK_BLOCKS, CHECK_NODES, CHECK_PARTS, SCANS_AT_ONCE};
use crate::log::{SegmentScan, scan_past_gaps};
use crate::lost::{is_lost, location_text, place_text};
use crate::map::{Dirty, NeedNode, Node, Ref, Tree};
use crate::read::{Reader, RelocationRef};
use crate::recovery::{Mode, OnLoss, recover};
use crate::sync::RwLock;
use crate::text::shorten;
use crate::{Error, Host, PoolConfig, Result};

/// A problem that the check found.
#[derive(Debug, Clone, Serialize)]
pub struct Problem {
    /// Description of the problem that was found.
    pub what: String,
    /// Location of the problem on the store.
    pub place: String,
    /// The disks that need the damaged data, by export name.
    pub disks: Vec<String>,
}

/// Counts and results of a check.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CheckReport {
    /// Number of volumes, snapshots and images.
    pub disks: u64,
    /// Number of segments in the store.
    pub segments: u64,
    /// Number of batches in the log.
    pub batches: u64,
    /// Number of distinct nodes of block maps.
    pub nodes: u64,
    /// Number of distinct blocks that maps refer to.
    pub blocks: u64,
    /// Bytes read from the store.
    pub bytes_read: u64,
    /// Problems that the check found; empty for a sound pool.
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
/// If there is no pool, if this release does not support its format, and if damage prevents opening it: no
/// intact superblock copy, or no intact checkpoint. All other problems are in the report.
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
    // An empty object counts as no object: a former owner that has not noticed the takeover may create an
    // object for a segment that was deleted. The maps show whether a disk needs the segment's blocks.
    let objects = reader.source.store.list().await?;
    let objects: BTreeSet<SegmentId> = objects.iter().filter(|o| o.len > 0).map(|o| o.id).collect();
    for some in table.chunks(SCANS_AT_ONCE) {
        let reads = some.iter().map(|record| read_segment(reader, superblock.pool, record, &objects));
        for read in join_all(reads).await {
            match read? {
                SegmentRead::Nothing => {}
                SegmentRead::Scanned(scan) => check_segment(&scan, &mut epochs, &mut report),
                SegmentRead::Unreadable { what, place } => report.problem(what, place),
            }
        }
        report.bytes_read = reader.source.store.counts().read.bytes;
        progress(&report);
    }
    let in_place = |r: &&SegmentRecord| r.map.is_none() && objects.contains(&r.segment);
    for record in ended_in_order(&table, &epochs).into_iter().filter(in_place) {
        if let Err(e) = reader.source.read_footer(record).await {
            let why = match e {
                Error::Format(why) => why.to_string(),
                other => other.to_string(),
            };
            let what = format!(
                "the directory of a segment cannot be read ({why}); its fingerprints will be computed from the batches"
            );
            report.problem(what, place_text(record.segment, record.written.into()));
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
        // As when a pool is opened: copy 1 is the first to be written.
        Err(e) if copies[0].is_none() && !e.is_unsupported() && store.list().await?.is_empty() => {
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

/// What the check has read of a segment.
enum SegmentRead {
    /// The segment has nothing to report: its object does not exist or is empty, or its relocation map can be
    /// read.
    Nothing,
    Scanned(SegmentScan),
    Unreadable {
        what: String,
        place: String,
    },
}

/// Reads the batches of a segment, or its relocation map.
async fn read_segment(
    reader: &Reader,
    id: PoolId,
    record: &SegmentRecord,
    objects: &BTreeSet<SegmentId>,
) -> Result<SegmentRead> {
    let segment = record.segment;
    match RelocationRef::of(record) {
        Some(relocation) if objects.contains(&relocation.container) => {
            let read = reader.source.read_relocation_map(segment, &relocation).await;
            Ok(read.map_or_else(
                |e| SegmentRead::Unreadable {
                    what: format!("a relocation map cannot be read ({e})"),
                    place: format!("segment {}, for segment {segment}", relocation.container),
                },
                |_| SegmentRead::Nothing,
            ))
        }
        None if objects.contains(&segment) => {
            let len = u64::from(record.written);
            match scan_past_gaps(&*reader.source.store, id, segment, None, len).await {
                Ok(scan) => Ok(SegmentRead::Scanned(scan)),
                Err(Error::Store(e)) => {
                    Ok(SegmentRead::Unreadable { what: e.to_string(), place: place_text(segment, 0) })
                }
                Err(e) => Err(e),
            }
        }
        _ => Ok(SegmentRead::Nothing),
    }
}

/// Reports the damaged batches of a segment, and records the epochs of its intact batches.
fn check_segment(scan: &SegmentScan, epochs: &mut Epochs, report: &mut CheckReport) {
    report.batches += scan.batches.len() as u64;
    if scan.header_damaged {
        report.problem("the segment header is damaged", place_text(scan.segment, 0));
    }
    for gap in &scan.gaps {
        report.problem("a batch is damaged", place_text(scan.segment, gap.offset));
    }
    let first = scan.batches.first().filter(|b| b.header.offset as usize == BLOCK);
    epochs.of_segments.extend(first.map(|b| (scan.segment, b.header.epoch)));
    for batch in &scan.batches {
        let last = epochs.last_group.entry(batch.header.epoch).or_default();
        *last = batch.header.group.max(*last);
    }
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
    let mut blocks = Vec::new();
    for (_, tree) in &disks {
        let mut todo: Vec<Ref> = tree.root().into_iter().collect();
        while !todo.is_empty() {
            let is_new = |reference: &Ref| reference.address().is_none_or(|addr| seen.insert(addr));
            for visit in visit_some(reader, &mut todo, is_new).await {
                report.nodes += u64::from(visit.is_readable);
                todo.extend(visit.below);
                damaged.extend(visit.unreadable);
                for block in visit.blocks {
                    if is_lost(&block) {
                        damaged.entry(block.addr.to_u64()).or_insert_with(|| lost_problem(block));
                    } else if verified.insert(block.addr.to_u64()) {
                        blocks.push(block);
                    }
                }
            }
            if blocks.len() >= CHECK_BLOCKS {
                verify_blocks(reader, std::mem::take(&mut blocks), report, &mut damaged).await;
                progress(report);
            }
        }
    }
    verify_blocks(reader, blocks, report, &mut damaged).await;
    progress(report);
    if !damaged.is_empty() {
        for (name, tree) in &disks {
            let needed = needed_by(reader, tree).await;
            let mine = damaged.iter_mut().filter(|(addr, _)| needed.contains(*addr));
            mine.for_each(|(_, problem)| problem.disks.push(name.clone()));
        }
    }
    report.problems.extend(damaged.into_values());
}

/// A set of addresses of nodes and blocks.
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

/// One step of a walk: what a node refers to.
#[derive(Default)]
struct Visit {
    is_readable: bool,
    blocks: Vec<BlockRef>,
    below: Vec<Ref>,
    /// Address of the node's base.
    base: Option<u64>,
    /// The node or its base, by address, if it cannot be read.
    unreadable: Vec<(u64, Problem)>,
}

impl Visit {
    async fn load(&mut self, reader: &Reader, need: NeedNode) -> Option<Node> {
        let loaded = reader.nodes.load(need).await;
        let failed = loaded.as_ref().err().map(|e| (need.at.addr.to_u64(), node_problem(need, e)));
        self.unreadable.extend(failed);
        loaded.ok()
    }
}

/// Visits the last references of the list for which `is_wanted` holds, concurrently, and removes them.
async fn visit_some(reader: &Reader, todo: &mut Vec<Ref>, is_wanted: impl FnMut(&Ref) -> bool) -> Vec<Visit> {
    let mut some = todo.split_off(todo.len().saturating_sub(CHECK_NODES));
    some.retain(is_wanted);
    join_all(some.into_iter().map(|reference| visit(reader, reference))).await
}

async fn visit(reader: &Reader, reference: Ref) -> Visit {
    let mut visit = Visit::default();
    let leaf = match reference {
        Ref::Block(_) => return visit,
        Ref::Memory(Dirty::Inner(inner)) => {
            Dirty::Inner(inner).references(|r| visit.below.push(r));
            visit.is_readable = true;
            return visit;
        }
        Ref::Memory(Dirty::Leaf(leaf)) => leaf,
        Ref::Node(need) | Ref::Base(need) => match visit.load(reader, need).await {
            Some(node) => node,
            None => return visit,
        },
    };
    visit.is_readable = true;
    let mut base = None;
    leaf.references(|r| match r {
        Ref::Block(block) => visit.blocks.push(block),
        Ref::Base(_) | Ref::Memory(Dirty::Leaf(_)) => base = Some(r),
        other => visit.below.push(other),
    });
    // A leaf needs only those entries of its base that it does not list itself; other entries of the base may
    // be gone. The base is not visited as a separate node here, so it is not recorded as seen.
    visit.base = base.as_ref().and_then(Ref::address);
    let base = match base {
        Some(Ref::Base(need)) => visit.load(reader, need).await,
        Some(Ref::Memory(Dirty::Leaf(node))) => Some(node),
        _ => None,
    };
    if let Some(base) = base {
        leaf.uncovered(&base, |block| visit.blocks.push(block));
    }
    visit
}

/// Addresses of all nodes and blocks that one disk needs. It needs only those blocks of a leaf's base that
/// the leaf does not list itself.
async fn needed_by(reader: &Reader, tree: &Tree) -> AddressSet {
    let mut needed = AddressSet::default();
    let mut todo: Vec<Ref> = tree.root().into_iter().collect();
    while !todo.is_empty() {
        let record = |reference: &Ref| {
            needed.extend(reference.address());
            true
        };
        for visit in visit_some(reader, &mut todo, record).await {
            needed.extend(visit.blocks.iter().map(|block| block.addr.to_u64()));
            needed.extend(visit.base);
            todo.extend(visit.below);
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
async fn verify_blocks(
    reader: &Reader,
    mut blocks: Vec<BlockRef>,
    report: &mut CheckReport,
    damaged: &mut BTreeMap<u64, Problem>,
) {
    blocks.sort_unstable_by_key(|b| b.addr);
    let parts: Vec<_> =
        blocks.chunks(BLOCK_RUN * BLOCK_READS).map(|part| verify_part(reader, part)).collect();
    let mut parts = stream::iter(parts).buffered(CHECK_PARTS);
    while let Some(found) = parts.next().await {
        damaged.extend(found);
    }
    report.blocks += blocks.len() as u64;
    report.bytes_read = reader.source.store.counts().read.bytes;
}

/// Returns the damaged blocks among these blocks, by address.
async fn verify_part(reader: &Reader, blocks: &[BlockRef]) -> Vec<(u64, Problem)> {
    let mut damaged = Vec::new();
    reader
        .source
        .read_blocks(blocks, |i, content| {
            let Err(why) = content else { return };
            let what = format!("a block is damaged ({why})");
            let problem = Problem { what, place: location_text(&blocks[i]), disks: Vec::new() };
            damaged.push((blocks[i].addr.to_u64(), problem));
        })
        .await;
    damaged
}
