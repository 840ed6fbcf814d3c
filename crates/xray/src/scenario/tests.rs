use super::*;

const GOOD: &str = r#"format = 1
name = "small"
title = "Small"
about = "A test."

[[disk]]
name = "data"
size = "64MiB"

[[load]]
name = "reads"
disk = "data"
read_percent = 100
random_percent = 100
blocks = { "4KiB" = 1 }
size = "32MiB"
rate = 100

[[load]]
name = "writes"
disk = "data"
blocks = { "4KiB" = 1 }
offset = "32MiB"

[[phase]]
name = "run"
loads = ["reads", "writes"]
duration = "10s"

[[event]]
phase = "run"
at = "2s"
do = "kill"
for = "1s"

[[check]]
is = "band"
load = "reads"
"#;

fn parsed(text: &str) -> Scenario {
    parse("test", text).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_scenario_is_parsed() {
    let s = parsed(GOOD);
    assert_eq!(s.load("writes").range(s.size("data").0), (32 << 20, 64 << 20));
    assert_eq!(s.actions(), [Action::Kill]);
    assert_eq!(s.phase("run").loads.len(), 2);
}

/// Replaces the first occurrence. Returns the reported line and message.
fn mistake(from: &str, to: &str) -> (usize, String) {
    assert!(GOOD.contains(from), "{from}");
    let text = GOOD.replacen(from, to, 1);
    let error = parse("test", &text).expect_err(to);
    (error.line, error.what)
}

#[test]
fn each_kind_of_mistake_is_reported_with_its_line_and_the_nearest_name() {
    let line = |part: &str| GOOD.lines().position(|l| l.contains(part)).expect("a line") + 1;
    for (from, to, at, part) in [
        ("format = 1", "format = 2", line("format"), "this version reads format 1"),
        ("name = \"small\"", "name = \"Small!\"", line("\"small\""), "lower-case letters"),
        ("title =", "tittle =", line("title"), "did you mean 'title'?"),
        ("size = \"64MiB\"", "sise = \"64MiB\"", line("64MiB"), "did you mean 'size'?"),
        ("64MiB", "64XB", line("64MiB"), "is not a size"),
        ("\"64MiB\"", "\"6000\"", line("[[disk]]") + 1, "multiple of 4 KiB"),
        ("disk = \"data\"", "disk = \"date\"", line("disk = "), "did you mean 'data'?"),
        ("read_percent = 100", "read_percent = 101", line("read_percent"), "use 0 to 100"),
        ("\"4KiB\" = 1", "\"5000\" = 1", line("\"reads\""), "must be a multiple"),
        ("rate = 100", "rate = 0", line("\"reads\""), "'rate' must be above 0"),
        ("size = \"32MiB\"", "size = \"65MiB\"", line("\"reads\""), "not within the disk"),
        ("offset = \"32MiB\"", "offset = \"16MiB\"", line("\"run\""), "share blocks"),
        ("\"reads\", \"writes\"", "\"reads\", \"wirtes\"", line("loads"), "did you mean 'writes'?"),
        ("duration = \"10s\"", "duration = \"10\"", line("duration"), "is not a time"),
        ("duration = \"10s\"", "", line("\"run\""), "needs 'duration'"),
        ("at = \"2s\"", "at = \"12s\"", line("[[event]]"), "after the end of the phase"),
        ("\"kill\"", "\"kil\"", line("\"kill\""), "did you mean 'kill'?"),
        ("phase = \"run\"", "phase = \"ran\"", line("phase = "), "did you mean 'run'?"),
        ("for = \"1s\"", "disk = \"data\"", line("[[event]]"), "remove 'disk'"),
        ("\"kill\"\nfor = \"1s\"", "\"node_start\"", line("[[event]]"), "an earlier 'node_kill'"),
        ("\"kill\"", "\"node_kill\"", line("[[event]]"), "'for' belongs to"),
        ("\"kill\"", "\"reserve\"", line("[[event]]"), "needs 'disk'"),
        ("\"kill\"", "\"reserve\"\ndisk = \"data\"", line("[[event]]") + 4, "the last MiB of the disk"),
        ("is = \"band\"", "is = \"bond\"", line("\"band\""), "did you mean 'band'?"),
        ("is = \"band\"", "is = \"latency\"", line("[[check]]"), "needs 'percentile'"),
        ("is = \"band\"", "is = \"band\"\nbelow = \"1s\"", line("[[check]]"), "does not belong"),
        (
            "is = \"band\"\nload = \"reads\"",
            "is = \"band\"\nload = \"writes\"",
            line("[[check]]") + 2,
            "'rate'",
        ),
        ("[[disk]]", "[[disk]", line("[[disk]]"), ""),
    ] {
        let (found, what) = mistake(from, to);
        assert!(what.contains(part), "{to}: {what}");
        assert_eq!(found, at, "{to}: {what}");
        assert!(!what.contains('\n'), "{what}");
    }
}

#[test]
fn all_built_in_scenarios_are_valid_at_any_scale() {
    for builtin in all() {
        let text = text(builtin);
        let unset = text.split('@').count();
        assert_eq!(unset, 1, "{}: a value is not set", builtin.name);
        let scenario = parse(builtin.name, &text).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(scenario.name.get_ref(), builtin.name);
        for factor in [1.0, 0.5, 0.01, 1e-4] {
            let scaled = Scale::all(factor)
                .apply(scenario.clone())
                .unwrap_or_else(|e| panic!("{}: {e}", builtin.name));
            assert_eq!(scaled.changes.is_empty(), factor == 1.0, "{}: {:?}", builtin.name, scaled.changes);
        }
    }
    assert!(find("oltp-small").is_some() && find("oltp").is_none());
}

#[test]
fn what_is_scaled_is_recorded() {
    let scale = Scale { size: 0.5, rate: 0.1, time: 0.25 };
    let scaled = scale.apply(parsed(GOOD)).expect("is valid");
    let s = &scaled.scenario;
    assert_eq!(s.size("data"), Size(32 << 20));
    assert_eq!(s.load("writes").range(32 << 20), (16 << 20, 32 << 20));
    assert_eq!(s.load("reads").rate, Some(10.0));
    assert_eq!(s.phase("run").duration.map(|d| d.to_string()), Some("2.5 s".to_owned()));
    assert_eq!(s.events().next().map(|e| e.at.to_string()), Some("500 ms".to_owned()));
    for part in ["32 MiB instead of 64 MiB", "10.000 requests", "2.5 s instead of 10 s"] {
        assert!(scaled.changes.iter().any(|c| c.contains(part)), "{part}: {:?}", scaled.changes);
    }
}
