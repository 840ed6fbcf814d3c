//! Data reduction: its counters, reading the data back, and the effects of damage.

use std::sync::Arc;

use crate::common::*;
use forebay_engine::{DiskHandle, Error, Pool, PoolConfig, SyncMode};
use forebay_format::{check64, crc32c};
use forebay_store::{MemoryStore, Store};

const MIB: usize = 1 << 20;

async fn volume(pool: &Arc<Pool>, name: &str) -> Arc<DiskHandle> {
    pool.create_volume(name, 64 << 20, SyncMode::Flush, 0).await.unwrap();
    pool.attach(name).unwrap()
}

async fn settled(pool: &Pool) -> forebay_engine::ReductionStats {
    for _ in 0..4000 {
        let stats = pool.stats().await.reduction;
        if stats.index_segments_left == 0 {
            return stats;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("the index was not read back");
}

#[tokio::test]
async fn each_block_is_stored_once() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    let (a, b) = (volume(&pool, "a").await, volume(&pool, "b").await);
    let data = noise(1, MIB);
    a.write(0, &data, true).await.unwrap();
    // The same data again at the same offset, on another disk, twice in one commit, and zeroes.
    a.write(0, &data, true).await.unwrap();
    b.write(3 << 20, &data, true).await.unwrap();
    let twice = noise(2, 4096).repeat(8);
    b.write(0, &twice, true).await.unwrap();
    b.write(8 << 20, &[0; MIB], true).await.unwrap();
    let r = pool.stats().await.reduction;
    assert_eq!((r.new_blocks, r.unchanged_blocks), (257, 256), "{r:?}");
    assert_eq!((r.duplicate_blocks, r.zero_blocks), (256 + 7, 256), "{r:?}");
    assert!(pool.stats().await.stored_bytes < 1_300_000);
    drop((a, b));
    pool.close().await.unwrap();
    let pool = open(&store).await;
    let b = pool.attach("b").unwrap();
    assert_eq!(read(&b, 3 << 20, MIB).await, data);
    assert_eq!(read(&b, 0, twice.len()).await, twice);
    assert_eq!(read(&b, 8 << 20, MIB).await, vec![0; MIB]);
}

/// Their fingerprints are computed before they are committed.
#[tokio::test]
async fn durable_writes_at_any_sector_are_stored_once() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    let disk = volume(&pool, "a").await;
    let data = noise(1, 64 << 10);
    let offsets = [0, (1 << 20) + 3 * 512, (3 << 20) - 512, (4 << 20) + 8 * 512];
    for at in offsets.iter().flat_map(|at| [*at, at + (16 << 20)]) {
        assert_eq!(disk.try_write_durably(at, &data).unwrap(), forebay_engine::Fast::Done);
        // Parts of what was fingerprinted are overwritten before the commit, or not.
        disk.write(at + 40 * 512, &noise(at, 512), false).await.unwrap();
        disk.finish(true).await.unwrap();
    }
    let r = pool.stats().await.reduction;
    // All but the one that was overwritten in part, of 16 blocks or, with partial ones at both ends, of 17.
    // The last write begins at a block, as the first one does.
    assert_eq!(r.duplicate_blocks, 15 + 16 + 16 + 15 + 15, "{r:?}");
    drop(disk);
    let pool = open(&store).await;
    let disk = pool.attach("a").unwrap();
    for at in offsets {
        let mut expected = data.clone();
        expected[40 * 512..41 * 512].copy_from_slice(&noise(at, 512));
        assert!(read(&disk, at, data.len()).await == expected, "{at}");
    }
}

#[tokio::test]
async fn compressible_data_takes_less_room_and_is_read_back() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    let a = volume(&pool, "a").await;
    a.write(0, &text(1, 4 * MIB), true).await.unwrap();
    assert!(pool.stats().await.stored_bytes < 2 << 20);
    drop(a);
    pool.close().await.unwrap();
    // With almost no cache, everything is read from the store.
    let pool = open_with(&store, PoolConfig { read_cache: 0, ..config() }).await;
    let a = pool.attach("a").unwrap();
    assert_eq!(read(&a, 0, 4 * MIB).await, text(1, 4 * MIB));
    assert_eq!(read(&a, 123_456, 10_000).await, text(1, 4 * MIB)[123_456..133_456]);
}

/// Large writes do not displace what is cached, unless they overwrite what was read.
#[tokio::test]
async fn large_writes_displace_nothing_in_the_read_cache_but_what_was_read_and_they_overwrite() {
    let store = Arc::new(MemoryStore::new());
    let pool = open_with(&store, PoolConfig { read_cache: 2 << 20, ..config() }).await;
    let (a, b) = (volume(&pool, "a").await, volume(&pool, "b").await);
    const LEN: usize = 64 << 10;
    let write = async |disk: &DiskHandle, at: usize, seed| {
        disk.write((at * 2 * LEN) as u64, &noise(seed, LEN), true).await.unwrap();
    };
    // Cached while there is room; then the cache becomes full, and much more is written.
    for at in 0..8 {
        write(&a, at, at as u64).await;
    }
    for at in 0..200 {
        write(&b, at, 1000 + at as u64).await;
    }
    let misses = async || pool.stats().await.read_cache.misses;
    let before = misses().await;
    for at in 0..8 {
        assert_eq!(read(&a, (at * 2 * LEN) as u64, LEN).await, noise(at as u64, LEN));
    }
    assert_eq!(misses().await, before, "what was cached first is still cached");
    write(&a, 3, 99).await;
    assert_eq!(read(&a, 3 * 2 * LEN as u64, LEN).await, noise(99, LEN));
    assert_eq!(misses().await, before, "what was read stays cached when it is overwritten");
    // It has not been read since it entered the cache.
    write(&a, 0, 100).await;
    write(&a, 0, 101).await;
    assert_eq!(read(&a, 0, LEN).await, noise(101, LEN));
    let overwritten = misses().await;
    assert!(overwritten > before, "what was only written does not stay cached");
    read(&b, 199 * 2 * LEN as u64, LEN).await;
    assert!(misses().await > overwritten);
}

/// A block that is discarded and written again in one commit has its old content; it must not be treated as
/// unchanged.
#[tokio::test]
async fn a_block_discarded_and_rewritten_in_one_commit_is_stored() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    let a = volume(&pool, "a").await;
    let data = noise(1, MIB);
    a.write(0, &data, true).await.unwrap();
    a.discard(0, MIB as u64, false).await.unwrap();
    a.write(0, &data, true).await.unwrap();
    drop(a);
    pool.close().await.unwrap();
    let pool = open(&store).await;
    assert_eq!(read(&pool.attach("a").unwrap(), 0, MIB).await, data);
}

#[tokio::test]
async fn dedup_domains_share_no_blocks() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    for domain in 0..3 {
        let name = format!("tenant-{domain}");
        pool.create_volume(&name, 8 << 20, SyncMode::Flush, domain).await.unwrap();
        pool.attach(&name).unwrap().write(0, &noise(1, MIB), true).await.unwrap();
    }
    pool.clone_disk("tenant-2", &[clone("mine")]).await.unwrap();
    pool.attach("mine").unwrap().write(4 << 20, &noise(1, MIB), true).await.unwrap();
    let r = pool.stats().await.reduction;
    assert_eq!((r.new_blocks, r.duplicate_blocks), (3 * 256, 256), "a clone belongs to its source's domain");
}

/// Killed, not closed: the index is read back from segments with and without a directory, and from one whose
/// directory is damaged.
#[tokio::test]
async fn the_index_is_read_back_after_a_crash() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    let a = volume(&pool, "a").await;
    for i in 0..6 {
        a.write(i << 20, &noise(i, MIB), true).await.unwrap();
    }
    let first = store.list().await.unwrap()[0].id;
    store.damage(first, |bytes| {
        let footer = (0..bytes.len()).step_by(4096).find(|at| bytes[*at..].starts_with(b"FBSEALED"));
        bytes[footer.unwrap() + 4096 + 20] ^= 1;
    });
    let pool = open(&store).await;
    assert!(settled(&pool).await.index_entries > 1500);
    let b = volume(&pool, "b").await;
    for i in 0..6 {
        b.write(i << 20, &noise(i, MIB), true).await.unwrap();
    }
    let r = pool.stats().await.reduction;
    assert_eq!((r.new_blocks, r.duplicate_blocks), (0, 6 * 256), "{r:?}");
}

#[tokio::test]
async fn a_minimal_index_finds_fewer_duplicates_and_loses_no_data() {
    let store = Arc::new(MemoryStore::new());
    let pool = open_with(&store, PoolConfig { dedup_index: 0, ..config() }).await;
    let (a, b) = (volume(&pool, "a").await, volume(&pool, "b").await);
    for i in 0..8 {
        a.write(i << 20, &noise(i, MIB), true).await.unwrap();
    }
    for i in 0..8 {
        b.write(i << 20, &noise(i, MIB), true).await.unwrap();
    }
    let r = pool.stats().await.reduction;
    assert!(r.index_bytes < MIB as u64 && r.index_sampling > 0, "{r:?}");
    for i in 0..8 {
        assert_eq!(read(&b, i << 20, MIB).await, noise(i, MIB));
    }
}

/// With an index of a byte for each block, duplicates are found through directories: of the open segment
/// and of sealed ones.
#[tokio::test]
async fn a_sampled_index_finds_duplicates_in_directories() {
    let store = Arc::new(MemoryStore::new());
    let pool = open_with(&store, PoolConfig { dedup_index: 4 << 10, ..config() }).await;
    let (a, b) = (volume(&pool, "a").await, volume(&pool, "b").await);
    for i in 0..16 {
        a.write(i << 20, &noise(i, MIB), true).await.unwrap();
    }
    for i in (0..16).rev() {
        b.write(i << 20, &noise(i, MIB), true).await.unwrap();
    }
    let r = pool.stats().await.reduction;
    assert!(r.index_sampling > 1 && r.index_bytes < 16 << 10, "{r:?}");
    assert!(r.duplicate_blocks * 100 > 16 * 256 * 97, "{r:?}");
    for i in 0..16 {
        assert_eq!(read(&b, i << 20, MIB).await, noise(i, MIB));
    }
}

/// Corruption of a block that two volumes share, compressed or not: each reader gets an error, and the check
/// names both.
#[tokio::test]
async fn corruption_of_a_shared_block_affects_all_its_readers() {
    for (data, what) in [(noise(1, 4096), "raw"), (text(1, 4096), "compressed")] {
        let store = Arc::new(MemoryStore::new());
        let pool = open(&store).await;
        for name in ["a", "b"] {
            volume(&pool, name).await.write(0, &data, true).await.unwrap();
        }
        pool.close().await.unwrap();
        let first = store.list().await.unwrap()[0].id;
        store.damage(first, |bytes| {
            // In the middle of the first block of a payload.
            let needle = if what == "raw" { &data[..64] } else { &data[..20] };
            let at = bytes.windows(needle.len()).position(|w| w == needle).unwrap();
            bytes[at + 30] ^= 0x40;
        });
        let problems = check(&store).await;
        let named = problems.iter().any(|p| p.contains("a block is damaged") && p.contains(r#"["a", "b"]"#));
        assert!(named, "{what}: {problems:?}");
        let pool = open(&store).await;
        for name in ["a", "b"] {
            let mut out = [0; 4096];
            let done = pool.attach(name).unwrap().read(0, &mut out).await;
            assert!(matches!(done, Err(Error::Damaged(_))), "{what}: {done:?}");
        }
        assert!(pool.stats().await.damaged_blocks >= 2);
        // When it is written again, it is stored again: a block that is known to be damaged is not
        // referenced.
        let a = pool.attach("a").unwrap();
        a.write(0, &data, true).await.unwrap();
        assert_eq!(read(&a, 0, 4096).await, data);
    }
}

/// Exchanges the fingerprints of the first two blocks in each directory, with correct checksums.
async fn exchange_fingerprints(store: &MemoryStore) -> usize {
    let mut exchanged = 0;
    for object in store.list().await.unwrap() {
        store.damage(object.id, |bytes| {
            let Some(at) = bytes.chunks_exact(4096).position(|b| b.starts_with(b"FBSEALED")) else { return };
            let (footer, directory) = bytes[at * 4096..].split_at_mut(4096);
            let count = u32::from_le_bytes(footer[12..16].try_into().unwrap()) as usize;
            let entries = &mut directory[..count * 32];
            let is_block = |n: &usize| entries[n * 32 + 5] == 1;
            let blocks: Vec<usize> = (0..count).filter(is_block).take(2).collect();
            let &[a, b] = &blocks[..] else { return };
            (0..16).for_each(|i| entries.swap(a * 32 + 16 + i, b * 32 + 16 + i));
            footer[48..52].copy_from_slice(&crc32c(entries).to_le_bytes());
            let check = check64(&footer[..4088]);
            footer[4088..].copy_from_slice(&check.to_le_bytes());
            exchanged += 1;
        });
    }
    exchanged
}

/// A directory may be wrong. The checksum of the block detects it.
#[tokio::test]
async fn a_fingerprint_of_another_block_is_not_referenced() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    let a = volume(&pool, "a").await;
    a.write(0, &noise(1, 8192), true).await.unwrap();
    drop(a);
    pool.close().await.unwrap();
    assert!(exchange_fingerprints(&store).await > 0);
    let pool = open(&store).await;
    assert!(settled(&pool).await.index_entries > 0);
    let b = volume(&pool, "b").await;
    b.write(0, &noise(1, 8192), true).await.unwrap();
    assert!(read(&b, 0, 8192).await == noise(1, 8192));
    assert_eq!(pool.stats().await.reduction.duplicate_blocks, 0);
}
