//! Lists in pages, and their filters.
//!
//! A list without `limit` is complete. With it, the response has at most that many elements and, if there are
//! more, a header `Link: <…>; rel="next"` (RFC 8288). The cursor is the key of the last element: a page
//! begins after it, also if that element was removed at the same time.
//!
//! Lists of disks ([`disks`]) can be very long, so they are never built as a whole: a complete list is
//! produced while it is sent, and a page ends early if no memory is left for more elements
//! (`response_memory`). The other lists ([`page`]) are built as a whole.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use forebay_api::DiskView;
use forebay_text::NamePattern;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::Serialize;

use super::auth::Caller;
use super::problem::{ApiError, Refusal, Result};
use super::response_memory::Reservation;
use super::route::{Answer, QueryParameter};
use super::streamed::{self, Elements, Stretch};
use crate::operations::{DiskList, STRETCH};

/// Largest number of elements that a client can request for one page (`limit`).
const MAX_LIMIT: usize = 10_000;

const LIMIT: QueryParameter = QueryParameter {
    name: "limit",
    about: "Most elements of the response; without it, all",
    schema: r#"{"type": "integer", "minimum": 1, "maximum": 10000}"#,
};
const CURSOR: QueryParameter =
    text("cursor", "Where the page begins, from the header Link of the page before");
const NAME: QueryParameter = QueryParameter {
    name: "name",
    about: "Only disks whose name matches this pattern, in which * stands for any characters",
    schema: r#"{"type": "string", "minLength": 1, "example": "web-*"}"#,
};
const TENANT: QueryParameter = text("tenant", "Only disks of this tenant");
const ORIGIN: QueryParameter = text("origin", "Only clones of this image or snapshot");

const fn text(name: &'static str, about: &'static str) -> QueryParameter {
    QueryParameter { name, about, schema: r#"{"type": "string", "minLength": 1}"# }
}

/// The query of lists.
pub(crate) const PAGE: &[QueryParameter] = &[LIMIT, CURSOR];
/// The query of lists of disks.
pub(crate) const DISKS: &[QueryParameter] = &[LIMIT, CURSOR, NAME, TENANT, ORIGIN];

/// The query of a list.
#[derive(Debug, Default)]
pub(crate) struct ListQuery {
    path: String,
    /// The filters as they were sent, for the link to the next page.
    filters: String,
    limit: Option<usize>,
    cursor: Option<String>,
    name: Option<NamePattern>,
    tenant: Option<String>,
    origin: Option<String>,
    /// The reserved memory for the response.
    memory: Option<Reservation>,
}

impl<S: Send + Sync> FromRequestParts<S> for ListQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let path = parts.uri.path().to_owned();
        let query = parse(path, parts.uri.query().unwrap_or_default())?;
        Ok(ListQuery { memory: parts.extensions.get().cloned(), ..query })
    }
}

fn parse(path: String, text: &str) -> Result<ListQuery> {
    let malformed = |why: String| ApiError::refused(Refusal::Malformed, why);
    let mut query = ListQuery { path, ..ListQuery::default() };
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decoded = percent_decode_str(value).decode_utf8();
        let value = decoded.map_err(|_| malformed(format!("the parameter '{name}' is not UTF-8")))?;
        if value.is_empty() {
            return Err(malformed(format!("the parameter '{name}' has no value")));
        }
        let value = value.into_owned();
        match name {
            "limit" => {
                let limit = value.parse().ok().filter(|n| (1..=MAX_LIMIT).contains(n));
                query.limit =
                    Some(limit.ok_or_else(|| malformed("limit is not a number from 1 to 10000".into()))?);
                continue;
            }
            "cursor" => {
                query.cursor = Some(value);
                continue;
            }
            "name" => query.name = Some(value.parse().map_err(|e| malformed(format!("{e}")))?),
            "tenant" => query.tenant = Some(value),
            "origin" => query.origin = Some(value),
            _ => {
                let why = "unknown parameter; lists have limit and cursor, lists of disks also name, tenant and origin";
                return Err(malformed(why.into()));
            }
        }
        // Writing to a string cannot fail.
        let _ = write!(query.filters, "&{pair}");
    }
    Ok(query)
}

impl ListQuery {
    /// Refuses filters; used by lists that do not list disks.
    pub fn refuse_filters(&self) -> Result<()> {
        match self.filters.is_empty() {
            true => Ok(()),
            false => {
                Err(ApiError::refused(Refusal::Malformed, "this list has no filters, only limit and cursor"))
            }
        }
    }

    /// Refuses a cursor without a limit.
    fn check_cursor(&self) -> Result<()> {
        match self.limit.is_none() && self.cursor.is_some() {
            true => Err(ApiError::refused(Refusal::Malformed, "a cursor needs a limit")),
            false => Ok(()),
        }
    }

    /// The header that leads to the page after this element.
    fn link(&self, limit: usize, last: &str) -> Option<HeaderValue> {
        let cursor = utf8_percent_encode(last, NON_ALPHANUMERIC);
        let link = format!("<{}?limit={limit}&cursor={cursor}{}>; rel=\"next\"", self.path, self.filters);
        HeaderValue::from_str(&link).ok()
    }

    /// Whether a disk passes the filters.
    pub fn matches(&self, disk: &DiskView) -> bool {
        self.name.as_ref().is_none_or(|pattern| pattern.matches(&disk.name))
            && self.tenant.as_ref().is_none_or(|tenant| disk.tenant.as_ref() == Some(tenant))
            && self.origin.as_ref().is_none_or(|origin| disk.origin.as_ref() == Some(origin))
    }
}

/// Responds with a JSON array; other requests are served while it is made.
async fn array<T: Serialize>(all: &[T]) -> Result<Response> {
    let mut elements = Elements::default();
    for stretch in all.chunks(STRETCH) {
        stretch.iter().try_for_each(|one| elements.push(one))?;
        tokio::task::yield_now().await;
    }
    elements.end();
    Ok(([(header::CONTENT_TYPE, "application/json")], elements.text).into_response())
}

/// Responds with one page of a list, in the order of the keys.
pub(crate) async fn page<T: Serialize>(
    mut all: Vec<T>,
    query: &ListQuery,
    key: impl Fn(&T) -> String,
) -> Result<Response> {
    query.check_cursor()?;
    let Some(limit) = query.limit else { return array(&all).await };
    all.sort_by_cached_key(|one| key(one));
    if let Some(cursor) = &query.cursor {
        all.retain(|one| key(one) > *cursor);
    }
    let more = all.len() > limit;
    all.truncate(limit);
    let last = all.last().filter(|_| more).map(&key);
    let mut response = array(&all).await?;
    if let Some(link) = last.and_then(|last| query.link(limit, &last)) {
        response.headers_mut().insert(header::LINK, link);
    }
    Ok(response)
}

/// Responds with a list of disks, or with one page of it.
pub(crate) async fn disks(caller: Caller, mut query: ListQuery, list: DiskList) -> Answer {
    query.check_cursor()?;
    let mut stretches = caller.api.control.disk_stretches(&list, query.cursor.as_deref())?;
    // The body of a list keeps its filters until the list was sent, but not the reservation.
    let memory = query.memory.take();
    let query = Arc::new(query);
    let filters = query.clone();
    let next = move || {
        caller.check_valid()?;
        let Some(mut found) = stretches.next(|name| caller.sees(name))? else { return Ok(None) };
        found.retain(|disk| filters.matches(disk));
        Ok(Some(found))
    };
    match query.limit {
        None => Ok(streamed::respond(next)),
        Some(limit) => first(limit, &query, next, |disk: &DiskView| &disk.name, memory).await,
    }
}

/// Responds with the first elements of a list. The response has fewer elements than the limit if no memory
/// can be reserved for more elements, but at least one element.
async fn first<T: Serialize>(
    limit: usize,
    query: &ListQuery,
    mut next: impl FnMut() -> Stretch<T>,
    key: impl Fn(&T) -> &str,
    memory: Option<Reservation>,
) -> Answer {
    let has_memory = |len| memory.as_ref().is_none_or(|memory| memory.extend_to(len));
    let (mut elements, mut last, mut link) = (Elements::default(), String::new(), None);
    'list: while let Some(stretch) = next()? {
        for one in &stretch {
            let begun = elements.text.len();
            elements.push(one)?;
            // The end of the array is one byte.
            let has_room = elements.count <= limit && has_memory(elements.text.len() + 1);
            if elements.count > 1 && !has_room {
                elements.text.truncate(begun);
                link = query.link(limit, &last);
                break 'list;
            }
            key(one).clone_into(&mut last);
        }
        tokio::task::yield_now().await;
    }
    elements.end();
    elements.text.shrink_to_fit();
    let mut response = ([(header::CONTENT_TYPE, "application/json")], elements.text).into_response();
    if let Some(link) = link {
        response.headers_mut().insert(header::LINK, link);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::super::response_memory::ResponseMemory;
    use super::*;

    #[tokio::test]
    async fn pages_together_are_the_list() {
        let all: Vec<String> = (0..10).map(|i| format!("a {i}&é")).collect();
        let (mut query, mut found, mut pages) = (String::from("limit=3"), Vec::new(), 0);
        loop {
            let parsed = parse("/p".into(), &query).unwrap();
            let response = page(all.iter().rev().cloned().collect(), &parsed, Clone::clone).await.unwrap();
            let link = response.headers().get(header::LINK).map(|link| link.to_str().unwrap().to_owned());
            let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
            found.extend(serde_json::from_slice::<Vec<String>>(&body).unwrap());
            pages += 1;
            let Some(link) = link else { break };
            let (_, rest) = link.split_once('?').unwrap();
            query = rest.split_once('>').unwrap().0.to_owned();
        }
        assert_eq!((found, pages), (all, 4));
    }

    /// A list of 100 stretches of 100 names of 1000 bytes.
    fn names() -> impl FnMut() -> Stretch<String> {
        let mut stretches = 0..100;
        move || {
            Ok(stretches.next().map(|n| (100 * n..100 * n + 100).map(|n| format!("{n:0>1000}")).collect()))
        }
    }

    #[tokio::test]
    async fn a_page_without_memory_ends_early_and_leads_to_the_next_one() {
        let query = parse("/p".into(), "limit=9000").unwrap();
        let memory = ResponseMemory::default();
        let mut pages = Vec::new();
        let mut lengths = Vec::new();
        for _ in 0..8 {
            let reservation = memory.begin("reader".into());
            let key = String::as_str;
            let response = first(9000, &query, names(), key, Some(reservation.clone())).await.unwrap();
            assert!(response.headers().contains_key(header::LINK));
            let body = axum::body::to_bytes(response.into_body(), 1 << 24).await.unwrap();
            let found: Vec<String> = serde_json::from_slice(&body).unwrap();
            assert!(reservation.extend_to(body.len()), "the page is longer than its reservation");
            lengths.push(found.len());
            pages.push((reservation, body));
        }
        assert_eq!(lengths[0], 9000);
        assert!(lengths.iter().all(|length| *length > 60), "{lengths:?}");
        let held: usize = pages.iter().map(|(_, body)| body.len()).sum();
        assert!(held < (17 << 20), "{held} bytes");
        let last = first(10_000, &query, names(), String::as_str, None).await.unwrap();
        assert!(!last.headers().contains_key(header::LINK));
    }

    #[tokio::test]
    async fn invalid_queries_are_refused() {
        for bad in ["limit=0", "limit=10001", "limit=x", "limit", "cursor=", "x=1", "name=%ff", "name=a/b"] {
            assert!(parse("/p".into(), bad).is_err(), "{bad}");
        }
        let cursor_only = parse("/p".into(), "cursor=a").unwrap();
        assert!(page(vec![1], &cursor_only, |_| "a".into()).await.is_err());
        let kept = parse("/p".into(), "name=a*&limit=2&tenant=t").unwrap();
        assert_eq!(kept.filters, "&name=a*&tenant=t");
    }
}
