//! Overhead of the directory store over system calls: `cargo run --release --example store_latency -- DIR`.
//!
//! Prints the median and the 99th percentile, in microseconds, of 4 KiB direct reads at depth 1, alternating
//! with plain `pread` on the same file, and of the engine's commit: one append, then a sync.
#![allow(clippy::unwrap_used, reason = "a measuring tool")]

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_format::SegmentId;
use forebay_store::{DirectoryOptions, DirectoryStore, IoBuf, IoMode, Store};

const SEGMENT: u64 = 64 << 20;
const READS: u64 = 4000;

fn show(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let us = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)].as_secs_f64() * 1e6;
    println!("{what:<34} median {:8.1} µs   p99 {:8.1} µs", us(50), us(99));
}

async fn measure(dir: &Path, io: IoMode) {
    let store = DirectoryStore::open(dir, &DirectoryOptions { io, ..Default::default() }).unwrap();
    println!("{io:?}: (uring, direct) = {:?}", store.modes());
    let id = SegmentId(1);
    let mut data = IoBuf::zeroed(1 << 20);
    for at in (0..SEGMENT).step_by(1 << 20) {
        data.fill(at as u8 ^ 0x5a);
        data = store.append(id, at, data, SEGMENT).await.unwrap();
    }
    store.sync(id).await.unwrap();
    let file =
        File::options().read(true).custom_flags(libc::O_DIRECT).open(dir.join("segments/00000001.seg"));
    let (file, mut buf) = (file.unwrap(), IoBuf::zeroed(4096));
    let (mut plain, mut ours) = (Vec::new(), Vec::new());
    for n in 0..READS {
        let at = (n * 7919 * 4096) % SEGMENT;
        let start = Instant::now();
        file.read_exact_at(&mut buf, at).unwrap();
        plain.push(start.elapsed());
        let start = Instant::now();
        store.read(id, at ^ 4096, 4096).await.unwrap();
        ours.push(start.elapsed());
    }
    show("read 4 KiB, plain pread", plain);
    show("read 4 KiB, store", ours);
    for (n, kib) in [8, 256, 2048].into_iter().enumerate() {
        let (id, mut data, mut times) = (SegmentId(n as u32 + 2), IoBuf::zeroed(kib << 10), Vec::new());
        let rounds = ((SEGMENT >> 10) / kib as u64).min(100);
        for round in 0..rounds {
            let start = Instant::now();
            data = store.append(id, (round * kib as u64) << 10, data, SEGMENT).await.unwrap();
            store.sync(id).await.unwrap();
            times.push(start.elapsed());
        }
        show(&format!("append {kib} KiB and sync"), times);
    }
}

fn main() {
    let parent = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for io in [IoMode::Auto, IoMode::Threads] {
        let dir = tempfile::tempdir_in(&parent).unwrap();
        runtime.block_on(measure(dir.path(), io));
    }
}
