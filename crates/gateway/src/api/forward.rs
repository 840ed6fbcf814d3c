//! Requests that are forwarded to the server of a shard.

use std::time::Duration;

use axum::body::Body;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, Method, Request, Uri, header};
use axum::response::Response;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, sleep};

use super::Cluster;
use super::problem::Failure;
use crate::Stream;

/// How long the gateway tries to reach the owner of a shard: longer than a takeover takes.
const REACH: Duration = Duration::from_secs(15);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_millis(500);
/// Headers that concern one connection (RFC 9110, section 7.6.1).
const OF_CONNECTION: [header::HeaderName; 4] =
    [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE, header::TE];

/// Opens a stream to the API of a shard; waits for a new owner while no node serves the shard.
async fn reach(cluster: &dyn Cluster, shard: u32, patience: Duration) -> Result<Stream, Failure> {
    let (begun, mut pause) = (Instant::now(), FIRST_PAUSE);
    loop {
        match cluster.connect_api(shard).await {
            Ok(stream) => return Ok(stream),
            Err(e) if begun.elapsed() >= patience => return Err(Failure::no_owner(shard, &e)),
            Err(_) => sleep(pause).await,
        }
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Sends a request to the server of a shard, and returns the response with its body unread. `path` replaces
/// the path and query of the request.
pub(super) async fn forward(
    cluster: &dyn Cluster,
    shard: u32,
    path: Option<&str>,
    mut request: Request<Body>,
) -> Result<Response, Failure> {
    let path = match (path, request.uri().path_and_query()) {
        (Some(path), _) => path.parse::<PathAndQuery>().map_err(|e| Failure::bad_request(e.to_string()))?,
        (None, Some(path)) => path.clone(),
        (None, None) => PathAndQuery::from_static("/"),
    };
    *request.uri_mut() = Uri::from(path);
    remove_headers(request.headers_mut());
    let stream = reach(cluster, shard, REACH).await?;
    let response = send(stream, request).await.map_err(|e| Failure::broken(shard, &e))?;
    let (mut parts, body) = response.into_parts();
    remove_headers(&mut parts.headers);
    Ok(Response::from_parts(parts, Body::new(body)))
}

/// Gets a resource of a shard. A read is repeated if the owner ends before it has answered. `from` is the
/// request whose headers are sent.
pub(super) async fn get(
    cluster: &dyn Cluster,
    shard: u32,
    path: &str,
    from: &HeaderMap,
    patience: Duration,
) -> Result<Response<Incoming>, Failure> {
    let begun = Instant::now();
    loop {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::GET;
        *request.uri_mut() = path.parse().map_err(|e| Failure::bad_request(format!("{e}")))?;
        *request.headers_mut() = from.clone();
        remove_headers(request.headers_mut());
        for of_body in [header::CONTENT_LENGTH, header::CONTENT_TYPE, header::IF_NONE_MATCH] {
            request.headers_mut().remove(of_body);
        }
        let stream = reach(cluster, shard, patience.saturating_sub(begun.elapsed())).await?;
        match send(stream, request).await {
            Ok(response) => return Ok(response),
            Err(e) if begun.elapsed() >= patience => return Err(Failure::broken(shard, &e)),
            Err(_) => sleep(FIRST_PAUSE).await,
        }
    }
}

fn remove_headers(headers: &mut HeaderMap) {
    for name in &OF_CONNECTION {
        headers.remove(name);
    }
}

async fn send(stream: Stream, request: Request<Body>) -> hyper::Result<Response<Incoming>> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // The task ends with the response; the request reports the errors of the connection as well.
    tokio::spawn(connection);
    sender.send_request(request).await
}
