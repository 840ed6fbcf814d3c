//! `/targets/{name}/luns`: disks mapped to a target, and their SCSI reservations.

use forebay_api::{self as api, LunView, PersistentView, PortView, RegistrationView, ReservationsView};
use forebay_frontend::scsi::{Port, ReservationState};
use forebay_frontend::targets::{IqnName, Lun, TargetError};
use forebay_text::quoted;

use super::targets::{iqn, is_name_of};
use super::{create, run};
use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::{Body, Param};
use crate::http::route::Route;
use crate::operations::{Change, Changes, Control, Disks, Done, Operation, Reply, Result};
use crate::view::View;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post(
            "/targets/{name}/luns",
            "Map a disk to the lowest free LUN",
            Right::Administer,
            |c: Caller, Param(target), Body(map): Body<api::MapLun>| {
                create(c, MapLun { target, lun: None, map })
            },
        )
        .takes::<api::MapLun>()
        .returns::<LunView>()
        .creates(),
        Route::put(
            "/targets/{name}/luns/{lun}",
            "Map a disk to this LUN, or change the options of a mapped LUN",
            Right::Administer,
            |c: Caller, Param((target, lun)), Body(map): Body<api::MapLun>| {
                run(c, MapLun { target, lun: Some(lun), map })
            },
        )
        .takes::<api::MapLun>()
        .returns::<LunView>(),
        Route::delete(
            "/targets/{name}/luns/{lun}",
            "Unmap a LUN, also from initiators that are using it",
            Right::Administer,
            |c: Caller, Param((target, lun))| run(c, UnmapLun { target, lun }),
        ),
        Route::get(
            "/targets/{name}/luns/{lun}/reservations",
            "Show the reservations and registrations of the disk of a LUN",
            Right::ReadServer,
            |c: Caller, Param((target, lun))| run(c, ShowReservations { target, lun }),
        )
        .returns::<ReservationsView>(),
        Route::delete(
            "/targets/{name}/luns/{lun}/reservations",
            "Clear all reservations and registrations of the disk of a LUN",
            Right::Administer,
            |c: Caller, Param((target, lun))| run(c, ClearReservations { target, lun }),
        ),
    ]
}

impl Reply for LunView {}

impl Reply for ReservationsView {}

struct MapLun {
    target: String,
    lun: Option<u16>,
    map: api::MapLun,
}

impl Operation for MapLun {
    type Reply = LunView;
    const CHANGE: Changes<Self> = Some(|op| {
        let (disk, target) = (quoted(&op.map.disk), quoted(&op.target));
        let lun = op.lun.map(|lun| format!("LUN {lun} of ")).unwrap_or_default();
        let read_only = if op.map.read_only { ", read-only" } else { "" };
        let write_back = if op.map.write_back { ", write-back" } else { "" };
        let object = format_args!("{disk} to {lun}target {target}{read_only}{write_back}");
        Change::new("map", "mapped", object)
    });
    const DISKS: Disks<Self> = |op| vec![op.map.disk.clone()];

    fn revokes_at(&self, target: &IqnName) -> bool {
        is_name_of(&self.target, target)
    }

    async fn execute(&self, control: &Control, _: &str) -> Result<LunView> {
        let api::MapLun { disk, read_only, write_back } = self.map.clone();
        let entry = Lun { disk, read_only, write_back };
        let (lun, mapped) = control.targets().map(&iqn(&self.target)?, self.lun, entry).await?;
        Ok(lun_view(control, lun, &mapped))
    }
}

struct UnmapLun {
    target: String,
    lun: u16,
}

impl Operation for UnmapLun {
    type Reply = Done;
    const CHANGE: Changes<Self> = Some(|op| {
        Change::new("unmap", "unmapped", format_args!("LUN {} of target {}", op.lun, quoted(&op.target)))
    });
    const DISKS: Disks<Self> = |_| Vec::new();

    fn revokes_at(&self, target: &IqnName) -> bool {
        is_name_of(&self.target, target)
    }

    async fn execute(&self, control: &Control, _: &str) -> Result<Done> {
        control.targets().unmap(&iqn(&self.target)?, self.lun).await?;
        Ok(Done {})
    }
}

struct ShowReservations {
    target: String,
    lun: u16,
}

impl Operation for ShowReservations {
    type Reply = ReservationsView;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |_| Vec::new();

    async fn execute(&self, control: &Control, _: &str) -> Result<ReservationsView> {
        let disk = disk_of(control, &self.target, self.lun)?;
        let state = control.units().reservations(control.pool(), &disk).await?;
        Ok(reservations_view(self.lun, disk, &state))
    }
}

struct ClearReservations {
    target: String,
    lun: u16,
}

impl Operation for ClearReservations {
    type Reply = Done;
    const CHANGE: Changes<Self> = Some(|op| {
        let object = format_args!("the reservations of LUN {} of target {}", op.lun, quoted(&op.target));
        Change::new("clear", "cleared", object)
    });
    const DISKS: Disks<Self> = |_| Vec::new();

    async fn execute(&self, control: &Control, _: &str) -> Result<Done> {
        let disk = disk_of(control, &self.target, self.lun)?;
        control.units().clear_reservations(control.pool(), &disk).await?;
        Ok(Done {})
    }
}

/// Returns the name of the disk that is mapped to a LUN.
fn disk_of(control: &Control, target: &str, lun: u16) -> Result<String> {
    let name = iqn(target)?;
    let target = control.targets().get(&name).ok_or_else(|| TargetError::NoTarget(name.clone()))?;
    let mapped = target.luns.get(&lun).ok_or(TargetError::NoLun { target: name, lun })?;
    Ok(mapped.disk.clone())
}

/// A LUN of a target.
pub(super) fn lun_view(control: &Control, lun: u16, mapped: &Lun) -> LunView {
    LunView {
        lun,
        disk: mapped.disk.clone(),
        size_bytes: control.pool().identity(&mapped.disk).ok().map(|(_, size)| size),
        read_only: mapped.read_only,
        write_back: mapped.write_back,
    }
}

impl View for &Port {
    type View = PortView;

    fn view(self) -> PortView {
        PortView {
            initiator: self.initiator.clone(),
            isid: self.isid.iter().map(|byte| format!("{byte:02x}")).collect(),
            target: self.target.clone(),
        }
    }
}

fn reservations_view(lun: u16, disk: String, state: &ReservationState) -> ReservationsView {
    let registrations = state
        .registrations
        .iter()
        .map(|(port, key)| RegistrationView { key: format!("{key:016x}"), port: (**port).view() });
    ReservationsView {
        lun,
        disk,
        generation: state.generation,
        kept: state.keep,
        persistent: state
            .persistent
            .as_ref()
            .map(|(kind, holder)| PersistentView { kind: kind.name().to_owned(), holder: (**holder).view() }),
        reserve: state.reserve.as_deref().map(View::view),
        registrations: registrations.collect(),
    }
}
