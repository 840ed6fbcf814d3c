//! `/volumes`: writable disks.

use forebay_api::{CreateVolume, DiskView, Persist, Rename, Resets, Resize, Rollback, SyncPolicy};
use forebay_cluster::names::Kind;
use forebay_engine::Role;
use forebay_text::{Size, quoted};

use super::{create, run};
use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::{Body, Param, WithSnapshots};
use crate::http::list::{self, DISKS, ListQuery};
use crate::http::route::{QueryParameter, Route};
use crate::operations::{
    Change, Changes, Client, Control, DiskList, Disks, Done, Failure, Operation, Result, counted, shown,
};
use crate::view::{disk_view, sync_mode};

/// The query of a removal.
const SNAPSHOTS: &[QueryParameter] = &[QueryParameter {
    name: "snapshots",
    about: "With all of its snapshots, in one step",
    schema: r#"{"type": "boolean", "default": false}"#,
}];

pub(super) fn routes() -> Vec<Route> {
    [volume_routes(), reset_routes()].into_iter().flatten().collect()
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
            |c: Caller, Body(b): Body<CreateVolume>| create(c, b),
        )
        .takes::<CreateVolume>()
        .returns::<DiskView>()
        .creates(),
        Route::get("/volumes/{name}", "Show a volume", Right::Read, |c: Caller, Param(name)| {
            run(c, ShowDisk { name, role: Role::Volume })
        })
        .returns::<DiskView>(),
        Route::delete(
            "/volumes/{name}",
            "Remove a volume that has no clients, and no snapshots unless these are removed too",
            Right::Provision,
            |c: Caller, Param(name), WithSnapshots(with_snapshots)| {
                run(c, RemoveVolume { name, with_snapshots })
            },
        )
        .with_query(SNAPSHOTS),
        Route::post(
            "/volumes/{name}/resize",
            "Resize a volume; shrinking discards the data beyond the new end",
            Right::Provision,
            |c: Caller, Param(name), Body(b): Body<Resize>| run(c, ResizeVolume { name, to: b }),
        )
        .takes::<Resize>()
        .returns::<DiskView>(),
        Route::post(
            "/volumes/{name}/rename",
            "Rename a volume that has no clients and is not mapped to a target; its snapshots stay with it",
            Right::Provision,
            |c: Caller, Param(name), Body(b): Body<Rename>| run(c, RenameVolume { name, new: b.name }),
        )
        .takes::<Rename>()
        .returns::<DiskView>(),
    ]
}

fn reset_routes() -> Vec<Route> {
    vec![
        Route::post(
            "/volumes/{name}/reset",
            "Reset a clone to the image or snapshot it was created from",
            Right::Operate,
            |c: Caller, Param(name)| run(c, ResetVolume { name }),
        )
        .returns::<DiskView>(),
        Route::post(
            "/volumes/{name}/resume",
            "Admit all clients again to a volume with lost writes; stop the clients that had them first",
            Right::Operate,
            |c: Caller, Param(name)| run(c, ResumeVolume { name }),
        )
        .returns::<DiskView>(),
        Route::post(
            "/resets",
            "Reset several clones as fast as one, also to another image; all or none",
            Right::Operate,
            |c: Caller, Body(b): Body<Resets>| run(c, b),
        )
        .takes::<Resets>()
        .lists::<DiskView>(),
        Route::post(
            "/volumes/{name}/persist",
            "Convert a desktop into a persistent volume, keeping its writes",
            Right::Provision,
            |c: Caller, Param(name), Body(b): Body<Persist>| run(c, PersistVolume { name, sync: b.sync }),
        )
        .takes::<Persist>()
        .returns::<DiskView>(),
        Route::post(
            "/volumes/{name}/rollback",
            "Roll a volume back to one of its snapshots",
            Right::Operate,
            |c: Caller, Param(name), Body(b): Body<Rollback>| {
                run(c, RollbackVolume { name, snapshot: b.snapshot })
            },
        )
        .takes::<Rollback>()
        .returns::<DiskView>(),
    ]
}

/// Shows a disk of this role; also for images.
pub(super) struct ShowDisk {
    pub name: String,
    pub role: Role,
}

impl Operation for ShowDisk {
    type Reply = DiskView;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |op| vec![op.name.clone()];

    async fn execute(&self, control: &Control, _: &str) -> Result<DiskView> {
        control.show_disk(&self.name, self.role)
    }
}

impl Operation for CreateVolume {
    type Reply = DiskView;
    const CHANGE: Changes<Self> =
        Some(|op| Change::create(format_args!("volume {} of {}", quoted(&op.name), Size(op.size_bytes))));
    const EVENT: Option<&str> = Some("created");
    const DISKS: Disks<Self> = |op| vec![op.name.clone()];

    fn creates(&self) -> u32 {
        1
    }

    fn check(&self, client: &Client<'_>) -> Result<(), Failure> {
        // A volume shows by its use of space which blocks the other disks of its domain have.
        if client.principal.scope.is_some() && self.dedup_domain != 0 {
            let why = "only an administrator can choose the deduplication domain of a volume";
            return Err(Failure::Forbidden(why.to_owned()));
        }
        Ok(())
    }

    async fn execute(&self, control: &Control, _: &str) -> Result<DiskView> {
        // The node has chosen this server.
        let CreateVolume { name, size_bytes, sync, dedup_domain, spread: _ } = self;
        let create = async {
            shown(&control.pool().create_volume(name, *size_bytes, sync_mode(*sync), *dedup_domain).await?)
        };
        control.create_named(&[name], Kind::Volume, create).await
    }
}

struct RemoveVolume {
    name: String,
    with_snapshots: bool,
}

impl Operation for RemoveVolume {
    type Reply = Done;
    const CHANGE: Changes<Self> = Some(|op| {
        let with = if op.with_snapshots { " with its snapshots" } else { "" };
        Change::remove(format_args!("volume {}{with}", quoted(&op.name)))
    });
    const EVENT: Option<&str> = Some("removed");
    const DISKS: Disks<Self> = |op| vec![op.name.clone()];

    fn event_disk(&self) -> Option<String> {
        Some(self.name.clone())
    }

    async fn execute(&self, control: &Control, _: &str) -> Result<Done> {
        match self.with_snapshots {
            true => control.remove_with_snapshots(&self.name).await,
            false => control.remove_disk(&self.name, Role::Volume).await,
        }
    }
}

struct ResizeVolume {
    name: String,
    to: Resize,
}

impl Operation for ResizeVolume {
    type Reply = DiskView;
    const CHANGE: Changes<Self> = Some(|op| {
        let object = format_args!("volume {} to {}", quoted(&op.name), Size(op.to.size_bytes));
        Change::new("resize", "resized", object)
    });
    const EVENT: Option<&str> = Some("resized");
    const DISKS: Disks<Self> = |op| vec![op.name.clone()];

    async fn execute(&self, control: &Control, _: &str) -> Result<DiskView> {
        control.pool().resize_from(&self.name, self.to.from_size_bytes, self.to.size_bytes).await?;
        // Hosts of NVMe are informed of the new size.
        control.targets().disks_changed().await;
        control.show_disk(&self.name, Role::Volume)
    }
}

struct RenameVolume {
    name: String,
    new: String,
}

impl Operation for RenameVolume {
    type Reply = DiskView;
    const CHANGE: Changes<Self> = Some(|op| {
        let object = format_args!("volume {} to {}", quoted(&op.name), quoted(&op.new));
        Change::new("rename", "renamed", object)
    });
    const EVENT: Option<&str> = Some("renamed");
    const DISKS: Disks<Self> = |op| vec![op.name.clone(), op.new.clone()];

    // The reply has the new name.
    fn event_disk(&self) -> Option<String> {
        Some(self.name.clone())
    }

    async fn execute(&self, control: &Control, _: &str) -> Result<DiskView> {
        control.rename_volume(&self.name, &self.new).await
    }
}

struct ResetVolume {
    name: String,
}

impl Operation for ResetVolume {
    type Reply = DiskView;
    const CHANGE: Changes<Self> =
        Some(|op| Change::new("reset", "reset", format_args!("volume {}", quoted(&op.name))));
    const EVENT: Option<&str> = Some("reset");
    const DISKS: Disks<Self> = |op| vec![op.name.clone()];

    async fn execute(&self, control: &Control, _: &str) -> Result<DiskView> {
        control.pool().reset(&self.name).await?;
        control.show_disk(&self.name, Role::Volume)
    }
}

struct ResumeVolume {
    name: String,
}

impl Operation for ResumeVolume {
    type Reply = DiskView;
    const CHANGE: Changes<Self> =
        Some(|op| Change::new("resume", "resumed", format_args!("volume {}", quoted(&op.name))));
    const EVENT: Option<&str> = Some("resumed");
    const DISKS: Disks<Self> = |op| vec![op.name.clone()];

    async fn execute(&self, control: &Control, _: &str) -> Result<DiskView> {
        shown(&control.pool().resume(&self.name).await?)
    }
}

impl Operation for Resets {
    type Reply = Vec<DiskView>;
    const CHANGE: Changes<Self> = Some(|op| {
        let to = op.image.iter().map(|image| format!(" to {}", quoted(image))).collect::<String>();
        Change::new("reset", "reset", format_args!("{}{to}", counted(&op.volumes, "volumes")))
    });
    const EVENT: Option<&str> = Some("reset");
    const DISKS: Disks<Self> = |op| op.volumes.iter().chain(&op.image).cloned().collect();

    async fn execute(&self, control: &Control, _: &str) -> Result<Vec<DiskView>> {
        let names: Vec<&str> = self.volumes.iter().map(String::as_str).collect();
        control.reset_disks(&names, self.image.as_deref()).await?;
        if self.image.is_some() {
            // The size may be another one.
            control.targets().disks_changed().await;
        }
        // A volume may have been removed since.
        let reset = names.into_iter().filter_map(|name| control.pool().disk(name).ok());
        Ok(reset.filter_map(|disk| disk_view(&disk)).collect())
    }
}

struct PersistVolume {
    name: String,
    sync: SyncPolicy,
}

impl Operation for PersistVolume {
    type Reply = DiskView;
    const CHANGE: Changes<Self> =
        Some(|op| Change::new("persist", "persisted", format_args!("desktop {}", quoted(&op.name))));
    const EVENT: Option<&str> = Some("persisted");
    const DISKS: Disks<Self> = |op| vec![op.name.clone()];

    async fn execute(&self, control: &Control, _: &str) -> Result<DiskView> {
        shown(&control.pool().persist(&self.name, sync_mode(self.sync)).await?)
    }
}

struct RollbackVolume {
    name: String,
    snapshot: String,
}

impl Operation for RollbackVolume {
    type Reply = DiskView;
    const CHANGE: Changes<Self> = Some(|op| {
        let object = format_args!("volume {} to snapshot {}", quoted(&op.name), quoted(&op.snapshot));
        Change::new("roll back", "rolled back", object)
    });
    const EVENT: Option<&str> = Some("rolled_back");
    const DISKS: Disks<Self> = |op| vec![op.name.clone(), format!("{}@{}", op.name, op.snapshot)];

    async fn execute(&self, control: &Control, _: &str) -> Result<DiskView> {
        control.pool().rollback(&self.name, &self.snapshot).await?;
        control.show_disk(&self.name, Role::Volume)
    }
}
