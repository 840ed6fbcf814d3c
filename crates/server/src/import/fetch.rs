//! Fetching an image file by HTTP.
//!
//! Disk formats are read at random, and many servers send only from the start; so the file is fetched whole,
//! into a file in the data directory that has no name and goes away with its last reader, however that ends.
//! A connection that breaks is taken up again where the server allows it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use ureq::http::{Response, StatusCode, header};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body};

use super::file::ImageFile;
use super::reach::{FetchPolicy, Reach, Refused};
use super::{ImportError, Result};
use crate::size::Size;

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;
/// How often a broken connection is taken up again without anything new in between.
const RETRIES: u32 = 5;
/// How long to wait before that, times the number of the attempt.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// How long a server may take to accept a connection, and to send anything.
const PATIENCE: Duration = Duration::from_secs(30);
/// Where distributions keep the certificate authorities that they trust; `SSL_CERT_FILE` comes before.
const AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Fetches `url` and opens what came. `progress` gets the bytes done and, where known, in all.
pub(super) async fn fetch(
    url: String,
    data: PathBuf,
    policy: FetchPolicy,
    mut progress: impl FnMut(u64, Option<u64>),
) -> Result<ImageFile> {
    let usable = ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme));
    if !usable {
        return Err(ImportError::BadUrl(url));
    }
    let (report, mut reports) = mpsc::channel(8);
    // A thread of its own: a server that stalls may hold it for long, and nobody waits for it then.
    let (answer, result) = tokio::sync::oneshot::channel();
    let spawned = std::thread::Builder::new().name("fetch".into()).spawn(move || {
        let mut download = Download::new(url, PATIENCE, policy);
        // Whoever asked may have gone.
        let _ = answer.send(download.run(&data, &report));
    });
    spawned.map_err(|_| ImportError::Internal("no thread to fetch with"))?;
    while let Some((done, total)) = reports.recv().await {
        progress(done, total);
    }
    result.await.unwrap_or(Err(ImportError::Internal("fetching the file went wrong")))
}

struct Download {
    url: String,
    patience: Duration,
    policy: FetchPolicy,
    done: u64,
    total: Option<u64>,
    /// What tells whether the file is still the same (RFC 9110, section 13.1.5).
    validator: Option<String>,
}

/// Why an attempt ended.
enum Broken {
    /// Another attempt may do better.
    Again(String),
    /// It would not.
    For(ImportError),
}

impl Download {
    fn new(url: String, patience: Duration, policy: FetchPolicy) -> Download {
        Download { url, patience, policy, done: 0, total: None, validator: None }
    }

    fn run(&mut self, data: &Path, report: &mpsc::Sender<(u64, Option<u64>)>) -> Result<ImageFile> {
        let spool = |error| ImportError::Spool { path: data.display().to_string(), error };
        let mut file = unnamed_file(data).map_err(spool)?;
        let authorities = authorities();
        if authorities.is_empty() && self.url.starts_with("https:") {
            let reason = "no certificate authorities here: install ca-certificates, or set SSL_CERT_FILE";
            return Err(self.failed(reason.into()));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .tls_config(tls_config(&authorities))
            .timeout_connect(Some(self.patience))
            .timeout_recv_response(Some(self.patience))
            .timeout_per_read(Some(self.patience))
            .build();
        let mut attempts = 0;
        loop {
            let before = self.done;
            // With its own resolver, which tells the URL from what it redirects to.
            let reach = Reach::new(self.policy.allow_private);
            let agent = Agent::with_parts(config.clone(), DefaultConnector::default(), reach);
            match self.attempt(&agent, &mut file, report, &spool) {
                Ok(()) => break,
                Err(Broken::For(e)) => return Err(e),
                Err(Broken::Again(reason)) => {
                    attempts = if self.done > before { 1 } else { attempts + 1 };
                    // A first attempt that got nothing is more likely a wrong URL than a bad moment.
                    if attempts > RETRIES || self.done == 0 {
                        return Err(self.failed(reason));
                    }
                    if report.is_closed() {
                        return Err(ImportError::Cancelled);
                    }
                    std::thread::sleep(RETRY_DELAY * attempts);
                }
            }
        }
        ImageFile::from_download(file, &self.url)
    }

    /// Asks for the file, or for the rest of it, and keeps what comes.
    fn attempt(
        &mut self,
        agent: &Agent,
        file: &mut File,
        report: &mpsc::Sender<(u64, Option<u64>)>,
        spool: &impl Fn(std::io::Error) -> ImportError,
    ) -> std::result::Result<(), Broken> {
        let mut response = self.ask(agent)?;
        if response.status() == StatusCode::OK && self.done != 0 {
            // The server sends all of it again.
            self.done = 0;
            file.set_len(0).map_err(|e| Broken::For(spool(e)))?;
        }
        if self.done == 0 {
            self.total = response.body().content_length();
            self.validator = validator(&response);
        }
        if self.total.is_some_and(|total| total > self.policy.max_bytes) {
            return Err(Broken::For(self.too_long()));
        }
        file.seek(SeekFrom::Start(self.done)).map_err(|e| Broken::For(spool(e)))?;
        let mut body = response.body_mut().with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; CHUNK];
        loop {
            let n = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(Broken::Again(e.to_string())),
            };
            if self.done + n as u64 > self.policy.max_bytes {
                return Err(Broken::For(self.too_long()));
            }
            file.write_all(&buffer[..n]).map_err(|e| Broken::For(spool(e)))?;
            self.done += n as u64;
            match report.try_send((self.done, self.total)) {
                Err(mpsc::error::TrySendError::Closed(_)) => return Err(Broken::For(ImportError::Cancelled)),
                // Who reads reports slowly misses some.
                Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => (),
            }
        }
        match self.total {
            Some(total) if self.done < total => Err(Broken::Again("the connection broke".into())),
            _ => Ok(()),
        }
    }

    fn ask(&self, agent: &Agent) -> std::result::Result<Response<Body>, Broken> {
        let mut request = agent.get(&self.url);
        if self.done != 0 {
            request = request.header(header::RANGE, format!("bytes={}-", self.done));
            if let Some(validator) = &self.validator {
                request = request.header(header::IF_RANGE, validator);
            }
        }
        let response = request.call().map_err(|e| match e {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => Broken::For(self.failed(e.to_string())),
            ureq::Error::Other(refused) if refused.is::<Refused>() => {
                Broken::For(self.failed(refused.to_string()))
            }
            other => Broken::Again(other.to_string()),
        })?;
        let status = response.status();
        let resumed = self.done != 0
            && status == StatusCode::PARTIAL_CONTENT
            && content_range_start(&response) == Some(self.done);
        if status == StatusCode::OK || resumed {
            return Ok(response);
        }
        let reason = format!("the server answered {status}");
        if status.is_server_error() {
            Err(Broken::Again(reason))
        } else {
            Err(Broken::For(self.failed(reason)))
        }
    }

    fn too_long(&self) -> ImportError {
        let most = Size(self.policy.max_bytes);
        self.failed(format!("it is longer than {most}, which --import-max-size allows"))
    }

    fn failed(&self, reason: String) -> ImportError {
        ImportError::Fetch { url: self.url.clone(), reason }
    }
}

/// What the system trusts; nothing where it has no list.
fn authorities() -> Vec<Certificate<'static>> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let files = named.into_iter().chain(AUTHORITIES.map(PathBuf::from));
    let Some(bundle) = files.filter_map(|f| std::fs::read(f).ok()).next() else { return Vec::new() };
    let certificates = parse_pem(&bundle).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    certificates.collect()
}

fn tls_config(authorities: &[Certificate<'static>]) -> TlsConfig {
    TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(authorities))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build()
}

/// A strong entity tag, or the time of the last change.
fn validator(response: &Response<Body>) -> Option<String> {
    let get = |name| response.headers().get(name).and_then(|v| v.to_str().ok());
    let tag = get(header::ETAG).filter(|tag| !tag.starts_with("W/"));
    tag.or_else(|| get(header::LAST_MODIFIED)).map(str::to_owned)
}

/// The start of `Content-Range: bytes START-END/TOTAL`.
fn content_range_start(response: &Response<Body>) -> Option<u64> {
    let range = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok()
}

/// A file in `directory` that has no name.
fn unnamed_file(directory: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options.clone().custom_flags(libc::O_TMPFILE).open(directory) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => (),
        other => return other,
    }
    // A file system without O_TMPFILE: a name for an instant.
    let path = directory.join(format!(".download-{}-{:?}", std::process::id(), std::thread::current().id()));
    let file = options.create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Reads a request, and sends the part of a file that begins at `start`.
    fn answer(stream: &mut TcpStream, body: &[u8], start: usize, sent: usize) {
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let _request: Vec<_> = lines.map_while(|line| line.ok().filter(|line| !line.is_empty())).collect();
        let (status, end) = (if start == 0 { "200 OK" } else { "206 Partial Content" }, body.len());
        let range = format!("content-range: bytes {start}-{}/{end}\r\n", end - 1);
        let length = end - start;
        let head = format!("HTTP/1.1 {status}\r\netag: \"1\"\r\n{range}content-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&body[start..start + sent]).unwrap();
    }

    /// A server that answers each request with a redirect to `location`, which may name its port as `PORT`.
    fn redirecting(location: &str) -> (String, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let location = location.replace("PORT", &port);
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let head = format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let _request: Vec<_> =
                lines.map_while(|line| line.ok().filter(|line| !line.is_empty())).collect();
            stream.write_all(head.as_bytes()).unwrap();
            drop(stream);
            if location.contains("follow") {
                let (mut stream, _) = listener.accept().unwrap();
                answer(&mut stream, &[7; 1000], 0, 1000);
            }
        });
        (format!("http://127.0.0.1:{port}/disk.img"), server)
    }

    fn fetched(url: &str, policy: FetchPolicy) -> Result<u64> {
        let directory = tempfile::tempdir().unwrap();
        let (report, _reports) = mpsc::channel(8);
        let mut download = Download::new(url.to_owned(), Duration::from_secs(5), policy);
        download.run(directory.path(), &report).map(|file| file.len())
    }

    #[test]
    fn redirects_lead_to_no_private_address() {
        for location in [
            "http://127.0.0.2:PORT/x",
            "http://10.255.255.1/x",
            "http://[::1]:PORT/x",
            "http://169.254.169.254/x",
        ] {
            let (url, server) = redirecting(location);
            let refused = fetched(&url, FetchPolicy::default()).err().unwrap().to_string();
            assert!(refused.contains("--import-allow-private"), "{location}: {refused}");
            server.join().unwrap();
        }
        // Its own address is no news, and a flag allows the others.
        for (location, allow_private) in
            [("http://127.0.0.1:PORT/follow", false), ("http://127.0.0.2:PORT/follow", true)]
        {
            let (url, server) = redirecting(location);
            let policy = FetchPolicy { allow_private, ..FetchPolicy::default() };
            assert_eq!(fetched(&url, policy).unwrap(), 1000, "{location}");
            server.join().unwrap();
        }
    }

    #[test]
    fn what_is_too_long_is_not_fetched() {
        for (max_bytes, with_length, ok) in [(1000, true, true), (999, true, false), (999, false, false)] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}/disk.img", listener.local_addr().unwrap());
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                if with_length {
                    return answer(&mut stream, &[7; 1000], 0, if ok { 1000 } else { 0 });
                }
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let _request: Vec<_> =
                    lines.map_while(|line| line.ok().filter(|line| !line.is_empty())).collect();
                stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").unwrap();
                stream.write_all(&[7; 1000]).unwrap();
            });
            let result = fetched(&url, FetchPolicy { max_bytes, ..FetchPolicy::default() });
            match result {
                Ok(len) => assert!(ok && len == 1000),
                Err(e) => assert!(!ok && e.to_string().contains("--import-max-size"), "{e}"),
            }
            server.join().unwrap();
        }
    }

    #[test]
    fn a_server_that_stalls_is_asked_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/disk.img", listener.local_addr().unwrap());
        let body: Vec<u8> = (0..10_000_u32).map(|n| n as u8).collect();
        let there = body.clone();
        let server = std::thread::spawn(move || {
            // It sends a part and keeps the connection.
            let (mut stalled, _) = listener.accept().unwrap();
            answer(&mut stalled, &there, 0, 4_000);
            let (mut stream, _) = listener.accept().unwrap();
            answer(&mut stream, &there, 4_000, 6_000);
            stalled
        });
        let directory = tempfile::tempdir().unwrap();
        let (report, _reports) = mpsc::channel(8);
        let mut download = Download::new(url, Duration::from_millis(200), FetchPolicy::default());
        let file = download.run(directory.path(), &report).unwrap();
        let mut fetched = vec![0; body.len()];
        file.read_at(0, &mut fetched).unwrap();
        assert!(fetched == body);
        server.join().unwrap();
    }
}
