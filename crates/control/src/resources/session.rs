//! `/session`: sessions of web pages. A login exchanges a token for a cookie that scripts cannot read and
//! that browsers do not send with requests of other sites.

use std::net::IpAddr;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use forebay_api::{Role, Scope};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::{Access, Principal, Right, SESSION_LIFETIME, Via};
use crate::http::Api;
use crate::http::auth::{Caller, Peer, cookie_name, denied_error, sessions_of};
use crate::http::extract::Body;
use crate::http::problem::{ApiError, Refusal};
use crate::http::route::{Answer, Route};

/// Body of `POST /session`.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"token": "forebay_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}))]
pub(crate) struct Login {
    /// The secret of a token.
    token: String,
}

/// The client of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClientView {
    /// Name of the client's token.
    name: String,
    /// Role of the session's user.
    role: Role,
    /// The disks to which it is restricted; `null` for the whole server.
    scope: Option<Scope>,
    /// How the client was authenticated.
    via: Via,
    /// The client uses a node of a cluster.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) cluster: bool,
}

impl From<&Principal> for ClientView {
    fn from(p: &Principal) -> ClientView {
        ClientView {
            name: (*p.name).to_owned(),
            role: p.role,
            scope: p.scope.clone(),
            via: p.via,
            cluster: false,
        }
    }
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/session", "Show the client of this request: name, role, scope", Right::Read, show)
            .returns::<ClientView>(),
        Route::post("/session", "Log in: exchange a token for the cookie of a session", Right::Anyone, login)
            .takes::<Login>()
            .returns::<ClientView>()
            .creates(),
        Route::delete("/session", "Log out: end the session of this request", Right::Anyone, logout),
    ]
}

async fn show(caller: Caller) -> Json<ClientView> {
    Json(ClientView::from(&caller.principal))
}

async fn login(
    State(api): State<Api>,
    peer: Option<axum::Extension<Peer>>,
    headers: HeaderMap,
    body: Body<Login>,
) -> Answer {
    log_in(&api.access, api.entry.tls, peer.and_then(|peer| peer.0.0), &headers, &body.0)
}

/// Begins a session. The client presents the cookies in `headers`.
pub(crate) fn log_in(
    access: &Access,
    tls: bool,
    peer: Option<IpAddr>,
    headers: &HeaderMap,
    login: &Login,
) -> Answer {
    let begun = access.begin_session(&login.token, peer);
    let (principal, session) = begun.map_err(|denied| denied_error(access, denied, peer))?;
    // The browser forgets the cookie of its former session, so nothing could end that session.
    end_sessions(access, tls, headers);
    let mut response = (StatusCode::CREATED, Json(ClientView::from(&principal))).into_response();
    set_cookie(&mut response, tls, &session.0, SESSION_LIFETIME.as_secs())?;
    // The audit log needs the principal.
    response.extensions_mut().insert(principal);
    Ok(response)
}

async fn logout(State(api): State<Api>, headers: HeaderMap) -> Answer {
    log_out(&api.access, api.entry.tls, &headers)
}

/// Ends the sessions of the cookies in `headers`.
pub(crate) fn log_out(access: &Access, tls: bool, headers: &HeaderMap) -> Answer {
    end_sessions(access, tls, headers);
    let mut response = Json(serde_json::json!({})).into_response();
    set_cookie(&mut response, tls, "", 0)?;
    Ok(response)
}

/// Ends the sessions that a request names.
fn end_sessions(access: &Access, tls: bool, headers: &HeaderMap) {
    for session in sessions_of(headers, tls) {
        access.sessions.end(session);
    }
}

fn set_cookie(response: &mut Response, tls: bool, value: &str, seconds: u64) -> Result<(), ApiError> {
    let secure = if tls { "; Secure" } else { "" };
    let name = cookie_name(tls);
    let cookie = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    let cookie = HeaderValue::from_str(&cookie);
    let cookie = cookie.map_err(|e| ApiError::refused(Refusal::Panicked, e.to_string()))?;
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(())
}
