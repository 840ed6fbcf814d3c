//! Commands on many disks: numbered clones, lists, and the removal of several.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixListener;
use std::process::{Child, Stdio};
use std::ptr::{null, null_mut};

use serde_json::{Value, json};

use crate::process::PoolDir;

fn names(place: &PoolDir) -> Vec<String> {
    let list: Vec<Value> = serde_json::from_str(&place.ok(&["volume", "list", "--json"])).unwrap();
    list.iter().map(|d| d["name"].as_str().unwrap().to_owned()).collect()
}

fn fleet(count: &str) -> (PoolDir, crate::process::Server) {
    let place = PoolDir::new();
    let server = place.serve(&[]);
    place.ok(&["volume", "create", "v", "--size", "1M"]);
    place.ok(&["image", "create", "golden", "v"]);
    place.ok(&["volume", "clone", "golden", "pc", "--count", count]);
    (place, server)
}

#[test]
fn several_disks_are_removed_and_a_failure_stops_no_other() {
    let (place, _server) = fleet("5");
    let removed = place.ok(&["volume", "rm", "pc-001", "pc-002", "pc-001"]);
    assert_eq!(removed, "removed volume 'pc-001'\nremoved volume 'pc-002'\n");

    place.ok(&["snapshot", "create", "pc-003", "s"]);
    let out = place.run(&["volume", "rm", "pc-003", "none", "pc-004"]);
    assert_eq!((out.status.code(), &*out.stdout), (Some(1), &b"removed volume 'pc-004'\n"[..]));
    let errors = String::from_utf8(out.stderr).unwrap();
    let errors: Vec<_> = errors.lines().collect();
    assert!(errors[0].contains("pc-003") && errors[1].contains("none"), "{errors:?}");
    assert_eq!(errors[2..], ["forebay: 2 of 3 volumes were not removed"]);

    let out = place.run(&["volume", "rm", "--json", "none", "pc-005"]);
    assert_eq!(out.status.code(), Some(1));
    let list: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(list[1], json!({"name": "pc-005", "removed": true}));
    assert_eq!((&list[0]["removed"], &list[0]["error"]["code"]), (&json!(false), &json!("not_found")));
    assert_eq!(names(&place), ["pc-003", "v"]);

    place.ok(&["snapshot", "create", "pc-003", "t"]);
    assert_eq!(place.ok(&["snapshot", "rm", "pc-003", "s", "t"]).lines().count(), 2);
    place.ok(&["volume", "rm", "pc-003"]);
    place.ok(&["image", "create", "other", "v"]);
    assert_eq!(place.ok(&["image", "rm", "golden", "other"]).lines().count(), 2);
}

#[test]
fn a_pattern_for_several_disks_needs_confirmation() {
    let (place, _server) = fleet("4");
    let error = place.fails(&["volume", "rm", "pc-*"], 2);
    assert!(error.contains("'pc-*' would remove 4 volumes: repeat with --yes"), "{error}");
    let out = place.run(&["volume", "rm", "pc-001", "pc-*", "--json"]);
    let error: Value = serde_json::from_slice(&out.stderr).unwrap();
    assert_eq!((out.status.code(), &error["error"]["code"]), (Some(2), &json!("unconfirmed")));
    assert_eq!(names(&place).len(), 5, "nothing was removed");
    assert_eq!(place.ok(&["volume", "rm", "*-004"]), "removed volume 'pc-004'\n", "one needs none");
    assert!(place.fails(&["volume", "rm", "web-*"], 1).contains("no volume matches 'web-*'"));
    place.ok(&["volume", "rm", "pc-*", "--yes"]);
    assert_eq!(names(&place), ["v"]);

    for name in ["day-1", "day-2", "month"] {
        place.ok(&["snapshot", "create", "v", name]);
    }
    assert!(place.fails(&["snapshot", "rm", "v", "day-*"], 2).contains("2 snapshots"));
    assert_eq!(
        place.ok(&["snapshot", "rm", "v", "day-*", "--yes"]),
        "removed snapshot 'v@day-1'\nremoved snapshot 'v@day-2'\n"
    );

    // A name in use is no pattern.
    for name in ["v*", "vw"] {
        place.ok(&["volume", "create", name, "--size", "1M"]);
    }
    place.ok(&["volume", "rm", "v*"]);
    assert_eq!(names(&place), ["v", "vw"]);
}

#[test]
fn a_volume_is_removed_with_its_snapshots() {
    let (place, _server) = fleet("1");
    for name in ["s", "t"] {
        place.ok(&["snapshot", "create", "v", name]);
    }
    place.ok(&["snapshot", "create", "pc-001", "u"]);
    let listed = place.ok(&["snapshot", "list"]);
    let shown: Vec<_> = listed.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(shown, ["pc-001@u", "v@s", "v@t"]);

    place.ok(&["volume", "clone", "v@t", "copy"]);
    place.fails(&["volume", "rm", "v"], 1);
    let error = place.fails(&["volume", "rm", "v", "--snapshots"], 1);
    assert!(error.contains("'v@t' has 1 clone,"), "{error}");
    assert_eq!(place.ok(&["snapshot", "list", "v"]).lines().count(), 3, "nothing was removed");
    place.ok(&["volume", "rm", "copy"]);
    place.ok(&["target", "create", "iqn.2026-01.org.example:a"]);
    place.ok(&["lun", "map", "iqn.2026-01.org.example:a", "v@s"]);
    let error = place.fails(&["volume", "rm", "v", "--snapshots"], 1);
    assert!(error.contains("'v@s' is LUN 0 of target iqn.2026-01.org.example:a"), "{error}");
    place.ok(&["target", "rm", "iqn.2026-01.org.example:a"]);

    let removed = place.ok(&["volume", "rm", "v", "pc-001", "--snapshots"]);
    let expected = "removed volume 'v' and its snapshots\nremoved volume 'pc-001' and its snapshots\n";
    assert_eq!(removed, expected);
}

#[test]
fn mistakes_are_answered_with_the_nearest_name_and_a_code() {
    let (place, _server) = fleet("2");
    place.ok(&["snapshot", "create", "v", "monday"]);
    for (command, name, meant) in [
        (["volume", "show"], "pv-001", "pc-001"),
        (["volume", "reset"], "pc_002", "pc-002"),
        (["image", "show"], "godlen", "golden"),
        (["volume", "classes"], "v@munday", "v@monday"),
    ] {
        let error = place.fails(&[command[0], command[1], name], 1);
        assert!(error.trim_end().ends_with(&format!("; did you mean '{meant}'?")), "{error}");
    }
    assert!(!place.fails(&["volume", "show", "elsewhere"], 1).contains("did you mean"));

    let error = |args: &[&str]| -> Value { serde_json::from_slice(&place.run(args).stderr).unwrap() };
    let missing = &error(&["volume", "show", "pv-001", "--json"])["error"];
    assert_eq!(missing["code"], "not_found");
    assert!(missing["message"].as_str().unwrap().ends_with("did you mean 'pc-001'?"), "{missing}");
    assert!(missing["remedy"].is_string(), "{missing}");
    assert_eq!(error(&["volume", "lst", "--json"])["error"]["code"], "usage");
}

#[test]
fn a_volume_grows_by_a_size() {
    let (place, _server) = fleet("1");
    assert_eq!(place.ok(&["volume", "resize", "v", "+3M"]), "resized volume 'v' to 4 MiB\n");
    assert_eq!(place.ok(&["volume", "resize", "v", "5M"]), "resized volume 'v' to 5 MiB\n");
    assert!(place.fails(&["volume", "resize", "v", "+18446744073709551615"], 1).contains("64 bits"));
    assert!(place.fails(&["volume", "resize", "v", "1M"], 1).contains("--shrink"));
}

#[test]
fn the_removal_of_a_target_is_confirmed_on_a_terminal() {
    let (place, _server) = fleet("1");
    let iqn = "iqn.2026-01.org.example:a";
    let remove = |answer: &str| {
        let (mut ours, theirs) = terminal();
        let stdin = theirs.try_clone().unwrap();
        ours.write_all(answer.as_bytes()).unwrap();
        let mut command = place.command(&["target", "rm", iqn]);
        let done = command.stdin(stdin).stdout(Stdio::null()).stderr(theirs).status().unwrap();
        done.code()
    };
    place.ok(&["target", "create", iqn]);
    assert_eq!(remove("n\n"), Some(1));
    place.ok(&["target", "show", iqn]);
    assert_eq!(remove("y\n"), Some(0));
    place.fails(&["target", "show", iqn], 1);
    place.ok(&["target", "create", iqn]);
    place.ok(&["target", "rm", iqn, "-y"]);
}

#[test]
fn a_fleet_grows_with_the_following_numbers() {
    let (place, _server) = fleet("3");
    let error = place.fails(&["volume", "clone", "golden", "pc", "--count", "2"], 1);
    assert!(error.contains("'pc-001' exists already") && error.contains("use --more"), "{error}");
    let made = place.ok(&["volume", "clone", "golden", "pc", "--count", "2", "--more"]);
    assert_eq!(made, "created 2 clones of 'golden': 'pc-004' to 'pc-005'\n");
    // The numbers of a gap are not used again.
    place.ok(&["volume", "rm", "pc-004"]);
    place.ok(&["volume", "clone", "golden", "pc", "--count", "1", "--more"]);
    place.ok(&["volume", "clone", "golden", "web", "--count", "1", "--more"]);
    assert_eq!(names(&place), ["pc-001", "pc-002", "pc-003", "pc-005", "pc-006", "v", "web-001"]);
    assert!(place.fails(&["volume", "clone", "golden", "x", "--more"], 2).contains("--count"));
}

#[test]
fn room_is_shown_in_one_table() {
    let place = PoolDir::new();
    let _server = place.serve(&[]);
    assert!(place.ok(&["space"]).contains("not measured yet: run 'forebay gc'"));
    place.ok(&["gc"]);
    let text = place.ok(&["space"]);
    let rows: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(rows, ["capacity", "free", "reserve", "stored", "live", "reclaimable"]);
    let space: Value = serde_json::from_str(&place.ok(&["space", "--json"])).unwrap();
    let stats: Value = serde_json::from_str(&place.ok(&["stats", "--json"])).unwrap();
    assert_eq!(space["store_reserve_bytes"], stats["store_reserve_bytes"]);
    assert!(
        space["store_reserve_bytes"].as_u64() > Some(0) && space["reclaimable_bytes"].is_u64(),
        "{space}"
    );
}

/// Both ends of a terminal, that of a program last.
fn terminal() -> (File, File) {
    let (mut ours, mut theirs) = (-1, -1);
    // SAFETY: both numbers are valid for the call to write; the other arguments are optional.
    let opened = unsafe { libc::openpty(&raw mut ours, &raw mut theirs, null_mut(), null(), null()) };
    assert_eq!(opened, 0);
    // SAFETY: the descriptors were opened just now, and have no other owner.
    unsafe { (File::from_raw_fd(ours), File::from_raw_fd(theirs)) }
}

/// A server that accepts connections and does not answer.
#[test]
fn a_long_wait_is_reported_once() {
    let place = PoolDir::new();
    std::fs::create_dir(place.path("pool")).unwrap();
    let listener = UnixListener::bind(place.path("pool/forebay.sock")).unwrap();
    let start = |args: &[&str]| -> Child {
        place.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // The one whose wait is not reported begins first: its standard error is no terminal.
    let mut silent = start(&["volume", "list"]);
    let (mut first, _) = listener.accept().unwrap();
    let (terminal, stderr) = terminal();
    let mut reporting =
        place.command(&["volume", "list"]).stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
    let (mut second, _) = listener.accept().unwrap();
    let mut errors = BufReader::new(terminal);
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.starts_with("forebay: waiting for the server at "), "{line}");
    assert!(line.ends_with("pool/forebay.sock ...\r\n"), "{line}");
    for stream in [&mut first, &mut second] {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]").unwrap();
    }
    line.clear();
    assert!(reporting.wait().unwrap().success());
    // Without another process that has it open, reading a terminal fails.
    assert!(errors.read_line(&mut line).is_err() && line.is_empty(), "{line}");
    silent.stderr.take().unwrap().read_to_string(&mut line).unwrap();
    assert!(silent.wait().unwrap().success() && line.is_empty(), "{line}");
}

/// Filters and pages show the same disks as the whole list.
#[test]
fn a_large_list_is_complete() {
    let (place, _server) = fleet("1500");
    let all = names(&place);
    assert_eq!((all.len(), all[0].as_str(), all[1499].as_str()), (1501, "pc-0001", "pc-1500"));
    assert!(all.is_sorted());
    let text = place.ok(&["volume", "list"]);
    let shown: Vec<_> = text.lines().skip(1).map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(shown, all);
}
