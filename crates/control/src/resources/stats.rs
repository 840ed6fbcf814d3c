//! `/stats`: counters since the pool was opened, data reduction and space.

use forebay_api::{
    ActivityView, ClientsView, DiskStatsView, LatencyView, LimitedView, PathLatencyView, StatsView,
};
use forebay_frontend::plane::{BOUNDS_NS, Front, Served};

use super::run;
use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::Param;
use crate::http::route::{Answer, Route};
use crate::http::streamed;
use crate::metrics::resident_memory;
use crate::operations::Observed;
use crate::operations::{Changes, Control, Disks, Operation, Reply, Result};
use crate::view::{View, disk_space_view, stats_view};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/stats",
            "Show the counters, data reduction and space of the pool",
            Right::ReadServer,
            |c: Caller| run(c, ShowStats),
        )
        .returns::<StatsView>(),
        Route::get("/activity", "Show the guest I/O of all disks, in one list", Right::Read, activity)
            .lists::<ActivityView>(),
        Route::get(
            "/stats/{name}",
            "Show the guest I/O and space of a volume, image or `volume@snapshot`",
            Right::Read,
            |c: Caller, Param(name)| run(c, ShowDiskStats { name }),
        )
        .returns::<DiskStatsView>(),
    ]
}

/// The list has one element for each disk, so it can be long.
async fn activity(caller: Caller) -> Answer {
    caller.api.control.check_running()?;
    let mut after = String::new();
    Ok(streamed::respond(move || {
        caller.check_valid()?;
        let Some(mut found) = caller.api.control.activity_after(&after)? else { return Ok(None) };
        if let Some(last) = found.last() {
            after.clone_from(&last.name);
        }
        found.retain(|disk| caller.sees(&disk.name));
        Ok(Some(found))
    }))
}

impl Reply for StatsView {}

impl Reply for DiskStatsView {}

struct ShowStats;

impl Operation for ShowStats {
    type Reply = StatsView;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |_| Vec::new();

    async fn execute(&self, control: &Control, _: &str) -> Result<StatsView> {
        let stats = control.pool().stats().await;
        let observed = control.observed();
        Ok(StatsView {
            write_buffer_bytes: observed.write_buffer,
            clients: clients_view(&observed, control.targets().session_counts()),
            latency: latency_view(&observed),
            ..stats_view(&stats, resident_memory())
        })
    }
}

struct ShowDiskStats {
    name: String,
}

impl Operation for ShowDiskStats {
    type Reply = DiskStatsView;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |op| vec![op.name.clone()];

    async fn execute(&self, control: &Control, _: &str) -> Result<DiskStatsView> {
        let pool = control.pool();
        let stats = pool.disk_stats(&self.name)?;
        let space = match stats.space {
            None => None,
            Some(space) => pool.stats().await.space.map(|s| disk_space_view(space, s.as_of_ms)),
        };
        let is_desktop = stats.write_cache > 0;
        Ok(DiskStatsView {
            guest: stats.guest.view(),
            space,
            cached_bytes: stats.cached_bytes,
            write_cache_bytes: is_desktop.then_some(stats.write_cache),
            overflow: is_desktop.then_some(stats.overflow.view()),
            limited: LimitedView { requests: stats.limited.ops, waited_us: stats.limited.bytes },
        })
    }
}

/// The times of requests of all front ends.
fn latency_view(observed: &Observed) -> LatencyView {
    let path = |front: Front, served: Served| {
        let counts = observed.plane.latencies(front, served);
        PathLatencyView {
            front_end: front.name().to_owned(),
            path: served.name().to_owned(),
            buckets: counts.buckets.to_vec(),
            sum_us: counts.sum_ns / 1000,
        }
    };
    let all = Front::ALL.into_iter().flat_map(|front| Served::ALL.map(|served| path(front, served)));
    LatencyView { bounds_us: BOUNDS_NS.iter().map(|ns| ns / 1000).collect(), paths: all.collect() }
}

/// What the connections of guests occupy.
fn clients_view(observed: &Observed, (iscsi_sessions, nvme_controllers): (usize, usize)) -> ClientsView {
    let (memory, budget) = observed.plane.memory();
    ClientsView {
        connections: observed.plane.connections() as u64,
        iscsi_sessions: iscsi_sessions as u64,
        nvme_controllers: nvme_controllers as u64,
        memory_bytes: memory as u64,
        memory_budget_bytes: budget as u64,
    }
}
