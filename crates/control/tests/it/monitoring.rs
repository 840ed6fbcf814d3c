//! `GET /metrics`, and the dashboard and alert rules that are built on it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use forebay_control::http::{Entry, Origin};
use forebay_control::metrics::{CONTENT_TYPE, list};
use forebay_control::operations::VolumeSeries;
use forebay_control::resources::router;
use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;

use crate::api::Caller;
use crate::common::Rig;

const MONITORING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/monitoring");

async fn scrape(rig: &Rig) -> String {
    let router = router(rig.control.clone(), rig.access.clone(), Entry::new(Origin::Loopback, &[]));
    let request = |method| {
        let request = Request::builder().method(method).uri("/metrics").header(header::HOST, "localhost");
        request.body(Body::empty()).unwrap()
    };
    // As load balancers probe it.
    assert_eq!(router.clone().oneshot(request("HEAD")).await.unwrap().status(), StatusCode::OK);
    let response = router.oneshot(request("GET")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()[header::CONTENT_TYPE], CONTENT_TYPE);
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// Splits the labels of a series: `a="x",b="y"`.
fn labels(mut text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"").unwrap();
        assert!(is_name(name), "{name}");
        let (mut value, mut chars) = (String::new(), rest.char_indices());
        let end = loop {
            match chars.next().unwrap() {
                (at, '"') => break at,
                (_, '\\') => match chars.next().unwrap().1 {
                    'n' => value.push('\n'),
                    c @ ('\\' | '"') => value.push(c),
                    c => panic!("\\{c} is no escape"),
                },
                (_, c) => value.push(c),
            }
        };
        assert!(found.insert(name.to_owned(), value).is_none(), "a label occurs twice");
        text = rest[end + 1..].strip_prefix(',').unwrap_or(&rest[end + 1..]);
    }
    found
}

/// A series: its name, labels and value.
type Series = (String, BTreeMap<String, String>, f64);

/// Parses the text format, and checks what it requires.
fn parse(text: &str) -> Vec<Series> {
    let (mut all, mut seen, mut described) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    let mut current: Option<(String, String)> = None;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, about) = help.split_once(' ').unwrap();
            assert!(is_name(name) && name.starts_with("forebay_") && !about.is_empty(), "{line}");
            assert!(described.insert(name.to_owned()), "{name} is described twice");
            let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).unwrap().to_owned();
            assert!(["counter", "gauge", "histogram"].contains(&kind.as_str()), "{kind}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            current = Some((name.to_owned(), kind));
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, tags) = match series.split_once('{') {
            Some((name, tags)) => (name, labels(tags.strip_suffix('}').unwrap())),
            None => (series, BTreeMap::new()),
        };
        let (family, kind) = current.as_ref().expect("series follow their description");
        let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        assert!(suffixes.iter().any(|s| name == format!("{family}{s}")), "{name} in {family}");
        let value: f64 = value.parse().unwrap();
        assert!(value.is_finite() && value >= 0.0, "{line}");
        assert!(seen.insert((name.to_owned(), tags.clone())), "{line} occurs twice");
        all.push((name.to_owned(), tags, value));
    }
    all
}

fn value(all: &[Series], name: &str, wanted: &[(&str, &str)]) -> f64 {
    let matches = |tags: &BTreeMap<String, String>| {
        wanted.iter().all(|(name, value)| tags.get(*name).is_some_and(|v| v == value))
    };
    let mut found = all.iter().filter(|(n, tags, _)| n == name && matches(tags));
    let first = found.next().unwrap_or_else(|| panic!("no {name} {wanted:?}"));
    assert!(found.next().is_none(), "{name} {wanted:?} is ambiguous");
    first.2
}

/// Runs promtool, if it is installed; returns its output if it fails.
fn promtool(args: &[&str], input: &str) -> Result<(), String> {
    let child = Command::new("promtool")
        .args(args)
        .current_dir(MONITORING)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("SKIPPED: this check requires promtool; install prometheus");
        return Ok(());
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let text = [out.stdout, out.stderr].concat();
    if out.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&text).into_owned()) }
}

#[tokio::test]
async fn metrics_follow_the_text_format_and_count_what_happens() {
    let (rig, api) = Caller::new(Origin::Socket).await;
    for name in ["a", "q\"uo\\te", "b"] {
        api.post("/volumes", json!({"name": name, "size_bytes": 1 << 30})).await;
    }
    let disk = rig.control.pool().attach("a").unwrap();
    disk.write(0, &[7; 8192], false).await.unwrap();
    disk.flush().await.unwrap();
    disk.read(0, &mut [0; 4096]).await.unwrap();
    rig.control.set_volume_series(VolumeSeries { volumes: vec!["*".parse().unwrap()], max: 2 });
    let text = scrape(&rig).await;
    let all = parse(&text);
    assert_eq!(value(&all, "forebay_guest_operations_total", &[("op", "write")]), 1.0);
    assert_eq!(value(&all, "forebay_guest_bytes_total", &[("op", "read")]), 4096.0);
    assert!(value(&all, "forebay_store_bytes_total", &[("op", "write")]) >= 4096.0);
    assert!(value(&all, "forebay_commits_total", &[]) >= 1.0);
    assert_eq!(value(&all, "forebay_disks", &[("kind", "volume")]), 3.0);
    assert_eq!(value(&all, "forebay_disks_in_use", &[]), 1.0);
    let of_a = [("volume", "a"), ("op", "write")];
    assert_eq!(value(&all, "forebay_volume_bytes_total", &of_a), 8192.0);
    assert_eq!(value(&all, "forebay_volume_clients", &[("volume", "b")]), 0.0);
    assert_eq!(value(&all, "forebay_volumes_omitted", &[]), 1.0);
    promtool(&["check", "metrics"], &text).unwrap();

    rig.control.set_volume_series(VolumeSeries { volumes: vec!["q*".parse().unwrap()], max: 2 });
    let all = parse(&scrape(&rig).await);
    assert_eq!(value(&all, "forebay_volume_clients", &[("volume", "q\"uo\\te")]), 0.0);
    let listed: BTreeMap<_, _> = list().map(|(name, kind, _)| (name, kind)).collect();
    assert!(all.iter().filter(|s| !s.0.contains("_duration_")).all(|s| listed.contains_key(s.0.as_str())));
}

/// The promise is 100 ms with the release binary; this machine may be busy, and the test is not optimized.
#[tokio::test]
async fn two_thousand_volumes_are_scraped_quickly() {
    let (rig, api) = Caller::new(Origin::Socket).await;
    api.post("/volumes", json!({"name": "v", "size_bytes": 1 << 30})).await;
    api.post("/clones", json!({"source": "v", "name": "c", "count": 999})).await;
    api.post("/clones", json!({"source": "v", "name": "d", "count": 999})).await;
    rig.control.set_volume_series(VolumeSeries { volumes: vec!["*".parse().unwrap()], max: 2000 });
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let begun = Instant::now();
        let text = scrape(&rig).await;
        best = best.min(begun.elapsed());
        assert!(text.lines().count() > 1999 * 9);
    }
    println!("a scrape of 1,999 volumes takes {best:?}");
    assert!(best < Duration::from_millis(500), "{best:?}");
}

fn read(name: &str) -> String {
    std::fs::read_to_string(PathBuf::from(MONITORING).join(name)).unwrap()
}

/// The names of our metrics in a text.
fn names_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|w| w.starts_with("forebay_")).map(str::to_owned).collect()
}

#[test]
fn dashboard_and_alerts_use_metrics_that_exist() {
    let known: BTreeSet<&str> = list().map(|(name, ..)| name).collect();
    let exists = |name: &String| {
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s));
        known.contains(name.as_str()) || base.is_some_and(|base| known.contains(base))
    };
    let dashboard = read("forebay-dashboard.json");
    let parsed: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let mut used = BTreeSet::new();
    for panel in parsed["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let names = names_in(target["expr"].as_str().unwrap());
            assert!(!names.is_empty(), "{target}");
            used.extend(names);
        }
    }
    used.extend(names_in(&read("forebay-alerts.yml")));
    used.extend(names_in(&read("forebay-alerts-test.yml")));
    let unknown: Vec<_> = used.iter().filter(|name| !exists(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    let page = include_str!("../../../../docs/monitoring.md");
    for (name, kind, help) in list() {
        assert!(
            page.contains(&format!("| `{name}` | {kind} | {help} |")),
            "docs/monitoring.md lacks:\n| `{name}` | {kind} | {help} |"
        );
    }
    promtool(&["check", "rules", "forebay-alerts.yml"], "").unwrap();
    promtool(&["test", "rules", "forebay-alerts-test.yml"], "").unwrap();
}
