//! Guests' copies inside the pool: by reference if possible, otherwise by reading and writing.

use std::rc::Rc;
use std::sync::Arc;

use forebay_engine::{DiskHandle, SyncMode};
use forebay_format::BLOCK;

use crate::content::Content;
use crate::ctx::Ctx;
use crate::guest::{range, settle, settle_failed};
use crate::history::{Cell, OpId};
use crate::model::{Model, pieces};
use crate::note;
use crate::rng::Rng;

const B: u64 = BLOCK as u64;

/// Copies a range of a disk into `name`. No client writes to the source during the copy, so the copied
/// content is certain.
pub async fn copy(ctx: &Rc<Ctx>, name: &str, disk: &Arc<DiskHandle>, rng: &mut Rng) {
    let Some(source) = ctx.pick(rng, |d| d.taken_from.is_none()) else { return };
    let Some(_busy) = ctx.busy(&source) else { return };
    let Some(from) = ctx.handle(&source, rng) else { return };
    let (offset, mut len) = range(ctx, name, rng);
    if rng.one_in(8) {
        len = (disk.size() - offset).min(600 * B);
    }
    let size = from.size();
    let start = match rng.below(10) {
        0..=3 => offset,
        4..=7 => rng.below(size.div_ceil(B)) * B + offset % B,
        _ => rng.below(size),
    };
    if start >= size {
        return;
    }
    let len = len.min(size - start);
    if source == name && offset.abs_diff(start) < len {
        return;
    }
    let partial = ctx.model.borrow().partial_blocks(name, offset, len);
    let shared = ctx.plan.overlapping && partial.is_empty();
    let blocks = start / B..(start + len).div_ceil(B);
    let Some(_still) = ctx.lock(&source, blocks.start, blocks.end, false) else { return };
    let Some(lock) = ctx.lock(name, offset / B, (offset + len).div_ceil(B), shared) else { return };
    let copied: Vec<u64> = blocks.collect();
    if !settle(ctx, name, disk, &partial).await || !settle(ctx, &source, &from, &copied).await {
        return;
    }
    let op = ctx.model.borrow_mut().begin();
    ctx.model.borrow_mut().copy(name, op, offset, &source, start, len);
    let begin = ctx.model.borrow().begun(op);
    note!("{begin} copy {name} {offset}+{len} from {source} {start}");
    let latched = ctx.latched.get();
    match disk.copy_from(offset, &from, start, len).await {
        Ok(()) => {
            assert!(!latched, "a pool that has latched acknowledged a copy");
            let mut model = ctx.model.borrow_mut();
            let durable = model.disk(name).is_some_and(|d| d.sync != SyncMode::Never && !d.desktop);
            model.changed(name, op, durable);
            note!("{} done {begin}", model.now());
        }
        Err(e) => {
            ctx.model.borrow_mut().fail(op);
            ctx.judge(&format!("{begin} copy"), Err::<(), _>(e));
            settle_failed(ctx, name, disk, lock, (offset, len)).await;
        }
    }
}

impl Model {
    /// `op` copies `len` bytes from another range, possibly of another disk. The content of the source and of
    /// partial blocks must be certain.
    fn copy(&mut self, name: &str, op: OpId, offset: u64, source: &str, from: u64, len: u64) {
        let era_op = self.names[name].versions.last().map_or(OpId(0), |v| v.op);
        let disk = self.disk(name).expect("the workload changes disks that exist");
        let mut new = Vec::new();
        for (block, part) in pieces(offset, len) {
            let whole = part.len() == disk.valid(block);
            let before = if whole { Some(Content::zero()) } else { self.certain(name, block) };
            let mut content = before.expect("the content of a block that is changed in part is certain");
            let mut at = part.start;
            let there = from + (block * B + part.start as u64 - offset);
            for (source_block, range) in pieces(there, part.len() as u64) {
                let held = self.certain(source, source_block).expect("what is copied is certain");
                let n = range.len();
                content = content.with_copy(at, &held, range, offset as i64 - from as i64);
                at += n;
            }
            new.push((block, content));
        }
        let disk = self.disk_mut(name);
        for (block, content) in new {
            let cell = disk.blocks.entry(block).or_insert_with(|| Cell::new(era_op, Content::zero()));
            cell.push_late(op, content);
        }
    }
}
