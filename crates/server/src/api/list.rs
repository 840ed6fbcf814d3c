//! Lists in pages, and their filters.
//!
//! A list without `limit` is complete. With it, the response has at most that many elements and, if there are
//! more, a header `Link: <…>; rel="next"` (RFC 8288). The cursor is the key of the last element: a page
//! begins after it, also if that element was removed at the same time.

use std::fmt::Write as _;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::Serialize;

use super::problem::{ApiError, Refusal, Result};
use super::route::QueryParameter;
use crate::control::{DiskView, STRETCH};
use crate::nbd::ExportPattern;

/// Largest page.
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
pub(super) const PAGE: &[QueryParameter] = &[LIMIT, CURSOR];
/// The query of lists of disks.
pub(super) const DISKS: &[QueryParameter] = &[LIMIT, CURSOR, NAME, TENANT, ORIGIN];

/// The query of a list.
#[derive(Debug, Default)]
pub(super) struct ListQuery {
    path: String,
    /// The filters as they were sent, for the link to the next page.
    filters: String,
    limit: Option<usize>,
    cursor: Option<String>,
    name: Option<ExportPattern>,
    tenant: Option<String>,
    origin: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for ListQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let path = parts.uri.path().to_owned();
        parse(path, parts.uri.query().unwrap_or_default())
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
    /// For lists of other things than disks.
    pub fn refuse_filters(&self) -> Result<()> {
        match self.filters.is_empty() {
            true => Ok(()),
            false => {
                Err(ApiError::refused(Refusal::Malformed, "this list has no filters, only limit and cursor"))
            }
        }
    }

    /// Whether a disk passes the filters.
    pub fn matches(&self, disk: &DiskView) -> bool {
        self.name.as_ref().is_none_or(|pattern| pattern.matches(&disk.name))
            && self.tenant.as_ref().is_none_or(|tenant| disk.tenant.as_ref() == Some(tenant))
            && self.origin.as_ref().is_none_or(|origin| disk.origin.as_ref() == Some(origin))
    }
}

/// Responds with a JSON array; other requests are served in between.
async fn array<T: Serialize>(all: &[T]) -> Result<Response> {
    let mut bytes = vec![b'['];
    for stretch in all.chunks(STRETCH) {
        for one in stretch {
            if bytes.len() > 1 {
                bytes.push(b',');
            }
            let written = serde_json::to_writer(&mut bytes, one);
            written.map_err(|e| ApiError::refused(Refusal::Panicked, e.to_string()))?;
        }
        tokio::task::yield_now().await;
    }
    bytes.push(b']');
    Ok(([(header::CONTENT_TYPE, "application/json")], bytes).into_response())
}

/// Responds with one page of a list, in the order of the keys.
pub(super) async fn page<T: Serialize>(
    mut all: Vec<T>,
    query: &ListQuery,
    key: impl Fn(&T) -> String,
) -> Result<Response> {
    let Some(limit) = query.limit else {
        if query.cursor.is_some() {
            return Err(ApiError::refused(Refusal::Malformed, "a cursor needs a limit"));
        }
        return array(&all).await;
    };
    all.sort_by_cached_key(|one| key(one));
    if let Some(cursor) = &query.cursor {
        all.retain(|one| key(one) > *cursor);
    }
    let more = all.len() > limit;
    all.truncate(limit);
    let last = all.last().filter(|_| more).map(&key);
    let mut response = array(&all).await?;
    if let Some(last) = last {
        let cursor = utf8_percent_encode(&last, NON_ALPHANUMERIC);
        let link = format!("<{}?limit={limit}&cursor={cursor}{}>; rel=\"next\"", query.path, query.filters);
        if let Ok(link) = HeaderValue::from_str(&link) {
            response.headers_mut().insert(header::LINK, link);
        }
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
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
