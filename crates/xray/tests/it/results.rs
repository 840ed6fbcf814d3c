//! The files of a run: compared with another one, and on a disk that is full.

use std::path::Path;
use std::process::Command;

use crate::runs::{SCENARIO, Test, text};
use crate::server::{Fault, Server};

#[test]
fn two_reports_are_compared() {
    let (t, server) = (Test::new(), Server::start(Fault::None));
    let done = t.run(SCENARIO, &["--target", &server.uri(), "--overwrite", "--quiet"]);
    assert!(done.status.success());
    let report = t.path("run/report.json");
    let compare = |later: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-xray"));
        command.arg("compare").arg(&report).arg(later).output().expect("runs")
    };
    let same = compare(&report);
    assert!(same.status.success() && text(&same.stdout).contains("+0.0 %"), "{}", text(&same.stdout));
    let mut slower = t.report();
    let load = &mut slower.targets[0].phases[0].loads[0];
    (load.iops, load.latency.p95) = (load.iops / 2.0, load.latency.p95 * 2.0);
    let path = t.path("slower.json");
    std::fs::write(&path, serde_json::to_vec(&slower).expect("is JSON")).expect("writes");
    let worse = compare(&path);
    let out = text(&worse.stdout);
    assert_eq!(worse.status.code(), Some(3), "{out}");
    assert!(out.contains("rate -50.0 %") && out.contains("p95 latency +100.0 %"), "{out}");
    slower.scale = forebay_xray::scenario::Scale::all(0.5);
    std::fs::write(&path, serde_json::to_vec(&slower).expect("is JSON")).expect("writes");
    assert!(text(&compare(&path).stderr).contains("scaled differently"));
}

/// The directory of the run is on a file system without space, in a mount namespace, which needs root.
#[test]
fn a_full_disk_below_the_results_is_one_clear_line() {
    let (t, server) = (Test::new(), Server::start(Fault::None));
    let run = t.command(SCENARIO, &["--target", &server.uri(), "--overwrite", "--quiet"]);
    let mount = format!("mount -t tmpfs -o size=8k none '{}'; exec \"$@\"", t.path("small").display());
    std::fs::create_dir(t.path("small")).expect("creates");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", &mount, "sh"]).arg(run.get_program());
    command.args(
        run.get_args().map(|a| if a == t.path("run") { t.path("small/run").into() } else { a.to_owned() }),
    );
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: a mount namespace needs root");
        return;
    }
    let done = command.env("TMPDIR", t.dir.path()).output().expect("runs");
    let error = text(&done.stderr);
    assert_eq!((done.status.code(), error.lines().count()), (Some(1), 1), "{error}");
    assert!(error.contains("cannot write") && error.contains("No space left on device"), "{error}");
    t.assert_clean();
}
