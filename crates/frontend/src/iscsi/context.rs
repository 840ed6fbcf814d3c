//! The input of a connection, and of its session.

use std::any::Any;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use forebay_engine::Pool;
use forebay_wire::iscsi::Parameters;
use forebay_wire::iscsi::reply::LoginStatus;

use super::chap::Algorithm;
use super::cluster::ClusterPortals;
use super::groups::PortGroups;
use super::registry::{Registered, Registry};
use super::standby::Standby;
use crate::attempts::Attempts;
use crate::plane::{ListenAddr, Received};
use crate::scsi::{StandbyState, Units};
use crate::targets::{Chap, IqnName, ServedTargets, Target};

/// What an initiator has observed of units in the state standby, by LUN.
pub(super) type StandbyStates = BTreeMap<u16, StandbyState>;

/// The disks that an initiator has identified, by LUN: their UUIDs.
pub(super) type KnownDisks = BTreeMap<u16, [u8; 16]>;

/// The disks to which the targets map.
pub enum Disks {
    /// The disks are those of the pool that this server has.
    Own {
        /// The pool whose disks are served.
        pool: Arc<Pool>,
        /// The open units of the pool.
        units: Arc<Units>,
    },
    /// The disks are those of a pool that another server has.
    OfOther(Arc<Standby>),
    /// The disks are those of the shards of a cluster; sessions are redirected to their owners.
    OfCluster(Arc<ClusterPortals>),
}

impl Disks {
    /// Whether another server has opened the pool.
    pub(super) fn are_lost(&self) -> bool {
        matches!(self, Disks::Own { pool, .. } if pool.is_fenced())
    }
}

/// The input of each connection.
pub(super) struct Context {
    pub disks: Disks,
    pub targets: Arc<ServedTargets>,
    pub groups: Arc<PortGroups>,
    pub registry: Arc<Registry>,
    pub attempts: Attempts,
    /// Hash functions that CHAP may use.
    pub chap_algorithms: Vec<Algorithm>,
    /// Addresses that initiators discover; `None` for the addresses in `portals`.
    pub announced: Option<Vec<SocketAddr>>,
    /// Addresses on which the server listens. Set before the first connection.
    pub portals: OnceLock<Vec<ListenAddr>>,
    /// The answer to logins to a target that does not exist, or does not admit the initiator.
    pub unknown_target: LoginStatus,
}

/// The result of a login.
pub(super) struct LoggedIn {
    pub initiator: IqnName,
    pub isid: [u8; 6],
    /// The target; `None` for a discovery session.
    pub session: Option<(Arc<Target>, Registered)>,
    /// The credentials with which the initiator authenticated itself, if it did.
    pub proved: Option<Chap>,
    pub parameters: Parameters,
    /// The next status number and command number.
    pub stat_sn: u32,
    pub exp_cmd_sn: u32,
    /// Bytes that were received after the login.
    pub received: Received,
    /// Set for a session that logged in to another process.
    pub continued: Option<Continued>,
}

/// A session that another process began.
pub(super) struct Continued {
    /// The time of login, in Unix milliseconds.
    pub since_ms: u64,
    pub transfer_tag: u32,
    /// The units of a session that began while another server had the pool, by LUN.
    pub standby: Option<StandbyStates>,
    pub known: KnownDisks,
    /// Dropped when the continued session has opened its units.
    #[expect(dead_code, reason = "held until it is dropped")]
    pub until_resumed: Arc<dyn Any + Send + Sync>,
}
