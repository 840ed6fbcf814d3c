//! `/stats`: counters since the pool was opened, data reduction and space.

use axum::response::Response;
use forebay_api::{ActivityView, DiskStatsView, StatsView};

use super::run;
use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::Param;
use crate::http::problem::Result;
use crate::http::route::Route;
use crate::http::streamed;
use crate::operations::Action;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/stats",
            "Show the counters, data reduction and space of the pool",
            Right::ReadServer,
            |c: Caller| run(c, Action::Stats),
        )
        .returns::<StatsView>(),
        Route::get("/activity", "Show the guest I/O of all disks, in one list", Right::Read, activity)
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

/// One element for each disk, so the list can be long.
async fn activity(caller: Caller) -> Result<Response> {
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
