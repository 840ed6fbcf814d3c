//! The SCSI device server: what a logical unit does with a command, whatever transport it came by.
//!
//! A [`LogicalUnit`] is one disk, shared by all sessions that use it, on all threads: it holds what they have
//! in common, reservations (`reserve`), mode parameters, tokens of its contents (`tokens`). A [`Nexus`] is
//! one session's access to it. A transport has each command pass [`Nexus::admit`], which decodes it and
//! checks everything that is checked before a command begins; what comes out it may carry out itself, if it
//! is a plain read or write, or hand to [`Nexus::perform`]. `io` reads and changes what a disk holds (`medium`
//! where that depends on what is there), `copy` copies it. Who has others' commands aborted waits for
//! those that change something (`underway`). `oversee` is for administrators.
//!
//! Locks are short, never held across an await, and none is held while a transport is called. In the order in
//! which they may be taken: a unit's reservations, its reserver, its members, a member's attentions.

mod attention;
mod copy;
mod io;
mod medium;
mod nexus;
mod oversee;
mod perform;
mod reserve;
mod response;
mod stored;
mod tokens;
mod underway;
mod unit;

pub use attention::UnitAttention;
pub use nexus::{Admitted, Nexus};
pub use oversee::ReservationState;
pub use response::{Response, absent, sense_of};
pub use underway::Underway;
pub use unit::{LogicalUnit, Port, Session, Settings, Units};
