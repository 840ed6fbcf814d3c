//! Reads and writes compared with `tgtd`: small and large, at depth 1 and 32, from one initiator and from
//! four.

use std::time::Duration;

use super::perf;
use super::servers::{DURABLE, Ours, READS, Target, Tgtd, WRITES};
use super::{Pace, say};
use crate::bench::rounds::{Sample, account, alternate};
use crate::bench::{Bound, Result, Row, Unit};
use crate::iscsi::Load;
use crate::load::{Access, Stop};

const KIB: u32 = 1 << 10;

/// Most CPU of the server for a durable write that is alone, in microseconds.
const LONE_WRITE_CPU: f64 = 120.0;

/// Most passes over a volume to fill the cache.
const PASSES: u32 = 8;

/// One sequential pass over a unit.
fn pass(target: Target<'_>, lun: u8, writes: bool) -> Result<()> {
    let loaded = target.load(lun, |load| {
        load.access = Access::Sequential;
        load.block_bytes = 64 * KIB;
        load.depth = 8;
        load.stop = Stop::OncePerBlock;
        load.writes = writes;
        load.flush_each = writes.then_some(Duration::from_secs(1));
    });
    loaded.map(drop)
}

/// Brings both targets to a steady state: data to be read is in RAM, blocks to be written are allocated.
/// Forebay keeps written data in its read cache, which is therefore filled: while it grows, a write also pays
/// for memory that was never used before.
fn steady(ours: &Ours, tgtd: &Tgtd, lun: u8) -> Result<()> {
    let writes = lun != READS;
    say(if writes { "filling" } else { "warming up" });
    pass(tgtd.target(), lun, writes)?;
    for _ in 0..PASSES {
        pass(ours.target(), lun, writes)?;
        if !writes || ours.cache_is_full()? {
            break;
        }
    }
    Ok(())
}

/// Parameters of one load.
#[derive(Clone, Copy)]
struct Shape {
    lun: u8,
    writes: bool,
    block: u32,
    depth: u16,
    initiators: u16,
}

impl Shape {
    fn name(&self) -> String {
        let access = match (self.lun, self.writes) {
            (_, false) => "reads",
            (DURABLE, true) => "writes, no write cache",
            (_, true) => "writes",
        };
        let initiators = if self.initiators == 1 { "" } else { " of each of 4" };
        format!("{} KiB random {access}, depth {}{initiators}", self.block / KIB, self.depth)
    }

    fn apply(&self, load: &mut Load<'_>, time: Duration, seed: u32) {
        (load.writes, load.block_bytes) = (self.writes, self.block);
        (load.depth, load.initiators) = (self.depth, self.initiators);
        load.stop = Stop::After(time);
        load.flush_each = (self.lun == WRITES).then_some(Duration::from_secs(1));
        load.seed = u64::from(seed) + 1;
    }

    /// The compared figure: latency at depth 1, otherwise the rate.
    fn figure(&self) -> (Unit, fn(&Sample) -> f64, &'static str) {
        match (self.depth, self.block) {
            (1, _) => (Unit::Micros, |s| s.p50_us, ": median latency"),
            (_, 4096) => (Unit::Iops, |s| s.iops, ""),
            _ => (Unit::MibPerSecond, |s| s.mib_s, ""),
        }
    }

    /// The promises for the figure and for the server's CPU.
    fn bounds(&self) -> (Bound, Bound) {
        let durable = self.lun == DURABLE;
        let figure = match (self.writes, self.block, self.depth) {
            (_, _, 1) => Bound::RatioAtMost(1.0),
            (false, 4096, _) => Bound::RatioAtLeast(1.5),
            (true, 4096, _) if durable => Bound::RatioAtLeast(1.5),
            _ => Bound::RatioAtLeast(1.0),
        };
        let cpu = match (self.writes, self.block, self.depth, self.initiators) {
            (false, 4096, 32, _) => Bound::RatioAtMost(1.0),
            (true, 4096, 1, 1) if durable => Bound::AtMost(LONE_WRITE_CPU),
            _ => Bound::Nothing,
        };
        (figure, cpu)
    }
}

/// All loads of `forebay` compared with `tgtd`.
pub fn rows(ours: &Ours, tgtd: &Tgtd, pace: &Pace) -> Result<Vec<Row>> {
    let shapes = |lun| {
        let writes = lun != READS;
        [4 * KIB, 64 * KIB].into_iter().flat_map(move |block| {
            [(32, 1), (32, 4), (1, 1), (1, 4)].map(|(depth, initiators)| Shape {
                lun,
                writes,
                block,
                depth,
                initiators,
            })
        })
    };
    steady(ours, tgtd, READS)?;
    let mut rows = Vec::new();
    for shape in shapes(READS) {
        rows.extend(shape_rows(ours.target(), tgtd.target(), pace, shape)?);
    }
    rows.extend(perf_rows(ours.target(), tgtd.target(), pace)?);
    for lun in [WRITES, DURABLE] {
        steady(ours, tgtd, lun)?;
        for shape in shapes(lun) {
            rows.extend(shape_rows(ours.target(), tgtd.target(), pace, shape)?);
        }
    }
    Ok(rows)
}

/// The rows of one load.
fn shape_rows(forebay: Target<'_>, tgtd: Target<'_>, pace: &Pace, shape: Shape) -> Result<[Row; 2]> {
    say(&shape.name());
    let (ours, peer) = in_turns(forebay, tgtd, pace.rounds, |target, round| {
        account(target.process, || target.load(shape.lun, |load| shape.apply(load, pace.load, round)))
    })?;
    let ((unit, figure, what), (bound, cpu_bound)) = (shape.figure(), shape.bounds());
    Ok([
        row(format!("{}{what}", shape.name()), unit, bound, figure, &ours, &peer),
        row("  server CPU of each", Unit::CpuMicros, cpu_bound, |s| s.cpu_us, &ours, &peer),
    ])
}

/// The same with `iscsi-perf`.
fn perf_rows(forebay: Target<'_>, tgtd: Target<'_>, pace: &Pace) -> Result<[Row; 2]> {
    let what = "4 KiB random reads, depth 32, by iscsi-perf";
    say(what);
    let (ours, peer) = in_turns(forebay, tgtd, pace.perf_rounds, |target, _| {
        account(target.process, || perf::random_reads(target, READS, pace.load))
    })?;
    Ok([
        row(what, Unit::Iops, Bound::RatioAtLeast(1.5), |s| s.iops, &ours, &peer),
        row("  server CPU of each", Unit::CpuMicros, Bound::RatioAtMost(1.0), |s| s.cpu_us, &ours, &peer),
    ])
}

fn row(
    what: impl Into<String>,
    unit: Unit,
    bound: Bound,
    figure: fn(&Sample) -> f64,
    ours: &[Sample],
    peer: &[Sample],
) -> Row {
    let of = |samples: &[Sample]| samples.iter().map(figure).collect::<Vec<_>>();
    Row::compare(what, unit, bound, &of(ours), ("tgtd", &of(peer)))
}

/// Measures both targets in turns.
fn in_turns(
    forebay: Target<'_>,
    tgtd: Target<'_>,
    rounds: u32,
    measure: impl Fn(Target<'_>, u32) -> Result<Sample>,
) -> Result<(Vec<Sample>, Vec<Sample>)> {
    let mut series =
        alternate(&[forebay, tgtd], rounds, |target, round| measure(*target, round))?.into_iter();
    let mut next = || series.next().unwrap_or_default();
    Ok((next(), next()))
}
