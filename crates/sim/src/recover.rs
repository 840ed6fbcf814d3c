//! The verdict: whether the contents of a pool after a crash are a prefix of its history.
//!
//! **The rule.** A single moment T exists, the cut, for all disks at once: every change that had taken effect
//! by T is present, and no other is. For a block this means that its content is that of a version whose
//! window contains T ([`crate::history`]); for a name, that the window of its era contains T. The verdict
//! therefore intersects, over all names and all their blocks, the sets of moments at which each could have
//! been in the state found. An empty intersection is a failure; so is a cut before the *floor*, the latest
//! moment up to which a flush, a durable write or a change to the catalogue promised durability; so is a
//! version that precedes a durable one.
//!
//! Desktops are an exception if the retained memory was lost: independently of their writes, they must equal
//! the disk from which they were cloned. So must one whose last user had left.
//!
//! If the memory was kept, the floor is the end of the process: every acknowledged change is present.
//!
//! **Soundness** (it never blames a correct engine): each version's window covers every moment at which any
//! permitted order of events could show it; contents that several versions share get the union of their
//! windows; versions of unanswered operations may be present or not, block by block.
//!
//! **Limits.** It does not detect whether the blocks of one unanswered request are all present or none (that
//! is not promised), an order that only reads of other disks could have determined, or a wrong version whose
//! content equals that of a right one (which no guest could detect either).

use std::collections::{BTreeMap, BTreeSet};

use forebay_engine::{Role, SyncMode};
use forebay_format::BLOCK;

use crate::content::{Content, describe};
use crate::history::{Cell, End, NEVER, OpId, TimeSet};
use crate::machine::MemoryFate;
use crate::model::{DiskState, EraId, Model};

/// Names with this prefix are unfinished imports, which no recovery keeps.
pub const IMPORT: &str = "import#";

/// A disk in the state found.
pub struct Found {
    /// Role of the disk.
    pub role: Role,
    /// Size of the disk in bytes.
    pub size: u64,
    /// When writes to the disk are durable.
    pub sync: SyncMode,
    /// The disk from which it was cloned.
    pub origin: Option<String>,
    /// Whether it is a desktop.
    pub desktop: bool,
    /// Whether it is reset when its user disconnects.
    pub resets: bool,
    /// The blocks that were read; the contents of others are unknown.
    pub blocks: BTreeMap<u64, Vec<u8>>,
}

/// Blocks to be read after a crash: all blocks of any era of the name.
pub fn known_blocks(model: &Model, name: &str) -> Vec<u64> {
    let eras = model.names.get(name).into_iter().flat_map(|c| &c.versions);
    let mut blocks: Vec<u64> = Vec::new();
    for disk in eras.filter_map(|v| v.value.as_ref()) {
        blocks.extend(disk.blocks.keys());
        let source = disk.taken_from.as_ref().map(|s| &model.names[&s.name].versions[s.era].value);
        blocks.extend(source.into_iter().flatten().flat_map(|d| d.blocks.keys()));
        // A desktop may be reset to it, also in blocks that it had discarded.
        let origin = disk.origin.as_deref().filter(|_| disk.desktop).and_then(|name| model.immutable(name));
        blocks.extend(origin.into_iter().flat_map(|d| d.blocks.keys()));
    }
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

/// Checks the state found after a crash or a close against `model`, which then starts again from it.
pub fn recover(model: &mut Model, found: &BTreeMap<String, Found>) -> Result<(), String> {
    if let Some(name) = found.keys().find(|n| !model.names.contains_key(*n)) {
        return Err(format!("'{name}' exists, but was never created"));
    }
    let mut cut = TimeSet::span(model.floor, NEVER);
    for name in model.names.keys().filter(|n| !n.starts_with(IMPORT)) {
        let mut next = TimeSet::empty();
        let mut reasons = Vec::new();
        for era in 0..model.names[name].versions.len() {
            let era = EraId { name: name.clone(), era };
            match fits(model, &era, found.get(name), &cut) {
                Ok(set) => next = next.or(&set),
                Err(why) => reasons.push(format!("  era {}: {why}", era.era)),
            }
        }
        if next.is_empty() {
            let is = if found.contains_key(name) { "found" } else { "missing" };
            return Err(format!(
                "no prefix of history: '{name}' ({is}) fits no cut in {cut:?}, the floor being {}\n{}",
                model.floor,
                reasons.join("\n")
            ));
        }
        if next != cut {
            crate::note!("'{name}' narrows the cut from {cut:?} to {next:?}");
        }
        cut = next;
    }
    check_groups(model, found)?;
    begin_anew(model, found, &cut)
}

/// Checks that a disk without some acknowledged change refused the clients that may have had the answer.
pub fn no_silent_loss(
    model: &Model,
    found: &BTreeMap<String, Found>,
    refused: &BTreeSet<String>,
) -> Result<(), String> {
    let model = &model.of_answers();
    let all = TimeSet::span(model.now(), NEVER);
    for name in model.names.keys().filter(|n| !n.starts_with(IMPORT) && !refused.contains(*n)) {
        let eras = (0..model.names[name].versions.len()).map(|era| EraId { name: name.clone(), era });
        let fitting: Vec<_> = eras.map(|era| fits(model, &era, found.get(name), &all)).collect();
        let is_there = fitting.iter().any(|fit| fit.as_ref().is_ok_and(|set| !set.is_empty()));
        let desktop = found.get(name).is_some_and(|disk| disk.desktop);
        // An unfinished session has no record of its writes.
        if !(is_there || desktop && model.sessions.contains_key(name)) {
            return Err(format!("'{name}' lost an answered write, and clients are not refused: {fitting:?}"));
        }
    }
    Ok(())
}

/// The subset of the moments `cut` at which the name could have been in `era` and in the state found.
fn fits(model: &Model, era: &EraId, found: Option<&Found>, cut: &TimeSet) -> Result<TimeSet, String> {
    let cell = &model.names[&era.name];
    let window = cell.cut_window(&model.ops, era.era, 0);
    let mut set = window.and(cut);
    let disk = cell.versions[era.era].value.as_ref();
    let (disk, found) = match (disk, found) {
        (None, None) if set.is_empty() => return Err(format!("absent only in {window:?}")),
        (None, None) => return Ok(set),
        (None, Some(_)) => return Err("absent".into()),
        (Some(_), None) => return Err(format!("present in {window:?}")),
        (Some(disk), Some(found)) => (disk, found),
    };
    if set.is_empty() {
        return Err(format!("only in {window:?}"));
    }
    let is = (found.role, found.size, &found.origin, found.desktop);
    let was = (disk.role, disk.size, &disk.origin, disk.desktop);
    let sync_differs = disk.role == Role::Volume && disk.sync != found.sync;
    if is != was || sync_differs {
        return Err(format!("it was {was:?} {:?}, but is {is:?} {:?}", disk.sync, found.sync));
    }
    if disk.desktop && is_reset(model, &era.name) {
        return fits_desktop(model, disk, found).map(|()| set);
    }
    if let Some(source) = &disk.taken_from {
        return fits_taken(model, era, source, found, set);
    }
    for (&block, bytes) in &found.blocks {
        let moments = match disk.blocks.get(&block) {
            Some(cell) => {
                let matches = |i: &usize| cell.versions[*i].value.matches(block, 0..bytes.len(), bytes);
                let matching = (0..cell.versions.len()).filter(matches);
                matching.fold(TimeSet::empty(), |s, i| s.or(&cell.cut_window(&model.ops, i, disk.flushed)))
            }
            None if bytes.iter().all(|b| *b == 0) => continue,
            None => TimeSet::empty(),
        };
        let next = set.and(&moments);
        if next.is_empty() {
            return Err(format!(
                "block {block} holds {}, as in {moments:?}, while the other blocks are as in {set:?}; flushed \
                 at {}; history: {}",
                describe(block * BLOCK as u64, bytes),
                disk.flushed,
                model.explain(era, block)
            ));
        }
        set = next;
    }
    Ok(set)
}

/// Whether a desktop was reset before it was read.
fn is_reset(model: &Model, name: &str) -> bool {
    model.memory != MemoryFate::Kept || model.sessions.contains_key(name)
}

/// Like [`fits`] for a desktop: it equals its origin at any moment.
fn fits_desktop(model: &Model, disk: &DiskState, found: &Found) -> Result<(), String> {
    for (&block, bytes) in &found.blocks {
        if content_of_desktop(model, disk, block, bytes).is_none() {
            let found = describe(block * BLOCK as u64, bytes);
            return Err(format!("block {block} of a desktop holds {found}, its origin does not"));
        }
    }
    Ok(())
}

/// The model's content for `bytes`, if the origin of a desktop has them in `block`.
fn content_of_desktop(model: &Model, disk: &DiskState, block: u64, bytes: &[u8]) -> Option<Content> {
    let origin = model.immutable(disk.origin.as_deref()?)?;
    let newest = origin.blocks.get(&block).and_then(|cell| cell.versions.last());
    let content = newest.map_or_else(Content::zero, |v| v.value.clone());
    content.matches(block, 0..bytes.len(), bytes).then_some(content)
}

/// Like [`fits`] for a disk whose contents were taken from another and had not been read before the crash:
/// one moment of that disk, within the operation, must explain them all.
fn fits_taken(
    model: &Model,
    era: &EraId,
    source: &EraId,
    found: &Found,
    set: TimeSet,
) -> Result<TimeSet, String> {
    let op = model.ops[model.names[&era.name].versions[era.era].op.0];
    let end = match op.end {
        End::Acknowledged { at, .. } => at,
        End::Pending | End::Failed { .. } => NEVER,
    };
    let mut taken = TimeSet::span(op.begin, end);
    for (&block, bytes) in &found.blocks {
        let next = taken.and(&model.moments(source, block, bytes));
        if next.is_empty() {
            return Err(format!(
                "block {block} holds {}, but the other blocks were taken from '{}' in {taken:?}; history: {}",
                describe(block * BLOCK as u64, bytes),
                source.name,
                model.explain(source, block)
            ));
        }
        taken = next;
    }
    Ok(set.and(&TimeSet::span(taken.first().unwrap_or(NEVER), NEVER)))
}

/// The disks that one unanswered operation creates together all exist or none of them does.
fn check_groups(model: &Model, found: &BTreeMap<String, Found>) -> Result<(), String> {
    for (op, names) in &model.groups {
        let made = |n: &&String| model.names[*n].versions.last().is_some_and(|v| v.op == *op);
        let there = names.iter().filter(made).filter(|n| found.contains_key(*n)).count();
        if there != 0 && there != names.iter().filter(made).count() {
            return Err(format!("of {names:?}, made by one operation, {there} exist"));
        }
    }
    Ok(())
}

fn begin_anew(model: &mut Model, found: &BTreeMap<String, Found>, cut: &TimeSet) -> Result<(), String> {
    let mut names = BTreeMap::new();
    for name in model.names.keys().filter(|n| !n.starts_with(IMPORT)) {
        let Some(found) = found.get(name) else {
            names.insert(name.clone(), Cell::new(OpId(0), None));
            continue;
        };
        let eras = (0..model.names[name].versions.len()).rev();
        let eras = eras.map(|era| EraId { name: name.clone(), era });
        let era = eras.into_iter().find(|e| fits(model, e, Some(found), cut).is_ok_and(|s| !s.is_empty()));
        let era = era.ok_or_else(|| format!("'{name}' fits no era at the common cut {cut:?}"))?;
        let mut disk = DiskState::empty(found.role, found.size, found.sync);
        disk.origin = found.origin.clone();
        disk.desktop = found.desktop;
        disk.resets = found.resets;
        for (&block, bytes) in &found.blocks {
            let content = content_of(model, &era, block, bytes);
            let content =
                content.ok_or_else(|| format!("block {block} of '{name}' is from no known write"))?;
            if !content.is_zero() {
                disk.blocks.insert(block, Cell::new(OpId(0), content));
            }
        }
        names.insert(name.clone(), Cell::new(OpId(0), Some(disk)));
    }
    model.names = names;
    model.restart();
    Ok(())
}

/// The model's content for `bytes`, which `block` had in `era`.
fn content_of(model: &Model, era: &EraId, block: u64, bytes: &[u8]) -> Option<Content> {
    if bytes.iter().all(|b| *b == 0) {
        return Some(Content::zero());
    }
    let disk = model.names[&era.name].versions[era.era].value.as_ref()?;
    if disk.desktop && is_reset(model, &era.name) {
        return content_of_desktop(model, disk, block, bytes);
    }
    if let Some(source) = &disk.taken_from {
        return content_of(model, source, block, bytes);
    }
    let versions = disk.blocks.get(&block)?.versions.iter().rev();
    let matches = |c: &&Content| c.matches(block, 0..bytes.len(), bytes);
    versions.map(|v| &v.value).find(matches).cloned()
}

#[cfg(test)]
#[path = "recover_tests.rs"]
mod tests;
