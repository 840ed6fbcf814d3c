//! Lists from all shards, merged in order.
//!
//! Each shard is asked for its list in pages, and the merged list is sent while it is produced, so a list of
//! any length occupies one page of each shard; pages are the shorter, the more shards there are. The number
//! of lists is limited, for all clients and for each of them ([`Lists`]). If a shard does not answer, the
//! list does not contain its elements, and a header of the response names the shard.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use forebay_api::{FORWARDED_CLIENT, MISSING_SHARDS};
use futures_util::stream;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::problem::Failure;
use super::{Cluster, forward};
use crate::places::{Place, Places};

/// Elements of the pages of all shards together, and of one page at least and at most.
const PAGES: usize = 4_000;
const LEAST_PAGE: usize = 20;
const PAGE: usize = 200;
/// Maximum number of elements of one page of the merged list, as in a list of a single server.
const MAX_LIMIT: usize = 10_000;
/// Maximum number of lists at the same time: of all clients, and of one client.
const MAX_LISTS: usize = 64;
const MAX_LISTS_OF_ONE: usize = 8;
/// Maximum length of a page of a shard, in bytes.
const MAX_PAGE: usize = 8 << 20;
/// How long a list waits for a shard without an owner that answers.
const PATIENCE: Duration = Duration::from_secs(3);
const JSON: &str = "application/json";
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
            Some(("limit", limit)) if limit.parse().is_ok_and(|limit| (1..=MAX_LIMIT).contains(&limit)) => {
                parsed.limit = limit.parse().ok();
            }
            Some(("cursor", cursor)) => parsed.cursor = Some(cursor.to_owned()),
            // The servers of the shards check all others.
            _ => parsed.filters = format!("{}&{pair}", parsed.filters),
        }
    }
    parsed
}

/// The lists that are being sent, by the names of their clients.
#[derive(Clone)]
pub(super) struct Lists(Places<String>);

impl Default for Lists {
    fn default() -> Lists {
        Lists(Places::new(MAX_LISTS, MAX_LISTS_OF_ONE))
    }
}

impl Lists {
    /// Begins a list for the client whose request has these headers.
    pub fn begin(&self, headers: &HeaderMap) -> Result<Place<String>, Failure> {
        #[derive(Deserialize)]
        struct Named {
            name: String,
        }
        let named =
            headers.get(FORWARDED_CLIENT).and_then(|client| serde_json::from_slice(client.as_bytes()).ok());
        let client = named.map_or_else(String::new, |Named { name }| name);
        self.0.take(client).ok_or_else(Failure::too_many_lists)
    }
}

/// An element of a list, as a shard has sent it.
struct Element {
    key: String,
    text: Box<RawValue>,
    shard: u32,
}

impl Element {
    /// Adds the element to a JSON text, with the shard that has it.
    fn write(&self, out: &mut Vec<u8>) {
        match self.text.get().strip_prefix('{') {
            Some(rest) => {
                let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
                out.extend_from_slice(format!("{{\"shard\":{}{comma}{rest}", self.shard).as_bytes());
            }
            None => out.extend_from_slice(self.text.get().as_bytes()),
        }
    }
}

/// The key of an element: the field of this name.
fn key_of(text: &RawValue, field: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Keys {
        name: Option<String>,
        id: Option<u64>,
    }
    let Keys { name, id } = serde_json::from_str(text.get()).ok()?;
    // The lists of numbers are ordered by their digits, as the pages of a shard are.
    if field == "id" { id.map(|id| id.to_string()) } else { name }
}

/// The part of a list that one shard has.
struct Part {
    shard: u32,
    page: VecDeque<Element>,
    /// The path of the page after this one.
    next: Option<String>,
}

/// What all pages of a list need.
struct Source {
    cluster: Arc<dyn Cluster>,
    headers: HeaderMap,
    key: &'static str,
    _place: Place<String>,
}

/// Responds with the list of this path from all shards.
pub(super) async fn list(
    cluster: Arc<dyn Cluster>,
    headers: HeaderMap,
    (path, query): (&str, &str),
    key: &'static str,
    place: Place<String>,
) -> Result<Response, Failure> {
    let (query, shards) = (parse(query), cluster.shards());
    if query.cursor.is_some() && query.limit.is_none() {
        return Err(Failure::bad_request("a cursor needs a limit"));
    }
    let source = Arc::new(Source { cluster, headers, key, _place: place });
    let page = (PAGES / shards.len().max(1)).clamp(LEAST_PAGE, PAGE).min(query.limit.unwrap_or(PAGE));
    let cursor = query.cursor.as_ref().map_or_else(String::new, |cursor| format!("&cursor={cursor}"));
    let first = format!("{path}?limit={page}{cursor}{}", query.filters);
    let (mut parts, mut missing) = (Vec::new(), Vec::new());
    let page_of = |shard| {
        let (source, first) = (source.clone(), first.clone());
        async move { source.page(shard, &first).await }
    };
    for (shard, answer) in forward::ask_all(&shards, page_of).await {
        match answer {
            Ok(Ok(part)) => parts.push(part),
            // The request is invalid, or not permitted: each shard answers the same.
            Ok(Err(refused)) => return Ok(refused),
            Err(_) => missing.push(shard.to_string()),
        }
    }
    let mut response = match query.limit {
        Some(limit) => {
            let merged = source.merge(&mut parts, limit).await?;
            let more = parts.iter().any(|part| !part.page.is_empty() || part.next.is_some());
            let mut body = Vec::new();
            for element in &merged {
                body.push(if body.is_empty() { b'[' } else { b',' });
                element.write(&mut body);
            }
            if body.is_empty() {
                body.push(b'[');
            }
            body.push(b']');
            let mut response = ([(header::CONTENT_TYPE, JSON)], body).into_response();
            if let Some(last) = merged.last().filter(|_| more) {
                let cursor = utf8_percent_encode(&last.key, NON_ALPHANUMERIC);
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

impl Source {
    /// A page of a shard. The inner error is the response of a shard that refuses the request.
    async fn page(&self, shard: u32, path: &str) -> Result<Result<Part, Response>, Failure> {
        let response = forward::get(&*self.cluster, shard, path, &self.headers, PATIENCE).await?;
        if response.status().is_server_error() {
            // Only this shard has failed, such as one whose table of targets cannot be read.
            return Err(Failure::broken(shard, &response.status()));
        }
        if response.status() != StatusCode::OK {
            return Ok(Err(response));
        }
        let (head, body) = response.into_parts();
        let bytes = forward::collect(shard, body, MAX_PAGE).await?;
        let texts: Vec<Box<RawValue>> =
            serde_json::from_slice(&bytes).map_err(|e| Failure::broken(shard, &e))?;
        let element = |text: Box<RawValue>| {
            let key =
                key_of(&text, self.key).ok_or_else(|| Failure::broken(shard, &"an element has no key"))?;
            Ok(Element { key, text, shard })
        };
        let page = texts.into_iter().map(element).collect::<Result<_, Failure>>()?;
        let link = head.headers.get(header::LINK).and_then(|link| link.to_str().ok());
        let next = link.and_then(|link| Some(link.strip_prefix('<')?.split_once('>')?.0.to_owned()));
        Ok(Ok(Part { shard, page, next }))
    }

    /// The next elements in order, at most `most`.
    async fn merge(&self, parts: &mut Vec<Part>, most: usize) -> Result<Vec<Element>, Failure> {
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
            let first = parts.iter_mut().min_by(|a, b| a.first_key().cmp(&b.first_key()));
            let Some(first) = first else { break };
            merged.extend(first.page.pop_front());
        }
        Ok(merged)
    }

    /// Responds with the whole list while it is merged.
    fn stream(self: Arc<Self>, mut parts: Vec<Part>) -> Response {
        let (sender, receiver) = mpsc::channel::<Result<Bytes, std::io::Error>>(1);
        tokio::spawn(async move {
            let (mut piece, mut is_first) = (vec![b'['], true);
            loop {
                let Ok(merged) = self.merge(&mut parts, LEAST_PAGE).await else {
                    // The connection is closed before the end of the array. The client may be gone.
                    let _ = sender.send(Err(std::io::ErrorKind::BrokenPipe.into())).await;
                    return;
                };
                let is_last = merged.is_empty();
                for element in merged {
                    if !std::mem::take(&mut is_first) {
                        piece.push(b',');
                    }
                    element.write(&mut piece);
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
        let body = Body::from_stream(stream::unfold(receiver, async |mut receiver| {
            receiver.recv().await.map(|piece| (piece, receiver))
        }));
        ([(header::CONTENT_TYPE, JSON)], body).into_response()
    }
}

impl Part {
    fn first_key(&self) -> Option<&str> {
        self.page.front().map(|element| element.key.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_get_the_shard_and_keep_their_text() {
        let element = |text: &str| Element {
            key: String::new(),
            text: RawValue::from_string(text.to_owned()).unwrap(),
            shard: 7,
        };
        for (text, expected) in [
            (r#"{"name": "a","size":1.50}"#, r#"{"shard":7,"name": "a","size":1.50}"#),
            ("{}", r#"{"shard":7}"#),
            ("3", "3"),
        ] {
            let mut out = Vec::new();
            element(text).write(&mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
        let text = RawValue::from_string(r#"{"id":12,"name":"a\u0041","more":[{}]}"#.to_owned()).unwrap();
        assert_eq!(key_of(&text, "name").as_deref(), Some("aA"));
        assert_eq!(key_of(&text, "id").as_deref(), Some("12"));
    }

    #[test]
    fn one_client_does_not_take_all_places() {
        let lists = Lists::default();
        let mut reader = HeaderMap::new();
        reader.insert(FORWARDED_CLIENT, HeaderValue::from_static(r#"{"name":"r","role":"reader"}"#));
        let mut places: Vec<_> = (0..MAX_LISTS_OF_ONE).map(|_| lists.begin(&reader).unwrap()).collect();
        assert!(lists.begin(&reader).is_err() && lists.begin(&HeaderMap::new()).is_ok());
        places.pop();
        assert!(lists.begin(&reader).is_ok());
        drop(places);
        assert!(lists.0.are_free());
    }

    #[test]
    fn limits_beyond_those_of_a_server_are_refused_by_the_shards() {
        assert_eq!(parse("limit=10000&name=a*").limit, Some(10_000));
        let far = parse("limit=4000000000&name=a*");
        assert_eq!((far.limit, far.filters.as_str()), (None, "&limit=4000000000&name=a*"));
    }
}
