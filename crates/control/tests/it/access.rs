//! Access control: each route with each kind of client, scopes, sessions, and the audit log.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use forebay_api::{CreateToken, HEADER, PREFIX, Role, Scope};
use forebay_control::access::Right;
use forebay_control::http::{Origin, Peer};
use forebay_control::operations::Delivery;
use forebay_control::resources::{router, routes};
use serde_json::{Value, json};

use crate::api::Caller;
use crate::common::Rig;

fn token(rig: &Rig, name: &str, role: Role, scope: Option<Scope>) -> String {
    let new = CreateToken { name: name.into(), role, scope, expires_in_s: None, max_disks: None };
    rig.access.tokens.create(new).unwrap().secret
}

fn disks(pattern: &str) -> Option<Scope> {
    Some(Scope::Disks(vec![pattern.parse().unwrap()]))
}

fn request(method: Method, path: &str, token: Option<&str>, body: Value) -> Request<Body> {
    let request = Request::builder().method(method).uri(format!("{PREFIX}{path}"));
    let request = request.header(header::HOST, "localhost").header(HEADER, "1");
    let request = match token {
        Some(token) => request.header(header::AUTHORIZATION, format!("Bearer {token}")),
        None => request,
    };
    match body {
        Value::Null => request.body(Body::empty()),
        body => request.header(header::CONTENT_TYPE, "application/json").body(Body::from(body.to_string())),
    }
    .unwrap()
}

/// Status and code.
async fn answer(
    api: &Caller,
    method: Method,
    path: &str,
    token: Option<&str>,
    body: Value,
) -> (u16, String, Value) {
    let (status, answer) = api.send(request(method, path, token, body)).await;
    (status.as_u16(), answer["code"].as_str().unwrap_or_default().to_owned(), answer)
}

#[tokio::test]
async fn every_route_requires_its_right() {
    for origin in [Origin::Loopback, Origin::Remote] {
        let (rig, api) = Caller::new(origin).await;
        let reader = token(&rig, "reader", Role::Reader, None);
        let scoped = token(&rig, "scoped", Role::Reader, disks("none-*"));
        let operator = token(&rig, "operator", Role::Operator, disks("none-*"));
        let provisioner = token(&rig, "provisioner", Role::Provisioner, disks("none-*"));
        let administrator = token(&rig, "administrator", Role::Administrator, None);
        let revoked = token(&rig, "revoked", Role::Administrator, None);
        rig.access.tokens.revoke("revoked").unwrap();
        let new = CreateToken {
            name: "short".into(),
            role: Role::Administrator,
            scope: None,
            expires_in_s: Some(1),
            max_disks: None,
        };
        let expired = rig.access.tokens.create(new).unwrap().secret;
        std::thread::sleep(std::time::Duration::from_millis(1100));

        let mut walked = 0;
        for route in routes().into_iter().filter(|route| route.path != "/session") {
            walked += 1;
            let path = route.path.replace("{lun}", "0").replace(['{', '}'], "");
            let code = async |token: Option<&str>| {
                // The body is invalid, so that no request has an effect; the right is checked first.
                answer(&api, route.method.clone(), &path, token, json!([])).await
            };
            let what = format!("{} {path} ({:?})", route.method, route.right);
            assert_eq!(code(None).await.1, "not_authenticated", "{what}");
            // Beyond the limit on failures, the code is another one and the request is refused as well.
            let (status, found, _) = code(Some(&revoked)).await;
            assert!(matches!((status, &*found), (401, "bad_token") | (429, "too_many_attempts")), "{what}");
            let (status, found, _) = code(Some(&expired)).await;
            assert!(matches!((status, &*found), (401, "token_expired") | (429, _)), "{what}: {found}");
            let denied = |found: &str| matches!(found, "forbidden" | "not_here");
            for (name, token, rights) in [
                ("reader", &reader, &[Right::Read, Right::ReadServer, Right::ReadRoom][..]),
                ("scoped", &scoped, &[Right::Read]),
                ("operator", &operator, &[Right::Read, Right::Operate]),
                (
                    "provisioner",
                    &provisioner,
                    &[Right::Read, Right::ReadRoom, Right::Operate, Right::Provision, Right::ReadData],
                ),
            ] {
                let (status, found, _) = code(Some(token)).await;
                let permitted = rights.contains(&route.right);
                assert_eq!(denied(&found), !permitted, "{name} {what}: {status} {found}");
            }
            if route.right == Right::Local {
                assert_eq!(code(Some(&administrator)).await.1, "not_here", "{what}");
            } else if route.method.is_safe() {
                let (status, found, _) = code(Some(&administrator)).await;
                assert!(status != 401 && !denied(&found), "administrator {what}: {status} {found}");
            }
        }
        assert!(walked > 45);
        let audit = rig.audit();
        assert!(audit.lines().count() > 50, "denied requests are logged");
        for secret in [&reader, &operator, &administrator, &revoked, &expired] {
            assert!(!audit.contains(&**secret));
        }
    }
}

#[tokio::test]
async fn loopback_clients_need_a_token_once_one_was_created() {
    let (rig, api) = Caller::new(Origin::Loopback).await;
    assert_eq!(answer(&api, Method::GET, "/pool", None, Value::Null).await.0, 200);
    let made =
        answer(&api, Method::POST, "/tokens", None, json!({"name": "a", "role": "administrator"})).await;
    assert_eq!(made.0, 201);
    let secret = made.2["secret"].as_str().unwrap();
    assert_eq!(answer(&api, Method::GET, "/pool", None, Value::Null).await.0, 401);
    assert_eq!(answer(&api, Method::GET, "/pool", Some(secret), Value::Null).await.0, 200);
    assert_eq!(answer(&api, Method::DELETE, "/tokens/a", Some(secret), Value::Null).await.0, 200);
    for token in [None, Some(secret)] {
        assert_eq!(
            answer(&api, Method::GET, "/pool", token, Value::Null).await.0,
            401,
            "also after the last"
        );
    }
    let _rig = rig;
}

/// The names in a list of the API.
fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn an_operator_acts_within_its_scope_and_sees_nothing_else() {
    let (rig, local) = Caller::new(Origin::Socket).await;
    for name in ["web-1", "web-2", "mail"] {
        local.post("/volumes", json!({"name": name, "size_bytes": 1 << 20})).await;
    }
    local.call(Method::PUT, "/volumes/web-1/limits", json!({"tenant": "acme"})).await;
    local.post("/volumes/mail/snapshots", json!({"name": "s"})).await;
    local.post("/clones", json!({"source": "mail@s", "name": "web-3"})).await;
    let by_name = token(&rig, "by name", Role::Operator, disks("web-*"));
    let by_tenant = token(&rig, "by tenant", Role::Operator, Some(Scope::Tenant("acme".into())));
    let entry = forebay_control::http::Entry::new(Origin::Remote, &[]);
    let api = Caller(router(rig.control.clone(), rig.access.clone(), entry));

    let listed = answer(&api, Method::GET, "/volumes", Some(&by_name), Value::Null).await.2;
    assert_eq!(names(&listed), ["web-1", "web-2", "web-3"]);
    let listed = answer(&api, Method::GET, "/volumes", Some(&by_tenant), Value::Null).await.2;
    assert_eq!(names(&listed), ["web-1"]);
    let active = answer(&api, Method::GET, "/activity", Some(&by_tenant), Value::Null).await.2;
    assert_eq!(names(&active), ["web-1"]);
    let tenants = answer(&api, Method::GET, "/tenants", Some(&by_tenant), Value::Null).await.2;
    assert_eq!(names(&tenants), ["acme"]);
    assert_eq!(answer(&api, Method::GET, "/tenants", Some(&by_name), Value::Null).await.2, json!([]));

    // What is not visible is answered as what does not exist.
    for (method, path, body) in [
        (Method::GET, "/volumes/NAME", Value::Null),
        (Method::GET, "/stats/NAME", Value::Null),
        (Method::GET, "/volumes/NAME/limits", Value::Null),
        (Method::POST, "/volumes/NAME/reset", Value::Null),
        (Method::POST, "/volumes/NAME/resume", Value::Null),
        (Method::POST, "/volumes/NAME/snapshots", json!({"name": "x"})),
        (Method::POST, "/volumes/NAME/rollback", json!({"snapshot": "s"})),
        (Method::PUT, "/volumes/NAME/limits", json!({})),
        (Method::DELETE, "/volumes/NAME/snapshots/s", Value::Null),
        (Method::POST, "/resets", json!({"volumes": ["web-3", "NAME"]})),
    ] {
        let ask = async |name: &str| {
            let body = serde_json::from_str(&body.to_string().replace("NAME", name)).unwrap();
            let path = path.replace("NAME", name);
            let (status, code, answer) = answer(&api, method.clone(), &path, Some(&by_name), body).await;
            (status, code, answer["detail"].as_str().unwrap_or_default().replace(name, "NAME"))
        };
        let hidden = ask("mail").await;
        assert_eq!((hidden.0, &*hidden.1), (404, "not_found"), "{method} {path}");
        assert_eq!(hidden, ask("none").await, "{method} {path}");
    }

    for (path, body) in
        [("/volumes/web-2/snapshots", json!({"name": "x"})), ("/volumes/web-3/reset", Value::Null)]
    {
        let done = answer(&api, Method::POST, path, Some(&by_name), body).await;
        assert!(done.0 < 300, "{done:?}");
    }
    let limits = json!({"tenant": "acme", "limits": {"iops": 5}});
    let set = answer(&api, Method::PUT, "/volumes/web-1/limits", Some(&by_tenant), limits).await;
    assert_eq!(set.0, 200, "{set:?}");
    for tenant in [json!(null), json!("other")] {
        let body = json!({"tenant": tenant, "limits": {}});
        let moved = answer(&api, Method::PUT, "/volumes/web-1/limits", Some(&by_name), body).await;
        assert_eq!((moved.0, &*moved.1), (403, "forbidden"));
    }
    // Within a tenant, weights divide what the tenant has; without one, they would take from all others.
    let weigh = async |volume: &str, tenant: Value, weight: u64| {
        let (path, body) =
            (format!("/volumes/{volume}/limits"), json!({"tenant": tenant, "limits": {"weight": weight}}));
        let secret = if tenant.is_null() { &by_name } else { &by_tenant };
        answer(&api, Method::PUT, &path, Some(secret), body).await.0
    };
    assert_eq!([weigh("web-2", json!(null), 50).await, weigh("web-2", json!(null), 100).await], [200, 200]);
    assert_eq!(weigh("web-2", json!(null), 10_000).await, 403);
    assert_eq!(weigh("mail", json!(null), 10_000).await, 404);
    assert_eq!(weigh("web-1", json!("acme"), 10_000).await, 200);
    // A session has the rights of its token.
    assert_eq!(answer(&api, Method::GET, "/stats", Some(&by_name), Value::Null).await.1, "forbidden");
}

#[tokio::test]
async fn a_token_creates_a_limited_number_of_disks() {
    let (rig, local) = Caller::new(Origin::Socket).await;
    for name in ["acme.v", "other"] {
        local.post("/volumes", json!({"name": name, "size_bytes": 1 << 20})).await;
    }
    let limited = |name: &str, role, max_disks| {
        let scope = disks("acme.*");
        let new = CreateToken { name: name.into(), role, scope, expires_in_s: None, max_disks };
        rig.access.tokens.create(new).unwrap().secret
    };
    let provisioner = limited("provisioner", Role::Provisioner, Some(4));
    let operator = limited("operator", Role::Operator, Some(5));
    let entry = forebay_control::http::Entry::new(Origin::Remote, &[]);
    let api = Caller(router(rig.control.clone(), rig.access.clone(), entry));
    let post = async |secret: &str, path: &str, body: Value| {
        let (status, code, answer) = answer(&api, Method::POST, path, Some(secret), body).await;
        (status, code, answer["detail"].as_str().unwrap_or_default().to_owned())
    };
    let clones = |name: &str, count: u32| json!({"source": "acme.v", "name": name, "count": count});

    // The volume that an administrator made is in the scope, too.
    let (status, code, detail) = post(&provisioner, "/clones", clones("acme.c", 4)).await;
    assert_eq!((status, &*code), (409, "full"), "{detail}");
    assert!(detail.contains("has 1 and would get 4 more"), "{detail}");
    // Of requests at the same time, none uses what another one has used.
    // They may have several tokens.
    let second = limited("second", Role::Provisioner, Some(4));
    let all = [("acme.a", &second), ("acme.b", &provisioner), ("acme.c", &second), ("acme.d", &provisioner)];
    let [a, b, c, d] = all.map(|(name, token)| post(token, "/clones", clones(name, 1)));
    let answers = tokio::join!(a, b, c, d);
    let made = [answers.0, answers.1, answers.2, answers.3].iter().filter(|answer| answer.0 == 201).count();
    assert_eq!(made, 3);
    for (path, body) in [
        ("/volumes", json!({"name": "acme.w", "size_bytes": 1 << 20})),
        ("/images/acme.i", json!({"source": "acme.v"})),
        ("/volumes/acme.v/snapshots", json!({"name": "s"})),
    ] {
        assert_eq!(post(&provisioner, path, body).await.1, "full", "{path}");
    }
    // Snapshots count: the operator may have one disk more.
    assert_eq!(post(&operator, "/volumes/acme.v/snapshots", json!({"name": "s"})).await.0, 201);
    assert_eq!(post(&operator, "/volumes/acme.v/snapshots", json!({"name": "t"})).await.1, "full");
    // An administrator has no such limit.
    assert_eq!(local.post("/clones", clones("acme.more", 100)).await.0, StatusCode::CREATED);
}

#[tokio::test]
async fn errors_do_not_name_what_is_outside_of_the_scope() {
    let (rig, local) = Caller::new(Origin::Socket).await;
    local.post("/volumes", json!({"name": "web-1", "size_bytes": 1 << 20})).await;
    for snapshot in ["cloned", "mapped"] {
        local.post("/volumes/web-1/snapshots", json!({"name": snapshot})).await;
    }
    local.post("/clones", json!({"source": "web-1@cloned", "name": "merger-acme"})).await;
    let iqn = "iqn.2026-11.org.example:merger-acme";
    local.post("/targets", json!({"name": iqn})).await;
    let (status, mapped) = local.post(&format!("/targets/{iqn}/luns"), json!({"disk": "web-1@mapped"})).await;
    assert_eq!(status, StatusCode::CREATED, "{mapped}");
    let operator = token(&rig, "operator", Role::Operator, disks("web-*"));
    let provisioner = token(&rig, "provisioner", Role::Provisioner, disks("web-*"));
    let wider = token(&rig, "wider", Role::Provisioner, disks("*"));
    let api = Caller(router(
        rig.control.clone(),
        rig.access.clone(),
        forebay_control::http::Entry::new(Origin::Remote, &[]),
    ));
    for (snapshot, expected) in [("cloned", "has_clones"), ("mapped", "mapped")] {
        let path = format!("/volumes/web-1/snapshots/{snapshot}");
        for secret in [&operator, &provisioner] {
            let (status, code, problem) =
                answer(&api, Method::DELETE, &path, Some(secret), Value::Null).await;
            assert_eq!((status, &*code), (409, expected));
            assert!(!problem.to_string().contains("merger"), "{problem}");
        }
        let (_, code, problem) = answer(&local, Method::DELETE, &path, None, Value::Null).await;
        assert!(code == expected && problem.to_string().contains("merger"), "{problem}");
    }
    // The error names a clone that is in the scope of the token.
    let path = "/volumes/web-1/snapshots/cloned";
    let (_, _, problem) = answer(&api, Method::DELETE, path, Some(&wider), Value::Null).await;
    assert!(problem["detail"].as_str().unwrap().contains("merger-acme"), "{problem}");
}

#[tokio::test]
async fn a_provisioner_creates_and_removes_disks_within_its_scope_only() {
    let (rig, local) = Caller::new(Origin::Socket).await;
    let acme = token(&rig, "acme", Role::Provisioner, disks("acme.*"));
    let exact = token(&rig, "exact", Role::Provisioner, disks("acme.x*1"));
    let api = Caller(router(
        rig.control.clone(),
        rig.access.clone(),
        forebay_control::http::Entry::new(Origin::Remote, &[]),
    ));
    let code = async |token: &str, method: Method, path: &str, body: Value| {
        let (status, code, _) = answer(&api, method, path, Some(token), body).await;
        if code.is_empty() { status.to_string() } else { code }
    };
    let volume = |name: &str| json!({"name": name, "size_bytes": 1 << 20});
    local.post("/volumes", volume("other.vm-1")).await;
    local.post("/volumes/other.vm-1/snapshots", json!({"name": "s"})).await;
    // All that a storage of Proxmox VE does.
    assert_eq!(code(&acme, Method::POST, "/volumes", volume("acme.vm-1")).await, "201");
    assert_eq!(code(&acme, Method::POST, "/images/acme.base-1", json!({"source": "acme.vm-1"})).await, "201");
    let clone = json!({"source": "acme.base-1", "name": "acme.vm-2"});
    assert_eq!(code(&acme, Method::POST, "/clones", clone).await, "201");
    let fleet = json!({"source": "acme.base-1", "name": "acme.d", "count": 2});
    assert_eq!(code(&acme, Method::POST, "/clones", fleet).await, "201");
    let larger = json!({"size_bytes": 2 << 20});
    assert_eq!(code(&acme, Method::POST, "/volumes/acme.vm-2/resize", larger).await, "200");
    assert_eq!(code(&acme, Method::POST, "/volumes/acme.vm-2/snapshots", json!({"name": "s"})).await, "201");
    assert_eq!(code(&acme, Method::DELETE, "/volumes/acme.vm-2/snapshots/s", Value::Null).await, "200");
    for (from, to) in [("acme.vm-2", "acme.vm-3"), ("acme.vm-3", "acme.vm-2")] {
        let path = format!("/volumes/{from}/rename");
        assert_eq!(code(&acme, Method::POST, &path, json!({"name": to})).await, "200");
    }
    let (_, _, capacity) = answer(&api, Method::GET, "/capacity", Some(&acme), Value::Null).await;
    assert!(capacity["pool"].is_string() && capacity["total_bytes"].is_u64(), "{capacity}");
    for name in ["vm-1", "vm-2", "d-001", "d-002"] {
        let path = format!("/volumes/acme.{name}");
        assert_eq!(code(&acme, Method::DELETE, &path, Value::Null).await, "200", "{name}");
    }
    assert_eq!(code(&acme, Method::DELETE, "/images/acme.base-1", Value::Null).await, "200");
    // Neither disks outside of the scope nor the server.
    for (method, path, body, expected) in [
        (Method::POST, "/volumes", volume("other.vm-2"), "not_found"),
        (Method::POST, "/volumes", volume("acme"), "not_found"),
        (Method::DELETE, "/volumes/other.vm-1", Value::Null, "not_found"),
        (Method::POST, "/volumes/other.vm-1/rename", json!({"name": "acme.vm-1"}), "not_found"),
        (Method::POST, "/volumes/acme.vm-1/rename", json!({"name": "other.vm-2"}), "not_found"),
        (Method::POST, "/clones", json!({"source": "other.vm-1@s", "name": "acme.vm-1"}), "not_found"),
        (Method::POST, "/images/acme.base-1", json!({"source": "other.vm-1"}), "not_found"),
        (
            Method::POST,
            "/volumes",
            json!({"name": "acme.a", "size_bytes": 512, "dedup_domain": 1}),
            "forbidden",
        ),
        (Method::POST, "/images", json!({"name": "acme.a", "source": {"url": "http://a/"}}), "forbidden"),
        (Method::GET, "/pool", Value::Null, "forbidden"),
        (Method::GET, "/stats", Value::Null, "forbidden"),
        (Method::GET, "/targets", Value::Null, "forbidden"),
        (Method::POST, "/tokens", json!({"name": "t", "role": "reader"}), "forbidden"),
    ] {
        assert_eq!(code(&acme, method.clone(), path, body).await, expected, "{method} {path}");
    }
    // The names of a fleet are not known before: all possible ones have to be in the scope.
    assert_eq!(code(&exact, Method::POST, "/volumes", volume("acme.x1")).await, "201");
    let fleet = json!({"source": "acme.x1", "name": "acme.x-1", "count": 2});
    assert_eq!(code(&exact, Method::POST, "/clones", fleet).await, "forbidden");
}

fn cookie(response: &axum::response::Response) -> String {
    let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap();
    for attribute in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    cookie.split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_session_lasts_until_logout_or_until_its_token_is_revoked() {
    use tower::ServiceExt;
    let (rig, _) = Caller::new(Origin::Socket).await;
    let secret = token(&rig, "page", Role::Reader, None);
    for tls in [false, true] {
        let mut entry = forebay_control::http::Entry::new(Origin::Remote, &[]);
        entry.tls = tls;
        let api = Caller(router(rig.control.clone(), rig.access.clone(), entry));
        let login = async |secret: &str| {
            let request = request(Method::POST, "/session", None, json!({"token": secret}));
            api.0.clone().oneshot(request).await.unwrap()
        };
        let with = |method: Method, path: &str, cookie: &str| {
            let mut request = request(method, path, None, Value::Null);
            request.headers_mut().insert(header::COOKIE, cookie.parse().unwrap());
            request
        };
        assert_eq!(login("wrong").await.status(), StatusCode::UNAUTHORIZED);
        let begun = login(&secret).await;
        assert_eq!(begun.status(), StatusCode::CREATED);
        let audit = rig.audit();
        let last = audit.lines().last().unwrap();
        assert!(last.contains("\"who\":\"page\"") && last.contains("/session"), "{last}");
        assert_eq!(begun.headers()[header::SET_COOKIE].to_str().unwrap().contains("; Secure"), tls);
        assert_eq!(begun.headers().contains_key(header::STRICT_TRANSPORT_SECURITY), tls);
        let (one, two) = (cookie(&begun), cookie(&login(&secret).await));
        assert_ne!(one, two);
        assert!(!one.contains(&secret));
        let (status, shown) = api.send(with(Method::GET, "/session", &one)).await;
        assert_eq!(
            (status.as_u16(), &shown["name"], &shown["via"]),
            (200, &json!("page"), &json!("session"))
        );
        // A page of another site cannot use the cookie.
        let mut foreign = with(Method::GET, "/session", &one);
        foreign.headers_mut().insert(header::ORIGIN, "https://evil.example".parse().unwrap());
        assert_eq!(api.send(foreign).await.0, StatusCode::FORBIDDEN);
        // If this server has TLS, a page of the same host without TLS cannot use the cookie either, because
        // an attacker on the network can change such a page.
        for (origin, is_tls) in [("http://localhost", false), ("https://localhost", true)] {
            let mut request = with(Method::GET, "/session", &one);
            request.headers_mut().insert(header::ORIGIN, origin.parse().unwrap());
            let status = if is_tls == tls { StatusCode::OK } else { StatusCode::FORBIDDEN };
            assert_eq!(api.send(request).await.0, status, "{origin}");
        }
        // Another port of the host can add a cookie: its session is not used instead.
        let both = with(Method::GET, "/session", &format!("{one}; {two}"));
        assert_eq!(api.send(both).await.0, StatusCode::UNAUTHORIZED);
        let mut foreign = with(Method::POST, "/volumes/x/reset", &one);
        foreign.headers_mut().remove(HEADER);
        assert_eq!(api.send(foreign).await.1["code"], "header_missing");

        assert_eq!(api.send(with(Method::DELETE, "/session", &one)).await.0, StatusCode::OK);
        assert_eq!(api.send(with(Method::GET, "/session", &one)).await.0, StatusCode::UNAUTHORIZED);
        assert_eq!(api.send(with(Method::GET, "/session", &two)).await.0, StatusCode::OK);
        if tls {
            rig.access.tokens.revoke("page").unwrap();
            assert_eq!(api.send(with(Method::GET, "/session", &two)).await.0, StatusCode::UNAUTHORIZED);
        }
    }
}

#[tokio::test]
async fn a_login_ends_the_former_session_of_the_browser() {
    use tower::ServiceExt;
    let (rig, _) = Caller::new(Origin::Socket).await;
    let (reader, administrator) =
        (token(&rig, "reader", Role::Reader, None), token(&rig, "administrator", Role::Administrator, None));
    let entry = forebay_control::http::Entry::new(Origin::Remote, &[]);
    let api = Caller(router(rig.control.clone(), rig.access.clone(), entry));
    let with = |mut request: Request<Body>, cookie: Option<&str>| {
        if let Some(cookie) = cookie {
            request.headers_mut().insert(header::COOKIE, cookie.parse().unwrap());
        }
        request
    };
    let login = async |token: &str, former: Option<&str>| {
        let request = with(request(Method::POST, "/session", None, json!({"token": token})), former);
        api.0.clone().oneshot(request).await.unwrap()
    };
    let show = async |cookie: &str| {
        let request = with(request(Method::GET, "/session", None, Value::Null), Some(cookie));
        api.send(request).await.0
    };
    let first = cookie(&login(&administrator, None).await);
    assert_eq!(login("wrong", Some(&first)).await.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(show(&first).await, StatusCode::OK, "a login that fails ends no session");
    let second = cookie(&login(&reader, Some(&first)).await);
    assert_eq!((show(&first).await, show(&second).await), (StatusCode::UNAUTHORIZED, StatusCode::OK));
}

#[tokio::test]
async fn a_reader_displaces_nothing_of_an_administrator() {
    use tower::ServiceExt;
    let (rig, _) = Caller::new(Origin::Socket).await;
    let reader = token(&rig, "reader", Role::Reader, disks("web-*"));
    let administrator = token(&rig, "administrator", Role::Administrator, None);
    let entry = forebay_control::http::Entry::new(Origin::Remote, &[]);
    let api = Caller(router(rig.control.clone(), rig.access.clone(), entry));
    let login = async |token: &str| {
        let request = request(Method::POST, "/session", None, json!({"token": token}));
        api.0.clone().oneshot(request).await.unwrap()
    };
    let create = async || {
        let body = json!({"name": "v", "size_bytes": 1 << 20});
        let mut create = request(Method::POST, "/volumes", Some(&administrator), body);
        create.headers_mut().insert("idempotency-key", "k".parse().unwrap());
        api.0.clone().oneshot(create).await.unwrap()
    };
    let session = cookie(&login(&administrator).await);
    assert_eq!(create().await.status(), StatusCode::CREATED);
    for n in 0..1100 {
        login(&reader).await;
        let mut refused = request(Method::POST, "/volumes/web-1/reset", Some(&reader), Value::Null);
        refused.headers_mut().insert("idempotency-key", n.to_string().parse().unwrap());
        assert_eq!(api.send(refused).await.0, StatusCode::FORBIDDEN);
    }
    let mut shown = request(Method::GET, "/session", None, Value::Null);
    shown.headers_mut().insert(header::COOKIE, session.parse().unwrap());
    assert_eq!(api.send(shown).await.0, StatusCode::OK);
    assert!(create().await.headers().contains_key("idempotency-replayed"), "the request ran again");
}

#[tokio::test]
async fn failed_attempts_are_limited_by_address_and_a_valid_token_is_always_accepted() {
    let (rig, api) = Caller::new(Origin::Remote).await;
    let secret = token(&rig, "a", Role::Reader, None);
    let from = |address: [u8; 4], token: &str| {
        let mut request = request(Method::GET, "/pool", Some(token), Value::Null);
        request.extensions_mut().insert(Peer(Some(address.into())));
        request
    };
    // Failed logins count as well, and what is no login at all is not logged.
    for body in [json!({}), json!({"token": "wrong"})] {
        let mut login = request(Method::POST, "/session", None, body);
        login.extensions_mut().insert(Peer(Some([192, 0, 2, 1].into())));
        assert!(api.send(login).await.0.is_client_error());
    }
    let mut codes = Vec::new();
    for _ in 0..20 {
        codes.push(api.send(from([192, 0, 2, 1], "wrong")).await.0.as_u16());
    }
    assert!(codes.starts_with(&[401; 9]) && codes.ends_with(&[429; 9]), "{codes:?}");
    assert_eq!(api.send(from([192, 0, 2, 1], &secret)).await.0, StatusCode::OK);
    assert_eq!(api.send(from([192, 0, 2, 2], "wrong")).await.0, StatusCode::UNAUTHORIZED);
    let audit = rig.audit();
    assert!(audit.lines().count() <= 12, "the log is bounded: {audit}");
    assert!(audit.contains("192.0.2.1") && audit.contains("bad_token"), "{audit}");
}

#[tokio::test]
async fn changes_are_audited_with_their_results() {
    let (rig, api) = Caller::new(Origin::Loopback).await;
    let secret = token(&rig, "robot", Role::Administrator, None);
    let body = json!({"name": "v", "size_bytes": 1 << 20});
    answer(&api, Method::POST, "/volumes", Some(&secret), body.clone()).await;
    answer(&api, Method::POST, "/volumes", Some(&secret), body).await;
    answer(&api, Method::GET, "/volumes", Some(&secret), Value::Null).await;
    let audit = rig.audit();
    let lines: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found: Vec<_> = lines.iter().map(|l| (&l["who"], &l["path"], &l["status"], &l["code"])).collect();
    let path = json!("/api/v1/volumes");
    assert_eq!(
        found,
        [
            (&json!("robot"), &path, &json!(201), &json!(null)),
            (&json!("robot"), &path, &json!(409), &json!("exists"))
        ]
    );
}

#[tokio::test]
async fn a_long_path_is_shortened_in_the_audit_log_and_in_events() {
    let (rig, api) = Caller::new(Origin::Remote).await;
    let secret = token(&rig, "reader", Role::Reader, None);
    let mut events = rig.control.events().subscribe(None);
    let path = format!("/volumes/{}", "v".repeat(45_000));
    let (status, code, _) = answer(&api, Method::DELETE, &path, Some(&secret), Value::Null).await;
    assert_eq!((status, &*code), (403, "forbidden"));
    let Some(Delivery::Event(event)) = events.try_next() else { panic!("no event") };
    let audited: Value = serde_json::from_str(&rig.audit()).unwrap();
    for record in [&event.data, &audited] {
        let shown = record["path"].as_str().unwrap();
        assert!(shown.starts_with("/api/v1/volumes/vvv") && shown.ends_with('…'), "{shown}");
        assert!(shown.len() < 300, "{}", shown.len());
    }
}

#[tokio::test]
async fn responses_have_security_headers_and_errors_are_problems() {
    use tower::ServiceExt;
    let (rig, api) = Caller::new(Origin::Remote).await;
    let secret = token(&rig, "a", Role::Administrator, None);
    for (path, status) in [("/pool", 200), ("/nothing", 404), ("/volumes/none", 404)] {
        let response =
            api.0.clone().oneshot(request(Method::GET, path, Some(&secret), Value::Null)).await.unwrap();
        assert_eq!(response.status().as_u16(), status);
        let headers = response.headers();
        for name in
            ["content-security-policy", "x-content-type-options", "x-frame-options", "referrer-policy"]
        {
            assert!(headers.contains_key(name), "{path} {name}");
        }
        let cached = if status == 200 { "private, no-cache" } else { "no-store" };
        assert_eq!(headers["cache-control"], cached);
        let media_type = if status == 200 { "application/json" } else { "application/problem+json" };
        assert_eq!(headers["content-type"], media_type, "{path}");
    }
    let huge = Request::post(format!("{PREFIX}/volumes"))
        .header(header::HOST, "localhost")
        .header(header::AUTHORIZATION, format!("Bearer {secret}"))
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(format!("{{\"name\": \"{}\"}}", "x".repeat(2 << 20))))
        .unwrap();
    let (status, problem) = api.send(huge).await;
    assert_eq!((status.as_u16(), &problem["status"]), (413, &json!(413)));
    for field in ["type", "title", "detail", "code", "remedy"] {
        assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {problem}");
    }
}
