//! Maintenance commands of this repository, run as `cargo run -p xtask -- NAME`; [`USAGE`] lists them.

mod circles;
mod corpora;
mod limited;
mod runner;
mod rust;
mod sbom;
mod tidy;

use std::path::Path;
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: cargo run -p xtask -- COMMAND
  tidy               check the style of all files
  tidy --all-words   the same; also print words that are only limited in number
  test [FILTER]      run all Rust tests, several binaries at once; print how to run each failed test alone
  test-all           run these, concurrently with the tests with clients and a browser
  sbom               print the bill of materials of the server, in the format CycloneDX
  corpora            write the generated samples of the fuzz corpora again
  circles [FOLDER]   print circles of source files below FOLDER (default: crates/engine/src)";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["tidy"] => run_tidy(false),
        ["tidy", "--all-words"] => run_tidy(true),
        ["test"] => runner::run(&[]),
        ["test-all"] => runner::run_all(),
        ["test", filter] => runner::run(&[filter]),
        ["sbom"] => sbom::print(),
        ["corpora"] => corpora::write(),
        ["circles"] => run_circles("crates/engine/src"),
        ["circles", folder] => run_circles(folder),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// The root of the repository.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The cargo that runs this program, without the variables that name the package of this program: the build
/// script of a dependency runs again when they change, and the server is compiled again.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command.current_dir(root());
    command
}

/// A relative folder is resolved in the current directory, so that other checkouts can be inspected.
fn run_circles(folder: &str) -> ExitCode {
    match circles::print(Path::new(""), folder) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("circles: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run_tidy(all_words: bool) -> ExitCode {
    match tidy::check(root(), all_words) {
        Ok(report) => {
            for file in &report.long_files {
                println!("long, consider a split: {file}");
            }
            for finding in &report.findings {
                eprintln!("{finding}");
            }
            let odd = report.odd_words;
            println!(
                "{:.1} odd words per 1,000 comment lines ({} in {})",
                odd.per_thousand(),
                odd.words,
                odd.lines
            );
            println!("tidy: {} files, {} findings", report.files, report.findings.len());
            if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(e) => {
            eprintln!("tidy: {e}");
            ExitCode::FAILURE
        }
    }
}
