//! Jobs, events, pages, entity tags and idempotent requests.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header, request};
use axum::response::Response;
use forebay_api::{CreateToken, HEADER, PREFIX, Role, Scope};
use forebay_control::http::{Entry, Origin};
use forebay_control::resources::router;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::api::Caller;

fn build(method: Method, path: &str) -> request::Builder {
    let request = Request::builder().method(method).uri(format!("{PREFIX}{path}"));
    request.header(header::HOST, "localhost").header(HEADER, "1")
}

async fn send(api: &Caller, request: request::Builder, body: Value) -> Response {
    let request = match body {
        Value::Null => request.body(Body::empty()),
        body => request.header(header::CONTENT_TYPE, "application/json").body(Body::from(body.to_string())),
    };
    api.0.clone().oneshot(request.unwrap()).await.unwrap()
}

async fn value(response: Response) -> Value {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&bytes).unwrap_or(Value::Null)
}

/// Reads events until one has this name; returns its data and id.
async fn event(body: &mut Body, name: &str) -> (Value, String) {
    let mut text = String::new();
    loop {
        while let Some((one, rest)) = text.split_once("\n\n") {
            let field = |field: &str| {
                one.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default().to_owned()
            };
            if field("event: ") == name {
                return (serde_json::from_str(&field("data: ")).unwrap(), field("id: "));
            }
            text = rest.to_owned();
        }
        let frame = tokio::time::timeout(Duration::from_secs(60), body.frame()).await.unwrap();
        text += str::from_utf8(&frame.unwrap().unwrap().into_data().unwrap()).unwrap();
    }
}

async fn follow(api: &Caller, query: &str, token: Option<&str>, last: Option<&str>) -> Body {
    let mut request = build(Method::GET, &format!("/events{query}"));
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    let response = send(api, request, Value::Null).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
    response.into_body()
}

#[tokio::test]
async fn a_job_is_followed_to_its_end() {
    let (rig, api) = Caller::new(Origin::Socket).await;
    std::fs::write(rig.path("f"), vec![1; 4 << 20]).unwrap();
    let mut events = follow(&api, "?topics=job", None, None).await;
    let import = json!({"name": "img", "source": {"file": rig.path("f")}});
    let request = build(Method::POST, "/images").header("prefer", "respond-async");
    let response = send(&api, request, import).await;
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    let location = response.headers()[header::LOCATION].to_str().unwrap().to_owned();
    let job = value(response).await;
    assert_eq!(
        (&job["kind"], &job["disk"], &job["state"]),
        (&json!("import"), &json!("img"), &json!("running"))
    );
    let mut ended = event(&mut events, "job").await.0;
    while ended["what"] != "done" {
        assert!(matches!(ended["what"].as_str(), Some("started" | "progress")), "{ended}");
        ended = event(&mut events, "job").await.0;
    }
    let (_, shown) = api.get(location.strip_prefix(PREFIX).unwrap()).await;
    assert_eq!((&shown["state"], &shown["result"]["name"]), (&json!("done"), &json!("img")));
    assert_eq!(ended["data"], shown);
    assert_eq!(api.get("/jobs").await.1[0], shown);

    api.post("/pool/gc", json!({})).await;
    let (_, jobs) = api.get("/jobs?limit=1").await;
    assert_eq!((jobs.as_array().map(Vec::len), &jobs[0]["kind"]), (Some(1), &json!("gc")));
    let path = format!("/jobs/{}", jobs[0]["id"]);
    let refused = api.call(Method::DELETE, &path, Value::Null).await;
    assert_eq!((refused.0.as_u16(), &refused.1["code"]), (409, &json!("bad_state")));
    assert_eq!(api.get("/jobs/1").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_recording_is_a_job_that_can_be_cancelled() {
    let (_rig, api) = Caller::new(Origin::Socket).await;
    api.post("/volumes", json!({"name": "v", "size_bytes": 1 << 20})).await;
    api.post("/images/i", json!({"source": "v"})).await;
    api.post("/images/i/profile", json!({"action": "record"})).await;
    let (_, jobs) = api.get("/jobs").await;
    assert_eq!((&jobs[0]["kind"], &jobs[0]["state"]), (&json!("record"), &json!("running")));
    let path = format!("/jobs/{}", jobs[0]["id"]);
    let (status, job) = api.call(Method::DELETE, &path, Value::Null).await;
    assert_eq!((status.as_u16(), &job["state"]), (200, &json!("cancelling")));
    while api.get(&path).await.1["state"] != "cancelled" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    api.post("/images/i/profile", json!({"action": "record"})).await;
    api.post("/images/i/profile", json!({"action": "record"})).await;
    assert_eq!(api.get("/jobs").await.1.as_array().map(Vec::len), Some(2), "one job for each image");
    api.post("/images/i/profile", json!({"action": "stop"})).await;
    while api.get("/jobs").await.1[0]["state"] != "cancelled" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_event_names_only_the_disk_that_has_changed() {
    let (_rig, api) = Caller::new(Origin::Socket).await;
    api.post("/volumes", json!({"name": "v", "size_bytes": 1 << 20})).await;
    let mut events = follow(&api, "?topics=volume", None, None).await;
    for (method, path, body, what, disk) in [
        (Method::POST, "/volumes/v/snapshots", json!({"name": "s"}), "created", "v@s"),
        (Method::POST, "/images/i", json!({"source": "v@s"}), "created", "i"),
        (Method::POST, "/volumes/v/rollback", json!({"snapshot": "s"}), "rolled_back", "v"),
        (Method::POST, "/volumes/v/rename", json!({"name": "w"}), "renamed", "v"),
        (Method::POST, "/volumes/w/rename", json!({"name": "v"}), "renamed", "w"),
        (Method::DELETE, "/images/i", Value::Null, "removed", "i"),
        (Method::DELETE, "/volumes/v/snapshots/s", Value::Null, "removed", "v@s"),
        (Method::DELETE, "/volumes/v", Value::Null, "removed", "v"),
    ] {
        api.call(method, path, body).await;
        let (first, _) = event(&mut events, "volume").await;
        assert_eq!((&first["what"], &first["disks"]), (&json!(what), &json!([disk])));
        if what == "renamed" {
            let (second, _) = event(&mut events, "volume").await;
            let other = if disk == "v" { "w" } else { "v" };
            assert_eq!((&second["what"], &second["disks"]), (&json!(what), &json!([other])));
        }
    }
}

#[tokio::test]
async fn events_resume_and_are_scoped() {
    let (rig, local) = Caller::new(Origin::Socket).await;
    let scope = Some(Scope::Disks(vec!["web-*".parse().unwrap()]));
    let new =
        CreateToken { name: "w".into(), role: Role::Reader, scope, expires_in_s: None, max_disks: None };
    let token = rig.access.tokens.create(new).unwrap().secret;
    let api = Caller(router(rig.control.clone(), rig.access.clone(), Entry::new(Origin::Remote, &[])));
    let mut scoped = follow(&api, "", Some(&token), None).await;
    let mut all = follow(&local, "", None, None).await;
    for name in ["mail", "web-1"] {
        local.post("/volumes", json!({"name": name, "size_bytes": 1 << 20})).await;
    }
    let (first, id) = event(&mut all, "volume").await;
    assert_eq!((&first["what"], &first["disks"]), (&json!("created"), &json!(["mail"])));
    assert_eq!(event(&mut scoped, "volume").await.0["disks"], json!(["web-1"]), "mail is not visible");
    let mut resumed = follow(&local, "?topics=volume", None, Some(&id)).await;
    assert_eq!(event(&mut resumed, "volume").await.0["disks"], json!(["web-1"]));
    let mut old = follow(&local, "?topics=volume", None, Some("5")).await;
    assert_eq!(event(&mut old, "missed").await.0, json!({"count": null}));
    assert_eq!(event(&mut old, "volume").await.0["disks"], json!(["mail"]), "what is still there follows");

    // A security event, which the scoped reader does not get, and the end of its stream.
    let mut security = follow(&local, "?topics=security", None, None).await;
    let wrong = build(Method::GET, "/pool").header(header::AUTHORIZATION, "Bearer x");
    assert_eq!(send(&api, wrong, Value::Null).await.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(event(&mut security, "security").await.0["what"], "bad_token");
    rig.access.tokens.revoke("w").unwrap();
    local.call(Method::DELETE, "/volumes/web-1", Value::Null).await;
    while let Some(frame) = scoped.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        assert!(!str::from_utf8(&data).unwrap().contains("security"));
    }
    let bad = send(&local, build(Method::GET, "/events?topics=x"), Value::Null).await;
    assert_eq!(bad.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn the_stream_of_a_session_ends_at_the_logout() {
    let (rig, local) = Caller::new(Origin::Socket).await;
    let new = CreateToken {
        name: "page".into(),
        role: Role::Reader,
        scope: None,
        expires_in_s: None,
        max_disks: None,
    };
    let token = rig.access.tokens.create(new).unwrap().secret;
    let api = Caller(router(rig.control.clone(), rig.access.clone(), Entry::new(Origin::Remote, &[])));
    let begun = send(&api, build(Method::POST, "/session"), json!({"token": token})).await;
    let cookie = begun.headers()[header::SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
    let with = |method, path| build(method, path).header(header::COOKIE, &cookie);
    let mut events = send(&api, with(Method::GET, "/events"), Value::Null).await.into_body();
    local.post("/volumes", json!({"name": "before", "size_bytes": 1 << 20})).await;
    assert_eq!(event(&mut events, "volume").await.0["disks"], json!(["before"]));
    send(&api, with(Method::DELETE, "/session"), Value::Null).await;
    // The token is still valid.
    local.post("/volumes", json!({"name": "after", "size_bytes": 1 << 20})).await;
    let rest = tokio::time::timeout(Duration::from_secs(60), events.collect()).await;
    let rest = rest.expect("the stream continues").unwrap().to_bytes();
    assert!(!str::from_utf8(&rest).unwrap().contains("after"));
}

#[tokio::test]
async fn streams_of_events_are_limited_and_given_back() {
    let (_rig, api) = Caller::new(Origin::Socket).await;
    let mut streams = Vec::new();
    let refused = loop {
        let response = send(&api, build(Method::GET, "/events"), Value::Null).await;
        match response.status() {
            StatusCode::OK => streams.push(response),
            _ => break response,
        }
        assert!(streams.len() < 64);
    };
    assert_eq!(value(refused).await["code"], "too_many_streams");
    streams.pop();
    let again = async {
        while send(&api, build(Method::GET, "/events"), Value::Null).await.status() != StatusCode::OK {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), again).await.unwrap();
}

#[tokio::test]
async fn a_client_that_follows_with_all_streams_is_displaced() {
    let (rig, _) = Caller::new(Origin::Socket).await;
    let token = |name: &str| {
        let new = CreateToken {
            name: name.into(),
            role: Role::Reader,
            scope: None,
            expires_in_s: None,
            max_disks: None,
        };
        rig.access.tokens.create(new).unwrap().secret
    };
    let (flood, wallboard) = (token("flood"), token("wallboard"));
    let api = Caller(router(rig.control.clone(), rig.access.clone(), Entry::new(Origin::Remote, &[])));
    let begin = async |token: &str| {
        let request = build(Method::GET, "/events").header(header::AUTHORIZATION, format!("Bearer {token}"));
        send(&api, request, Value::Null).await
    };
    let mut streams = Vec::new();
    loop {
        let response = begin(&flood).await;
        if response.status() != StatusCode::OK {
            break;
        }
        streams.push(response);
    }
    assert_eq!(begin(&wallboard).await.status(), StatusCode::OK);
    // The oldest stream of the other client ends.
    let oldest = streams.swap_remove(0).into_body().collect();
    tokio::time::timeout(Duration::from_secs(60), oldest).await.expect("the stream continues").unwrap();
}

#[tokio::test]
async fn a_list_of_many_disks_leaves_the_thread_to_other_requests() {
    let (_rig, api) = Caller::new(Origin::Socket).await;
    api.post("/volumes", json!({"name": "v", "size_bytes": 1 << 20})).await;
    api.post("/volumes/v/snapshots", json!({"name": "s"})).await;
    let (status, _) = api.post("/clones", json!({"source": "v@s", "name": "c", "count": 2000})).await;
    assert_eq!(status, StatusCode::CREATED);
    let (mut turns, mut listed) = (0, std::pin::pin!(api.get("/volumes?name=c-*")));
    let (status, found) = loop {
        tokio::select! {
            biased;
            done = &mut listed => break done,
            () = tokio::task::yield_now() => turns += 1,
        }
    };
    assert_eq!((status, found.as_array().map(Vec::len)), (StatusCode::OK, Some(2000)));
    // Two or three without the interruptions.
    assert!(turns > 15, "other requests had {turns} turns");
}

/// Resident memory of this process, in bytes.
fn resident_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() << 10
}

#[tokio::test]
async fn slow_readers_of_long_lists_do_not_multiply_memory() {
    let (rig, api) = Caller::new(Origin::Socket).await;
    api.post("/volumes", json!({"name": "v", "size_bytes": 1 << 20})).await;
    api.post("/volumes/v/snapshots", json!({"name": "s"})).await;
    for name in ["c-a", "c-b"] {
        let (status, _) = api.post("/clones", json!({"source": "v@s", "name": name, "count": 6000})).await;
        assert_eq!(status, StatusCode::CREATED);
    }
    let token = |name: &str| {
        let (name, role) = (name.into(), Role::Reader);
        let new = CreateToken { name, role, scope: None, expires_in_s: None, max_disks: None };
        rig.access.tokens.create(new).unwrap().secret
    };
    let (flood, other) = (token("flood"), token("other"));
    let api = Caller(router(rig.control.clone(), rig.access.clone(), Entry::new(Origin::Remote, &[])));
    let begin = async |token: &str, path: &str| {
        let request = build(Method::GET, path).header(header::AUTHORIZATION, format!("Bearer {token}"));
        send(&api, request, Value::Null).await
    };
    let all = value(begin(&other, "/volumes").await).await;
    assert_eq!(all.as_array().map(Vec::len), Some(12_001));
    let image = value(begin(&other, "/volumes/v/snapshots").await).await;
    assert_eq!((&image[0]["name"], &image[0]["clones"]), (&json!("v@s"), &json!(12_000)));
    let (before, mut waiting) = (resident_memory(), Vec::new());
    for n in 0..60 {
        let path = ["/volumes", "/volumes?limit=10000", "/activity"][n % 3];
        waiting.push(begin(&flood, path).await);
    }
    // The body of a page is produced for HEAD, too: it is short, as the client has used its share.
    let head = async |path: &str| {
        let request = build(Method::HEAD, path).header(header::AUTHORIZATION, format!("Bearer {flood}"));
        let response = send(&api, request, Value::Null).await;
        assert_eq!(response.status(), StatusCode::OK, "HEAD {path}");
        response.headers()[header::CONTENT_LENGTH].to_str().unwrap().parse::<usize>().unwrap()
    };
    let len = head("/volumes?limit=10000").await;
    assert!(len < 128 << 10, "a page of {len} bytes");
    let grown = resident_memory().saturating_sub(before);
    assert!(grown < 96 << 20, "{grown} bytes for responses that are not read");
    // The other client has its tag and its complete page; the first client has its complete list.
    let page = begin(&other, "/volumes?limit=3000").await;
    assert!(page.headers().contains_key(header::ETAG) && page.headers().contains_key(header::LINK));
    assert_eq!(value(page).await.as_array().unwrap()[..], all.as_array().unwrap()[..3000]);
    assert_eq!(value(begin(&flood, "/volumes").await).await, all);
    assert_eq!(value(waiting.swap_remove(57)).await, all);
    // A list ends when its token is revoked.
    rig.access.tokens.revoke("flood").unwrap();
    assert!(waiting.swap_remove(54).into_body().collect().await.is_err());
}

#[tokio::test]
async fn lists_have_pages_and_filters() {
    let (_rig, api) = Caller::new(Origin::Socket).await;
    for n in 0..5 {
        api.post("/volumes", json!({"name": format!("a {n}"), "size_bytes": 1 << 20})).await;
    }
    api.post("/volumes", json!({"name": "b", "size_bytes": 1 << 20})).await;
    api.call(Method::PUT, "/volumes/b/limits", json!({"tenant": "acme"})).await;
    let (mut path, mut found) = ("/volumes?limit=2&name=a*".to_owned(), Vec::new());
    loop {
        let response = send(&api, build(Method::GET, &path), Value::Null).await;
        let link = response.headers().get(header::LINK).map(|link| link.to_str().unwrap().to_owned());
        let page = value(response).await;
        assert!(page.as_array().unwrap().len() <= 2);
        found.extend(page.as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap().to_owned()));
        let Some(link) = link else { break };
        path = link.split(['<', '>']).nth(1).unwrap().strip_prefix(PREFIX).unwrap().to_owned();
        // A volume that was on the page before can be removed.
        api.call(Method::DELETE, &format!("/volumes/{}", found[0].replace(' ', "%20")), Value::Null).await;
    }
    assert_eq!(found, ["a 0", "a 1", "a 2", "a 3", "a 4"]);
    assert_eq!(api.get("/volumes?tenant=acme").await.1[0]["name"], "b");
    assert_eq!(api.get("/volumes?origin=none").await.1, json!([]));
    for bad in ["/volumes?limit=0", "/volumes?x=1", "/tenants?name=a", "/volumes?cursor=a"] {
        assert_eq!(api.get(bad).await.0, StatusCode::BAD_REQUEST, "{bad}");
    }
}

#[tokio::test]
async fn tags_prevent_lost_updates() {
    let (_rig, api) = Caller::new(Origin::Socket).await;
    api.post("/volumes", json!({"name": "v", "size_bytes": 1 << 20})).await;
    let path = "/volumes/v/limits";
    let tag = async || {
        let response = send(&api, build(Method::GET, path), Value::Null).await;
        response.headers()[header::ETAG].clone()
    };
    let first = tag().await;
    let unchanged = build(Method::GET, path).header(header::IF_NONE_MATCH, &first);
    let unchanged = send(&api, unchanged, Value::Null).await;
    assert_eq!((unchanged.status(), &unchanged.headers()[header::ETAG]), (StatusCode::NOT_MODIFIED, &first));
    let put = async |tag: &str, iops: u64| {
        let request = build(Method::PUT, path).header(header::IF_MATCH, tag);
        let response = send(&api, request, json!({"limits": {"iops": iops}})).await;
        (response.status().as_u16(), value(response).await)
    };
    let first = first.to_str().unwrap().to_owned();
    assert_eq!(put(&first, 5).await.0, 200);
    let late = put(&first, 6).await;
    assert_eq!((late.0, &late.1["code"]), (412, &json!("changed")));
    assert_eq!(api.get(path).await.1["limits"]["iops"], 5);
    assert_eq!(put("*", 7).await.0, 200);
    // Of several concurrent replacements of one representation, one has its effect.
    let now = tag().await.to_str().unwrap().to_owned();
    let all = [put(&now, 10), put(&now, 11), put(&now, 12)];
    let [a, b, c] = all;
    let (a, b, c) = tokio::join!(a, b, c);
    let mut statuses = [a.0, b.0, c.0];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 412, 412]);
}

#[tokio::test]
async fn a_repeated_create_has_one_effect() {
    let (_rig, api) = Caller::new(Origin::Socket).await;
    let create = async |key: &str, name: &str| {
        let request = build(Method::POST, "/volumes").header("idempotency-key", key);
        let response = send(&api, request, json!({"name": name, "size_bytes": 1 << 20})).await;
        let replayed = response.headers().contains_key("idempotency-replayed");
        (response.status().as_u16(), replayed, value(response).await)
    };
    let first = create("k", "v").await;
    assert_eq!((first.0, first.1), (201, false));
    assert_eq!(create("k", "v").await, (201, true, first.2));
    let other = create("k", "w").await;
    assert_eq!((other.0, &other.2["code"]), (422, &json!("key_reused")));
    // A secret is shown once.
    let token = async || {
        let request = build(Method::POST, "/tokens").header("idempotency-key", "k");
        send(&api, request, json!({"name": "t", "role": "reader"})).await.status().as_u16()
    };
    assert_eq!((token().await, token().await), (201, 409));
    assert_eq!(create("l", "v").await.2["code"], "exists");
    assert_eq!(create(&"x".repeat(129), "w").await.0, 400);
    assert_eq!(api.get("/volumes").await.1.as_array().map(Vec::len), Some(1));
}
