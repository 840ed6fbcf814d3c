//! Rows about the pool: clones, snapshots, recovery, memory. Only clones have a peer.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::rounds::{Figure, generate, in_turns};
use super::{Bench, Pace};
use crate::error::Result;
use crate::load::Stop;
use crate::report::{Bound, Row, Unit};
use crate::targets::servers::{Forebay, ForebayConfig, run, sparse_image};

const GIB: u64 = 1 << 30;
const CLONES: u32 = 1000;
const IMAGE_BYTES: u64 = 40 * GIB;
/// Distance of the MiBs with data: 160 MiB, spread over the image.
const IMAGE_DATA_EACH: u64 = 256 << 20;
/// Number of clones on which `qemu-img create` is timed; the time of 1,000 is extrapolated.
const PEER_CLONES: u32 = 25;

/// 1,000 clones of a large image, on a separate server, whose memory growth is then due to them.
pub fn clones(bench: &Bench, binary: &Path) -> Result<Vec<Row>> {
    bench.say("1,000 clones of a 40 GiB image");
    let image = bench.dir.data("large.raw");
    sparse_image(&image, IMAGE_BYTES, IMAGE_DATA_EACH)?;
    let config = ForebayConfig::new("clones", 64 << 20);
    let forebay = Forebay::start(&bench.dir, binary, &config)?;
    forebay.import("large", &image)?;
    // The first clone includes one-time costs.
    forebay.clone_disk("large", "first")?;
    let before = forebay.memory()?;
    let begun = Instant::now();
    forebay.clone_disks("large", "vm", CLONES, &[])?;
    let seconds = begun.elapsed().as_secs_f64();
    let grown = forebay.memory()?.resident.saturating_sub(before.resident);

    let begun = Instant::now();
    for n in 0..PEER_CLONES {
        let clone = bench.dir.data(&format!("clone-{n}.qcow2"));
        let mut command = Command::new("qemu-img");
        run(command.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]).arg(&image).arg(clone))?;
    }
    let peer = begun.elapsed().as_secs_f64() * f64::from(CLONES) / f64::from(PEER_CLONES);
    let each = grown as f64 / f64::from(CLONES) / 1024.0;
    Ok(vec![
        Row::compare(
            "1,000 clones of a 40 GiB image",
            Unit::Seconds,
            Bound::AtMost(1.0),
            &[seconds],
            ("qemu-img create", &[peer]),
        ),
        Row::alone("  RAM of each", Unit::Kib, Bound::AtMost(64.0), &[each]),
    ])
}

/// Random reads of a volume with many snapshots compared with a volume with the same writes and no snapshot.
pub fn snapshots(bench: &Bench, pace: &Pace, forebay: &Forebay) -> Result<Vec<Row>> {
    const WRITES_BETWEEN: u64 = 16;
    const WARM_PASSES: usize = 3;
    bench.say("reads with and without snapshots");
    let range = 0..bench.size.min(256 << 20);
    let (plain, snapped) = ("plain", "snapped");
    for volume in [plain, snapped] {
        forebay.clone_disk("base", volume)?;
    }
    let write = |export, seed: u32, n: u64| {
        generate(&forebay.disk(export), |spec| {
            spec.read_percent = 0;
            spec.range = Some(range.clone());
            spec.seed = u64::from(seed);
            spec.stop = Stop::Requests(n);
        })
    };
    for n in 0..pace.snapshots {
        write(snapped, n, WRITES_BETWEEN)?;
        forebay.cli(&["snapshot", "create", snapped, &format!("s{n:04}")])?;
    }
    write(plain, pace.snapshots, WRITES_BETWEEN * u64::from(pace.snapshots))?;
    // Reads both volumes completely into the cache. A scan-resistant cache keeps only blocks that are read
    // again.
    let disks = [snapped, plain].map(|volume| Some(forebay.disk(volume)));
    for disk in disks.iter().flatten().cycle().take(disks.len() * WARM_PASSES) {
        generate(disk, |spec| {
            spec.pass(false, 4096, 32);
            spec.range = Some(range.clone());
        })?;
    }
    let [with, without] = in_turns(&disks, pace.rounds * 2, |disk, round| {
        generate(disk, |spec| {
            spec.range = Some(range.clone());
            spec.seed = u64::from(round) + 1;
            spec.stop = Stop::After(pace.read / 2);
        })
    })?;
    let without = without.named("forebay without");
    let what = format!("4 KiB random reads after {} snapshots", pace.snapshots);
    Ok(vec![
        with.row(what, Figure::Iops, Bound::RatioAtLeast(0.97), &without),
        with.cpu_row(Bound::Nothing, &without),
    ])
}

/// Kill -9 after writing a log since the last checkpoint, and the time until the server answers again.
pub fn recovery(bench: &Bench, pace: &Pace, binary: &Path) -> Result<Vec<Row>> {
    bench.say("recovery");
    let config =
        ForebayConfig::new("recovery", 256 << 20).with(format!("[log]\ncheckpoint = {}\n", 64 * GIB));
    let mut forebay = Forebay::start(&bench.dir, binary, &config)?;
    forebay.cli(&["volume", "create", "log", "--size", "8G"])?;
    let before = forebay.stat("/store/write/bytes")?;
    generate(&forebay.disk("log"), |spec| {
        spec.read_percent = 0;
        spec.stop = Stop::Requests(pace.recovery_bytes / 4096);
        spec.flush_each = Some(Duration::from_secs(1));
    })?;
    let log = forebay.stat("/store/write/bytes")?.saturating_sub(before) as f64 / GIB as f64;
    forebay.server.process.kill()?;
    drop(forebay);
    let begun = Instant::now();
    let forebay = Forebay::start(&bench.dir, binary, &config)?;
    let wall = begun.elapsed().as_secs_f64();
    let said = forebay.stat("/recovery_ms")? as f64 / 1e3;
    Ok(vec![
        Row::alone(
            "recovery after kill -9, start to ready, per GiB of log since the checkpoint",
            Unit::SecondsPerGib,
            Bound::AtMost(2.0),
            &[wall / log],
        ),
        Row::alone(
            "  of which replay, according to the server",
            Unit::SecondsPerGib,
            Bound::Nothing,
            &[said / log],
        ),
    ])
}

/// The peak memory of a server whose caches were filled beyond their budgets by reads and writes.
pub fn memory(bench: &Bench, pace: &Pace, binary: &Path, pool: &'static str) -> Result<Vec<Row>> {
    bench.say("memory against budgets");
    let config = ForebayConfig::new(pool, bench.size / 4);
    let forebay = Forebay::start(&bench.dir, binary, &config)?;
    for (export, read_percent) in [("reads", 100), ("writes", 50)] {
        generate(&forebay.disk(export), |spec| {
            spec.read_percent = read_percent;
            spec.connections = 4;
            spec.depth = 16;
            spec.flush_each = (read_percent < 100).then_some(Duration::from_secs(1));
            spec.stop = Stop::After(pace.write * 2);
        })?;
    }
    let budgets = forebay.stat("/read_cache/budget_bytes")? + forebay.stat("/map_cache/budget_bytes")?;
    Ok(vec![Row::memory("peak memory", budgets, forebay.memory()?.peak)])
}
