//! Chores of this repository, run as `cargo run -p xtask -- NAME`. The one so far is `tidy`: style as a test.

mod tidy;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        (Some("tidy"), None) => run_tidy(),
        _ => {
            eprintln!("usage: cargo run -p xtask -- tidy");
            ExitCode::from(2)
        }
    }
}

/// The repository, seen from this crate.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn run_tidy() -> ExitCode {
    match tidy::check(root()) {
        Ok(report) => {
            for file in &report.long_files {
                println!("long, consider a split: {file}");
            }
            for finding in &report.findings {
                eprintln!("{finding}");
            }
            println!("tidy: {} files, {} findings", report.files, report.findings.len());
            if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(e) => {
            eprintln!("tidy: {e}");
            ExitCode::FAILURE
        }
    }
}
