//! The successive users of a desktop: no user sees the writes of the previous user.

use std::rc::Rc;
use std::sync::Arc;

use forebay_engine::{DiskHandle, Error};
use forebay_format::BLOCK;

use crate::ctx::Ctx;
use crate::guest::range;
use crate::note;
use crate::rng::Rng;

const B: u64 = BLOCK as u64;
/// Attempts of a client to attach, and the pause between them, in milliseconds.
const TRIES: u64 = 600;
const PAUSE: u64 = 100;

/// Attaches as a client does, with retries while the disk is busy. `None` if that fails with an error.
async fn attach(ctx: &Rc<Ctx>, name: &str) -> Option<Arc<DiskHandle>> {
    for _ in 0..TRIES {
        match ctx.pool.attach(name) {
            Err(Error::InUse { .. } | Error::Resetting(_)) => ctx.sleep(PAUSE).await,
            attached => return ctx.judge("attach to a desktop", attached),
        }
    }
    // If there is no space for the reset, no client can attach, and the data remains private.
    assert!(ctx.tolerance().full, "'{name}' was not reset within {} s", TRIES * PAUSE / 1000);
    None
}

/// One user works, disconnects cleanly, and the next one connects immediately.
pub async fn users(ctx: &Rc<Ctx>, rng: &mut Rng) {
    let Some(name) = ctx.pick(rng, |d| d.resets && d.taken_from.is_none()) else { return };
    let origin = ctx.model.borrow().disk(&name).and_then(|d| d.origin.clone());
    let Some(origin) = origin else { return };
    let Some(_busy) = ctx.busy(&origin) else { return };
    let Some(taken) = ctx.take(&name, true).await else { return };
    let op = ctx.model.borrow_mut().begin();
    let state = crate::admin::set_back(ctx, &name, &origin, op);
    ctx.model.borrow_mut().new_era(&name, op, Some(state));
    note!("{} users of {name}", ctx.model.borrow().begun(op));
    let mut done = true;
    for _ in 0..rng.range(1, 3) {
        done &= one_user(ctx, &name, rng).await;
        if !done {
            break;
        }
    }
    let next = if done { attach(ctx, &name).await } else { None };
    let looked = match &next {
        Some(disk) => look(ctx, &name, &origin, disk).await,
        None => false,
    };
    drop(next);
    if looked {
        ctx.model.borrow_mut().acknowledge(op, false);
        ctx.model.borrow_mut().sessions.remove(&name);
        note!("{} users of {name} end", ctx.model.borrow().now());
    } else {
        ctx.model.borrow_mut().fail(op);
        crate::admin::leave(ctx, [taken]);
    }
}

/// Simulates one user of a desktop, who writes and disconnects.
async fn one_user(ctx: &Rc<Ctx>, name: &str, rng: &mut Rng) -> bool {
    let Some(disk) = attach(ctx, name).await else { return false };
    ctx.model.borrow_mut().sessions.insert(name.to_owned(), false);
    for _ in 0..rng.range(1, 8) {
        let (offset, len) = range(ctx, name, rng);
        let write = ctx.model.borrow_mut().new_write();
        let mut data = vec![0; len as usize];
        crate::content::fill(write, offset, &mut data);
        note!("user of {name}: {offset}+{len} w{write}");
        match disk.write(offset, &data, false).await {
            Err(Error::NoSpace) => {}
            other => {
                if ctx.judge("write of a user", other).is_none() {
                    return false;
                }
            }
        }
    }
    if rng.percent(30) {
        ctx.sleep(rng.below(50)).await;
    }
    disk.mark_clean_disconnect();
    ctx.model.borrow_mut().sessions.insert(name.to_owned(), true);
    note!("user of {name} leaves");
    true
}

/// The next user reads the contents of the image.
async fn look(ctx: &Rc<Ctx>, name: &str, origin: &str, disk: &DiskHandle) -> bool {
    let blocks = ctx.model.borrow().disk(name).map_or(0, |d| d.block_count());
    for block in 0..blocks.min(256) {
        let valid = ctx.model.borrow().disk(name).map_or(0, |d| d.valid(block));
        let mut bytes = vec![0xee; valid];
        if ctx.judge("read of the next user", disk.read(block * B, &mut bytes).await).is_none() {
            return false;
        }
        let right = ctx.model.borrow().certain(origin, block);
        if right.is_some_and(|right| !right.matches(block, 0..bytes.len(), &bytes)) {
            let found = crate::content::describe(block * B, &bytes);
            panic!(
                "the next user of '{name}' finds {found} in block {block}, and its image '{origin}' has other data"
            );
        }
    }
    true
}
