//! Measuring in turns: A B C, B C A, C A B, ... so that other activity of the machine affects all equally.

use crate::error::{Error, Result};
use crate::load::{self, Report, Spec};
use crate::report::{Bound, Row, Unit};
use crate::targets::servers::Disk;

/// One measurement of one disk.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    iops: f64,
    mib_s: f64,
    p50_us: f64,
    cpu_us: f64,
}

/// A figure of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Figure {
    /// Requests per second.
    Iops,
    /// MiB per second.
    Throughput,
    /// Median latency.
    Latency,
    /// Server CPU per request.
    Cpu,
}

impl Figure {
    fn unit(self) -> Unit {
        match self {
            Figure::Iops => Unit::Iops,
            Figure::Throughput => Unit::MibPerSecond,
            Figure::Latency => Unit::Micros,
            Figure::Cpu => Unit::CpuMicros,
        }
    }

    fn of(self, sample: &Sample) -> f64 {
        match self {
            Figure::Iops => sample.iops,
            Figure::Throughput => sample.mib_s,
            Figure::Latency => sample.p50_us,
            Figure::Cpu => sample.cpu_us,
        }
    }
}

/// All rounds of one disk. A disk that is not measured has no rounds.
#[derive(Debug, Clone, Default)]
pub struct Series {
    name: &'static str,
    samples: Vec<Sample>,
}

impl Series {
    /// Returns the series with another name for reports.
    pub fn named(self, name: &'static str) -> Series {
        Series { name, ..self }
    }

    /// A row that compares a figure of this disk and of a peer's disk.
    pub fn row(&self, what: impl Into<String>, figure: Figure, bound: Bound, peer: &Series) -> Row {
        let of = |series: &Series| series.samples.iter().map(|s| figure.of(s)).collect::<Vec<_>>();
        Row::compare(what, figure.unit(), bound, &of(self), (peer.name, &of(peer)))
    }

    /// A row that compares the server's CPU per request, for the line below another row of the same disks.
    pub fn cpu_row(&self, bound: Bound, peer: &Series) -> Row {
        self.row("  server CPU of each", Figure::Cpu, bound, peer)
    }
}

/// Runs `load` on a disk once and measures the CPU time of the server's process.
fn measure(disk: &Disk<'_>, load: impl FnOnce(&Disk<'_>) -> Result<Report>) -> Result<Sample> {
    let before = disk.process.cpu()?;
    let report = load(disk)?;
    let cpu = disk.process.cpu()?.saturating_sub(before);
    Ok(Sample {
        iops: report.iops,
        mib_s: report.mib_s,
        p50_us: report.latency.p50_us,
        cpu_us: cpu.as_secs_f64() * 1e6 / report.ops.max(1) as f64,
    })
}

/// Measures all of `things` in each of `rounds` rounds; each round starts with a different thing.
pub fn alternate<T, S>(
    things: &[T],
    rounds: u32,
    measure: impl Fn(&T, u32) -> Result<S>,
) -> Result<Vec<Vec<S>>> {
    let mut series: Vec<Vec<S>> = things.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for turn in 0..things.len() {
            let i = (turn + round as usize) % things.len();
            series[i].push(measure(&things[i], round)?);
        }
    }
    Ok(series)
}

/// Measures all disks that exist in turns.
pub fn in_turns<const N: usize>(
    disks: &[Option<Disk<'_>>; N],
    rounds: u32,
    load: impl Fn(&Disk<'_>, u32) -> Result<Report>,
) -> Result<[Series; N]> {
    let present: Vec<_> = disks.iter().flatten().collect();
    let mut series =
        alternate(&present, rounds, |disk, round| measure(disk, |disk| load(disk, round)))?.into_iter();
    Ok(disks.each_ref().map(|disk| match disk {
        Some(disk) => Series { name: disk.process.name(), samples: series.next().unwrap_or_default() },
        None => Series::default(),
    }))
}

/// Runs this crate's load generator on a disk; `change` sets its parameters. All requests must succeed.
pub fn generate(disk: &Disk<'_>, change: impl FnOnce(&mut Spec)) -> Result<Report> {
    let mut spec = Spec::new(disk.endpoint.clone());
    change(&mut spec);
    sound(disk, load::run(&spec))
}

/// The report of a load on a disk whose requests must all succeed.
pub fn sound(disk: &Disk<'_>, report: std::result::Result<Report, load::LoadError>) -> Result<Report> {
    let server = disk.process.name();
    let report = report.map_err(|source| Error::Load { server, source })?;
    match report.counts.first_error {
        Some(code) => Err(Error::Errors { server, count: report.counts.errors, code }),
        None => Ok(report),
    }
}
