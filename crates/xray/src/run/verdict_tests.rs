use super::*;
use crate::run::record::Latency;
use crate::scenario;

const SCENARIO: &str = r#"format = 1
name = "t"
title = "T"
about = "T"
[[disk]]
name = "d"
size = "1MiB"
[[load]]
name = "l"
disk = "d"
blocks = { "4KiB" = 1 }
rate = 400
[[phase]]
name = "before"
loads = ["l"]
duration = "8s"
[[phase]]
name = "p"
loads = ["l"]
duration = "8s"
[[event]]
phase = "p"
at = "1s"
do = "kill"
"#;

fn point(t: f64, ops: u64, ms: f64) -> Point {
    Point { t, ops, bytes: ops * 4096, p50: ms, p95: ms, p99: ms, max: ms }
}

fn load(series: Vec<Point>) -> LoadRecord {
    let ops: u64 = series.iter().filter(|p| p.t > -0.01).map(|p| p.ops).sum();
    LoadRecord {
        name: "l".into(),
        disks: 1,
        target_rate: Some(400.0),
        reads: 0,
        writes: ops,
        bytes: ops * 4096,
        flushes: 0,
        iops: ops as f64 / 8.0,
        mib_s: 1.0,
        latency: Latency { max: series.iter().map(|p| p.max).fold(0.0, f64::max), ..Latency::default() },
        percentiles: vec![(95.0, 10.0)],
        unsent: 0,
        errors: 0,
        first_error: None,
        unanswered: 0,
        conflicts: 0,
        reconnects: 0,
        verified: 10,
        wrong: 0,
        first_wrong: None,
        lost_unflushed: 0,
        ended: None,
        series,
    }
}

fn target(load: LoadRecord, state: State) -> TargetRecord {
    let event = EventRecord { action: "kill".into(), start_s: 1.0, end_s: 2.0, error: None, figures: None };
    let phase = |name: &str, load: LoadRecord, events| PhaseRecord {
        name: name.into(),
        depth: None,
        interval_s: 1.0,
        warm_up_s: 1.0,
        steady: None,
        measured_s: 8.0,
        complete: true,
        loads: vec![load],
        events,
        samples: Vec::new(),
        server_cpu_s: None,
        client_cpu_s: 0.0,
        others_percent: 0.0,
        store: None,
    };
    let before = self::load((0..8).map(|t| point(f64::from(t), 400, 1.0)).collect());
    let phases = vec![phase("before", before, Vec::new()), phase("p", load, vec![event])];
    TargetRecord { name: "x".into(), version: String::new(), state, phases, verdicts: Vec::new() }
}

/// The verdict of one check of the phase "p".
fn verdict(check: &str, target: &TargetRecord) -> (Option<bool>, String) {
    let text = format!("{SCENARIO}[[check]]\nphase = \"p\"\n{check}\n");
    let scenario = scenario::parse("t", &text).unwrap_or_else(|e| panic!("{e}"));
    let verdicts = judge(&scenario, target);
    let verdict = verdicts.into_iter().next_back().expect("a verdict");
    (verdict.pass, verdict.reason)
}

fn steady(ops: [u64; 8], ms: [f64; 8]) -> LoadRecord {
    let mut series = vec![point(-1.0, 9999, 9999.0)];
    series.extend((0..8).map(|t| point(t as f64, ops[t], ms[t])));
    load(series)
}

fn good() -> LoadRecord {
    steady([400, 420, 390, 401, 410, 380, 399, 400], [1.0; 8])
}

#[test]
fn the_band_is_the_published_one_for_a_second() {
    let (low, high) = band(4200.0, 1.0);
    assert!((low - 4073.0).abs() < 0.1 && (high - 4327.0).abs() < 0.1, "{low} {high}");
    assert_eq!(band(4200.0, 30.0), (low, high));
    let (short_low, short_high) = band(4200.0, 0.25);
    assert!((short_high - short_low - 2.0 * (high - low)).abs() < 0.1);
    assert_eq!(band(1.0, 1.0).0, 0.0);
}

#[test]
fn a_rate_is_judged_by_its_mean_and_by_its_points() {
    let band = "is = \"band\"\nload = \"l\"";
    let complete = |load| target(load, State::Complete);
    assert_eq!(verdict(band, &complete(good())).0, Some(true), "the warm-up is not judged");
    let low = steady([300; 8], [1.0; 8]);
    assert_eq!(verdict(band, &complete(low)).0, Some(false), "the mean is too low");
    let uneven = steady([800, 0, 800, 0, 800, 0, 800, 0], [1.0; 8]);
    let (pass, reason) = verdict(band, &complete(uneven));
    assert_eq!(pass, Some(false), "the mean alone is right: {reason}");
    let (pass, reason) = verdict(band, &target(good(), State::Interrupted));
    assert!(pass.is_none() && reason.contains("not complete"), "{reason}");
    let low = target(steady([300; 8], [1.0; 8]), State::Interrupted);
    assert_eq!(verdict(band, &low).0, Some(false), "a fault of a partial run is a fault");
}

#[test]
fn a_trend_is_found_in_rate_and_latency() {
    let trend = "is = \"no_trend\"\nload = \"l\"\nwithin_percent = 25";
    let complete = |load| target(load, State::Complete);
    assert_eq!(verdict(trend, &complete(good())).0, Some(true));
    let slower = steady([400; 8], [1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]);
    assert_eq!(verdict(trend, &complete(slower)).0, Some(false));
    let fewer = steady([400, 400, 400, 400, 300, 300, 280, 280], [1.0; 8]);
    assert_eq!(verdict(trend, &complete(fewer)).0, Some(false));
    let better = steady([400, 400, 400, 400, 500, 500, 600, 600], [2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    assert_eq!(verdict(trend, &complete(better)).0, Some(true));
}

#[test]
fn a_server_is_back_when_all_that_waited_was_answered_in_time() {
    let back = "is = \"back\"\nwithin = \"2s\"";
    let complete = |load| target(load, State::Complete);
    let quick = steady([400, 0, 900, 400, 400, 400, 400, 400], [1.0, 0.0, 1500.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    assert_eq!(verdict(back, &complete(quick)).0, Some(true));
    let slow = steady([400, 0, 0, 0, 1600, 400, 400, 400], [1.0, 0.0, 0.0, 0.0, 3000.0, 1.0, 1.0, 1.0]);
    assert_eq!(verdict(back, &complete(slow)).0, Some(false));
    let never = steady([400, 0, 0, 0, 0, 0, 0, 0], [1.0; 8]);
    assert_eq!(verdict(back, &complete(never)).0, Some(false));
    let mut unanswered = good();
    unanswered.unanswered = 1;
    assert_eq!(verdict(back, &complete(unanswered)).0, Some(false));
}

#[test]
fn other_checks_compare_what_they_say() {
    let complete = |load| target(load, State::Complete);
    let latency = "is = \"latency\"\npercentile = 95\nbelow = \"20ms\"";
    assert_eq!(verdict(latency, &complete(good())).0, Some(true));
    assert_eq!(verdict(&latency.replace("20ms", "10ms"), &complete(good())).0, Some(false));
    let same = "is = \"same_rate\"\nload = \"l\"\nas_phase = \"before\"\nwithin_percent = 5";
    assert_eq!(verdict(same, &complete(good())).0, Some(true));
    assert_eq!(verdict(same, &complete(steady([340; 8], [1.0; 8]))).0, Some(false));
    let events = "is = \"events\"\nwithin = \"500ms\"";
    assert_eq!(verdict(events, &complete(good())).0, Some(false), "it took a second");
    assert_eq!(verdict("is = \"events\"", &complete(good())).0, Some(true));
    let mut wrong = good();
    (wrong.wrong, wrong.errors) = (1, 1);
    for check in ["is = \"errors\"", "is = \"verified\""] {
        assert_eq!(verdict(check, &complete(good())).0, Some(true), "{check}");
        assert_eq!(verdict(check, &complete(wrong.clone())).0, Some(false), "{check}");
    }
    let mut unverified = good();
    unverified.verified = 0;
    let mut target = complete(unverified);
    target.phases[0].loads[0].verified = 0;
    assert_eq!(verdict("is = \"verified\"", &target).0, None, "nothing was verified");
}
