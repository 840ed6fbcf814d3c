//! `/volumes`: writable disks.

use forebay_api::{
    ClassesView, CreateVolume, DiskClientsView, DiskView, Persist, Resets, Resize, Rollback, VolumeLimits,
};

use super::{create, run};
use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::{Body, Param};
use crate::http::list::{self, DISKS, ListQuery};
use crate::http::route::Route;
use crate::operations::{Action, DiskList};

pub(super) fn routes() -> Vec<Route> {
    [volume_routes(), reset_routes(), limit_routes(), class_routes()].into_iter().flatten().collect()
}

fn volume_routes() -> Vec<Route> {
    vec![
        Route::get("/volumes", "List all volumes", Right::Read, |c: Caller, q: ListQuery| {
            list::disks(c, q, DiskList::Volumes)
        })
        .lists::<DiskView>()
        .with_query(DISKS),
        Route::post(
            "/volumes",
            "Create an empty volume",
            Right::Provision,
            |c: Caller, Body(b): Body<CreateVolume>| create(c, Action::CreateVolume(b)),
        )
        .takes::<CreateVolume>()
        .returns::<DiskView>()
        .creates(),
        Route::get("/volumes/{name}", "Show a volume", Right::Read, |c: Caller, Param(name)| {
            run(c, Action::ShowVolume { name })
        })
        .returns::<DiskView>(),
        Route::delete(
            "/volumes/{name}",
            "Remove a volume that has no clients and no snapshots",
            Right::Provision,
            |c: Caller, Param(name)| run(c, Action::RemoveVolume { name }),
        ),
        Route::post(
            "/volumes/{name}/resize",
            "Resize a volume; shrinking discards the data beyond the new end",
            Right::Provision,
            |c: Caller, Param(name), Body(b): Body<Resize>| {
                run(c, Action::ResizeVolume { name, size_bytes: b.size_bytes })
            },
        )
        .takes::<Resize>()
        .returns::<DiskView>(),
    ]
}

fn reset_routes() -> Vec<Route> {
    vec![
        Route::post(
            "/volumes/{name}/reset",
            "Reset a clone to the image or snapshot it was created from",
            Right::Operate,
            |c: Caller, Param(name)| run(c, Action::ResetVolume { name }),
        )
        .returns::<DiskView>(),
        Route::post(
            "/volumes/{name}/resume",
            "Admit all clients again to a volume with lost writes; stop the clients that had them first",
            Right::Operate,
            |c: Caller, Param(name)| run(c, Action::ResumeVolume { name }),
        )
        .returns::<DiskView>(),
        Route::post(
            "/resets",
            "Reset several clones as fast as one; all or none",
            Right::Operate,
            |c: Caller, Body(b): Body<Resets>| run(c, Action::Reset { volumes: b.volumes }),
        )
        .takes::<Resets>()
        .lists::<DiskView>(),
        Route::post(
            "/volumes/{name}/persist",
            "Convert a desktop into a persistent volume, keeping its writes",
            Right::Provision,
            |c: Caller, Param(name), Body(b): Body<Persist>| {
                run(c, Action::PersistVolume { name, sync: b.sync })
            },
        )
        .takes::<Persist>()
        .returns::<DiskView>(),
        Route::post(
            "/volumes/{name}/rollback",
            "Roll a volume back to one of its snapshots",
            Right::Operate,
            |c: Caller, Param(name), Body(b): Body<Rollback>| {
                run(c, Action::RollbackVolume { name, snapshot: b.snapshot })
            },
        )
        .takes::<Rollback>()
        .returns::<DiskView>(),
    ]
}

fn limit_routes() -> Vec<Route> {
    vec![
        Route::get(
            "/volumes/{name}/limits",
            "Show the limits, the weight and the tenant of a volume",
            Right::Read,
            |c: Caller, Param(volume)| run(c, Action::ShowLimits { volume }),
        )
        .returns::<VolumeLimits>(),
        Route::put(
            "/volumes/{name}/limits",
            "Replace the limits, the weight and the tenant of a volume, effective at once",
            Right::Operate,
            |c: Caller, Param(volume), Body(new): Body<VolumeLimits>| {
                run(c, Action::SetLimits { volume, new })
            },
        )
        .takes::<VolumeLimits>()
        .returns::<VolumeLimits>(),
    ]
}

fn class_routes() -> Vec<Route> {
    vec![
        Route::get(
            "/volumes/{name}/classes",
            "Show the block classes of a volume, image or VOLUME@SNAPSHOT, with I/O counters",
            Right::Read,
            |c: Caller, Param(name)| run(c, Action::ShowClasses { name }),
        )
        .returns::<ClassesView>(),
        Route::post(
            "/volumes/{name}/classes",
            "Scan the disk for block classes now",
            Right::Operate,
            |c: Caller, Param(name)| run(c, Action::LearnClasses { name }),
        )
        .returns::<ClassesView>(),
        Route::get(
            "/volumes/{name}/clients",
            "List the clients of a volume, image or VOLUME@SNAPSHOT: NBD connections, and iSCSI sessions",
            Right::Read,
            |c: Caller, Param(name)| run(c, Action::ListClients { name }),
        )
        .returns::<DiskClientsView>(),
        Route::delete(
            "/volumes/{name}/clients/{client}",
            "Disconnect an NBD client of a volume, image or VOLUME@SNAPSHOT",
            Right::Operate,
            |c: Caller, Param((name, client))| run(c, Action::DisconnectClient { name, client }),
        ),
    ]
}
