//! `/volumes/{name}/snapshots`: snapshots of a volume.

use forebay_api::{self as api, DiskView};
use forebay_engine::Role;
use forebay_text::quoted;

use super::{create, run};
use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::{Body, Param};
use crate::http::list::{self, DISKS, ListQuery};
use crate::http::route::Route;
use crate::operations::{Change, Changes, Control, DiskList, Disks, Done, Operation, Result, shown};

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
            |c: Caller, Param(volume), Body(b): Body<api::CreateSnapshot>| {
                create(c, CreateSnapshot { volume, name: b.name })
            },
        )
        .takes::<api::CreateSnapshot>()
        .returns::<DiskView>()
        .creates(),
        Route::delete(
            "/volumes/{name}/snapshots/{snapshot}",
            "Remove a snapshot that has no clones",
            Right::Operate,
            |c: Caller, Param((volume, name))| run(c, RemoveSnapshot { volume, name }),
        ),
    ]
}

struct CreateSnapshot {
    volume: String,
    name: String,
}

impl Operation for CreateSnapshot {
    type Reply = DiskView;
    const CHANGE: Changes<Self> =
        Some(|op| Change::create(format_args!("snapshot {}", quoted(&full_name(&op.volume, &op.name)))));
    const EVENT: Option<&str> = Some("created");
    const DISKS: Disks<Self> = |op| with_volume(&op.volume, &op.name);

    fn creates(&self) -> u32 {
        1
    }

    async fn execute(&self, control: &Control, _: &str) -> Result<DiskView> {
        shown(&control.pool().create_snapshot(&self.volume, &self.name).await?)
    }
}

struct RemoveSnapshot {
    volume: String,
    name: String,
}

impl Operation for RemoveSnapshot {
    type Reply = Done;
    const CHANGE: Changes<Self> =
        Some(|op| Change::remove(format_args!("snapshot {}", quoted(&full_name(&op.volume, &op.name)))));
    const EVENT: Option<&str> = Some("removed");
    const DISKS: Disks<Self> = |op| with_volume(&op.volume, &op.name);

    fn event_disk(&self) -> Option<String> {
        Some(full_name(&self.volume, &self.name))
    }

    async fn execute(&self, control: &Control, _: &str) -> Result<Done> {
        control.remove_disk(&full_name(&self.volume, &self.name), Role::Snapshot).await
    }
}

/// The name of a snapshot among all disks.
fn full_name(volume: &str, name: &str) -> String {
    format!("{volume}@{name}")
}

fn with_volume(volume: &str, name: &str) -> Vec<String> {
    vec![volume.to_owned(), full_name(volume, name)]
}
