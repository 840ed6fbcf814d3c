//! `/pool`: the server and its pool; reclaim and checkpoint on request.

use axum::Json;
use axum::extract::State;
use axum::http::Method;
use axum::response::Response;
use axum::routing::{get, post};

use super::error::{ApiError, Refusal, Result};
use super::extract::Body;
use super::{Api, Origin, Route, lines, run};
use crate::control::{Action, GcEvent, Handover, NewOwner, Upgrade, Upgraded};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route {
            method: Method::GET,
            path: "/pool",
            about: "Show the server and its pool: release, data directory, place of the pool, addresses",
            handler: get(|s: State<Api>| run(s, Action::Server)),
        },
        Route {
            method: Method::POST,
            path: "/pool/gc",
            about: "Reclaim unused space; the response is a stream of progress events",
            handler: post(reclaim),
        },
        Route {
            method: Method::POST,
            path: "/pool/checkpoint",
            about: "Write a checkpoint, which bounds the log that a recovery reads",
            handler: post(|s: State<Api>| run(s, Action::Checkpoint)),
        },
        Route {
            method: Method::POST,
            path: "/pool/upgrade",
            about: "Replace the running server by another binary without disconnecting clients",
            handler: post(upgrade),
        },
        Route {
            method: Method::POST,
            path: "/pool/handover",
            about: "Hand a pool in Ceph over to a standby",
            handler: post(hand_over),
        },
    ]
}

async fn upgrade(State(api): State<Api>, Body(request): Body<Upgrade>) -> Result<Json<Upgraded>> {
    if api.origin != Origin::Socket {
        let message = "the server can be upgraded only over its control socket";
        return Err(ApiError::refused(Refusal::NotHere, message));
    }
    Ok(Json(api.control.upgrade(request).await?))
}

async fn hand_over(State(api): State<Api>, Body(request): Body<Handover>) -> Result<Json<NewOwner>> {
    if api.origin != Origin::Socket {
        let message = "the pool can be handed over only over the control socket of its server";
        return Err(ApiError::refused(Refusal::NotHere, message));
    }
    Ok(Json(api.control.hand_over(request).await?))
}

async fn reclaim(State(api): State<Api>) -> Result<Response> {
    lines::respond(api.control.reclaim().await?, |error| GcEvent::Failed { error }).await
}
