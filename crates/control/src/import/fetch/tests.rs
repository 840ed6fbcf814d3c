use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use super::*;

/// Reads a request and returns its lines.
fn request(stream: &TcpStream) -> Vec<String> {
    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
    lines.map_while(|line| line.ok().filter(|line| !line.is_empty())).collect()
}

/// Reads a request and sends `sent` bytes of `body` from `start`.
fn answer(stream: &mut TcpStream, body: &[u8], start: usize, sent: usize) {
    request(stream);
    let (status, end) = (if start == 0 { "200 OK" } else { "206 Partial Content" }, body.len());
    let range = format!("content-range: bytes {start}-{}/{end}\r\n", end - 1);
    let length = end - start;
    let head = format!("HTTP/1.1 {status}\r\netag: \"1\"\r\n{range}content-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&body[start..start + sent]).unwrap();
}

/// Starts a server whose connections are served by `serve`, with their numbers, until that returns `false`.
fn server(
    address: &str,
    mut serve: impl FnMut(TcpStream, usize) -> bool + Send + 'static,
) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind(address).unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        for (n, stream) in listener.incoming().enumerate() {
            if !serve(stream.unwrap(), n) {
                break;
            }
        }
    });
    (port, thread)
}

/// Waits for the end of a server, while the tasks of its clients run: one of them closes the connection.
async fn ended(server: JoinHandle<()>) {
    tokio::task::spawn_blocking(move || server.join().unwrap()).await.unwrap();
}

/// A download with the defaults and these changes.
async fn fetched_with(url: &str, change: impl FnOnce(&mut Download)) -> Result<(ImageFile, Vec<u64>)> {
    let directory = tempfile::tempdir().unwrap();
    let spool = Spool::create(directory.path(), Box::new(|_| 0)).unwrap();
    let (report, mut reports) = mpsc::channel(1024);
    let policy = FetchPolicy::default();
    let mut download = Download::new(Url::parse(url).unwrap(), Proxies::default(), policy, true, spool);
    change(&mut download);
    let file = download.run(&report).await?;
    let mut done = Vec::new();
    while let Ok((bytes, _)) = reports.try_recv() {
        done.push(bytes);
    }
    Ok((file, done))
}

async fn fetched(url: &str, change: impl FnOnce(&mut Download)) -> Result<u64> {
    fetched_with(url, change).await.map(|(file, _)| file.len())
}

/// Starts a server that redirects to `location`, in which `PORT` stands for its port.
fn redirecting(location: &'static str) -> (String, JoinHandle<()>) {
    let (port, server) = server("0.0.0.0:0", move |mut stream, n| {
        if n == 1 {
            answer(&mut stream, &[7; 1000], 0, 1000);
            return false;
        }
        request(&stream);
        let location = location.replace("PORT", &stream.local_addr().unwrap().port().to_string());
        let head = format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        location.contains("follow")
    });
    (format!("http://127.0.0.1:{port}/disk.img"), server)
}

#[tokio::test]
async fn redirects_to_private_addresses_are_refused() {
    for location in [
        "http://127.0.0.2:PORT/x",
        "http://10.255.255.1/x",
        "http://[::1]:PORT/x",
        "http://169.254.169.254/x",
    ] {
        let (url, server) = redirecting(location);
        let refused = fetched(&url, |_| ()).await.err().unwrap().to_string();
        assert!(refused.contains("--import-allow-private"), "{location}: {refused}");
        server.join().unwrap();
    }
    // The URL's own address is allowed, also by a relative path; other addresses need --import-allow-private.
    for (location, allow_private) in [
        ("http://127.0.0.1:PORT/follow", false),
        ("follow", false),
        ("HTTP://127.0.0.1:PORT/follow", false),
        ("http://127.0.0.2:PORT/follow", true),
    ] {
        let (url, server) = redirecting(location);
        let len = fetched(&url, |download| download.requester.reach.allow_private = allow_private).await;
        assert_eq!(len.unwrap(), 1000, "{location}");
        server.join().unwrap();
    }
}

/// The client that requests the download decides what its URL may name.
#[tokio::test]
async fn the_server_itself_is_reached_only_over_the_control_socket() {
    let (url, server) = redirecting("http://127.0.0.2:PORT/x");
    for on_host in [false, true] {
        let refused = fetched(&url, |download| download.requester.reach.on_host = on_host).await.err();
        let refused = refused.unwrap().to_string();
        assert_eq!(refused.contains("import from there over the control socket"), !on_host, "{refused}");
    }
    // The server has received one request: the request from the control socket, which was redirected.
    server.join().unwrap();
}

#[tokio::test]
async fn a_long_redirect_is_refused_and_not_repeated() {
    let (url, server) = redirecting(format!("/{}", "x".repeat(20_000)).leak());
    let refused = fetched(&url, |_| ()).await.err().unwrap().to_string();
    assert!(refused.contains("20001 bytes") && refused.len() < 512, "{refused}");
    server.join().unwrap();
}

#[tokio::test]
async fn a_file_above_the_size_limit_is_refused() {
    for (max_bytes, with_length, ok) in [(1000, true, true), (999, true, false), (999, false, false)] {
        let (port, server) = server("127.0.0.1:0", move |mut stream, _| {
            if with_length {
                answer(&mut stream, &[7; 1000], 0, if ok { 1000 } else { 0 });
                return false;
            }
            request(&stream);
            stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").unwrap();
            stream.write_all(&[7; 1000]).unwrap();
            false
        });
        let url = format!("http://127.0.0.1:{port}/disk.img");
        match fetched(&url, |download| download.policy.max_bytes = max_bytes).await {
            Ok(len) => assert!(ok && len == 1000),
            Err(e) => assert!(!ok && e.to_string().contains("--import-max-size"), "{e}"),
        }
        server.join().unwrap();
    }
}

#[tokio::test]
async fn a_stalled_download_is_resumed() {
    let body: Vec<u8> = (0..10_000_u32).map(|n| n as u8).collect();
    let there = body.clone();
    let mut stalled = Vec::new();
    let (port, server) = server("127.0.0.1:0", move |mut stream, n| {
        if n == 0 {
            // Sends a part and keeps the connection open.
            answer(&mut stream, &there, 0, 4_000);
            stalled.push(stream);
            return true;
        }
        answer(&mut stream, &there, 4_000, 6_000);
        false
    });
    let url = format!("http://127.0.0.1:{port}/disk.img");
    let (file, _) = fetched_with(&url, |download| download.stall = Duration::from_millis(200)).await.unwrap();
    let mut fetched = vec![0; body.len()];
    file.read_at(0, &mut fetched).unwrap();
    assert!(fetched == body);
    server.join().unwrap();
}

/// A late first byte is awaited, also after interim responses (1xx). Until then the download reports that it
/// waits.
#[tokio::test]
async fn a_late_first_byte_is_awaited_with_reports() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (port, server) = server("127.0.0.1:0", move |mut stream, _| {
        request(&stream);
        stream.write_all(b"HTTP/1.1 103 Early Hints\r\nlink: <x>\r\n\r\n").unwrap();
        stream.write_all(b"HTTP/1.1 102 Processing\r\n\r\n").unwrap();
        wait.recv().unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc").unwrap();
        false
    });
    let directory = tempfile::tempdir().unwrap();
    let spool = Spool::create(directory.path(), Box::new(|_| 0)).unwrap();
    let (report, mut reports) = mpsc::channel(8);
    let url = Url::parse(&format!("http://127.0.0.1:{port}/disk.img")).unwrap();
    let mut download = Download::new(url, Proxies::default(), FetchPolicy::default(), true, spool);
    // Shorter than the wait for the first byte: it applies to the body only.
    download.stall = Duration::from_secs(1);
    let running = tokio::spawn(async move { download.run(&report).await });
    for _ in 0..3 {
        assert_eq!(reports.recv().await, Some((0, None)));
    }
    go.send(()).unwrap();
    assert_eq!(running.await.unwrap().unwrap().len(), 3);
    server.join().unwrap();

    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/x", silent.local_addr().unwrap());
    let change = |download: &mut Download| download.requester.first_byte = Duration::from_millis(100);
    let e = fetched(&url, change).await.err().unwrap().to_string();
    assert!(e.contains("first_byte_timeout_s"), "{e}");
}

/// A connection that is closed before the response is no reason to doubt the URL, so the request is repeated.
#[tokio::test]
async fn a_connection_closed_before_the_response_is_retried() {
    for head in [&b""[..], b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"] {
        let (port, server) = server("127.0.0.1:0", move |mut stream, n| {
            if n < 2 {
                request(&stream);
                stream.write_all(head).unwrap();
                return true;
            }
            answer(&mut stream, &[7; 1000], 0, 1000);
            false
        });
        let url = format!("http://127.0.0.1:{port}/disk.img");
        assert_eq!(fetched(&url, |_| ()).await.unwrap(), 1000);
        server.join().unwrap();
    }
}

/// A server that sends almost nothing, or for too long, does not hold the download and its room.
#[tokio::test]
async fn slow_and_endless_downloads_are_ended() {
    let trickle = |every: Duration| {
        server("127.0.0.1:0", move |mut stream, _| {
            request(&stream);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n");
            // Until the client closes the connection.
            while stream.write_all(&[7; 100]).is_ok() {
                std::thread::sleep(every);
            }
            false
        })
    };
    let (port, slow) = trickle(Duration::from_millis(20));
    let url = format!("http://127.0.0.1:{port}/disk.img");
    let e =
        fetched(&url, |download| download.least = (1 << 20, Duration::from_millis(200))).await.err().unwrap();
    assert!(e.to_string().contains("sends less than 1 MiB"), "{e}");
    ended(slow).await;
    let (port, endless) = trickle(Duration::from_millis(5));
    let url = format!("http://127.0.0.1:{port}/disk.img");
    let change = |download: &mut Download| download.policy.timeout = Duration::from_millis(300);
    let e = fetched(&url, change).await.err().unwrap().to_string();
    assert!(e.contains("[import] timeout_s"), "{e}");
    ended(endless).await;
}

/// A download stops while the file system has the room that is kept free for writes.
#[tokio::test]
async fn a_download_leaves_room_for_the_pool() {
    for with_length in [true, false] {
        let (port, server) = server("127.0.0.1:0", move |mut stream, _| {
            request(&stream);
            let length = if with_length { "content-length: 1000\r\n" } else { "" };
            let head = format!("HTTP/1.1 200 OK\r\n{length}connection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            // The client may close the connection before.
            let _ = stream.write_all(&[7; 1000]);
            false
        });
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::create(directory.path(), Box::new(|_| u64::MAX)).unwrap();
        let (report, _reports) = mpsc::channel(8);
        let url = Url::parse(&format!("http://127.0.0.1:{port}/disk.img")).unwrap();
        let download = Download::new(url, Proxies::default(), FetchPolicy::default(), true, spool);
        let e = download.run(&report).await.err().unwrap();
        assert!(matches!(e, ImportError::NoRoom { .. }), "{e}");
        server.join().unwrap();
    }
}

/// A server that compresses although it was not asked to, and one with a coding that is not supported.
#[tokio::test]
async fn content_codings_are_removed() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&[9; 50_000]).unwrap();
    let coded = encoder.finish().unwrap();
    for coding in ["gzip", "br"] {
        let body = coded.clone();
        let (port, server) = server("127.0.0.1:0", move |mut stream, _| {
            assert!(request(&stream).iter().any(|line| line == "accept-encoding: identity"));
            let head = format!("content-encoding: {coding}\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}").as_bytes()).unwrap();
            let _ = stream.write_all(&body);
            false
        });
        match fetched(&format!("http://127.0.0.1:{port}/disk.img"), |_| ()).await {
            Ok(len) => assert_eq!((coding, len), ("gzip", 50_000)),
            Err(e) => assert!(coding == "br" && e.to_string().contains("'br'"), "{e}"),
        }
        server.join().unwrap();
    }
}

/// Through a proxy, an http URL is requested in absolute form. Credentials are decoded for the request, and
/// hidden in errors.
#[tokio::test]
async fn proxies_get_the_absolute_form_and_servers_the_credentials() {
    let (said, heard) = std::sync::mpsc::channel();
    let (port, server) = server("127.0.0.1:0", move |mut stream, n| {
        said.send(request(&stream)).unwrap();
        let status = if n == 0 { "200 OK" } else { "404 Not Found" };
        write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 3\r\n\r\nabc").unwrap();
        n == 0
    });
    let proxies = || Proxies::with_http(&format!("me:h%C3%B6%3A@127.0.0.1:{port}"));
    let url = "http://user:p%40ss@images.invalid/a/disk.img?sig=s3cret";
    assert_eq!(fetched(url, |download| download.requester.proxies = proxies()).await.unwrap(), 3);
    let lines = heard.recv().unwrap();
    assert_eq!(lines[0], "GET http://images.invalid/a/disk.img?sig=s3cret HTTP/1.1");
    for line in [
        "host: images.invalid",
        "authorization: Basic dXNlcjpwQHNz",
        "proxy-authorization: Basic bWU6aMO2Og==",
    ] {
        assert!(lines.iter().any(|l| l == line), "{line}: {lines:?}");
    }
    let e = fetched(url, |download| download.requester.proxies = proxies()).await.err().unwrap().to_string();
    assert_eq!(e, "cannot fetch http://***@images.invalid/a/disk.img?***: the server answered 404 Not Found");
    server.join().unwrap();
}

/// A server behind a proxy redirects to a host that is reached directly: it is no host that the administrator
/// has named.
#[tokio::test]
async fn a_redirect_past_the_proxy_is_checked() {
    for allow_private in [false, true] {
        let (port, server) = server("127.0.0.1:0", move |mut stream, n| {
            if n == 1 {
                answer(&mut stream, &[7; 1000], 0, 1000);
                return false;
            }
            request(&stream);
            let to = format!("http://{}/internal", stream.local_addr().unwrap());
            let head = format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            allow_private
        });
        let proxies = Proxies::with_http(&format!("http://127.0.0.1:{port}")).without("127.0.0.1");
        let change = |download: &mut Download| {
            download.requester.proxies = proxies;
            download.requester.reach.allow_private = allow_private;
        };
        match fetched("http://images.invalid/disk.img", change).await {
            Ok(len) => assert!(allow_private && len == 1000),
            Err(e) => assert!(!allow_private && e.to_string().contains("--import-allow-private"), "{e}"),
        }
        server.join().unwrap();
    }
}

/// A tunnel of a proxy carries TLS, so the proxy sees only the name of the server.
#[tokio::test]
async fn https_goes_through_a_tunnel() {
    let (said, heard) = std::sync::mpsc::channel();
    let (port, server) = server("127.0.0.1:0", move |mut stream, _| {
        said.send(request(&stream)).unwrap();
        stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").unwrap();
        let mut hello = [0; 1];
        std::io::Read::read_exact(&mut stream, &mut hello).unwrap();
        said.send(vec![format!("{hello:?}")]).unwrap();
        false
    });
    let proxies = Proxies::with_https(&format!("http://127.0.0.1:{port}"));
    let change = |download: &mut Download| {
        download.requester.proxies = proxies;
        // Authorities that the test does not need, and this machine may lack.
        download.requester.tls = || {
            let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
            let config = rustls::ClientConfig::builder_with_provider(provider);
            let config = config.with_safe_default_protocol_versions().map_err(|e| e.to_string())?;
            let roots = rustls::RootCertStore::empty();
            Ok(std::sync::Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
        };
    };
    let e = fetched("https://images.invalid:8443/disk.img", change).await.err().unwrap().to_string();
    server.join().unwrap();
    let lines = heard.recv().unwrap();
    assert_eq!(lines[..2], ["CONNECT images.invalid:8443 HTTP/1.1", "host: images.invalid:8443"], "{e}");
    // The first byte of a TLS record with a handshake.
    assert_eq!(heard.recv().unwrap(), ["[22]"], "{e}");
}
