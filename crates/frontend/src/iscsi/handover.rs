//! The state of a session that is handed over to another process, in addition to its bytes and to the state
//! that its logical units keep for it ([`crate::scsi::UnitState`]).
//!
//! A session is handed over while no command is under way. Results of third-party copies that the initiator
//! has not read, and tokens, are dropped: the initiator then copies the data itself.

use std::net::IpAddr;
use std::sync::Arc;

use forebay_wire::iscsi::{Digests, Parameters};
use serde::{Deserialize, Serialize};

use super::context::{Context, Continued, KnownDisks, LoggedIn, StandbyStates};
use super::registry::Key;
use crate::attempts::Account;
use crate::plane::Received;
use crate::targets::{Chap, IqnName};

/// State of a session that is handed over.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HandedOver {
    pub initiator: IqnName,
    pub isid: [u8; 6],
    pub target: IqnName,
    pub tsih: u16,
    /// The credentials with which the initiator authenticated itself, if it did.
    pub proved: Option<Chap>,
    #[serde(with = "ParametersFields")]
    pub parameters: Parameters,
    pub stat_sn: u32,
    pub exp_cmd_sn: u32,
    pub transfer_tag: u32,
    /// The time of login, in Unix milliseconds.
    pub since_ms: u64,
    /// The units of a session that began while another server had the pool; only set within one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby: Option<StandbyStates>,
    #[serde(default, skip_serializing_if = "KnownDisks::is_empty")]
    pub known: KnownDisks,
}

/// The fields of [`Parameters`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Parameters", deny_unknown_fields)]
struct ParametersFields {
    #[serde(with = "DigestsFields")]
    digests: Digests,
    initial_r2t: bool,
    immediate_data: bool,
    max_send: usize,
    max_burst: usize,
    first_burst: usize,
    max_outstanding_r2t: usize,
}

/// The fields of [`Digests`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Digests", deny_unknown_fields)]
struct DigestsFields {
    header: bool,
    data: bool,
}

impl HandedOver {
    /// Decodes and checks the state of a session.
    pub fn parse(state: serde_json::Value) -> Result<HandedOver, String> {
        let state: HandedOver = serde_json::from_value(state).map_err(|e| e.to_string())?;
        let p = &state.parameters;
        if [p.max_send, p.max_burst, p.max_outstanding_r2t].contains(&0) {
            return Err("a parameter of its session is 0".into());
        }
        Ok(state)
    }

    /// Registers the session of an initiator at this address.
    pub fn resume(self, context: &Arc<Context>, peer: IpAddr) -> Result<LoggedIn, String> {
        let target = context.targets.get(&self.target);
        let target = target.ok_or_else(|| format!("target {} does not exist any more", self.target))?;
        let key = Key { initiator: self.initiator.clone(), isid: self.isid, target: self.target };
        let registered = context.registry.resume(key, peer, self.tsih);
        let registered = registered.ok_or("its session exists already")?;
        if self.proved.is_some() {
            context.attempts.know(&Account::at(&target, &self.initiator), peer);
        }
        Ok(LoggedIn {
            initiator: self.initiator,
            isid: self.isid,
            session: Some((target, registered)),
            proved: self.proved,
            parameters: self.parameters,
            stat_sn: self.stat_sn,
            exp_cmd_sn: self.exp_cmd_sn,
            received: Received::default(),
            continued: Some(Continued {
                since_ms: self.since_ms,
                transfer_tag: self.transfer_tag,
                standby: self.standby,
                known: self.known,
                until_resumed: Arc::new(()),
            }),
        })
    }
}
