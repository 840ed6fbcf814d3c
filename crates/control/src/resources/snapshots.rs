//! `/volumes/{name}/snapshots`: snapshots of a volume.

use forebay_api::{CreateSnapshot, DiskView};

use super::{create, run};
use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::{Body, Param};
use crate::http::list::{self, DISKS, ListQuery};
use crate::http::route::Route;
use crate::operations::{Action, DiskList};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/volumes/{name}/snapshots",
            "List the snapshots of a volume",
            Right::Read,
            async |c: Caller, Param(volume): Param<String>, q: ListQuery| {
                c.check(&volume)?;
                list::disks(c, q, DiskList::Snapshots(volume)).await
            },
        )
        .lists::<DiskView>()
        .with_query(DISKS),
        Route::post(
            "/volumes/{name}/snapshots",
            "Create a snapshot; it contains every write acknowledged before",
            Right::Operate,
            |c: Caller, Param(volume), Body(b): Body<CreateSnapshot>| {
                create(c, Action::CreateSnapshot { volume, name: b.name })
            },
        )
        .takes::<CreateSnapshot>()
        .returns::<DiskView>()
        .creates(),
        Route::delete(
            "/volumes/{name}/snapshots/{snapshot}",
            "Remove a snapshot that has no clones",
            Right::Operate,
            |c: Caller, Param((volume, name))| run(c, Action::RemoveSnapshot { volume, name }),
        ),
    ]
}
