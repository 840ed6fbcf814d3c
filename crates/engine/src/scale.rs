//! Benchmarks over the size of a pool, run by `make bench-scale`: what the tables of a pool of 1, 10 and 100
//! TB cost, and what a write costs while 10 to 10,000 disks wait for room in the write buffers.
//!
//! The tables are synthetic, on a store in memory in which the objects of the segments are empty. Pauses are
//! CPU time of the engine's only thread between two commits' turns with the log, so that a busy machine does
//! not add to them; the time of a disk is not included.

use std::sync::Arc;
use std::time::Duration;

use forebay_format::{DiskId, SegmentId, SegmentRecord, SegmentState, Stream};
use forebay_store::{Completion, MemoryStore, ObjectStat, Selection, Store};
use futures_util::FutureExt;

use crate::components::Components;
use crate::disk::Disk;
use crate::map::Tree;
use crate::testing::{TokioHost, volume};
use crate::{Pool, PoolConfig, SyncMode};

/// Bytes of a segment.
const SEGMENT: u64 = 64 << 20;
/// Segments that have no live slot.
const DEAD: u32 = 10_000;
/// Number of segments in a pool of 100 TB.
const SEGMENTS: u32 = 1_600_000;
const DISKS: u32 = 20_000;

/// CPU time of this thread.
fn cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is valid for writing.
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(answer, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Memory of this process that is in use, in MiB.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap() / 256
}

/// Runs an operation; returns its CPU time, and the longest CPU time for which no commit got the log.
async fn paused<T>(components: &Components, run: impl Future<Output = T>) -> (Duration, Duration) {
    let (begin, mut last, mut longest) = (cpu(), cpu(), Duration::ZERO);
    let commits = async {
        loop {
            drop(components.committer.read_log().await);
            let now = cpu();
            longest = longest.max(now - last);
            last = now;
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        _ = run => {}
        () = commits => {}
    }
    let end = cpu();
    (end - begin, longest.max(end - last))
}

fn record(segment: u32) -> SegmentRecord {
    let moved = segment.is_multiple_of(2);
    SegmentRecord {
        segment: SegmentId(segment),
        // The segments have no fingerprints, which would be searched for when the pool is opened.
        stream: Stream::Map,
        state: SegmentState::Sealed,
        footer: true,
        container: if moved { segment + 1 } else { segment },
        written: SEGMENT as u32,
        first_seq: 1,
        // Live segments are not covered by a checkpoint.
        last_seq: if segment.is_multiple_of(SEGMENTS / DEAD) { 1 } else { 1 << 40 },
        map: moved.then_some((4096, 40_000)),
    }
}

/// A store in memory that lists its objects on another thread, as a directory does.
struct ListingStore(Arc<MemoryStore>);

impl Store for ListingStore {
    forebay_store::forward_store!(0; except list_lengths_of);

    fn list_lengths_of(&self, selected: Selection) -> Completion<Vec<ObjectStat>> {
        let store = self.0.clone();
        let listed =
            tokio::task::spawn_blocking(move || store.list_lengths_of(selected).now_or_never().unwrap());
        Completion::of(async { listed.await.unwrap() })
    }
}

async fn measure(segments: u32, disks: u32) {
    let store = Arc::new(ListingStore(Arc::new(MemoryStore::new())));
    let config =
        PoolConfig { dedup_index: 0, reclaim_pause: Duration::from_secs(1 << 20), ..PoolConfig::default() };
    let open = || Pool::open(store.clone(), TokioHost::new(), config.clone());
    let pool = open().await.unwrap();
    for segment in 1000..1000 + segments {
        store.0.prepare(SegmentId(segment), 0).await.unwrap();
    }
    let before = resident();
    {
        let components = pool.components();
        let records: Vec<SegmentRecord> = (1000..1000 + segments).map(record).collect();
        components.reader.source.relocation.set(&records);
        components.committer.write_log().await.unwrap().grow(records);
        let mut catalogue = components.catalogue.write();
        for n in 1..=disks {
            let record =
                forebay_format::DiskRecord { id: DiskId(n), name: format!("v{n}"), ..volume(n, 4096) };
            let tree = Tree::new(1);
            catalogue.insert(Arc::new(Disk::new(record, tree, components.cx.retained.clone())));
        }
    }
    let components = pool.components();
    let terabytes = u64::from(segments) * SEGMENT / 1_000_000_000_000;
    let row = |what: &str, value: String| println!("{terabytes:>4} TB  {what:<44} {value}");
    let bytes = || components.committer.checkpoints().bytes;
    let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);

    let (all, pause) = paused(components, components.committer.checkpoint()).await;
    row("first checkpoint", format!("{}, pause {}, {} KiB", ms(all), ms(pause), bytes() >> 10));
    row("memory of the tables", format!("{} MiB", resident() - before));
    let earlier = bytes();
    components.committer.write_log().await.unwrap().grow([record(1000 + segments)]);
    let (all, pause) = paused(components, components.committer.checkpoint()).await;
    row(
        "checkpoint after one change",
        format!("{}, pause {}, {} KiB", ms(all), ms(pause), (bytes() - earlier) >> 10),
    );
    let (all, pause) = paused(components, pool.stats()).await;
    row("stats", format!("{}, pause {}", ms(all), ms(pause)));
    let listed = components.committer.read_log().await.table().len();
    let (all, pause) = paused(components, pool.reclaim(&|_| ())).await;
    let dropped = listed - components.committer.read_log().await.table().len();
    row(&format!("reclaim that drops {dropped} segments"), format!("{}, pause {}", ms(all), ms(pause)));
    assert!(dropped + 1 >= (segments / (SEGMENTS / DEAD)) as usize, "{dropped} segments were dropped");
    pool.close().await.unwrap();
    drop(pool);

    let begin = cpu();
    let pool = open().await.unwrap();
    row("opening", ms(cpu() - begin));
    assert_eq!(pool.components().catalogue.read().iter().count(), disks as usize);
    pool.close().await.unwrap();
}

#[tokio::test]
#[ignore = "a benchmark: make bench-scale"]
async fn pools_of_1_to_100_terabytes() {
    for share in [100, 10, 1] {
        measure(SEGMENTS / share, DISKS / share).await;
    }
}

/// Total number of writes, bytes of each write, and concurrent writes of a disk.
const WRITES: u64 = 80_000;
const WRITE_BYTES: u64 = 48 << 10;
const DEPTH: u64 = 4;

/// Each disk always has more outstanding writes than its share of the buffers permits.
async fn measure_writers(disks: u64) {
    let config =
        PoolConfig { dedup_index: 0, write_buffer: disks * WRITE_BYTES * 3 / 2, ..PoolConfig::default() };
    let pool = Pool::open(Arc::new(MemoryStore::new()), TokioHost::new(), config).await.unwrap();
    let mut writers = Vec::new();
    for n in 0..disks {
        let name = format!("v{n}");
        pool.create_volume(&name, DEPTH * WRITE_BYTES, SyncMode::Flush, 0).await.unwrap();
        let disk = pool.attach(&name).unwrap();
        writers.extend((0..DEPTH).map(|n| (disk.clone(), n * WRITE_BYTES)));
    }
    let begin = cpu();
    let writers = writers.into_iter().map(|(disk, offset)| {
        tokio::spawn(async move {
            let data = vec![1; WRITE_BYTES as usize];
            for _ in 0..WRITES / disks / DEPTH {
                disk.write(offset, &data, false).await.unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    println!(
        "{disks:>6} disks  {:.0} us of CPU for each write",
        (cpu() - begin).as_secs_f64() * 1e6 / WRITES as f64
    );
    pool.close().await.unwrap();
}

#[tokio::test]
#[ignore = "a benchmark: make bench-scale"]
async fn ten_to_ten_thousand_disks_that_wait() {
    for disks in [10, 100, 1_000, 10_000] {
        measure_writers(disks).await;
    }
}
