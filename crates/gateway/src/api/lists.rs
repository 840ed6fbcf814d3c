//! Lists from all shards, merged in order.
//!
//! Each shard is asked for its list in pages, and the merged list is sent while it is produced, so a list of
//! any length occupies one page of each shard. A shard that does not answer is named in a header of the
//! response: what it has is unknown, and is not in the list.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use forebay_api::MISSING_SHARDS;
use futures_util::future::join_all;
use http_body_util::BodyExt;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::sync::mpsc;

use super::problem::Failure;
use super::{Cluster, forward};

/// Elements of one page of a shard.
const PAGE: usize = 200;
/// Longest page of a shard in bytes.
const MAX_PAGE: usize = 8 << 20;
/// How long a list waits for a shard without an owner that answers.
const PATIENCE: Duration = Duration::from_secs(3);
/// Bytes of a piece of the merged list.
const PIECE: usize = 16 << 10;

/// The query of a list.
struct Query {
    limit: Option<usize>,
    cursor: Option<String>,
    /// Other parameters, as they were sent.
    filters: String,
}

fn parse(query: &str) -> Query {
    let mut parsed = Query { limit: None, cursor: None, filters: String::new() };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("limit", limit)) if limit.parse::<usize>().is_ok_and(|limit| limit > 0) => {
                parsed.limit = limit.parse().ok();
            }
            Some(("cursor", cursor)) => parsed.cursor = Some(cursor.to_owned()),
            // The servers of the shards check all others.
            _ => parsed.filters = format!("{}&{pair}", parsed.filters),
        }
    }
    parsed
}

/// The part of a list that one shard has.
struct Part {
    shard: u32,
    page: VecDeque<Value>,
    /// The path of the page after this one.
    next: Option<String>,
}

/// What all pages of a list need.
#[derive(Clone)]
struct Source {
    cluster: Arc<dyn Cluster>,
    headers: HeaderMap,
    key: &'static str,
}

/// Responds with the list of this path from all shards.
pub(super) async fn list(
    cluster: Arc<dyn Cluster>,
    headers: HeaderMap,
    (path, query): (&str, &str),
    key: &'static str,
) -> Result<axum::response::Response, Failure> {
    let (query, shards) = (parse(query), cluster.shards());
    if query.cursor.is_some() && query.limit.is_none() {
        return Err(Failure::bad_request("a cursor needs a limit"));
    }
    let source = Source { cluster, headers, key };
    let page = query.limit.unwrap_or(PAGE).min(PAGE);
    let cursor = query.cursor.as_ref().map_or_else(String::new, |cursor| format!("&cursor={cursor}"));
    let first = format!("{path}?limit={page}{cursor}{}", query.filters);
    let answers = join_all(shards.iter().map(|shard| source.page(*shard, &first))).await;
    let (mut parts, mut missing) = (Vec::new(), Vec::new());
    for (shard, answer) in shards.into_iter().zip(answers) {
        match answer {
            Ok(Ok(part)) => parts.push(part),
            // The request is invalid, or not permitted: each shard answers the same.
            Ok(Err(refused)) => return Ok(refused),
            Err(_) => missing.push(shard.to_string()),
        }
    }
    let mut response = match query.limit {
        Some(limit) => {
            let mut merged = source.merge(&mut parts, limit).await?;
            let more = parts.iter().any(|part| !part.page.is_empty() || part.next.is_some());
            let last = merged.last().filter(|_| more).map(|last| key_text(last, key));
            let mut response = axum::Json(std::mem::take(&mut merged)).into_response();
            if let Some(last) = last {
                let cursor = utf8_percent_encode(&last, NON_ALPHANUMERIC);
                let link = format!("<{path}?limit={limit}&cursor={cursor}{}>; rel=\"next\"", query.filters);
                response.headers_mut().extend(HeaderValue::from_str(&link).map(|link| (header::LINK, link)));
            }
            response
        }
        None => source.stream(parts),
    };
    if let Ok(missing) = HeaderValue::from_str(&missing.join(","))
        && !missing.is_empty()
    {
        response.headers_mut().insert(MISSING_SHARDS, missing);
    }
    Ok(response)
}

fn key_text(element: &Value, key: &str) -> String {
    match &element[key] {
        Value::String(text) => text.clone(),
        // The lists of numbers are ordered by their digits, as the pages of a shard are.
        other => other.to_string(),
    }
}

impl Source {
    /// A page of a shard. The inner error is the response of a shard that refuses the request.
    async fn page(&self, shard: u32, path: &str) -> Result<Result<Part, axum::response::Response>, Failure> {
        let response = forward::get(&*self.cluster, shard, path, &self.headers, PATIENCE).await?;
        let (head, body) = response.into_parts();
        if head.status.is_server_error() {
            // Only this shard has failed, such as one whose table of targets cannot be read.
            return Err(Failure::broken(shard, &head.status));
        }
        if head.status != StatusCode::OK {
            return Ok(Err(Response::from_parts(head, Body::new(body))));
        }
        let read = http_body_util::Limited::new(body, MAX_PAGE).collect().await;
        let bytes = read.map_err(|e| Failure::broken(shard, &e))?.to_bytes();
        let mut page: VecDeque<Value> =
            serde_json::from_slice(&bytes).map_err(|e| Failure::broken(shard, &e))?;
        for element in &mut page {
            if let Value::Object(fields) = element {
                fields.insert("shard".to_owned(), shard.into());
            }
        }
        let link = head.headers.get(header::LINK).and_then(|link| link.to_str().ok());
        let next = link.and_then(|link| Some(link.strip_prefix('<')?.split_once('>')?.0.to_owned()));
        Ok(Ok(Part { shard, page, next }))
    }

    /// The next elements in order, at most `most`.
    async fn merge(&self, parts: &mut Vec<Part>, most: usize) -> Result<Vec<Value>, Failure> {
        let mut merged = Vec::new();
        while merged.len() < most {
            for part in parts.iter_mut().filter(|part| part.page.is_empty()) {
                if let Some(next) = part.next.take() {
                    let answer = self.page(part.shard, &next).await?;
                    let refused = |_| Failure::broken(part.shard, &"the list cannot be continued");
                    *part = answer.map_err(refused)?;
                }
            }
            parts.retain(|part| !part.page.is_empty());
            let first = parts.iter_mut().min_by_key(|part| part.page.front().map(|e| key_text(e, self.key)));
            let Some(first) = first else { break };
            merged.extend(first.page.pop_front());
        }
        Ok(merged)
    }

    /// Responds with the whole list while it is merged.
    fn stream(self, mut parts: Vec<Part>) -> axum::response::Response {
        let (sender, receiver) = mpsc::channel::<Result<Bytes, std::io::Error>>(2);
        tokio::spawn(async move {
            let (mut piece, mut is_first) = (vec![b'['], true);
            loop {
                let Ok(merged) = self.merge(&mut parts, PAGE).await else {
                    // The connection is closed before the end of the array. The client may be gone.
                    let _ = sender.send(Err(std::io::ErrorKind::BrokenPipe.into())).await;
                    return;
                };
                let is_last = merged.is_empty();
                for element in merged {
                    if !std::mem::take(&mut is_first) {
                        piece.push(b',');
                    }
                    piece.extend(element.to_string().into_bytes());
                }
                if is_last {
                    piece.push(b']');
                }
                let is_due = is_last || piece.len() >= PIECE;
                // The client may have closed the connection.
                if is_due && sender.send(Ok(std::mem::take(&mut piece).into())).await.is_err() || is_last {
                    return;
                }
            }
        });
        let body = Body::from_stream(futures_util::stream::unfold(receiver, async |mut receiver| {
            receiver.recv().await.map(|piece| (piece, receiver))
        }));
        ([(header::CONTENT_TYPE, "application/json")], body).into_response()
    }
}
