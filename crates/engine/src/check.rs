//! Verifying a pool that no server has open: every superblock copy, every batch, every node, every block.
//!
//! Nothing is written. The log is read twice over: once batch by batch, which finds damage wherever it is,
//! and once from the maps, which finds what is missing and says whose data it was.
//!
//! Objects may be gone that the segment table still names: the checkpoint is older than their deletion.
//! Nothing that is live rests in them, or the second reading finds it missing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forebay_format::{BLOCK, BlockRef, FormatError, PoolId, SegmentId, SegmentRecord, Superblock};
use forebay_store::{Metered, Store};
use hashbrown::HashSet;
use serde::Serialize;

use crate::catalogue::shorten;
use crate::damage::is_lost;
use crate::footers::{Epochs, ended_in_order};
use crate::hash::BuildU64Hasher;
use crate::map::{Dirty, NeedNode, Node, Ref, Tree};
use crate::mark::Slots;
use crate::places::Rest;
use crate::pool::Pool;
use crate::recovery::{Mode, OnLoss, Recovered};
use crate::scan::scan_past_gaps;
use crate::{Error, Host, PoolConfig, Result};

/// Something that is not as it should be.
#[derive(Debug, Clone, Serialize)]
pub struct Problem {
    /// What is wrong.
    pub what: String,
    /// Where on the store.
    pub place: String,
    /// The disks that need what is damaged, by export name.
    pub disks: Vec<String>,
}

/// What a check went through and found.
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
    /// What is wrong; empty for a sound pool.
    pub problems: Vec<Problem>,
}

impl CheckReport {
    fn problem(&mut self, what: impl Into<String>, place: String) {
        self.problems.push(Problem { what: what.into(), place, disks: Vec::new() });
    }
}

/// Verifies the pool on a store that no server has open. `progress` is called now and then.
///
/// # Errors
/// Where there is no pool at all, where it is of a newer format, and where damage leaves no way in: neither
/// superblock copy, or not the checkpoint. Everything else is in the report.
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
    let Recovered { pool, damage, .. } =
        Pool::recover(store, host, config, Mode::Look, OnLoss::Report).await?;
    if let Some(damage) = damage {
        let what =
            format!("{damage}; what follows is of the pool in front of that, 'forebay recover' says more");
        report.problem(what, format!("batch {}", damage.id));
    }
    let table: Vec<SegmentRecord> = pool.log.lock().await.table().values().copied().collect();
    report.segments = table.len() as u64;
    let mut epochs = Epochs::default();
    let objects: BTreeSet<SegmentId> = pool.store.list().await?.iter().map(|o| o.id).collect();
    for record in &table {
        match Rest::of(record) {
            Some(rest) if objects.contains(&rest.container) => {
                if let Err(e) = pool.read_relocation_map(record.segment, &rest).await {
                    let place = format!("segment {}, for segment {}", rest.container, record.segment);
                    report.problem(format!("a relocation map cannot be read ({e})"), place);
                }
            }
            None if objects.contains(&record.segment) => {
                check_segment(&pool, superblock.pool, record, &mut epochs, &mut report).await?;
            }
            _ => {}
        }
        report.bytes_read = pool.store.counts().read.bytes;
        progress(&report);
    }
    let checkpoint = pool.read_checkpoint(&superblock.blobs).await?.unwrap_or_default();
    let in_place = |r: &&SegmentRecord| r.map.is_none() && objects.contains(&r.segment);
    for record in ended_in_order(&table, &epochs, &superblock, &checkpoint).into_iter().filter(in_place) {
        if let Err(e) = pool.read_footer(record).await {
            let why = match e {
                Error::Format(why) => why.to_string(),
                other => other.to_string(),
            };
            let what = format!(
                "the directory of a segment cannot be read ({why}); its fingerprints are made anew from the batches"
            );
            report.problem(what, format!("segment {}, offset {}", record.segment, record.written));
        }
    }
    check_maps(&pool, &mut report, &mut progress).await;
    report.bytes_read = pool.store.counts().read.bytes;
    Ok(report)
}

async fn check_superblocks(store: &dyn Store, report: &mut CheckReport) -> Result<Superblock> {
    let copies = store.read_superblock().await?;
    if copies.iter().all(Option::is_none) {
        return Err(Error::NoPool("there is no superblock".into()));
    }
    let best = match Superblock::choose([copies[0].as_deref(), copies[1].as_deref()]) {
        // As when a pool is opened: the first copy to be written is number 1.
        Err(e)
            if copies[0].is_none()
                && !matches!(e, FormatError::Newer { .. })
                && store.list().await?.is_empty() =>
        {
            return Err(Error::NoPool(
                "the making of a pool was interrupted; open it, and it is made".into(),
            ));
        }
        chosen => chosen?,
    };
    for (i, copy) in copies.iter().enumerate() {
        let place = format!("superblock copy {i}");
        match copy.as_deref().map(Superblock::decode) {
            Some(Ok(_)) => {}
            Some(Err(e)) => report.problem(e.to_string(), place),
            // The first superblock of a new pool has no other beside it yet.
            None if best.generation < 2 => {}
            None => report.problem("it is missing", place),
        }
    }
    Ok(best)
}

/// Verifies the batches of a segment, and notes what they tell of epochs.
async fn check_segment(
    pool: &Pool,
    id: PoolId,
    record: &SegmentRecord,
    epochs: &mut Epochs,
    report: &mut CheckReport,
) -> Result<()> {
    let segment = record.segment;
    let place = |at: u64| format!("segment {segment}, offset {at}");
    let scan = match scan_past_gaps(&*pool.store, id, segment, None, u64::from(record.written)).await {
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

/// Walks every map; then, if something was damaged, once more to say whose it was.
async fn check_maps(pool: &Pool, report: &mut CheckReport, progress: &mut impl FnMut(&CheckReport)) {
    let disks: Vec<(String, Tree)> = {
        let catalogue = pool.catalogue.read();
        catalogue.iter().map(|d| (shorten(&catalogue.export_name(d)), d.tree.read().clone())).collect()
    };
    report.disks = disks.len() as u64;
    let mut damaged: BTreeMap<u64, Problem> = BTreeMap::new();
    let (mut seen, mut verified) = (Seen::default(), Slots::default());
    for (_, tree) in &disks {
        let mut todo: Vec<Ref> = tree.root().into_iter().collect();
        while let Some(reference) = todo.pop() {
            let Some(mut blocks) = step(pool, reference, &mut seen, &mut todo, &mut damaged).await else {
                continue;
            };
            report.nodes += 1;
            blocks.retain(|block| {
                if is_lost(block) {
                    damaged.entry(block.addr.to_u64()).or_insert_with(|| lost_problem(*block));
                    return false;
                }
                verified.insert(block)
            });
            report.blocks += blocks.len() as u64;
            verify_blocks(pool, blocks, &mut damaged).await;
        }
        report.bytes_read = pool.store.counts().read.bytes;
        progress(report);
    }
    if !damaged.is_empty() {
        for (name, tree) in &disks {
            let needed = needed_by(pool, tree).await;
            let mine = damaged.iter_mut().filter(|(addr, _)| needed.contains(*addr));
            mine.for_each(|(_, problem)| problem.disks.push(name.clone()));
        }
    }
    report.problems.extend(damaged.into_values());
}

type Seen = HashSet<u64, BuildU64Hasher>;

impl Ref {
    fn address(&self) -> Option<u64> {
        match self {
            Ref::Block(block) => Some(block.addr.to_u64()),
            Ref::Node(need) | Ref::Base(need) => Some(need.at.addr.to_u64()),
            Ref::Memory(dirty) => dirty.stored().map(|at| at.addr.to_u64()),
        }
    }
}

/// Takes one step of a walk: puts what a node refers to on the list, and returns its blocks. `None` where the
/// node was seen before, or cannot be read.
async fn step(
    pool: &Pool,
    reference: Ref,
    seen: &mut Seen,
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
        Ref::Node(need) | Ref::Base(need) => load(pool, need, damaged).await?,
    };
    leaf.references(|r| match r {
        Ref::Block(block) => blocks.push(block),
        Ref::Base(_) | Ref::Memory(Dirty::Leaf(_)) => base = Some(r),
        other => todo.push(other),
    });
    // Of its base a leaf needs what it does not list itself; the rest may be gone. The base is not a node of
    // its own here, so it is not noted as seen.
    let base = match base {
        Some(Ref::Base(need)) => load(pool, need, damaged).await,
        Some(Ref::Memory(Dirty::Leaf(node))) => Some(node),
        _ => None,
    };
    if let Some(base) = base {
        leaf.uncovered(&base, |block| blocks.push(block));
    }
    Some(blocks)
}

async fn load(pool: &Pool, need: NeedNode, damaged: &mut BTreeMap<u64, Problem>) -> Option<Node> {
    match pool.load_node(need).await {
        Ok(node) => Some(node),
        Err(e) => {
            damaged.insert(need.at.addr.to_u64(), node_problem(need, &e));
            None
        }
    }
}

/// Addresses of all nodes and blocks that one disk needs. Of the base of a leaf it needs only the blocks that
/// the leaf does not list itself.
async fn needed_by(pool: &Pool, tree: &Tree) -> Seen {
    let mut needed = Seen::default();
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
            Ref::Node(need) | Ref::Base(need) => match pool.load_node(need).await {
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
            Ref::Base(need) => pool.load_node(need).await.ok(),
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
        place: place(need.at),
        disks: Vec::new(),
    }
}

fn lost_problem(at: BlockRef) -> Problem {
    let what = "a block is lost: something that it depended on could not be read".into();
    Problem { what, place: place(at), disks: Vec::new() }
}

fn place(at: BlockRef) -> String {
    format!("segment {}, offset {}", at.addr.segment, at.addr.slot.offset())
}

/// Reads blocks and verifies their checksums.
async fn verify_blocks(pool: &Pool, mut blocks: Vec<BlockRef>, damaged: &mut BTreeMap<u64, Problem>) {
    blocks.sort_unstable_by_key(|b| b.addr);
    pool.read_blocks(&blocks, |i, content| {
        let Err(why) = content else { return };
        let problem = Problem {
            what: format!("a block is damaged ({why})"),
            place: place(blocks[i]),
            disks: Vec::new(),
        };
        damaged.insert(blocks[i].addr.to_u64(), problem);
    })
    .await;
}
