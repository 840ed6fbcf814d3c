//! Exports: the files have the contents as of one moment, and an export that ends early leaves nothing.

use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use axum::response::Response;
use forebay_api::export::{DifferenceLine, ExtentHeader};
use forebay_api::import::Format;
use forebay_api::{CreateToken, PREFIX, Role, Scope};
use forebay_control::http::{Entry, Origin};
use forebay_control::resources::router;
use forebay_engine::{PoolConfig, SyncMode};
use forebay_store::Store;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::api::Caller;
use crate::common::{Rig, disk_bytes, have_qemu_img, qemu_img};

const MIB: usize = 1 << 20;

async fn write(rig: &Rig, name: &str, offset: usize, bytes: &[u8]) {
    let disk = rig.control.pool().attach(name).unwrap();
    for (i, piece) in bytes.chunks(MIB).enumerate() {
        disk.write((offset + i * MIB) as u64, piece, false).await.unwrap();
    }
    disk.flush().await.unwrap();
}

/// Creates a volume with these contents.
async fn volume(rig: &Rig, name: &str, bytes: &[u8]) {
    rig.control.pool().create_volume(name, bytes.len() as u64, SyncMode::Flush, 0).await.unwrap();
    // Blocks of zeroes are holes.
    for (i, piece) in bytes.chunks(4096).enumerate() {
        if piece.iter().any(|b| *b != 0) {
            let disk = rig.control.pool().attach(name).unwrap();
            disk.write(i as u64 * 4096, piece, false).await.unwrap();
        }
    }
}

/// Requests an export.
async fn request(api: &Caller, path: &str, token: Option<&str>) -> Response {
    let request = Request::builder().uri(format!("{PREFIX}{path}")).header(header::HOST, "localhost");
    let request = match token {
        Some(token) => request.header(header::AUTHORIZATION, format!("Bearer {token}")),
        None => request,
    };
    api.0.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

/// The bytes of an export.
async fn export(api: &Caller, path: &str) -> Vec<u8> {
    let response = request(api, path, None).await;
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    let exact = hyper::body::Body::size_hint(response.body()).exact();
    let bytes = response.into_body().collect().await.unwrap().to_bytes().to_vec();
    let is_known = !path.ends_with("extents");
    assert_eq!(exact, is_known.then_some(bytes.len() as u64), "{path}");
    bytes
}

/// The disk in the format of extents, and the number of bytes of data.
fn from_extents(mut bytes: &[u8]) -> (Vec<u8>, usize) {
    let (mut disk, mut data) = (Vec::new(), 0);
    loop {
        let (header, rest) = bytes.split_first_chunk().expect("an export without an end");
        let ExtentHeader { offset, len } = ExtentHeader::decode(header);
        let (piece, rest) = rest.split_at(len as usize);
        assert!(offset as usize >= disk.len());
        disk.resize(offset as usize, 0);
        disk.extend(piece);
        data += piece.len();
        bytes = rest;
        if len == 0 {
            assert!(rest.is_empty());
            return (disk, data);
        }
    }
}

/// The state of the job of an export, when it has ended.
async fn ended_job(api: &Caller) -> Value {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let jobs = api.get("/jobs").await.1;
        if !jobs[0]["ended_ms"].is_null() {
            return jobs[0].clone();
        }
        assert!(Instant::now() < until, "{jobs}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn an_exported_disk_is_imported_again() {
    let (rig, api) = Caller::new(Origin::Loopback).await;
    // The disk ends within a cluster.
    let contents = disk_bytes(20 * MIB + 512, 5);
    volume(&rig, "web 1", &contents).await;
    let path = "/volumes/web%201/export";
    assert!(export(&api, &format!("{path}?format=raw")).await == contents);
    let (disk, data) = from_extents(&export(&api, &format!("{path}?format=extents")).await);
    assert!(disk == contents && data < contents.len() / 2, "{data} bytes of data");
    let file = rig.path("exported.qcow2");
    std::fs::write(&file, export(&api, path).await).unwrap();
    assert!(std::fs::metadata(&file).unwrap().len() < contents.len() as u64);
    rig.import("again", &file, Format::Auto).await.unwrap();
    let imported = rig.contents("again").await;
    assert!(imported == contents);

    let (_, job) = (api.get("/jobs").await, ended_job(&api).await);
    assert_eq!(job["kind"], "import");
    let all = api.get("/jobs").await.1;
    let exports = all.as_array().unwrap().iter().filter(|job| job["kind"] == "export");
    assert!(exports.clone().all(|job| job["state"] == "done" && job["disk"] == "web 1"), "{all}");
    assert_eq!(exports.count(), 3);
    assert!(rig.audit().contains("/api/v1/volumes/web%201/export"), "a disclosure is audited");

    if have_qemu_img() {
        std::fs::write(rig.path("raw"), &contents).unwrap();
        qemu_img(&["check", "-q", "-f", "qcow2", "exported.qcow2"], rig.dir.path());
        qemu_img(&["compare", "-q", "-f", "qcow2", "-F", "raw", "exported.qcow2", "raw"], rig.dir.path());
    }
}

#[tokio::test]
async fn large_and_empty_disks_are_small_files() {
    let (rig, api) = Caller::new(Origin::Loopback).await;
    for (name, size) in [("sector", 512u64), ("large", 64 << 40)] {
        rig.control.pool().create_volume(name, size, SyncMode::Flush, 0).await.unwrap();
    }
    let large = rig.control.pool().attach("large").unwrap();
    for at in [0, (3 << 40) - 4096, (64 << 40) - 4096] {
        large.write(at, &[7; 4096], true).await.unwrap();
    }
    for (name, most) in [("sector", 4 << 16), ("large", 3 * MIB)] {
        let bytes = export(&api, &format!("/volumes/{name}/export?format=qcow2")).await;
        assert!(bytes.len() <= most, "{name}: {} bytes", bytes.len());
        std::fs::write(rig.path(name), bytes).unwrap();
        if have_qemu_img() {
            qemu_img(&["check", "-q", "-f", "qcow2", name], rig.dir.path());
        }
        rig.import(&format!("{name} again"), &rig.path(name), Format::Qcow2).await.unwrap();
    }
    let again = rig.control.pool().attach("large again").unwrap();
    for (at, byte) in [(0, 7), (1 << 40, 0), ((3 << 40) - 4096, 7), ((64 << 40) - 512, 7)] {
        let mut sector = [1; 512];
        again.read(at, &mut sector).await.unwrap();
        assert_eq!(sector, [byte; 512], "at {at}");
    }
}

#[tokio::test]
async fn writes_during_an_export_are_not_in_the_file() {
    let (rig, api) = Caller::new(Origin::Loopback).await;
    let contents = disk_bytes(24 * MIB, 6);
    volume(&rig, "v", &contents).await;
    let mut body = request(&api, "/volumes/v/export?format=raw", None).await.into_body();
    let mut exported = body.frame().await.unwrap().unwrap().into_data().unwrap().to_vec();
    write(&rig, "v", 0, &vec![0xee; 24 * MIB]).await;
    exported.extend(body.collect().await.unwrap().to_bytes());
    assert!(exported == contents);
}

#[tokio::test]
async fn an_export_that_ends_early_frees_its_copy() {
    let rig = Rig::with(PoolConfig { max_disks: 2, ..PoolConfig::default() }).await;
    let api = Caller(router(rig.control.clone(), rig.access.clone(), Entry::new(Origin::Loopback, &[])));
    for how in ["disconnect", "cancel", "stop"] {
        volume(&rig, "v", &[&disk_bytes(4 * MIB, 1)[..], &vec![9; 28 * MIB]].concat()).await;
        let response = request(&api, "/volumes/v/export?format=raw", None).await;
        let job = response.headers()["x-forebay-job"].to_str().unwrap().to_owned();
        let mut body = response.into_body();
        body.frame().await.unwrap().unwrap();
        // The volume can be removed at the same time.
        assert_eq!(api.delete("/volumes/v").await.0, StatusCode::OK);
        match how {
            "disconnect" => drop(body),
            "cancel" => {
                assert_eq!(api.delete(&format!("/jobs/{job}")).await.0, StatusCode::OK);
                assert!(body.collect().await.is_err(), "the response seems to be complete");
            }
            _ => {
                rig.control.stop(Duration::from_secs(60)).await;
                assert!(body.collect().await.is_err(), "the response seems to be complete");
            }
        }
        let job = ended_job(&api).await;
        assert_eq!(job["state"], "cancelled", "{how}: {job}");
        // The pool has room for two disks, so the copy is gone.
        for name in ["one", "two"] {
            rig.control.pool().create_volume(name, 4096, SyncMode::Flush, 0).await.expect(how);
        }
        for name in ["one", "two"] {
            rig.control.pool().delete(name).await.unwrap();
        }
    }
}

/// A client may disconnect before the copy of the disk is made.
#[tokio::test]
async fn an_export_without_a_client_leaves_no_copy() {
    let rig = Rig::with(PoolConfig { max_disks: 2, ..PoolConfig::default() }).await;
    let api = Caller(router(rig.control.clone(), rig.access.clone(), Entry::new(Origin::Loopback, &[])));
    volume(&rig, "v", &disk_bytes(MIB, 1)).await;
    for polls in 0..8 {
        let mut exporting = Box::pin(request(&api, "/volumes/v/export?format=raw", None));
        for _ in 0..polls {
            tokio::select! {
                biased;
                _ = &mut exporting => break,
                () = tokio::task::yield_now() => {}
            }
        }
        drop(exporting);
        // The pool has room for one more disk when the copy is gone.
        let until = Instant::now() + Duration::from_secs(60);
        while rig.control.pool().create_volume("one", 4096, SyncMode::Flush, 0).await.is_err() {
            assert!(Instant::now() < until, "the copy remains after {polls} polls");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        rig.control.pool().delete("one").await.unwrap();
    }
}

#[tokio::test]
async fn damaged_data_ends_an_export_with_the_reason_in_its_job() {
    let rig = Rig::with(PoolConfig { read_cache: 0, ..PoolConfig::default() }).await;
    let api = Caller(router(rig.control.clone(), rig.access.clone(), Entry::new(Origin::Loopback, &[])));
    let contents: Vec<u8> =
        (0..24 * MIB as u64 / 8).flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()).collect();
    volume(&rig, "v", &contents).await;
    rig.control.pool().flush().await.unwrap();
    let needle = &contents[20 * MIB..20 * MIB + 64];
    for object in rig.store.list().await.unwrap() {
        rig.store.damage(object.id, |bytes| {
            if let Some(at) = bytes.windows(64).position(|found| found == needle) {
                bytes[at] ^= 1;
            }
        });
    }
    let response = request(&api, "/volumes/v/export", None).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.into_body().collect().await.is_err(), "the response seems to be complete");
    let job = ended_job(&api).await;
    assert_eq!((&job["state"], &job["error"]["code"]), (&json!("failed"), &json!("damaged")), "{job}");
}

#[tokio::test]
async fn an_export_needs_the_right_to_read_data() {
    let (rig, local) = Caller::new(Origin::Socket).await;
    for name in ["web-1", "mail"] {
        volume(&rig, name, &disk_bytes(MIB, 3)).await;
    }
    local.post("/volumes/web-1/snapshots", json!({"name": "s"})).await;
    let token = |name: &str, role| {
        let scope = Some(Scope::Disks(vec!["web-*".parse().unwrap()]));
        let new = CreateToken { name: name.into(), role, scope, expires_in_s: None, max_disks: None };
        rig.access.tokens.create(new).unwrap().secret
    };
    let (operator, provisioner) =
        (token("operator", Role::Operator), token("provisioner", Role::Provisioner));
    let api = Caller(router(rig.control.clone(), rig.access.clone(), Entry::new(Origin::Remote, &[])));
    for (disk, secret, status) in [
        ("web-1", None, 401),
        ("web-1", Some(&operator), 403),
        ("web-1", Some(&provisioner), 200),
        ("web-1@s", Some(&provisioner), 200),
        ("mail", Some(&provisioner), 404),
        ("none", Some(&provisioner), 404),
    ] {
        let path = format!("/volumes/{disk}/export?format=raw");
        let response = request(&api, &path, secret.map(String::as_str)).await;
        assert_eq!(response.status().as_u16(), status, "{path}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(status != 200 || body == disk_bytes(MIB, 3));
    }
    // A token that is revoked ends its export.
    rig.control.pool().resize("web-1", 64 << 20).await.unwrap();
    let mut body = request(&api, "/volumes/web-1/export?format=raw", Some(&provisioner)).await.into_body();
    body.frame().await.unwrap().unwrap();
    rig.access.tokens.revoke("provisioner").unwrap();
    assert!(body.collect().await.is_err(), "the response seems to be complete");
}

#[tokio::test]
async fn what_cannot_be_exported_is_refused_before_the_first_byte() {
    let (rig, api) = Caller::new(Origin::Loopback).await;
    std::fs::write(rig.path("golden"), disk_bytes(MIB, 1)).unwrap();
    rig.import("golden", &rig.path("golden"), Format::Raw).await.unwrap();
    let desktop = json!({"source": "golden", "name": "desk", "write_cache_bytes": 1 << 20});
    assert_eq!(api.post("/clones", desktop).await.0, StatusCode::CREATED);
    for (path, status, code) in [
        ("/volumes/desk/export", 409, "wrong_kind"),
        ("/volumes/none/export", 404, "not_found"),
        ("/volumes/golden/export?format=vmdk", 400, "bad_request"),
        ("/volumes/golden/export?form=raw", 400, "bad_request"),
    ] {
        api.refuses(Method::GET, path, Value::Null, status, code).await;
    }
    // A client that does not read its exports leaves some to other clients.
    rig.control.pool().create_volume("v", 64 << 20, SyncMode::Flush, 0).await.unwrap();
    let mut open = Vec::new();
    for _ in 0..4 {
        open.push(request(&api, "/volumes/v/export?format=raw", None).await);
    }
    api.refuses(Method::GET, "/volumes/v/export", Value::Null, 409, "bad_state").await;
    drop(open);
}

/// The lines of a difference.
async fn differences(api: &Caller, path: &str) -> Vec<DifferenceLine> {
    let response = request(api, path, None).await;
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/x-ndjson");
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_difference_lists_what_has_changed() {
    let (rig, api) = Caller::new(Origin::Loopback).await;
    volume(&rig, "v", &vec![7; 4 * MIB]).await;
    let pool = rig.control.pool();
    pool.create_snapshot("v", "a").await.unwrap();
    // More ranges than one look-up returns, of which a page can end within a range.
    for n in 0..300 {
        write(&rig, "v", n * 8192, &[8; 4096]).await;
    }
    write(&rig, "v", 3 * MIB, &[9; 8192]).await;
    pool.attach("v").unwrap().discard(3 * MIB as u64 + 8192, 4096, false).await.unwrap();
    pool.create_snapshot("v", "b").await.unwrap();
    pool.resize("v", 5 << 20).await.unwrap();
    write(&rig, "v", 4 * MIB, &[1; 4096]).await;

    let data = |offset_bytes, length_bytes| DifferenceLine::Data { offset_bytes, length_bytes };
    let zero = |offset_bytes, length_bytes| DifferenceLine::Zero { offset_bytes, length_bytes };
    let mib = MIB as u64;
    let mut expected: Vec<_> = (0..300).map(|n| data(n * 8192, 4096)).collect();
    expected.extend([data(3 * mib, 8192), zero(3 * mib + 8192, 4096)]);
    let end = |size_bytes, from_size_bytes, data_bytes, zero_bytes| DifferenceLine::End {
        size_bytes,
        from_size_bytes,
        data_bytes,
        zero_bytes,
    };
    let written = 302 * 4096;
    expected.push(end(4 * mib, Some(4 * mib), written, 4096));
    for from in ["a", "v%40a"] {
        assert_eq!(differences(&api, &format!("/volumes/v@b/differences?from={from}")).await, expected);
    }
    let since_b = [data(4 * mib, 4096), end(5 * mib, Some(4 * mib), 4096, 0)];
    assert_eq!(differences(&api, "/volumes/v/differences?from=b").await, since_b);
    let all = [data(0, 4 * mib), end(4 * mib, None, 4 * mib, 0)];
    assert_eq!(differences(&api, "/volumes/v@a/differences").await, all);

    for (query, status) in [
        ("from=other", StatusCode::NOT_FOUND),
        ("from=v", StatusCode::CONFLICT),
        ("from=", StatusCode::BAD_REQUEST),
        ("from=a&x=1", StatusCode::BAD_REQUEST),
        ("to=a", StatusCode::BAD_REQUEST),
        ("from=%ff", StatusCode::BAD_REQUEST),
    ] {
        let response = request(&api, &format!("/volumes/v/differences?{query}"), None).await;
        assert_eq!(response.status(), status, "{query}");
    }
    // The snapshot is not in use any more, and no copy remains.
    let until = Instant::now() + Duration::from_secs(60);
    while pool.delete("v@a").await.is_err() {
        assert!(Instant::now() < until, "the snapshot stays in use");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_difference_requires_the_right_for_both_disks() {
    let (rig, _) = Caller::new(Origin::Socket).await;
    for name in ["mine", "theirs"] {
        volume(&rig, name, &disk_bytes(MIB, 3)).await;
        rig.control.pool().create_snapshot(name, "s").await.unwrap();
    }
    let token = |name: &str, role| {
        let scope = Some(Scope::Disks(vec!["mine".parse().unwrap()]));
        let new = CreateToken { name: name.into(), role, scope, expires_in_s: None, max_disks: None };
        rig.access.tokens.create(new).unwrap().secret
    };
    let (operator, provisioner) =
        (token("operator", Role::Operator), token("provisioner", Role::Provisioner));
    let api = Caller(router(rig.control.clone(), rig.access.clone(), Entry::new(Origin::Remote, &[])));
    for (disk, from, secret, status) in [
        ("mine", "s", None, 401),
        ("mine", "s", Some(&operator), 403),
        ("mine", "s", Some(&provisioner), 200),
        ("mine", "theirs%40s", Some(&provisioner), 404),
        ("theirs", "s", Some(&provisioner), 404),
    ] {
        let path = format!("/volumes/{disk}/differences?from={from}");
        let response = request(&api, &path, secret.map(String::as_str)).await;
        assert_eq!(response.status().as_u16(), status, "{path}");
    }
}
