//! The command `forebay-xray`: loads and benchmarks.

mod args;
mod run_command;
mod scenario_command;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use forebay_xray::ats;
use forebay_xray::bench::{self, Options};
use forebay_xray::load::{self, Report};
use forebay_xray::vdi;

use args::{Cli, Command, IscsiLoad, NbdLoad};

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::NbdLoad(args) => nbd_load(&args),
        Command::IscsiLoad(args) => iscsi_load(&args),
        Command::Bench(args) => bench(&args),
        Command::Vdi(args) => vdi(&args),
        Command::Ats(args) => ats(&args),
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

fn nbd_load(args: &NbdLoad) -> Result<ExitCode, Box<dyn std::error::Error>> {
    show(&load::run(&args.spec())?, args.json)
}

fn iscsi_load(args: &IscsiLoad) -> Result<ExitCode, Box<dyn std::error::Error>> {
    show(&args.load()?.run()?.report, args.json)
}

fn show(report: &Report, json: bool) -> Result<ExitCode, Box<dyn std::error::Error>> {
    if json {
        println!("{}", serde_json::to_string_pretty(report)?);
    } else {
        print(report);
    }
    let clean = report.errors == 0 && report.mismatches == 0;
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(r: &Report) {
    println!("{} reads, {} writes in {:.2} s", r.reads, r.writes, r.seconds);
    println!("{:.0} IOPS, {:.1} MiB/s", r.iops, r.mib_s);
    let l = r.latency;
    println!(
        "latency in us: mean {:.1}, median {:.1}, 99 % {:.1}, 99.9 % {:.1}, longest {:.1}",
        l.mean_us, l.p50_us, l.p99_us, l.p999_us, l.max_us
    );
    if r.flushes > 0 {
        let l = r.flush_latency;
        println!("{} flushes, in ms: median {:.2}, longest {:.2}", r.flushes, l.p50_us / 1e3, l.max_us / 1e3);
    }
    if let Some(code) = r.first_error {
        println!("{} ERRORS, first: {code}", r.errors);
    }
    if r.verified > 0 {
        println!("{} requests verified, {} MISMATCHES", r.verified, r.mismatches);
    }
    if let Some(offset) = r.first_mismatch {
        println!("first mismatch at offset {offset}");
    }
}

/// The server binary given on the command line, or the one built together with this program.
fn server(named: Option<&PathBuf>) -> Result<PathBuf, Box<dyn std::error::Error>> {
    let binary = match named {
        Some(binary) => binary.clone(),
        None => std::env::current_exe()?.with_file_name("forebay"),
    };
    if binary.as_os_str() != "none" && !binary.exists() {
        return Err(format!("{} does not exist: run cargo build --release first", binary.display()).into());
    }
    Ok(binary)
}

fn bench(args: &args::Bench) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let binary = server(args.forebay.as_ref())?;
    let forebay = (binary.as_os_str() != "none").then_some(binary);
    let report = bench::run(&Options {
        forebay,
        parent: args.dir.clone(),
        quick: args.quick,
        only: args.only.clone(),
    })?;
    println!("{}", report.machine.line());
    println!("{}", report.peers.join("; "));
    println!("{}", report.table());
    for note in &report.notes {
        println!("{note}");
    }
    println!("{}", report.trust());
    let file = args.dir.join("bench.json");
    std::fs::write(&file, serde_json::to_string_pretty(&report)?)?;
    println!("{:.0} s; all rounds: {}", report.seconds, file.display());
    Ok(ExitCode::SUCCESS)
}

fn vdi(args: &args::Vdi) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let report = vdi::run(&args.options(server(args.forebay.as_ref())?))?;
    println!("{}", report.machine.line());
    println!("{}", report.guest_table());
    println!("{}", report.store_table());
    println!("{}", report.table());
    println!("{}", report.notes().join("\n"));
    let file = args.dir.join("vdi.json");
    std::fs::write(&file, serde_json::to_string_pretty(&report)?)?;
    println!("{:.0} s; all counters: {}", report.seconds, file.display());
    Ok(if report.wrong_blocks() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn ats(args: &args::Ats) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let report = ats::run(&ats::Options {
        forebay: server(args.forebay.as_ref())?,
        parent: args.dir.clone(),
        quick: args.quick,
        only: args.only.clone(),
    })?;
    println!("{}", report.machine.line());
    println!("{}", report.peers.join("; "));
    let (file, plot) = (args.dir.join("ats.json"), args.dir.join("ats.svg"));
    if !report.scenes.is_empty() {
        println!("{}", report.scene_table());
        std::fs::write(&plot, ats::svg(&report.scenes))?;
        println!("plot: {}", plot.display());
    }
    println!("{}", report.table());
    println!("{}", report.trust());
    std::fs::write(&file, serde_json::to_string_pretty(&report)?)?;
    println!("{:.0} s; all rounds: {}", report.seconds, file.display());
    Ok(ExitCode::SUCCESS)
}
