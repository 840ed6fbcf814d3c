//! Download of an image file over HTTP.
//!
//! Disk formats need random access, which many servers do not support. So the whole file is downloaded to an
//! unnamed file in the data directory ([`Spool`]). A broken download is resumed if the server supports it.
//!
//! The server of the image must not be able to exhaust the resources of this server: the download is bounded
//! in size, in time and in the room that it may take, and a download from a server that sends almost nothing
//! ends soon.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_text::{Size, shorten};
use hyper::http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::sync::mpsc;

use super::FetchPolicy;
use super::address_filter::Reach;
use super::authorities;
use super::connect::{Answer, RequestError, Requester};
use super::file::{self, ImageFile};
use super::own_addresses::is_own;
use super::proxy::Proxies;
use super::spool::{KeepFree, Spool, SpoolError};
use super::unpack::Packing;
use super::url::{Url, masked};
use super::{ImportError, Result};

/// Maximum number of successive retries that receive no data.
const RETRIES: u32 = 5;
/// Maximum number of retries of the first request. An error before any data is more likely a wrong URL than a
/// transient failure, unless the server is known to be there.
const FIRST_RETRIES: u32 = 2;
/// Delay before a retry, multiplied by the number of the attempt.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Timeout of each read of the body.
const STALL: Duration = Duration::from_secs(60);
/// Interval between reports while nothing is received.
const REPORT: Duration = Duration::from_secs(1);
/// A server has to send this many bytes in this time, or the download fails.
const LEAST: (u64, Duration) = (64 << 10, Duration::from_secs(120));

/// Maximum length of the name of a content coding in an error, in bytes.
const MAX_CODING: usize = 64;

/// Receives the bytes done and the total, if known.
type Reports = mpsc::Sender<(u64, Option<u64>)>;

/// Downloads `text`, a URL, and opens the file. `on_host` states whether the client uses the control socket.
/// Calls `progress` with the bytes done and the total, if known.
pub(super) async fn fetch(
    text: String,
    data: PathBuf,
    keep_free: KeepFree,
    policy: FetchPolicy,
    on_host: bool,
    mut progress: impl FnMut(u64, Option<u64>),
) -> Result<ImageFile> {
    let Some(url) = Url::parse(&text) else { return Err(ImportError::BadUrl(masked(&text))) };
    let (report, mut reports) = mpsc::channel(8);
    // A separate thread, because it writes to a file system, which can block it. A cancelled import does not
    // wait for it.
    let (sender, result) = tokio::sync::oneshot::channel();
    let spawned = std::thread::Builder::new().name("fetch".into()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let downloaded = match runtime {
            Ok(runtime) => runtime.block_on(async {
                let spool = Spool::create(&data, keep_free)?;
                let proxies = Proxies::of_environment();
                Download::new(url, proxies, policy, on_host, spool).run(&report).await
            }),
            Err(_) => Err(ImportError::Internal("cannot start the download's event loop")),
        };
        // The receiver may be dropped.
        let _ = sender.send(downloaded);
    });
    spawned.map_err(|_| ImportError::Internal("cannot start the download thread"))?;
    while let Some((done, total)) = reports.recv().await {
        progress(done, total);
    }
    result.await.unwrap_or(Err(ImportError::Internal("the download thread panicked")))
}

struct Download {
    url: Url,
    requester: Requester,
    policy: FetchPolicy,
    stall: Duration,
    least: (u64, Duration),
    spool: Spool,
    total: Option<u64>,
    /// Entity tag or modification time for `If-Range`: the download is not resumed if the file has changed
    /// (RFC 9110, section 13.1.5).
    validator: Option<HeaderValue>,
    /// What the server states about the file.
    stated: file::Download,
}

/// Why an attempt to download failed.
enum AttemptError {
    /// The server is there, and a retry may succeed.
    Transient(String),
    /// A retry may succeed if data was received before.
    Unreachable(String),
    /// Another attempt would fail as well.
    Permanent(ImportError),
}

type Attempt<T> = std::result::Result<T, AttemptError>;

impl Download {
    fn new(url: Url, proxies: Proxies, policy: FetchPolicy, on_host: bool, spool: Spool) -> Download {
        let FetchPolicy { allow_private, first_byte, .. } = policy;
        let reach = Reach { allow_private, on_host, is_own };
        let requester = Requester { proxies, reach, first_byte, tls: authorities::client_config };
        let stated = file::Download::default();
        let (stall, least) = (STALL, LEAST);
        Download { url, requester, policy, stall, least, spool, total: None, validator: None, stated }
    }

    /// Downloads the file, until the receiver of the reports is dropped or the time has passed.
    async fn run(mut self, report: &Reports) -> Result<ImageFile> {
        let limit = self.policy.timeout;
        let done = tokio::select! {
            done = tokio::time::timeout(limit, self.with_retries(report)) => done,
            () = report.closed() => return Err(ImportError::Cancelled),
        };
        match done {
            Ok(result) => result?,
            Err(_) => {
                let seconds = limit.as_secs();
                let why = format!("it takes longer than {seconds} s, the limit set by [import] timeout_s");
                return Err(self.failed(why));
            }
        }
        let path = self.spool.directory();
        let file = self.spool.into_file().map_err(|error| ImportError::Spool { path, error })?;
        ImageFile::from_download(file, self.url.to_string(), self.stated)
    }

    async fn with_retries(&mut self, report: &Reports) -> Result<()> {
        let mut attempts = 0;
        loop {
            let before = self.spool.len();
            let (reason, most) = match self.attempt(report).await {
                Ok(()) => return Ok(()),
                Err(AttemptError::Permanent(e)) => return Err(e),
                Err(AttemptError::Transient(reason)) => (reason, FIRST_RETRIES),
                Err(AttemptError::Unreachable(reason)) => (reason, 0),
            };
            attempts = if self.spool.len() > before { 1 } else { attempts + 1 };
            if attempts > if self.spool.len() == 0 { most } else { RETRIES } {
                return Err(self.failed(reason));
            }
            tokio::time::sleep(RETRY_DELAY * attempts).await;
        }
    }

    /// Requests the file, or its remainder, and stores the response.
    async fn attempt(&mut self, report: &Reports) -> Attempt<()> {
        let mut answer = self.request(report).await?;
        if answer.status == StatusCode::OK {
            self.begin(&answer)?;
        }
        let mut mark = (Instant::now(), self.spool.len());
        loop {
            let read = tokio::time::timeout(self.stall, answer.next()).await;
            let part = match read {
                Ok(Ok(Some(part))) => part,
                Ok(Ok(None)) => break,
                Ok(Err(reason)) => return Err(AttemptError::Transient(reason)),
                Err(_) => return Err(AttemptError::Transient("the server stopped sending".into())),
            };
            self.spool.write(&part).map_err(|e| self.not_stored(e))?;
            if self.spool.len() > self.policy.max_bytes {
                return Err(AttemptError::Permanent(self.too_large()));
            }
            let (bytes, time) = self.least;
            if mark.0.elapsed() >= time {
                if self.spool.len() - mark.1 < bytes {
                    let why = format!("the server sends less than {} in {} s", Size(bytes), time.as_secs());
                    return Err(AttemptError::Permanent(self.failed(why)));
                }
                mark = (Instant::now(), self.spool.len());
            }
            // A slow receiver misses some reports.
            let _ = report.try_send((self.spool.len(), self.total));
        }
        if self.total.is_some_and(|total| self.spool.len() < total) {
            return Err(AttemptError::Transient("the connection was closed early".into()));
        }
        self.spool.finish().map_err(|e| self.not_stored(e))
    }

    /// Prepares for the whole file, which `answer` contains.
    fn begin(&mut self, answer: &Answer) -> Attempt<()> {
        let coding = answer.header(header::CONTENT_ENCODING);
        if !self.spool.restart(coding).map_err(|e| self.not_stored(SpoolError::Storage(e)))? {
            let coding = shorten(coding, MAX_CODING);
            let why = format!("the server sent it in the content coding '{coding}', which was not requested");
            return Err(AttemptError::Permanent(self.failed(why)));
        }
        // The server states the length of the compressed data.
        self.total = if self.spool.is_coded() { None } else { answer.len() };
        self.validator = validator(&answer.headers).filter(|_| !self.spool.is_coded());
        let kind = answer.header(header::CONTENT_TYPE).split(';').next().unwrap_or_default();
        // Some servers send a file that is named `*.gz` as a file with a content coding.
        let name = answer.url.file_name();
        self.stated = file::Download {
            file_name: if self.spool.is_coded() { Packing::Gzip.unpacked_name(&name) } else { name },
            content_type: Some(kind.trim().to_ascii_lowercase()).filter(|kind| !kind.is_empty()),
        };
        if self.total.is_some_and(|total| total > self.policy.max_bytes) {
            return Err(AttemptError::Permanent(self.too_large()));
        }
        self.spool.check_room(self.total.unwrap_or_default()).map_err(|e| self.not_stored(e))
    }

    async fn request(&self, report: &Reports) -> Attempt<Answer> {
        let done = self.spool.len();
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(
            header::USER_AGENT,
            HeaderValue::from_static(concat!("forebay/", env!("CARGO_PKG_VERSION"))),
        );
        // For compressed data, the offset up to which the file was received is not known.
        if done != 0 && !self.spool.is_coded() {
            let range = HeaderValue::try_from(format!("bytes={done}-"));
            headers.extend(range.ok().map(|range| (header::RANGE, range)));
            headers.extend(self.validator.clone().map(|validator| (header::IF_RANGE, validator)));
        }
        let answer = self.waiting(report, self.requester.get(&self.url, &headers)).await;
        let answer = answer.map_err(|e| match e {
            RequestError::Permanent(reason) => AttemptError::Permanent(self.failed(reason)),
            RequestError::Unreachable(reason) => AttemptError::Unreachable(reason),
            RequestError::Unanswered(reason) => AttemptError::Transient(reason),
        })?;
        let status = answer.status;
        let start = content_range_start(answer.header(header::CONTENT_RANGE));
        let resumed = done != 0 && status == StatusCode::PARTIAL_CONTENT && start == Some(done);
        if status == StatusCode::OK || resumed {
            return Ok(answer);
        }
        let reason = format!("the server answered {status}");
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            Err(AttemptError::Transient(reason))
        } else {
            Err(AttemptError::Permanent(self.failed(reason)))
        }
    }

    /// Reports that the download waits, until `work` has ended.
    async fn waiting<T>(&self, report: &Reports, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let mut ticks = tokio::time::interval(REPORT);
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = ticks.tick() => {
                    // A slow receiver misses some reports.
                    let _ = report.try_send((self.spool.len(), self.total));
                }
            }
        }
    }

    fn not_stored(&self, error: SpoolError) -> AttemptError {
        let path = self.spool.directory();
        AttemptError::Permanent(match error {
            SpoolError::Coding(e) => self.failed(format!("the compressed data is damaged: {e}")),
            SpoolError::Storage(error) => ImportError::Spool { path, error },
            SpoolError::NoRoom { free, keep } => {
                ImportError::NoRoom { work: format!("download of {}", self.url), path, free, keep }
            }
        })
    }

    fn too_large(&self) -> ImportError {
        let limit = Size(self.policy.max_bytes);
        self.failed(format!(
            "the file is larger than {limit}, the limit set by --max-size or --import-max-size"
        ))
    }

    fn failed(&self, reason: String) -> ImportError {
        ImportError::Fetch { url: self.url.to_string(), reason }
    }
}

/// Returns a strong entity tag, or the modification time.
fn validator(headers: &HeaderMap) -> Option<HeaderValue> {
    let tag = headers.get(header::ETAG).filter(|tag| !tag.as_bytes().starts_with(b"W/"));
    tag.or_else(|| headers.get(header::LAST_MODIFIED)).cloned()
}

/// Returns the start of `Content-Range: bytes START-END/TOTAL`.
fn content_range_start(range: &str) -> Option<u64> {
    range.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests;
