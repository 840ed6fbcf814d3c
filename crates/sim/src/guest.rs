//! Guests' operations: reads, writes, zeroes, discards, flushes, block status.

use std::future::poll_fn;
use std::ops::{ControlFlow, Range};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use forebay_engine::{DiskHandle, Error, Fast, Role, SyncMode};
use forebay_format::BLOCK;

use crate::content;
use crate::copy::copy;
use crate::ctx::{Ctx, Locked};
use crate::history::Stamp;
use crate::model::{Change, Model, pieces};
use crate::note;
use crate::rng::Rng;

const B: u64 = BLOCK as u64;

/// Makes one operation of a guest on a random disk.
pub async fn guest_op(ctx: &Rc<Ctx>, rng: &mut Rng) {
    let writes = rng.percent(55);
    let wanted = |d: &crate::model::DiskState| d.taken_from.is_none() && (!writes || d.role == Role::Volume);
    let Some(name) = ctx.pick(rng, wanted) else { return };
    let Some(_busy) = ctx.busy(&name) else { return };
    let Some(disk) = ctx.handle(&name, rng) else { return };
    if writes && rng.percent(12) {
        copy(ctx, &name, &disk, rng).await;
    } else if writes {
        for _ in 0..ctx.plan.scatter {
            change(ctx, &name, &disk, rng).await;
        }
    } else {
        look(ctx, &name, &disk, rng).await;
    }
}

/// An operation without effect on the contents.
pub async fn look(ctx: &Rc<Ctx>, name: &str, disk: &Arc<DiskHandle>, rng: &mut Rng) {
    match rng.weighted(&[70, 12, 8, 10]) {
        0 => read(ctx, name, disk, rng).await,
        1 => extents(ctx, name, disk, rng).await,
        2 => {
            let (offset, len) = range(ctx, name, rng);
            note!("prefetch {name} {offset}+{len}");
            ctx.judge("prefetch", disk.prefetch(offset, len.min(1 << 20)).await);
        }
        _ => flush(ctx, name, disk).await,
    }
}

/// A byte range within a disk, of various shapes; rarely longer than 32 blocks.
pub fn range(ctx: &Ctx, name: &str, rng: &mut Rng) -> (u64, u64) {
    let size = ctx.model.borrow().disk(name).expect("the disk is busy, so it exists").size;
    let blocks = size.div_ceil(B);
    // On a huge disk, positions at which the block map changes its shape; on a small one, any position.
    let near = match blocks {
        0..=4096 => rng.below(blocks),
        _ if ctx.plan.wide => rng.below(blocks),
        _ => match rng.below(5) {
            0 => rng.below(4),
            1 => (256 * rng.range(1, 3)).saturating_sub(2) + rng.below(4),
            2 => 65_536 - 2 + rng.below(4),
            3 => blocks - 1 - rng.below(3),
            _ => (1 << rng.below(34)) % blocks,
        },
    };
    let first = near.min(blocks - 1) * B;
    let (offset, len) = match rng.below(8) {
        0..=2 => (first, B),
        3 => (first, B * rng.range(1, 4)),
        4 => (first, B * rng.range(1, 32)),
        5 | 6 => (first + 512 * rng.below(8), 512 * rng.range(1, 12)),
        _ => (first + rng.below(B), rng.range(1, 6000)),
    };
    let offset = offset.min(size - 1);
    (offset, len.min(size - offset).max(1))
}

/// A read, or several reads that continue each other, so that the engine reads ahead.
async fn read(ctx: &Rc<Ctx>, name: &str, disk: &Arc<DiskHandle>, rng: &mut Rng) {
    let (mut offset, len) = range(ctx, name, rng);
    let reads = if rng.one_in(6) { rng.range(2, 24) } else { 1 };
    let request = rng.one_in(2).then(|| offset..offset + reads * len);
    for _ in 0..reads {
        let len = len.min(disk.size().saturating_sub(offset));
        if len == 0 || !read_range(ctx, name, disk, (offset, len), request.clone(), rng).await {
            return;
        }
        offset += len;
    }
}

/// Whether no crash undoes what a read shows. On a full store, reads show writes that were refused.
fn shows_durable(ctx: &Ctx, disk: &DiskHandle) -> bool {
    disk.is_durable(false) && !ctx.tolerance().full
}

/// Reads a range, alone or as a part of a request; returns whether it could be read.
async fn read_range(
    ctx: &Rc<Ctx>,
    name: &str,
    disk: &Arc<DiskHandle>,
    (offset, len): (u64, u64),
    request: Option<Range<u64>>,
    rng: &mut Rng,
) -> bool {
    let begin = ctx.model.borrow_mut().tick();
    note!("{begin} read {name} {offset}+{len}");
    let mut bytes = vec![0xee; len as usize];
    let was_durable = shows_durable(ctx, disk);
    let quick = rng.percent(40) && {
        let quick = ctx.judge("try_read", disk.try_read(offset, &mut bytes));
        let Some(quick) = quick else { return false };
        quick == Fast::Done
    };
    let request = request.unwrap_or(offset..offset + len);
    if !quick && ctx.judge("read", disk.read_part(request, offset, &mut bytes).await).is_none() {
        return false;
    }
    let is_durable = was_durable && shows_durable(ctx, disk);
    let checked = ctx.model.borrow_mut().check_read(name, offset, &bytes, begin, is_durable);
    ctx.insist(checked);
    true
}

async fn extents(ctx: &Rc<Ctx>, name: &str, disk: &Arc<DiskHandle>, rng: &mut Rng) {
    let (mut offset, mut len) = range(ctx, name, rng);
    if rng.one_in(4) {
        (offset, len) = (0, disk.size());
    }
    let max = *rng.pick(&[1, 2, 1000]);
    let begin = ctx.model.borrow_mut().tick();
    note!("{begin} extents {name} {offset}+{len} max {max}");
    let Some(runs) = ctx.judge("extents", disk.extents(offset, len, max).await) else { return };
    assert!(!runs.is_empty() && runs.len() <= max, "{} runs, expected 1 to {max}", runs.len());
    let total: u64 = runs.iter().map(|r| r.len).sum();
    assert!(total <= len && runs.iter().all(|r| r.len > 0), "runs of {total} bytes for {len}: {runs:?}");
    assert!(
        total == len || runs.len() == max,
        "{runs:?} end early: {total} of {len} bytes, {max} runs at most"
    );
    let mut at = offset;
    for run in runs {
        assert!(run.zero || !run.hole, "a hole with data");
        if run.zero {
            let checked = ctx.model.borrow_mut().check_zero(name, at, run.len, begin);
            ctx.insist(checked);
        }
        at += run.len;
    }
}

async fn flush(ctx: &Rc<Ctx>, name: &str, disk: &Arc<DiskHandle>) {
    let begun = ctx.model.borrow_mut().flush_begins(name);
    note!("{} flush {name}", begun.0);
    if ctx.judge("flush", disk.flush().await).is_some() {
        let mut model = ctx.model.borrow_mut();
        note!("{} flushed {name} as of {}", model.now(), begun.0);
        if model.disk(name).is_some_and(|d| d.sync != SyncMode::Never) {
            model.flushed(name, begun);
        }
    }
}

/// A request that changes a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    Write,
    /// A write through [`DiskHandle::update`].
    Update,
    Zeroes {
        allocated: bool,
    },
    Discard,
}

/// An operation that changes a disk.
pub async fn change(ctx: &Rc<Ctx>, name: &str, disk: &Arc<DiskHandle>, rng: &mut Rng) {
    let request = match rng.weighted(&[60, 10, 8, 7, 15]) {
        0 => Request::Write,
        1 => Request::Update,
        2 => Request::Zeroes { allocated: false },
        3 => Request::Zeroes { allocated: true },
        _ => Request::Discard,
    };
    let (mut offset, mut len) = range(ctx, name, rng);
    if !matches!(request, Request::Write | Request::Update) && rng.one_in(6) {
        (offset, len) = (0, disk.size());
    }
    let partial = ctx.model.borrow().partial_blocks(name, offset, len);
    let shared = ctx.plan.overlapping && partial.is_empty();
    let Some(lock) = ctx.lock(name, offset / B, (offset + len).div_ceil(B), shared) else {
        return read(ctx, name, disk, rng).await;
    };
    if !settle(ctx, name, disk, &partial).await {
        return;
    }
    let durable = {
        let model = ctx.model.borrow();
        model.disk(name).expect("it is busy").sync
    };
    let fua = durable != SyncMode::Always && rng.percent(10);
    // Sometimes zeroes, and sometimes the same bytes as an earlier write at the same position.
    let write = match rng.below(20) {
        0 => 0,
        1 => ctx.model.borrow().written_at(name, offset).unwrap_or(0),
        _ => ctx.model.borrow_mut().new_write(),
    };
    let what = match request {
        Request::Write | Request::Update => Change::Write(write),
        Request::Zeroes { .. } => Change::Zero,
        Request::Discard => Change::Discard,
    };
    let op = ctx.model.borrow_mut().begin();
    ctx.model.borrow_mut().change(name, op, offset, len, what);
    let begin = ctx.model.borrow().begun(op);
    note!("{begin} {request:?} {name} {offset}+{len} w{write}{}", if fua { " fua" } else { "" });
    let quick = request == Request::Write && rng.percent(40);
    let latched = ctx.latched.get();
    // The connection of the client is cut: its request is dropped wherever it waits.
    let polls = if rng.one_in(16) { rng.range(1, 6) } else { u64::MAX };
    let result = cut_after(polls, carry_out(disk, request, (offset, len), write, fua, quick)).await;
    match result {
        None => {
            ctx.model.borrow_mut().fail(op);
            note!("{} cut {begin}", ctx.model.borrow().now());
            settle_failed(ctx, name, disk, lock, (offset, len)).await;
        }
        Some(Ok(())) => {
            assert!(!latched, "a pool that has latched acknowledged a change");
            let durable = durable == SyncMode::Always || fua && durable == SyncMode::Flush;
            let mut model = ctx.model.borrow_mut();
            if request == Request::Discard
                && !covers_a_block(offset, len, model.disk(name).map_or(0, |d| d.size))
            {
                // The request had no effect, so it promised nothing.
                model.acknowledge(op, false);
            } else {
                model.changed(name, op, durable);
            }
            drop(model);
            note!("{} done {begin}", ctx.model.borrow().now());
        }
        Some(Err(e)) => {
            ctx.model.borrow_mut().fail(op);
            ctx.judge(&format!("{begin} {request:?}"), Err::<(), _>(e));
            settle_failed(ctx, name, disk, lock, (offset, len)).await;
        }
    }
}

/// Polls `request` at most `polls` times, and drops it if it is not complete then.
async fn cut_after<T>(polls: u64, request: impl Future<Output = T>) -> Option<T> {
    let (mut request, mut left) = (pin!(request), polls);
    poll_fn(|cx| {
        left -= 1;
        match request.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Whether a range covers a whole block of a disk of `size` bytes.
fn covers_a_block(offset: u64, len: u64, size: u64) -> bool {
    let end = if offset + len == size { size.next_multiple_of(B) } else { offset + len };
    offset.next_multiple_of(B) + B <= end
}

async fn carry_out(
    disk: &DiskHandle,
    request: Request,
    (offset, len): (u64, u64),
    write: content::WriteId,
    fua: bool,
    quick: bool,
) -> Result<(), Error> {
    match request {
        Request::Write => {
            let mut data = vec![0; len as usize];
            content::fill(write, offset, &mut data);
            if quick && disk.is_durable(fua) {
                if disk.try_write_durably(offset, &data)? == Fast::Done {
                    return disk.finish(fua).await;
                }
            } else if quick && disk.try_write(offset, &data)? == Fast::Done {
                return Ok(());
            }
            disk.write(offset, &data, fua).await
        }
        Request::Update => {
            let put = |bytes: &mut [u8]| {
                content::fill(write, offset, bytes);
                ControlFlow::<()>::Continue(())
            };
            disk.update(offset, len, fua, put).await.map(drop)
        }
        Request::Zeroes { allocated } => disk.write_zeroes(offset, len, allocated, fua).await,
        Request::Discard => disk.discard(offset, len, fua).await,
    }
}

/// Reads those of `blocks` whose contents are not certain, so that a partial write has a certain base.
/// Returns false if a read failed.
pub async fn settle(ctx: &Rc<Ctx>, name: &str, disk: &DiskHandle, blocks: &[u64]) -> bool {
    for &block in blocks {
        if ctx.model.borrow().certain(name, block).is_none() && !settle_block(ctx, name, disk, block).await {
            return false;
        }
    }
    true
}

async fn settle_block(ctx: &Rc<Ctx>, name: &str, disk: &DiskHandle, block: u64) -> bool {
    let valid = ctx.model.borrow().disk(name).map_or(0, |d| d.valid(block));
    let begin = ctx.model.borrow_mut().tick();
    let mut bytes = vec![0xee; valid];
    let read = disk.read(block * B, &mut bytes).await;
    if ctx.judge("read to settle", read).is_none() {
        return false;
    }
    let settled = ctx.model.borrow_mut().settle(name, block, &bytes, begin);
    ctx.insist(settled);
    true
}

/// After a failed change, a read determines whether it was executed. If that read fails too, the blocks stay
/// locked until the pool is opened again.
pub async fn settle_failed(
    ctx: &Rc<Ctx>,
    name: &str,
    disk: &DiskHandle,
    lock: Locked,
    (offset, len): (u64, u64),
) {
    let blocks: Vec<u64> = {
        let model = ctx.model.borrow();
        let range = offset / B..(offset + len).div_ceil(B);
        model.disk(name).into_iter().flat_map(|d| d.blocks.range(range.clone()).map(|(b, _)| *b)).collect()
    };
    if !settle(ctx, name, disk, &blocks).await {
        lock.keep();
    }
}

impl Model {
    /// The write from which the byte at `offset` of a disk comes.
    fn written_at(&self, name: &str, offset: u64) -> Option<content::WriteId> {
        let content = self.certain(name, offset / B)?;
        content.write_at((offset % B) as usize)
    }

    /// Checks that a range that block status reported as zero between `begin` and now can have been zero.
    fn check_zero(&mut self, name: &str, offset: u64, len: u64, begin: Stamp) -> Result<(), String> {
        let end = self.tick();
        let span = crate::history::TimeSet::span(begin, end);
        let Some(disk) = self.disk(name) else { return Ok(()) };
        let range = offset / B..(offset + len).div_ceil(B);
        for (&block, cell) in disk.blocks.range(range) {
            let from = offset.max(block * B);
            let part = pieces(from, (offset + len - from).min(B - from % B)).next();
            let Some((_, part)) = part else { continue };
            let zero = |i: usize| cell.versions[i].value.is_zero_in(block, part.clone());
            if !cell.possible(&self.ops, &span).into_iter().any(zero) {
                let history = self.explain(&self.era(name), block);
                return Err(format!(
                    "block status of '{name}' calls {offset}+{len} zero in {span:?}, but block {block}: {history}"
                ));
            }
        }
        Ok(())
    }
}
