//! Authentication of requests, the rights of routes, and the audit log.
//!
//! [`authenticate`] runs for every request, after the guard against web pages: it determines the
//! [`Principal`] of those with credentials. [`authorize`] runs in each route of the table. What a principal
//! may do to a certain disk is decided where the disk is known ([`Client::run`]), by [`may`].

use std::net::IpAddr;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use forebay_api::{ErrorKind, FORWARDED_CLIENT, PREFIX};
use forebay_frontend::plane::network;

use super::problem::{ApiError, Code, Refusal, Result};
use super::route::is_of_access;
use super::{Api, Entry, Origin};
use crate::access::{Access, AuditRecord, Denied, Forwarded, Principal, Right, may};
use crate::operations::{Client, Control, ControlError, Operation, Topic};

/// Name of the cookie of a session. Browsers accept the prefix `__Host-` over TLS only, and then refuse a
/// cookie that another host of the domain sets.
const COOKIE: &str = "forebay_session";
const COOKIE_TLS: &str = "__Host-forebay_session";

/// The header in which the node of a cluster names the client that it has authenticated, to the server of a
/// shard: a [`Forwarded`] as JSON. It is accepted on the control socket only, whose clients have all rights.
pub(crate) const FORWARDED: HeaderName = HeaderName::from_static(FORWARDED_CLIENT);

/// The address from which a request arrived, over TCP.
#[derive(Debug, Clone, Copy, Default)]
pub struct Peer(pub Option<IpAddr>);

/// Marks a response to a request that needs no entry in the audit log: it is a part of work whose beginning
/// and end have one.
#[derive(Clone, Copy)]
pub(crate) struct Unaudited;

/// Marks a response to `GET` that has an entry in the audit log: it discloses the contents of a disk.
#[derive(Clone, Copy)]
pub(crate) struct Audited;

/// The right that the route requires.
#[derive(Clone, Copy)]
struct Granted(Right);

/// The name of the session cookie on a listener.
pub fn cookie_name(tls: bool) -> &'static str {
    if tls { COOKIE_TLS } else { COOKIE }
}

/// The secrets in the session cookies of a request.
pub(crate) fn sessions_of(headers: &HeaderMap, tls: bool) -> impl Iterator<Item = &str> {
    let pairs = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let values = pairs.flat_map(|pairs| pairs.split(';')).filter_map(|pair| pair.split_once('='));
    values.filter(move |(name, _)| name.trim() == cookie_name(tls)).map(|(_, value)| value.trim())
}

/// The secret of the session that a request names; `None` with several cookies: another server on a port of
/// this host may have set one of them, so that the page acts with its session.
fn session_of(headers: &HeaderMap, tls: bool) -> Option<&str> {
    let mut sessions = sessions_of(headers, tls);
    sessions.next().filter(|_| sessions.next().is_none())
}

/// Determines the principal of a request, executes the request, and writes the audit log.
pub(crate) async fn authenticate(State(api): State<Api>, request: Request, next: Next) -> Response {
    let (access, entry, control) = (&api.access, &api.entry, Some(&api.control));
    admit(access, entry, control, request, next).await
}

/// As [`authenticate`]. Events are published by `control`, if the listener has one.
pub(crate) async fn admit(
    access: &Access,
    entry: &Entry,
    control: Option<&Control>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Peer>().copied().unwrap_or_default().0;
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let audit = |principal: Option<&Principal>, response: &Response| {
        audit(access, control, (principal, peer), (&method, &path), response);
    };
    let principal = match principal(access, entry, request.headers(), peer) {
        Ok(principal) => principal,
        Err(refused) => {
            let response = refused.into_response();
            audit(None, &response);
            return response;
        }
    };
    if let Some(principal) = &principal {
        request.extensions_mut().insert(principal.clone());
    }
    let response = next.run(request).await;
    let is_denied = response.extensions().get().is_some_and(|code: &Code| code.is_denied());
    let is_unaudited = response.extensions().get::<Unaudited>().is_some();
    let is_audited = response.extensions().get::<Audited>().is_some();
    if is_denied || is_audited || (!method.is_safe() && !is_unaudited) {
        audit(principal.as_ref(), &response);
    }
    response
}

fn audit(
    access: &Access,
    control: Option<&Control>,
    (principal, peer): (Option<&Principal>, Option<IpAddr>),
    (method, path): (&Method, &str),
    response: &Response,
) {
    let code = response.extensions().get::<Code>().copied();
    // The login itself determines the principal of its request.
    let principal = principal.or_else(|| response.extensions().get());
    let result = (response.status().as_u16(), code.map(|code| code.0));
    let is_bad_credential = code.is_some_and(Code::is_bad_credential);
    // What a client without a token can send in any number is not logged: it has no effect, and invalid
    // tokens beyond the limit have another code.
    if principal.is_some() || is_bad_credential {
        let record = AuditRecord::new(principal, peer, (method.as_str(), path), result);
        access.audit.write(&record);
        let of_access = path.strip_prefix(PREFIX).is_some_and(is_of_access);
        if let Some(control) = control
            && (of_access || is_bad_credential || code.is_some_and(Code::is_denied))
        {
            let what = code.map_or("access", |code| code.0);
            let by = match principal {
                Some(principal) => principal.name.to_string(),
                None => peer.map_or_else(String::new, |address| network(address).to_string()),
            };
            control.events().publish(&by, Topic::Security, what, Vec::new(), serde_json::json!(record));
        }
    }
}

/// The principal of a request, `None` without credentials.
fn principal(
    access: &Access,
    entry: &Entry,
    headers: &HeaderMap,
    peer: Option<IpAddr>,
) -> Result<Option<Principal>> {
    if entry.origin == Origin::Socket {
        // The node of a cluster has authenticated the client.
        let Some(forwarded) = headers.get(FORWARDED) else { return Ok(Some(Principal::local())) };
        let parsed = serde_json::from_slice::<Forwarded>(forwarded.as_bytes());
        let malformed = |e: serde_json::Error| ApiError::refused(Refusal::Malformed, e.to_string());
        return Ok(Some(parsed.map_err(malformed)?.into()));
    }
    if headers.contains_key(header::AUTHORIZATION) {
        let denied = |denied| denied_error(access, denied, peer);
        let secret = bearer(headers).ok_or(Denied::Unknown).map_err(denied)?;
        return access.by_token(secret, peer).map(Some).map_err(denied);
    }
    // A session that has ended is no failure: the page logs in again.
    let session = session_of(headers, entry.tls);
    if let Some(principal) = session.and_then(|secret| access.by_session(secret, peer)) {
        return Ok(Some(principal));
    }
    let open = entry.origin == Origin::Loopback && !access.demands_tokens();
    Ok(open.then(|| Principal::loopback(peer)))
}

/// The token in the only `Authorization` header (RFC 6750, section 2.1).
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next().filter(|_| values.next().is_none())?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The error for credentials that are not accepted.
pub(crate) fn denied_error(access: &Access, denied: Denied, peer: Option<IpAddr>) -> ApiError {
    if let Some(wait) = access.failures.record(peer) {
        let detail =
            "too many attempts with invalid tokens from this address; a valid one is accepted at any time";
        return ApiError::refused(Refusal::TooManyAttempts, detail).retry_after(wait.as_secs().max(1));
    }
    match denied {
        Denied::Unknown => ApiError::refused(Refusal::BadToken, "the token is unknown or was revoked"),
        Denied::Expired => {
            ApiError::refused(Refusal::TokenExpired, "the token has expired; create another one")
        }
    }
}

/// Checks the right that a route requires.
pub(crate) fn authorize(right: Right, mut request: Request) -> Result<Request> {
    if right != Right::Anyone {
        let principal = request.extensions().get::<Principal>().ok_or_else(not_authenticated)?;
        if !may(principal, right, None) {
            return Err(forbidden(principal, right));
        }
    }
    request.extensions_mut().insert(Granted(right));
    Ok(request)
}

pub(crate) fn not_authenticated() -> ApiError {
    let detail = "this server requires a token; send 'Authorization: Bearer TOKEN'";
    ApiError::refused(Refusal::NotAuthenticated, detail)
}

pub(crate) fn forbidden(principal: &Principal, right: Right) -> ApiError {
    let name = &principal.name;
    match right {
        Right::Local => ApiError::refused(Refusal::NotHere, "this is possible only over the control socket"),
        Right::ReadServer => {
            let detail = format!("the scope of '{name}' does not contain the server as a whole");
            ApiError::refused(Refusal::Forbidden, detail)
        }
        _ => {
            let role = principal.role.name();
            let detail = format!("'{name}' has the role {role}, which does not permit this");
            ApiError::refused(Refusal::Forbidden, detail)
        }
    }
}

/// The client of a route that requires a right, and the API.
pub(crate) struct Caller {
    pub api: Api,
    pub principal: Principal,
    right: Right,
}

impl FromRequestParts<Api> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self> {
        let principal = parts.extensions.get().cloned().ok_or_else(not_authenticated)?;
        // A route of the table always grants a right before its extractors run.
        let Granted(right) = parts.extensions.get().copied().ok_or_else(not_authenticated)?;
        Ok(Caller { api: api.clone(), principal, right })
    }
}

impl Caller {
    fn client(&self) -> Client<'_> {
        Client { control: &self.api.control, principal: &self.principal, right: self.right }
    }

    /// Runs an operation; see [`Client::run`].
    pub async fn run<O: Operation>(&self, operation: O) -> Result<O::Reply> {
        Ok(self.client().run(operation).await?)
    }

    /// Refuses a disk outside of the scope with the same error as a disk that does not exist.
    pub fn check(&self, disk: &str) -> Result<()> {
        Ok(self.client().check(disk)?)
    }

    /// Ends a response that takes long when its token or session is not valid any more.
    pub fn check_valid(&self) -> std::result::Result<(), ControlError> {
        match self.api.access.is_valid(&self.principal) {
            true => Ok(()),
            false => {
                Err(ControlError::new(ErrorKind::Cancelled, "the token or session is not valid any more"))
            }
        }
    }

    /// Whether the principal has the right of the route on a disk.
    pub fn sees(&self, disk: &str) -> bool {
        self.client().sees(disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_bearer_token_is_read_from_exactly_one_header() {
        assert_eq!(bearer(&headers(&[("authorization", "Bearer abc")])), Some("abc"));
        assert_eq!(bearer(&headers(&[("authorization", "bearer  abc ")])), Some("abc"));
        for bad in [
            &[("authorization", "Basic abc")][..],
            &[("authorization", "Bearer")],
            &[("authorization", "Bearer a"), ("authorization", "Bearer b")],
            &[],
        ] {
            assert_eq!(bearer(&headers(bad)), None, "{bad:?}");
        }
    }

    #[test]
    fn a_session_is_read_from_its_cookie() {
        let some = headers(&[("cookie", "a=b; forebay_session=x"), ("cookie", "__Host-forebay_session=y")]);
        assert_eq!((session_of(&some, false), session_of(&some, true)), (Some("x"), Some("y")));
        let none = headers(&[("cookie", "xforebay_session=x; forebay_session")]);
        assert_eq!(session_of(&none, false), None);
        for two in [
            &[("cookie", "forebay_session=x; forebay_session=y")][..],
            &[("cookie", "forebay_session=x"), ("cookie", "forebay_session=x")],
        ] {
            assert_eq!(session_of(&headers(two), false), None);
            assert_eq!(sessions_of(&headers(two), false).count(), 2);
        }
    }
}
