//! Authentication of requests, the rights of routes, and the audit log.
//!
//! [`authenticate`] runs for every request, after the guard against web pages: it determines the
//! [`Principal`] of those with credentials. [`authorize`] runs in each route of the table. What a principal
//! may do to a certain disk is decided where the disk is known ([`Caller::run`]), by [`may`].

use std::net::IpAddr;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use forebay_api::{ErrorKind, PREFIX, Scope};
use forebay_frontend::plane::network;
use tokio::sync::OwnedMutexGuard;

use super::problem::{ApiError, Code, Refusal, Result};
use super::route::is_of_access;
use super::{Api, Origin};
use crate::access::contains_all_beginning_with;
use crate::access::{AuditRecord, Denied, DiskRef, Principal, Right, may};
use crate::limits::DEFAULT_WEIGHT;
use crate::operations::{Action, ControlError, NameOwner, Reply, Topic, retain};

/// Name of the cookie of a session. Browsers accept the prefix `__Host-` over TLS only, and then refuse a
/// cookie that another host of the domain sets.
const COOKIE: &str = "forebay_session";
const COOKIE_TLS: &str = "__Host-forebay_session";

/// The address from which a request arrived, over TCP.
#[derive(Debug, Clone, Copy, Default)]
pub struct Peer(pub Option<IpAddr>);

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

/// Determines the principal of a request, runs the rest, and writes the audit log.
pub(crate) async fn authenticate(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().copied().unwrap_or_default().0;
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let principal = match principal(&api, request.headers(), peer) {
        Ok(principal) => principal,
        Err(refused) => {
            let response = refused.into_response();
            audit(&api, None, peer, &method, &path, &response);
            return response;
        }
    };
    if let Some(principal) = &principal {
        request.extensions_mut().insert(principal.clone());
    }
    let response = next.run(request).await;
    let is_denied = response.extensions().get().is_some_and(|code: &Code| code.is_denied());
    if is_denied || !method.is_safe() {
        audit(&api, principal.as_ref(), peer, &method, &path, &response);
    }
    response
}

fn audit(
    api: &Api,
    principal: Option<&Principal>,
    peer: Option<IpAddr>,
    method: &Method,
    path: &str,
    response: &Response,
) {
    let code = response.extensions().get::<Code>().copied();
    // A login determines its principal.
    let principal = principal.or_else(|| response.extensions().get());
    let result = (response.status().as_u16(), code.map(|code| code.0));
    let is_bad_credential = code.is_some_and(Code::is_bad_credential);
    // What a client without a token can send in any number is not logged: it has no effect, and invalid
    // tokens beyond the limit have another code.
    if principal.is_some() || is_bad_credential {
        let record = AuditRecord::new(principal, peer, (method.as_str(), path), result);
        api.access.audit.write(&record);
        let of_access = path.strip_prefix(PREFIX).is_some_and(is_of_access);
        if of_access || is_bad_credential || code.is_some_and(Code::is_denied) {
            let what = code.map_or("access", |code| code.0);
            let by = match principal {
                Some(principal) => principal.name.to_string(),
                None => peer.map_or_else(String::new, |address| network(address).to_string()),
            };
            api.control.events().publish(&by, Topic::Security, what, Vec::new(), serde_json::json!(record));
        }
    }
}

/// The principal of a request, `None` without credentials.
fn principal(api: &Api, headers: &HeaderMap, peer: Option<IpAddr>) -> Result<Option<Principal>> {
    if api.entry.origin == Origin::Socket {
        return Ok(Some(Principal::local()));
    }
    if headers.contains_key(header::AUTHORIZATION) {
        let denied = |denied| denied_error(api, denied, peer);
        let secret = bearer(headers).ok_or(Denied::Unknown).map_err(denied)?;
        return api.access.by_token(secret, peer).map(Some).map_err(denied);
    }
    // A session that has ended is no failure: the page logs in again.
    let session = session_of(headers, api.entry.tls);
    if let Some(principal) = session.and_then(|secret| api.access.by_session(secret, peer)) {
        return Ok(Some(principal));
    }
    let open = api.entry.origin == Origin::Loopback && !api.access.demands_tokens();
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
pub(crate) fn denied_error(api: &Api, denied: Denied, peer: Option<IpAddr>) -> ApiError {
    if let Some(wait) = api.access.failures.record(peer) {
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

fn not_authenticated() -> ApiError {
    let detail = "this server requires a token; send 'Authorization: Bearer TOKEN'";
    ApiError::refused(Refusal::NotAuthenticated, detail)
}

fn forbidden(principal: &Principal, right: Right) -> ApiError {
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

/// The error for what is outside of a scope: as if it did not exist.
fn hidden(name: &str) -> ApiError {
    ControlError::from(forebay_engine::Error::NotFound(name.to_owned())).into()
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
    /// Runs an action if the principal has the right of the route on each of its disks. Lists contain only
    /// what the principal can see.
    pub async fn run(&self, action: Action) -> Result<Reply> {
        for disk in action.disks() {
            self.check(&disk)?;
        }
        self.check_created(&action)?;
        self.check_tenants(&action)?;
        let order = self.check_count(&action).await?;
        let done = self.api.control.run_in_order(action, &self.principal.name, order).await;
        let may_learn = |owner: &NameOwner| match owner {
            NameOwner::Disk(disk) => self.sees(disk),
            NameOwner::Tenant(tenant) => self.principal.sees_tenant(tenant),
            NameOwner::Target => may(&self.principal, Right::ReadServer, None),
        };
        let mut reply = done.map_err(|e| e.for_client(may_learn))?;
        if self.principal.scope.is_some() {
            match &mut reply {
                Reply::Disks(disks) => {
                    *disks = retain(std::mem::take(disks), |disk| self.sees(&disk.name)).await;
                }
                Reply::Tenants(tenants) => tenants.retain(|tenant| self.principal.sees_tenant(&tenant.name)),
                _ => {}
            }
        }
        Ok(reply)
    }

    /// Refuses a disk outside of the scope like one that does not exist.
    pub fn check(&self, disk: &str) -> Result<()> {
        match self.sees(disk) {
            true => Ok(()),
            false => Err(hidden(disk)),
        }
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
        let tenant = match &self.principal.scope {
            None => return true,
            Some(Scope::Disks(_)) => None,
            Some(Scope::Tenant(_)) => self.api.control.tenant_of(disk),
        };
        may(&self.principal, self.right, Some(&DiskRef { name: disk, tenant: tenant.as_deref() }))
    }

    /// Refuses what a principal with a scope could use to reach beyond it while it creates disks.
    fn check_created(&self, action: &Action) -> Result<()> {
        let Some(scope) = &self.principal.scope else { return Ok(()) };
        let refused = |detail: String| Err(ApiError::refused(Refusal::Forbidden, detail));
        match action {
            // All names are generated from this prefix.
            Action::CloneVolumes(new) if new.count.is_some() => {
                let prefix = format!("{}-", new.name);
                if contains_all_beginning_with(scope, &prefix) {
                    return Ok(());
                }
                refused(format!(
                    "the scope of the token does not contain all names that begin with '{prefix}'"
                ))
            }
            // Its blocks would show which blocks the disks of that domain have.
            Action::CreateVolume(new) if new.dedup_domain != 0 => {
                refused("only an administrator can choose the deduplication domain of a volume".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Refuses more disks than the token may have in its scope: each costs memory of the server, also if it
    /// holds no data. Further requests of such tokens wait for the returned guard.
    async fn check_count(&self, action: &Action) -> Result<Option<OwnedMutexGuard<()>>> {
        let (Some(most), created @ 1..) = (self.principal.max_disks, action.creates()) else {
            return Ok(None);
        };
        let control = &self.api.control;
        let order = control.creating().await;
        let present = control.count_disks(|name| self.sees(name)).await;
        if present.saturating_add(created as usize) <= most as usize {
            return Ok(Some(order));
        }
        let detail = format!(
            "the token '{}' creates disks while its scope has at most {most}, snapshots and images included; \
             it has {present} and would get {created} more; remove some, or ask an administrator for a token \
             with a higher limit ('forebay token create --max-disks')",
            self.principal.name
        );
        Err(ControlError::new(ErrorKind::Full, detail).into())
    }

    /// Only an administrator moves a volume to another tenant: a tenant is the scope of tokens and quotas.
    fn check_tenants(&self, action: &Action) -> Result<()> {
        match action {
            Action::ShowTenant { name } if !self.principal.sees_tenant(name) => Err(hidden(name)),
            Action::SetLimits { volume, new }
                if !may(&self.principal, Right::Administer, None)
                    && self.api.control.tenant_of(volume) != new.tenant =>
            {
                let detail = "only an administrator can change the tenant of a volume; send the present one";
                Err(ApiError::refused(Refusal::Forbidden, detail))
            }
            // A volume that is hidden is answered as one that does not exist.
            Action::SetLimits { volume, new }
                if self.principal.scope.is_some() && new.tenant.is_none() && self.sees(volume) =>
            {
                let present = self.api.control.weight_of(volume);
                match new.limits.weight.is_some_and(|weight| weight > DEFAULT_WEIGHT.max(present)) {
                    true => {
                        let detail = "only an administrator can raise the weight of a volume without a tenant \
                                      above 100";
                        Err(ApiError::refused(Refusal::Forbidden, detail))
                    }
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
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
