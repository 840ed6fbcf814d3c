//! `/stats`: counters since the pool was opened, data reduction and space.

use super::auth::Caller;
use super::extract::Param;
use super::route::Route;
use super::run;
use crate::access::Right;
use crate::control::{Action, ActivityView, DiskStatsView, StatsView};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/stats",
            "Show the counters, data reduction and space of the pool",
            Right::ReadServer,
            |c: Caller| run(c, Action::Stats),
        )
        .returns::<StatsView>(),
        Route::get("/activity", "Show the guest I/O of all disks, in one list", Right::Read, |c: Caller| {
            run(c, Action::ShowActivity)
        })
        .lists::<ActivityView>(),
        Route::get(
            "/stats/{name}",
            "Show the guest I/O and space of a volume, image or `volume@snapshot`",
            Right::Read,
            |c: Caller, Param(name)| run(c, Action::DiskStats { name }),
        )
        .returns::<DiskStatsView>(),
    ]
}
