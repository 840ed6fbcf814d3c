//! Administrators' operations: disks are created, deleted, cloned, rolled back, resized and imported; the
//! pool is maintained.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_engine::{CloneRequest, DiskHandle, Error, Role, SyncMode};
use forebay_format::BLOCK;

use crate::ctx::{Ctx, Taken, Tolerance};
use crate::guest;
use crate::history::{Cell, OpId};
use crate::model::{Change, DiskState};
use crate::note;
use crate::recover::IMPORT;
use crate::rng::Rng;

const B: u64 = BLOCK as u64;

/// One operation of an administrator.
pub async fn admin_op(ctx: &Rc<Ctx>, rng: &mut Rng) {
    let room = ctx.names(|_| true).len() < ctx.plan.disks;
    if ctx.plan.sessions > 0 && rng.percent(ctx.plan.sessions) {
        return crate::session::users(ctx, rng).await;
    }
    if room && ctx.plan.imports > 0 && rng.percent(ctx.plan.imports) {
        return import(ctx, rng).await;
    }
    match rng.weighted(&[10, 14, 14, 10, 7, 7, 10, 8, 5, 5, 5, 5, 6, 4]) {
        0 if room => create(ctx, rng).await,
        1 if room => snapshot(ctx, rng).await,
        2 if room => clone(ctx, rng).await,
        0..=3 => delete(ctx, rng).await,
        4 => rollback(ctx, rng).await,
        5 => reset(ctx, rng).await,
        6 => resize(ctx, rng).await,
        7 if room => import(ctx, rng).await,
        8 => flush_pool(ctx).await,
        9 => checkpoint(ctx).await,
        10 => reclaim(ctx).await,
        11 => persist(ctx, rng).await,
        13 => rename(ctx, rng).await,
        _ => crate::refused::refused(ctx, rng).await,
    }
}

/// Ends an operation on the catalogue: its eras stay if it was acknowledged or if its result is unknown. An
/// operation that failed for lack of space was not executed.
fn conclude<T>(ctx: &Ctx, what: &str, op: OpId, result: Result<T, Error>) -> Option<T> {
    let undone = matches!(result, Err(Error::NoSpace));
    match ctx.judge(what, result) {
        Some(value) => {
            let mut model = ctx.model.borrow_mut();
            let at = model.acknowledge(op, true);
            note!("{at} done {}", model.begun(op));
            Some(value)
        }
        None => {
            let mut model = ctx.model.borrow_mut();
            model.fail(op);
            if undone {
                model.undo(op);
            }
            None
        }
    }
}

/// Keeps disks *taken* until this life ends, because their era is unknown.
pub(crate) fn leave(ctx: &Ctx, taken: impl IntoIterator<Item = Taken>) {
    for taken in taken {
        if !ctx.model.borrow().is_certain(taken.name()) {
            taken.keep();
        }
    }
}

/// Creates an empty volume.
pub async fn create(ctx: &Rc<Ctx>, rng: &mut Rng) {
    let (name, size, sync) = (ctx.new_name("v"), ctx.plan.pick_size(rng), ctx.plan.pick_sync(rng));
    let Some(taken) = ctx.take_now(&name) else { return };
    let op = ctx.model.borrow_mut().begin();
    ctx.model.borrow_mut().new_era(&name, op, Some(DiskState::empty(Role::Volume, size, sync)));
    note!("{} create {name} size {size} {sync:?}", ctx.model.borrow().begun(op));
    let made = ctx.pool.create_volume(&name, size, sync, 0).await;
    match conclude(ctx, "create", op, made) {
        Some(info) => {
            assert_eq!((info.name.as_str(), info.size, info.sync), (name.as_str(), size, sync));
        }
        None => leave(ctx, [taken]),
    }
}

/// Returns the expected contents of a snapshot or clone of `source`: the contents that `source` had at some
/// moment of the operation.
fn copy_of(ctx: &Ctx, source: &str, role: Role, sync: SyncMode) -> DiskState {
    let model = ctx.model.borrow();
    let from = model.disk(source).expect("the source is busy, so it exists");
    let mut disk = DiskState::empty(role, from.size, sync);
    disk.taken_from = Some(model.era(source));
    disk
}

/// Reads the blocks of a disk just taken from another whose contents are not certain.
async fn settle_taken(ctx: &Rc<Ctx>, name: &str) -> bool {
    let (_, unknown) = ctx.model.borrow().taken(name);
    let mut read = BTreeMap::new();
    if !unknown.is_empty() {
        let Some(disk) = ctx.judge("attach", ctx.pool.attach(name)) else { return false };
        for block in unknown {
            let valid = ctx.model.borrow().disk(name).map_or(0, |d| d.valid(block));
            let mut bytes = vec![0xee; valid];
            if ctx.judge("read of a new disk", disk.read(block * B, &mut bytes).await).is_none() {
                return false;
            }
            read.insert(block, bytes);
        }
    }
    let settled = ctx.model.borrow_mut().settle_taken(name, &read);
    ctx.insist(settled);
    true
}

/// Creates a snapshot of a volume, or an image from its contents.
async fn snapshot(ctx: &Rc<Ctx>, rng: &mut Rng) {
    let Some(volume) = ctx.pick(rng, |d| d.role == Role::Volume && d.is_source()) else { return };
    let Some(_busy) = ctx.busy(&volume) else { return };
    let role = if rng.percent(15) { Role::Image } else { Role::Snapshot };
    let short = ctx.new_name("s");
    let name = if role == Role::Image { short.clone() } else { format!("{volume}@{short}") };
    let Some(taken) = ctx.take_now(&name) else { return };
    let state = copy_of(ctx, &volume, role, SyncMode::Flush);
    let op = ctx.model.borrow_mut().begin();
    ctx.model.borrow_mut().new_era(&name, op, Some(state));
    note!("{} snapshot {name}", ctx.model.borrow().begun(op));
    let made = match role {
        Role::Image => ctx.pool.create_image(&name, &volume).await,
        _ => ctx.pool.create_snapshot(&volume, &short).await,
    };
    let Some(info) = conclude(ctx, "snapshot", op, made) else { return leave(ctx, [taken]) };
    assert_eq!((info.name.as_str(), info.role), (name.as_str(), role));
    if !settle_taken(ctx, &name).await {
        leave(ctx, [taken]);
    }
}

async fn clone(ctx: &Rc<Ctx>, rng: &mut Rng) {
    let Some(source) = ctx.pick(rng, DiskState::is_source) else { return };
    let Some(_busy) = ctx.busy(&source) else { return };
    let from_volume = ctx.model.borrow().disk(&source).is_some_and(|d| d.role == Role::Volume);
    let write_cache = if ctx.plan.desktops && !from_volume && rng.percent(35) {
        *rng.pick(&[4096, 16 << 10, 1 << 20])
    } else {
        0
    };
    let sync = if write_cache > 0 { SyncMode::Never } else { ctx.plan.pick_sync(rng) };
    let count = *rng.pick(&[1, 1, 1, 2, 3]);
    let names: Vec<_> = (0..count).map(|_| ctx.new_name("c")).collect();
    let taken: Vec<_> = names.iter().filter_map(|n| ctx.take_now(n)).collect();
    let mut state = copy_of(ctx, &source, Role::Volume, sync);
    state.origin = (!from_volume).then(|| source.clone());
    state.desktop = write_cache > 0;
    state.resets = state.desktop && ctx.plan.sessions > 0 && rng.percent(80);
    let reset_at_disconnect = state.resets;
    let op = ctx.model.borrow_mut().begin();
    {
        let mut model = ctx.model.borrow_mut();
        names.iter().for_each(|n| model.new_era(n, op, Some(state.clone())));
        model.groups.push((op, names.clone()));
        note!("{} clone {source} to {names:?} {sync:?} write cache {write_cache}", model.begun(op));
    }
    let request = |name: &String| CloneRequest { name: name.clone(), sync, write_cache, reset_at_disconnect };
    let requests: Vec<_> = names.iter().map(request).collect();
    let made = ctx.pool.clone_disk(&source, &requests).await;
    let Some(infos) = conclude(ctx, "clone", op, made) else { return leave(ctx, taken) };
    assert_eq!(infos.len(), names.len());
    for (name, taken) in names.iter().zip(taken) {
        if !settle_taken(ctx, name).await {
            leave(ctx, [taken]);
        }
    }
}

/// Number of snapshots and number of clones of a disk.
pub fn dependents(ctx: &Ctx, name: &str) -> (usize, usize) {
    let model = ctx.model.borrow();
    let present = model.names.keys().filter_map(|n| model.disk(n).map(|d| (n, d)));
    let prefix = format!("{name}@");
    present.fold((0, 0), |(s, c), (n, d)| {
        (s + usize::from(n.starts_with(&prefix)), c + usize::from(d.origin.as_deref() == Some(name)))
    })
}

async fn delete(ctx: &Rc<Ctx>, rng: &mut Rng) {
    let Some(name) = ctx.pick(rng, |d| d.taken_from.is_none()) else { return };
    let Some(taken) = ctx.take(&name, true).await else { return };
    let (snapshots, clones) = dependents(ctx, &name);
    // If operations can fail, a concurrent creation or deletion may fail, so that other disks depend on this
    // one or not.
    let Tolerance { closed, full, unreadable, latched, superseded } = ctx.tolerance();
    let unsure = closed || full || unreadable || latched || superseded;
    if snapshots + clones > 0 && unsure {
        return;
    }
    if snapshots + clones > 0 {
        note!("delete {name}, which others depend on");
        let refused = ctx.pool.delete(&name).await;
        let tolerated = matches!(&refused, Err(e) if ctx.tolerance().permits(e));
        let right = matches!(refused, Err(Error::HasClones { .. } | Error::HasSnapshots { .. }));
        assert!(right || tolerated, "'{name}' with {snapshots} snapshots, {clones} clones: {refused:?}");
        return;
    }
    let op = ctx.model.borrow_mut().begin();
    ctx.model.borrow_mut().new_era(&name, op, None);
    note!("{} delete {name}", ctx.model.borrow().begun(op));
    let deleted = match ctx.pool.delete(&name).await {
        Err(Error::HasClones { .. } | Error::HasSnapshots { .. }) if unsure => {
            // Rejected, so not executed: like an operation that finds no space.
            ctx.model.borrow_mut().fail(op);
            ctx.model.borrow_mut().undo(op);
            return;
        }
        other => other,
    };
    if conclude(ctx, "delete", op, deleted).is_none() {
        leave(ctx, [taken]);
    }
}

/// The newest era of `name`, with the contents and size of `from`.
pub(crate) fn set_back(ctx: &Ctx, name: &str, from: &str, op: OpId) -> DiskState {
    let model = ctx.model.borrow();
    let (disk, from_disk) = (model.disk(name), model.disk(from));
    let (disk, source) = (disk.expect("it is taken"), from_disk.expect("it is busy"));
    let mut state = DiskState::empty(disk.role, source.size, disk.sync);
    (state.origin, state.desktop, state.resets) = (disk.origin.clone(), disk.desktop, disk.resets);
    let certain = |b: &u64| model.certain(from, *b).expect("an immutable disk has certain contents");
    state.blocks = source.blocks.keys().map(|b| (*b, Cell::new(op, certain(b)))).collect();
    state
}

async fn rollback(ctx: &Rc<Ctx>, rng: &mut Rng) {
    let Some(snapshot) = ctx.pick(rng, |d| d.role == Role::Snapshot && d.taken_from.is_none()) else {
        return;
    };
    let Some(_busy) = ctx.busy(&snapshot) else { return };
    let Some((volume, short)) = snapshot.split_once('@') else { return };
    let Some(taken) = ctx.take(volume, true).await else { return };
    let op = ctx.model.borrow_mut().begin();
    let state = set_back(ctx, volume, &snapshot, op);
    ctx.model.borrow_mut().new_era(volume, op, Some(state));
    note!("{} rollback to {snapshot}", ctx.model.borrow().begun(op));
    let done = ctx.pool.rollback(volume, short).await;
    if conclude(ctx, "rollback", op, done).is_none() {
        leave(ctx, [taken]);
    }
}

/// Whether a volume has snapshots, or it is not known.
fn may_have_snapshots(ctx: &Ctx, volume: &str) -> bool {
    let (model, prefix) = (ctx.model.borrow(), format!("{volume}@"));
    let mut snapshots = model.names.keys().filter(|other| other.starts_with(&prefix));
    snapshots.any(|other| model.disk(other).is_some() || !model.is_certain(other))
}

/// Renames a volume without snapshots.
async fn rename(ctx: &Rc<Ctx>, rng: &mut Rng) {
    let Some(name) = ctx.pick(rng, |d| d.role == Role::Volume && d.is_source()) else { return };
    let Some(taken) = ctx.take(&name, true).await else { return };
    if may_have_snapshots(ctx, &name) {
        return;
    }
    let new = ctx.new_name("r");
    let Some(new_taken) = ctx.take_now(&new) else { return };
    let size = ctx.model.borrow().disk(&name).map_or(0, |d| d.size);
    let op = ctx.model.borrow_mut().begin();
    let Some(state) = resized(ctx, &name, size, op) else { return };
    {
        let mut model = ctx.model.borrow_mut();
        model.new_era(&new, op, Some(state));
        model.new_era(&name, op, None);
        note!("{} rename {name} to {new}", model.begun(op));
    }
    let done = ctx.pool.rename(&name, &new).await;
    match conclude(ctx, "rename", op, done) {
        Some(info) => assert_eq!((info.name.as_str(), info.size), (new.as_str(), size)),
        None => leave(ctx, [taken, new_taken]),
    }
}

async fn reset(ctx: &Rc<Ctx>, rng: &mut Rng) {
    let Some(name) = ctx.pick(rng, |d| d.origin.is_some() && d.taken_from.is_none()) else { return };
    let origin = ctx.model.borrow().disk(&name).and_then(|d| d.origin.clone());
    let Some(origin) = origin else { return };
    let other = match rng.percent(30) {
        true => ctx.pick(rng, |d| d.role != Role::Volume && d.taken_from.is_none()),
        false => None,
    };
    let to = other.clone().unwrap_or(origin);
    let Some(_busy) = ctx.busy(&to) else { return };
    let Some(taken) = ctx.take(&name, true).await else { return };
    if other.is_some() && may_have_snapshots(ctx, &name) {
        return;
    }
    let op = ctx.model.borrow_mut().begin();
    let state = DiskState { origin: Some(to.clone()), ..set_back(ctx, &name, &to, op) };
    ctx.model.borrow_mut().new_era(&name, op, Some(state));
    note!("{} reset {name} to {to}", ctx.model.borrow().begun(op));
    let done = ctx.pool.reset_all_to(&[&name], other.as_deref()).await;
    if conclude(ctx, "reset", op, done).is_none() {
        leave(ctx, [taken]);
    }
}

async fn resize(ctx: &Rc<Ctx>, rng: &mut Rng) {
    let Some(name) = ctx.pick(rng, |d| d.role == Role::Volume && d.is_source()) else { return };
    let Some(taken) = ctx.take(&name, rng.percent(50)).await else { return };
    let (size, before) = (ctx.plan.pick_size(rng), ctx.model.borrow().disk(&name).map_or(0, |d| d.size));
    if size < before && ctx.handles(&name) > 0 {
        note!("shrink of {name}, which is in use");
        let refused = ctx.pool.resize(&name, size).await;
        let tolerated = matches!(&refused, Err(e) if ctx.tolerance().permits(e));
        assert!(matches!(refused, Err(Error::InUse { .. })) || tolerated, "shrunk in use: {refused:?}");
        return;
    }
    let op = ctx.model.borrow_mut().begin();
    let Some(state) = resized(ctx, &name, size, op) else { return };
    ctx.model.borrow_mut().new_era(&name, op, Some(state));
    note!("{} resize {name} from {before} to {size}", ctx.model.borrow().begun(op));
    let done = ctx.pool.resize(&name, size).await;
    if conclude(ctx, "resize", op, done).is_none() {
        leave(ctx, [taken]);
    }
}

/// Makes a desktop a persistent volume.
async fn persist(ctx: &Rc<Ctx>, rng: &mut Rng) {
    let Some(name) = ctx.pick(rng, |d| d.desktop && d.taken_from.is_none()) else { return };
    let Some(taken) = ctx.take(&name, rng.percent(50)).await else { return };
    let sync = ctx.plan.pick_sync(rng);
    let size = ctx.model.borrow().disk(&name).map_or(0, |d| d.size);
    let op = ctx.model.borrow_mut().begin();
    let Some(state) = resized(ctx, &name, size, op) else { return };
    ctx.model.borrow_mut().new_era(&name, op, Some(DiskState { sync, ..state }));
    note!("{} persist {name} {sync:?}", ctx.model.borrow().begun(op));
    let done = ctx.pool.persist(&name, sync).await;
    if conclude(ctx, "persist", op, done).is_none() {
        leave(ctx, [taken]);
    }
}

/// The disk truncated or extended to `size`; `None` if the contents of a block are not certain.
fn resized(ctx: &Ctx, name: &str, size: u64, op: OpId) -> Option<DiskState> {
    let model = ctx.model.borrow();
    let disk = model.disk(name)?;
    let mut state = DiskState::empty(disk.role, size, disk.sync);
    state.origin = disk.origin.clone();
    let count = state.block_count();
    for &block in disk.blocks.keys().filter(|b| **b < count) {
        let cut = model.certain(name, block)?.with(state.valid(block)..BLOCK, 0);
        state.blocks.insert(block, Cell::new(op, cut));
    }
    Some(state)
}

async fn import(ctx: &Rc<Ctx>, rng: &mut Rng) {
    let (name, size) = (ctx.new_name("i"), ctx.plan.pick_size(rng));
    let key = format!("{IMPORT}{name}");
    let Some(taken) = ctx.take_now(&name) else { return };
    note!("import {name} size {size}");
    let Some(disk) = ctx.judge("begin import", ctx.pool.begin_import(&name, size, 0).await) else {
        return leave(ctx, [taken]);
    };
    let op = ctx.model.borrow_mut().begin();
    ctx.model.borrow_mut().new_era(&key, op, Some(DiskState::empty(Role::Import, size, SyncMode::Flush)));
    ctx.model.borrow_mut().acknowledge(op, false);
    assert!(ctx.pool.disk(&name).is_err(), "an unfinished import is visible");
    for _ in 0..rng.range(0, 6) {
        if !import_op(ctx, &key, &disk, rng).await {
            return leave(ctx, [taken]);
        }
    }
    if rng.percent(25) {
        note!("abandon import {name}");
        if ctx.judge("abandon import", ctx.pool.abandon_import(disk).await).is_none() {
            leave(ctx, [taken]);
        }
        return;
    }
    let op = ctx.model.borrow_mut().begin();
    {
        let mut model = ctx.model.borrow_mut();
        let mut image = DiskState::empty(Role::Image, size, SyncMode::Flush);
        let blocks = model.disk(&key).map(|d| d.blocks.keys().copied().collect::<Vec<_>>());
        for block in blocks.unwrap_or_default() {
            let content = model.certain(&key, block).expect("an import has one writer");
            image.blocks.insert(block, Cell::new(op, content));
        }
        model.new_era(&name, op, Some(image));
        note!("{} finish import {name}", model.begun(op));
    }
    let done = ctx.pool.finish_import(disk).await;
    let Some(info) = conclude(ctx, "finish import", op, done) else { return leave(ctx, [taken]) };
    assert_eq!((info.name.as_str(), info.role, info.size), (name.as_str(), Role::Image, size));
}

/// Writes to an import or reads from it; false if the import failed.
async fn import_op(ctx: &Rc<Ctx>, key: &str, disk: &std::sync::Arc<DiskHandle>, rng: &mut Rng) -> bool {
    if rng.percent(20) {
        guest::look(ctx, key, disk, rng).await;
        return true;
    }
    let size = disk.size();
    let offset = rng.below(size.min(1 << 30).div_ceil(B)) * B;
    let len = (B * rng.range(1, 16)).min(size - offset);
    let (op, write) = {
        let mut model = ctx.model.borrow_mut();
        let (op, write) = (model.begin(), model.new_write());
        model.change(key, op, offset, len, Change::Write(write));
        note!("{} write to {key} {offset}+{len} w{write}", model.begun(op));
        (op, write)
    };
    let mut data = vec![0; len as usize];
    crate::content::fill(write, offset, &mut data);
    let done = ctx.judge("write to an import", disk.write(offset, &data, false).await).is_some();
    match done {
        true => ctx.model.borrow_mut().changed(key, op, false),
        false => ctx.model.borrow_mut().fail(op),
    }
    done
}

/// Flushes the whole pool.
pub async fn flush_pool(ctx: &Rc<Ctx>) {
    let begin = ctx.model.borrow_mut().tick();
    note!("{begin} flush the pool");
    if ctx.judge("flush of the pool", ctx.pool.flush().await).is_some() {
        ctx.model.borrow_mut().all_flushed(begin);
    }
}

/// Makes a checkpoint.
pub async fn checkpoint(ctx: &Rc<Ctx>) {
    note!("{} checkpoint", ctx.model.borrow_mut().tick());
    ctx.judge("checkpoint", ctx.pool.checkpoint().await);
    note!("{} checkpoint ends", ctx.model.borrow_mut().tick());
}

/// Frees garbage.
pub async fn reclaim(ctx: &Rc<Ctx>) {
    note!("{} reclaim", ctx.model.borrow_mut().tick());
    let freed = ctx.judge("reclaim", ctx.pool.reclaim(&|_| ()).await);
    note!("{} reclaim ends: {freed:?} bytes", ctx.model.borrow_mut().tick());
}
