//! Administrative actions and their replies.

use forebay_api::{
    AllowInitiator, CapacityView, ClassesView, CloneVolumes, CreateTarget, CreateVolume, DiskClientsView,
    DiskStatsView, DiskView, LimitSet, LunView, MapLun, PrefetchedView, ProfileAction, ProfileView,
    ReservationsView, ServerView, StatsView, SyncPolicy, TargetView, TenantView, VolumeLimits,
};
use forebay_frontend::targets::IqnName;
use serde::Serialize;

/// An administrative action.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // the variants correspond to methods of the pool and to resources of the API
pub enum Action {
    ShowImage { name: String },
    CreateImage { name: String, source: String },
    RemoveImage { name: String },
    ShowProfile { image: String },
    ChangeProfile { image: String, action: ProfileAction },
    RemoveProfile { image: String },
    ShowVolume { name: String },
    CreateVolume(CreateVolume),
    CloneVolumes(CloneVolumes),
    RemoveVolume { name: String },
    ResizeVolume { name: String, size_bytes: u64 },
    ResetVolume { name: String },
    ResumeVolume { name: String },
    Reset { volumes: Vec<String> },
    PersistVolume { name: String, sync: SyncPolicy },
    ShowLimits { volume: String },
    SetLimits { volume: String, new: VolumeLimits },
    ListTenants,
    ShowTenant { name: String },
    SetTenant { name: String, limits: LimitSet },
    RemoveTenant { name: String },
    ShowClasses { name: String },
    ListClients { name: String },
    DisconnectClient { name: String, client: String },
    LearnClasses { name: String },
    RollbackVolume { name: String, snapshot: String },
    CreateSnapshot { volume: String, name: String },
    RemoveSnapshot { volume: String, name: String },
    ListTargets,
    ShowTarget { name: String },
    CreateTarget(CreateTarget),
    RemoveTarget { name: String, force: bool },
    RemoveTargets { force: bool },
    DisconnectSession { target: String, session: String },
    AllowInitiator { target: String, initiator: String, allowed: AllowInitiator },
    DenyInitiator { target: String, initiator: String },
    MapLun { target: String, lun: Option<u16>, map: MapLun },
    UnmapLun { target: String, lun: u16 },
    ShowReservations { target: String, lun: u16 },
    ClearReservations { target: String, lun: u16 },
    Server,
    Capacity,
    Stats,
    DiskStats { name: String },
    Checkpoint,
}

impl Action {
    /// Whether the action has no effect on the state.
    pub fn is_query(&self) -> bool {
        use Action::*;
        matches!(
            self,
            ShowImage { .. }
                | ShowProfile { .. }
                | ShowVolume { .. }
                | ShowClasses { .. }
                | ListClients { .. }
                | ShowLimits { .. }
                | ListTenants
                | ShowTenant { .. }
                | ListTargets
                | ShowTarget { .. }
                | ShowReservations { .. }
                | Server
                | Capacity
                | Stats
                | DiskStats { .. }
        )
    }
}

impl Action {
    /// The number of disks that the action creates.
    pub fn creates(&self) -> u32 {
        match self {
            Action::CreateImage { .. } | Action::CreateVolume(_) | Action::CreateSnapshot { .. } => 1,
            Action::CloneVolumes(new) => new.count.unwrap_or(1),
            _ => 0,
        }
    }

    /// Whether the action may take disks away from the initiators of a target.
    pub(super) fn revokes_at(&self, target: &IqnName) -> bool {
        use Action::*;
        match self {
            RemoveTargets { .. } => true,
            RemoveTarget { name, .. }
            | AllowInitiator { target: name, .. }
            | DenyInitiator { target: name, .. }
            | MapLun { target: name, .. }
            | UnmapLun { target: name, .. } => name.parse().is_ok_and(|name: IqnName| name == *target),
            _ => false,
        }
    }

    /// What the action does to disks, for the events; `None` if it changes none.
    pub(super) fn change(&self) -> Option<&'static str> {
        use Action::*;
        Some(match self {
            CreateImage { .. } | CreateVolume(_) | CloneVolumes(_) | CreateSnapshot { .. } => "created",
            RemoveImage { .. } | RemoveVolume { .. } | RemoveSnapshot { .. } => "removed",
            ResizeVolume { .. } => "resized",
            ResetVolume { .. } | Reset { .. } => "reset",
            ResumeVolume { .. } => "resumed",
            PersistVolume { .. } => "persisted",
            SetLimits { .. } => "limited",
            RollbackVolume { .. } => "rolled_back",
            DisconnectClient { .. } => "client_disconnected",
            _ => return None,
        })
    }

    /// The disk that a change concerns, if its reply does not name it.
    pub(super) fn unnamed(&self) -> Option<String> {
        use Action::*;
        match self {
            RemoveImage { name }
            | RemoveVolume { name }
            | SetLimits { volume: name, .. }
            | DisconnectClient { name, .. } => Some(name.clone()),
            RemoveSnapshot { volume, name } => Some(format!("{volume}@{name}")),
            _ => None,
        }
    }

    /// The disks that the action concerns, for access control. Lists concern none; their replies are
    /// filtered. Names of disks that do not exist yet are included: nothing is created outside of a scope.
    pub fn disks(&self) -> Vec<String> {
        use Action::*;
        match self {
            ShowImage { name }
            | RemoveImage { name }
            | ShowVolume { name }
            | RemoveVolume { name }
            | ResizeVolume { name, .. }
            | ResetVolume { name }
            | ResumeVolume { name }
            | PersistVolume { name, .. }
            | ShowClasses { name }
            | ListClients { name }
            | DisconnectClient { name, .. }
            | LearnClasses { name }
            | DiskStats { name }
            | ShowProfile { image: name }
            | ChangeProfile { image: name, .. }
            | RemoveProfile { image: name }
            | ShowLimits { volume: name }
            | SetLimits { volume: name, .. } => vec![name.clone()],
            CreateImage { name, source } => vec![name.clone(), source.clone()],
            CreateVolume(new) => vec![new.name.clone()],
            CloneVolumes(new) => vec![new.name.clone(), new.source.clone()],
            Reset { volumes } => volumes.clone(),
            RollbackVolume { name: volume, snapshot: name }
            | CreateSnapshot { volume, name }
            | RemoveSnapshot { volume, name } => vec![volume.clone(), format!("{volume}@{name}")],
            MapLun { map, .. } => vec![map.disk.clone()],
            ListTenants
            | ShowTenant { .. }
            | SetTenant { .. }
            | RemoveTenant { .. }
            | ListTargets
            | ShowTarget { .. }
            | CreateTarget(_)
            | RemoveTarget { .. }
            | RemoveTargets { .. }
            | DisconnectSession { .. }
            | AllowInitiator { .. }
            | DenyInitiator { .. }
            | UnmapLun { .. }
            | ShowReservations { .. }
            | ClearReservations { .. }
            | Server
            | Capacity
            | Stats
            | Checkpoint => Vec::new(),
        }
    }
}

/// The reply to an action.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum Reply {
    Disk(DiskView),
    Disks(Vec<DiskView>),
    Server(ServerView),
    Capacity(CapacityView),
    Stats(Box<StatsView>),
    DiskStats(DiskStatsView),
    Profile(ProfileView),
    Prefetched(PrefetchedView),
    Classes(ClassesView),
    Clients(DiskClientsView),
    Target(TargetView),
    Targets(Vec<TargetView>),
    Limits(VolumeLimits),
    Tenant(TenantView),
    Tenants(Vec<TenantView>),
    Lun(LunView),
    Reservations(ReservationsView),
    /// Success without data; an empty JSON object.
    Done {},
}
