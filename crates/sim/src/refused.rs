//! Requests that must be rejected without any effect.

use std::rc::Rc;

use forebay_engine::{CloneRequest, Error, Result, Role, SyncMode};

use crate::ctx::Ctx;
use crate::model::DiskState;
use crate::note;
use crate::rng::Rng;

/// Makes a request that must be refused.
pub async fn refused(ctx: &Rc<Ctx>, rng: &mut Rng) {
    match rng.below(7) {
        0 => bad_names(ctx, rng).await,
        1 => bad_sizes(ctx, rng).await,
        2 => unknown(ctx).await,
        3 => taken_name(ctx, rng).await,
        4 => in_use(ctx, rng).await,
        5 => of_desktops(ctx, rng).await,
        _ => bad_requests(ctx, rng).await,
    }
}

fn check<T: std::fmt::Debug>(ctx: &Ctx, what: &str, result: Result<T>, right: impl Fn(&Error) -> bool) {
    note!("{what}, which must be refused");
    match &result {
        Err(e) if right(e) || ctx.tolerance().permits(e) => {}
        _ => panic!("{what} gave {result:?}"),
    }
}

async fn bad_names(ctx: &Rc<Ctx>, rng: &mut Rng) {
    let long = "x".repeat(256);
    for name in ["", "a/b", "a@b", " a", ".", "..", "a\nb", long.as_str()] {
        let made = ctx.pool.create_volume(name, 4096, SyncMode::Flush, 0).await;
        check(ctx, "create with a bad name", made, |e| matches!(e, Error::BadName { .. }));
    }
    if let Some(source) = ctx.pick(rng, DiskState::is_source)
        && let Some(_busy) = ctx.busy(&source)
    {
        let clone = |name: &str| CloneRequest { name: name.into(), ..CloneRequest::default() };
        // If one name among valid names is invalid, no clone is created.
        let both = [clone(&ctx.new_name("c")), clone("a/b")];
        let made = ctx.pool.clone_disk(&source, &both).await;
        check(ctx, "clone with a bad name", made, |e| matches!(e, Error::BadName { .. }));
        let twice = ctx.new_name("c");
        let made = ctx.pool.clone_disk(&source, &[clone(&twice), clone(&twice)]).await;
        check(ctx, "clone to one name twice", made, |e| matches!(e, Error::Exists(_)));
    }
}

async fn bad_sizes(ctx: &Rc<Ctx>, rng: &mut Rng) {
    for size in [0, 100, 4097, (64 << 40) + 512] {
        let made = ctx.pool.create_volume(&ctx.new_name("v"), size, SyncMode::Flush, 0).await;
        check(ctx, "create with a bad size", made, |e| matches!(e, Error::BadSize { .. }));
        if let Some(name) = ctx.pick(rng, |d| d.role == Role::Volume && d.taken_from.is_none())
            && let Some(_busy) = ctx.busy(&name)
        {
            let done = ctx.pool.resize(&name, size).await;
            check(ctx, "resize to a bad size", done, |e| matches!(e, Error::BadSize { .. }));
        }
    }
}

async fn unknown(ctx: &Rc<Ctx>) {
    let missing = |e: &Error| matches!(e, Error::NotFound(_));
    check(ctx, "delete of nothing", ctx.pool.delete("nothing").await, missing);
    check(ctx, "snapshot of nothing", ctx.pool.create_snapshot("nothing", "s").await, missing);
    check(ctx, "rollback of nothing", ctx.pool.rollback("nothing", "s").await, missing);
    check(ctx, "reset of nothing", ctx.pool.reset("nothing").await, missing);
    check(ctx, "resize of nothing", ctx.pool.resize("nothing", 4096).await, missing);
    check(ctx, "attach to nothing", ctx.pool.attach("nothing").map(drop), missing);
}

async fn taken_name(ctx: &Rc<Ctx>, rng: &mut Rng) {
    let Some(name) = ctx.pick(rng, |d| d.role != Role::Snapshot && d.taken_from.is_none()) else { return };
    let Some(_busy) = ctx.busy(&name) else { return };
    let exists = |e: &Error| matches!(e, Error::Exists(_));
    let made = ctx.pool.create_volume(&name, 4096, SyncMode::Flush, 0).await;
    check(ctx, "create with a name that is taken", made, exists);
    let made = ctx.pool.begin_import(&name, 4096, 0).await.map(drop);
    check(ctx, "import with a name that is taken", made, exists);
}

async fn in_use(ctx: &Rc<Ctx>, rng: &mut Rng) {
    let Some(name) = ctx.pick(rng, |d| d.taken_from.is_none()) else { return };
    let Some(_busy) = ctx.busy(&name) else { return };
    let Some(_handle) = ctx.judge("attach", ctx.pool.attach(&name)) else { return };
    let used =
        |e: &Error| matches!(e, Error::InUse { .. } | Error::HasClones { .. } | Error::HasSnapshots { .. });
    check(ctx, "delete of a disk in use", ctx.pool.delete(&name).await, used);
    let snapshot = ctx.pick(rng, |d| d.role == Role::Snapshot && d.taken_from.is_none());
    if let Some((volume, short)) = snapshot.as_deref().and_then(|s| s.split_once('@'))
        && let Some(_busy) = ctx.busy(volume)
        && let Some(_handle) = ctx.judge("attach", ctx.pool.attach(volume))
    {
        check(ctx, "rollback of a volume in use", ctx.pool.rollback(volume, short).await, used);
    }
}

async fn of_desktops(ctx: &Rc<Ctx>, rng: &mut Rng) {
    let Some(name) = ctx.pick(rng, |d| d.desktop) else { return };
    let Some(_busy) = ctx.busy(&name) else { return };
    let wrong = |e: &Error| matches!(e, Error::WrongKind { .. });
    check(ctx, "snapshot of a desktop", ctx.pool.create_snapshot(&name, "s").await, wrong);
    check(ctx, "image of a desktop", ctx.pool.create_image(&ctx.new_name("g"), &name).await, wrong);
    check(ctx, "resize of a desktop", ctx.pool.resize(&name, 4096).await, wrong);
    let clone = CloneRequest { name: ctx.new_name("c"), ..CloneRequest::default() };
    check(ctx, "clone of a desktop", ctx.pool.clone_disk(&name, &[clone]).await, wrong);
}

async fn bad_requests(ctx: &Rc<Ctx>, rng: &mut Rng) {
    let Some(name) = ctx.pick(rng, |d| d.taken_from.is_none()) else { return };
    let Some(_busy) = ctx.busy(&name) else { return };
    let Some(disk) = ctx.judge("attach", ctx.pool.attach(&name)) else { return };
    let (size, role) = ctx.model.borrow().disk(&name).map_or((0, Role::Volume), |d| (d.size, d.role));
    assert_eq!((disk.size(), disk.read_only()), (size, role != Role::Volume), "of '{name}'");
    let mut bytes = [0; 1024];
    let beyond = |e: &Error| matches!(e, Error::OutOfRange);
    check(ctx, "read beyond the end", disk.read(size - 512, &mut bytes).await, beyond);
    check(ctx, "try_read beyond the end", disk.try_read(size - 512, &mut bytes), beyond);
    check(ctx, "read far beyond the end", disk.read(u64::MAX - 5, &mut bytes).await, beyond);
    let error = |e: &Error| match role {
        Role::Volume => matches!(e, Error::OutOfRange),
        _ => matches!(e, Error::ReadOnly(_)),
    };
    check(ctx, "write beyond the end", disk.write(size - 512, &bytes, false).await, error);
    check(ctx, "try_write beyond the end", disk.try_write(size, &bytes), error);
    check(ctx, "discard beyond the end", disk.discard(size - 512, 1024, false).await, error);
    check(ctx, "zeroes beyond the end", disk.write_zeroes(1, u64::MAX, false, false).await, error);
    if role != Role::Volume {
        check(ctx, "write to a disk that is read-only", disk.write(0, &bytes[..512], false).await, error);
        let done = ctx.pool.resize(&name, 4096).await;
        let right = |e: &Error| matches!(e, Error::WrongKind { .. } | Error::ReadOnly(_));
        check(ctx, "resize of a disk that is read-only", done, right);
    }
}
