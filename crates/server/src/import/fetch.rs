//! Download of an image file over HTTP.
//!
//! Disk formats need random access, which many servers do not support. So the whole file is downloaded to an
//! unnamed file in the data directory, which the file system frees when it is closed, even by a crash. A
//! broken download is resumed if the server supports it.

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

use super::address_filter::{AddressRefused, FetchPolicy, FilteringResolver};
use super::file::ImageFile;
use super::{ImportError, Result};
use crate::size::Size;

/// Bytes per read.
const CHUNK: usize = 1 << 20;
/// Most successive retries that receive no data.
const RETRIES: u32 = 5;
/// Delay before a retry, multiplied by the number of the attempt.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Timeout of a connection attempt, of a response, and of each read.
const TIMEOUT: Duration = Duration::from_secs(30);
/// CA bundles of Linux distributions; `SSL_CERT_FILE` precedes them.
const AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Downloads `url` and opens the file. Calls `progress` with the bytes done and the total, if known.
pub(super) async fn fetch(
    url: String,
    data: PathBuf,
    policy: FetchPolicy,
    mut progress: impl FnMut(u64, Option<u64>),
) -> Result<ImageFile> {
    let supported = ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme));
    if !supported {
        return Err(ImportError::BadUrl(url));
    }
    let (report, mut reports) = mpsc::channel(8);
    // A separate thread, because a server that stalls can block it for long. A cancelled import does not wait
    // for it.
    let (sender, result) = tokio::sync::oneshot::channel();
    let spawned = std::thread::Builder::new().name("fetch".into()).spawn(move || {
        let mut download = Download::new(url, TIMEOUT, policy);
        // The receiver may be dropped.
        let _ = sender.send(download.run(&data, &report));
    });
    spawned.map_err(|_| ImportError::Internal("cannot start the download thread"))?;
    while let Some((done, total)) = reports.recv().await {
        progress(done, total);
    }
    result.await.unwrap_or(Err(ImportError::Internal("the download thread panicked")))
}

struct Download {
    url: String,
    timeout: Duration,
    policy: FetchPolicy,
    done: u64,
    total: Option<u64>,
    /// Entity tag or modification time for `If-Range`: a file that has changed is not resumed (RFC 9110,
    /// section 13.1.5).
    validator: Option<String>,
}

/// Why an attempt failed.
enum AttemptError {
    /// A retry may succeed.
    Transient(String),
    /// A retry would fail too.
    Permanent(ImportError),
}

impl Download {
    fn new(url: String, timeout: Duration, policy: FetchPolicy) -> Download {
        Download { url, timeout, policy, done: 0, total: None, validator: None }
    }

    fn run(&mut self, data: &Path, report: &mpsc::Sender<(u64, Option<u64>)>) -> Result<ImageFile> {
        let spool = |error| ImportError::Spool { path: data.display().to_string(), error };
        let mut file = unnamed_file(data).map_err(spool)?;
        let authorities = authorities();
        if authorities.is_empty() && self.url.starts_with("https:") {
            let reason = "the system has no CA certificates; install ca-certificates, or set SSL_CERT_FILE";
            return Err(self.failed(reason.into()));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .tls_config(tls_config(&authorities))
            .timeout_connect(Some(self.timeout))
            .timeout_recv_response(Some(self.timeout))
            .timeout_per_read(Some(self.timeout))
            .build();
        let mut attempts = 0;
        loop {
            let before = self.done;
            // A new resolver for each attempt, because it treats the first host as that of the URL.
            let resolver = FilteringResolver::new(self.policy.allow_private);
            let agent = Agent::with_parts(config.clone(), DefaultConnector::default(), resolver);
            match self.attempt(&agent, &mut file, report, &spool) {
                Ok(()) => break,
                Err(AttemptError::Permanent(e)) => return Err(e),
                Err(AttemptError::Transient(reason)) => {
                    attempts = if self.done > before { 1 } else { attempts + 1 };
                    // A first attempt without any data is more likely a wrong URL than a transient failure.
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

    /// Requests the file, or its remainder, and stores the response.
    fn attempt(
        &mut self,
        agent: &Agent,
        file: &mut File,
        report: &mpsc::Sender<(u64, Option<u64>)>,
        spool: &impl Fn(std::io::Error) -> ImportError,
    ) -> std::result::Result<(), AttemptError> {
        let permanent = |e| AttemptError::Permanent(spool(e));
        let mut response = self.request(agent)?;
        if response.status() == StatusCode::OK && self.done != 0 {
            // The server sends the file from its start again.
            self.done = 0;
            file.set_len(0).map_err(permanent)?;
        }
        if self.done == 0 {
            self.total = response.body().content_length();
            self.validator = validator(&response);
        }
        if self.total.is_some_and(|total| total > self.policy.max_bytes) {
            return Err(AttemptError::Permanent(self.too_large()));
        }
        file.seek(SeekFrom::Start(self.done)).map_err(permanent)?;
        let mut body = response.body_mut().with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; CHUNK];
        loop {
            let n = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(AttemptError::Transient(e.to_string())),
            };
            if self.done + n as u64 > self.policy.max_bytes {
                return Err(AttemptError::Permanent(self.too_large()));
            }
            file.write_all(&buffer[..n]).map_err(permanent)?;
            self.done += n as u64;
            match report.try_send((self.done, self.total)) {
                Err(mpsc::error::TrySendError::Closed(_)) => {
                    return Err(AttemptError::Permanent(ImportError::Cancelled));
                }
                // A slow receiver misses some reports.
                Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => (),
            }
        }
        match self.total {
            Some(total) if self.done < total => {
                Err(AttemptError::Transient("the connection was closed early".into()))
            }
            _ => Ok(()),
        }
    }

    fn request(&self, agent: &Agent) -> std::result::Result<Response<Body>, AttemptError> {
        let mut request = agent.get(&self.url);
        if self.done != 0 {
            request = request.header(header::RANGE, format!("bytes={}-", self.done));
            if let Some(validator) = &self.validator {
                request = request.header(header::IF_RANGE, validator);
            }
        }
        let response = request.call().map_err(|e| match e {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => {
                AttemptError::Permanent(self.failed(e.to_string()))
            }
            ureq::Error::Other(refused) if refused.is::<AddressRefused>() => {
                AttemptError::Permanent(self.failed(refused.to_string()))
            }
            other => AttemptError::Transient(other.to_string()),
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
            Err(AttemptError::Transient(reason))
        } else {
            Err(AttemptError::Permanent(self.failed(reason)))
        }
    }

    fn too_large(&self) -> ImportError {
        let limit = Size(self.policy.max_bytes);
        self.failed(format!("the file is larger than {limit}, the limit set by --import-max-size"))
    }

    fn failed(&self, reason: String) -> ImportError {
        ImportError::Fetch { url: self.url.clone(), reason }
    }
}

/// Returns the CA certificates of the system; empty if there is no CA bundle.
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

/// Returns a strong entity tag, or the modification time.
fn validator(response: &Response<Body>) -> Option<String> {
    let get = |name| response.headers().get(name).and_then(|v| v.to_str().ok());
    let tag = get(header::ETAG).filter(|tag| !tag.starts_with("W/"));
    tag.or_else(|| get(header::LAST_MODIFIED)).map(str::to_owned)
}

/// Returns the start of `Content-Range: bytes START-END/TOTAL`.
fn content_range_start(response: &Response<Body>) -> Option<u64> {
    let range = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok()
}

/// Creates an unnamed file in `directory`.
fn unnamed_file(directory: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options.clone().custom_flags(libc::O_TMPFILE).open(directory) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => (),
        other => return other,
    }
    // The file system does not support O_TMPFILE: create a named file and unlink it.
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

    /// Reads a request and sends `sent` bytes of `body` from `start`.
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

    /// Starts a server that redirects to `location`, in which `PORT` stands for its port.
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
    fn redirects_to_private_addresses_are_refused() {
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
        // The URL's own address is allowed, and the other ones with --import-allow-private.
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
    fn a_file_above_the_size_limit_is_refused() {
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
    fn a_stalled_download_is_resumed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/disk.img", listener.local_addr().unwrap());
        let body: Vec<u8> = (0..10_000_u32).map(|n| n as u8).collect();
        let there = body.clone();
        let server = std::thread::spawn(move || {
            // Sends a part and keeps the connection open.
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
