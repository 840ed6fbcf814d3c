//! Measuring in turns: A B C, B C A, C A B, ... so that other activity of the machine affects all equally.

use std::time::Duration;

use super::error::{BenchError, Result};
use super::fio;
use super::process::Process;
use super::servers::Server;
use crate::load::{self, Report, Spec};

/// An export of a running server.
#[derive(Clone, Copy)]
pub struct Disk<'a> {
    /// The server.
    pub server: &'a Server,
    /// The export.
    pub export: &'a str,
}

/// One measurement of one disk.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Requests per second.
    pub iops: f64,
    /// MiB per second.
    pub mib_s: f64,
    /// Median latency.
    pub p50_us: f64,
    /// Server CPU per request.
    pub cpu_us: f64,
}

/// All rounds of one disk.
#[derive(Debug, Clone, Default)]
pub struct Series(Vec<Sample>);

impl Series {
    /// One figure of every round.
    pub fn of(&self, figure: impl Fn(&Sample) -> f64) -> Vec<f64> {
        self.0.iter().map(figure).collect()
    }
}

/// Runs `load` once and measures the CPU time of the server's process.
pub fn account(process: &Process, load: impl FnOnce() -> Result<Report>) -> Result<Sample> {
    let before = process.cpu()?;
    let report = load()?;
    let cpu = process.cpu()?.saturating_sub(before);
    Ok(Sample {
        iops: report.iops,
        mib_s: report.mib_s,
        p50_us: report.latency.p50_us,
        cpu_us: cpu.as_secs_f64() * 1e6 / report.ops.max(1) as f64,
    })
}

/// Runs `load` on a disk once and measures the server's CPU time.
pub fn measure(disk: Disk<'_>, load: impl FnOnce(Disk<'_>) -> Result<Report>) -> Result<Sample> {
    account(&disk.server.process, || load(disk))
}

/// Measures all of `things` in each of `rounds` rounds, starting with a different one in each round.
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

/// Measures all disks in turns.
pub fn in_turns(
    disks: &[Disk<'_>],
    rounds: u32,
    load: impl Fn(Disk<'_>, u32) -> Result<Report>,
) -> Result<Vec<Series>> {
    let series = alternate(disks, rounds, |disk, round| measure(*disk, |disk| load(disk, round)))?;
    Ok(series.into_iter().map(Series).collect())
}

/// Runs this crate's load generator on a disk; `change` sets its parameters.
pub fn generate(disk: Disk<'_>, change: impl FnOnce(&mut Spec)) -> Result<Report> {
    let server = disk.server.name;
    let mut spec = Spec::new(disk.server.target(), disk.export);
    change(&mut spec);
    let report = load::run(&spec).map_err(|source| BenchError::Load { server, source })?;
    match report.first_error {
        Some(code) => Err(BenchError::Errors { server, count: report.errors, code }),
        None => Ok(report),
    }
}

/// Runs fio's random 4 KiB reads on a disk.
pub fn fio_reads(disk: Disk<'_>, depth: u16, time: Duration, seed: u32) -> Result<Report> {
    fio::random_reads(&disk.server.uri(disk.export), depth, time, seed)
}
