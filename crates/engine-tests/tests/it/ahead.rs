//! Reading ahead of sequential readers: what they gain, and what it costs others. Time is that of a simulated
//! disk array.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use forebay_engine::{DiskHandle, Error, Fast, Pool, PoolConfig, SyncMode};
use forebay_store::{DiskArray, MemoryStore, Slow, Store};
use tokio::time::{Instant, sleep};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 32 * MIB;
const BLOCK: usize = 4096;
/// Bytes of a second of one disk.
const RATE: u64 = 100 * MIB;

fn content(disk: u64) -> Vec<u8> {
    noise(disk + 1, SIZE as usize)
}

fn roomy() -> PoolConfig {
    PoolConfig { read_cache: 256 << 20, segment_bytes: 32 << 20, learn_classes: false, ..config() }
}

/// A store with the full volumes `0`, `1`, ...
async fn written(volumes: u64) -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::new());
    let pool = open_with(&store, PoolConfig { write_buffer: 64 << 20, ..roomy() }).await;
    for n in 0..volumes {
        pool.create_volume(&n.to_string(), SIZE, SyncMode::Flush, 0).await.unwrap();
        pool.attach(&n.to_string()).unwrap().write(0, &content(n), true).await.unwrap();
    }
    pool.close().await.unwrap();
    store
}

/// Opens a pool whose store has the latency of an array of disks, and nothing in its caches.
async fn open_slow(store: &Arc<MemoryStore>, spindles: usize, config: PoolConfig) -> Arc<Pool> {
    let array = DiskArray { spindles, seek: Duration::from_millis(4), rpm: 7500, bytes_per_second: RATE };
    let begin = Instant::now();
    let slow = Slow::new(
        store.clone(),
        array,
        Arc::new(move || begin.elapsed()),
        Arc::new(|duration| Box::pin(sleep(duration))),
    );
    Pool::open(Arc::new(slow), Arc::new(PausedHost(begin)), config).await.unwrap()
}

/// Reads as a front end does: without waiting if possible.
async fn get(disk: &DiskHandle, at: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0xee; len];
    if disk.try_read(at, &mut out).unwrap() == Fast::Wait {
        disk.read(at, &mut out).await.unwrap();
    }
    out
}

async fn read_bytes(pool: &Pool) -> u64 {
    pool.stats().await.store.read.bytes
}

/// Reads a volume from end to end, and works for some time after each request. Returns the time.
async fn scan(disk: &DiskHandle, content: &[u8], len: usize, work: Duration) -> Duration {
    let begun = Instant::now();
    for (at, expected) in (0..).step_by(len).zip(content.chunks(len)) {
        assert!(get(disk, at, len).await == expected, "wrong content at {at}");
        sleep(work).await;
    }
    begun.elapsed()
}

/// Loads the block map.
async fn load_map(disk: &DiskHandle) {
    for at in (0..SIZE).step_by(MIB as usize) {
        get(disk, at, BLOCK).await;
    }
}

fn seconds(bytes: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / RATE as f64)
}

#[tokio::test(start_paused = true)]
async fn the_store_works_while_a_sequential_reader_does() {
    let (store, content) = (written(1).await, content(0));
    for len in [64 << 10, 1 << 20] {
        let pool = open_slow(&store, 1, roomy()).await;
        let disk = pool.attach("0").unwrap();
        let work = seconds(len as u64) * 8 / 10;
        let took = scan(&disk, &content, len, work).await;
        assert!(took < seconds(SIZE) * 2, "requests of {len}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_sequential_reader_uses_several_disks_of_the_store() {
    let (store, content) = (written(1).await, content(0));
    let pool = open_slow(&store, 4, roomy()).await;
    let disk = pool.attach("0").unwrap();
    let took = scan(&disk, &content, 1 << 20, Duration::ZERO).await;
    assert!(took < seconds(SIZE) * 5 / 4, "{took:?}");
    // Once it is cached, the store is not read.
    let before = read_bytes(&pool).await;
    assert_eq!(scan(&disk, &content, 1 << 20, Duration::ZERO).await, Duration::ZERO);
    assert_eq!(scan(&disk, &content, 4096, Duration::ZERO).await, Duration::ZERO);
    assert_eq!(read_bytes(&pool).await, before);
}

#[tokio::test(start_paused = true)]
async fn the_parts_of_a_request_are_read_at_the_same_time() {
    let (store, content) = (written(1).await, content(0));
    let pool = open_slow(&store, 4, roomy()).await;
    let disk = pool.attach("0").unwrap();
    load_map(&disk).await;
    let request = 8 * MIB..12 * MIB;
    let mut out = vec![0; 256 << 10];
    let begun = Instant::now();
    for at in request.clone().step_by(out.len()) {
        disk.read_part(request.clone(), at, &mut out).await.unwrap();
        assert!(out == content[at as usize..][..out.len()]);
    }
    assert!(begun.elapsed() < seconds(8 * MIB), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn streams_on_one_disk_are_told_apart() {
    let (store, content) = (written(1).await, content(0));
    let pool = open_slow(&store, 1, roomy()).await;
    let disk = pool.attach("0").unwrap();
    let (begun, len) = (Instant::now(), 128 << 10);
    for at in (0..4 * MIB).step_by(len) {
        for stream in 0..8 {
            let at = stream * 4 * MIB + at;
            assert!(get(&disk, at, len).await == content[at as usize..][..len]);
        }
    }
    // A seek for each request would take 8 ms each, 2 s in all.
    assert!(begun.elapsed() < seconds(SIZE) * 4, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_random_reader_reads_nothing_ahead() {
    let store = written(1).await;
    let pool = open_slow(&store, 1, roomy()).await;
    let disk = pool.attach("0").unwrap();
    get(&disk, SIZE - BLOCK as u64, BLOCK).await;
    let before = pool.stats().await.store.read;
    let large = 256 << 10;
    for n in 0..24 {
        get(&disk, n * 59 % 127 * large as u64, large).await;
    }
    let after = pool.stats().await.store.read;
    let nodes = 32 * 16 * 1024;
    let bytes = after.bytes - before.bytes;
    assert!(bytes <= 24 * large as u64 + nodes, "{bytes} bytes for 24 requests");
}

#[tokio::test(start_paused = true)]
async fn a_change_after_reading_ahead_is_what_is_read() {
    let (store, content) = (written(1).await, content(0));
    for commits in [false, true] {
        let pool = open_slow(&store, 1, roomy()).await;
        let disk = pool.attach("0").unwrap();
        mark(&disk).await;
        for at in [0, MIB] {
            get(&disk, at, MIB as usize).await;
        }
        // The blocks behind are being read.
        let (one, two) = (2 * MIB, 2 * MIB + 65536);
        let [first, second] = [one, two].map(|at| at as usize);
        let new = noise(99 + u64::from(commits), BLOCK);
        disk.write(one, &new, false).await.unwrap();
        disk.discard(two, BLOCK as u64, false).await.unwrap();
        if commits {
            disk.flush().await.unwrap();
        }
        let after = get(&disk, one, MIB as usize).await;
        assert!(after[..BLOCK] == new, "{commits}");
        assert!(after[second - first..][..BLOCK].iter().all(|byte| *byte == 0), "{commits}");
        assert!(after[second - first + BLOCK..] == content[second + BLOCK..][..MIB as usize - 65536 - BLOCK]);
        disk.write(one, &content[first..][..BLOCK], true).await.unwrap();
        disk.write(two, &content[second..][..BLOCK], true).await.unwrap();
        drop(disk);
        pool.close().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn damage_ahead_is_reported_only_to_a_client_that_requests_it() {
    let (store, content) = (written(1).await, content(0));
    let bad = 4 * MIB as usize;
    for object in store.list().await.unwrap() {
        store.damage(object.id, |bytes| {
            let needle = &content[bad..bad + 64];
            if let Some(at) = bytes.chunks(512).position(|sector| sector.starts_with(needle)) {
                bytes[at * 512] ^= 1;
            }
        });
    }
    let pool = open_slow(&store, 1, roomy()).await;
    let disk = pool.attach("0").unwrap();
    for at in 0..4 {
        get(&disk, at * MIB, MIB as usize).await;
    }
    sleep(Duration::from_secs(1)).await;
    let before = read_bytes(&pool).await;
    assert!(before > 5 * MIB, "the damaged block was not read ahead");
    assert_eq!(pool.stats().await.damaged_blocks, 0);
    let mut out = vec![0; BLOCK];
    let read = disk.read(bad as u64, &mut out).await;
    assert!(matches!(read, Err(Error::Damaged(_))), "{read:?}");
    assert_eq!(pool.stats().await.damaged_blocks, 1);
    disk.read((bad + BLOCK) as u64, &mut out).await.unwrap();
    assert!(out == content[bad + BLOCK..][..BLOCK], "the next block is sound");
}

/// A client that reads one block at a time, at random, waits for at most a part of what is read ahead.
#[tokio::test(start_paused = true)]
async fn reading_ahead_leaves_the_store_to_other_disks() {
    let (store, content) = (written(2).await, content(0));
    let pool = open_slow(&store, 1, roomy()).await;
    let (stream, other) = (pool.attach("0").unwrap(), pool.attach("1").unwrap());
    load_map(&other).await;
    let reader = tokio::spawn(async move {
        let mut longest = Duration::ZERO;
        for n in 0..24 {
            let begun = Instant::now();
            other.read(n * 59 % 127 * 262_144 + 131_072, &mut [0; BLOCK]).await.unwrap();
            // The first one meets a window that was read ahead while no other disk was read.
            longest = longest.max(if n > 1 { begun.elapsed() } else { Duration::ZERO });
        }
        longest
    });
    let took = scan(&stream, &content, 1 << 20, Duration::ZERO).await;
    let longest = reader.await.unwrap();
    // What may be read ahead, the requested megabyte, and a seek for each.
    assert!(longest < seconds(2 * MIB) + Duration::from_millis(40), "{longest:?}");
    assert!(took < seconds(SIZE) * 3, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn blocks_in_use_stay_in_a_small_cache() {
    let (store, content) = (written(2).await, content(0));
    let pool = open_slow(&store, 1, PoolConfig { read_cache: 16 << 20, ..roomy() }).await;
    let (stream, other) = (pool.attach("0").unwrap(), pool.attach("1").unwrap());
    for _ in 0..3 {
        for block in 0..256 {
            get(&other, block * BLOCK as u64, BLOCK).await;
        }
    }
    let took = scan(&stream, &content, 256 << 10, seconds(256 << 10) / 2).await;
    assert!(took < seconds(SIZE) * 2, "a window that fits the cache is still useful: {took:?}");
    let reads = pool.stats().await.store.read.ops;
    for block in 0..256 {
        get(&other, block * BLOCK as u64, BLOCK).await;
    }
    // An eviction examines a limited number of frames, so that one of very many used blocks in a row may go.
    let again = pool.stats().await.store.read.ops - reads;
    assert!(again <= 2, "{again} blocks that were used were evicted");
}
