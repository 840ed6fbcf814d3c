//! Targets over the API: actions, errors with their messages, and the absence of secrets in responses.

use axum::http::{Method, StatusCode};
use forebay_control::http::Origin;
use serde_json::{Value, json};

use crate::api::Caller;

const TARGET: &str = "iqn.2026-01.org.example:a";
const HOST: &str = "iqn.1993-08.org.debian:01:host";

async fn volume(api: &Caller, name: &str) {
    api.post("/volumes", json!({"name": name, "size_bytes": 1 << 20})).await;
}

/// Sends a request that must fail with this status and code, and returns the message.
async fn refusal(api: &Caller, method: Method, path: &str, body: Value, expected: (u16, &str)) -> String {
    let (status, answer) = api.call(method.clone(), path, body).await;
    let code = answer["code"].as_str().unwrap_or_default();
    assert_eq!((status.as_u16(), code), expected, "{method} {path}: {answer}");
    answer["detail"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn targets_luns_and_acl_entries_are_created_changed_and_removed() {
    let (_rig, api) = Caller::new(Origin::Socket).await;
    volume(&api, "v").await;
    volume(&api, "w").await;
    api.post("/volumes/v/snapshots", json!({"name": "s"})).await;
    let (status, made) = api.post("/targets", json!({"name": "IQN.2026-01.org.example:A"})).await;
    let expected = json!({
        "name": TARGET, "number": 1, "open": false, "chap_user": null, "mutual_user": null,
        "luns": [], "initiators": [], "sessions": [],
    });
    assert_eq!((status, &made), (StatusCode::CREATED, &expected));
    let of = |rest: &str| format!("/targets/{TARGET}{rest}");
    let (status, mapped) = api.post(&of("/luns"), json!({"disk": "v"})).await;
    let lun = json!({"lun": 0, "disk": "v", "size_bytes": 1 << 20, "read_only": false, "write_back": false});
    assert_eq!((status, &mapped), (StatusCode::CREATED, &lun));
    let (status, mapped) = api.call(Method::PUT, &of("/luns/7"), json!({"disk": "v@s"})).await;
    assert_eq!((status, mapped["read_only"].as_bool()), (StatusCode::OK, Some(true)));
    let rename = json!({"name": "w"});
    api.refuses(Method::POST, "/volumes/v/rename", rename, 409, "mapped").await;
    let (_, mapped) = api.call(Method::PUT, &of("/luns/0"), json!({"disk": "v", "write_back": true})).await;
    assert_eq!(mapped["write_back"], true);
    let host = of(&format!("/initiators/{HOST}"));
    let (status, shown) = api.call(Method::PUT, &host, json!({"luns": [7]})).await;
    assert_eq!((status, &shown["initiators"][0]["luns"]), (StatusCode::OK, &json!([7])));
    assert_eq!(api.get(&of("")).await.1, shown);
    assert_eq!(api.get("/targets").await.1, json!([shown]));

    for (path, lun, disk) in [("/volumes/v", 0, "v"), ("/volumes/v/snapshots/s", 7, "v@s")] {
        let message = refusal(&api, Method::DELETE, path, Value::Null, (409, "mapped")).await;
        assert_eq!(message, format!("'{disk}' is LUN {lun} of target {TARGET}; unmap it first"));
    }
    let (_, left) = api.call(Method::DELETE, &host, Value::Null).await;
    assert_eq!(left["initiators"], json!([]));
    assert_eq!(api.call(Method::DELETE, &of("/luns/7"), Value::Null).await.1, json!({}));
    assert_eq!(api.call(Method::DELETE, "/volumes/v/snapshots/s", Value::Null).await.0, StatusCode::OK);
    assert_eq!(api.call(Method::DELETE, &of(""), Value::Null).await, (StatusCode::OK, json!({})));
    assert_eq!(api.call(Method::DELETE, "/volumes/v", Value::Null).await.0, StatusCode::OK);
}

#[tokio::test]
async fn errors_name_the_problem_and_the_remedy() {
    let (_rig, api) = Caller::new(Origin::Socket).await;
    volume(&api, "v").await;
    volume(&api, "w").await;
    let of = |rest: &str| format!("/targets/{TARGET}{rest}");
    api.post("/targets", json!({"name": TARGET})).await;
    api.post(&of("/luns"), json!({"disk": "v"})).await;
    let short = json!({"user": "u", "secret": "short"});
    let host = of(&format!("/initiators/{HOST}"));
    let cases = [
        (Method::POST, "/targets".into(), json!({"name": TARGET}), (409, "exists"), "exists already"),
        (Method::POST, "/targets".into(), json!({"name": "disks"}), (400, "bad_name"), "'iqn.'"),
        (Method::POST, "/targets".into(), json!({"name": "iqn.2026-99.a"}), (400, "bad_name"), "a month"),
        (
            Method::POST,
            "/targets".into(),
            json!({"name": HOST, "chap": short}),
            (400, "bad_chap"),
            "12 bytes",
        ),
        (
            Method::GET,
            "/targets/iqn.2026-01.org.example:b".into(),
            json!({}),
            (404, "not_found"),
            "target list",
        ),
        (Method::POST, of("/luns"), json!({"disk": "v"}), (409, "mapped"), "'v' is LUN 0"),
        (Method::POST, of("/luns"), json!({"disk": "x"}), (404, "not_found"), "is named 'x'"),
        (Method::PUT, of("/luns/0"), json!({"disk": "w"}), (409, "exists"), "is 'v'; unmap it first"),
        (Method::PUT, of("/luns/256"), json!({"disk": "w"}), (400, "bad_lun"), "from 0 to 255"),
        (Method::PUT, of("/luns/x"), json!({"disk": "w"}), (400, "bad_request"), "x"),
        (Method::PUT, of("/luns/1"), json!({"disk": "w", "wb": true}), (422, "bad_request"), "wb"),
        (Method::DELETE, of("/luns/1"), json!({}), (404, "not_found"), "has no LUN 1"),
        (Method::PUT, host.clone(), json!({"luns": [3]}), (404, "not_found"), "has no LUN 3"),
        (Method::PUT, host.clone(), json!({"chap": short}), (400, "bad_chap"), "'u' cannot be used"),
        (Method::PUT, of("/initiators/host"), json!({}), (400, "bad_name"), "'host' is not"),
        (Method::DELETE, host, json!({}), (404, "not_found"), "has no entry"),
        (Method::DELETE, of("?force=yes"), json!({}), (400, "bad_request"), "force=true"),
    ];
    for (method, path, body, expected, part) in cases {
        let message = refusal(&api, method.clone(), &path, body, expected).await;
        assert!(message.contains(part), "{method} {path}: {message}");
    }
}

#[tokio::test]
async fn no_response_contains_a_secret() {
    const SECRETS: [&str; 3] = ["secret of all", "secret of one", "secret of us!"];
    let (_rig, api) = Caller::new(Origin::Socket).await;
    let chap = |n: usize| json!({"user": format!("user-{n}"), "secret": SECRETS[n]});
    let path = format!("/targets/{TARGET}");
    let host = format!("{path}/initiators/{HOST}");
    let answers = [
        api.post("/targets", json!({"name": TARGET, "chap": chap(0), "mutual": chap(2)})).await,
        api.call(Method::PUT, &host, json!({"chap": chap(1)})).await,
        // This request is refused: the target and its initiators must not share a secret.
        api.call(Method::PUT, &host, json!({"chap": chap(2)})).await,
        api.get(&path).await,
        api.get("/targets").await,
    ];
    for (_, answer) in &answers {
        let text = answer.to_string();
        assert!(!SECRETS.iter().any(|secret| text.contains(secret)), "{text}");
    }
    assert_eq!(answers[2].0, StatusCode::BAD_REQUEST);
    let shown = &answers[3].1;
    assert_eq!((&shown["chap_user"], &shown["mutual_user"]), (&json!("user-0"), &json!("user-2")));
    assert_eq!(shown["initiators"][0]["chap_user"], "user-1");
}
