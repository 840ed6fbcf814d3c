//! Runs all Rust tests, as many test binaries at once as there are processors; and all tests, with the
//! clients concurrently: clients wait most of the time, and Rust tests compute.
//!
//! `cargo test` runs one binary after the other, and most end with one long test while the other processors
//! idle. The output of a binary is printed only if it fails, with the command that runs each failed test
//! alone. A binary that does not end is killed after [`LIMIT`], and the tests that hang are named: otherwise
//! CI would end after its own limit, without any output.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::limited::{self, Ended};

/// Time limit of a test binary: several times that of the longest on a slow machine.
const LIMIT: Duration = Duration::from_secs(1200);
/// Rust tests in the list of the slowest.
const SLOWEST: usize = 10;
/// How much Rust tests stand back behind the tests with clients, which meet time limits of real peers.
const NICE: &str = "10";
/// Lines of each output of a killed binary that are printed.
const LAST_LINES: usize = 40;

/// Binaries that take longest, in the order in which they start: `package` and `target`.
const LONGEST: [(&str, &str); 8] = [
    ("forebay-sim", "it"),
    ("forebay-frontend", "sessions"),
    ("forebay-guest", "it"),
    ("forebay-sim", "hostile"),
    ("forebay-engine-tests", "it"),
    ("forebay-server", "it"),
    ("forebay-control", "it"),
    ("forebay-frontend", "it"),
];

/// A test binary.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Binary {
    package: String,
    target: String,
    /// The option of `cargo test` that selects it.
    selection: String,
    directory: PathBuf,
    executable: PathBuf,
}

/// Builds and runs the Rust tests whose names contain the filter.
pub fn run(filter: &[&str]) -> ExitCode {
    exit_code(try_run(filter))
}

/// Builds and runs all tests: Rust tests and then the browser, with the clients concurrently.
pub fn run_all() -> ExitCode {
    exit_code(try_run_all())
}

fn exit_code(passed: io::Result<bool>) -> ExitCode {
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("test: {e}");
            ExitCode::FAILURE
        }
    }
}

fn try_run(filter: &[&str]) -> io::Result<bool> {
    let Some(built) = build()? else { return Ok(false) };
    run_binaries(built.tests, filter, &[])
}

/// Tests with clients that allow no concurrent test wait for a lock, which is held until the Rust tests and
/// those in the browser have ended.
fn try_run_all() -> io::Result<bool> {
    let Some(Built { tests, server }) = build()? else { return Ok(false) };
    let server = server.ok_or_else(|| io::Error::other("cargo has not named the program of the server"))?;
    let path = server.with_file_name("forebay-tests.lock");
    let lock = File::create(&path)?;
    lock.lock()?;
    let python = std::env::var_os("PYTHON").unwrap_or_else(|| "/usr/bin/python3".into());
    let command = |script: &str| {
        let mut command = Command::new(&python);
        command.arg(script).current_dir(crate::root()).env("FOREBAY_BIN", &server).stdin(Stdio::null());
        command
    };
    let mut clients = command("tests/clients/run.py").env("FOREBAY_TEST_LOCK", &path).spawn()?;
    let rust = run_binaries(tests, &[], &["nice", "-n", NICE]);
    let browser = command("tests/browser/run.py").status();
    drop(lock);
    let clients = clients.wait()?;
    Ok(rust? & browser?.success() & clients.success())
}

/// Runs test binaries, each as an argument of `prefix` if it is not empty; reports whether all tests passed.
fn run_binaries(mut binaries: Vec<Binary>, filter: &[&str], prefix: &[&str]) -> io::Result<bool> {
    binaries.sort_by_key(|b| {
        let place = LONGEST.iter().position(|l| *l == (b.package.as_str(), b.target.as_str()));
        place.unwrap_or(LONGEST.len())
    });
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let pending = Mutex::new(VecDeque::from(binaries));
    let results = Mutex::new((0, Vec::new()));
    let work = || {
        loop {
            let Some(binary) = pending.lock().expect("no worker panics").pop_front() else { return };
            let (passed, mut times) = run_binary(&binary, filter, prefix);
            let mut results = results.lock().expect("no worker panics");
            results.0 += u32::from(!passed);
            results.1.append(&mut times);
        }
    };
    thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let documented =
        crate::cargo().args(["test", "--workspace", "--locked", "--doc", "-q"]).args(filter).status()?;
    let (failed, mut times) = results.into_inner().expect("no worker panics");
    times.sort_by(|a, b| b.0.total_cmp(&a.0));
    let slowest: Vec<_> =
        times.iter().take(SLOWEST).map(|(seconds, name)| format!("{name} {seconds:.1} s")).collect();
    println!("slowest Rust tests: {}", slowest.join(", "));
    if failed > 0 {
        eprintln!("{failed} test binaries failed; their output is above");
    }
    Ok(failed == 0 && documented.success())
}

/// What a build has made.
struct Built {
    tests: Vec<Binary>,
    /// The server, for the clients.
    server: Option<PathBuf>,
}

/// Builds all tests; `None` if they do not compile.
fn build() -> io::Result<Option<Built>> {
    let mut cargo = crate::cargo()
        .args(["test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"])
        .stdout(Stdio::piped())
        .spawn()?;
    let output = cargo.stdout.take().ok_or_else(|| io::Error::other("cargo has no output"))?;
    let mut built = Built { tests: Vec::new(), server: None };
    for line in BufReader::new(output).lines() {
        let line = line?;
        built.tests.extend(binary(&line));
        built.server = server(&line).or(built.server);
    }
    Ok(cargo.wait()?.success().then_some(built))
}

/// The path of the server, if a message of cargo is about its program.
fn server(message: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_server = message["target"]["name"] == "forebay" && message["profile"]["test"] == false;
    Some(PathBuf::from(message["executable"].as_str().filter(|_| is_server)?))
}

/// The test binary of a message of cargo, if it is about one.
fn binary(message: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let target = message["target"]["name"].as_str()?.to_owned();
    let selection = match message["target"]["kind"][0].as_str()? {
        "test" => format!("--test {target}"),
        "bin" => format!("--bin {target}"),
        _ => "--lib".to_owned(),
    };
    // `path+file:///…/crates/sim#forebay-sim@0.1.0`, or without the name if it is that of the folder.
    let id = message["package_id"].as_str()?;
    let after = id.rsplit_once('#')?.1;
    let package = match after.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => directory.file_name()?.to_string_lossy().into_owned(),
    };
    let executable = PathBuf::from(message["executable"].as_str()?);
    Some(Binary { package, target, selection, directory, executable })
}

/// Runs one binary; reports whether all its tests passed, and the seconds that each test took.
fn run_binary(binary: &Binary, filter: &[&str], prefix: &[&str]) -> (bool, Vec<(f64, String)>) {
    let start = Instant::now();
    let words = prefix.iter().map(OsStr::new).chain([binary.executable.as_os_str()]);
    let words: Vec<_> = words.chain(filter.iter().map(OsStr::new)).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(&binary.directory).env("CARGO_MANIFEST_DIR", &binary.directory);
    // The time of each test is an unstable option; the variable permits it with a stable compiler.
    command.args(["-Z", "unstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
    let mut times = Vec::new();
    let ended = limited::run(&mut command, LIMIT).map(|ended| {
        let (output, found) = without_times(&ended.output);
        times = found;
        Ended { output, ..ended }
    });
    let name = format!("{} {}", binary.package, binary.selection);
    let seconds = start.elapsed().as_secs_f64();
    let passed = match ended {
        Ok(Ended { status: Some(status), output, .. }) if status.success() => {
            let summary = output.lines().rev().find(|l| l.starts_with("test result: ")).unwrap_or_default();
            let summary =
                summary.trim_start_matches("test result: ").split("; 0 measured").next().unwrap_or_default();
            println!("{seconds:7.1} s  {name}: {summary}");
            true
        }
        Ok(Ended { status: Some(status), output, errors }) => {
            println!("{}", failure(binary, status, &output, &errors, seconds));
            false
        }
        Ok(Ended { status: None, output, errors }) => {
            println!("{}", hang(binary, &output, &errors, seconds));
            false
        }
        Err(e) => {
            println!("{name}: cannot be run: {e}");
            false
        }
    };
    (passed, times)
}

/// The output of a test binary without the times of its tests, and these times in seconds.
fn without_times(output: &str) -> (String, Vec<(f64, String)>) {
    let mut times = Vec::new();
    let mut cut = |line: &str| -> String {
        let parts = line.strip_suffix("s>").and_then(|line| line.rsplit_once(" <"));
        let Some((result, seconds)) = parts else { return format!("{line}\n") };
        if let (Some(name), Ok(seconds)) = (name(result), seconds.parse()) {
            times.push((seconds, name.to_owned()));
            return format!("{result}\n");
        }
        format!("{line}\n")
    };
    (output.lines().map(&mut cut).collect(), times)
}

/// The report of a binary that failed.
fn failure(binary: &Binary, status: ExitStatus, output: &str, errors: &str, seconds: f64) -> String {
    let Binary { package, selection, .. } = binary;
    let commands = failures(output).into_iter().map(|test| alone(binary, test)).collect::<String>();
    format!("{output}{errors}\n{seconds:7.1} s  {package} {selection}: FAILED ({status})\n{commands}")
}

/// The report of a binary that was killed at its limit.
fn hang(binary: &Binary, output: &str, errors: &str, seconds: f64) -> String {
    let Binary { package, selection, .. } = binary;
    let mut report = format!("{}{}", last_lines(output), last_lines(errors));
    report +=
        &format!("\n{seconds:7.1} s  {package} {selection}: FAILED (no end within the limit: killed)\n");
    let commands = |tests: Vec<&str>| tests.into_iter().map(|test| alone(binary, test)).collect::<String>();
    let running = running(output);
    match running.len() {
        0 => report += "  no test had run for a minute\n",
        n => report += &format!("  {n} tests were still running:\n{}", commands(running)),
    }
    let failed = failures(output);
    if !failed.is_empty() {
        report += &format!("  {} tests had failed:\n{}", failed.len(), commands(failed));
    }
    report
}

fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    let omitted = lines.len().saturating_sub(LAST_LINES);
    let mut last = lines[omitted..].iter().map(|line| format!("{line}\n")).collect::<String>();
    if omitted > 0 {
        last.insert_str(0, &format!("({omitted} lines omitted)\n"));
    }
    last
}

/// The names of the tests that had run for a minute and had not ended, in the output of a test binary.
fn running(output: &str) -> Vec<&str> {
    const SLOW: &str = " has been running for over 60 seconds";
    // If tests run one at a time, the line has the name twice.
    let slow = |line| str::strip_suffix(line, SLOW).and_then(|line| line.rsplit(' ').next());
    let result = |line: &'_ str| !line.ends_with(SLOW) && line.contains(" ... ");
    let ended: BTreeSet<_> = output.lines().filter(|line| result(line)).filter_map(name).collect();
    output.lines().filter_map(slow).filter(|name| !ended.contains(name)).collect()
}

/// The name of the test in a line with its result.
fn name(line: &str) -> Option<&str> {
    let name = line.split(" ... ").next()?.strip_prefix("test ")?;
    Some(name.trim_end_matches(" - should panic"))
}

/// The command that runs one test. With `--workspace`, since `-p` builds the dependencies with other
/// features.
fn alone(binary: &Binary, test: &str) -> String {
    let selection = &binary.selection;
    format!("    to run it alone: cargo test --workspace --locked {selection} -- --exact {test}\n")
}

/// The names of the failed tests in the output of a test binary.
fn failures(output: &str) -> Vec<&str> {
    output.lines().filter(|line| line.ends_with(" ... FAILED")).filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_binaries_are_taken_from_the_messages_of_cargo() {
        let message = r#"{"reason":"compiler-artifact","package_id":"path+file:///r/crates/sim#forebay-sim@0.1.0",
            "manifest_path":"/r/crates/sim/Cargo.toml","target":{"kind":["test"],"name":"it"},
            "profile":{"test":true},"executable":"/r/target/debug/deps/it-1"}"#;
        let found = binary(message).unwrap();
        assert_eq!((found.package.as_str(), found.selection.as_str()), ("forebay-sim", "--test it"));
        assert_eq!(found.directory, Path::new("/r/crates/sim"));
        let unnamed = message.replace("#forebay-sim@0.1.0", "#0.1.0");
        assert_eq!(binary(&unnamed).unwrap().package, "sim");
        assert_eq!(binary(&message.replace("true", "false")), None);
        assert_eq!(binary("not JSON"), None);
    }

    fn it() -> Binary {
        Binary {
            package: "p".into(),
            target: "it".into(),
            selection: "--test it".into(),
            directory: "/".into(),
            executable: "/x".into(),
        }
    }

    #[test]
    fn the_tests_that_hang_are_named() {
        let lines = [
            "running 5 tests",
            "test a::quick ... ok",
            "test b::hangs has been running for over 60 seconds",
            "test c::slow has been running for over 60 seconds",
            "test c::slow_too has been running for over 60 seconds",
            "test e::wrong ... FAILED",
            "test c::slow ... ok",
            // One thread.
            "test d::single ... test d::single has been running for over 60 seconds",
        ];
        let output = lines.join("\n");
        assert_eq!(running(&output), ["b::hangs", "c::slow_too", "d::single"]);
        let report = hang(&it(), &("early\n".repeat(100) + &output), "cause\n", 1200.0);
        assert!(report.contains("cause\n") && report.contains("p --test it: FAILED"), "{report}");
        assert!(report.contains("(68 lines omitted)\n"), "{report}");
        for test in ["b::hangs", "c::slow_too", "d::single", "e::wrong"] {
            assert!(report.contains(&format!("--test it -- --exact {test}\n")), "{report}");
        }
        assert!(hang(&it(), "", "", 1.0).contains("no test had run for a minute"));
    }

    /// With a test binary that is a shell.
    #[test]
    fn a_binary_that_does_not_end_fails() {
        let script = "echo 'test x has been running for over 60 seconds'; sleep 600";
        let ended = limited::run(Command::new("sh").args(["-c", script]), Duration::from_secs(1)).unwrap();
        assert!(ended.status.is_none());
        assert!(hang(&it(), &ended.output, &ended.errors, 1.0).contains("-- --exact x\n"));
    }

    #[test]
    fn times_are_taken_from_the_output() {
        let output = "test a::b ... ok <12.500s>\ntest c ... FAILED <0.001s>\nx <1s>\ntest d ... ignored\n";
        let (rest, times) = without_times(output);
        assert_eq!(times, [(12.5, "a::b".to_owned()), (0.001, "c".to_owned())]);
        assert_eq!(rest, "test a::b ... ok\ntest c ... FAILED\nx <1s>\ntest d ... ignored\n");
        assert_eq!(failures(&rest), ["c"]);
    }

    #[test]
    fn failed_tests_are_named_with_the_command_that_runs_them() {
        let output = "test a::b ... ok\ntest c::d ... FAILED\ntest e - should panic ... FAILED\n";
        assert_eq!(failures(output), ["c::d", "e"]);
        assert!(alone(&it(), "c::d").contains("cargo test --workspace --locked --test it -- --exact c::d"));
    }
}
