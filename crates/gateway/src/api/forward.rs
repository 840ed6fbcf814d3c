//! Requests that are forwarded to the server of a shard.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, Method, Request, Uri, header};
use axum::response::Response;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::Cluster;
use super::problem::Failure;
use crate::Stream;

/// How long the gateway tries to reach the owner of a shard: longer than a takeover takes.
const REACH: Duration = Duration::from_secs(15);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_millis(500);
/// Number of shards that are asked at the same time.
const AT_ONCE: usize = 16;
/// Time for an answer that is merged with those of other shards.
const ANSWER: Duration = Duration::from_secs(10);
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
/// the path and query of the request. A request that changes nothing is repeated if the owner ends before it
/// has answered.
pub(super) async fn forward(
    cluster: &dyn Cluster,
    shard: u32,
    path: Option<&str>,
    request: Request<Bytes>,
) -> Result<Response, Failure> {
    let (mut parts, body) = request.into_parts();
    let path = match (path, parts.uri.path_and_query()) {
        (Some(path), _) => path.parse::<PathAndQuery>().map_err(|e| Failure::bad_request(e.to_string()))?,
        (None, Some(path)) => path.clone(),
        (None, None) => PathAndQuery::from_static("/"),
    };
    parts.uri = Uri::from(path);
    remove_headers(&mut parts.headers);
    let begun = Instant::now();
    let response = loop {
        let stream = reach(cluster, shard, REACH.saturating_sub(begun.elapsed())).await?;
        let request = Request::from_parts(parts.clone(), Body::from(body.clone()));
        match send(stream, request).await {
            Ok(response) => break response,
            Err(_) if parts.method.is_safe() && begun.elapsed() < REACH => sleep(FIRST_PAUSE).await,
            Err(e) => return Err(Failure::broken(shard, &e)),
        }
    };
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
) -> Result<Response, Failure> {
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
        match timeout(ANSWER, send(stream, request)).await {
            Ok(Ok(response)) => return Ok(response.map(Body::new)),
            Ok(Err(e)) if begun.elapsed() >= patience => return Err(Failure::broken(shard, &e)),
            Ok(Err(_)) => sleep(FIRST_PAUSE).await,
            // A process that was stopped accepts connections.
            Err(_) => return Err(Failure::broken(shard, &"it does not answer")),
        }
    }
}

/// Sends a question to all shards, some at a time, and returns the answers in the order of the shards.
pub(super) async fn ask_all<T, F>(shards: &[u32], ask: impl Fn(u32) -> F) -> BTreeMap<u32, Result<T, Failure>>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Failure>> + Send + 'static,
{
    let limit = Arc::new(Semaphore::new(AT_ONCE));
    let mut questions = JoinSet::new();
    for shard in shards {
        let (shard, limit, question) = (*shard, limit.clone(), ask(*shard));
        questions.spawn(async move {
            // The semaphore is never closed.
            let _permit = limit.acquire().await;
            (shard, question.await)
        });
    }
    let failed = |shard: &u32| (*shard, Err(Failure::internal("a question to a shard has failed")));
    let mut answers: BTreeMap<_, _> = shards.iter().map(failed).collect();
    while let Some(answer) = questions.join_next().await {
        answers.extend(answer);
    }
    answers
}

/// Reads the body of a response.
pub(super) async fn collect(shard: u32, body: Body, most: usize) -> Result<Bytes, Failure> {
    match timeout(ANSWER, axum::body::to_bytes(body, most)).await {
        Ok(read) => read.map_err(|e| Failure::broken(shard, &e)),
        Err(_) => Err(Failure::broken(shard, &"it does not answer")),
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
