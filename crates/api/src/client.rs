//! The API client: one request per connection over the control socket.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::UnixStream;

use crate::{ErrorDetail, ErrorKind, HEADER, MISSING_SHARDS, PREFIX, Problem, SOCKET_HOST};

/// Characters that are escaped in a path segment: all except the unreserved characters of RFC 3986.
pub const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Timeout of a connection attempt to the control socket.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which a request is sent again during an upgrade, and the interval.
const UPGRADE: Duration = Duration::from_secs(10);
const UPGRADE_STEP: Duration = Duration::from_millis(20);

/// Time without a response after which the wait is reported.
const NOTICE_AFTER: Duration = Duration::from_secs(5);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No server accepts connections on the socket.
    #[error(
        "cannot reach the server on {path} ({reason}); start it with 'forebay serve --data DIR', or give its socket with \
         --socket"
    )]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// The operating system's error.
        reason: String,
    },
    /// No server has a control socket in one of the default places.
    #[error(
        "no server is running: there is no control socket {} or {}; start the service with 'systemctl start forebay', or \
         a server with 'forebay serve --data DIR', or give its socket with --socket", .0[0].display(), .0[1].display()
    )]
    NoServer([PathBuf; 2]),
    /// The connection broke before the response was complete.
    #[error("the server's response is incomplete ({0}); see the server's log")]
    Broken(String),
    /// The response is not one of this API.
    #[error("cannot parse the server's response ({0}); use the same release of the command and the server")]
    Foreign(String),
    /// The server returned an error.
    #[error("{message}")]
    Refused {
        /// Stable code for programs.
        code: String,
        /// Message for the user.
        message: String,
        /// What to do about this kind of error; `None` in a streamed response.
        remedy: Option<String>,
    },
}

impl ClientError {
    /// The stable code of an error that the server returned.
    pub fn code(&self) -> Option<&str> {
        match self {
            ClientError::Refused { code, .. } => Some(code),
            _ => None,
        }
    }

    /// Whether the server changed nothing, because another process replaces it.
    fn is_upgrading(&self) -> bool {
        self.code() == Some(ErrorKind::Upgrading.code())
    }
}

/// Result of a request.
pub type Result<T> = std::result::Result<T, ClientError>;

/// Builds a path of the API from segments, escaping each one.
pub fn path(segments: &[&str]) -> String {
    let mut path = PREFIX.to_owned();
    for segment in segments {
        path.push('/');
        path.extend(utf8_percent_encode(segment, SEGMENT));
    }
    path
}

/// Escapes a value of a query.
pub fn query_value(value: &str) -> String {
    utf8_percent_encode(value, NON_ALPHANUMERIC).to_string()
}

/// A client of the server on one control socket.
pub struct Client {
    socket: PathBuf,
    /// The shard of a cluster that all requests concern.
    shard: Option<u32>,
    /// Whether a long wait is still to be reported on standard error.
    reports_wait: AtomicBool,
}

impl Client {
    /// Creates a client of the server on `socket`. Each request opens its own connection.
    pub fn new(socket: &Path) -> Client {
        Client { socket: socket.to_owned(), shard: None, reports_wait: AtomicBool::new(false) }
    }

    /// All requests concern this shard of the cluster whose node has the socket.
    pub fn of_shard(self, shard: Option<u32>) -> Client {
        Client { shard, ..self }
    }

    /// Reports on standard error, once, that a response takes long. No request times out: a job may be long.
    pub fn reporting_wait(self, reports: bool) -> Client {
        Client { reports_wait: AtomicBool::new(reports), ..self }
    }

    /// Waits for a request.
    async fn wait_for<T>(&self, request: impl Future<Output = T>) -> T {
        let mut request = pin!(request);
        tokio::select! {
            biased;
            done = &mut request => return done,
            () = tokio::time::sleep(NOTICE_AFTER) => {}
        }
        if self.reports_wait.swap(false, Relaxed) {
            let line = format!("forebay: waiting for the server at {} ...", self.socket.display());
            eprintln!("{}", forebay_text::one_line(&line));
        }
        request.await
    }

    /// `GET`.
    pub async fn get<T: DeserializeOwned>(&self, segments: &[&str]) -> Result<T> {
        self.call(Method::GET, path(segments), None::<&()>).await
    }

    /// `DELETE`.
    pub async fn delete<T: DeserializeOwned>(&self, segments: &[&str]) -> Result<T> {
        self.call(Method::DELETE, path(segments), None::<&()>).await
    }

    /// `DELETE`, with a flag such as `force`.
    pub async fn remove(&self, segments: &[&str], flag: Option<&str>) -> Result<Value> {
        let query = flag.map_or_else(String::new, |flag| format!("?{flag}=true"));
        self.call(Method::DELETE, path(segments) + &query, None::<&()>).await
    }

    /// `PUT`.
    pub async fn put<T: DeserializeOwned>(&self, segments: &[&str], body: &impl Serialize) -> Result<T> {
        self.call(Method::PUT, path(segments), Some(body)).await
    }

    /// `PUT` of bytes. It is sent once: the caller repeats it.
    pub async fn put_bytes<T: DeserializeOwned>(&self, segments: &[&str], bytes: Bytes) -> Result<T> {
        let sent = self.send_once(Method::PUT, path(segments), "application/octet-stream", bytes);
        let body = self.wait_for(sent).await?.into_body().collect().await.map_err(|e| broken(&e))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|e| ClientError::Foreign(e.to_string()))
    }

    /// `POST`.
    pub async fn post<T: DeserializeOwned>(&self, segments: &[&str], body: &impl Serialize) -> Result<T> {
        self.call(Method::POST, path(segments), Some(body)).await
    }

    /// `POST` with a streamed response of one JSON value per line.
    pub async fn post_lines(&self, segments: &[&str], body: &impl Serialize) -> Result<Lines> {
        let response = self.send(Method::POST, path(segments), Some(body)).await?;
        Ok(Client::lines(response))
    }

    /// The lines of a streamed response with one JSON value per line.
    pub fn lines(response: Response<Incoming>) -> Lines {
        Lines { body: response.into_body(), buffer: Vec::new() }
    }

    /// Sends a request and parses the complete response.
    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: String,
        body: Option<&impl Serialize>,
    ) -> Result<T> {
        let whole = async {
            let response = self.send_again(method, path, body).await?;
            let body = response.into_body().collect().await.map_err(|e| broken(&e))?;
            Ok::<_, ClientError>(body.to_bytes())
        };
        let bytes = self.wait_for(whole).await?;
        serde_json::from_slice(&bytes).map_err(|e| ClientError::Foreign(e.to_string()))
    }

    /// Sends a request and returns a successful response with its body unread. While another process takes
    /// the server's place, sends it again until that process answers.
    pub async fn send(
        &self,
        method: Method,
        path: String,
        body: Option<&impl Serialize>,
    ) -> Result<Response<Incoming>> {
        self.wait_for(self.send_again(method, path, body)).await
    }

    async fn send_again(
        &self,
        method: Method,
        path: String,
        body: Option<&impl Serialize>,
    ) -> Result<Response<Incoming>> {
        let bytes = match body {
            Some(body) => serde_json::to_vec(body).map_err(|e| ClientError::Foreign(e.to_string()))?.into(),
            None => Bytes::new(),
        };
        let begun = Instant::now();
        loop {
            match self.send_once(method.clone(), path.clone(), "application/json", bytes.clone()).await {
                Err(e) if e.is_upgrading() && begun.elapsed() < UPGRADE => {
                    tokio::time::sleep(UPGRADE_STEP).await;
                }
                done => return done,
            }
        }
    }

    async fn send_once(
        &self,
        method: Method,
        path: String,
        media_type: &str,
        bytes: Bytes,
    ) -> Result<Response<Incoming>> {
        let path = match self.shard {
            Some(shard) => path.replacen(PREFIX, &format!("{PREFIX}/shards/{shard}"), 1),
            None => path,
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, SOCKET_HOST)
            .header(HEADER, "1")
            .header(header::CONTENT_TYPE, media_type)
            .body(Full::new(bytes))
            .map_err(|e| ClientError::Foreign(e.to_string()))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(self.connect().await?))
                .await
                .map_err(|e| broken(&e))?;
        // The task ends with the response; the request reports the connection's errors as well.
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(|e| broken(&e))?;
        if response.status().is_success() {
            if let Some(missing) = response.headers().get(MISSING_SHARDS) {
                let shards = missing.to_str().unwrap_or_default();
                let line =
                    format!("forebay: these shards do not answer, so their disks are not listed: {shards}");
                eprintln!("{}", forebay_text::one_line(&line));
            }
            return Ok(response);
        }
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(|e| broken(&e))?.to_bytes();
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(Problem { code, detail, remedy, .. }) => {
                Err(ClientError::Refused { code, message: detail, remedy: Some(remedy) })
            }
            Err(_) => Err(ClientError::Foreign(status.to_string())),
        }
    }

    async fn connect(&self) -> Result<UnixStream> {
        let unreachable = |reason: String| ClientError::Unreachable { path: self.socket.clone(), reason };
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, UnixStream::connect(&self.socket)).await;
        connected
            .map_err(|_| unreachable("the connection timed out".into()))?
            .map_err(|e| unreachable(reason(&e)))
    }
}

/// A streamed response of one JSON value per line. Dropping it closes the connection.
pub struct Lines {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Lines {
    /// Returns the next value; `None` at the end.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return serde_json::from_slice(&line)
                    .map(Some)
                    .map_err(|e| ClientError::Foreign(e.to_string()));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame.map_err(|e| broken(&e))?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

impl From<ErrorDetail> for ClientError {
    fn from(e: ErrorDetail) -> ClientError {
        ClientError::Refused { code: e.code, message: e.message, remedy: None }
    }
}

fn broken(e: &hyper::Error) -> ClientError {
    ClientError::Broken(e.to_string())
}

fn reason(e: &std::io::Error) -> String {
    match e.kind() {
        std::io::ErrorKind::NotFound => "no such socket".into(),
        std::io::ErrorKind::ConnectionRefused => "stale socket: no server is running".into(),
        std::io::ErrorKind::PermissionDenied => {
            "permission denied: run this command as the server's user".into()
        }
        _ => e.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_escaped_as_one_path_segment() {
        assert_eq!(path(&["volumes", "a/b c%@é?#"]), "/api/v1/volumes/a%2Fb%20c%25%40%C3%A9%3F%23");
        assert_eq!(path(&["volumes", "..", "x"]), "/api/v1/volumes/../x");
    }
}
