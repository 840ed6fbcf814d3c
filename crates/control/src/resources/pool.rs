//! `/pool`: the server and its pool; reclaim and checkpoint on request.

use axum::Json;
use axum::http::HeaderMap;
use axum::response::Response;
use forebay_api::{CapacityView, GcEvent, Handover, NewOwner, ServerView, Upgrade, Upgraded};

use super::{jobs, run};
use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::Body;
use crate::http::lines;
use crate::http::problem::Result;
use crate::http::route::Route;
use crate::operations::Action;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/pool",
            "Show the server and its pool: release, data directory, place of the pool, addresses",
            Right::ReadServer,
            |c: Caller| run(c, Action::Server),
        )
        .returns::<ServerView>(),
        Route::get(
            "/capacity",
            "Show the place of the pool and its free room, for what provisions disks",
            Right::ReadRoom,
            |c: Caller| run(c, Action::Capacity),
        )
        .returns::<CapacityView>(),
        Route::post(
            "/pool/gc",
            "Reclaim unused space; the response is a stream of progress events",
            Right::Administer,
            reclaim,
        )
        .streams::<GcEvent>()
        .or_job(),
        Route::post(
            "/pool/checkpoint",
            "Write a checkpoint, which bounds the log that a recovery reads",
            Right::Administer,
            |c: Caller| run(c, Action::Checkpoint),
        ),
        Route::post(
            "/pool/upgrade",
            "Replace the running server by another binary without disconnecting clients",
            Right::Local,
            upgrade,
        )
        .takes::<Upgrade>()
        .returns::<Upgraded>(),
        Route::post("/pool/handover", "Hand a pool in Ceph over to a standby", Right::Local, hand_over)
            .takes::<Handover>()
            .returns::<NewOwner>(),
    ]
}

async fn upgrade(caller: Caller, Body(request): Body<Upgrade>) -> Result<Json<Upgraded>> {
    Ok(Json(caller.api.control.upgrade(request, &caller.principal.name).await?))
}

async fn hand_over(caller: Caller, Body(request): Body<Handover>) -> Result<Json<NewOwner>> {
    Ok(Json(caller.api.control.hand_over(request, &caller.principal.name).await?))
}

async fn reclaim(caller: Caller, headers: HeaderMap) -> Result<Response> {
    let (job, events) = caller.api.control.reclaim(&caller.principal.name).await?;
    if jobs::prefers_job(&headers) {
        return Ok(jobs::accepted(job));
    }
    lines::respond(events, |error| GcEvent::Failed { error }).await
}
