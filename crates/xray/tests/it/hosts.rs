//! Scenarios of several hosts, against real servers: pairs of servers on one Ceph cluster, and initiators
//! that share a volume.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::runs::{SCENARIO, Test, installed, text};

/// A scenario on a pair, in which each event of nodes happens once.
fn every_event_of_nodes() -> String {
    let mut scenario = SCENARIO.replace("1MiB", "16MiB").replace("1500ms", "20s");
    for (action, at) in
        [("node_kill", "1s"), ("node_start", "2s"), ("handover", "3s"), ("rolling_upgrade", "4s")]
    {
        scenario += &format!("[[event]]\nphase = \"run\"\nat = \"{at}\"\ndo = \"{action}\"\n");
    }
    scenario += "[[check]]\nis = \"back\"\nphase = \"run\"\nwithin = \"60s\"\n";
    scenario + "[[check]]\nis = \"events\"\nphase = \"run\"\n"
}

fn server() -> Option<PathBuf> {
    let server = crate::vdi::server();
    if server.is_none() {
        eprintln!("skipped: the server is not built (cargo build -p forebay-server)");
    }
    server
}

fn ceph_script() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/ceph/cluster.sh");
    root.to_string_lossy().into_owned()
}

#[test]
fn a_pair_serves_through_failure_handover_and_upgrade() {
    let Some(binary) = server().filter(|_| installed("ceph-osd") && installed("ceph-mon")) else { return };
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: two nodes on one host need root");
        return;
    }
    let t = Test::new();
    let binary = binary.to_string_lossy().into_owned();
    let script = ceph_script();
    let args = ["--target", "forebay-rados-2", "--quiet", "--forebay", &binary, "--ceph-script", &script];
    let done = t.run(&every_event_of_nodes(), &args);
    let out = text(&done.stdout);
    assert!(done.status.success() && out.contains("pass  events succeed"), "{out}{}", text(&done.stderr));
    let phase = &t.report().targets[0].phases[0];
    assert_eq!(phase.events.len(), 4, "{out}");
    // As on another host, the standby does not know that the process has ended: it observes its heartbeat.
    let takeover = phase.events[0].end_s - phase.events[0].start_s;
    assert!(takeover > 2.0, "{takeover}");
    assert!(phase.loads[0].reconnects >= 6, "two disks change nodes three times: {out}");
    assert!(phase.loads[0].verified > 300 && phase.server_cpu_s.is_some() && phase.store.is_none());
    t.assert_clean();
}

/// A scenario that needs a second node is not run on one server.
#[test]
fn events_of_nodes_need_a_pair() {
    if !installed("nbdkit") {
        return;
    }
    let t = Test::new();
    let done = t.run(&every_event_of_nodes(), &["--target", "nbdkit", "--quiet"]);
    assert!(text(&done.stdout).contains("not run: node_kill is not supported by this target"));
}

/// Reservations of another host delay requests and fail none; COMPARE AND WRITE does not even delay them.
fn shared(scenario: &str, target: &str, args: &[&str], reserved: &[bool]) {
    let t = Test::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-xray"));
    command.args(["run", scenario, "--quiet", "--target", target, "--dir"]).arg(t.path("run"));
    command.args(["--scale-size", "0.01", "--scale-rate", "0.1", "--scale-time", "0.003"]).args(args);
    let done = command.env("TMPDIR", t.dir.path()).output().expect("runs");
    let out = text(&done.stdout);
    // On a busy machine a check of rates or latencies may fail.
    assert!(matches!(done.status.code(), Some(0 | 3)), "{out}{}", text(&done.stderr));
    let phases = &t.report().targets[0].phases;
    assert_eq!(phases.len(), reserved.len(), "{out}");
    for (phase, is_reserved) in phases.iter().zip(reserved) {
        let (load, event) = (&phase.loads[0], &phase.events[0]);
        assert_eq!((load.errors, load.wrong, event.error.as_deref()), (0, 0, None), "{out}");
        assert_eq!(load.conflicts > 0, *is_reserved, "{out}");
        let updates = event.figures.as_deref().and_then(|f| f.split(' ').next()?.parse::<u64>().ok());
        assert!(updates.is_some_and(|n| n > 10) && load.reads > 100, "{out}");
    }
    t.assert_clean();
}

#[test]
fn forebay_serves_two_hosts_on_one_volume() {
    if let Some(binary) = server() {
        let args = ["--forebay", &binary.to_string_lossy()];
        shared("shared-volume", "forebay-iscsi", &args, &[false, true]);
    }
}

#[test]
fn tgtd_serves_two_hosts_on_one_volume() {
    if installed("tgtd") {
        shared("shared-volume-reserve", "tgtd", &[], &[true]);
    }
}
