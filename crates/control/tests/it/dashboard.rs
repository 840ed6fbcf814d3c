//! The files of the dashboard: served to everyone, kept by browsers, and nothing that a page may not load.

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use axum::response::Response;
use forebay_api::{CreateToken, PREFIX, Role};
use forebay_control::http::Origin;
use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;

use crate::api::Caller;

async fn send(api: &Caller, request: Request<Body>) -> Response {
    api.0.clone().oneshot(request).await.unwrap()
}

async fn get(api: &Caller, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut request = Request::get(path).header(header::HOST, "localhost:8080");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    send(api, request.body(Body::empty()).unwrap()).await
}

async fn text(response: Response) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

fn value<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.to_str().unwrap())
}

/// The path of a file, as the shell names it.
fn path_of(shell: &str, file: &str) -> String {
    let path = shell.split('"').find(|path| path.starts_with("/assets/") && path.ends_with(file));
    path.unwrap_or_else(|| panic!("the shell does not name {file}")).to_owned()
}

#[tokio::test]
async fn files_are_served_to_clients_without_a_token_and_data_is_not() {
    for origin in [Origin::Socket, Origin::Loopback, Origin::Remote] {
        let (rig, api) = Caller::new(origin).await;
        let new = CreateToken {
            name: "a".into(),
            role: Role::Reader,
            scope: None,
            expires_in_s: None,
            max_disks: None,
        };
        rig.access.tokens.create(new).unwrap();
        let shell = get(&api, "/", &[]).await;
        assert_eq!(shell.status(), StatusCode::OK);
        let headers = shell.headers().clone();
        assert_eq!(value(&headers, "content-type"), "text/html; charset=utf-8");
        assert_eq!(value(&headers, "cache-control"), "no-cache");
        let policy = value(&headers, "content-security-policy");
        for part in
            ["default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"]
        {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe") && policy.contains("require-trusted-types-for 'script'"));
        assert_eq!(value(&headers, "cross-origin-opener-policy"), "same-origin");
        for name in ["x-content-type-options", "x-frame-options", "referrer-policy"] {
            assert!(headers.contains_key(name), "{name}");
        }
        let main = get(&api, &path_of(&text(shell).await, "/main.js"), &[]).await;
        assert_eq!(main.status(), StatusCode::OK);
        assert_eq!(value(main.headers(), "content-type"), "text/javascript; charset=utf-8");
        let data = get(&api, &format!("{PREFIX}/volumes"), &[]).await;
        assert_eq!(data.status() == StatusCode::OK, origin == Origin::Socket);
        assert!(rig.audit().is_empty(), "{}", rig.audit());
    }
}

#[tokio::test]
async fn browsers_keep_files_of_this_release_only() {
    let (_rig, api) = Caller::new(Origin::Loopback).await;
    let shell = get(&api, "/", &[]).await;
    let tag = value(shell.headers(), "etag").to_owned();
    let path = path_of(&text(shell).await, "/style.css");
    let kept = get(&api, &path, &[]).await;
    assert_eq!(value(kept.headers(), "cache-control"), "public, max-age=31536000, immutable");
    let other = get(&api, "/assets/0123456789abcdef/style.css", &[]).await;
    assert_eq!((other.status(), value(other.headers(), "cache-control")), (StatusCode::OK, "no-store"));
    assert_eq!(text(kept).await, text(other).await);
    let same = get(&api, "/", &[("if-none-match", &tag)]).await;
    assert_eq!(same.status(), StatusCode::NOT_MODIFIED);
    assert!(text(same).await.is_empty());
    for path in
        ["/assets/0/none.js", "/assets/0/../main.js", "/assets/0/%2e%2e/index.html", "/assets/main.js"]
    {
        assert_eq!(get(&api, path, &[]).await.status(), StatusCode::NOT_FOUND, "{path}");
    }
    let posted = Request::post("/").header(header::HOST, "localhost").header("x-forebay", "1");
    assert_eq!(
        send(&api, posted.body(Body::empty()).unwrap()).await.status(),
        StatusCode::METHOD_NOT_ALLOWED
    );
}

#[tokio::test]
async fn other_sites_can_link_to_the_dashboard_but_not_use_it() {
    let (_rig, api) = Caller::new(Origin::Loopback).await;
    let foreign = [("sec-fetch-site", "cross-site")];
    let shell = get(&api, "/", &foreign).await;
    assert_eq!(shell.status(), StatusCode::OK);
    let main = path_of(&text(shell).await, "/main.js");
    for path in [main.as_str(), "/api/v1/volumes"] {
        assert_eq!(get(&api, path, &foreign).await.status(), StatusCode::FORBIDDEN, "{path}");
    }
    let posted = Request::builder().method(Method::POST).uri("/").header(header::HOST, "localhost");
    let posted = posted.header("sec-fetch-site", "cross-site").body(Body::empty()).unwrap();
    assert_eq!(send(&api, posted).await.status(), StatusCode::FORBIDDEN);
    let rebound = Request::get("/").header(header::HOST, "evil.example").body(Body::empty()).unwrap();
    assert_eq!(send(&api, rebound).await.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn statistics_have_what_the_pages_show() {
    let (_rig, api) = Caller::new(Origin::Socket).await;
    let (_, stats) = api.get("/stats").await;
    let latency = &stats["latency"];
    let bounds = latency["bounds_us"].as_array().unwrap().len();
    let paths = latency["paths"].as_array().unwrap();
    assert_eq!(paths.len(), 16);
    for path in paths {
        assert_eq!(path["buckets"].as_array().unwrap().len(), bounds + 1, "{path}");
    }
    assert_eq!((&paths[0]["front_end"], &paths[0]["path"]), (&json!("nbd"), &json!("ram")));
    assert_eq!(stats["clients"]["iscsi_sessions"], 0);
    assert_eq!(api.get("/pool").await.1["owner"], json!(null));
}
