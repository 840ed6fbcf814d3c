//! The iSCSI target (RFC 7143): sessions of initiators, served from the logical units of [`crate::scsi`].
//!
//! A `connection` logs in (`login`: `leading` handles the first request, `authentication` CHAP with `chap`
//! and `attempts`), which starts a session (`registry`). A session has one connection, and error recovery
//! level 0. Then its PDUs are served (`session`): commands (`command`), whose data is gathered by `gather`
//! and which run in a `task`, their `management`, and text requests (`text`, `discovery`). `link` numbers and
//! sends PDUs. `lun_map` holds the units that the initiator sees; `watch` reports events that the initiator
//! does not cause. `handover` passes sessions to another process.
//!
//! `context` is the input of a connection and of a session, `limits` their limits, `errors` the reasons why a
//! connection ends. `listen` starts it all.

mod attempts;
mod authentication;
mod chap;
mod command;
mod connection;
mod context;
mod discovery;
mod errors;
mod gather;
mod handover;
mod leading;
mod limits;
mod link;
mod listen;
mod login;
mod lun_map;
mod management;
mod registry;
mod session;
mod task;
mod text;
mod watch;

pub use chap::Algorithm;
pub use listen::{follow, listen};
