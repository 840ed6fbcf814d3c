//! The command `forebay-xray`: loads and benchmarks.

mod args;
mod run_command;
mod scenario_command;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use forebay_xray::load::{self, Report, Spec};
use forebay_xray::report::{BenchReport, Details};
use forebay_xray::{ats, bench, vdi};

use args::{Cli, Command};

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::NbdLoad(args) => run_load(&args.spec(), args.json()),
        Command::IscsiLoad(args) => run_load(&args.spec(), args.json()),
        Command::NvmeLoad(args) => run_load(&args.spec(), args.json()),
        Command::Bench(args) => bench(args, "bench", bench::run),
        Command::Vdi(args) => vdi(&args),
        Command::Ats(args) => bench(args, "ats", ats::run),
        Command::Run(command) => command.run(),
        Command::Compare(command) => command.run(),
        Command::Scenario(command) => command.run().map(|()| ExitCode::SUCCESS),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("forebay-xray: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_load(spec: &Spec, json: bool) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let report = &load::run(spec)?;
    if json {
        println!("{}", serde_json::to_string_pretty(report)?);
    } else {
        print(report);
    }
    let clean = report.counts.errors == 0 && report.counts.wrong == 0;
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(r: &Report) {
    let c = &r.counts;
    println!("{} reads, {} writes in {:.2} s", c.reads, c.writes, r.seconds);
    println!("{:.0} IOPS, {:.1} MiB/s", r.iops, r.mib_s);
    let l = r.latency;
    println!(
        "latency in us: mean {:.1}, median {:.1}, 99 % {:.1}, 99.9 % {:.1}, longest {:.1}",
        l.mean_us, l.p50_us, l.p99_us, l.p999_us, l.max_us
    );
    if c.flushes > 0 {
        let l = r.flush_latency;
        println!("{} flushes, in ms: median {:.2}, longest {:.2}", c.flushes, l.p50_us / 1e3, l.max_us / 1e3);
    }
    if c.conflicts > 0 {
        println!("{} requests met a reservation", c.conflicts);
    }
    if let Some(code) = c.first_error {
        println!("{} ERRORS, first: {code} ({code:#08x})", c.errors);
    }
    if c.verified > 0 {
        println!("{} requests verified, {} MISMATCHES", c.verified, c.wrong);
    }
    if let Some(offset) = r.first_mismatch {
        println!("first mismatch at offset {offset}");
    }
}

/// Returns the server binary that the command line names, or the binary built together with this program.
fn server(named: Option<&PathBuf>) -> Result<PathBuf, Box<dyn std::error::Error>> {
    let binary = match named {
        Some(binary) => binary.clone(),
        None => std::env::current_exe()?.with_file_name("forebay"),
    };
    if !binary.exists() {
        return Err(format!("{} does not exist: run cargo build --release first", binary.display()).into());
    }
    Ok(binary)
}

/// Runs a benchmark that consists of parts, and publishes its report.
fn bench<P: ValueEnum + Send + Sync, D: Details>(
    args: args::Bench<P>,
    name: &str,
    run: fn(&bench::Options<P>) -> forebay_xray::Result<BenchReport<D>>,
) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let no_server = args.forebay.as_ref().is_some_and(|binary| binary.as_os_str() == "none");
    let forebay = if no_server { None } else { Some(server(args.forebay.as_ref())?) };
    let parent = args.dir.unwrap_or_else(|| Path::new("target").join(name));
    let options = bench::Options { forebay, parent, quick: args.quick, only: args.only };
    publish(&run(&options)?, &options.parent, name)
}

fn vdi(args: &args::Vdi) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let options = args.options(server(args.forebay.as_ref())?);
    publish(&vdi::run(&options)?, &args.dir, "vdi")
}

fn publish<D: Details>(
    report: &BenchReport<D>,
    dir: &Path,
    name: &str,
) -> Result<ExitCode, Box<dyn std::error::Error>> {
    report.publish(dir, name)?;
    Ok(if report.details.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
