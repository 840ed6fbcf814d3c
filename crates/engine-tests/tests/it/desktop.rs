//! Desktops: writes in RAM, overflow, and the contents after a reset and after a crash.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use forebay_engine::{BoxFuture, CloneRequest, DiskHandle, Error, Extent, Pool, PoolConfig, SyncMode};
use forebay_store::{Crash, DiskArray, Fault, FaultyOp, FaultyStore, MemoryStore, Slow, Store, When};

const MIB: usize = 1 << 20;

fn desktop(name: &str, write_cache: u64) -> CloneRequest {
    CloneRequest { name: name.into(), write_cache, ..CloneRequest::default() }
}

/// A pool with an image of 32 MiB, its first 8 MiB noise, and a desktop of it.
async fn with_desktop(
    store: &Arc<MemoryStore>,
    config: PoolConfig,
    write_cache: u64,
) -> (Arc<Pool>, Arc<DiskHandle>) {
    let pool = open_with(store, config).await;
    let image = pool.begin_import("golden", 32 << 20, 0).await.unwrap();
    image.write(0, &noise(1, 8 * MIB), false).await.unwrap();
    pool.finish_import(image).await.unwrap();
    pool.clone_disk("golden", &[desktop("pc", write_cache)]).await.unwrap();
    let pc = pool.attach("pc").unwrap();
    (pool, pc)
}

/// The pool after a crash, and its desktop.
async fn crash(store: &mut Arc<MemoryStore>) -> (Arc<Pool>, Arc<DiskHandle>) {
    *store = left_by_crash(store).await;
    let pool = open(store).await;
    let pc = pool.attach("pc").unwrap();
    (pool, pc)
}

/// Writes in small pieces, as a guest does.
async fn write(disk: &DiskHandle, offset: u64, data: &[u8]) {
    for (piece, at) in data.chunks(16 << 10).zip((offset..).step_by(16 << 10)) {
        disk.write(at, piece, false).await.unwrap();
    }
}

#[tokio::test]
async fn writes_within_the_budget_stay_in_ram() {
    let store = Arc::new(MemoryStore::new());
    let (pool, pc) = with_desktop(&store, config(), 16 << 20).await;
    mark(&pc).await;
    let writes = pool.stats().await.store.write.ops;
    for round in 0..8 {
        pc.write(4 << 20, &noise(10 + round, 8 * MIB), true).await.unwrap();
        pc.flush().await.unwrap();
    }
    let stats = pool.stats().await.desktops;
    assert_eq!((stats.count, stats.cached_bytes, stats.overflow.ops), (1, 8 << 20, 0));
    assert_eq!(pool.disk_stats("pc").unwrap().cached_bytes, 8 << 20);
    pc.discard(4 << 20, 4 << 20, false).await.unwrap();
    assert!(pool.stats().await.desktops.cached_bytes < (4 << 20) + 1000);
    assert_eq!(pool.stats().await.store.write.ops, writes, "nothing reached the store");
    assert_eq!(read(&pc, 0, 4 * MIB).await, noise(1, 8 * MIB)[..4 * MIB]);
    assert_eq!(read(&pc, 4 << 20, 4 * MIB).await, vec![0; 4 * MIB]);
    assert_eq!(read(&pc, 8 << 20, 4 * MIB).await, noise(17, 8 * MIB)[4 * MIB..]);
}

#[tokio::test]
async fn writes_beyond_the_budget_overflow_in_large_appends() {
    let store = Arc::new(MemoryStore::new());
    let config = PoolConfig { segment_bytes: 16 << 20, checkpoint_bytes: 64 << 20, ..config() };
    let (pool, pc) = with_desktop(&store, config, 4 << 20).await;
    let before = pool.stats().await.store.write;
    let data = noise(5, 24 * MIB);
    write(&pc, 0, &data).await;
    let stats = pool.stats().await;
    assert!(stats.desktops.cached_bytes <= 4 << 20, "{:?}", stats.desktops);
    assert!(stats.desktops.overflow.bytes >= 20 << 20);
    let of_desktop = pool.disk_stats("pc").unwrap();
    assert_eq!((of_desktop.write_cache, of_desktop.overflow), (4 << 20, stats.desktops.overflow));
    let of_image = pool.disk_stats("golden").unwrap();
    assert_eq!((of_image.write_cache, of_image.overflow.ops), (0, 0));
    let (ops, bytes) = (stats.store.write.ops - before.ops, stats.store.write.bytes - before.bytes);
    assert!(bytes / ops > 1 << 20, "{bytes} bytes in {ops} writes");
    assert_eq!(read(&pc, 0, 24 * MIB).await, data);
    // Parts of blocks that have overflowed, and of blocks that have not.
    pc.write(1000, &[7; 3000], false).await.unwrap();
    pc.write(23 << 20, &[8; 512], false).await.unwrap();
    let mut wanted = data;
    wanted[1000..4000].fill(7);
    wanted[23 * MIB..23 * MIB + 512].fill(8);
    assert_eq!(read(&pc, 0, 24 * MIB).await, wanted);
}

/// A large write may not fit although the budget is far from exhausted: the desktop's budget, or the global
/// one.
#[tokio::test]
async fn large_writes_into_small_caches_complete() {
    for (own, all) in [(1 << 20, 1 << 30), (1 << 30, 1 << 20)] {
        let store = Arc::new(MemoryStore::new());
        let (pool, pc) = with_desktop(&store, PoolConfig { desktops: all, ..config() }, own).await;
        pool.clone_disk("golden", &[desktop("other", own)]).await.unwrap();
        let other = pool.attach("other").unwrap();
        let data = noise(5, 8 * MIB);
        for (n, piece) in data.chunks(700 << 10).enumerate() {
            let written = async {
                pc.write(n as u64 * (700 << 10), piece, false).await.unwrap();
                other.write(n as u64 * (700 << 10), piece, false).await.unwrap();
            };
            tokio::time::timeout(Duration::from_secs(20), written).await.expect("a writer waits forever");
        }
        for disk in [&pc, &other] {
            assert!(read(disk, 0, data.len()).await == data);
        }
    }
}

#[tokio::test]
async fn minimal_budgets_work() {
    for (own, all) in [(4096, 1 << 30), (1 << 30, 0)] {
        let store = Arc::new(MemoryStore::new());
        let (pool, pc) = with_desktop(&store, PoolConfig { desktops: all, ..config() }, own).await;
        let data = noise(5, 2 * MIB);
        write(&pc, 0, &data).await;
        assert!(pool.stats().await.desktops.cached_bytes <= 64 << 10);
        assert_eq!(read(&pc, 0, 2 * MIB).await, data);
    }
}

#[tokio::test]
async fn a_desktop_equals_its_image_after_a_crash_or_restart() {
    let mut store = Arc::new(MemoryStore::new());
    let (mut pool, mut pc) = with_desktop(&store, config(), 1 << 20).await;
    let image = noise(1, 8 * MIB);
    for round in 0..3 {
        write(&pc, 0, &noise(20 + round, 8 * MIB)).await;
        if round == 1 {
            pool.checkpoint().await.unwrap();
        }
        (pool, pc) = crash(&mut store).await;
        assert!(read(&pc, 0, 8 * MIB).await == image, "after crash {round}");
    }
    write(&pc, 0, &noise(30, 8 * MIB)).await;
    drop(pc);
    pool.close().await.unwrap();
    assert_eq!(check(&store).await, Vec::<String>::new());
    let pool = open(&store).await;
    assert!(read(&pool.attach("pc").unwrap(), 0, 8 * MIB).await == image, "after a restart");
}

/// Blocks that overflowed before a crash must not reappear beneath data that is kept later.
#[tokio::test]
async fn a_persisted_desktop_has_only_the_writes_since_its_last_start() {
    let mut store = Arc::new(MemoryStore::new());
    let (pool, pc) = with_desktop(&store, config(), 1 << 20).await;
    write(&pc, 0, &noise(2, 8 * MIB)).await;
    pool.checkpoint().await.unwrap();
    let (pool, pc) = crash(&mut store).await;
    write(&pc, 6 << 20, &noise(3, 8 * MIB)).await;
    assert_eq!(pool.persist("pc", SyncMode::Flush).await.unwrap().write_cache, 0);
    assert!(matches!(pool.persist("pc", SyncMode::Flush).await, Err(Error::WrongKind { .. })));
    let mut wanted = noise(1, 8 * MIB);
    wanted.truncate(6 * MIB);
    wanted.extend(noise(3, 8 * MIB));
    assert!(read(&pc, 0, 14 * MIB).await == wanted);
    let (pool, pc) = crash(&mut store).await;
    assert!(read(&pc, 0, 14 * MIB).await == wanted, "after a crash");
    // From here on it is an ordinary volume.
    pc.write(0, &noise(4, MIB), false).await.unwrap();
    pc.flush().await.unwrap();
    pool.create_snapshot("pc", "s").await.unwrap();
    let (pool, _pc) = crash(&mut store).await;
    assert!(read(&pool.attach("pc@s").unwrap(), 0, MIB).await == noise(4, MIB));
    assert_eq!(check(&store).await, Vec::<String>::new());
}

#[tokio::test]
async fn resetting_many_desktops_at_once_frees_their_space() {
    let store = Arc::new(MemoryStore::new());
    let (pool, pc) =
        with_desktop(&store, PoolConfig { reclaim_pause: Duration::from_secs(3600), ..config() }, 1 << 20)
            .await;
    drop(pc);
    let names: Vec<String> = (0..500).map(|n| format!("d{n}")).collect();
    let requests: Vec<_> = names.iter().map(|n| desktop(n, 1 << 20)).collect();
    pool.clone_disk("golden", &requests).await.unwrap();
    pool.reclaim(&|_| ()).await.unwrap();
    let before = pool.stats().await.stored_bytes;
    for (n, name) in names.iter().enumerate().step_by(50) {
        let disk = pool.attach(name).unwrap();
        write(&disk, 0, &noise(100 + n as u64, 3 * MIB)).await;
    }
    assert!(pool.stats().await.stored_bytes > before + (10 << 20));
    let commits = pool.stats().await.commits;
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let held = pool.attach("d7").unwrap();
    assert!(matches!(pool.reset_all(&all).await, Err(Error::InUse { .. })));
    drop(held);
    pool.reset_all(&all).await.unwrap();
    // All in a few commits; overflowed desktops are included.
    assert!(pool.stats().await.commits < commits + 50);
    assert_eq!(pool.stats().await.desktops.cached_bytes, 0);
    assert!(read(&pool.attach("d0").unwrap(), 0, 3 * MIB).await == noise(1, 8 * MIB)[..3 * MIB]);
    pool.reclaim(&|_| ()).await.unwrap();
    let after = pool.stats().await.stored_bytes;
    assert!(after < before + MIB as u64, "{before} bytes before, {after} after");
}

#[tokio::test]
async fn a_full_store_loses_nothing_and_accepts_writes_again_when_there_is_room() {
    let store = Arc::new(MemoryStore::new());
    let (_pool, pc) = with_desktop(&store, config(), 2 << 20).await;
    let room = store.capacity().await.unwrap();
    store.set_capacity(room.total - room.free + (5 << 20));
    let data = noise(5, 24 * MIB);
    let mut written = 0;
    while written < data.len() {
        match pc.write(written as u64, &data[written..written + (64 << 10)], false).await {
            Ok(()) => written += 64 << 10,
            Err(Error::NoSpace) => break,
            Err(e) => panic!("{e}"),
        }
    }
    assert!((2 * MIB..24 * MIB).contains(&written), "{written} bytes were accepted");
    assert!(read(&pc, 0, written).await == data[..written]);
    store.set_capacity(room.total);
    for _ in 0..500 {
        match pc.write(written as u64, &data[written..], false).await {
            Ok(()) => {
                assert!(read(&pc, 0, data.len()).await == data);
                return;
            }
            Err(Error::NoSpace) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(e) => panic!("{e}"),
        }
    }
    panic!("writes are refused although there is room");
}

#[tokio::test]
async fn extents_combine_buffered_and_mapped_blocks() {
    let store = Arc::new(MemoryStore::new());
    let (_pool, pc) = with_desktop(&store, config(), 1 << 20).await;
    // The first 8 MiB of the image are data. Some of these writes overflow, some do not.
    pc.write(10 << 20, &noise(2, 3 * MIB), false).await.unwrap();
    pc.discard(1 << 20, 1 << 20, false).await.unwrap();
    pc.write_zeroes(11 << 20, 1 << 20, true, false).await.unwrap();
    let extent = |mib: u64, hole, zero| Extent { len: mib << 20, hole, zero };
    let (data, hole, zero) = ((false, false), (true, true), (false, true));
    let wanted: Vec<_> =
        [(1, data), (1, hole), (6, data), (2, hole), (1, data), (1, zero), (1, data), (19, hole)]
            .map(|(mib, (hole, zero))| extent(mib, hole, zero))
            .into();
    assert_eq!(pc.extents(0, 32 << 20, 100).await.unwrap(), wanted);
}

/// More than are looked up at a time.
#[tokio::test]
async fn extents_of_many_buffered_blocks_are_complete() {
    const BLOCKS: u64 = 40_000;
    let store = Arc::new(MemoryStore::new());
    let pool = open_with(&store, config()).await;
    let image = pool.begin_import("golden", BLOCKS * 4096, 0).await.unwrap();
    pool.finish_import(image).await.unwrap();
    pool.clone_disk("golden", &[desktop("pc", 256 << 20)]).await.unwrap();
    let pc = pool.attach("pc").unwrap();
    for block in (0..BLOCKS).step_by(2) {
        pc.write(block * 4096, &[7; 4096], false).await.unwrap();
    }
    pc.write_zeroes(1001 * 4096, 30_000 * 4096, true, false).await.unwrap();
    let found = pc.extents(4096, (BLOCKS - 1) * 4096, usize::MAX).await.unwrap();
    let mut at = 1;
    for extent in found {
        let end = at + extent.len / 4096;
        let wanted = |block| match block {
            1001..31_001 => (false, true),
            _ if block % 2 == 0 => (false, false),
            _ => (true, true),
        };
        assert!((at..end).all(|block| wanted(block) == (extent.hole, extent.zero)), "{at}..{end} {extent:?}");
        at = end;
    }
    assert_eq!(at, BLOCKS);
}

#[tokio::test]
async fn operations_invalid_for_desktops_are_refused() {
    let store = Arc::new(MemoryStore::new());
    let (pool, pc) = with_desktop(&store, config(), 1 << 20).await;
    let refused = |r: Result<(), Error>| assert!(matches!(r, Err(Error::WrongKind { .. })), "{r:?}");
    refused(pool.create_snapshot("pc", "s").await.map(drop));
    refused(pool.clone_disk("pc", &[clone("c")]).await.map(drop));
    refused(pool.resize("pc", 64 << 20).await);
    pool.clone_disk("golden", &[clone("volume")]).await.unwrap();
    refused(pool.clone_disk("volume", &[desktop("d", 1 << 20)]).await.map(drop));
    refused(pool.persist("volume", SyncMode::Flush).await.map(drop));
    drop(pc);
    pool.delete("pc").await.unwrap();
    assert_eq!(pool.stats().await.desktops.count, 0);
}

#[tokio::test]
async fn zeroes_do_not_count_against_the_budget() {
    let store = Arc::new(MemoryStore::new());
    let (pool, pc) = with_desktop(&store, config(), 16 << 20).await;
    pc.write(0, &noise(2, 4 * MIB), false).await.unwrap();
    pc.write(0, &vec![0; 4 * MIB], false).await.unwrap();
    pc.write(4 << 20, &vec![0; 2 * MIB], false).await.unwrap();
    pc.write(10 << 20, &[0; 512], false).await.unwrap();
    assert!(pool.stats().await.desktops.cached_bytes < 64 << 10);
    assert!(read(&pc, 0, 6 * MIB).await.iter().all(|b| *b == 0));
    assert!(read(&pc, 6 << 20, 2 * MIB).await == noise(1, 8 * MIB)[6 * MIB..]);
    let extents = pc.extents(0, 8 << 20, 10).await.unwrap();
    let zeroes = Extent { len: 6 << 20, hole: false, zero: true };
    assert_eq!(extents[0], zeroes, "written, so allocated");
}

/// A reset neither waits for clients nor disturbs them: it is refused while a client is attached, whatever
/// that client is doing, and complete after the client has detached, even with an overflow under way.
#[tokio::test]
async fn a_reset_concurrent_with_requests_and_overflow() {
    let array =
        DiskArray { spindles: 1, seek: Duration::from_millis(3), rpm: 12_000, bytes_per_second: 64 << 20 };
    let sleep = |d| -> BoxFuture<'static, ()> { Box::pin(tokio::time::sleep(d)) };
    let memory = Arc::new(MemoryStore::new());
    with_desktop(&memory, config(), 2 << 20).await.0.close().await.unwrap();
    let begin = std::time::Instant::now();
    let clock = Arc::new(move || begin.elapsed());
    let store: Arc<dyn Store> = Arc::new(Slow::new(memory, array, clock, Arc::new(sleep)));
    let host = Arc::new(TestHost(begin));
    let pool = Pool::open(store, host, config()).await.unwrap();
    let image = noise(1, 8 * MIB);
    for round in 0..6 {
        let pc = pool.attach("pc").unwrap();
        let data = noise(100 + round, 5 * MIB);
        let writes = async {
            write(&pc, 0, &data).await;
            assert!(read(&pc, 0, data.len()).await == data);
        };
        let resets = async {
            for _ in 0..20 {
                assert!(matches!(pool.reset("pc").await, Err(Error::InUse { .. })));
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::join!(writes, resets);
        drop(pc);
        pool.reset("pc").await.unwrap();
        assert_eq!(pool.disk_stats("pc").unwrap().cached_bytes, 0);
        let pc = pool.attach("pc").unwrap();
        assert!(read(&pc, 0, image.len()).await == image, "round {round}");
    }
    assert!(pool.stats().await.desktops.overflow.ops > 0);
}

/// A store that fails while a desktop overflows: writers get an error, no writer waits forever, and after a
/// restart the desktop equals its image and flushed data of other disks is present.
#[tokio::test]
async fn a_store_that_fails_during_overflow() {
    for op in [FaultyOp::Append, FaultyOp::Sync] {
        let store = FaultyStore::new(1);
        let open = async |store: &Arc<FaultyStore>| {
            let host = Arc::new(TestHost(std::time::Instant::now()));
            Pool::open(store.clone() as Arc<dyn Store>, host, config()).await.unwrap()
        };
        let pool = open(&store).await;
        let image = pool.begin_import("golden", 32 << 20, 0).await.unwrap();
        image.write(0, &noise(1, 8 * MIB), false).await.unwrap();
        pool.finish_import(image).await.unwrap();
        pool.clone_disk("golden", &[desktop("pc", 2 << 20), clone("kept")]).await.unwrap();
        let (pc, kept) = (pool.attach("pc").unwrap(), pool.attach("kept").unwrap());
        kept.write(0, &noise(2, MIB), false).await.unwrap();
        kept.flush().await.unwrap();
        store.inject(op, Fault::Io, When::Every(1));
        let data = noise(3, 16 * MIB);
        let written = async {
            for (piece, at) in data.chunks(64 << 10).zip((0..).step_by(64 << 10)) {
                pc.write(at, piece, false).await?;
            }
            Ok::<_, Error>(())
        };
        let written =
            tokio::time::timeout(Duration::from_secs(20), written).await.expect("a writer waits forever");
        assert!(matches!(written, Err(Error::Latched(_))), "{op:?}: {written:?}");
        drop((pc, kept, pool));
        store.clear_faults();
        store.crash(Crash::Kill);
        let store = store.reopen();
        let pool = open(&store).await;
        assert!(read(&pool.attach("pc").unwrap(), 0, 8 * MIB).await == noise(1, 8 * MIB));
        assert!(read(&pool.attach("kept").unwrap(), 0, MIB).await == noise(2, MIB));
    }
}

#[tokio::test]
async fn persist_on_a_full_store_leaves_the_desktop_unchanged() {
    let store = Arc::new(MemoryStore::new());
    let (pool, pc) = with_desktop(&store, config(), 4 << 20).await;
    let room = store.capacity().await.unwrap();
    store.set_capacity(room.total - room.free);
    let data = noise(5, 3 * MIB);
    write(&pc, 0, &data).await;
    assert!(matches!(pool.persist("pc", SyncMode::Flush).await, Err(Error::NoSpace)));
    assert_eq!(pool.disk("pc").unwrap().write_cache, 4 << 20);
    assert_eq!(pool.disk_stats("pc").unwrap().cached_bytes, 3 << 20);
    assert!(matches!(pool.create_snapshot("pc", "s").await, Err(Error::WrongKind { .. })));
    pc.flush().await.unwrap();
    assert!(read(&pc, 0, data.len()).await == data);
    store.set_capacity(room.total);
    while let Err(e) = pool.persist("pc", SyncMode::Flush).await {
        assert!(matches!(e, Error::NoSpace), "{e}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let pool = open(&left_by_crash(&store).await).await;
    assert!(read(&pool.attach("pc").unwrap(), 0, data.len()).await == data);
}
