//! `/pool`: the server and its pool; reclaim and checkpoint on request.

use axum::Json;
use axum::http::HeaderMap;
use forebay_api::{
    CapacityView, GcEvent, Handover, HealthView, NewOwner, OwnerView, ServerView, Upgrade, Upgraded,
};

use super::{jobs, run};
use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::Body;
use crate::http::lines;
use crate::http::route::{Answer, Route};
use crate::operations::{Change, Changes, Control, Disks, Done, Operation, Reply, Result};
use crate::view::View;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/pool",
            "Show the server and its pool: release, data directory, place of the pool, addresses",
            Right::ReadServer,
            |c: Caller| run(c, ShowServer),
        )
        .returns::<ServerView>(),
        Route::get(
            "/health",
            "Show the health of the server, with all conditions that require an administrator",
            Right::ReadServer,
            |c: Caller| run(c, ShowHealth),
        )
        .returns::<HealthView>(),
        Route::get(
            "/capacity",
            "Show the place of the pool and its free room, for what provisions disks",
            Right::ReadRoom,
            |c: Caller| run(c, ShowCapacity),
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
            |c: Caller| run(c, Checkpoint),
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

impl Reply for ServerView {}

impl Reply for CapacityView {}

impl Reply for HealthView {}

struct ShowHealth;

impl Operation for ShowHealth {
    type Reply = HealthView;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |_| Vec::new();

    async fn execute(&self, control: &Control, _: &str) -> Result<HealthView> {
        Ok(control.health().await)
    }
}

struct ShowServer;

impl Operation for ShowServer {
    type Reply = ServerView;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |_| Vec::new();

    async fn execute(&self, control: &Control, _: &str) -> Result<ServerView> {
        let info = control.info();
        let owner = control.observed().held.map(|held| OwnerView {
            lease_ms: u64::try_from((held.lease_left)().as_millis()).unwrap_or(u64::MAX),
            server: held.owner,
            term: held.term,
            standbys: held.standbys.map(|all| all.into_iter().map(View::view).collect()),
        });
        Ok(ServerView {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: info.host.clone(),
            data: info.data.display().to_string(),
            pool: info.pool.clone(),
            pid: std::process::id(),
            uptime_s: info.started.elapsed().as_secs(),
            nbd: info.nbd.iter().map(|listener| listener.address.to_string()).collect(),
            iscsi: info.iscsi.clone(),
            nvme: info.nvme.clone(),
            nfs: info.nfs.clone(),
            http: info.http.clone(),
            owner,
        })
    }
}

struct ShowCapacity;

impl Operation for ShowCapacity {
    type Reply = CapacityView;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |_| Vec::new();

    async fn execute(&self, control: &Control, _: &str) -> Result<CapacityView> {
        let stats = control.pool().stats().await;
        Ok(CapacityView {
            pool: control.info().pool.clone(),
            total_bytes: stats.store_total_bytes,
            free_bytes: stats.store_free_bytes,
            room: stats.room.view(),
        })
    }
}

struct Checkpoint;

impl Operation for Checkpoint {
    type Reply = Done;
    const CHANGE: Changes<Self> = Some(|_| Change::new("write", "wrote", format_args!("a checkpoint")));
    const DISKS: Disks<Self> = |_| Vec::new();

    async fn execute(&self, control: &Control, _: &str) -> Result<Done> {
        control.pool().checkpoint().await?;
        Ok(Done {})
    }
}

async fn upgrade(caller: Caller, Body(request): Body<Upgrade>) -> Answer<Json<Upgraded>> {
    Ok(Json(caller.api.control.upgrade(request, &caller.principal.name).await?))
}

async fn hand_over(caller: Caller, Body(request): Body<Handover>) -> Answer<Json<NewOwner>> {
    Ok(Json(caller.api.control.hand_over(request, &caller.principal.name).await?))
}

async fn reclaim(caller: Caller, headers: HeaderMap) -> Answer {
    let (job, events) = caller.api.control.reclaim(&caller.principal.name).await?;
    if jobs::prefers_job(&headers) {
        return Ok(jobs::accepted(job));
    }
    lines::respond(events, |error| GcEvent::Failed { error }).await
}
