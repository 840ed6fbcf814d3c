//! The iSCSI target (RFC 7143): sessions of initiators, served from the logical units of [`crate::scsi`].
//!
//! A `connection` logs in (`login`: `leading` handles the first request, `authentication` CHAP with `chap`
//! and [`crate::attempts`]), which starts a session (`registry`). A session has one connection, and error
//! recovery level 0. Then its PDUs are served (`session`): commands (`command`), whose data is gathered by
//! `gather` and which run in a `task`, their `management`, and text requests (`text`, `discovery`). `link`
//! numbers and sends PDUs. `lun_map` holds the units that the initiator sees; `watch` reports events that the
//! initiator does not cause. `handover` passes sessions to another process.
//!
//! A server that waits for a pool in Ceph can redirect logins to the pool's owner, or serve sessions in the
//! state standby (`standby`), by the `notice` of the owner. `groups` are the servers' target port groups. The
//! portals of a node of a cluster redirect logins by target (`cluster`). `waiting` bounds logins that wait.
//!
//! `context` is the input of a connection and of a session, `limits` their limits, `errors` the reasons why a
//! connection ends. `listen` starts it all.

mod authentication;
mod chap;
mod cluster;
mod command;
mod connection;
mod context;
mod discovery;
mod errors;
mod gather;
mod groups;
mod handover;
mod leading;
mod limits;
mod link;
mod listen;
mod login;
mod lun_map;
mod management;
mod notice;
mod registry;
mod session;
mod standby;
mod task;
mod text;
mod waiting;
mod watch;

pub use chap::Algorithm;
pub use cluster::{ClusterPortals, ClusterTargets, ShardOwners};
pub use context::Disks;
pub use groups::PortGroups;
pub use listen::{Settings, follow, listen, listen_as_standby, listen_for_cluster};
pub use notice::{Notice, Record, portals_of};
pub use registry::SessionLimits;
pub use standby::{Standby, WhileStandby};

pub use crate::attempts::{KnownHosts, remember};
