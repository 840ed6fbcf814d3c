//! Rows about space that comes back: what cleaning costs at a steady 80 % full, what it does to readers, and how
//! soon the room of what was deleted or discarded is free.

use std::path::Path;
use std::time::{Duration, Instant};

use super::error::{BenchError, Result};
use super::report::{Bound, Row, Unit};
use super::rounds::{Disk, generate};
use super::servers::{Forebay, ForebayConfig};
use super::{Bench, Pace};
use crate::load::{Access, LoadError, Report, Stop};
use crate::nbd;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Written between two looks at how it goes.
const SLICE: u64 = 8 * MIB;
/// NBD's error number of a full disk.
const NO_SPACE: u32 = 28;
/// How often a load that met a full store is tried again, and how long after.
const RETRIES: u32 = 300;
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// Requests per second of the load in which reads are timed: well below what the server can do.
const WRITES: f64 = 2000.0;
const READS: f64 = 500.0;

/// A pool that may take so much, in segments that are small beside it.
fn limited(bench: &Bench, binary: &Path, name: &'static str, limit: u64) -> Result<Forebay> {
    let settings = format!(
        "[store]\nlimit = {limit}\n[memory]\nwrite_buffer = \"4M\"\n[log]\nsegment = \"4M\"\ncheckpoint = \"64M\"\n"
    );
    Forebay::start(&bench.dir, binary, &ForebayConfig::new(name, 32 * MIB).with(settings))
}

fn create(forebay: &Forebay, volume: &str, bytes: u64) -> Result<()> {
    forebay.cli(&["volume", "create", volume, "--size", &bytes.to_string()]).map(drop)
}

fn disk<'a>(forebay: &'a Forebay, export: &'a str) -> Disk<'a> {
    Disk { server: &forebay.server, export }
}

/// Writes a whole volume, in slices.
fn fill(forebay: &Forebay, volume: &str, bytes: u64, seed: u64) -> Result<u32> {
    let mut refused = 0;
    for start in (0..bytes).step_by(SLICE as usize) {
        refused += persist(|| {
            generate(disk(forebay, volume), |spec| {
                spec.read_percent = 0;
                spec.access = Access::Sequential;
                spec.block_bytes = 64 << 10;
                spec.depth = 4;
                spec.seed = seed;
                spec.range = Some(start..bytes.min(start + SLICE));
                spec.stop = Stop::OncePerBlock;
            })
        })?;
    }
    Ok(refused)
}

/// Runs a load until no write of it is refused for want of room, with time for the cleaner in between. How often
/// it was refused.
fn persist(load: impl Fn() -> Result<Report>) -> Result<u32> {
    for refused in 0..RETRIES {
        match load() {
            Err(BenchError::Errors { code: NO_SPACE, .. }) => std::thread::sleep(RETRY_AFTER),
            done => return done.map(|_| refused),
        }
    }
    load().map(|_| RETRIES)
}

/// Overwrites on a pool that is 80 % full, and the reads of another guest meanwhile.
pub fn cleaning(bench: &Bench, pace: &Pace, binary: &Path) -> Result<Vec<Row>> {
    let limit = pace.limited_bytes;
    bench.say(&format!("cleaning at 80 % full, on {} MiB", limit / MIB));
    let forebay = limited(bench, binary, "cleaning", limit)?;
    let part = |percent: u64| limit / 100 * percent / MIB * MIB;
    let (reads, half) = (part(10), part(35));
    for (volume, bytes) in [("reads", reads), ("first", half), ("second", half)] {
        create(&forebay, volume, bytes)?;
    }
    fill(&forebay, "reads", reads, 1)?;
    fill(&forebay, "first", half, 2)?;
    let calm = timed_reads(&forebay, pace)?;
    fill(&forebay, "second", half, 3)?;
    let mut rows = Vec::new();
    let mut busy = Timed::default();
    let loads = [("uniformly random", Access::Random), ("80 % of them to 20 %", Access::Skewed)];
    for (i, (what, access)) in loads.into_iter().enumerate() {
        bench.say(&format!("  overwrites, {what}"));
        let bytes = limit / 100 * pace.overwrite_percent;
        overwrite(&forebay, access, bytes, i as u64)?;
        let (guest, moved) = (guest_bytes(&forebay)?, forebay.stat("/moved_bytes")?);
        let refused = overwrite(&forebay, access, bytes / 2, i as u64 + 10)?;
        let guest = guest_bytes(&forebay)? - guest;
        let moved = forebay.stat("/moved_bytes")? - moved;
        let cost = moved as f64 / guest.max(1) as f64;
        let full = if refused == 0 { String::new() } else { format!(" (store full {refused} times)") };
        let what = format!("moved by cleaning for each byte written, 80 % full, {what}{full}");
        rows.push(Row::alone(what, Unit::Times, Bound::AtMost(1.3), &[cost]));
        if access == Access::Random {
            busy = timed_reads(&forebay, pace)?;
        }
    }
    let what = format!("p99 of reads while {} MiB were cleaned", busy.moved / MIB);
    let peer = ("while none were", &calm.p99_us[..]);
    rows.push(Row::compare(what, Unit::Micros, Bound::RatioAtMost(2.0), &busy.p99_us, peer));
    Ok(rows)
}

fn guest_bytes(forebay: &Forebay) -> Result<u64> {
    forebay.stat("/guest/write/bytes")
}

/// Overwrites `bytes` of both volumes, in slices: one that meets a full store is written again when the cleaner
/// has had time. How often that was.
fn overwrite(forebay: &Forebay, access: Access, bytes: u64, seed: u64) -> Result<u32> {
    let mut refused = 0;
    for slice in 0..bytes / SLICE {
        let volume = if slice % 2 == 0 { "first" } else { "second" };
        refused += persist(|| {
            generate(disk(forebay, volume), |spec| {
                spec.read_percent = 0;
                spec.access = access;
                spec.seed = seed << 32 | slice;
                spec.stop = Stop::Requests(SLICE / BLOCK);
            })
        })?;
    }
    Ok(refused)
}

/// Reads beside writes.
#[derive(Default)]
struct Timed {
    p99_us: Vec<f64>,
    moved: u64,
}

/// Reads at a fixed rate, while another guest writes at a fixed rate.
fn timed_reads(forebay: &Forebay, pace: &Pace) -> Result<Timed> {
    let before = forebay.stat("/moved_bytes")?;
    let mut timed = Timed::default();
    for round in 0..pace.rounds {
        let load = |export, read_percent, rate| {
            generate(disk(forebay, export), |spec| {
                spec.read_percent = read_percent;
                spec.rate = Some(rate);
                spec.seed = u64::from(round) + 50;
                spec.stop = Stop::After(pace.write);
            })
        };
        let report = std::thread::scope(|scope| {
            let writer = scope.spawn(|| load("first", 0, WRITES));
            let report = load("reads", 100, READS);
            // Writes that a full store refuses are counted elsewhere.
            match writer.join() {
                Ok(Ok(_) | Err(BenchError::Errors { code: NO_SPACE, .. })) => report,
                Ok(Err(e)) => Err(e),
                Err(_) => Err(BenchError::Load { server: forebay.server.name, source: LoadError::Panicked }),
            }
        })?;
        timed.p99_us.push(report.latency.p99_us);
    }
    timed.moved = forebay.stat("/moved_bytes")? - before;
    Ok(timed)
}

/// How much is free again, and when, after a disk was deleted and after every other 64 KiB of one was discarded:
/// of disks that were written side by side, so that hardly a segment is free by itself.
pub fn freed(bench: &Bench, pace: &Pace, binary: &Path) -> Result<Vec<Row>> {
    bench.say("room of what was deleted and discarded");
    const PIECE: u32 = 64 << 10;
    let size = pace.limited_bytes / 2;
    let forebay = limited(bench, binary, "freed", size * 4)?;
    for volume in ["stay", "go"] {
        create(&forebay, volume, size)?;
    }
    std::thread::scope(|scope| {
        let other = scope.spawn(|| fill(&forebay, "go", size, 5));
        fill(&forebay, "stay", size, 6)?;
        other
            .join()
            .unwrap_or(Err(BenchError::Load { server: forebay.server.name, source: LoadError::Panicked }))
    })?;
    forebay.gc()?;
    let free = || forebay.stat("/store_free_bytes");
    let mut rows = Vec::new();
    let mut measure = |what: &str, gone: u64, act: &dyn Fn() -> Result<()>| -> Result<()> {
        let before = free()?;
        let begun = Instant::now();
        act()?;
        forebay.gc()?;
        let seconds = begun.elapsed().as_secs_f64();
        let share = 100.0 * free()?.saturating_sub(before) as f64 / gone as f64;
        let text = format!("free again after {what} of {} MiB", gone / MIB);
        rows.push(Row::alone(text, Unit::Percent, Bound::AtLeast(95.0), &[share]));
        rows.push(Row::alone("  time until gc was done", Unit::Seconds, Bound::Nothing, &[seconds]));
        Ok(())
    };
    measure("a delete", size, &|| forebay.cli(&["volume", "rm", "go"]).map(drop))?;
    measure("discards, here and there,", size / 2, &|| {
        let failed = |source| BenchError::Nbd { server: forebay.server.name, source };
        let mut stay = nbd::Disk::open(&forebay.server.target(), "stay").map_err(failed)?;
        for offset in (0..size).step_by(2 * PIECE as usize) {
            stay.trim(offset, PIECE).map_err(failed)?;
        }
        stay.flush().map_err(failed)
    })?;
    Ok(rows)
}
