//! The report of a benchmark, for the terminal and as JSON: the rows with the promises, and details that
//! differ between the benchmarks.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use super::rows::{Row, table, trust};
use crate::error::{During, Result};
use crate::machine::{CpuTimes, Machine};
use crate::run::write_file;

/// What only one benchmark reports.
pub trait Details: Serialize {
    /// Tables before the table of rows.
    fn tables(&self) -> Vec<String> {
        Vec::new()
    }
    /// Lines after the table of rows.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
    /// A chart as SVG, for a separate file.
    fn plot(&self) -> Option<String> {
        None
    }
    /// Whether all data that was read was right.
    fn is_sound(&self) -> bool {
        true
    }
}

/// The results of a benchmark.
#[derive(Debug, Serialize)]
pub struct BenchReport<D> {
    /// The machine on which the benchmark ran.
    pub machine: Machine,
    /// Versions of the peers.
    pub peers: Vec<String>,
    /// Whether it was the quick run.
    pub quick: bool,
    /// How long the run took.
    pub seconds: f64,
    /// Share of the machine's CPU time that other processes used during the run, in percent.
    pub others_percent: f64,
    /// The promises, with the figures of Forebay and of its peers.
    pub rows: Vec<Row>,
    /// What only this benchmark reports.
    #[serde(flatten)]
    pub details: D,
}

/// The start of a benchmark.
pub(crate) struct Begun(Instant, Machine, CpuTimes);

impl Begun {
    /// A benchmark that starts now.
    pub fn now() -> Begun {
        Begun(Instant::now(), Machine::here(), CpuTimes::now())
    }

    /// The report. All servers have ended, so that their CPU time counts as this process's.
    pub fn report<D>(self, quick: bool, peers: Vec<String>, rows: Vec<Row>, details: D) -> BenchReport<D> {
        let Begun(begun, machine, cpu) = self;
        let (seconds, others_percent) = (begun.elapsed().as_secs_f64(), cpu.others_percent());
        BenchReport { machine, peers, quick, seconds, others_percent, rows, details }
    }
}

impl<D: Details> BenchReport<D> {
    /// The table of rows.
    pub fn table(&self) -> String {
        table(&self.rows)
    }

    /// Prints the report, and writes `name`.json and, if there is a plot, `name`.svg into a directory.
    pub fn publish(&self, dir: &Path, name: &str) -> Result<()> {
        println!("{}", self.machine.line());
        if !self.peers.is_empty() {
            println!("{}", self.peers.join("; "));
        }
        let write = |extension, text: &str| {
            let file = dir.join(name).with_extension(extension);
            write_file(&file, text.as_bytes()).map(|()| file)
        };
        let json = serde_json::to_string_pretty(self).map_err(std::io::Error::from);
        let json = write("json", &json.during(|| "cannot write the report".to_owned())?)?;
        self.details.tables().iter().for_each(|table| println!("{table}"));
        if let Some(plot) = self.details.plot() {
            println!("plot: {}", write("svg", &plot)?.display());
        }
        println!("{}", self.table());
        self.details.notes().iter().for_each(|note| println!("{note}"));
        println!("{}", trust(self.others_percent));
        println!("{:.0} s; all figures: {}", self.seconds, json.display());
        Ok(())
    }
}
