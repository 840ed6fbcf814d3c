//! The client of the API: one request over the control socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::UnixStream;

use crate::api::{self, PREFIX};
use crate::control::ErrorBody;

/// What is escaped in one segment of a path: all but RFC 3986's unreserved characters.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// How long a server that accepts connections may take to answer the first byte of the greeting.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no answer, or which error it was.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error(
        "no server answers on {path} ({reason}): start one with 'forebay serve --data DIR', or name its socket with --socket"
    )]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The connection broke.
    #[error("the server did not finish its answer ({0}); see its log")]
    Broken(String),
    /// It answered with something else than the API does.
    #[error(
        "the server gave an answer that this release does not understand ({0}); use the same release on both sides"
    )]
    Foreign(String),
    /// It said no.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: StatusCode,
        /// Code for programs.
        code: String,
        /// For people.
        message: String,
    },
}

/// Result of a request.
pub type Result<T> = std::result::Result<T, ClientError>;

/// A path of the API, made of segments that are escaped one by one.
pub fn path(segments: &[&str]) -> String {
    let mut path = PREFIX.to_owned();
    for segment in segments {
        path.push('/');
        path.extend(utf8_percent_encode(segment, SEGMENT));
    }
    path
}

/// A server, known by its control socket.
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client of the server on `socket`. Nothing is connected yet.
    pub fn new(socket: &Path) -> Client {
        Client { socket: socket.to_owned() }
    }

    /// `GET`.
    pub async fn get<T: DeserializeOwned>(&self, segments: &[&str]) -> Result<T> {
        self.call(Method::GET, path(segments), None::<&()>).await
    }

    /// `DELETE`.
    pub async fn delete<T: DeserializeOwned>(&self, segments: &[&str]) -> Result<T> {
        self.call(Method::DELETE, path(segments), None::<&()>).await
    }

    /// `DELETE` of what may be in use; with `force`, of what is.
    pub async fn remove(&self, segments: &[&str], force: bool) -> Result<Value> {
        let query = if force { "?force=true" } else { "" };
        self.call(Method::DELETE, path(segments) + query, None::<&()>).await
    }

    /// `PUT`.
    pub async fn put<T: DeserializeOwned>(&self, segments: &[&str], body: &impl Serialize) -> Result<T> {
        self.call(Method::PUT, path(segments), Some(body)).await
    }

    /// `POST`.
    pub async fn post<T: DeserializeOwned>(&self, segments: &[&str], body: &impl Serialize) -> Result<T> {
        self.call(Method::POST, path(segments), Some(body)).await
    }

    /// `POST` with an answer that comes line by line.
    pub async fn post_lines(&self, segments: &[&str], body: &impl Serialize) -> Result<Lines> {
        let response = self.send(Method::POST, path(segments), Some(body)).await?;
        Ok(Lines { body: response.into_body(), buffer: Vec::new() })
    }

    /// One request and its whole answer.
    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: String,
        body: Option<&impl Serialize>,
    ) -> Result<T> {
        let response = self.send(method, path, body).await?;
        let bytes = response.into_body().collect().await.map_err(|e| broken(&e))?.to_bytes();
        serde_json::from_slice(&bytes).map_err(|e| ClientError::Foreign(e.to_string()))
    }

    /// One request; the body of a successful answer is still to come.
    pub async fn send(
        &self,
        method: Method,
        path: String,
        body: Option<&impl Serialize>,
    ) -> Result<Response<Incoming>> {
        let bytes = match body {
            Some(body) => serde_json::to_vec(body).map_err(|e| ClientError::Foreign(e.to_string()))?,
            None => Vec::new(),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "forebay")
            .header(api::HEADER, "1")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(bytes)))
            .map_err(|e| ClientError::Foreign(e.to_string()))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(self.connect().await?))
                .await
                .map_err(|e| broken(&e))?;
        // It ends with the answer; its errors come out of the request too.
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(|e| broken(&e))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(|e| broken(&e))?.to_bytes();
        match serde_json::from_slice::<ErrorBody>(&bytes) {
            Ok(e) => Err(ClientError::Refused { status, code: e.error.code, message: e.error.message }),
            Err(_) => Err(ClientError::Foreign(status.to_string())),
        }
    }

    async fn connect(&self) -> Result<UnixStream> {
        let unreachable = |reason: String| ClientError::Unreachable { path: self.socket.clone(), reason };
        let connected = tokio::time::timeout(CONNECT_PATIENCE, UnixStream::connect(&self.socket)).await;
        connected.map_err(|_| unreachable("it is too busy".into()))?.map_err(|e| unreachable(reason(&e)))
    }
}

/// An answer of one JSON value a line. Dropping it hangs up.
pub struct Lines {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Lines {
    /// The next value; `None` at the end.
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

fn broken(e: &hyper::Error) -> ClientError {
    ClientError::Broken(e.to_string())
}

fn reason(e: &std::io::Error) -> String {
    match e.kind() {
        std::io::ErrorKind::NotFound => "there is no such socket".into(),
        std::io::ErrorKind::ConnectionRefused => "the socket is left over".into(),
        std::io::ErrorKind::PermissionDenied => "permission denied: it belongs to root".into(),
        _ => e.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_one_segment() {
        assert_eq!(path(&["volumes", "a/b c%@é?#"]), "/api/v1/volumes/a%2Fb%20c%25%40%C3%A9%3F%23");
        assert_eq!(path(&["volumes", "..", "x"]), "/api/v1/volumes/../x");
    }
}
