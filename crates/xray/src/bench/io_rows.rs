//! Rows about reads and writes.

use std::time::Duration;

use super::rounds::{Figure, Series, generate, in_turns};
use super::{Bench, CACHED_IMAGES, Pace, fio};
use crate::error::Result;
use crate::load::{Report, Spec, Stop};
use crate::report::{Bound, Row};
use crate::targets::servers::Disk;

const MIB: u32 = 1 << 20;

/// The disks of a row: of Forebay, if it is measured, of `nbdkit`, and of `qemu-nbd`.
struct Field<'a> {
    bench: &'a Bench,
    disks: [Option<Disk<'a>>; 3],
}

impl<'a> Field<'a> {
    fn reads(bench: &'a Bench) -> Field<'a> {
        let ours = bench.ours.as_ref().map(|f| f.disk("reads"));
        Field { bench, disks: [ours, Some(bench.nbdkit.disk("")), Some(bench.qemu_reads.disk(""))] }
    }

    fn writes(bench: &'a Bench) -> Field<'a> {
        let ours = bench.ours.as_ref().map(|f| f.disk("writes"));
        Field { bench, disks: [ours, Some(bench.nbdkit.disk("")), Some(bench.qemu_writes.disk(""))] }
    }

    fn in_turns(
        &self,
        what: &str,
        rounds: u32,
        load: impl Fn(&Disk<'_>, u32) -> Result<Report>,
    ) -> Result<[Series; 3]> {
        self.bench.say(what);
        in_turns(&self.disks, rounds, load)
    }

    /// Measures with this crate's load generator.
    fn generate(&self, what: &str, rounds: u32, change: impl Fn(&mut Spec)) -> Result<[Series; 3]> {
        self.in_turns(what, rounds, |disk, round| {
            generate(disk, |spec| {
                spec.seed = u64::from(round) + 1;
                change(spec);
            })
        })
    }
}

/// Reads everything into the caches and allocates every cluster and block of the disks to be written, so that
/// the steady state of each server is measured. They are written as often as fills Forebay's read cache:
/// while it grows, a write also pays for memory that was never used before.
pub fn warm_up(bench: &Bench) -> Result<()> {
    bench.say("filling and warming up");
    for _ in 0..CACHED_IMAGES {
        for disk in Field::writes(bench).disks.iter().flatten() {
            generate(disk, |spec| {
                spec.pass(true, MIB, 4);
                spec.flush_each = Some(Duration::from_secs(1));
            })?;
        }
    }
    for disk in Field::reads(bench).disks.iter().flatten() {
        generate(disk, |spec| spec.pass(false, MIB, 4))?;
    }
    Ok(())
}

/// Cached random reads.
pub fn reads(bench: &Bench, pace: &Pace) -> Result<Vec<Row>> {
    use Bound::{Nothing, RatioAtLeast, RatioAtMost};
    let field = Field::reads(bench);

    let what = "cached 4 KiB random reads, depth 32";
    let [ours, nbdkit, qemu] =
        field.generate(what, pace.rounds, |spec| spec.stop = Stop::After(pace.read))?;
    let mut rows = vec![
        ours.row(what, Figure::Iops, RatioAtLeast(1.0), &nbdkit),
        ours.cpu_row(RatioAtMost(0.5), &nbdkit),
        ours.row(what, Figure::Iops, Nothing, &qemu),
        ours.cpu_row(RatioAtMost(0.25), &qemu),
    ];

    let load = |disk: &Disk<'_>, round| fio::random_reads(&disk.endpoint, 32, pace.read, round);
    let [ours, nbdkit, qemu] = field.in_turns(&format!("{what}, by fio"), pace.fio_rounds, load)?;
    let what = "the same with fio, which limits the rate";
    rows.push(ours.row(what, Figure::Iops, RatioAtLeast(1.0), &nbdkit));
    rows.push(ours.cpu_row(RatioAtMost(0.5), &nbdkit));
    rows.push(ours.cpu_row(RatioAtMost(0.25), &qemu));

    let what = "cached 4 KiB random reads, depth 1: median latency";
    let [ours, nbdkit, qemu] = field.generate(what, pace.rounds, |spec| {
        spec.depth = 1;
        spec.stop = Stop::After(pace.read);
    })?;
    rows.push(ours.row(what, Figure::Latency, RatioAtMost(1.0), &nbdkit));
    rows.push(ours.cpu_row(Nothing, &nbdkit));
    rows.push(ours.row(what, Figure::Latency, Nothing, &qemu));

    let what = "cached sequential 1 MiB reads, depth 4";
    let [ours, nbdkit, qemu] = field.generate(what, pace.fio_rounds, |spec| {
        spec.sequential(false, MIB, 4);
        spec.stop = Stop::After(pace.read);
    })?;
    rows.push(ours.row(what, Figure::Throughput, Nothing, &nbdkit));
    rows.push(ours.row(what, Figure::Throughput, Nothing, &qemu));
    Ok(rows)
}

/// Writes with a flush every second and at the end of each round.
pub fn writes(bench: &Bench, pace: &Pace) -> Result<Vec<Row>> {
    use Bound::{Nothing, RatioAtLeast, RatioAtMost};
    let field = Field::writes(bench);
    let random = |depth: u16| {
        move |spec: &mut Spec| {
            spec.read_percent = 0;
            spec.depth = depth;
            spec.flush_each = Some(Duration::from_secs(1));
            spec.stop = Stop::After(pace.write);
        }
    };

    let what = "4 KiB random writes, depth 32, 1 flush/s";
    let [ours, nbdkit, qemu] = field.generate(what, pace.rounds, random(32))?;
    let mut rows = vec![
        ours.row(what, Figure::Iops, RatioAtLeast(3.0), &qemu),
        ours.cpu_row(RatioAtMost(1.0 / 3.0), &qemu),
        ours.row("  compared with RAM, not durable", Figure::Iops, Nothing, &nbdkit),
    ];

    let what = "4 KiB random writes, depth 1: median latency";
    let [ours, nbdkit, qemu] = field.generate(what, pace.rounds, random(1))?;
    rows.push(ours.row(what, Figure::Latency, RatioAtMost(1.0), &nbdkit));
    rows.push(ours.row(what, Figure::Latency, Nothing, &qemu));

    let what = "sequential 1 MiB writes, depth 4, 1 flush/s";
    let [ours, _, qemu] = field.generate(what, pace.fio_rounds, |spec| {
        random(4)(spec);
        spec.sequential(true, MIB, 4);
    })?;
    rows.push(ours.row(what, Figure::Throughput, RatioAtLeast(1.2), &qemu));

    let what = "64 KiB random writes, depth 32, 1 flush/s";
    let [ours, _, qemu] = field.generate(what, pace.fio_rounds, |spec| {
        random(32)(spec);
        spec.block_bytes = 64 << 10;
    })?;
    rows.push(ours.row(what, Figure::Throughput, RatioAtLeast(1.2), &qemu));
    Ok(rows)
}

/// Writes that are durable when they are answered.
pub fn durable_writes(bench: &Bench, pace: &Pace) -> Result<Vec<Row>> {
    let field = Field::writes(bench);
    let durable = |depth: u16| {
        move |spec: &mut Spec| {
            spec.read_percent = 0;
            spec.depth = depth;
            spec.fua = true;
            spec.stop = Stop::After(pace.write);
        }
    };
    let what = "4 KiB random writes with FUA, depth 32";
    let [ours, _, qemu] = field.generate(what, pace.rounds, durable(32))?;
    let mut rows = vec![
        ours.row(what, Figure::Iops, Bound::RatioAtLeast(1.5), &qemu),
        ours.cpu_row(Bound::RatioAtMost(1.0), &qemu),
    ];
    let what = "4 KiB random writes with FUA, depth 1: median latency";
    let [ours, _, qemu] = field.generate(what, pace.rounds, durable(1))?;
    rows.push(ours.row(what, Figure::Latency, Bound::RatioAtMost(1.0), &qemu));
    rows.push(ours.cpu_row(Bound::AtMost(120.0), &qemu));
    Ok(rows)
}
