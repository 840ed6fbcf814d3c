//! Cleaning: the space that it frees, the figures that it reports, and the data that it leaves unchanged.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{check, clone, noise, open_with, read, text};
use forebay_engine::{
    DiskHandle, Error, GcPhase, GcProgress, Mutation, Pool, PoolConfig, SegmentId, SyncMode,
};
use forebay_store::{Completion, IoBuf, MemoryStore, Store};
use tokio::sync::Semaphore;

fn config() -> PoolConfig {
    PoolConfig {
        read_cache: 0,
        map_cache: 4 << 20,
        write_buffer: 1 << 20,
        segment_bytes: 1 << 20,
        checkpoint_bytes: 64 << 20,
        reclaim_pause: Duration::from_secs(3600),
        ..PoolConfig::default()
    }
}

async fn open(store: &Arc<MemoryStore>) -> Arc<Pool> {
    open_with(store, config()).await
}

/// The content of the block with number `n`; it does not compress.
fn random_block(n: u64) -> Vec<u8> {
    noise(n, 4096)
}

async fn fill(disk: &DiskHandle, blocks: impl Iterator<Item = u64>, of: u64) {
    for block in blocks {
        disk.write(block * 4096, &random_block(of << 32 | block), false).await.unwrap();
    }
    disk.flush().await.unwrap();
}

async fn verify(disk: &DiskHandle, blocks: impl Iterator<Item = u64>, of: u64) {
    let mut out = [0; 4096];
    for block in blocks {
        disk.read(block * 4096, &mut out).await.unwrap();
        assert!(out[..] == random_block(of << 32 | block)[..], "block {block}");
    }
}

async fn stored(store: &MemoryStore) -> u64 {
    store.list().await.unwrap().iter().map(|o| o.len).sum()
}

/// A pool with a volume of which every second block was discarded, so every segment is half full.
async fn half_discarded(store: &Arc<MemoryStore>, blocks: u64) -> (Arc<Pool>, Arc<DiskHandle>) {
    let pool = open(store).await;
    pool.create_volume("v", blocks * 4096, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    fill(&v, 0..blocks, 1).await;
    for block in (0..blocks).step_by(2) {
        v.discard(block * 4096, 4096, false).await.unwrap();
    }
    v.flush().await.unwrap();
    (pool, v)
}

/// Every second block is discarded, so every segment is half full.
#[tokio::test]
async fn discarded_space_is_freed() {
    const BLOCKS: u64 = 8192;
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("v", BLOCKS * 4096, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    fill(&v, 0..BLOCKS, 1).await;
    let before = stored(&store).await;
    for block in (0..BLOCKS).step_by(2) {
        v.discard(block * 4096, 4096, false).await.unwrap();
    }
    v.flush().await.unwrap();
    let seen = std::sync::Mutex::new(Vec::new());
    let freed = pool.reclaim(&|p: GcProgress| seen.lock().unwrap().push(p)).await.unwrap();
    let after = stored(&store).await;
    let discarded = BLOCKS / 2 * 4096;
    assert!(after + discarded * 95 / 100 < before, "{before} bytes before, {after} after, {freed} freed");
    verify(&v, (0..BLOCKS).skip(1).step_by(2), 1).await;

    let seen = seen.into_inner().unwrap();
    let last = seen.last().unwrap();
    assert_eq!((last.phase, last.done, last.freed_bytes), (GcPhase::Done, last.total, freed));
    assert!(seen.iter().any(|p| p.phase == GcPhase::Clean && p.done < p.total));
    let stats = pool.stats().await;
    assert_eq!((stats.freed_bytes, stats.moved_bytes), (freed, last.moved_bytes));
    let space = stats.space.unwrap();
    assert_eq!(space.mapped_bytes, discarded);
    assert_eq!(space.unique_bytes, discarded);
    assert!((discarded..discarded + discarded / 50).contains(&space.live_bytes), "{space:?}");

    // A second reclaim has almost nothing to do, and all data is present after a restart.
    let again = pool.reclaim(&|_| ()).await.unwrap();
    assert!(again < discarded / 20, "{again} bytes freed again");
    drop(v);
    pool.close().await.unwrap();
    assert_eq!(check(&store).await, Vec::<String>::new());
    let pool = open(&store).await;
    verify(&pool.attach("v").unwrap(), (0..BLOCKS).skip(1).step_by(2), 1).await;
}

/// A client of `gc` may disconnect at any time.
#[tokio::test]
async fn a_reclaim_completes_after_its_caller_disconnects() {
    const BLOCKS: u64 = 4096;
    let store = Arc::new(MemoryStore::new());
    let (pool, v) = half_discarded(&store, BLOCKS).await;
    let begun = tokio::sync::Notify::new();
    let progress = |p: GcProgress| {
        if p.phase == GcPhase::Clean {
            begun.notify_one();
        }
    };
    tokio::select! {
        ended = pool.reclaim(&progress) => panic!("the reclaim ended before its caller could disconnect: {ended:?}"),
        () = begun.notified() => {}
    }
    // The next one begins when the first has ended, and finds no more work.
    let again = pool.reclaim(&|_| ()).await.unwrap();
    let (freed, discarded) = (pool.stats().await.freed_bytes, BLOCKS / 2 * 4096);
    assert!(freed > discarded && again < discarded / 20, "{freed} bytes freed, {again} of them again");
    verify(&v, (0..BLOCKS).skip(1).step_by(2), 1).await;
    drop(v);
    pool.close().await.unwrap();
    assert_eq!(check(&store).await, Vec::<String>::new());
}

/// The next server may open the pool when this one has closed it.
#[tokio::test]
async fn a_closed_pool_is_not_changed_by_a_reclaim() {
    let store = Arc::new(MemoryStore::new());
    let (pool, v) = half_discarded(&store, 4096).await;
    drop(v);
    let begun = tokio::sync::Notify::new();
    let progress = |p: GcProgress| {
        if p.phase == GcPhase::Clean {
            begun.notify_one();
        }
    };
    let closed = async {
        begun.notified().await;
        pool.close().await.unwrap();
        (store.list().await.unwrap(), store.read_superblock().await.unwrap())
    };
    let (reclaimed, closed) = tokio::join!(pool.reclaim(&progress), closed);
    assert!(matches!(reclaimed, Err(Error::Closed)), "{reclaimed:?}");
    assert!(matches!(pool.reclaim(&|_| ()).await, Err(Error::Closed)));
    let now = (store.list().await.unwrap(), store.read_superblock().await.unwrap());
    assert!(now == closed, "the store was changed after the pool was closed");
    assert_eq!(check(&store).await, Vec::<String>::new());
}

#[tokio::test]
async fn exclusive_bytes_are_reported_for_each_disk() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("v", 64 << 20, SyncMode::Flush, 0).await.unwrap();
    fill(&pool.attach("v").unwrap(), 0..1000, 1).await;
    pool.create_snapshot("v", "s").await.unwrap();
    pool.clone_disk("v@s", &[clone("a"), clone("b")]).await.unwrap();
    fill(&pool.attach("a").unwrap(), 500..600, 2).await;
    pool.create_volume("alone", 64 << 20, SyncMode::Flush, 0).await.unwrap();
    fill(&pool.attach("alone").unwrap(), 0..300, 3).await;
    // The same blocks as in the volume: stored once.
    fill(&pool.attach("alone").unwrap(), 700..750, 1).await;
    pool.reclaim(&|_| ()).await.unwrap();
    let of = |name: &str| pool.disk_stats(name).unwrap().space.unwrap();
    for name in ["v", "v@s", "a", "b"] {
        assert_eq!(of(name).mapped_bytes, 1000 * 4096, "{name}");
    }
    for (name, blocks) in [("v", 0), ("v@s", 0), ("b", 0), ("a", 100), ("alone", 300)] {
        let bytes = of(name).exclusive_bytes;
        // And some map nodes.
        assert!((blocks * 4096..=blocks * 4096 + 16384).contains(&bytes), "{name}: {bytes}");
    }
    assert_eq!(of("alone").mapped_bytes, 350 * 4096);
    let space = pool.stats().await.space.unwrap();
    assert_eq!(space.unique_bytes, 1400 * 4096);
    assert_eq!(space.mapped_bytes, 4350 * 4096);
    assert_eq!(space.logical_bytes, (5 * 64) << 20);
}

/// Imports an image of 8 MiB of text; returns its content.
async fn import(pool: &Arc<Pool>, name: &str) -> Vec<u8> {
    let data = text(1, 8 << 20);
    let image = pool.begin_import(name, data.len() as u64, 0).await.unwrap();
    image.write(0, &data, true).await.unwrap();
    pool.finish_import(image).await.unwrap();
    data
}

/// A reclaim packs the image: the figures are those after it, not those of the mark with which it began.
#[tokio::test]
async fn live_data_is_less_than_stored_data_after_an_image_was_packed() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    import(&pool, "golden").await;
    let before = pool.stats().await.stored_bytes;
    pool.reclaim(&|_| ()).await.unwrap();
    let first = pool.stats().await;
    assert!(first.stored_bytes < before * 3 / 4, "{before} bytes were packed to {}", first.stored_bytes);
    let live = first.space.unwrap().live_bytes;
    assert!(live <= first.stored_bytes, "live {live}, stored {}", first.stored_bytes);
    pool.reclaim(&|_| ()).await.unwrap();
    let measured = pool.stats().await.space.unwrap().live_bytes;
    // The headers of what was moved count in the first figure only.
    assert!(measured <= live && live <= before * 3 / 4, "live {live}, then {measured}");
}

/// What is shown as reclaimable is what a reclaim frees.
#[tokio::test]
async fn nothing_is_reclaimable_that_a_reclaim_does_not_free() {
    let store = Arc::new(MemoryStore::new());
    let (pool, v) = half_discarded(&store, 2000).await;
    for round in 0..12 {
        let freed = pool.reclaim(&|_| ()).await.unwrap();
        let found = pool.stats().await.space.unwrap().reclaimable_bytes;
        let again = pool.reclaim(&|_| ()).await.unwrap();
        assert!(found == 0 || again > 0, "round {round}: {found} are reclaimable, and nothing was freed");
        assert!(freed > 0 || round > 0);
        // Garbage in segments that are open, or in which it is next to nothing.
        v.discard(round * 37 * 4096, 4096 * (1 + round % 3), false).await.unwrap();
        fill(&v, 1000 + round * 20..1000 + round * 21, 9 + round).await;
    }
}

/// Neither while it is under way, nor after it has become an image or was abandoned.
#[tokio::test]
async fn the_writes_of_an_import_are_not_those_of_guests() {
    let pool = open(&Arc::new(MemoryStore::new())).await;
    import(&pool, "golden").await;
    let under_way = pool.begin_import("other", 8 << 20, 0).await.unwrap();
    under_way.write(0, &noise(1, 1 << 20), true).await.unwrap();
    let writes = || async { pool.stats().await.guest.write };
    assert_eq!(writes().await.ops, 0);
    assert_eq!(pool.disk_stats("golden").unwrap().guest.write.bytes, 0);
    pool.abandon_import(under_way).await.unwrap();
    assert_eq!(writes().await.ops, 0);
    pool.clone_disk("golden", &[clone("a")]).await.unwrap();
    pool.attach("a").unwrap().write(0, &noise(2, 4096), true).await.unwrap();
    assert_eq!(writes().await.bytes, 4096);
}

#[tokio::test]
async fn an_image_is_packed_once_and_a_volume_is_not() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    let data = import(&pool, "golden").await;
    pool.create_volume("v", 64 << 20, SyncMode::Flush, 0).await.unwrap();
    pool.attach("v").unwrap().write(0, &text(2, 4 << 20), true).await.unwrap();
    let live = async || pool.stats().await.space.unwrap().live_bytes;
    let before = pool.stats().await.stored_bytes;
    pool.reclaim(&|_| ()).await.unwrap();
    let moved = pool.stats().await.moved_bytes;
    assert!(moved > 0 && moved < 2 << 20, "{moved} bytes were moved");
    pool.reclaim(&|_| ()).await.unwrap();
    let (after, again) = (live().await, pool.stats().await.moved_bytes - moved);
    assert!(after * 10 < before * 9, "{before} bytes before, {after} after");
    assert!(again < moved / 10, "{again} bytes were moved again");
    let mut disk = pool.attach("golden").unwrap();
    assert!(read(&disk, 0, data.len()).await == data);
    drop(disk);
    pool.close().await.unwrap();
    assert_eq!(check(&store).await, Vec::<String>::new());
    let pool = open(&store).await;
    disk = pool.attach("golden").unwrap();
    assert_eq!(read(&disk, 1_234_567, 5000).await, data[1_234_567..][..5000]);
}

#[tokio::test]
async fn an_image_is_packed_automatically() {
    let store = Arc::new(MemoryStore::new());
    let pool = open_with(&store, PoolConfig { reclaim_pause: Duration::ZERO, ..config() }).await;
    import(&pool, "golden").await;
    for _ in 0..2000 {
        if pool.stats().await.moved_bytes > 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the image was not packed");
}

#[tokio::test]
async fn an_incompressible_image_is_not_moved() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    let image = pool.begin_import("golden", 4 << 20, 0).await.unwrap();
    image.write(0, &noise(1, 4 << 20), true).await.unwrap();
    pool.finish_import(image).await.unwrap();
    pool.reclaim(&|_| ()).await.unwrap();
    assert_eq!(pool.stats().await.moved_bytes, 0);
}

/// Damages block `block` of `of`; returns the object that holds it.
async fn damage_block(store: &MemoryStore, of: u64, block: u64) -> forebay_engine::SegmentId {
    let wanted = random_block(of << 32 | block);
    for object in store.list().await.unwrap() {
        let bytes = store.read(object.id, 0, (object.len as usize).max(4096)).await.unwrap();
        if let Some(at) = bytes.windows(4096).step_by(64).position(|w| w == wanted) {
            store.damage(object.id, |bytes| bytes[at * 64 + 5] ^= 1);
            return object.id;
        }
    }
    panic!("block {block} is not stored");
}

#[tokio::test]
async fn a_segment_with_a_damaged_block_is_kept_and_the_others_are_cleaned() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("v", 64 << 20, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    fill(&v, 0..4000, 1).await;
    pool.clone_disk("v", &[clone("c")]).await.unwrap();
    for name in ["v", "c"] {
        let disk = pool.attach(name).unwrap();
        for block in (0..4000).step_by(2) {
            disk.discard(block * 4096, 4096, false).await.unwrap();
        }
        disk.flush().await.unwrap();
    }
    let object = damage_block(&store, 1, 1001).await;
    let freed = pool.reclaim(&|_| ()).await.unwrap();
    assert!(freed > 6 << 20, "{freed}");
    assert!(store.list().await.unwrap().iter().any(|o| o.id == object), "the damaged segment is gone");
    let mut out = [0; 4096];
    assert!(matches!(v.read(1001 * 4096, &mut out).await, Err(Error::Damaged(_))));
    verify(&v, (1..4000).step_by(2).filter(|b| *b != 1001), 1).await;
    drop(v);
    pool.close().await.unwrap();
    let problems = check(&store).await;
    let blocks: Vec<_> = problems.iter().filter(|p| p.contains("a block is damaged")).collect();
    assert!(matches!(&blocks[..], [one] if one.ends_with(r#"of ["v", "c"]"#)), "{problems:?}");
}

/// Reads of the block are answered from the read cache, so only the cleaner notices the damage.
#[tokio::test]
async fn a_damaged_block_is_stored_again_although_it_is_cached() {
    let store = Arc::new(MemoryStore::new());
    let pool = open_with(&store, PoolConfig { read_cache: 64 << 20, ..config() }).await;
    pool.create_volume("v", 64 << 20, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    fill(&v, 0..1000, 1).await;
    for block in (0..1000).step_by(2) {
        v.discard(block * 4096, 4096, false).await.unwrap();
    }
    v.flush().await.unwrap();
    damage_block(&store, 1, 501).await;
    pool.reclaim(&|_| ()).await.unwrap();
    assert!(pool.stats().await.damaged_blocks > 0, "the cleaner has not read the block");
    verify(&v, 501..502, 1).await;
    fill(&v, 501..502, 1).await;
    drop(v);
    pool.close().await.unwrap();
    let problems = check(&store).await;
    assert!(!problems.iter().any(|p| p.contains("a block is damaged")), "{problems:?}");
}

#[tokio::test]
async fn damage_in_a_container_is_reported_with_all_affected_disks() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.create_volume("v", 64 << 20, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    fill(&v, 0..2000, 1).await;
    for block in (0..2000).step_by(2) {
        v.discard(block * 4096, 4096, false).await.unwrap();
    }
    v.flush().await.unwrap();
    pool.clone_disk("v", &[clone("c")]).await.unwrap();
    pool.reclaim(&|_| ()).await.unwrap();
    drop(v);
    pool.close().await.unwrap();
    assert_eq!(check(&store).await, Vec::<String>::new());
    // A moved block.
    damage_block(&store, 1, 77).await;
    let found = check(&store).await;
    assert!(
        found.iter().any(|p| p.contains("a block is damaged") && p.ends_with(r#"of ["v", "c"]"#)),
        "{found:?}"
    );
    // A relocation map.
    for object in store.list().await.unwrap() {
        let bytes = store.read(object.id, 0, (object.len as usize).max(4096)).await.unwrap();
        let at = bytes.windows(8).step_by(64).position(|w| w == b"FBRELOCM");
        if let Some(at) = at {
            store.damage(object.id, |bytes| bytes[at * 64 + 100] ^= 1);
            break;
        }
    }
    let found = check(&store).await;
    assert!(found.iter().any(|p| p.contains("a relocation map cannot be read")), "{found:?}");
    let pool = open(&store).await;
    let v = pool.attach("v").unwrap();
    let mut out = [0; 4096];
    let mut bad = 0;
    for block in (1..2000).step_by(2) {
        match v.read(block * 4096, &mut out).await {
            Ok(()) => assert!(out[..] == random_block(1 << 32 | block)[..]),
            Err(Error::Damaged(_)) => bad += 1,
            Err(e) => panic!("{e}"),
        }
    }
    assert!((2..999).contains(&bad), "{bad}");
    assert!(pool.stats().await.damaged_blocks >= 2);
}

/// Random overwrites of a pool that is 80 % full: automatic cleaning keeps up.
#[tokio::test]
async fn a_pool_at_80_percent_keeps_accepting_writes() {
    const BLOCKS: u64 = 24 << 10;
    let store = Arc::new(MemoryStore::new());
    let config = PoolConfig {
        segment_bytes: 512 << 10,
        write_buffer: 512 << 10,
        reclaim_pause: Duration::from_millis(1),
        ..config()
    };
    let pool = open_with(&store, config).await;
    pool.create_volume("v", BLOCKS * 4096, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    fill(&v, 0..BLOCKS, 0).await;
    pool.reclaim(&|_| ()).await.unwrap();
    let room = store.capacity().await.unwrap();
    store.set_capacity((room.total - room.free) * 10 / 8);
    let mut version = vec![0; BLOCKS as usize];
    let mut state = 1_u64;
    let (mut refused, written) = (0, AtomicU64::new(0));
    let moved_before = pool.stats().await.moved_bytes;
    for n in 1..BLOCKS * 2 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let block = (state >> 33) % BLOCKS;
        loop {
            match v.write(block * 4096, &random_block(n << 32 | block), false).await {
                Ok(()) => break,
                Err(Error::NoSpace) => {
                    refused += 1;
                    assert!(refused < 5_000, "no room is freed: {:#?}", pool.stats().await);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                Err(e) => panic!("{e}"),
            }
        }
        version[block as usize] = n;
        written.fetch_add(4096, Relaxed);
        if n % 64 == 0 {
            while let Err(e) = v.flush().await {
                assert!(matches!(e, Error::NoSpace), "{e}");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }
    let moved = pool.stats().await.moved_bytes - moved_before;
    let written = written.into_inner();
    println!(
        "moved {:.2} bytes for each byte written; refused {refused} times",
        moved as f64 / written as f64
    );
    assert!(moved < written * 4, "{moved} bytes moved for {written}");
    for (block, n) in (0..).zip(version).step_by(7) {
        verify(&v, std::iter::once(block), n).await;
    }
}

/// A store that holds back one read.
struct Held {
    store: Arc<MemoryStore>,
    hold: Arc<Hold>,
    deleted: Mutex<Vec<SegmentId>>,
}

struct Hold {
    /// The next read is to be held back.
    armed: AtomicBool,
    /// The object of the read that is held back.
    held: AtomicU64,
    release: Semaphore,
}

impl Store for Held {
    forebay_store::forward_store!(store; except read, delete);

    fn read(&self, id: SegmentId, offset: u64, len: usize) -> Completion<IoBuf> {
        let (store, hold) = (self.store.clone(), self.hold.clone());
        Completion::of(async move {
            if hold.armed.swap(false, Relaxed) {
                hold.held.store(id.0.into(), Relaxed);
                let _released = hold.release.acquire().await;
            }
            store.read(id, offset, len).await
        })
    }
    fn delete(&self, id: SegmentId) -> Completion<()> {
        self.deleted.lock().unwrap().push(id);
        self.store.delete(id)
    }
}

/// Whether a reclaim deletes the object from which a block is being read. In the end the block was read and
/// the object is deleted.
async fn deletes_under_a_reader(mutation: Mutation) -> bool {
    const BLOCKS: u64 = 1024;
    let store = Arc::new(Held {
        store: Arc::default(),
        hold: Arc::new(Hold {
            armed: AtomicBool::new(false),
            held: AtomicU64::new(0),
            release: Semaphore::new(0),
        }),
        deleted: Mutex::default(),
    });
    let pool = open_with(&store, PoolConfig { mutation, ..config() }).await;
    pool.create_volume("v", BLOCKS * 4096, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    fill(&v, 0..BLOCKS, 1).await;
    for block in (0..BLOCKS).step_by(2) {
        v.discard(block * 4096, 4096, false).await.unwrap();
    }
    v.flush().await.unwrap();

    store.hold.armed.store(true, Relaxed);
    let reading = tokio::spawn({
        let v = v.clone();
        async move { verify(&v, 1..2, 1).await }
    });
    while store.hold.held.load(Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    let object = SegmentId(u32::try_from(store.hold.held.load(Relaxed)).unwrap());
    let is_deleted = || store.deleted.lock().unwrap().contains(&object);
    let mut reclaiming = tokio::spawn({
        let pool = pool.clone();
        async move { pool.reclaim(&|_| ()).await }
    });
    let ended = tokio::time::timeout(Duration::from_secs(1), &mut reclaiming).await;
    let early = is_deleted();
    store.hold.release.add_permits(1);
    reading.await.unwrap();
    if ended.is_err() {
        reclaiming.await.unwrap().unwrap();
    }
    assert!(is_deleted(), "the object of the block was cleaned");
    early
}

#[tokio::test]
async fn an_object_is_not_deleted_under_a_reader() {
    assert!(!deletes_under_a_reader(Mutation::None).await);
    assert!(deletes_under_a_reader(Mutation::IgnoreReaders).await, "the test finds nothing");
}
