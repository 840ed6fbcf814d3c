//! Connections of the API: HTTP/1.1, with TLS if certificates are configured.
//!
//! **Bounds.** A listener has a limit on its connections (`capped`). A client has [`HEADER_TIME`] for the TLS
//! handshake, and again for the header of each request, also on an idle connection; a header has at most
//! [`HEADER_BYTES`] and [`HEADERS`] fields. Bodies are bounded in size and time by the API. What is no HTTP
//! is answered by hyper, with an empty body.

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
        .serve_connection(TokioIo::new(io), service);
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
