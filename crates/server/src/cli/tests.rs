use super::*;

fn cli(line: &str) -> Result<Cli, clap::Error> {
    parse(std::iter::once("forebay").chain(line.split_whitespace()).map(OsString::from))
}

fn mistake(line: &str) -> String {
    let e = cli(line).expect_err(line);
    assert_eq!(e.exit_code(), i32::from(USAGE), "{line}");
    let text = usage_line(&e);
    assert!(!text.contains('\n') && !text.is_empty(), "{text}");
    text
}

#[test]
fn the_table_of_flags_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn the_contract_is_understood() {
    for line in [
        "serve --data /d",
        "serve --data /d --config f.toml --nbd unix:/s --nbd [::1]:10809 --http 127.0.0.1:80 --cache 8G --cores 4",
        "serve --data /d --nbd 127.0.0.1:10809 --tls require --tls-certificates d --tls-verify-peer",
        "image list",
        "image show debian",
        "image rm debian",
        "volume create v --size 40GiB --sync always",
        "volume create v --size 1048576 --sync never",
        "volume clone debian web",
        "volume clone v@monday web --count 100",
        "volume list",
        "volume show v",
        "volume rm v",
        "volume resize v 80G",
        "volume reset v",
        "snapshot create v monday",
        "snapshot list v",
        "snapshot rm v monday",
        "snapshot rollback v monday",
        "stats",
        "stats v --watch",
        "gc",
        "completions bash",
        "man",
    ] {
        cli(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        // Options of every command are taken before and behind it.
        let json = cli(&format!("{line} --json --socket /s")).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert!(json.global.json);
        assert!(cli(&format!("--json {line}")).unwrap().global.json);
    }
}

#[test]
fn mistakes_take_one_line_that_points_to_the_help() {
    for (line, expected) in [
        ("", "a command is missing; run 'forebay --help' to see them"),
        ("volume", "a command is missing; run 'forebay --help' to see them"),
        (
            "volum list",
            "unrecognized subcommand 'volum' (a similar subcommand exists: 'volume'); see 'forebay --help'",
        ),
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
            "invalid value '0' for '--count <N>': 0 is not in 1..=100000; see 'forebay --help'",
        ),
    ] {
        assert_eq!(mistake(line), expected, "{line}");
    }
    for line in [
        "volume show",
        "serve --nbd nowhere",
        "serve --data /d --tls-verify-peer",
        "stats a b",
        "image show ''x y",
    ] {
        mistake(line);
    }
}

#[test]
fn an_empty_name_is_a_mistake() {
    let args = ["forebay", "volume", "show", ""].map(OsString::from);
    assert_eq!(parse(args).unwrap_err().exit_code(), i32::from(USAGE));
}
