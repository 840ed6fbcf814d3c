//! GET requests over HTTP/1.1, directly or through a proxy.
//!
//! Each request has a new connection. So no request meets a connection that the server is closing, and the
//! addresses of each host are checked ([`AddressFilter`]). hyper parses the responses, and skips interim
//! responses (1xx).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use hyper::{Method, Response};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use super::MAX_SOURCE;
use super::address_filter::{AddressFilter, Reach};
use super::proxy::Proxies;
use super::url::{Scheme, Url};

/// Maximum number of redirects of one request.
const REDIRECTS: usize = 10;
/// Timeout of a connection: to one address, and of a TLS handshake.
const CONNECT: Duration = Duration::from_secs(30);

/// Why a request got no response.
#[derive(Debug)]
pub(super) enum RequestError {
    /// Another attempt would fail in the same way.
    Permanent(String),
    /// The server cannot be reached.
    Unreachable(String),
    /// The connection ended or failed before a response.
    Unanswered(String),
}

/// A connection to the server, possibly with TLS.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Settings of all requests of a download.
pub(super) struct Requester {
    pub proxies: Proxies,
    pub reach: Reach,
    /// Time from the request to the response.
    pub first_byte: Duration,
    /// Source of the certificate authorities.
    pub tls: TlsSource,
}

/// Returns the configuration of TLS, or the reason for its absence.
pub(super) type TlsSource = fn() -> Result<Arc<ClientConfig>, String>;

/// A response whose body has not been read.
pub(super) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The URL that was reached after redirects.
    pub url: Url,
    body: Incoming,
    /// The task that drives the connection; aborted when the answer is dropped.
    _driver: AbortOnDrop,
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Answer {
    /// Length of the body, if the server states it.
    pub fn len(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// Returns the next part of the body; `None` at its end. A body that is shorter than its stated length is
    /// an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, String> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    // Trailers of the response are not used.
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(e)) => return Err(reason(&e)),
            }
        }
    }

    /// The value of a header; empty if it is missing or no text.
    pub fn header(&self, name: header::HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

impl Requester {
    /// Requests `url` and follows redirects. `headers` are sent to each server.
    pub async fn get(&self, url: &Url, headers: &HeaderMap) -> Result<Answer, RequestError> {
        let mut filter = AddressFilter::new(self.reach);
        let mut url = url.clone();
        for _ in 0..=REDIRECTS {
            let answer = self.get_once(&url, headers, &mut filter).await?;
            let location = match answer.status.as_u16() {
                301 | 302 | 303 | 307 | 308 => answer.header(header::LOCATION),
                _ => "",
            };
            if location.is_empty() {
                return Ok(answer);
            }
            if location.len() > MAX_SOURCE {
                // The whole of it would be in the error, the job and its events.
                let len = location.len();
                let why =
                    format!("{url} redirects to a URL of {len} bytes; at most {MAX_SOURCE} are permitted");
                return Err(RequestError::Permanent(why));
            }
            url = url.join(location).ok_or_else(|| {
                let to = super::url::masked(location);
                RequestError::Permanent(format!(
                    "{url} redirects to '{to}', which is no URL of http or https"
                ))
            })?;
        }
        Err(RequestError::Permanent(format!("more than {REDIRECTS} redirects")))
    }

    async fn get_once(
        &self,
        url: &Url,
        headers: &HeaderMap,
        filter: &mut AddressFilter,
    ) -> Result<Answer, RequestError> {
        let proxy = self.proxies.of(url).map_err(|value| {
            RequestError::Permanent(format!(
                "the environment names the proxy '{value}'; use http://HOST:PORT"
            ))
        })?;
        if proxy.is_some() {
            filter.passed_to_proxy();
        }
        let mut headers = headers.clone();
        headers.extend(authorization(header::AUTHORIZATION, url)?);
        let (stream, target) = match (&proxy, url.scheme) {
            (None, _) => (self.dial(url, Some(filter)).await?, url.origin_form()),
            (Some(proxy), Scheme::Http) => {
                headers.extend(authorization(header::PROXY_AUTHORIZATION, proxy)?);
                (self.dial(proxy, None).await?, url.absolute_form())
            }
            (Some(proxy), Scheme::Https) => (self.tunnel(proxy, url).await?, url.origin_form()),
        };
        let (response, driver) = self.exchange(stream, Method::GET, &target, url, headers).await?;
        let (head, body) = response.into_parts();
        Ok(Answer { status: head.status, headers: head.headers, url: url.clone(), body, _driver: driver })
    }

    /// Connects to an https server through a proxy.
    async fn tunnel(&self, proxy: &Url, url: &Url) -> Result<Box<dyn Stream>, RequestError> {
        let target = format!("{}:{}", url.host, url.port);
        let headers = authorization(header::PROXY_AUTHORIZATION, proxy)?;
        let stream = self.dial(proxy, None).await?;
        let (response, driver) = self.exchange(stream, Method::CONNECT, &target, url, headers).await?;
        if !response.status().is_success() {
            let status = response.status();
            return Err(RequestError::Permanent(format!("the proxy {proxy} answered {status} for {target}")));
        }
        let upgraded =
            hyper::upgrade::on(response).await.map_err(|e| RequestError::Unanswered(reason(&e)))?;
        drop(driver);
        self.secure(Box::new(TokioIo::new(upgraded)), url).await
    }

    /// Sends a request on a new connection and waits for the response.
    async fn exchange(
        &self,
        stream: Box<dyn Stream>,
        method: Method,
        target: &str,
        url: &Url,
        headers: HeaderMap,
    ) -> Result<(Response<Incoming>, AbortOnDrop), RequestError> {
        let invalid = |e: hyper::http::Error| RequestError::Permanent(e.to_string());
        let host = if method == Method::CONNECT { target.to_owned() } else { url.host_port() };
        let mut request = Request::builder().method(method).uri(target).header(header::HOST, host);
        if let Some(all) = request.headers_mut() {
            all.extend(headers);
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(invalid)?;
        // The options let the parser accept what browsers accept.
        let mut builder = http1::Builder::new();
        builder.ignore_invalid_headers_in_responses(true).allow_spaces_after_header_name_in_responses(true);
        builder.allow_obsolete_multiline_headers_in_responses(true);
        let connected = builder.handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = connected.map_err(|e| RequestError::Unanswered(reason(&e)))?;
        let driver = AbortOnDrop(tokio::spawn(async move {
            // An error is reported by the request or the body.
            let _ = connection.with_upgrades().await;
        }));
        let response = tokio::time::timeout(self.first_byte, sender.send_request(request)).await;
        match response {
            Ok(Ok(response)) => Ok((response, driver)),
            Ok(Err(e)) => Err(RequestError::Unanswered(reason(&e))),
            Err(_) => {
                let seconds = self.first_byte.as_secs();
                let why =
                    format!("no answer in {seconds} s; [import] first_byte_timeout_s sets how long to wait");
                Err(RequestError::Permanent(why))
            }
        }
    }

    /// Connects to the host of a URL. A proxy has no filter: the administrator has named it.
    async fn dial(
        &self,
        url: &Url,
        filter: Option<&mut AddressFilter>,
    ) -> Result<Box<dyn Stream>, RequestError> {
        let host = url.bare_host();
        let unreachable = |e: io::Error| RequestError::Unreachable(format!("{}: {e}", url.host_port()));
        let found: Vec<_> = tokio::net::lookup_host((host, url.port)).await.map_err(unreachable)?.collect();
        let addresses = match filter {
            Some(filter) => {
                filter.allowed(host, found).map_err(|e| RequestError::Permanent(e.to_string()))?
            }
            None => found,
        };
        let mut failed = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses {
            match tokio::time::timeout(CONNECT, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    let stream: Box<dyn Stream> = Box::new(stream);
                    return if url.scheme == Scheme::Https {
                        self.secure(stream, url).await
                    } else {
                        Ok(stream)
                    };
                }
                Ok(Err(e)) => failed = e,
                Err(_) => failed = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(unreachable(failed))
    }

    /// Negotiates TLS with the host of a URL.
    async fn secure(&self, stream: Box<dyn Stream>, url: &Url) -> Result<Box<dyn Stream>, RequestError> {
        let config: Arc<ClientConfig> = (self.tls)().map_err(RequestError::Permanent)?;
        let name = ServerName::try_from(url.bare_host().to_owned());
        let name = name.map_err(|e| RequestError::Permanent(format!("{}: {e}", url.host)))?;
        match tokio::time::timeout(CONNECT, TlsConnector::from(config).connect(name, stream)).await {
            Ok(Ok(stream)) => Ok(Box::new(stream)),
            Ok(Err(e)) if e.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => {
                Err(RequestError::Permanent(format!("TLS with {}: {e}", url.host_port())))
            }
            Ok(Err(e)) => Err(RequestError::Unanswered(format!("TLS with {}: {e}", url.host_port()))),
            Err(_) => Err(RequestError::Unreachable(format!("TLS with {}: no answer", url.host_port()))),
        }
    }
}

/// The header for the credentials of a URL (RFC 7617); empty without credentials.
fn authorization(name: header::HeaderName, url: &Url) -> Result<HeaderMap, RequestError> {
    let mut headers = HeaderMap::new();
    if let Some((user, password)) = url.credentials() {
        let encoded = base64(&[user, password].join(&b':'));
        let value = HeaderValue::try_from(format!("Basic {encoded}"));
        let mut value = value.map_err(|e| RequestError::Permanent(e.to_string()))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

/// Encodes bytes (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |i| u32::from(group.get(i).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let is_padding = digit > group.len();
            let value = (bits >> (18 - 6 * digit)) as usize & 63;
            text.push(if is_padding { '=' } else { char::from(DIGITS[value]) });
        }
    }
    text
}

/// The text of an error and of its causes.
fn reason(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_has_the_test_vectors_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
