//! The router: routes, statuses and bodies of errors, protection against web pages, and `docs/api.md`.

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header, request};
use forebay_api::{CreateToken, HEADER, PREFIX, Role};
use forebay_control::http::{Entry, Origin};
use forebay_control::resources::{router, routes};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::common::Rig;

pub struct Caller(pub Router);

impl Caller {
    pub async fn new(origin: Origin) -> (Rig, Caller) {
        let rig = Rig::new().await;
        let entry = Entry::new(origin, &["storage.lan".into()]);
        let caller = Caller(router(rig.control.clone(), rig.access.clone(), entry));
        (rig, caller)
    }

    pub async fn send(&self, request: Request<Body>) -> (StatusCode, Value) {
        let response = self.0.clone().oneshot(request).await.unwrap();
        let status = response.status();
        if response.headers().get(header::CONTENT_TYPE).is_some_and(|t| t == "text/event-stream") {
            // It has no end.
            return (status, Value::Null);
        }
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        // The last line of a streamed response has the result.
        let last = bytes.trim_ascii().rsplit(|b| *b == b'\n').next().unwrap();
        let value = serde_json::from_slice(last).unwrap_or_else(|_| panic!("{status}: {bytes:?}"));
        (status, value)
    }

    pub async fn call(&self, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
        let request = Request::builder()
            .method(method)
            .uri(format!("{PREFIX}{path}"))
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string()))
            .unwrap();
        self.send(request).await
    }

    pub async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.call(Method::GET, path, Value::Null).await
    }

    pub async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        self.call(Method::POST, path, body).await
    }

    pub async fn delete(&self, path: &str) -> (StatusCode, Value) {
        self.call(Method::DELETE, path, Value::Null).await
    }

    /// Expects an error with this status and code.
    pub async fn refuses(&self, method: Method, path: &str, body: Value, status: u16, code: &str) {
        let (got, answer) = self.call(method.clone(), path, body).await;
        assert_eq!(
            (got.as_u16(), answer["code"].as_str()),
            (status, Some(code)),
            "{method} {path}: {answer}"
        );
        assert!(answer["detail"].as_str().is_some_and(|m| !m.is_empty()), "{answer}");
    }
}

#[tokio::test]
async fn only_the_listed_routes_are_served() {
    let (_rig, api) = Caller::new(Origin::Socket).await;
    for route in routes() {
        let path = route.path.replace(['{', '}'], "");
        let (status, answer) = api.call(route.method.clone(), &path, json!({})).await;
        let code = answer["code"].as_str().unwrap_or_default();
        assert!(!matches!(code, "no_such_resource" | "method_not_allowed"), "{} {path}", route.method);
        assert!(status != StatusCode::INTERNAL_SERVER_ERROR, "{} {path}: {answer}", route.method);
    }
    api.refuses(Method::GET, "/nothing", Value::Null, 404, "no_such_resource").await;
    api.refuses(Method::PUT, "/volumes", Value::Null, 405, "method_not_allowed").await;
}

#[test]
fn the_api_page_lists_every_route() {
    let page = include_str!("../../../../docs/api.md");
    let (_, table) = page.split_once("## Routes").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let listed: Vec<&str> = table
        .lines()
        .filter_map(|l| l.strip_prefix("| `"))
        .filter_map(|l| l.split_once("` |").map(|(route, _)| route))
        .collect();
    let served: Vec<String> = routes().iter().map(|r| format!("{} {}", r.method, r.path)).collect();
    assert_eq!(listed, served, "docs/api.md and the router differ");
    for route in routes() {
        assert!(page.contains(route.about), "docs/api.md lacks: {}", route.about);
    }
}

#[tokio::test]
async fn volumes_snapshots_and_clones_are_created_changed_and_removed() {
    let (_rig, api) = Caller::new(Origin::Socket).await;
    let (status, made) =
        api.post("/volumes", json!({"name": "a b", "size_bytes": 1 << 30, "sync": "always"})).await;
    assert_eq!((status, made["kind"].as_str()), (StatusCode::CREATED, Some("volume")), "{made}");
    assert_eq!(api.get("/volumes/a%20b").await.1, made);
    assert_eq!(made["uuid"].as_str().map(str::len), Some(36));
    let (_, resized) = api.post("/volumes/a%20b/resize", json!({"size_bytes": 2u64 << 30})).await;
    assert_eq!(resized["size_bytes"], 2u64 << 30);

    let (status, snapshot) = api.post("/volumes/a%20b/snapshots", json!({"name": "s"})).await;
    assert_eq!((status, snapshot["name"].as_str()), (StatusCode::CREATED, Some("a b@s")));
    assert_eq!(api.get("/volumes/a%20b/snapshots").await.1.as_array().map(Vec::len), Some(1));
    let (status, clones) = api.post("/clones", json!({"source": "a b@s", "name": "c", "count": 2})).await;
    let (_, reset) = api.post("/resets", json!({"volumes": ["c-002", "c-001"]})).await;
    let reset: Vec<_> = reset.as_array().unwrap().iter().map(|d| (&d["name"], &d["origin"])).collect();
    let from = json!("a b@s");
    assert_eq!(reset, [(&json!("c-002"), &from), (&json!("c-001"), &from)]);
    assert_eq!(status, StatusCode::CREATED);
    let names: Vec<_> = clones.as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["c-001", "c-002"]);
    assert_eq!(clones[0]["origin"], "a b@s");

    api.refuses(Method::DELETE, "/volumes/a%20b", Value::Null, 409, "has_snapshots").await;
    api.refuses(Method::DELETE, "/volumes/a%20b/snapshots/s", Value::Null, 409, "has_clones").await;
    assert_eq!(api.post("/volumes/c-001/reset", json!({})).await.0, StatusCode::OK);
    assert_eq!(api.post("/volumes/a%20b/rollback", json!({"snapshot": "s"})).await.0, StatusCode::OK);
    api.refuses(Method::POST, "/volumes/c-001/rename", json!({"name": "c-002"}), 409, "exists").await;
    api.refuses(Method::POST, "/volumes/c-001/rename", json!({"name": "a@b"}), 400, "bad_name").await;
    api.refuses(Method::POST, "/volumes/nothing/rename", json!({"name": "d"}), 404, "not_found").await;
    let (status, renamed) = api.post("/volumes/c-001/rename", json!({"name": "d"})).await;
    assert_eq!(
        (status, &renamed["name"], &renamed["uuid"]),
        (StatusCode::OK, &json!("d"), &clones[0]["uuid"])
    );
    assert_eq!(api.get("/volumes/c-001").await.0, StatusCode::NOT_FOUND);
    assert_eq!(api.post("/volumes/d/rename", json!({"name": "c-001"})).await.0, StatusCode::OK);
    for path in ["/volumes/c-001", "/volumes/c-002", "/volumes/a%20b/snapshots/s", "/volumes/a%20b"] {
        assert_eq!(api.delete(path).await, (StatusCode::OK, json!({})), "{path}");
    }
    assert_eq!(api.get("/volumes").await.1, json!([]));
}

#[tokio::test]
async fn limits_are_set_shown_kept_and_inherited() {
    let (rig, api) = Caller::new(Origin::Socket).await;
    api.post("/volumes", json!({"name": "v", "size_bytes": 1 << 20})).await;
    let limits = json!({"iops": 500, "bandwidth_write": 1 << 20, "bandwidth_burst": 1 << 22, "weight": 50});
    let body = json!({"tenant": "acme", "limits": limits});
    let (status, set) = api.call(Method::PUT, "/volumes/v/limits", body.clone()).await;
    assert_eq!((status, &set), (StatusCode::OK, &body));
    assert_eq!(api.get("/volumes/v/limits").await.1, body);
    let (_, shown) = api.get("/volumes/v").await;
    assert_eq!((&shown["tenant"], &shown["limits"]), (&json!("acme"), &limits));
    let (status, tenant) = api.call(Method::PUT, "/tenants/acme", json!({"iops": 900})).await;
    assert_eq!((status, &tenant["disks"]), (StatusCode::OK, &json!(1)), "{tenant}");

    // Clones inherit the tenant, also by way of snapshots and images, but not the limits.
    api.post("/volumes/v/snapshots", json!({"name": "s"})).await;
    api.post("/clones", json!({"source": "v@s", "name": "c"})).await;
    api.post("/images/i", json!({"source": "v"})).await;
    api.post("/clones", json!({"source": "i", "name": "d"})).await;
    for name in ["c", "d"] {
        let (_, clone) = api.get(&format!("/volumes/{name}")).await;
        assert_eq!((&clone["tenant"], &clone["limits"]), (&json!("acme"), &json!({})), "{name}");
    }
    assert_eq!(api.get("/tenants/acme").await.1["disks"], 4);

    // What is stored is what another server of the pool would apply.
    let pool = rig.control.pool().clone();
    let stored = pool.document("limits").await.unwrap().unwrap();
    pool.set_limits("v", &Default::default()).unwrap();
    pool.set_tenant_limits("acme", Default::default());
    forebay_control::limits::LimitTable::load(pool.clone()).await;
    assert_eq!(api.get("/volumes/v/limits").await.1, body);
    assert_eq!(api.get("/tenants/acme").await.1["limits"], json!({"iops": 900}));
    assert_eq!(pool.document("limits").await.unwrap().unwrap(), stored);

    for (path, bad) in [
        ("/volumes/v/limits", json!({"limits": {"iops": 0}})),
        ("/volumes/v/limits", json!({"limits": {"weight": 10001}})),
        ("/volumes/v/limits", json!({"tenant": "x".repeat(65)})),
        ("/volumes/v/limits", json!({"tenant": ""})),
        ("/tenants/acme", json!({"bandwidth_burst": 0, "bandwidth": 1})),
    ] {
        api.refuses(Method::PUT, path, bad, 400, "bad_request").await;
    }
    assert_eq!(api.get("/volumes/v/limits").await.1, body, "a refused change has no effect");

    assert_eq!(api.delete("/tenants/acme").await.0, StatusCode::OK);
    assert_eq!(api.get("/tenants").await.1, json!([{"name": "acme", "limits": {}, "disks": 4}]));
    api.call(Method::PUT, "/volumes/v/limits", json!({})).await;
    assert_eq!(api.get("/volumes/v/limits").await.1, json!({"tenant": null, "limits": {}}));
    api.delete("/volumes/d").await;
    api.call(Method::PUT, "/tenants/acme", json!({"iops": 1})).await;
    let text = String::from_utf8(pool.document("limits").await.unwrap().unwrap()).unwrap();
    assert_eq!(text.matches("uuid").count(), 2, "entries of removed disks are dropped: {text}");
}

#[tokio::test]
async fn the_quota_of_a_tenant_is_shown_with_its_use() {
    let (rig, api) = Caller::new(Origin::Socket).await;
    api.post("/volumes", json!({"name": "v", "size_bytes": 1 << 20})).await;
    api.call(Method::PUT, "/volumes/v/limits", json!({"tenant": "acme"})).await;
    let limits = json!({"weight": 50, "quota": 8192});
    let (status, tenant) = api.call(Method::PUT, "/tenants/acme", limits.clone()).await;
    assert_eq!((status, &tenant["limits"]), (StatusCode::OK, &limits));
    let pool = rig.control.pool().clone();
    let disk = pool.attach("v").unwrap();
    disk.write(0, &[1; 4096], false).await.unwrap();
    disk.write(4096, &[1; 8192], false).await.unwrap_err();
    let counted = async || {
        while api.get("/tenants/acme").await.1["usage"]["counting"] != 0 {
            tokio::task::yield_now().await;
        }
    };
    counted().await;
    let usage = json!({"used_bytes": 4096, "counting": 0, "refused": 1});
    assert_eq!(api.get("/tenants").await.1[0]["usage"], usage);

    // Another server of the pool applies it.
    pool.set_tenant_limits("acme", Default::default());
    disk.write(4096, &[1; 8192], false).await.unwrap();
    forebay_control::limits::LimitTable::load(pool.clone()).await;
    counted().await;
    disk.write(12288, &[1; 4096], false).await.unwrap_err();

    for (path, bad) in
        [("/volumes/v/limits", json!({"limits": {"quota": 8192}})), ("/tenants/acme", json!({"quota": 0}))]
    {
        api.refuses(Method::PUT, path, bad, 400, "bad_request").await;
    }
    api.call(Method::PUT, "/tenants/acme", json!({})).await;
    assert_eq!(api.get("/tenants/acme").await.1.get("usage"), None);
    disk.write(12288, &[1; 4096], false).await.unwrap();
}

#[tokio::test]
async fn an_action_on_a_disk_of_another_kind_is_refused() {
    let (rig, api) = Caller::new(Origin::Socket).await;
    std::fs::write(rig.path("f"), vec![1; 1 << 20]).unwrap();
    let import = json!({"name": "img", "source": {"file": rig.path("f")}});
    let (status, done) = api.post("/images", import.clone()).await;
    assert_eq!((status, done["event"].as_str()), (StatusCode::OK, Some("done")), "{done}");
    assert_eq!(done["image"]["kind"], "image");
    api.refuses(Method::POST, "/images", import, 409, "exists").await;
    api.post("/clones", json!({"source": "img", "name": "vol"})).await;
    api.refuses(Method::DELETE, "/volumes/img", Value::Null, 409, "wrong_kind").await;
    api.refuses(Method::GET, "/images/vol", Value::Null, 409, "wrong_kind").await;
    api.refuses(Method::DELETE, "/images/vol", Value::Null, 409, "wrong_kind").await;
    api.refuses(Method::POST, "/volumes/img/snapshots", json!({"name": "s"}), 409, "wrong_kind").await;
    api.refuses(Method::DELETE, "/images/img", Value::Null, 409, "has_clones").await;
    let client = rig.control.pool().attach("vol").unwrap();
    api.refuses(Method::DELETE, "/volumes/vol", Value::Null, 409, "in_use").await;
    drop(client);
    assert_eq!(api.delete("/volumes/vol").await.0, StatusCode::OK);
    assert_eq!(api.delete("/images/img").await.0, StatusCode::OK);
}

#[tokio::test]
async fn invalid_requests_are_refused() {
    let (_rig, api) = Caller::new(Origin::Socket).await;
    let create = |name: &str, size: u64| json!({"name": name, "size_bytes": size});
    for name in ["", "a/b", "a@b", "a\nb", &"n".repeat(300)] {
        api.refuses(Method::POST, "/volumes", create(name, 1 << 20), 400, "bad_name").await;
    }
    for size in [0, 1000, (64 << 40) + 512, u64::MAX] {
        api.refuses(Method::POST, "/volumes", create("v", size), 400, "bad_size").await;
    }
    assert_eq!(api.post("/volumes", create("max", 64 << 40)).await.0, StatusCode::CREATED);
    let long = "n".repeat(255);
    assert_eq!(api.post("/volumes", create(&long, 512)).await.0, StatusCode::CREATED);
    for path in ["/volumes/none", "/volumes/a%2Fb", "/images/none", "/stats/none", "/volumes/none/snapshots"]
    {
        api.refuses(Method::GET, path, Value::Null, 404, "not_found").await;
    }
    api.refuses(Method::GET, "/volumes/%ff", Value::Null, 400, "bad_request").await;
    api.refuses(
        Method::POST,
        "/clones",
        json!({"source": "max", "name": "c", "count": 0}),
        400,
        "bad_request",
    )
    .await;
    for body in [
        json!({}),
        json!([]),
        json!({"name": "x", "size_bytes": -1}),
        json!({"name": "x", "size_bytes": 512, "sync": "maybe"}),
    ] {
        api.refuses(Method::POST, "/volumes", body, 422, "bad_request").await;
    }
    let typo = json!({"name": "x", "size_bytes": 512, "snyc": "always"});
    api.refuses(Method::POST, "/volumes", typo, 422, "bad_request").await;
    let no_json =
        Request::post(format!("{PREFIX}/volumes")).header(HEADER, "1").body(Body::from("name=x")).unwrap();
    assert_eq!(api.send(no_json).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
}

#[tokio::test]
async fn over_tcp_the_host_header_is_checked_and_server_files_cannot_be_imported() {
    let (rig, api) = Caller::new(Origin::Loopback).await;
    assert_eq!(api.get("/pool").await.0, StatusCode::OK);
    let rebound = Request::get(format!("{PREFIX}/pool")).header(header::HOST, "evil.example");
    let (status, answer) = api.send(rebound.body(Body::empty()).unwrap()).await;
    assert_eq!((status, answer["code"].as_str()), (StatusCode::FORBIDDEN, Some("bad_host")));
    std::fs::write(rig.path("f"), vec![1; 512]).unwrap();
    let import = json!({"name": "x", "source": {"file": rig.path("f")}});
    api.refuses(Method::POST, "/images", import, 403, "not_here").await;
    // The server can reach more than the client of a token.
    for url in ["http://169.254.169.254/latest/meta-data", "http://[::1]:9/x", "http://localhost:9/x"] {
        let import = json!({"name": "x", "source": {"url": url}});
        api.refuses(Method::POST, "/images", import, 403, "not_here").await;
    }
}

/// The value of the header with the token of an administrator.
fn authorization(rig: &Rig) -> String {
    let (name, role) = ("a".into(), Role::Administrator);
    let new = CreateToken { name, role, scope: None, expires_in_s: None, max_disks: None };
    format!("Bearer {}", rig.access.tokens.create(new).unwrap().secret)
}

/// Requests for all routes, with example parameters.
fn requests() -> impl Iterator<Item = (Method, request::Builder)> {
    routes().into_iter().map(|route| {
        let path = route.path.replace(['{', '}'], "");
        let request = Request::builder().method(route.method.clone()).uri(format!("{PREFIX}{path}"));
        (route.method, request.header(header::HOST, "localhost:8080"))
    })
}

#[tokio::test]
async fn no_route_accepts_a_request_of_a_foreign_web_page() {
    for origin in [Origin::Socket, Origin::Loopback, Origin::Remote] {
        let (rig, api) = Caller::new(origin).await;
        let token = authorization(&rig);
        let signs = [
            ("origin", "http://evil.example"),
            ("origin", "null"),
            ("origin", "http://localhost:8081"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ];
        for (name, value) in signs {
            for (method, request) in requests() {
                let request = request.header(name, value).header(HEADER, "1");
                let uri = request.uri_ref().cloned();
                let request = request.header(header::CONTENT_TYPE, "application/json");
                let (status, answer) = api.send(request.body(Body::from("{}")).unwrap()).await;
                let found = (status, answer["code"].as_str());
                assert_eq!(
                    found,
                    (StatusCode::FORBIDDEN, Some("foreign_origin")),
                    "{method} {uri:?} {name}: {value}"
                );
            }
        }
        // Pages of the server itself, and an address typed by the user.
        for (name, value) in [("origin", "http://localhost:8080"), ("sec-fetch-site", "none")] {
            let request = Request::get(format!("{PREFIX}/pool")).header(header::HOST, "localhost:8080");
            let request = request.header(header::AUTHORIZATION, &token);
            let (status, answer) = api.send(request.header(name, value).body(Body::empty()).unwrap()).await;
            assert_eq!(status, StatusCode::OK, "{answer}");
        }
    }
}

#[tokio::test]
async fn every_route_that_changes_state_requires_a_header() {
    let (_rig, api) = Caller::new(Origin::Loopback).await;
    let code = |answer: &Value| answer["code"].as_str().unwrap_or_default().to_owned();
    let mut tried = 0;
    for (method, request) in requests().filter(|(method, _)| !method.is_safe()) {
        tried += 1;
        let uri = request.uri_ref().cloned();
        let (status, answer) = api.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!((status.as_u16(), code(&answer)), (403, "header_missing".to_owned()), "{method} {uri:?}");
    }
    assert!(tried > 15, "the table of routes has more than {tried} routes that change state");
    for media_type in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        for (method, request) in requests().filter(|(method, _)| !method.is_safe()) {
            let request = request.header(header::CONTENT_TYPE, media_type).body(Body::from("{}")).unwrap();
            let (status, answer) = api.send(request).await;
            assert_eq!((status.as_u16(), code(&answer)), (403, "header_missing".to_owned()), "{method}");
        }
    }
    for (method, request) in requests() {
        let (_, answer) = api.send(request.header(HEADER, "1").body(Body::empty()).unwrap()).await;
        assert_ne!(code(&answer), "header_missing", "{method}");
    }
}

#[tokio::test]
async fn no_route_accepts_a_foreign_host_header() {
    for (origin, hosts) in [
        (Origin::Loopback, ["evil.example", "10.0.0.1", ""].as_slice()),
        (Origin::Remote, &["evil.example", "10.0.0.1.evil.example", ""]),
        // A browser reaches the control socket through `ssh -L`.
        (Origin::Socket, &["evil.example:8080", "10.0.0.1:8080", "forebay:8080", ""]),
    ] {
        let (rig, api) = Caller::new(origin).await;
        let token = authorization(&rig);
        for host in hosts {
            for (method, mut request) in requests() {
                request.headers_mut().unwrap().insert(header::HOST, host.parse().unwrap());
                let request = request.header(HEADER, "1").body(Body::empty()).unwrap();
                let (status, answer) = api.send(request).await;
                let found = (status, answer["code"].as_str());
                assert_eq!(found, (StatusCode::FORBIDDEN, Some("bad_host")), "{method} {host}");
            }
        }
        let named = Request::get(format!("{PREFIX}/pool")).header(header::HOST, "storage.lan:80");
        let named = named.header(header::AUTHORIZATION, &token);
        assert_eq!(api.send(named.body(Body::empty()).unwrap()).await.0, StatusCode::OK);
        let twice = Request::get(format!("{PREFIX}/pool")).header(header::HOST, "localhost");
        let twice = twice.header(header::HOST, "evil.example").body(Body::empty()).unwrap();
        assert_eq!(api.send(twice).await.0, StatusCode::FORBIDDEN);
    }
}

#[tokio::test]
async fn a_page_that_was_rebound_to_a_forwarded_control_socket_is_refused() {
    let (rig, api) = Caller::new(Origin::Socket).await;
    std::fs::write(rig.path("secret"), vec![1; 512]).unwrap();
    let import = json!({"name": "stolen", "source": {"file": rig.path("secret")}});
    // The browser takes the page and this server for one site.
    let request = Request::post(format!("{PREFIX}/images"))
        .header(header::HOST, "evil.example:8080")
        .header(header::ORIGIN, "http://evil.example:8080")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(import.to_string()));
    let (status, answer) = api.send(request.unwrap()).await;
    assert_eq!((status, answer["code"].as_str()), (StatusCode::FORBIDDEN, Some("bad_host")));
    assert_eq!(api.get("/images").await.1, json!([]));
    // The command line, a program with HTTP/1.0, and the dashboard through `ssh -L`.
    for host in [Some("forebay"), None, Some("localhost:8080")] {
        let mut request = Request::get(format!("{PREFIX}/pool"));
        if let Some(host) = host {
            request = request.header(header::HOST, host);
        }
        assert_eq!(api.send(request.body(Body::empty()).unwrap()).await.0, StatusCode::OK, "{host:?}");
    }
}

#[tokio::test]
async fn counters_include_guest_and_store_io() {
    let (rig, api) = Caller::new(Origin::Socket).await;
    api.post("/volumes", json!({"name": "v", "size_bytes": 1 << 20})).await;
    let disk = rig.control.pool().attach("v").unwrap();
    disk.write(0, &[1; 8192], true).await.unwrap();
    drop(disk);
    let (_, of_disk) = api.get("/stats/v").await;
    assert_eq!(of_disk["write"], json!({"ops": 1, "bytes": 8192}));
    let (_, of_pool) = api.get("/stats").await;
    assert_eq!(of_pool["guest"]["write"]["bytes"], 8192);
    assert!(of_pool["store"]["write"]["ops"].as_u64().is_some_and(|n| n > 0), "{of_pool}");
    assert!(of_pool["memory_bytes"].as_u64().is_some_and(|n| n > 1 << 20), "{of_pool}");
    assert_eq!(api.post("/pool/checkpoint", json!({})).await, (StatusCode::OK, json!({})));
    assert!(api.post("/pool/gc", json!({})).await.1["freed_bytes"].is_u64());
}
