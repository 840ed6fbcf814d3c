//! `forebay-xray run`: runs a scenario, and writes its report.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use forebay_xray::report;
use forebay_xray::run::record::RunRecord;
use forebay_xray::run::{self, Options, Request};
use forebay_xray::scenario::Scale;
use forebay_xray::targets::Surroundings;

use crate::scenario_command;

/// The options.
#[derive(Debug, Args)]
pub struct RunCommand {
    /// A built-in scenario, or a file (with a . or / in its name)
    #[arg(required_unless_present = "resume")]
    scenario: Option<String>,
    /// forebay, forebay-tcp, forebay-iscsi, forebay-nvme, forebay-rados, forebay-rados-2, qemu-nbd, nbdkit,
    /// tgtd, librbd, nbd://HOST:PORT/EXPORT, nbd+unix:///EXPORT?socket=PATH, iscsi://HOST:PORT/TARGET/LUN,
    /// nvme://HOST:PORT/SUBSYSTEM/NAMESPACE or file:PATH (repeatable) [default: forebay]
    #[arg(long = "target", value_name = "TARGET")]
    targets: Vec<String>,
    /// File that describes targets (TOML)
    #[arg(long, value_name = "FILE")]
    targets_file: Option<PathBuf>,
    /// Factor for sizes, rates and times, above 0 and at most 1; the report states what it changed
    #[arg(long, default_value = "1", value_parser = factor)]
    scale: f64,
    /// Factor for sizes [default: --scale]
    #[arg(long, value_parser = factor)]
    scale_size: Option<f64>,
    /// Factor for rates [default: --scale]
    #[arg(long, value_parser = factor)]
    scale_rate: Option<f64>,
    /// Factor for times [default: --scale]
    #[arg(long, value_parser = factor)]
    scale_time: Option<f64>,
    /// How often each target runs, in turns
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seed of all random values
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for the results [default: a new one in target/xray]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Continue the run in this directory: targets that are complete are not run again
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scenario", "targets", "targets_file", "dir"])]
    resume: Option<PathBuf>,
    /// Directory for the data of servers; must be on the disk to be measured [default: that of the results]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Overwrite data on targets that are given by a URI or file
    #[arg(long)]
    overwrite: bool,
    /// The forebay binary [default: in this program's directory]
    #[arg(long)]
    forebay: Option<PathBuf>,
    /// Script that starts a Ceph cluster, for forebay-rados and librbd
    #[arg(long, default_value = "tests/ceph/cluster.sh")]
    ceph_script: PathBuf,
    /// Print no progress
    #[arg(long)]
    quiet: bool,
}

fn factor(text: &str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|f| *f > 0.0 && *f <= 1.0).ok_or("use a number above 0 and at most 1")
}

/// Exit status of a run in which a check failed.
const FAILED_CHECK: u8 = 3;

impl RunCommand {
    /// Runs it. The status is 0 if all checks passed, 3 if one failed, 1 if a target did not run to its end.
    pub fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error>> {
        run::handle_interrupts();
        run::raise_descriptor_limit();
        let (record, dir) = match &self.resume {
            Some(dir) => (run::resume(&self.options(dir.clone())?)?, dir.clone()),
            None => {
                let request = self.request()?;
                let name =
                    std::path::Path::new(&request.file).file_stem().unwrap_or_default().to_string_lossy();
                let dir = self.dir.clone();
                let dir = dir.unwrap_or_else(|| run::free_directory("target/xray".as_ref(), &name));
                (run::start(&request, &self.options(dir.clone())?)?, dir)
            }
        };
        let page = report::write(&dir, &record)?;
        print(&record);
        println!("report: {}, with report.json and report.csv", page.display());
        if !record.complete {
            println!("continue with: forebay-xray run --resume {}", dir.display());
        }
        Ok(status(&record))
    }

    fn options(&self, dir: PathBuf) -> Result<Options, Box<dyn std::error::Error>> {
        let beside = || std::env::current_exe().map(|exe| exe.with_file_name("forebay"));
        let forebay = self.forebay.clone().map_or_else(beside, Ok)?;
        let parent = std::path::absolute(self.data.as_ref().unwrap_or(&dir))?;
        let around = Surroundings {
            parent,
            forebay,
            ceph_script: self.ceph_script.clone(),
            overwrite: self.overwrite,
        };
        Ok(Options { dir, around, quiet: self.quiet })
    }

    fn request(&self) -> Result<Request, Box<dyn std::error::Error>> {
        let file = self.scenario.clone().unwrap_or_default();
        let (text, _) = scenario_command::load(&file)?;
        let targets_file = match &self.targets_file {
            None => None,
            Some(path) => {
                let text = std::fs::read_to_string(path);
                Some(text.map_err(|e| format!("cannot read {}: {e}", path.display()))?)
            }
        };
        let mut targets = self.targets.clone();
        if targets.is_empty() && targets_file.is_none() {
            targets.push("forebay".to_owned());
        }
        let scale = Scale {
            size: self.scale_size.unwrap_or(self.scale),
            rate: self.scale_rate.unwrap_or(self.scale),
            time: self.scale_time.unwrap_or(self.scale),
        };
        Ok(Request { file, text, scale, targets, targets_file, rounds: self.rounds, seed: self.seed })
    }
}

fn status(record: &RunRecord) -> ExitCode {
    let failed = record.targets.iter().flat_map(|t| &t.verdicts).any(|v| v.pass == Some(false));
    match (record.complete, failed) {
        (true, false) => ExitCode::SUCCESS,
        (true, true) => ExitCode::from(FAILED_CHECK),
        (false, _) => ExitCode::FAILURE,
    }
}

fn print(record: &RunRecord) {
    for target in &record.targets {
        println!("{} on {}: {}", record.scenario, target.name, target.state);
        for phase in &target.phases {
            for load in &phase.loads {
                println!(
                    "  {}{}, {}: {:.1}/s, {:.1} MiB/s, p50 {:.2} ms, p95 {:.2} ms, p99 {:.2} ms, max {:.1} ms",
                    phase.name,
                    phase.at_depth(),
                    load.name,
                    load.iops,
                    load.mib_s,
                    load.latency.p50,
                    load.latency.p95,
                    load.latency.p99,
                    load.latency.max
                );
            }
            for event in &phase.events {
                let Some(figures) = &event.figures else { continue };
                println!("  {}, {} at {:.1} s: {figures}", phase.name, event.action, event.start_s);
            }
        }
        for verdict in &target.verdicts {
            println!("  {}  {}: {}", verdict.word(), verdict.what, verdict.reason);
        }
    }
}

/// `forebay-xray compare`.
#[derive(Debug, Args)]
pub struct CompareCommand {
    /// report.json of the earlier run
    earlier: PathBuf,
    /// report.json of the later run
    later: PathBuf,
    /// Changes up to this many percent are no regression
    #[arg(long, default_value_t = 10.0)]
    threshold: f64,
}

impl CompareCommand {
    /// Runs it. The status is 3 if something became worse.
    pub fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error>> {
        let read = |path: &PathBuf| -> Result<RunRecord, Box<dyn std::error::Error>> {
            let text = std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
            Ok(serde_json::from_slice(&text)
                .map_err(|e| format!("{} is not a report: {e}", path.display()))?)
        };
        let found = report::compare(&read(&self.earlier)?, &read(&self.later)?, self.threshold)?;
        println!("{}", found.table);
        for change in &found.changes {
            println!("{change}");
        }
        for regression in &found.regressions {
            println!("worse: {regression}");
        }
        Ok(if found.regressions.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED_CHECK) })
    }
}
