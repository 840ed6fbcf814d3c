//! Block classes: their effects, their limits, and the life cycle of class maps.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use forebay_engine::{ClassStats, CloneRequest, DiskHandle, Error, Pool, PoolConfig, SegmentId, SyncMode};
use forebay_guest::{Class, ClassMap, Content};
use forebay_store::{FaultyStore, MemoryStore, Store};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Size of the disks.
const SIZE: u64 = 16 * MIB;
const CODE: u64 = 0;
const PAGE: u64 = 4 * MIB;
const OTHER: u64 = 8 * MIB;

/// Programs in the first 128 KiB, metadata after them, a page file from 4 MiB on, other files from 8 to 12
/// MiB.
fn map() -> ClassMap {
    let block = |byte: u64| byte / BLOCK;
    let ranges = [
        (0..32, Class::Code),
        (32..40, Class::Metadata),
        (block(PAGE)..block(OTHER), Class::Page),
        (block(12 * MIB)..block(SIZE), Class::Free),
    ];
    ClassMap::from_ranges(block(SIZE), ranges)
}

async fn keep(pool: &Arc<Pool>, name: &str, map: ClassMap) {
    pool.peek(name).unwrap().keep(map, vec![Content::Ntfs]).await.unwrap();
}

/// A pool with the volume `v` and its class map.
async fn with_volume(config: PoolConfig) -> (Arc<MemoryStore>, Arc<Pool>, Arc<DiskHandle>) {
    let store = Arc::new(MemoryStore::new());
    let pool = open_with(&store, config).await;
    pool.create_volume("v", SIZE, SyncMode::Flush, 0).await.unwrap();
    keep(&pool, "v", map()).await;
    let disk = pool.attach("v").unwrap();
    (store, pool, disk)
}

fn class(pool: &Pool, name: &str, class: Class) -> ClassStats {
    let info = pool.classes(name).unwrap();
    *info.classes.iter().find(|c| c.class == class).unwrap()
}

/// Bytes of the page file according to the class map, read after the maps were loaded; 0 if there is no map.
async fn page_bytes(pool: &Pool, name: &str) -> u64 {
    tokio::time::sleep(Duration::from_millis(20)).await;
    pool.classes(name).unwrap().classes.iter().find(|c| c.class == Class::Page).map_or(0, |c| c.bytes)
}

async fn put(disk: &DiskHandle, at: u64, data: &[u8]) {
    disk.write(at, data, false).await.unwrap();
    disk.flush().await.unwrap();
}

async fn store_reads(pool: &Pool) -> u64 {
    pool.stats().await.store.read.ops
}

#[tokio::test]
async fn a_page_file_is_neither_deduplicated_nor_compressed() {
    let (store, pool, v) = with_volume(config()).await;
    let data = text(1, 100 * BLOCK as usize);
    let before = pool.stats().await.reduction;
    // Neither within a group nor in the next one, and not compared with the current content.
    put(&v, PAGE, &data).await;
    put(&v, PAGE, &data).await;
    v.write(PAGE + MIB, &data, false).await.unwrap();
    put(&v, PAGE + 2 * MIB, &data).await;
    let after = pool.stats().await.reduction;
    assert_eq!(after.index_entries, before.index_entries);
    assert_eq!(after.duplicate_blocks, before.duplicate_blocks);
    assert_eq!(after.unchanged_blocks, before.unchanged_blocks);
    assert_eq!(after.new_blocks - before.new_blocks, 400);
    assert_eq!(after.new_bytes - before.new_bytes, 400 * BLOCK);
    // A file with the same content does not match the page file, and is itself found.
    put(&v, OTHER, &data).await;
    put(&v, OTHER + MIB, &data).await;
    let file = pool.stats().await.reduction;
    assert_eq!(file.index_entries - after.index_entries, 100);
    assert_eq!(file.duplicate_blocks - after.duplicate_blocks, 100);
    assert!(file.new_bytes - after.new_bytes < 60 * BLOCK);
    assert_eq!(class(&pool, "v", Class::Page).written_bytes, 400 * BLOCK);
    drop(v);
    pool.close().await.unwrap();

    // The same after the index is read back, and after all blocks are moved.
    for reclaim in [true, false] {
        let pool = open(&store).await;
        while pool.stats().await.reduction.index_segments_left > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(pool.stats().await.reduction.index_entries, file.index_entries);
        if reclaim {
            pool.reclaim(&|_| ()).await.unwrap();
        }
        let v = pool.attach("v").unwrap();
        for at in [PAGE, PAGE + MIB, PAGE + 2 * MIB, OTHER, OTHER + MIB] {
            assert_eq!(read(&v, at, data.len()).await, data);
        }
        drop(v);
        pool.close().await.unwrap();
    }
    assert_eq!(check(&store).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_page_file_is_not_cached() {
    let (_, pool, v) = with_volume(config()).await;
    let data = noise(2, 64 * BLOCK as usize);
    for (at, is_cached) in [(PAGE, false), (OTHER, true)] {
        put(&v, at, &data).await;
        for _ in 0..2 {
            let before = store_reads(&pool).await;
            assert_eq!(read(&v, at, data.len()).await, data);
            assert_eq!(store_reads(&pool).await == before, is_cached, "at {at}");
        }
    }
}

/// Reads the programs once, then everything else, then the programs: the number of store reads for the last
/// step.
async fn reads_for_code_after_a_scan(with_map: bool) -> u64 {
    let small = PoolConfig { read_cache: 2 << 20, ..config() };
    let (store, pool, v) = with_volume(small.clone()).await;
    let data = noise(3, SIZE as usize);
    for at in (0..SIZE).step_by(MIB as usize) {
        put(&v, at, &data[at as usize..][..MIB as usize]).await;
    }
    if !with_map {
        keep(&pool, "v", ClassMap::new(SIZE / BLOCK)).await;
    }
    drop(v);
    pool.close().await.unwrap();
    let pool = open_with(&store, small).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(pool.classes("v").unwrap().learned_ms.is_some(), with_map);
    let v = pool.attach("v").unwrap();
    assert_eq!(read(&v, CODE, 32 * BLOCK as usize).await, data[..32 * BLOCK as usize]);
    for at in (OTHER..SIZE).step_by(64 << 10) {
        assert_eq!(read(&v, at, 64 << 10).await, data[at as usize..][..64 << 10]);
    }
    let before = store_reads(&pool).await;
    for block in 0..32 {
        read(&v, block * BLOCK, BLOCK as usize).await;
    }
    store_reads(&pool).await - before
}

#[tokio::test]
async fn programs_stay_cached_during_a_full_read() {
    assert_eq!(reads_for_code_after_a_scan(true).await, 0);
    assert!(reads_for_code_after_a_scan(false).await > 0);
}

async fn with_image(store: &Arc<MemoryStore>) -> Arc<Pool> {
    let pool = open(store).await;
    let image = pool.begin_import("golden", SIZE, 0).await.unwrap();
    image.write(0, &text(4, MIB as usize), false).await.unwrap();
    pool.finish_import(image).await.unwrap();
    pool
}

fn desktop(name: &str) -> CloneRequest {
    CloneRequest { write_cache: MIB, ..clone(name) }
}

#[tokio::test]
async fn clones_use_the_class_map_of_their_image_until_they_have_a_separate_one() {
    let store = Arc::new(MemoryStore::new());
    let pool = with_image(&store).await;
    pool.clone_disk("golden", &[clone("before")]).await.unwrap();
    assert_eq!(page_bytes(&pool, "before").await, 0);
    keep(&pool, "golden", map()).await;
    pool.clone_disk("golden", &[clone("after"), clone("own"), clone("none"), desktop("desk")]).await.unwrap();
    let own = ClassMap::from_ranges(SIZE / BLOCK, [(0..8, Class::Page)]);
    keep(&pool, "own", own.clone()).await;
    keep(&pool, "desk", own).await;
    // A scan of this clone found no classes: it does not get its image's map again.
    keep(&pool, "none", ClassMap::new(SIZE / BLOCK)).await;
    pool.create_snapshot("own", "now").await.unwrap();
    pool.create_image("next", "own@now").await.unwrap();
    let all = OTHER - PAGE;
    let expected = [
        ("golden", all),
        ("before", all),
        ("after", all),
        ("own", 8 * BLOCK),
        ("own@now", 8 * BLOCK),
        ("next", 8 * BLOCK),
        ("none", 0),
    ];
    for (name, bytes) in expected {
        assert_eq!(page_bytes(&pool, name).await, bytes, "{name}");
    }
    assert_eq!(page_bytes(&pool, "desk").await, 8 * BLOCK);
    let crashed = left_by_crash(&store).await;
    pool.close().await.unwrap();
    for store in [&store, &crashed] {
        let pool = open(store).await;
        for (name, bytes) in expected {
            assert_eq!(page_bytes(&pool, name).await, bytes, "{name}");
        }
        // A desktop starts with its image's map, and so does a clone that is reset.
        assert_eq!(page_bytes(&pool, "desk").await, all);
        pool.delete("next").await.unwrap();
        pool.delete("own@now").await.unwrap();
        pool.reset_all(&["own", "none"]).await.unwrap();
        for name in ["own", "none"] {
            assert_eq!(page_bytes(&pool, name).await, all, "{name}");
        }
        pool.close().await.unwrap();
        let pool = open(store).await;
        assert_eq!(page_bytes(&pool, "own").await, all, "its metadata is gone");
        pool.close().await.unwrap();
        assert_eq!(check(store).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_damaged_class_map_is_ignored_and_can_be_replaced() {
    let plain = PoolConfig { compress: false, ..config() };
    let (store, pool, v) = with_volume(plain.clone()).await;
    let data = noise(5, MIB as usize);
    put(&v, OTHER, &data).await;
    drop(v);
    pool.close().await.unwrap();
    let mut found = 0;
    for object in store.list().await.unwrap() {
        store.damage(SegmentId(object.id.0), |bytes| {
            let at = bytes.windows(4).position(|w| w == b"FBCM");
            found += usize::from(at.is_some());
            at.into_iter().for_each(|at| bytes[at] ^= 1);
        });
    }
    assert_eq!(found, 1);
    let pool = open_with(&store, plain).await;
    assert_eq!(page_bytes(&pool, "v").await, 0);
    assert_eq!(read(&pool.attach("v").unwrap(), OTHER, data.len()).await, data);
    // A new map replaces it.
    keep(&pool, "v", map()).await;
    assert_eq!(page_bytes(&pool, "v").await, OTHER - PAGE);
}

#[tokio::test]
async fn a_peek_is_not_counted_as_a_client_or_a_read() {
    let store = Arc::new(MemoryStore::new());
    with_image(&store).await.close().await.unwrap();
    let pool = open(&store).await;
    let expected = text(4, MIB as usize);
    let peek = pool.peek("golden").unwrap();
    for _ in 0..2 {
        let before = (pool.stats().await.read_cache, store_reads(&pool).await);
        let mut out = vec![0; expected.len()];
        peek.read(0, &mut out).await.unwrap();
        assert_eq!(out, expected);
        let after = (pool.stats().await.read_cache, store_reads(&pool).await);
        assert_eq!(
            (after.0.hits, after.0.misses, after.0.bytes),
            (before.0.hits, before.0.misses, before.0.bytes)
        );
        assert!(after.1 > before.1, "the peek did not cache");
    }
    assert_eq!(pool.disk("golden").unwrap().clients, 0);
    assert_eq!(pool.disk_stats("golden").unwrap().guest.read.ops, 0);
    let mut out = [0; 2];
    assert!(matches!(peek.read(SIZE - 1, &mut out).await, Err(Error::OutOfRange)));
    // A peek sees writes that are not durable yet.
    pool.clone_disk("golden", &[desktop("desk")]).await.unwrap();
    let desk = pool.attach("desk").unwrap();
    desk.write(0, b"zz", false).await.unwrap();
    pool.peek("desk").unwrap().read(0, &mut out).await.unwrap();
    assert_eq!(&out, b"zz");
}

#[tokio::test]
async fn a_scan_result_from_before_a_reset_is_dropped() {
    let store = Arc::new(MemoryStore::new());
    let pool = with_image(&store).await;
    pool.clone_disk("golden", &[clone("a"), clone("b")]).await.unwrap();
    let (reset, gone) = (pool.peek("a").unwrap(), pool.peek("b").unwrap());
    pool.reset("a").await.unwrap();
    pool.delete("b").await.unwrap();
    reset.keep(map(), vec![]).await.unwrap();
    assert_eq!(page_bytes(&pool, "a").await, 0);
    assert!(gone.keep(map(), vec![]).await.is_err());
}

/// The disk to be scanned next, if any.
async fn next(pool: &Arc<Pool>) -> Option<String> {
    let next = tokio::time::timeout(Duration::from_millis(50), pool.next_to_learn()).await;
    next.ok().map(|peek| peek.name())
}

#[tokio::test]
async fn new_content_is_scanned_once_per_fleet() {
    let store = Arc::new(MemoryStore::new());
    let pool = with_image(&store).await;
    assert_eq!(next(&pool).await.as_deref(), Some("golden"));
    assert_eq!(next(&pool).await, None);
    keep(&pool, "golden", map()).await;
    pool.clone_disk("golden", &[clone("a"), desktop("d1"), desktop("d2")]).await.unwrap();
    let fill = async |name: &str, at: u64, times: u64| {
        let disk = pool.attach(name).unwrap();
        for n in 0..times {
            put(&disk, at, &noise(n, 4 * MIB as usize)).await;
        }
    };
    // The page file is rewritten continuously.
    fill("a", PAGE, 32).await;
    assert_eq!(next(&pool).await, None);
    fill("a", 12 * MIB, 15).await;
    assert_eq!(next(&pool).await, None);
    fill("a", 12 * MIB, 1).await;
    assert_eq!(next(&pool).await.as_deref(), Some("a"));
    fill("a", 12 * MIB, 32).await;
    assert_eq!(next(&pool).await, None, "not before the interval has passed");
    fill("d1", 12 * MIB, 17).await;
    fill("d2", 12 * MIB, 17).await;
    assert_eq!(next(&pool).await.as_deref(), Some("d1"));
    assert_eq!(next(&pool).await, None, "one desktop of a fleet");
    pool.create_image("next", "a").await.unwrap();
    assert_eq!(next(&pool).await.as_deref(), Some("next"));
    pool.close().await.unwrap();

    // An image that was not scanned before the server stopped.
    let pool = open(&store).await;
    assert_eq!(next(&pool).await, None);
    let image = pool.begin_import("late", SIZE, 0).await.unwrap();
    pool.finish_import(image).await.unwrap();
    pool.close().await.unwrap();
    let pool = open(&store).await;
    assert_eq!(next(&pool).await.as_deref(), Some("late"));
    pool.close().await.unwrap();
    let pool = open_with(&store, PoolConfig { learn_classes: false, ..config() }).await;
    assert_eq!(next(&pool).await, None);
}

#[tokio::test]
async fn reads_are_sampled_by_class() {
    let (_, pool, v) = with_volume(config()).await;
    put(&v, CODE, &noise(6, MIB as usize)).await;
    put(&v, PAGE, &noise(7, MIB as usize)).await;
    for n in 0..160 {
        read(&v, CODE + n % 32 * BLOCK, BLOCK as usize).await;
        read(&v, PAGE, BLOCK as usize).await;
    }
    let (code, page) = (class(&pool, "v", Class::Code), class(&pool, "v", Class::Page));
    assert_eq!((code.read_hits, code.read_misses, page.read_hits, page.read_misses), (20, 0, 0, 0));
    for _ in 0..160 {
        read(&v, PAGE, BLOCK as usize).await;
    }
    let page = class(&pool, "v", Class::Page);
    assert_eq!((page.read_hits, page.read_misses), (0, 10));
    assert_eq!(class(&pool, "v", Class::Code).written_bytes, 32 * BLOCK);
}

/// A disk that is being scanned has no client for that purpose, so its size can change while the scan waits
/// for the store.
#[tokio::test]
async fn a_disk_that_shrinks_while_it_is_scanned_ends_the_scan() {
    const LARGE: u64 = 64 * MIB;
    for how in ["resize", "rollback", "reset"] {
        let store = FaultyStore::new(1);
        let open = || async {
            let (store, host) = (store.reopen(), Arc::new(TestHost(std::time::Instant::now())));
            Pool::open(store, host, config()).await.unwrap()
        };
        let pool = open().await;
        pool.create_volume("base", SIZE, SyncMode::Flush, 0).await.unwrap();
        pool.create_image("image", "base").await.unwrap();
        pool.clone_disk("image", &[clone("v")]).await.unwrap();
        pool.create_snapshot("v", "small").await.unwrap();
        pool.resize("v", LARGE).await.unwrap();
        let v = pool.attach("v").unwrap();
        for mib in 0..LARGE / MIB {
            v.write(mib * MIB, &noise(mib + 1, 4096), false).await.unwrap();
        }
        drop(v);
        pool.close().await.unwrap();
        // The scan now waits for the read of each of 64 leaves. The change waits for fewer reads.
        let pool = open().await;
        store.set_delay(50);
        let peek = pool.peek("v").unwrap();
        let mut out = vec![0; LARGE as usize];
        let change = async {
            match how {
                "resize" => pool.resize("v", SIZE).await,
                "rollback" => pool.rollback("v", "small").await,
                _ => pool.reset("v").await,
            }
        };
        let (read, changed) = tokio::join!(peek.read(0, &mut out), change);
        changed.unwrap();
        assert!(matches!(read, Err(Error::OutOfRange)), "{how}: {read:?}");
        assert_eq!(pool.disk("v").unwrap().size, SIZE);
    }
}
