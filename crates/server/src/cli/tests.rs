use super::*;

fn cli(line: &str) -> Result<Cli, clap::Error> {
    parse(std::iter::once("forebay").chain(line.split_whitespace()).map(OsString::from))
}

fn usage_error(line: &str) -> String {
    let e = cli(line).expect_err(line);
    assert_eq!(e.exit_code(), i32::from(USAGE), "{line}");
    let text = usage_line(&e);
    assert!(!text.contains('\n') && !text.is_empty(), "{text}");
    text
}

#[test]
fn the_argument_table_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_documented_command_line_parses() {
    for line in [
        "serve --data /d",
        "serve --data /d --config f.toml --nbd unix:/s --nbd [::1]:10809 --http 127.0.0.1:80 --cache 8G --cores 4",
        "serve --data /d --nbd 127.0.0.1:10809 --tls require --tls-certificates d --tls-verify-peer",
        "image import debian disk.qcow2",
        "image import debian https://example.org/disk.raw --format raw --dedup-domain 4294967295",
        "image list",
        "image show debian",
        "image rm debian",
        "image rm debian ubuntu d* --yes",
        "volume create v --size 40GiB --sync always",
        "volume create v --size 1048576 --sync never --dedup-domain 7 --spread",
        "volume clone debian web",
        "volume clone v@monday web --count 100",
        "volume clone v@monday web --count 100 --more",
        "volume list",
        "volume show v",
        "volume rm v",
        "volume rm -y v w pc-* --snapshots",
        "volume rename v w",
        "volume resize v 80G",
        "volume resize v +1G",
        "volume reset v pc-* --to debian13 -y",
        "snapshot create v monday",
        "snapshot list",
        "snapshot list v",
        "snapshot rm v monday",
        "snapshot rm v monday day-* --yes",
        "snapshot rollback v monday",
        "serve --data /d --iscsi 0.0.0.0:3260 --iscsi [::]:3260",
        "target create iqn.2026-01.org.example:a",
        "target create a --open --chap-user u --chap-secret-file f --mutual-user m --mutual-secret-file -",
        "target list",
        "target show a",
        "target rm a --force -y",
        "target rm --all",
        "target allow a b --chap-user u --chap-secret-file - --lun 0 --lun 7",
        "target deny a b",
        "lun map a v",
        "lun map a v@monday --lun 255 --read-only",
        "lun map a v --write-back",
        "lun unmap a 0",
        "lun list a",
        "lun reservations a 0",
        "lun reservations a 255 --clear",
        "stats",
        "stats v --watch",
        "space",
        "gc",
        "check",
        "check --data /d",
        "inspect",
        "inspect 0000002a.seg",
        "recover",
        "recover --data /d --accept-loss 4711",
        "serve --data /d --pool rados:vms/desktops --ceph-conf c --ceph-user forebay --standby",
        "serve --config f.toml --standby --ceph-user forebay",
        "check --pool rados:vms/desktops",
        "inspect --pool rados:vms/desktops --ceph-user forebay 0000002a",
        "recover --pool rados:vms/desktops --accept-loss 4711",
        "pool list vms --ceph-conf c",
        "pool show rados:vms/desktops --ceph-user forebay",
        "completions bash",
        "man",
    ] {
        cli(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        // Global options are accepted before and after the command.
        let json = cli(&format!("{line} --json --socket /s")).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert!(json.global.json);
        assert!(cli(&format!("--json {line}")).unwrap().global.json);
    }
}

#[test]
fn usage_errors_are_one_line_that_points_to_the_help() {
    for (line, expected) in [
        ("", "missing command; 'forebay --help' lists the commands"),
        ("volume", "missing command; 'forebay --help' lists the commands"),
        ("volum list", "unrecognized subcommand 'volum'; did you mean 'volume'? see 'forebay --help'"),
        ("volume lst", "unrecognized subcommand 'lst'; did you mean 'list'? see 'forebay volume --help'"),
        ("frobnicate", "unrecognized subcommand 'frobnicate'; see 'forebay --help'"),
        (
            "volume create v",
            "the following required arguments were not provided: --size <SIZE>; see 'forebay volume create --help'",
        ),
        (
            "volume create v --size 40X",
            "invalid value '40X' for '--size <SIZE>': '40X' is not a size; write bytes, or a number with K, M, G or T, \
             such as 40G; see 'forebay --help'",
        ),
        (
            "volume create v --size 1 --sync sometimes",
            "invalid value 'sometimes' for '--sync <SYNC>' [possible values: flush, always, never]; see 'forebay --help'",
        ),
        (
            "volume clone a b --count 0",
            "invalid value '0' for '--count <N>': 0 is not in 1..=10000; see 'forebay --help'",
        ),
    ] {
        assert_eq!(usage_error(line), expected, "{line}");
    }
    for line in [
        "volume show",
        "volume rm",
        "snapshot rm v",
        "volume clone v web --more",
        "volume create v --size 1G --dedup-domain -1",
        "image import a b --dedup-domain 4294967296",
        "serve --nbd nowhere",
        "serve --iscsi unix:/s",
        "target create a --chap-user u",
        "target create a --chap-secret-file f",
        "target create a --mutual-user m",
        "target create a --chap-secret s",
        "target rm",
        "target rm a --all",
        "lun unmap a",
        "lun map a v --read-only --write-back",
        "lun map a v --lun -1",
        "serve --data /d --tls-verify-peer",
        "stats a b",
        "image show ''x y",
    ] {
        usage_error(line);
    }
}

#[test]
fn wrong_pools_in_ceph_are_usage_errors() {
    for (line, expected) in [
        (
            "serve --data /d --standby",
            "the following required arguments were not provided: <--config <FILE>|--pool \
             <rados:POOL/NAME>|--cluster <rados:POOL/NAME>>; see 'forebay serve --help'",
        ),
        (
            "check --ceph-conf f",
            "the following required arguments were not provided: <--pool <rados:POOL/NAME>>; see 'forebay check --help'",
        ),
        (
            "pool list rados:vms",
            "invalid value 'rados:vms' for '<CEPHPOOL>': 'rados:vms' is not the name of a Ceph pool; 'ceph osd pool ls' \
             lists them; see 'forebay --help'",
        ),
        (
            "serve --pool rados:vms",
            "invalid value 'rados:vms' for '--pool <rados:POOL/NAME>': \"rados:vms\" is not the address of a pool: \
             expected rados:POOL/NAME; see 'forebay --help'",
        ),
    ] {
        assert_eq!(usage_error(line), expected, "{line}");
    }
    for line in [
        "serve --data /d --pool vms/desktops",
        "serve --data /d --pool rados:vms",
        "serve --data /d --pool rados:vms/",
        "serve --data /d --pool rados:vms/a/b",
        "serve --data /d --pool rados:v%20s/a",
        "serve --data /d --standby",
        "serve --data /d --ceph-conf f",
        "check --ceph-user forebay",
        "check --standby",
        "recover --pool desktops",
        "pool list",
        "pool list rados:vms",
        "pool list vms/desktops",
        "pool show desktops",
    ] {
        usage_error(line);
    }
}

#[test]
fn a_volume_is_resized_to_a_size_or_by_a_size() {
    let bytes = |text: &str, present| text.parse::<NewSize>().unwrap().bytes(present);
    assert_eq!(bytes("3M", 1 << 20), Some(3 << 20));
    assert_eq!(bytes("+3M", 1 << 20), Some(4 << 20));
    assert_eq!(bytes("+1", u64::MAX), None);
    for text in ["+", "++1G", "-1G", "+-1G"] {
        assert!(text.parse::<NewSize>().is_err(), "{text}");
    }
}

#[test]
fn an_error_is_one_line_of_text_or_json() {
    let refused = ClientError::Refused {
        code: "not_found".into(),
        message: "no volume is named 'a\u{202e}'".into(),
        remedy: Some("check the name".into()),
    };
    let refused = CliError::from(refused);
    assert_eq!(failure(&refused, false), "forebay: no volume is named 'a\\u{202e}'");
    let parsed: serde_json::Value = serde_json::from_str(&failure(&refused, true)).unwrap();
    let error = &parsed["error"];
    assert_eq!((&error["code"], &error["remedy"]), (&"not_found".into(), &"check the name".into()));
    let declined: serde_json::Value = serde_json::from_str(&failure(&CliError::Declined, true)).unwrap();
    assert_eq!(
        declined,
        serde_json::json!({"error": {"code": "declined", "message": "nothing was removed"}})
    );
}

#[test]
fn an_empty_name_is_a_usage_error() {
    let args = ["forebay", "volume", "show", ""].map(OsString::from);
    assert_eq!(parse(args).unwrap_err().exit_code(), i32::from(USAGE));
}

/// The reference in `docs/cli.md` is generated from the argument table. `UPDATE_DOCS=1 cargo test` updates
/// it.
#[test]
fn the_page_has_the_reference() {
    const START: &str = "<!-- made from the table of flags: UPDATE_DOCS=1 cargo test -p forebay-server -->\n";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (head, found) = page.split_once(START).expect("docs/cli.md has the line that starts the reference");
    let mut command = Cli::command();
    command.build();
    let made = reference(&command);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{head}{START}{made}")).unwrap();
    } else {
        assert!(found == made, "docs/cli.md is out of date: UPDATE_DOCS=1 cargo test -p forebay-server");
    }
}

/// Renders a section for each command without subcommands.
fn reference(parent: &clap::Command) -> String {
    let mut text = String::new();
    for command in parent.get_subcommands().filter(|c| !c.is_hide_set()) {
        if command.has_subcommands() {
            text += &reference(command);
            continue;
        }
        let usage = command.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ").trim();
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let name = command.get_bin_name().unwrap_or_default();
        text += &format!("\n### {name}\n\n{about}.\n\n```\n{usage}\n```\n");
        let own = command.get_arguments().filter(|a| !a.is_hide_set() && !a.is_global_set());
        let rows: String = own.filter(|a| a.get_id() != "help").map(row).collect();
        if !rows.is_empty() {
            text += &format!("\n| argument | description |\n|---|---|\n{rows}");
        }
    }
    text
}

fn row(arg: &clap::Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let takes_value = arg.get_action().takes_values();
    let mut notes = Vec::new();
    let values: Vec<_> = arg.get_possible_values().iter().map(|v| v.get_name().to_owned()).collect();
    if takes_value && !values.is_empty() {
        notes.push(values.join(", "));
    }
    let defaults: Vec<_> = arg.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
    if takes_value && !defaults.is_empty() {
        notes.push(format!("default {}", defaults.join(", ")));
    }
    let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
    format!("| `{}` | {}{notes} |\n", arg.to_string().replace('|', "\\|"), help.replace('|', "\\|"))
}
