//! Reads all contents of a pool, and checks that its metadata is consistent.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forebay_engine::{DiskInfo, Pool};
use forebay_format::BLOCK;

use crate::model::Model;
use crate::recover::Found;

const B: u64 = BLOCK as u64;
/// Disks with at most this many blocks are read completely.
const SMALL: u64 = 4096;

/// Every disk of the pool with its contents. Of large disks, the blocks in `interesting` and their neighbours
/// are read.
///
/// With `damaged`, unreadable blocks are left out.
pub async fn read_back(
    pool: &Arc<Pool>,
    interesting: BTreeMap<String, Vec<u64>>,
    damaged: bool,
) -> Result<BTreeMap<String, Found>, String> {
    let mut found = BTreeMap::new();
    let disks = pool.disks();
    for info in &disks {
        check_counts(info, &disks)?;
        let blocks = interesting.get(&info.name).cloned().unwrap_or_default();
        let blocks = to_read(info.size.div_ceil(B), &blocks);
        let blocks = read_disk(pool, info, &blocks, damaged).await?;
        let (role, size, sync, origin) = (info.role, info.size, info.sync, info.origin.clone());
        let desktop = info.write_cache > 0;
        let resets = info.reset_at_disconnect;
        found.insert(info.name.clone(), Found { role, size, sync, origin, desktop, resets, blocks });
    }
    if found.len() == disks.len() { Ok(found) } else { Err("two disks have one name".into()) }
}

/// Compares a disk's numbers of snapshots and clones with the list of disks.
fn check_counts(info: &DiskInfo, disks: &[DiskInfo]) -> Result<(), String> {
    let prefix = format!("{}@", info.name);
    let snapshots = disks.iter().filter(|d| d.name.starts_with(&prefix)).count();
    let clones = disks.iter().filter(|d| d.origin.as_ref() == Some(&info.name)).count();
    let (said, is) = ((info.snapshots, info.clones, info.clients), (snapshots, clones, 0));
    if said == is {
        Ok(())
    } else {
        Err(format!("'{}' reports {said:?} snapshots, clones, clients; the list has {is:?}", info.name))
    }
}

/// Runs of blocks to be read.
fn to_read(count: u64, interesting: &[u64]) -> Vec<(u64, u64)> {
    if count <= SMALL {
        return vec![(0, count)];
    }
    let mut blocks: Vec<u64> = vec![0, count - 1];
    blocks.extend(interesting.iter().flat_map(|b| [b.saturating_sub(1), *b, b + 1]));
    blocks.retain(|b| *b < count);
    blocks.sort_unstable();
    blocks.dedup();
    blocks.into_iter().map(|b| (b, b + 1)).collect()
}

async fn read_disk(
    pool: &Arc<Pool>,
    info: &DiskInfo,
    runs: &[(u64, u64)],
    damaged: bool,
) -> Result<BTreeMap<u64, Vec<u8>>, String> {
    let name = &info.name;
    let mut blocks = BTreeMap::new();
    let disk = match pool.attach(name) {
        Ok(disk) => disk,
        Err(e) if damaged => {
            crate::note!("attach to '{name}': {e}");
            return Ok(blocks);
        }
        Err(e) => return Err(format!("attach to '{name}': {e}")),
    };
    let step = if damaged { 1 } else { u64::MAX };
    for &(first, end) in runs {
        let mut at = first;
        while at < end {
            let next = at.saturating_add(step).min(end);
            let (from, to) = (at * B, (next * B).min(info.size));
            let mut bytes = vec![0xee; (to - from) as usize];
            match disk.read(from, &mut bytes).await {
                Ok(()) => blocks.extend((at..).zip(bytes.chunks(BLOCK).map(<[u8]>::to_vec))),
                Err(e) if damaged => crate::note!("read of '{name}' at {from}: {e}"),
                Err(e) => return Err(format!("read of '{name}' at {from}: {e}")),
            }
            at = next;
        }
    }
    match check_status(name, info.size, &disk, &blocks).await {
        Err(_) if damaged && disk.extents(0, info.size, usize::MAX).await.is_err() => {}
        checked => checked?,
    }
    Ok(blocks)
}

/// After damage to the medium: each read returns the model's content or an error. Returns the disks with
/// unreadable blocks.
pub async fn read_damaged(pool: &Arc<Pool>, model: &RefCell<Model>) -> Result<BTreeSet<String>, String> {
    let mut bad = BTreeSet::new();
    for info in pool.disks() {
        let known = model.borrow().disk(&info.name).cloned();
        let Some(known) = known else { return Err(format!("'{}' exists again", info.name)) };
        let Ok(disk) = pool.attach(&info.name) else { continue };
        let runs = to_read(info.size.div_ceil(B), &known.blocks.keys().copied().collect::<Vec<_>>());
        for block in runs.into_iter().flat_map(|(first, end)| first..end.min(known.block_count())) {
            let mut bytes = vec![0xee; known.valid(block)];
            if disk.read(block * B, &mut bytes).await.is_err() {
                bad.insert(info.name.clone());
                continue;
            }
            let right = model.borrow().certain(&info.name, block);
            let right = right.expect("a model that was judged is certain");
            if !right.matches(block, 0..bytes.len(), &bytes) {
                let found = crate::content::describe(block * B, &bytes);
                return Err(format!("block {block} of '{}' gave {found}, not {right:?}", info.name));
            }
        }
    }
    Ok(bad)
}

/// Checks that block status over the whole disk never reports data as zero.
async fn check_status(
    name: &str,
    size: u64,
    disk: &forebay_engine::DiskHandle,
    blocks: &BTreeMap<u64, Vec<u8>>,
) -> Result<(), String> {
    let extents = disk.extents(0, size, usize::MAX).await.map_err(|e| format!("extents of '{name}': {e}"))?;
    let mut at = 0;
    for extent in extents {
        let range = at / B..(at + extent.len).div_ceil(B);
        let mut data = blocks.range(range).filter(|(_, bytes)| bytes.iter().any(|b| *b != 0));
        if let Some((block, _)) = data.next()
            && (extent.zero || extent.hole)
        {
            return Err(format!("block status of '{name}' calls block {block} zero, but it holds data"));
        }
        at += extent.len;
    }
    if at == size { Ok(()) } else { Err(format!("block status of '{name}' covers {at} of {size} bytes")) }
}

/// Blocks of each disk to be read.
pub fn interesting(model: &Model) -> BTreeMap<String, Vec<u64>> {
    model.names.keys().map(|n| (n.clone(), crate::recover::known_blocks(model, n))).collect()
}
