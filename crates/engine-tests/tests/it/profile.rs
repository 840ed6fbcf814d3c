//! Boot profiles: recording and storing them, and the costs and savings of a prefetch.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::common::*;
use forebay_engine::{BootProfile, DiskHandle, Error, Pool, PoolConfig, ProfileInfo};
use forebay_store::MemoryStore;

const MIB: u64 = 1 << 20;
const KIB16: usize = 16 << 10;

fn roomy() -> PoolConfig {
    PoolConfig { read_cache: 64 << 20, segment_bytes: 8 << 20, ..config() }
}

/// The first 32 MiB of the image.
fn content() -> &'static [u8] {
    static CONTENT: OnceLock<Vec<u8>> = OnceLock::new();
    CONTENT.get_or_init(|| text(1, 32 << 20))
}

/// A pool with an image of 64 MiB, its first 32 MiB text, and clones `a` and `b` of it.
async fn with_image(store: &Arc<MemoryStore>) -> Arc<Pool> {
    let pool = open_with(store, roomy()).await;
    let image = pool.begin_import("golden", 64 * MIB, 0).await.unwrap();
    for (piece, at) in content().chunks(MIB as usize).zip((0..).step_by(MIB as usize)) {
        image.write(at, piece, false).await.unwrap();
    }
    pool.finish_import(image).await.unwrap();
    pool.clone_disk("golden", &[clone("a"), clone("b")]).await.unwrap();
    pool
}

/// Offsets that a boot reads, 16 KiB each: scattered, 6 MiB in all, in the same order each time.
fn boot() -> impl Iterator<Item = u64> {
    (0..384).map(|n: u64| n * 7919 % 1500 * KIB16 as u64)
}

async fn boots(disk: &DiskHandle) {
    for at in boot() {
        assert_eq!(read(disk, at, KIB16).await, content()[at as usize..][..KIB16]);
    }
}

/// Waits for the profile.
async fn recorded(pool: &Arc<Pool>) -> ProfileInfo {
    for _ in 0..500 {
        let info = pool.profile("golden").await.unwrap();
        if info.bytes > 0 && !info.recording {
            return info;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("no profile: {:?}", pool.profile("golden").await);
}

/// A pool whose image has the profile of one boot.
async fn with_profile(store: &Arc<MemoryStore>) -> Arc<Pool> {
    let pool = with_image(store).await;
    let a = pool.attach("a").unwrap();
    while !pool.profile("golden").await.unwrap().recording {
        tokio::task::yield_now().await;
    }
    boots(&a).await;
    drop(a);
    let info = recorded(&pool).await;
    assert_eq!((info.bytes, info.waiting), (384 * KIB16 as u64, false));
    assert_eq!((info.cached_bytes, info.recorded_ms), (info.bytes, Some(1_700_000_000_000)));
    pool
}

async fn store_reads(pool: &Pool) -> u64 {
    pool.stats().await.store.read.ops
}

#[tokio::test]
async fn a_boot_is_recorded_once_and_durably() {
    let store = Arc::new(MemoryStore::new());
    let pool = with_profile(&store).await;
    let b = pool.attach("b").unwrap();
    read(&b, 40 * MIB, 4096).await;
    read(&b, 20 * MIB, 4 << 20).await;
    drop(b);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(recorded(&pool).await.bytes, 384 * KIB16 as u64, "the second boot changes nothing");
    let names: Vec<_> = pool.disks().into_iter().map(|d| d.name).collect();
    assert_eq!(names, ["a", "b", "golden"], "the profile is not listed as a disk");
    pool.close().await.unwrap();
    drop(pool);
    let pool = open_with(&store, roomy()).await;
    let info = recorded(&pool).await;
    assert_eq!((info.bytes, info.cached_bytes), (384 * KIB16 as u64, 0));
    assert_eq!(check(&store).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_prefetch_replaces_many_reads_by_few() {
    let store = Arc::new(MemoryStore::new());
    with_profile(&store).await.close().await.unwrap();

    let off = PoolConfig { boot_profile: BootProfile::Off, ..roomy() };
    let pool = open_with(&store, off).await;
    let before = store_reads(&pool).await;
    boots(&pool.attach("a").unwrap()).await;
    let without = store_reads(&pool).await - before;
    pool.close().await.unwrap();

    let pool = open_with(&store, roomy()).await;
    let before = store_reads(&pool).await;
    let done = pool.prefetch("golden").await.unwrap();
    let with = store_reads(&pool).await - before;
    assert_eq!((done.bytes, done.cached_bytes), (384 * KIB16 as u64, 0));
    assert!(done.reads <= 12 && with <= 24, "{done:?}, {with} reads in all");
    boots(&pool.attach("a").unwrap()).await;
    boots(&pool.attach("b").unwrap()).await;
    assert_eq!(store_reads(&pool).await, before + with, "everything is cached");
    assert!(without > 5 * with, "{without} reads without, {with} with");
    let again = pool.prefetch("golden").await.unwrap();
    assert_eq!((again.reads, again.cached_bytes), (0, done.bytes));
}

#[tokio::test]
async fn the_profile_is_prefetched_when_a_clone_starts() {
    let store = Arc::new(MemoryStore::new());
    with_profile(&store).await.close().await.unwrap();
    let pool = open_with(&store, roomy()).await;
    let all = recorded(&pool).await.bytes;
    let cached = async || pool.profile("golden").await.unwrap().cached_bytes;
    let a = pool.attach("a").unwrap();
    while cached().await < all {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let reads = store_reads(&pool).await;
    boots(&a).await;
    assert_eq!(store_reads(&pool).await, reads);
    drop(a);
    pool.close().await.unwrap();

    // With "on", before any client attaches.
    let pool = open_with(&store, PoolConfig { boot_profile: BootProfile::On, ..roomy() }).await;
    while pool.profile("golden").await.unwrap().cached_bytes < all {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn access_patterns_other_than_boots_are_not_stored() {
    let store = Arc::new(MemoryStore::new());
    let pool = with_image(&store).await;
    let ends = async || {
        tokio::time::sleep(Duration::from_millis(20)).await;
        while pool.profile("golden").await.unwrap().recording {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        pool.profile("golden").await.unwrap()
    };
    // A client reads only the first sectors.
    let a = pool.attach("a").unwrap();
    read(&a, 0, 4096).await;
    drop(a);
    let info = ends().await;
    assert_eq!((info.bytes, info.waiting), (0, true));
    // A client copies the whole image.
    let a = pool.attach("a").unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    for at in 0..64 {
        read(&a, at * MIB, MIB as usize).await;
    }
    drop(a);
    assert_eq!(ends().await.bytes, 0);
    assert_eq!(pool.prefetch("golden").await.unwrap().reads, 0);
}

#[tokio::test]
async fn recording_restarts_ends_and_is_forgotten_on_request() {
    let store = Arc::new(MemoryStore::new());
    let pool = with_profile(&store).await;
    pool.record_profile("golden").unwrap();
    assert!(pool.profile("golden").await.unwrap().waiting);
    let b = pool.attach("b").unwrap();
    while !pool.profile("golden").await.unwrap().recording {
        tokio::task::yield_now().await;
    }
    read(&b, 2 * MIB, MIB as usize).await;
    b.write(4 * MIB, &noise(1, MIB as usize), false).await.unwrap();
    // Blocks that the clone wrote itself do not belong to the image.
    read(&b, 4 * MIB, MIB as usize).await;
    read(&b, 9 * MIB, MIB as usize).await;
    assert!(pool.end_recording("golden").unwrap());
    while pool.profile("golden").await.unwrap().bytes != 2 * MIB {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!pool.end_recording("golden").unwrap());
    pool.forget_profile("golden").await.unwrap();
    assert_eq!(pool.profile("golden").await.unwrap().bytes, 0);
    let wrong = [pool.profile("a").await.map(drop), pool.record_profile("a"), pool.forget_profile("a").await];
    assert!(wrong.iter().all(|r| matches!(r, Err(Error::WrongKind { .. }))), "{wrong:?}");
    assert!(matches!(pool.prefetch("missing").await, Err(Error::NotFound(_))));
}

#[tokio::test]
async fn a_profile_is_deleted_with_its_image() {
    let store = Arc::new(MemoryStore::new());
    let pool = with_profile(&store).await;
    for name in ["a", "b", "golden"] {
        pool.delete(name).await.unwrap();
    }
    let image = pool.begin_import("golden", 64 * MIB, 0).await.unwrap();
    pool.finish_import(image).await.unwrap();
    assert_eq!(pool.profile("golden").await.unwrap().bytes, 0);
    pool.reclaim(&|_| ()).await.unwrap();
    let space = pool.stats().await.space.unwrap();
    assert_eq!(space.live_bytes, 0, "the profile occupies no space any more");
}

#[tokio::test]
async fn a_forgotten_profile_does_not_reappear_after_a_crash() {
    let store = Arc::new(MemoryStore::new());
    let pool = with_profile(&store).await;
    let before = left_by_crash(&store).await;
    pool.forget_profile("golden").await.unwrap();
    for (left, bytes) in [(before, 384 * KIB16 as u64), (left_by_crash(&store).await, 0)] {
        let pool = open_with(&left, roomy()).await;
        assert_eq!(pool.profile("golden").await.unwrap().bytes, bytes);
        drop(pool);
        assert_eq!(check(&left).await, Vec::<String>::new());
    }
}
