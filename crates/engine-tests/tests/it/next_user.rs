//! The next user of a desktop never sees writes of the previous one, whenever the next one attaches.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::common::*;
use forebay_engine::{BoxFuture, CloneRequest, DiskHandle, Error, Host, Pool, PoolConfig, SyncMode};
use forebay_store::{Crash, DiskArray, Fault, FaultyOp, FaultyStore, MemoryStore, Slow, Store, When};

const MIB: usize = 1 << 20;

fn desktop(name: &str, reset_at_disconnect: bool) -> CloneRequest {
    CloneRequest { name: name.into(), write_cache: 4 << 20, reset_at_disconnect, ..CloneRequest::default() }
}

/// How much faster than real time the clock of a [`FastHost`] runs.
const FASTER: u32 = 50;

/// A host whose clock runs faster.
struct FastHost(Instant);

impl Host for FastHost {
    fn now(&self) -> Duration {
        self.0.elapsed() * FASTER
    }
    fn unix_ms(&self) -> u64 {
        1_700_000_000_000
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration / FASTER))
    }
    fn spawn(&self, _: &'static str, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }
    fn boot_id(&self) -> [u8; 16] {
        boot_of(self.0)
    }
    fn random(&self, bytes: &mut [u8]) {
        bytes.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
    }
}

async fn open_on(store: Arc<dyn Store>) -> Arc<Pool> {
    Pool::open(store, Arc::new(FastHost(Instant::now())), config()).await.unwrap()
}

/// A pool with an image of 16 MiB, its first 2 MiB noise, and desktops of it: one that is reset at
/// disconnect, and one that is not.
async fn with_desktops(store: Arc<dyn Store>) -> Arc<Pool> {
    let pool = open_on(store).await;
    let image = pool.begin_import("golden", 16 << 20, 0).await.unwrap();
    image.write(0, &noise(1, 2 * MIB), false).await.unwrap();
    pool.finish_import(image).await.unwrap();
    pool.clone_disk("golden", &[desktop("pc", true), desktop("other", false)]).await.unwrap();
    pool
}

/// Writes more than the write cache holds, and disconnects in good order.
async fn last_user(pool: &Arc<Pool>, number: u64) {
    let pc = pool.attach_when_reset("pc").await.unwrap();
    write_secrets(&pc, number).await;
    pc.mark_clean_disconnect();
}

async fn write_secrets(pc: &DiskHandle, number: u64) {
    for (piece, at) in noise(number, 6 * MIB).chunks(64 << 10).zip((0..).step_by(64 << 10)) {
        pc.write(at, piece, false).await.unwrap();
    }
}

/// Attaches as soon as the pool permits it.
async fn next_user(pool: &Arc<Pool>) -> Arc<DiskHandle> {
    for _ in 0..20_000 {
        match pool.attach("pc") {
            Ok(pc) => return pc,
            Err(Error::InUse { .. } | Error::Resetting(_)) => {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err(e) => panic!("{e}"),
        }
    }
    panic!("the desktop was not reset");
}

async fn assert_is_image(pc: &DiskHandle) {
    let mut wanted = noise(1, 2 * MIB);
    wanted.resize(6 * MIB, 0);
    assert!(read(pc, 0, 6 * MIB).await == wanted, "the last user's data is visible");
}

fn array() -> DiskArray {
    DiskArray { spindles: 1, seek: Duration::from_millis(2), rpm: 15_000, bytes_per_second: 256 << 20 }
}

fn slow(store: Arc<dyn Store>) -> Arc<dyn Store> {
    let sleep = |d| -> BoxFuture<'static, ()> { Box::pin(tokio::time::sleep(d)) };
    let begin = std::time::Instant::now();
    Arc::new(Slow::new(store, array(), Arc::new(move || begin.elapsed()), Arc::new(sleep)))
}

/// No other task can run in between.
#[tokio::test]
async fn the_next_user_sees_the_image_immediately() {
    let pool = with_desktops(Arc::new(MemoryStore::new())).await;
    for round in 0..4 {
        last_user(&pool, 10 + round).await;
        let pc = next_user(&pool).await;
        assert_is_image(&pc).await;
        drop(pc);
    }
}

/// The last user has disconnected in good order, but a request of theirs is still in flight.
#[tokio::test]
async fn attaching_before_the_last_handle_is_dropped_waits_for_the_reset() {
    let pool = with_desktops(Arc::new(MemoryStore::new())).await;
    let pc = pool.attach("pc").unwrap();
    write_secrets(&pc, 10).await;
    pc.mark_clean_disconnect();
    assert!(matches!(pool.attach("pc"), Err(Error::Resetting(_))));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(matches!(pool.attach("pc"), Err(Error::Resetting(_))));
    pc.write(0, &noise(11, MIB), false).await.unwrap();
    let (next, ()) = tokio::join!(pool.attach_when_reset("pc"), async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(pc);
    });
    assert_is_image(&next.unwrap()).await;
}

/// During the reset, in which each store operation takes milliseconds, and after it.
#[tokio::test]
async fn attaching_during_or_after_the_reset_shows_the_image() {
    let pool = with_desktops(slow(Arc::new(MemoryStore::new()))).await;
    for round in 0..12 {
        last_user(&pool, 10 + round).await;
        tokio::time::sleep(Duration::from_millis(3 * round)).await;
        let pc = pool.attach_when_reset("pc").await.unwrap();
        assert_is_image(&pc).await;
    }
}

#[tokio::test]
async fn two_users_attach_at_the_same_time() {
    let pool = with_desktops(slow(Arc::new(MemoryStore::new()))).await;
    for round in 0..3 {
        last_user(&pool, 10 + round).await;
        let (a, b) = tokio::join!(pool.attach_when_reset("pc"), pool.attach_when_reset("pc"));
        let (a, b) = (a.unwrap(), b.unwrap());
        assert_is_image(&a).await;
        // They share the disk now, and it is reset only when both have left.
        write_secrets(&a, 20).await;
        a.mark_clean_disconnect();
        drop(a);
        assert!(read(&b, 0, MIB).await == noise(20, MIB));
        drop(pool.attach("pc").unwrap());
        b.mark_clean_disconnect();
        assert!(matches!(pool.attach("pc"), Err(Error::Resetting(_))));
    }
}

/// A broken connection is not an end in good order: its client may reconnect. The last one to disconnect
/// decides.
#[tokio::test]
async fn a_client_that_reconnects_finds_its_data() {
    let pool = with_desktops(Arc::new(MemoryStore::new())).await;
    let pc = pool.attach("pc").unwrap();
    write_secrets(&pc, 10).await;
    drop(pc);
    let pc = pool.attach("pc").unwrap();
    assert!(read(&pc, 0, MIB).await == noise(10, MIB));
    // One of two ends in good order, then the other breaks.
    let second = pool.attach("pc").unwrap();
    second.mark_clean_disconnect();
    drop(second);
    drop(pc);
    assert!(read(&pool.attach("pc").unwrap(), 0, MIB).await == noise(10, MIB));
    // One breaks while the other is about to end.
    let (a, b) = (pool.attach("pc").unwrap(), pool.attach("pc").unwrap());
    a.mark_clean_disconnect();
    drop(b);
    assert!(matches!(pool.attach("pc"), Err(Error::Resetting(_))));
    drop(a);
    let pc = next_user(&pool).await;
    assert_is_image(&pc).await;
    drop(pc);
    // Without `reset_at_disconnect` there is no automatic reset.
    let other = pool.attach("other").unwrap();
    write_secrets(&other, 11).await;
    other.mark_clean_disconnect();
    drop(other);
    assert!(read(&pool.attach("other").unwrap(), 0, MIB).await == noise(11, MIB));
}

/// The store has no room at all: the next user waits, gets a clear error, and gets the disk when there is
/// room again.
#[tokio::test]
async fn a_reset_on_a_completely_full_store_waits_for_room() {
    let store = FaultyStore::new(1);
    let pool = with_desktops(store.clone()).await;
    let pc = pool.attach("pc").unwrap();
    pc.write(0, &noise(10, 2 * MIB), false).await.unwrap();
    store.inject(FaultyOp::Append, Fault::Full, When::Every(1));
    pc.mark_clean_disconnect();
    drop(pc);
    for _ in 0..3 {
        let before = Instant::now();
        assert!(matches!(pool.attach_when_reset("pc").await, Err(Error::Resetting(_))));
        assert!(before.elapsed() * FASTER >= Duration::from_secs(10));
    }
    // Operations of administrators do not bypass the reset either.
    assert!(matches!(pool.persist("pc", SyncMode::Flush).await, Err(Error::Resetting(_))));
    store.clear_faults();
    assert_is_image(&pool.attach_when_reset("pc").await.unwrap()).await;
}

/// Desktops fill the store; the reserve allows them to be reset nevertheless, which makes room.
#[tokio::test]
async fn a_reset_on_a_store_filled_by_desktops_uses_the_reserve() {
    let store = Arc::new(MemoryStore::new());
    let pool = with_desktops(store.clone()).await;
    let room = store.capacity().await.unwrap();
    let capacity = room.total - room.free + (24 << 20);
    store.set_capacity(capacity);
    let (pc, other) = (pool.attach("pc").unwrap(), pool.attach("other").unwrap());
    let mut full = 0;
    for piece in 0..(16 << 20) / (64u64 << 10) {
        for (disk, number) in [(&pc, 100), (&other, 1100)] {
            match disk.write(piece * (64 << 10), &noise(number + piece, 64 << 10), false).await {
                Ok(()) => {}
                Err(Error::NoSpace) => full += 1,
                Err(e) => panic!("{e}"),
            }
        }
    }
    assert!(full > 0, "the store did not fill up");
    let room = store.capacity().await.unwrap();
    let reserve = 4 << 20;
    // The next segment was created ahead of use: its room counts as used.
    let free = room.free + u64::from(config().segment_bytes);
    assert!(free >= reserve * 3 / 4, "{free} bytes of the reserve of {reserve} are free");
    pc.mark_clean_disconnect();
    drop(pc);
    assert_is_image(&pool.attach_when_reset("pc").await.unwrap()).await;
}

/// The server stops between the disconnect and the reset.
#[tokio::test]
async fn a_desktop_is_reset_after_a_crash_or_a_store_failure() {
    for op in [FaultyOp::Append, FaultyOp::Sync] {
        let store = FaultyStore::new(1);
        let pool = with_desktops(store.clone()).await;
        last_user(&pool, 10).await;
        drop(next_user(&pool).await);
        let pc = pool.attach("pc").unwrap();
        pc.write(0, &noise(11, MIB), false).await.unwrap();
        store.inject(op, Fault::Io, When::Every(1));
        pc.mark_clean_disconnect();
        drop(pc);
        let refused = pool.attach_when_reset("pc").await;
        assert!(matches!(refused, Err(Error::Latched(_))), "{:?}", refused.map(drop));
        drop(pool);
        store.clear_faults();
        store.crash(Crash::Kill);
        let pool = open_on(store.reopen()).await;
        assert_is_image(&pool.attach("pc").unwrap()).await;
    }
}

/// A full store opens, and no client gets a desktop before it is reset.
#[tokio::test]
async fn a_desktop_is_reset_after_a_restart_on_a_full_store() {
    let store = Arc::new(MemoryStore::new());
    let pool = with_desktops(store.clone()).await;
    let pc = pool.attach("pc").unwrap();
    write_secrets(&pc, 10).await;
    let left = left_by_crash(&store).await;
    drop((pc, pool));
    let room = left.capacity().await.unwrap();
    left.set_capacity(room.total - room.free);
    let pool = open_on(left.clone()).await;
    assert!(matches!(pool.attach_when_reset("pc").await, Err(Error::Resetting(_))));
    left.set_capacity(room.total);
    assert_is_image(&pool.attach_when_reset("pc").await.unwrap()).await;
}

/// Other desktops overflow as fast as the store permits; the reset waits for one piece of an overflow and not
/// for all.
#[tokio::test]
async fn a_reset_does_not_wait_for_the_overflow_of_other_desktops() {
    let store = Arc::new(MemoryStore::new());
    with_desktops(store.clone()).await.close().await.unwrap();
    let host = Arc::new(FastHost(Instant::now()));
    let pool = Pool::open(slow(store), host, PoolConfig { desktops: 1 << 20, ..config() }).await.unwrap();
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let other = pool.attach("other").unwrap();
    let busy = async {
        while !stop.load(SeqCst) {
            let at = written.fetch_add(64 << 10, SeqCst);
            other.write(at % (16 << 20), &noise(1000 + at, 64 << 10), false).await.unwrap();
        }
    };
    let users = async {
        for round in 0..5 {
            let pc = pool.attach("pc").unwrap();
            pc.write(0, &noise(10 + round, MIB / 2), false).await.unwrap();
            let before = pool.stats().await.desktops.overflow.bytes;
            pc.mark_clean_disconnect();
            drop(pc);
            let pc = pool.attach_when_reset("pc").await.unwrap();
            let overflowed = pool.stats().await.desktops.overflow.bytes - before;
            assert!(overflowed <= 12 << 20, "{overflowed} bytes of other desktops overflowed first");
            assert_is_image(&pc).await;
        }
        stop.store(true, SeqCst);
    };
    tokio::join!(busy, users);
    assert!(pool.stats().await.desktops.overflow.ops > 0);
}

/// Either kept or reset, never a part of both.
#[tokio::test]
async fn a_reset_concurrent_with_persist_does_one_or_the_other() {
    for pause in 0..10 {
        let store = Arc::new(MemoryStore::new());
        let pool = with_desktops(slow(store)).await;
        let pc = pool.attach("pc").unwrap();
        write_secrets(&pc, 10).await;
        let leave = async {
            tokio::time::sleep(Duration::from_millis(4 * pause)).await;
            pc.mark_clean_disconnect();
            drop(pc);
        };
        let (kept, ()) = tokio::join!(pool.persist("pc", SyncMode::Flush), leave);
        let pc = pool.attach_when_reset("pc").await.unwrap();
        match kept {
            Ok(_) => assert!(read(&pc, 0, 6 * MIB).await == noise(10, 6 * MIB), "pause {pause}"),
            Err(Error::Resetting(_)) => assert_is_image(&pc).await,
            Err(e) => panic!("{e}"),
        }
    }
}

#[tokio::test]
async fn a_reset_concurrent_with_an_administrators_reset_or_delete() {
    let pool = with_desktops(Arc::new(MemoryStore::new())).await;
    let held = pool.attach("pc").unwrap();
    write_secrets(&held, 10).await;
    held.mark_clean_disconnect();
    drop(held);
    // Due, and not begun: an administrator's operation counts as the reset.
    match pool.reset("pc").await {
        Ok(()) | Err(Error::InUse { .. }) => {}
        Err(e) => panic!("{e}"),
    }
    assert_is_image(&pool.attach_when_reset("pc").await.unwrap()).await;
    last_user(&pool, 11).await;
    while let Err(e) = pool.delete("pc").await {
        assert!(matches!(e, Error::InUse { .. }), "{e}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(matches!(pool.attach_when_reset("pc").await, Err(Error::NotFound(_))));
}

/// A store fault while a desktop overflows in order to become persistent: it remains a desktop, or the pool
/// has latched; the remains of the failed overflow never interfere with a later one.
#[tokio::test]
async fn a_failed_persist_leaves_no_remains() {
    for (op, fault) in [(FaultyOp::Read, Fault::NoFiles), (FaultyOp::Append, Fault::Full)] {
        let store = FaultyStore::new(1);
        let pool = with_desktops(store.clone()).await;
        let big = CloneRequest { name: "big".into(), write_cache: 16 << 20, ..CloneRequest::default() };
        pool.clone_disk("golden", &[big]).await.unwrap();
        pool.close().await.unwrap();
        let pool = open_on(store.clone()).await;
        let pc = pool.attach("big").unwrap();
        let mut wanted = noise(1, 2 * MIB);
        wanted.resize(8 * MIB, 0);
        // Parts of blocks, whose bases have to be read.
        for block in 0..256 {
            let at = block * 8192 % (2 * MIB) + block / 256 * 512;
            pc.write(at as u64, &[7; 512], false).await.unwrap();
            wanted[at..at + 512].fill(7);
        }
        let whole = noise(11, 6 * MIB);
        pc.write(2 << 20, &whole, false).await.unwrap();
        wanted[2 * MIB..8 * MIB].copy_from_slice(&whole);
        store.inject(op, fault, When::Every(1));
        for _ in 0..2 {
            let failed = pool.persist("big", SyncMode::Flush).await;
            assert!(failed.is_err(), "{op:?}");
        }
        store.clear_faults();
        if matches!(pool.flush().await, Err(Error::Latched(_))) {
            // The pool has latched, which a failing store may cause.
            assert!(matches!(pool.persist("big", SyncMode::Flush).await, Err(Error::Latched(_))));
            continue;
        }
        write_until_taken(&pc, 8 << 20, &noise(12, 3 * MIB)).await;
        while let Err(e) = pool.persist("big", SyncMode::Flush).await {
            assert!(matches!(e, Error::NoSpace), "{e}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(read(&pc, 0, 8 * MIB).await == wanted[..], "{op:?}");
        assert!(read(&pc, 8 << 20, 3 * MIB).await == noise(12, 3 * MIB), "{op:?}");
    }
}

async fn write_until_taken(pc: &DiskHandle, offset: u64, data: &[u8]) {
    for (piece, at) in data.chunks(64 << 10).zip((offset..).step_by(64 << 10)) {
        while let Err(e) = pc.write(at, piece, false).await {
            assert!(matches!(e, Error::NoSpace), "{e}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Resetting desktops that have no committed writes creates no garbage: a server that starts does not begin a
/// reclaim while its guests boot.
#[tokio::test]
async fn resetting_unchanged_desktops_creates_no_garbage() {
    let store = Arc::new(MemoryStore::new());
    let eager = || PoolConfig { reclaim_pause: Duration::from_millis(10), ..config() };
    let pool = open_with(&store, eager()).await;
    pool.create_volume("v", 4 << 20, SyncMode::Flush, 0).await.unwrap();
    pool.attach("v").unwrap().write(0, &noise(1, 1 << 20), true).await.unwrap();
    pool.create_snapshot("v", "s").await.unwrap();
    pool.clone_disk("v@s", &[CloneRequest { write_cache: 1 << 20, ..clone("desk") }]).await.unwrap();
    pool.close().await.unwrap();
    for overflows in [false, true] {
        let pool = open_with(&store, eager()).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(pool.stats().await.checkpoints, 0, "a reclaim although nothing was written");
        let desk = pool.attach("desk").unwrap();
        if overflows {
            for n in 0..3 {
                desk.write(n << 20, &noise(n, 1 << 20), false).await.unwrap();
            }
        }
        drop(desk);
        pool.close().await.unwrap();
    }
    let pool = open_with(&store, eager()).await;
    let until = Instant::now() + Duration::from_secs(30);
    while pool.stats().await.checkpoints == 0 {
        assert!(Instant::now() < until, "overflowed data is not reclaimed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    pool.close().await.unwrap();
}
