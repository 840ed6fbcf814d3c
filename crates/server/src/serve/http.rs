//! Connections of the API: HTTP/1.1, with TLS if certificates are configured.
//!
//! **Bounds.** A listener has a limit on its connections (`capped`). A client has [`HEADER_TIME`] for the TLS
//! handshake, and again for the header of each request, also on an idle connection; a header has at most
//! [`HEADERS`] fields. Its size is compared with [`HEADER_BYTES`] when it is incomplete after a read, and the
//! buffer can be twice as large: a header of up to that size passes if it arrives at once. A client that does
//! not read its responses is disconnected (`unstalled`). Bodies are bounded in size and time by the API. What
//! is no HTTP is answered by hyper, with an empty body.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::serve::Listener;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::ServiceExt;

use super::capped;
use super::https::HttpsCertificate;
use super::unstalled::Unstalled;
use crate::api::Peer;

const HEADER_TIME: Duration = Duration::from_secs(20);
const HEADER_BYTES: usize = 32 << 10;
const HEADERS: usize = 64;

/// An address that a listener reports for its clients.
pub(super) trait ClientAddress {
    /// The IP address, over TCP.
    fn ip(&self) -> Option<IpAddr>;
}

impl ClientAddress for SocketAddr {
    fn ip(&self) -> Option<IpAddr> {
        Some(SocketAddr::ip(self).to_canonical())
    }
}

impl ClientAddress for tokio::net::unix::SocketAddr {
    fn ip(&self) -> Option<IpAddr> {
        None
    }
}

/// Serves a listener until `stop` completes; then finishes the requests in progress.
pub(super) async fn serve<L>(
    mut listener: L,
    router: Router,
    certificate: Option<Arc<HttpsCertificate>>,
    stop: impl Future<Output = ()>,
) where
    L: Listener,
    L::Addr: ClientAddress,
{
    let mut stop = std::pin::pin!(stop);
    let (stopping, stopped) = watch::channel(false);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = &mut stop => break,
            // Ended connections are removed, so the set is as large as the number of connections.
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            (io, address) = listener.accept() => {
                let (router, stopped, peer) = (router.clone(), stopped.clone(), Peer(address.ip()));
                let certificate = certificate.clone();
                connections.spawn(async move {
                    let Some(certificate) = certificate else { return connection(io, router, peer, stopped).await };
                    match tokio::time::timeout(HEADER_TIME, certificate.acceptor().accept(io)).await {
                        Ok(Ok(io)) => connection(io, router, peer, stopped).await,
                        Ok(Err(error)) => tracing::debug!(%error, ?peer, "a TLS handshake failed"),
                        Err(_) => tracing::debug!(?peer, "a TLS handshake took too long"),
                    }
                });
            }
        }
    }
    drop(listener);
    // An error means that no connection is left.
    let _ = stopping.send(true);
    while connections.join_next().await.is_some() {}
}

async fn connection<IO>(io: IO, router: Router, peer: Peer, mut stopped: watch::Receiver<bool>)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer);
        router.clone().oneshot(request)
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_headers(HEADERS)
        .max_buf_size(HEADER_BYTES)
        .serve_connection(TokioIo::new(Unstalled::new(io)), service);
    let mut serving = std::pin::pin!(serving);
    let served = tokio::select! {
        served = &mut serving => Some(served),
        () = capped::stopped(&mut stopped) => None,
    };
    let served = match served {
        Some(served) => served,
        None => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, ?peer, "a connection of the API failed");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const BODY: usize = 256 << 10;
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

    /// A connection that is served, with little room for what its client does not read.
    fn served() -> (DuplexStream, JoinSet<()>, watch::Sender<bool>) {
        let (client, io) = duplex(1024);
        let (stopping, stopped) = watch::channel(false);
        let router = Router::new().route("/", get(async || vec![b'x'; BODY]));
        let mut serving = JoinSet::new();
        serving.spawn(connection(io, router, Peer::default(), stopped));
        (client, serving, stopping)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_disconnected() {
        let (mut client, mut serving, _stopping) = served();
        for _ in 0..3 {
            client.write_all(REQUEST).await.unwrap();
        }
        let ended = tokio::time::timeout(Duration::from_secs(3600), serving.join_next()).await;
        ended.expect("the connection is kept").unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_gets_its_response() {
        let (mut client, _serving, _stopping) = served();
        client.write_all(REQUEST).await.unwrap();
        let (mut read, mut chunk) = (0, [0; 1024]);
        while read < BODY {
            tokio::time::sleep(Duration::from_secs(15)).await;
            let got = client.read(&mut chunk).await.unwrap();
            assert!(got > 0, "the connection ended after {read} bytes");
            read += got;
        }
    }
}
