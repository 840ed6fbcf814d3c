//! Imports that are fetched, raced, interrupted.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use forebay_server::import::{self, Format, Request, Source};

use crate::common::{Rig, disk_bytes};

#[tokio::test]
async fn a_name_that_is_taken_is_refused_before_anything_is_read() {
    let rig = Rig::new().await;
    rig.control.pool().create_volume("taken", 1 << 20, Default::default(), 0).await.unwrap();
    let e = rig.import("taken", &rig.path("missing"), Format::Auto).await.unwrap_err();
    assert_eq!(e.0, "exists", "{e:?}");
}

#[tokio::test]
async fn names_that_cannot_be_are_refused() {
    let rig = Rig::new().await;
    fs::write(rig.path("f"), [1; 512]).unwrap();
    for name in ["", "a/b", "a@b", &"n".repeat(300)] {
        let e = rig.import(name, &rig.path("f"), Format::Auto).await.unwrap_err();
        assert_eq!(e.0, "bad_name", "{name}: {e:?}");
    }
    assert!(rig.names().is_empty());
}

/// Whoever hangs up gets the import undone, wherever it is, and the name is free again.
#[tokio::test]
async fn hanging_up_undoes_an_import() {
    let rig = Rig::new().await;
    fs::write(rig.path("f"), disk_bytes(32 << 20, 9)).unwrap();
    let free_before = rig.control.pool().disks().len();
    for events_heard in 0..3 {
        let request = Request {
            name: "x".into(),
            source: Source::File(rig.path("f")),
            format: Format::Auto,
            dedup_domain: 0,
        };
        let mut events = import::start(&rig.control, request).await.unwrap();
        for _ in 0..events_heard {
            let _ = events.recv().await;
        }
        drop(events);
        // A stop waits for what runs, so it is a way to know that the import is over.
        settle(&rig).await;
        match rig.control.pool().delete("x").await {
            // It was over before it heard that nobody listens.
            Ok(()) => (),
            Err(e) => assert!(matches!(e, forebay_engine::Error::NotFound(_)), "{e}"),
        }
        assert_eq!(rig.control.pool().disks().len(), free_before);
    }
    rig.import("x", &rig.path("f"), Format::Auto).await.unwrap();
}

/// Waits until no import holds a place: all places can be had.
async fn settle(rig: &Rig) {
    let mut places = Vec::new();
    for _ in 0..64 {
        let place = tokio::time::timeout(Duration::from_secs(60), rig.control.begin()).await;
        places.push(place.expect("an import goes on though nobody listens").unwrap());
    }
}

#[tokio::test]
async fn a_stop_undoes_an_import_and_refuses_others() {
    let rig = Rig::new().await;
    fs::write(rig.path("f"), disk_bytes(32 << 20, 9)).unwrap();
    let request = Request {
        name: "x".into(),
        source: Source::File(rig.path("f")),
        format: Format::Auto,
        dedup_domain: 0,
    };
    let mut events = import::start(&rig.control, request.clone()).await.unwrap();
    let control = rig.control.clone();
    let stopped = tokio::spawn(async move { control.stop(Duration::from_secs(60)).await });
    let mut last = None;
    while let Some(event) = events.recv().await {
        last = Some(event);
    }
    stopped.await.unwrap();
    match last.unwrap() {
        Err(e) => {
            assert_eq!(e.code, "cancelled", "{e}");
            assert!(rig.names().is_empty());
        }
        // It was quicker than the stop.
        Ok(_) => assert_eq!(rig.names(), ["x"]),
    }
    assert!(import::start(&rig.control, request).await.is_err());
}

#[tokio::test]
async fn two_imports_of_one_name_make_one_image() {
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

/// How a web server of the test behaves.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// Sends the whole file.
    Plain,
    /// Hangs up half-way, and goes on from there when asked.
    BreaksAndResumes,
    /// Hangs up half-way, and sends all of it again.
    BreaksOnce,
    /// Has no such file.
    NotFound,
    /// Gives no length and hangs up at the end.
    NoLength,
}

/// Serves `body` to as many requests as come, until the test ends.
fn web_server(body: Vec<u8>, manner: Manner) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/disk.img", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for (n, stream) in listener.incoming().enumerate() {
            answer(stream.unwrap(), &body, manner, n == 0);
        }
    });
    url
}

fn answer(mut stream: TcpStream, body: &[u8], manner: Manner, first: bool) {
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
    let resume = manner == Manner::BreaksAndResumes && start != 0;
    let rest = if resume { &body[start..] } else { body };
    let (status, extra) = match manner {
        Manner::NotFound => ("404 Not Found", String::new()),
        _ if resume => {
            let range = format!("content-range: bytes {start}-{}/{}\r\n", body.len() - 1, body.len());
            ("206 Partial Content", range)
        }
        _ => ("200 OK", String::new()),
    };
    let length = match manner {
        Manner::NoLength => String::new(),
        _ => format!("content-length: {}\r\n", rest.len()),
    };
    let breaks = first && matches!(manner, Manner::BreaksAndResumes | Manner::BreaksOnce);
    let sent = if breaks { &rest[..rest.len() / 2] } else { rest };
    let head = format!("HTTP/1.1 {status}\r\netag: \"1\"\r\n{extra}{length}connection: close\r\n\r\n");
    // A client that is content with less hangs up.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(sent));
    let _ = stream.shutdown(Shutdown::Write);
}

#[tokio::test]
async fn files_are_fetched_and_broken_connections_taken_up_again() {
    let body = disk_bytes(3 << 20, 11);
    for manner in [Manner::Plain, Manner::BreaksAndResumes, Manner::BreaksOnce, Manner::NoLength] {
        let rig = Rig::new().await;
        let url = web_server(body.clone(), manner);
        rig.import_from("web", Source::Url(url), Format::Auto).await.unwrap();
        assert!(rig.contents("web").await == body);
        assert_eq!(fs::read_dir(rig.dir.path()).unwrap().count(), 0, "the download left something");
    }
}

#[tokio::test]
async fn what_cannot_be_fetched_is_refused_in_words() {
    let rig = Rig::new().await;
    let missing = web_server(vec![1; 512], Manner::NotFound);
    for (url, code, part) in [
        (missing.as_str(), "fetch_failed", "404"),
        ("ftp://localhost/x", "bad_source", "http://"),
        ("http://", "fetch_failed", "cannot fetch"),
    ] {
        let e = rig.import_from("web", Source::Url(url.into()), Format::Auto).await.unwrap_err();
        assert_eq!(e.0, code, "{e:?}");
        assert!(e.1.contains(part), "{e:?}");
    }
    assert!(rig.names().is_empty());
}
