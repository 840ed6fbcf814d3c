//! Connections of the API: HTTP/1.1, with TLS if certificates are configured.
//!
//! **Bounds.** A listener has a limit on its connections, and ends idle ones (`capped`). A client has
//! [`HEADER_TIME`] for the TLS handshake, and again for the header of each request; a header has at most
//! [`HEADERS`] fields. If a header is incomplete after a read, its size is compared with [`HEADER_BYTES`].
//! The buffer can be twice as large, so a header of up to twice [`HEADER_BYTES`] passes if it arrives at
//! once. A client that does not read its responses is disconnected (`unstalled`). Bodies are bounded in size
//! and time by the API. Input that is not HTTP is answered by hyper, with an empty body.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::serve::Listener;
use forebay_control::http::Peer;
use hyper::Request;
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::ServiceExt;

use super::connection_limit::{self, Busy, LimitedListener, Place};
use super::https::HttpsCertificate;
use super::send_timeout::SendTimeout;

const HEADER_TIME: Duration = Duration::from_secs(20);
const HEADER_BYTES: usize = 32 << 10;
const HEADERS: usize = 64;

/// An address that a listener reports for its clients.
pub(crate) trait ClientAddress {
    /// The IP address of the client; `None` if the client does not use TCP.
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
pub(crate) async fn serve<L>(
    mut listener: LimitedListener<L>,
    router: Router,
    certificate: Option<Arc<HttpsCertificate>>,
    stop: impl Future<Output = ()>,
) where
    L: Listener,
    L::Io: Sync,
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
                let (certificate, place) = (certificate.clone(), io.place());
                let ends = place.clone();
                let serve = async move {
                    let Some(certificate) = certificate else {
                        return connection(io, router, (peer, place), stopped).await;
                    };
                    match tokio::time::timeout(HEADER_TIME, certificate.acceptor().accept(io)).await {
                        Ok(Ok(io)) => connection(io, router, (peer, place), stopped).await,
                        Ok(Err(error)) => tracing::debug!(%error, ?peer, "a TLS handshake failed"),
                        Err(_) => tracing::debug!(?peer, "a TLS handshake took too long"),
                    }
                };
                connections.spawn(async move {
                    tokio::select! {
                        () = serve => {}
                        () = ends.ended() => tracing::debug!(?peer, "an idle connection of the API was ended"),
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

async fn connection<IO>(
    io: IO,
    router: Router,
    (peer, place): (Peer, Arc<Place>),
    mut stopped: watch::Receiver<bool>,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let busy = place.begin();
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer);
        let response = router.clone().oneshot(request);
        async move { response.await.map(|response| response.map(|body| Sending { body, _busy: busy })) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_headers(HEADERS)
        .max_buf_size(HEADER_BYTES)
        .serve_connection(TokioIo::new(SendTimeout::new(io)), service);
    let mut serving = std::pin::pin!(serving);
    let served = tokio::select! {
        served = &mut serving => Some(served),
        () = connection_limit::stopped(&mut stopped) => None,
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

/// The body of a response; the connection is busy until it was sent.
struct Sending {
    body: Body,
    _busy: Busy,
}

impl hyper::body::Body for Sending {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::mpsc;

    use super::*;

    const BODY: usize = 256 << 10;
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

    /// A connection that is served, with little room for what its client does not read.
    fn served() -> (DuplexStream, JoinSet<()>, watch::Sender<bool>) {
        let (client, io) = duplex(1024);
        let (stopping, stopped) = watch::channel(false);
        let router = Router::new().route("/", get(async || vec![b'x'; BODY]));
        let mut serving = JoinSet::new();
        serving.spawn(connection(io, router, (Peer::default(), Arc::default()), stopped));
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

    /// A listener on a loopback address that serves at most two connections.
    ///
    /// A request for `/slow` is reported, and not answered.
    async fn listener(slow: mpsc::Sender<()>) -> (SocketAddr, JoinSet<()>, watch::Sender<bool>) {
        let (stopping, stopped) = watch::channel(false);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let handler = move || {
            let slow = slow.clone();
            async move {
                slow.send(()).await.unwrap();
                std::future::pending::<&str>().await
            }
        };
        let router = Router::new().route("/", get(async || "x")).route("/slow", get(handler));
        let capped = LimitedListener::new(listener, 2, stopped);
        let mut serving = JoinSet::new();
        serving.spawn(async move { serve(capped, router, None, std::future::pending()).await });
        (address, serving, stopping)
    }

    async fn connect(address: SocketAddr, request: &[u8]) -> tokio::net::TcpStream {
        let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
        client.write_all(request).await.unwrap();
        client
    }

    #[tokio::test]
    async fn silent_connections_do_not_keep_others_from_their_places() {
        let (slow, mut begun) = mpsc::channel(1);
        let (address, _serving, _stopping) = listener(slow).await;
        let busy = connect(address, b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
        begun.recv().await.unwrap();
        let mut silent = Vec::new();
        for n in 0..4_u8 {
            // Some have sent a part of a header.
            silent.push(connect(address, &REQUEST[..usize::from(n % 2)]).await);
        }
        let mut client = connect(address, REQUEST).await;
        let mut answer = [0; 12];
        let answered = tokio::time::timeout(Duration::from_secs(60), client.read_exact(&mut answer)).await;
        answered.expect("the request waits").unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        // All connections had their turn, and a request in progress keeps its place.
        for mut one in silent {
            assert!(!matches!(one.read(&mut answer).await, Ok(1..)));
        }
        assert_eq!(busy.try_read(&mut answer).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_ends_and_one_with_a_request_does_not() {
        let busy = Arc::new(Place::default());
        let request = busy.begin();
        let idle = Place::default();
        let hour = Duration::from_secs(3600);
        tokio::time::timeout(hour, idle.ended()).await.expect("an idle connection is kept");
        assert!(tokio::time::timeout(hour, busy.ended()).await.is_err(), "a request was interrupted");
        drop(request);
        tokio::time::timeout(hour, busy.ended()).await.expect("an idle connection is kept");
    }
}
