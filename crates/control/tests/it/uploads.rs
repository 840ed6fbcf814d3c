//! Uploads of image files: pieces, repetitions, bounds, and the import.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use forebay_control::http::{Entry, Origin};
use forebay_control::resources::router;
use serde_json::{Value, json};

use crate::api::Caller;
use crate::common::{Rig, disk_bytes};

/// Sends a piece, and returns the status and the response.
async fn piece(api: &Caller, id: &Value, offset: usize, bytes: &[u8]) -> (StatusCode, Value) {
    let request = Request::builder()
        .method(Method::PUT)
        .uri(format!("/api/v1/uploads/{id}/{offset}"))
        .header("host", "localhost")
        .header("x-forebay", "1")
        .body(Body::from(bytes.to_vec()))
        .unwrap();
    api.send(request).await
}

async fn begin(api: &Caller, image: &str, len: usize) -> Value {
    let body = json!({"image": image, "file_name": "disk.img", "len_bytes": len});
    let (status, made) = api.post("/uploads", body).await;
    assert_eq!((status, &made["received_bytes"]), (StatusCode::CREATED, &json!(0)), "{made}");
    made["id"].clone()
}

#[tokio::test]
async fn pieces_are_stored_once_and_imported() {
    let (rig, api) = Caller::new(Origin::Loopback).await;
    let file = disk_bytes(3 << 20, 21);
    let id = begin(&api, "debian", file.len()).await;
    let import = json!({"name": "debian", "source": {"upload": id}});
    let mut sent = 0;
    while sent < file.len() {
        api.refuses(Method::POST, "/images", import.clone(), 409, "bad_state").await;
        let end = (sent + 700_000).min(file.len());
        // The client has not received the response to the first request.
        for _ in 0..2 {
            let (status, view) = piece(&api, &id, sent, &file[sent..end]).await;
            assert_eq!((status, &view["received_bytes"]), (StatusCode::OK, &json!(end)), "{view}");
        }
        let (status, refused) = piece(&api, &id, end + 1, b"x").await;
        assert_eq!(
            (status, &refused["code"]),
            (StatusCode::BAD_REQUEST, &json!("out_of_range")),
            "{refused}"
        );
        sent = end;
        assert_eq!(api.get(&format!("/uploads/{id}")).await.1["received_bytes"], json!(sent));
    }
    // A piece may begin with bytes that were received, but not end after the file.
    assert_eq!(piece(&api, &id, sent - 10, &[7; 10]).await.0, StatusCode::OK);
    assert_eq!(piece(&api, &id, sent - 10, &[7; 11]).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(piece(&api, &id, 0, &vec![7; (1 << 20) + 1]).await.0, StatusCode::PAYLOAD_TOO_LARGE);

    // A failed import leaves the upload.
    let wrong = json!({"name": "debian", "source": {"upload": id}, "format": "qcow2"});
    api.refuses(Method::POST, "/images", wrong, 400, "bad_source").await;
    let (status, done) = api.post("/images", import.clone()).await;
    assert_eq!(status, StatusCode::OK, "{done}");
    assert!(rig.contents("debian").await == file);
    let audit = rig.audit();
    let pieces = audit.lines().filter(|line| line.contains("PUT") && line.contains("200")).count();
    assert_eq!(pieces, 0, "pieces are not audited: {audit}");
    assert!(audit.contains("/api/v1/uploads") && audit.contains("out_of_range"), "{audit}");

    api.refuses(Method::GET, &format!("/uploads/{id}"), Value::Null, 404, "not_found").await;
    let again = json!({"name": "again", "source": {"upload": id}});
    api.refuses(Method::POST, "/images", again, 404, "not_found").await;
}

#[tokio::test]
async fn uploads_are_checked_and_bounded() {
    let (_rig, api) = Caller::new(Origin::Socket).await;
    api.post("/volumes", json!({"name": "taken", "size_bytes": 1 << 20})).await;
    let create =
        |image: &str, name: &str, len: u64| json!({"image": image, "file_name": name, "len_bytes": len});
    for (body, status, code) in [
        (create("taken", "f", 512), 409, "exists"),
        (create("a/b", "f", 512), 400, "bad_name"),
        (create("new", "", 512), 400, "bad_request"),
        (create("new", "../f", 512), 400, "bad_request"),
        (create("new", "f\n", 512), 400, "bad_request"),
        (create("new", "f", 0), 400, "bad_source"),
        (create("new", "f", (1 << 40) + 1), 400, "bad_source"),
    ] {
        api.refuses(Method::POST, "/uploads", body, status, code).await;
    }
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(begin(&api, "new", 512).await);
    }
    api.refuses(Method::POST, "/uploads", create("new", "f", 512), 409, "bad_state").await;
    let listed = api.get("/uploads").await.1;
    let found: Vec<&Value> = listed.as_array().unwrap().iter().map(|upload| &upload["id"]).collect();
    assert!(found.iter().zip(&ids).all(|(found, id)| *found == id) && found.len() == 4, "{listed}");
    assert_eq!((&listed[0]["image"], &listed[0]["client"]), (&json!("new"), &json!("control socket")));
    assert_eq!(api.delete(&format!("/uploads/{}", ids[0])).await.0, StatusCode::OK);
    assert_eq!(piece(&api, &ids[0], 0, b"x").await.0, StatusCode::NOT_FOUND);
    let other = begin(&api, "new", 512).await;
    assert!(!ids.contains(&other), "a number is used again");
}

/// What is known at once is not an event of a job that has begun.
#[tokio::test]
async fn files_and_names_are_checked_before_an_import_begins() {
    let (rig, api) = Caller::new(Origin::Socket).await;
    api.post("/volumes", json!({"name": "taken", "size_bytes": 1 << 20})).await;
    std::fs::write(rig.path("page"), "<!DOCTYPE html>\n").unwrap();
    std::fs::write(rig.path("disk"), [7; 512]).unwrap();
    for (name, file, status, code) in [
        ("taken", "disk", 409, "exists"),
        ("new", "missing", 400, "source_unreadable"),
        ("new", "page", 400, "bad_source"),
    ] {
        let body = json!({"name": name, "source": {"file": rig.path(file)}});
        api.refuses(Method::POST, "/images", body, status, code).await;
    }
    assert_eq!(api.get("/jobs").await.1, json!([]));
}

/// Administrators see and end the uploads of each other, and cannot send pieces of them.
#[tokio::test]
async fn administrators_end_uploads_of_other_clients() {
    let rig = Rig::new().await;
    let socket = Entry::new(Origin::Socket, &[]);
    let page = Entry { uploads: socket.uploads.clone(), ..Entry::new(Origin::Loopback, &[]) };
    let [socket, page] =
        [socket, page].map(|entry| Caller(router(rig.control.clone(), rig.access.clone(), entry)));
    let id = begin(&page, "debian", 512).await;
    assert_eq!(socket.get("/uploads").await.1[0]["client"], "loopback");
    assert_eq!(piece(&socket, &id, 0, &[1; 512]).await.0, StatusCode::NOT_FOUND);
    let import = json!({"name": "debian", "source": {"upload": id}});
    socket.refuses(Method::POST, "/images", import, 404, "not_found").await;
    assert_eq!(socket.delete(&format!("/uploads/{id}")).await.0, StatusCode::OK);
    assert_eq!(page.get("/uploads").await.1, json!([]));
    assert_eq!(piece(&page, &id, 0, &[1; 512]).await.0, StatusCode::NOT_FOUND);
}
