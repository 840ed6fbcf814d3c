//! `forebay-xray run`, as a user starts it: against a small server with faults, files, and real servers.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use forebay_xray::run::record::{LoadRecord, RunRecord, State};

use crate::server::{Fault, PAUSE, Server};

/// Two disks of 1 MiB with a mix, one of 2 MiB that is only read; some checks.
pub(crate) const SCENARIO: &str = r#"format = 1
name = "small"
title = "Small"
about = "A test."
[[disk]]
name = "data"
count = 2
size = "1MiB"
prefill = true
[[load]]
name = "mix"
disk = "data"
random_percent = 100
read_percent = 50
blocks = { "4KiB" = 3, "16KiB" = 1 }
rate = 150
depth = 8
flush = "500ms"
compressible_percent = 30
duplicate_percent = 20
[[phase]]
name = "run"
loads = ["mix"]
duration = "1500ms"
[[check]]
is = "errors"
[[check]]
is = "verified"
[[check]]
is = "latency"
percentile = 75
below = "10s"
"#;

/// A directory for a run.
pub(crate) struct Test {
    pub dir: tempfile::TempDir,
}

impl Test {
    pub fn new() -> Test {
        Test { dir: tempfile::tempdir().expect("a directory") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The command that runs a scenario with these targets and options.
    pub fn command(&self, scenario: &str, args: &[&str]) -> Command {
        let file = self.path("scenario.toml");
        std::fs::write(&file, scenario).expect("writes");
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-xray"));
        command.arg("run").arg(file).arg("--dir").arg(self.path("run")).args(args);
        command.env("TMPDIR", self.dir.path());
        command
    }

    pub fn run(&self, scenario: &str, args: &[&str]) -> Output {
        self.command(scenario, args).output().expect("runs")
    }

    pub fn report(&self) -> RunRecord {
        let bytes = std::fs::read(self.path("run/report.json")).expect("a report");
        serde_json::from_slice(&bytes).expect("is a report")
    }

    pub fn load(&self) -> LoadRecord {
        self.report().targets[0].phases[0].loads[0].clone()
    }

    /// Nothing is left: no directory for servers, no unfinished file, and no process that uses the directory.
    pub fn assert_clean(&self) {
        let mut entries: Vec<String> = Vec::new();
        for dir in [self.dir.path().to_owned(), self.path("run")] {
            let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.extend(names.map(|e| e.file_name().to_string_lossy().into_owned()));
        }
        let stray = |n: &String| n.contains("forebay-bench") || n.ends_with(".new");
        assert!(!entries.iter().any(stray), "{entries:?}");
        let here = self.dir.path().to_string_lossy().into_owned();
        for process in std::fs::read_dir("/proc").expect("is readable").flatten() {
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&line).contains(&here), "{}", String::from_utf8_lossy(&line));
        }
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        eprintln!("skipped: {program} is not installed");
    }
    found.is_ok()
}

#[test]
fn a_run_has_a_page_that_loads_nothing_and_figures_that_add_up() {
    let (t, server) = (Test::new(), Server::start(Fault::None));
    let done = t.run(SCENARIO, &["--target", &server.uri(), "--overwrite", "--quiet"]);
    assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
    assert!(done.stderr.is_empty(), "{}", text(&done.stderr));
    let load = t.load();
    let counted: u64 = load.series.iter().map(|p| p.ops).sum();
    assert!(load.reads > 100 && load.writes > 100 && load.verified > 300, "{load:?}");
    // Requests that were due at the end are answered in a later interval.
    assert!(load.reads + load.writes >= counted, "{counted} {load:?}");
    assert_eq!((load.errors, load.wrong, load.unsent), (0, 0, 0));
    let page = std::fs::read_to_string(t.path("run/report.html")).expect("a page");
    for loaded in ["http:", "https:", "src=", "@import", "url("] {
        assert!(!page.contains(loaded), "{loaded}");
    }
    assert!(
        page.contains("prefers-color-scheme")
            && page.contains("@media print")
            && page.contains("class=\"band\"")
    );
    let csv = std::fs::read_to_string(t.path("run/report.csv")).expect("a table");
    assert_eq!(csv.lines().count(), 1 + load.series.len());
    t.assert_clean();
}

#[test]
fn latency_begins_when_a_request_is_due_also_while_the_target_pauses() {
    let (t, server) = (Test::new(), Server::start(Fault::Pauses));
    // The first connection tests the target, the second one is the load's.
    let scenario = SCENARIO
        .replace("prefill = true", "")
        .replace("count = 2", "count = 1")
        .replace("1500ms", "4s")
        .replace("rate = 150", "rate = 200");
    let done = t.run(&scenario, &["--target", &server.uri(), "--overwrite", "--quiet"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let load = t.load();
    let seconds = PAUSE.as_secs_f64();
    assert!(load.latency.max >= seconds * 900.0, "{:?}", load.latency);
    // A quarter of all requests arrive during the pause and wait for half of it on average. Only eight can
    // be in flight: a generator that measures from sending would see one request of a hundred that is late.
    let (_, p75) = load.percentiles[0];
    let late = load.latency.p95;
    assert!(late > seconds * 600.0 && p75 < late, "p75 {p75}, p95 {late}");
    assert!((load.iops - 200.0).abs() < 40.0, "all requests are made: {}", load.iops);
    // One that is due at the last moment may find no room.
    assert!(load.unsent <= 2, "{}", load.unsent);
}

#[test]
fn an_unreachable_target_is_one_clear_line() {
    let t = Test::new();
    let done =
        t.run(SCENARIO, &["--target", "nbd+unix:///x?socket=/nonexistent/s", "--overwrite", "--quiet"]);
    assert_eq!(done.status.code(), Some(1));
    let out = text(&done.stdout);
    assert!(out.contains("cannot use nbd+unix:///x?socket=/nonexistent/s: the connection failed"), "{out}");
    assert!(matches!(&t.report().targets[0].state, State::Failed(_)));
    t.assert_clean();
}

#[test]
fn a_target_that_lies_is_found() {
    for fault in [Fault::Lies, Fault::LosesWrites] {
        let (t, server) = (Test::new(), Server::start(fault));
        // A lost write is not found if it is overwritten before it is read, so there must be many.
        let scenario = SCENARIO.replace("rate = 150", "rate = 1000");
        let done = t.run(&scenario, &["--target", &server.uri(), "--overwrite", "--quiet"]);
        let out = text(&done.stdout);
        assert_eq!(done.status.code(), Some(3), "{out}");
        assert!(out.contains("FAIL  data verified") && out.contains("offset"), "{out}");
        assert!(t.load().wrong > 0);
    }
}

#[test]
fn errors_of_a_target_fail_the_check() {
    let (t, server) = (Test::new(), Server::start(Fault::Fails));
    let scenario = SCENARIO.replace("prefill = true", "");
    let done = t.run(&scenario, &["--target", &server.uri(), "--overwrite", "--quiet"]);
    let out = text(&done.stdout);
    assert_eq!(done.status.code(), Some(3), "{out}");
    assert!(out.contains("FAIL  no request failed") && out.contains("error 5"), "{out}");
}

#[test]
fn a_full_disk_is_a_clear_line_and_what_was_measured_is_kept() {
    let (t, server) = (Test::new(), Server::start(Fault::Full));
    let scenario = SCENARIO.replace("1MiB", "2MiB");
    let done = t.run(&scenario, &["--target", &server.uri(), "--overwrite", "--quiet"]);
    let out = text(&done.stdout);
    assert_eq!(done.status.code(), Some(1), "{out}");
    assert!(out.contains("cannot fill data-1") && out.contains("no space left"), "{out}");
    let scenario = scenario.replace("prefill = true", "");
    let t = Test::new();
    let done = t.run(&scenario, &["--target", &server.uri(), "--overwrite", "--quiet"]);
    let out = text(&done.stdout);
    assert!(out.contains("FAIL  no request failed") && out.contains("no space left"), "{out}");
    assert!(t.load().reads > 100);
}

#[test]
fn a_lost_connection_ends_the_run_with_partial_results() {
    let (t, server) = (Test::new(), Server::start(Fault::HangsUp));
    let scenario = SCENARIO.replace("prefill = true", "");
    let done = t.run(&scenario, &["--target", &server.uri(), "--overwrite", "--quiet"]);
    let out = text(&done.stdout);
    assert_eq!(done.status.code(), Some(1), "{out}");
    assert!(out.contains("failed, partial results: load 'mix' on data-"), "{out}");
    let report = t.report();
    assert!(!report.complete && report.targets[0].phases[0].loads[0].reads > 0);
    let page = std::fs::read_to_string(t.path("run/report.html")).expect("a page");
    assert!(page.contains("Partial results"));
    t.assert_clean();
}

#[test]
fn a_mistake_in_a_scenario_is_one_line_and_starts_nothing() {
    let t = Test::new();
    let done = t.run(&SCENARIO.replace("rate = 150", "rates = 150"), &["--quiet"]);
    let error = text(&done.stderr);
    assert_eq!((done.status.code(), error.lines().count()), (Some(1), 1), "{error}");
    assert!(error.contains("line 16: unknown field `rates`: did you mean 'rate'?"), "{error}");
    let done = t.run(SCENARIO, &["--target", "qemu", "--quiet"]);
    assert!(text(&done.stderr).contains("unknown target \"qemu\""), "{}", text(&done.stderr));
    assert!(!t.path("run").exists());
}

#[test]
fn a_file_with_data_is_only_overwritten_with_permission() {
    let t = Test::new();
    let path = t.path("disk");
    drop(std::fs::File::create_new(&path).expect("creates"));
    let file = std::fs::File::options().read(true).write(true).open(&path).expect("opens");
    file.set_len(4 << 20).expect("sets the length");
    let uri = format!("file:{}", path.display());
    file.write_all_at(b"precious", 3 << 20).expect("writes");
    let done = t.run(SCENARIO, &["--target", &uri, "--quiet"]);
    assert!(text(&done.stdout).contains("give --overwrite to lose it"), "{}", text(&done.stdout));
    let mut kept = [0; 8];
    file.read_exact_at(&mut kept, 3 << 20).expect("reads");
    assert_eq!(&kept, b"precious");
    let again = Test::new();
    let done = again.run(SCENARIO, &["--target", &uri, "--overwrite", "--quiet"]);
    assert!(done.status.success(), "{}", text(&done.stdout));
    assert!(again.load().verified > 300);
    let small = Test::new();
    let done = small.run(&SCENARIO.replace("1MiB", "8MiB"), &["--target", &uri, "--overwrite", "--quiet"]);
    assert!(text(&done.stdout).contains("use a smaller --scale-size"), "{}", text(&done.stdout));
}

#[test]
fn what_a_target_does_not_support_is_not_run() {
    if !installed("nbdkit") {
        return;
    }
    let t = Test::new();
    let event = "[[event]]\nphase = \"run\"\nat = \"500ms\"\ndo = \"snapshot\"\ndisk = \"data\"\n";
    let done = t.run(&format!("{SCENARIO}{event}"), &["--target", "nbdkit", "--quiet"]);
    let out = text(&done.stdout);
    assert!(out.contains("not run: snapshot is not supported by this target"), "{out}");
    assert!(t.report().targets[0].verdicts.iter().all(|v| v.pass.is_none()), "{out}");
    t.assert_clean();
}

#[test]
fn clones_of_qemu_nbd_survive_a_restart() {
    if !installed("qemu-nbd") {
        return;
    }
    let t = Test::new();
    let clones = "[[disk]]\nname = \"desktop\"\ncount = 4\nclone_of = \"data\"\n";
    let restart = "[[event]]\nphase = \"run\"\nat = \"300ms\"\ndo = \"restart\"\n";
    let check = "[[check]]\nis = \"events\"\nphase = \"run\"\n";
    let scenario =
        SCENARIO.replace("count = 2", "count = 1").replace("disk = \"data\"", "disk = \"desktop\"");
    let done = t.run(&format!("{scenario}{clones}{restart}{check}"), &["--target", "qemu-nbd", "--quiet"]);
    let out = text(&done.stdout);
    assert!(done.status.success() && out.contains("pass  events succeed"), "{out}");
    assert!(t.load().reconnects >= 4 && t.load().verified > 100, "{out}");
    t.assert_clean();
}

#[test]
fn a_disk_is_filled_during_a_phase() {
    if !installed("nbdkit") {
        return;
    }
    let t = Test::new();
    let filler = "[[disk]]\nname = \"filler\"\nsize = \"8MiB\"\n";
    let event = "[[event]]\nphase = \"run\"\nat = \"200ms\"\ndo = \"fill\"\ndisk = \"filler\"\n";
    let check = "[[check]]\nis = \"events\"\nphase = \"run\"\n";
    let done = t.run(&format!("{SCENARIO}{filler}{event}{check}"), &["--target", "nbdkit", "--quiet"]);
    let out = text(&done.stdout);
    assert!(done.status.success() && out.contains("pass  events succeed"), "{out}");
    let event = &t.report().targets[0].phases[0].events[0];
    assert!(event.end_s > event.start_s, "{event:?}");
}

/// A scenario that lasts longer than any test waits, but for an interruption.
fn long() -> String {
    SCENARIO.replace("1500ms", "120s")
}

#[test]
fn an_interrupted_run_keeps_what_is_done_and_can_be_continued() {
    if !installed("qemu-nbd") {
        return;
    }
    let (t, server) = (Test::new(), Server::start(Fault::None));
    let uri = server.uri();
    let args = ["--target", &uri, "--target", "qemu-nbd", "--overwrite"];
    // The first target runs to its end; the second one is interrupted while its load runs.
    let mut child =
        t.command(SCENARIO, &args).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("runs");
    let mut lines = BufReader::new(child.stderr.take().expect("is piped")).lines();
    let writing = lines.find(|l| l.as_ref().is_ok_and(|l| l.contains("qemu-nbd: writing data-1")));
    assert!(writing.is_some(), "the second target begins");
    interrupt(child.id());
    let done = child.wait_with_output().expect("ends");
    assert_eq!(done.status.code(), Some(1), "{}", text(&done.stdout));
    let report = t.report();
    assert_eq!((report.complete, &report.targets[0].state), (false, &State::Complete));
    assert_eq!(report.targets[1].state, State::Interrupted);
    assert!(text(&done.stdout).contains("--resume"));
    t.assert_clean();

    let before = std::fs::metadata(t.path("run/part-0.json")).and_then(|m| m.modified()).expect("a part");
    let mut again = Command::new(env!("CARGO_BIN_EXE_forebay-xray"));
    again.arg("run").arg("--resume").arg(t.path("run")).args(["--overwrite", "--quiet"]);
    let done = again.env("TMPDIR", t.dir.path()).output().expect("runs");
    assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
    assert!(t.report().complete);
    let after = std::fs::metadata(t.path("run/part-0.json")).and_then(|m| m.modified()).expect("a part");
    assert_eq!(before, after, "what is complete is not run again");
    t.assert_clean();
}

#[test]
fn ctrl_c_during_a_load_ends_at_once_with_partial_results() {
    let (t, server) = (Test::new(), Server::start(Fault::None));
    let args = ["--target", &server.uri(), "--overwrite"];
    let mut child =
        t.command(&long(), &args).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("runs");
    let mut lines = BufReader::new(child.stderr.take().expect("is piped")).lines();
    assert!(
        lines.any(|l| l.is_ok_and(|l| l.contains("run: ") && l.contains("left in all"))),
        "the load begins"
    );
    let begun = Instant::now();
    interrupt(child.id());
    let done = child.wait_with_output().expect("ends");
    assert!(begun.elapsed() < Duration::from_secs(30));
    let out = text(&done.stdout);
    assert!(done.status.code() == Some(1) && out.contains("interrupted, partial results"), "{out}");
    let report = t.report();
    let load = &report.targets[0].phases[0].loads[0];
    assert!(load.reads > 100 && !report.targets[0].phases[0].complete);
    assert!(
        report.targets[0].verdicts.iter().all(|v| v.pass != Some(true)),
        "{:?}",
        report.targets[0].verdicts
    );
    t.assert_clean();
}

fn interrupt(pid: u32) {
    let done = Command::new("kill").args(["-INT", &pid.to_string()]).status().expect("runs");
    assert!(done.success());
}

/// A server that is killed, paused and restarted under load: clients are served again, and data is right.
fn disturbed(target: &str, args: &[&str]) {
    let t = Test::new();
    let mut scenario = SCENARIO.replace("1MiB", "16MiB").replace("1500ms", "5s");
    for (action, at, length) in [("kill", "500ms", "for = \"300ms\""), ("pause", "2500ms", "for = \"300ms\"")]
    {
        scenario += &format!("[[event]]\nphase = \"run\"\nat = \"{at}\"\ndo = \"{action}\"\n{length}\n");
    }
    scenario += "[[event]]\nphase = \"run\"\nat = \"3500ms\"\ndo = \"restart\"\n";
    scenario += "[[check]]\nis = \"back\"\nphase = \"run\"\nwithin = \"30s\"\n";
    scenario += "[[check]]\nis = \"events\"\nphase = \"run\"\n";
    let done = t.run(&scenario, &[&["--target", target, "--quiet"], args].concat());
    let out = text(&done.stdout);
    assert!(done.status.success(), "{out}{}", text(&done.stderr));
    let phase = &t.report().targets[0].phases[0];
    assert_eq!(phase.events.len(), 3, "{out}");
    assert!(phase.loads[0].reconnects >= 4, "two disks, two ends of the server: {out}");
    assert!(phase.server_cpu_s.is_some() && !phase.samples.is_empty());
    t.assert_clean();
}

#[test]
fn qemu_nbd_survives_what_it_declares() {
    if installed("qemu-nbd") {
        disturbed("qemu-nbd", &[]);
    }
}

#[test]
fn nbdkit_survives_what_it_declares() {
    if installed("nbdkit") {
        disturbed("nbdkit", &[]);
    }
}

#[test]
fn forebay_survives_what_it_declares() {
    if let Some(binary) = crate::vdi::server() {
        let binary = binary.to_string_lossy().into_owned();
        disturbed("forebay", &["--forebay", &binary]);
        disturbed("forebay-iscsi", &["--forebay", &binary]);
        disturbed("forebay-nvme", &["--forebay", &binary]);
    } else {
        eprintln!("skipped: the server is not built (cargo build -p forebay-server)");
    }
}

/// The scenarios with each other kind of event, clones and scripts, very small.
#[test]
fn built_in_scenarios_run_on_forebay() {
    let Some(binary) = crate::vdi::server() else {
        eprintln!("skipped: the server is not built (cargo build -p forebay-server)");
        return;
    };
    for (name, scales) in [
        ("snapshot-impact-standard", ["0.001", "0.05", "0.00005"]),
        ("clone-impact", ["0.001", "0.05", "0.001"]),
        ("server-upgraded", ["0.001", "0.05", "0.002"]),
        ("boot-storm", ["0.01", "0.2", "0.01"]),
    ] {
        let t = Test::new();
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-xray"));
        command.args(["run", name, "--quiet", "--dir"]).arg(t.path("run")).arg("--forebay").arg(&binary);
        command.args(["--scale-size", scales[0], "--scale-rate", scales[1], "--scale-time", scales[2]]);
        let done = command.env("TMPDIR", t.dir.path()).output().expect("runs");
        let out = text(&done.stdout);
        // On a busy machine a check of rates or latencies may fail; data and events may not.
        assert!(matches!(done.status.code(), Some(0 | 3)), "{name}: {out}{}", text(&done.stderr));
        let report = t.report();
        assert!(report.complete && !report.changes.is_empty(), "{name}: {out}");
        let judged =
            |what: &str| report.targets[0].verdicts.iter().filter(|v| v.what.starts_with(what)).count();
        let passed = |what: &str| {
            let found = report.targets[0].verdicts.iter().filter(|v| v.what.starts_with(what));
            found.filter(|v| v.pass == Some(true)).count()
        };
        for what in ["no request failed", "data verified", "events succeed", "comes to its end"] {
            assert_eq!(passed(what), judged(what), "{name}, {what}: {out}");
        }
        t.assert_clean();
    }
}
