//! Downloads, concurrent imports and interrupted imports.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use forebay_api::ErrorKind;
use forebay_api::import::{Format, Request, Source};
use forebay_control::import::{self};

use crate::common::{CLIENT, Rig, disk_bytes};

#[tokio::test]
async fn an_existing_name_is_refused_before_the_file_is_read() {
    let rig = Rig::new().await;
    rig.control.pool().create_volume("taken", 1 << 20, Default::default(), 0).await.unwrap();
    let e = rig.import("taken", &rig.path("missing"), Format::Auto).await.unwrap_err();
    assert_eq!(e.0, "exists", "{e:?}");
}

#[tokio::test]
async fn invalid_names_are_refused() {
    let rig = Rig::new().await;
    fs::write(rig.path("f"), [1; 512]).unwrap();
    for name in ["", "a/b", "a@b", &"n".repeat(300)] {
        let e = rig.import(name, &rig.path("f"), Format::Auto).await.unwrap_err();
        assert_eq!(e.0, "bad_name", "{name}: {e:?}");
    }
    let long = Source::Url(format!("http://images.invalid/{}", "a".repeat(1 << 20)));
    let e = rig.import_from("x", long, Format::Auto).await.unwrap_err();
    assert!(e.0 == "bad_request" && e.1.len() < 512, "{e:?}");
    // Neither a job nor an event has them.
    assert!(rig.control.jobs().list().is_empty());
    assert!(rig.names().is_empty());
}

/// Dropping the receiver rolls an import back at any stage, and frees its name.
#[tokio::test]
async fn dropping_the_receiver_rolls_an_import_back() {
    let rig = Rig::new().await;
    fs::write(rig.path("f"), disk_bytes(32 << 20, 9)).unwrap();
    let free_before = rig.control.pool().disks().len();
    for received in 0..3 {
        let request = Request {
            name: "x".into(),
            source: Source::File(rig.path("f")),
            format: Format::Auto,
            disk: None,
            max_bytes: None,
            dedup_domain: 0,
        };
        let (_, mut events) = import::start(&rig.control, request, CLIENT).await.unwrap();
        for _ in 0..received {
            let _ = events.recv().await;
        }
        drop(events);
        wait_for_jobs(&rig).await;
        match rig.control.pool().delete("x").await {
            // The import had finished before the receiver was dropped.
            Ok(()) => (),
            Err(e) => assert!(matches!(e, forebay_engine::Error::NotFound(_)), "{e}"),
        }
        assert_eq!(rig.control.pool().disks().len(), free_before);
    }
    rig.import("x", &rig.path("f"), Format::Auto).await.unwrap();
}

/// Waits until no job runs, by acquiring all job permits.
async fn wait_for_jobs(rig: &Rig) {
    let mut permits = Vec::new();
    for _ in 0..64 {
        let permit = tokio::time::timeout(Duration::from_secs(60), rig.control.job_permit()).await;
        permits.push(permit.expect("the import ends after its receiver was dropped").unwrap());
    }
}

#[tokio::test]
async fn a_stop_rolls_an_import_back_and_refuses_new_ones() {
    let rig = Rig::new().await;
    fs::write(rig.path("f"), disk_bytes(32 << 20, 9)).unwrap();
    let request = Request {
        name: "x".into(),
        source: Source::File(rig.path("f")),
        format: Format::Auto,
        disk: None,
        max_bytes: None,
        dedup_domain: 0,
    };
    let (_, mut events) = import::start(&rig.control, request.clone(), CLIENT).await.unwrap();
    let control = rig.control.clone();
    let stopped = tokio::spawn(async move { control.stop(Duration::from_secs(60)).await });
    let mut last = None;
    while let Some(event) = events.recv().await {
        last = Some(event);
    }
    stopped.await.unwrap();
    match last.unwrap() {
        Err(e) => {
            assert_eq!(e.kind, ErrorKind::Cancelled, "{e}");
            assert!(rig.names().is_empty());
        }
        // The import finished before the stop.
        Ok(_) => assert_eq!(rig.names(), ["x"]),
    }
    assert!(import::start(&rig.control, request, CLIENT).await.is_err());
}

#[tokio::test]
async fn of_two_concurrent_imports_with_one_name_one_fails() {
    let rig = Rig::new().await;
    fs::write(rig.path("f"), disk_bytes(8 << 20, 9)).unwrap();
    let path = rig.path("f");
    let (a, b) = tokio::join!(rig.import("x", &path, Format::Auto), rig.import("x", &path, Format::Auto));
    let e = match (a, b) {
        (Ok(()), Err(e)) | (Err(e), Ok(())) => e,
        other => panic!("{other:?}"),
    };
    assert_eq!(e.0, "exists", "{e:?}");
    assert_eq!(rig.names(), ["x"]);
}

/// Behaviour of a web server.
#[derive(Clone, Copy, PartialEq)]
enum Behaviour {
    /// Sends the whole file.
    Plain,
    /// Closes the first connection after half of the file; supports range requests.
    BreaksAndResumes,
    /// Closes the first connection after half of the file; ignores ranges.
    BreaksOnce,
    /// Responds with status 404.
    NotFound,
    /// Sends no length and closes the connection at the end.
    NoLength,
}

/// Starts a server that sends `body` to all requests until the test ends.
fn web_server(body: Vec<u8>, behaviour: Behaviour) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/disk.img", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for (n, stream) in listener.incoming().enumerate() {
            respond(stream.unwrap(), &body, behaviour, n == 0);
        }
    });
    url
}

fn respond(mut stream: TcpStream, body: &[u8], behaviour: Behaviour, first: bool) {
    let mut start = 0;
    for line in BufReader::new(stream.try_clone().unwrap()).lines() {
        let line = line.unwrap().to_ascii_lowercase();
        if let Some(range) = line.strip_prefix("range: bytes=") {
            start = range.trim_end_matches('-').parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let resume = behaviour == Behaviour::BreaksAndResumes && start != 0;
    let rest = if resume { &body[start..] } else { body };
    let (status, extra) = match behaviour {
        Behaviour::NotFound => ("404 Not Found", String::new()),
        _ if resume => {
            let range = format!("content-range: bytes {start}-{}/{}\r\n", body.len() - 1, body.len());
            ("206 Partial Content", range)
        }
        _ => ("200 OK", String::new()),
    };
    let length = match behaviour {
        Behaviour::NoLength => String::new(),
        _ => format!("content-length: {}\r\n", rest.len()),
    };
    let breaks = first && matches!(behaviour, Behaviour::BreaksAndResumes | Behaviour::BreaksOnce);
    let sent = if breaks { &rest[..rest.len() / 2] } else { rest };
    let head = format!("HTTP/1.1 {status}\r\netag: \"1\"\r\n{extra}{length}connection: close\r\n\r\n");
    // The client may close the connection early.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(sent));
    let _ = stream.shutdown(Shutdown::Write);
}

#[tokio::test]
async fn files_are_downloaded_and_broken_downloads_resumed() {
    let body = disk_bytes(3 << 20, 11);
    for behaviour in
        [Behaviour::Plain, Behaviour::BreaksAndResumes, Behaviour::BreaksOnce, Behaviour::NoLength]
    {
        let rig = Rig::new().await;
        let files = || fs::read_dir(rig.dir.path()).unwrap().count();
        let before = files();
        let url = web_server(body.clone(), behaviour);
        rig.import_from("web", Source::Url(url), Format::Auto).await.unwrap();
        assert!(rig.contents("web").await == body);
        assert_eq!(files(), before, "the download left a file behind");
    }
}

#[tokio::test]
async fn failed_downloads_are_reported() {
    let rig = Rig::new().await;
    let missing = web_server(vec![1; 512], Behaviour::NotFound);
    for (url, code, part) in [
        (missing.as_str(), "fetch_failed", "404"),
        ("ftp://localhost/x", "bad_source", "http://"),
        ("http://", "bad_source", "http://HOST/PATH"),
    ] {
        let e = rig.import_from("web", Source::Url(url.into()), Format::Auto).await.unwrap_err();
        assert_eq!(e.0, code, "{e:?}");
        assert!(e.1.contains(part), "{e:?}");
    }
    assert!(rig.names().is_empty());
}
