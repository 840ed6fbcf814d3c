//! What administrators use while a server runs: configuration, reload, log, `forebay top`.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, header};
use forebay_control::http::{Entry, Origin};
use forebay_control::resources::router;
use serde_json::Value;
use tower::ServiceExt;

use crate::common::Rig;
use crate::process::PoolDir;

/// Ends a test that hangs.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Waits until the log contains a text.
fn wait_for(log: &Path, text: &str) -> String {
    let begun = Instant::now();
    loop {
        let found = fs::read_to_string(log).unwrap_or_default();
        if found.contains(text) {
            return found;
        }
        assert!(begun.elapsed() < TIMEOUT, "no {text:?} in\n{found}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_configuration_is_checked_with_the_nearest_key() {
    let dir = PoolDir::new();
    let file = dir.path("c.toml");
    let path = file.to_str().unwrap();
    fs::write(&file, "[memory]\nread_cache = '64M'\n").unwrap();
    assert_eq!(dir.ok(&["config", "check", path]), format!("{path} is valid\n"));
    let valid: Value = serde_json::from_str(&dir.ok(&["config", "check", path, "--json"])).unwrap();
    assert_eq!((&valid["valid"], &valid["warnings"]), (&Value::from(true), &Value::from(vec![0; 0])));
    // More memory than any host has, which is only a warning.
    fs::write(&file, "[memory]\nread_cache = '4096T'\n").unwrap();
    let out = dir.run(&["config", "check", path]);
    let warning = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success() && warning.contains("warning: the memory budgets add up to "), "{warning}");
    for (text, error) in [
        (
            "cores = 2\n[memory]\nread_cahce = '1G'\n",
            "line 3: unknown key 'read_cahce'; did you mean 'read_cache'?",
        ),
        ("[memroy]\nread_cache = '1G'\n", "line 1: unknown key 'memroy'; did you mean 'memory'?"),
        (
            "[http]\ncolour = 1\n",
            "line 2: unknown key 'colour'; known here: listen, hosts, certificate, key, tokens",
        ),
        ("cores = 'two'\n", "line 1: invalid value 'two' for cores: use a whole number, without quotes"),
        ("cores = 0\n", "line 1: invalid value 0 for cores: use 1 to 256"),
        ("[logging]\nfilter = 'loud'\n", "line 2: invalid value loud for logging.filter"),
        ("[nbd.tls]\nmode = 'require'\n", "TLS needs a directory"),
        ("cores = \n", "line 1: 'cores' has no value"),
    ] {
        fs::write(&file, text).unwrap();
        let found = dir.fails(&["config", "check", path], 1);
        assert!(found.contains(error), "{found}");
    }
    assert!(
        dir.fails(&["config", "check", "/no/such/file"], 1).contains("cannot read the configuration file")
    );
}

#[test]
fn values_in_effect_are_shown_with_their_source() {
    let dir = PoolDir::new();
    let file = dir.path("c.toml");
    fs::write(&file, "cores = 3\n\n[memory]\nread_cache = '64M'\nmap_cache = '32M'\n").unwrap();
    let path = file.to_str().unwrap();
    let text = dir.ok(&["config", "show", path, "--cache", "96M", "--json"]);
    let all: Vec<Value> = serde_json::from_str(&text).unwrap();
    let of = |key: &str| {
        let found = all.iter().find(|s| s["key"] == key).unwrap_or_else(|| panic!("no {key}"));
        (found["value"].as_str().unwrap_or("-").to_owned(), found["source"].as_str().unwrap().to_owned())
    };
    assert_eq!(of("cores"), ("3".into(), format!("{path}, line 1")));
    assert_eq!(of("memory.read_cache"), ("\"96MiB\"".into(), "option or environment".into()));
    assert_eq!(of("memory.map_cache"), ("\"32MiB\"".into(), format!("{path}, line 5")));
    assert_eq!(of("memory.desktops"), ("\"1GiB\"".into(), "default".into()));
    assert_eq!(of("data").1, "option or environment");
    assert_eq!(of("store.limit").0, "-");
    assert!(dir.ok(&["config", "show", path]).lines().next().unwrap().starts_with("KEY"));
}

#[test]
fn the_configuration_is_reloaded_or_kept() {
    let dir = PoolDir::new();
    let (file, log) = (dir.path("c.toml"), dir.path("log"));
    fs::write(&file, "[logging]\nfilter = 'info'\n[memory]\ndesktops = '128M'\n").unwrap();
    let args = ["--config", file.to_str().unwrap(), "--log-format", "json"];
    let server = dir.serve_logging(&args, Stdio::from(File::create(&log).unwrap()));
    let budget = || -> Value {
        let stats: Value = serde_json::from_str(&dir.ok(&["stats", "--json"])).unwrap();
        stats["desktops"]["budget_bytes"].clone()
    };
    assert_eq!(budget(), 128 << 20);

    fs::write(&file, "[logging]\nfilter = 'warn'\n[memory]\ndesktops = '256M'\nmap_cahce = '64M'\n").unwrap();
    server.signal(libc::SIGHUP);
    let text = wait_for(&log, "the configuration was not reloaded, the former one stays");
    assert!(text.contains("line 5: unknown key 'map_cahce'; did you mean 'map_cache'?"), "{text}");
    assert_eq!(budget(), 128 << 20);

    fs::write(&file, "[logging]\nfilter = 'info'\n[memory]\ndesktops = '256M'\nmap_cache = '64M'\n").unwrap();
    server.signal(libc::SIGHUP);
    let text = wait_for(&log, "configuration reloaded");
    assert!(text.contains("memory.map_cache cannot change while the server runs"), "{text}");
    let begun = Instant::now();
    while budget() != 256 << 20 {
        assert!(begun.elapsed() < TIMEOUT, "{}", budget());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!fs::read_to_string(&log).unwrap().contains("the memory budgets add up to"));
    // More than any host has: the warning of the start is repeated.
    fs::write(&file, "[logging]\nfilter = 'info'\n[memory]\ndesktops = '4096T'\nmap_cache = '64M'\n")
        .unwrap();
    server.signal(libc::SIGHUP);
    wait_for(&log, "the memory budgets add up to");
    // Every line of the log is an object.
    for line in fs::read_to_string(&log).unwrap().lines() {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert!(event["level"].is_string() && event["timestamp"].is_string(), "{line}");
    }
}

#[test]
fn top_shows_one_interval() {
    let dir = PoolDir::new();
    let _server = dir.serve(&[]);
    dir.ok(&["volume", "create", "v", "--size", "1G"]);
    let shown: Value =
        serde_json::from_str(&dir.ok(&["top", "--once", "--interval", "0.1", "--json"])).unwrap();
    assert!(shown["seconds"].as_f64().unwrap() >= 0.05 && shown["disks"].as_array().unwrap().is_empty());
    let text = dir.ok(&["top", "--once", "--interval", "0.1"]);
    assert!(text.contains("guests 0 ops/s") && text.contains("NAME") && !text.contains('\x1b'), "{text}");
    assert!(dir.fails(&["top", "--interval", "0"], 2).contains("use 0.1 to 3600 seconds"));
}

#[tokio::test]
async fn responses_have_the_id_of_their_request() {
    let rig = Rig::new().await;
    let id_of = async |given: Option<&str>| {
        let router = router(rig.control.clone(), rig.access.clone(), Entry::new(Origin::Loopback, &[]));
        let mut request = Request::get("/api/v1/nothing").header(header::HOST, "localhost");
        if let Some(given) = given {
            request = request.header("x-request-id", given);
        }
        let response = router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        response.headers()["x-request-id"].to_str().unwrap().to_owned()
    };
    let (first, second) = (id_of(None).await, id_of(None).await);
    assert!(first != second && first.len() > 8, "{first} {second}");
    assert_eq!(id_of(Some("job-7")).await, "job-7");
    assert_ne!(id_of(Some("forged line")).await, "forged line");
}
