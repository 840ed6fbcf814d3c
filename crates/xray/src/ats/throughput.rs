//! Reads and writes compared with `tgtd`: small and large, at depth 1 and 32, from one initiator and from
//! four.

use std::time::Duration;

use super::servers::{DURABLE, Ours, READS, WRITES};
use super::{Pace, perf, say};
use crate::bench::rounds::{Figure, generate, in_turns};
use crate::error::Result;
use crate::load::{Spec, Stop};
use crate::report::{Bound, Row};
use crate::targets::servers::{Disk, Tgtd};

const KIB: u32 = 1 << 10;

/// Maximum CPU time of the server for a durable write that is alone, in microseconds.
const LONE_WRITE_CPU: f64 = 120.0;

/// Maximum number of passes over a volume to fill the cache.
const PASSES: u32 = 8;

/// One sequential pass over a unit.
fn pass(disk: &Disk<'_>, writes: bool) -> Result<()> {
    let done = generate(disk, |load| {
        load.pass(writes, 64 * KIB, 8);
        load.flush_each = writes.then_some(Duration::from_secs(1));
    });
    done.map(drop)
}

/// Brings both targets to a steady state: data to be read is in RAM, blocks to be written are allocated.
/// Forebay keeps written data in its read cache, which is therefore filled: while it grows, a write also pays
/// for memory that was never used before.
fn steady(ours: &Ours, tgtd: &Tgtd, lun: u8) -> Result<()> {
    let writes = lun != READS;
    say(if writes { "filling" } else { "warming up" });
    pass(&tgtd.disk(lun), writes)?;
    for _ in 0..PASSES {
        pass(&ours.disk(lun), writes)?;
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
    block: u32,
    depth: u16,
    initiators: u16,
}

impl Shape {
    fn name(&self) -> String {
        let access = match self.lun {
            READS => "reads",
            DURABLE => "writes, no write cache",
            _ => "writes",
        };
        let initiators = if self.initiators == 1 { "" } else { " of each of 4" };
        format!("{} KiB random {access}, depth {}{initiators}", self.block / KIB, self.depth)
    }

    fn apply(&self, load: &mut Spec, time: Duration, seed: u32) {
        (load.read_percent, load.block_bytes) = (if self.lun == READS { 100 } else { 0 }, self.block);
        (load.depth, load.connections) = (self.depth, self.initiators);
        load.stop = Stop::After(time);
        load.flush_each = (self.lun == WRITES).then_some(Duration::from_secs(1));
        load.seed = u64::from(seed) + 1;
    }

    /// The compared figure: latency at depth 1, otherwise the rate.
    fn figure(&self) -> (Figure, &'static str) {
        match (self.depth, self.block) {
            (1, _) => (Figure::Latency, ": median latency"),
            (_, 4096) => (Figure::Iops, ""),
            _ => (Figure::Throughput, ""),
        }
    }

    /// The promises for the figure and for the server's CPU.
    fn bounds(&self) -> (Bound, Bound) {
        let figure = match (self.lun, self.block, self.depth) {
            (_, _, 1) => Bound::RatioAtMost(1.0),
            (READS | DURABLE, 4096, _) => Bound::RatioAtLeast(1.5),
            _ => Bound::RatioAtLeast(1.0),
        };
        let cpu = match (self.lun, self.block, self.depth, self.initiators) {
            (READS, 4096, 32, _) => Bound::RatioAtMost(1.0),
            (DURABLE, 4096, 1, 1) => Bound::AtMost(LONE_WRITE_CPU),
            _ => Bound::Nothing,
        };
        (figure, cpu)
    }
}

/// All loads of `forebay` compared with `tgtd`.
pub fn rows(ours: &Ours, tgtd: &Tgtd, pace: &Pace) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for lun in [READS, WRITES, DURABLE] {
        steady(ours, tgtd, lun)?;
        let disks = [Some(ours.disk(lun)), Some(tgtd.disk(lun))];
        for block in [4 * KIB, 64 * KIB] {
            for (depth, initiators) in [(32, 1), (32, 4), (1, 1), (1, 4)] {
                rows.extend(shape_rows(&disks, pace, Shape { lun, block, depth, initiators })?);
            }
        }
        if lun == READS {
            rows.extend(perf_rows(&disks, pace)?);
        }
    }
    Ok(rows)
}

/// The rows of one load.
fn shape_rows(disks: &[Option<Disk<'_>>; 2], pace: &Pace, shape: Shape) -> Result<[Row; 2]> {
    say(&shape.name());
    let [ours, peer] = in_turns(disks, pace.rounds, |disk, round| {
        generate(disk, |load| shape.apply(load, pace.load, round))
    })?;
    let ((figure, what), (bound, cpu_bound)) = (shape.figure(), shape.bounds());
    Ok([ours.row(format!("{}{what}", shape.name()), figure, bound, &peer), ours.cpu_row(cpu_bound, &peer)])
}

/// The rows of the same loads with `iscsi-perf`.
fn perf_rows(disks: &[Option<Disk<'_>>; 2], pace: &Pace) -> Result<[Row; 2]> {
    let what = "4 KiB random reads, depth 32, by iscsi-perf";
    say(what);
    let [ours, peer] =
        in_turns(disks, pace.perf_rounds, |disk, _| perf::random_reads(&disk.endpoint, pace.load))?;
    Ok([
        ours.row(what, Figure::Iops, Bound::RatioAtLeast(1.5), &peer),
        ours.cpu_row(Bound::RatioAtMost(1.0), &peer),
    ])
}
