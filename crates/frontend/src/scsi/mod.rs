//! The SCSI device server: executes the commands to logical units, independent of the transport.
//!
//! A [`LogicalUnit`] is one disk, shared by all sessions that use it, on all threads. It holds their common
//! state: reservations (`reserve`, encoded by `stored`), mode parameters, unit attentions, and tokens
//! (`tokens`). A [`Nexus`] is the access of one session to it. A transport passes each command to
//! [`Nexus::admit`], which decodes it and makes all checks that precede a command. It then executes plain
//! reads and writes itself, or passes the command to [`Nexus::perform`]: `io` reads and changes blocks
//! (`medium` those changes that depend on the contents), `copy` copies them. A request to abort commands of
//! other nexuses waits for those that change the unit (`underway`), and so does a transport that withdraws
//! units (`followed`). `admin` shows and clears reservations for
//! administrators. `errors` maps engine errors to sense data. `handover` passes the state of units to another
//! process. `standby` is a unit of a pool that another server has; it and
//! [`Nexus`] describe units by `describe`.
//!
//! Locks are short, are not held across an await, and are not held during a call to a transport. The order in
//! which they may be taken: a unit's reservations, its reserver, its members, a member's attentions.

mod admin;
mod attention;
mod copy;
mod describe;
mod errors;
mod followed;
mod handover;
mod io;
mod medium;
mod member;
mod nexus;
mod outcomes;
mod perform;
mod port;
mod reserve;
mod response;
mod standby;
mod stored;
mod tokens;
mod underway;
mod unit;
mod units;

pub use admin::ReservationState;
pub use attention::UnitAttention;
pub use describe::absent;
pub use errors::sense_of;
pub use followed::Followed;
pub use handover::{ResumedUnits, UnitState};
pub(crate) use io::VERIFIED;
pub use member::AbortTasks;
pub use nexus::{Admitted, Arrival, Nexus, NexusOwner};
pub use port::{Port, Settings};
pub use reserve::{HostAction, HostChange};
pub use response::Response;
pub use standby::{StandbyState, StandbyUnit, Surroundings, UnitFacts};
pub use underway::Underway;
pub use unit::LogicalUnit;
pub use units::Units;
