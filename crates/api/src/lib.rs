//! The JSON types of the HTTP API, and a client for it. They are a stable contract with scripts, so they are
//! declared here and not derived from the types of the engine, which this crate does not know.

mod cache;
mod classes;
pub mod client;
mod clients;
mod cluster;
mod connect;
mod disks;
mod error;
pub mod export;
mod files;
mod gc;
mod health;
pub mod import;
mod jobs;
mod limits;
mod profile;
mod receives;
mod reservations;
mod server;
mod space;
mod stats;
mod targets;
mod tokens;
mod uploads;

pub use cache::{CacheAdviceView, CacheView, ClassReadsView, ReadCacheView};
pub use classes::{ClassView, ClassesView};
pub use clients::{DiskClientView, DiskClientsView, Protocol};
pub use cluster::{
    ClusterImageState, ClusterImageView, ClusterView, FORWARDED_CLIENT, LocationView, MISSING_SHARDS,
    NodeStateView, NodeView, PORTALS, PortalsView, ShardView,
};
pub use connect::{ClientKind, ConnectView, MissingWayView, WayView};
pub use disks::{
    CloneVolumes, CreateImage, CreateSnapshot, CreateVolume, DiskView, Kind, Persist, Rename, Reset, Resets,
    Resize, Rollback, SyncPolicy,
};
pub use error::{ErrorDetail, ErrorKind, Problem};
pub use export::DifferenceLine;
pub use files::{CloneFile, FileKind, FileView, FilesView};
pub use gc::{GcEvent, GcPhaseView, Reclaimed};
pub use health::{ConditionView, HealthState, HealthView};
pub use jobs::{JobKind, JobState, JobView, ProgressView};
pub use limits::{LimitSet, LimitedView, TenantView, UsageView, VolumeLimits};
pub use profile::{ChangeProfile, PrefetchedView, ProfileAction, ProfileView};
pub use receives::{CreateReceive, ReceiveView};
pub use reservations::{PersistentView, PortView, RegistrationView, ReservationsView};
pub use server::{Handover, NewOwner, OwnerView, ServerView, StandbyView, Upgrade, Upgraded};
pub use space::{CapacityView, DiskSpaceView, IndexView, ReductionView, RoomView, SpaceView};
pub use stats::{
    ActivityView, ClientsView, CommitView, CountView, DesktopsView, DiskStatsView, GuestView, LatencyView,
    PathLatencyView, StatsView, StoreView,
};
pub use targets::{
    AllowInitiator, Chap, CreateTarget, InitiatorView, LunView, MapLun, SessionView, TargetView,
};
pub use tokens::{CreateToken, CreatedToken, Role, Scope, TokenView};
pub use uploads::{CreateUpload, UploadView};

/// Beginning of the path of every route of this version.
pub const PREFIX: &str = "/api/v1";
/// The header of requests that change state. Its value is ignored.
pub const HEADER: &str = "x-forebay";
/// The name by which the command line addresses a server on the control socket. It is accepted there without
/// a port only: a browser whose DNS resolves this name to a forwarded port sends the port too.
pub const SOCKET_HOST: &str = "forebay";
