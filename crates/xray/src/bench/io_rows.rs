//! Rows about reads and writes.

use std::time::Duration;

use super::error::Result;
use super::report::{Bound, Row, Unit};
use super::rounds::{Disk, Sample, Series, fio_reads, generate, in_turns};
use super::{Bench, CACHED_IMAGES, Pace};
use crate::load::{Access, Spec, Stop};

const MIB: u32 = 1 << 20;

/// The disks of a row: Forebay's, if measured, and the peers'.
struct Field<'a> {
    ours: Option<Disk<'a>>,
    nbdkit: Disk<'a>,
    qemu: Disk<'a>,
}

/// Their series.
struct Measured {
    ours: Series,
    nbdkit: Series,
    qemu: Series,
}

impl<'a> Field<'a> {
    fn reads(bench: &'a Bench) -> Field<'a> {
        Field {
            ours: bench.ours.as_ref().map(|f| Disk { server: &f.server, export: "reads" }),
            nbdkit: Disk { server: &bench.nbdkit, export: "" },
            qemu: Disk { server: &bench.qemu_reads, export: "" },
        }
    }

    fn writes(bench: &'a Bench) -> Field<'a> {
        Field {
            ours: bench.ours.as_ref().map(|f| Disk { server: &f.server, export: "writes" }),
            qemu: Disk { server: &bench.qemu_writes, export: "" },
            ..Field::reads(bench)
        }
    }

    fn all(&self) -> Vec<Disk<'a>> {
        [self.ours, Some(self.nbdkit), Some(self.qemu)].into_iter().flatten().collect()
    }

    fn in_turns(
        &self,
        rounds: u32,
        load: impl Fn(Disk<'_>, u32) -> Result<crate::load::Report>,
    ) -> Result<Measured> {
        let mut series = in_turns(&self.all(), rounds, load)?.into_iter();
        let mut next = || series.next().unwrap_or_default();
        let ours = if self.ours.is_some() { next() } else { Series::default() };
        Ok(Measured { ours, nbdkit: next(), qemu: next() })
    }

    /// Measures with this crate's load generator.
    fn generate(&self, rounds: u32, change: impl Fn(&mut Spec)) -> Result<Measured> {
        self.in_turns(rounds, |disk, round| {
            generate(disk, |spec| {
                spec.seed = u64::from(round) + 1;
                change(spec);
            })
        })
    }
}

impl Measured {
    fn against_nbdkit(&self, what: &str, unit: Unit, bound: Bound, f: fn(&Sample) -> f64) -> Row {
        Row::compare(what, unit, bound, &self.ours.of(f), ("nbdkit memory", &self.nbdkit.of(f)))
    }
    fn against_qemu(&self, what: &str, unit: Unit, bound: Bound, f: fn(&Sample) -> f64) -> Row {
        Row::compare(what, unit, bound, &self.ours.of(f), ("qemu-nbd qcow2", &self.qemu.of(f)))
    }
}

/// Reads everything into the caches and allocates every cluster and block of the disks to be written, so that
/// the steady state of each server is measured. They are written as often as fills Forebay's read cache:
/// while it grows, a write also pays for memory that was never used before.
pub fn warm_up(bench: &Bench) -> Result<()> {
    bench.say("filling and warming up");
    for _ in 0..CACHED_IMAGES {
        for disk in Field::writes(bench).all() {
            generate(disk, |spec| whole(spec, 0))?;
        }
    }
    for disk in Field::reads(bench).all() {
        generate(disk, |spec| whole(spec, 100))?;
    }
    Ok(())
}

fn whole(spec: &mut Spec, read_percent: u8) {
    spec.access = Access::Sequential;
    spec.read_percent = read_percent;
    spec.block_bytes = MIB;
    spec.depth = 4;
    spec.stop = Stop::OncePerBlock;
    spec.flush_each = (read_percent == 0).then_some(Duration::from_secs(1));
}

/// Cached random reads.
pub fn reads(bench: &Bench, pace: &Pace) -> Result<Vec<Row>> {
    let field = Field::reads(bench);
    let iops = |s: &Sample| s.iops;
    let cpu = |s: &Sample| s.cpu_us;

    bench.say("cached 4 KiB random reads, depth 32");
    let m = field.generate(pace.rounds, |spec| spec.stop = Stop::After(pace.read))?;
    let what = "cached 4 KiB random reads, depth 32";
    let mut rows = vec![
        m.against_nbdkit(what, Unit::Iops, Bound::RatioAtLeast(1.0), iops),
        m.against_nbdkit("  server CPU of each", Unit::CpuMicros, Bound::RatioAtMost(0.5), cpu),
        m.against_qemu(what, Unit::Iops, Bound::Nothing, iops),
        m.against_qemu("  server CPU of each", Unit::CpuMicros, Bound::RatioAtMost(0.25), cpu),
    ];

    bench.say("cached 4 KiB random reads, depth 32, by fio");
    let m = field.in_turns(pace.fio_rounds, |disk, round| fio_reads(disk, 32, pace.read, round))?;
    let what = "the same with fio, which limits the rate";
    rows.push(m.against_nbdkit(what, Unit::Iops, Bound::RatioAtLeast(1.0), iops));
    rows.push(m.against_nbdkit("  server CPU of each", Unit::CpuMicros, Bound::RatioAtMost(0.5), cpu));
    rows.push(m.against_qemu("  server CPU of each", Unit::CpuMicros, Bound::RatioAtMost(0.25), cpu));

    bench.say("cached 4 KiB random reads, depth 1");
    let m = field.generate(pace.rounds, |spec| {
        spec.depth = 1;
        spec.stop = Stop::After(pace.read);
    })?;
    let what = "cached 4 KiB random reads, depth 1: median latency";
    rows.push(m.against_nbdkit(what, Unit::Micros, Bound::RatioAtMost(1.0), |s| s.p50_us));
    rows.push(m.against_nbdkit("  server CPU of each", Unit::CpuMicros, Bound::Nothing, cpu));
    rows.push(m.against_qemu(what, Unit::Micros, Bound::Nothing, |s| s.p50_us));

    bench.say("cached sequential 1 MiB reads");
    let m = field.generate(pace.fio_rounds, |spec| sequential(spec, 100, pace.read))?;
    let what = "cached sequential 1 MiB reads, depth 4";
    rows.push(m.against_nbdkit(what, Unit::MibPerSecond, Bound::Nothing, |s| s.mib_s));
    rows.push(m.against_qemu(what, Unit::MibPerSecond, Bound::Nothing, |s| s.mib_s));
    Ok(rows)
}

/// Writes with a flush every second and at the end of each round.
pub fn writes(bench: &Bench, pace: &Pace) -> Result<Vec<Row>> {
    let field = Field::writes(bench);
    let iops = |s: &Sample| s.iops;
    let cpu = |s: &Sample| s.cpu_us;
    let random = |depth: u16| {
        move |spec: &mut Spec| {
            spec.read_percent = 0;
            spec.depth = depth;
            spec.flush_each = Some(Duration::from_secs(1));
            spec.stop = Stop::After(pace.write);
        }
    };

    bench.say("4 KiB random writes, depth 32");
    let m = field.generate(pace.rounds, random(32))?;
    let what = "4 KiB random writes, depth 32, 1 flush/s";
    let mut rows = vec![
        m.against_qemu(what, Unit::Iops, Bound::RatioAtLeast(3.0), iops),
        m.against_qemu("  server CPU of each", Unit::CpuMicros, Bound::RatioAtMost(1.0 / 3.0), cpu),
        m.against_nbdkit("  compared with RAM, not durable", Unit::Iops, Bound::Nothing, iops),
    ];

    bench.say("4 KiB random writes, depth 1");
    let m = field.generate(pace.rounds, random(1))?;
    let what = "4 KiB random writes, depth 1: median latency";
    rows.push(m.against_nbdkit(what, Unit::Micros, Bound::RatioAtMost(1.0), |s| s.p50_us));
    rows.push(m.against_qemu(what, Unit::Micros, Bound::Nothing, |s| s.p50_us));

    bench.say("sequential 1 MiB writes");
    let m = field.generate(pace.fio_rounds, |spec| {
        sequential(spec, 0, pace.write);
        spec.flush_each = Some(Duration::from_secs(1));
    })?;
    let what = "sequential 1 MiB writes, depth 4, 1 flush/s";
    rows.push(m.against_qemu(what, Unit::MibPerSecond, Bound::RatioAtLeast(1.2), |s| s.mib_s));

    bench.say("64 KiB random writes, depth 32");
    let m = field.generate(pace.fio_rounds, |spec| {
        random(32)(spec);
        spec.block_bytes = 64 << 10;
    })?;
    let what = "64 KiB random writes, depth 32, 1 flush/s";
    rows.push(m.against_qemu(what, Unit::MibPerSecond, Bound::RatioAtLeast(1.2), |s| s.mib_s));
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
    bench.say("4 KiB durable random writes, depth 32");
    let m = field.generate(pace.rounds, durable(32))?;
    let what = "4 KiB random writes with FUA, depth 32";
    let mut rows = vec![
        m.against_qemu(what, Unit::Iops, Bound::RatioAtLeast(1.5), |s| s.iops),
        m.against_qemu("  server CPU of each", Unit::CpuMicros, Bound::RatioAtMost(1.0), |s| s.cpu_us),
    ];
    bench.say("4 KiB durable random writes, depth 1");
    let m = field.generate(pace.rounds, durable(1))?;
    let what = "4 KiB random writes with FUA, depth 1: median latency";
    rows.push(m.against_qemu(what, Unit::Micros, Bound::RatioAtMost(1.0), |s| s.p50_us));
    rows.push(m.against_qemu("  server CPU of each", Unit::CpuMicros, Bound::AtMost(120.0), |s| s.cpu_us));
    Ok(rows)
}

fn sequential(spec: &mut Spec, read_percent: u8, time: Duration) {
    spec.access = Access::Sequential;
    spec.read_percent = read_percent;
    spec.block_bytes = MIB;
    spec.depth = 4;
    spec.stop = Stop::After(time);
}
