//! The leading login request, which names the initiator and the target.

use std::net::IpAddr;
use std::sync::Arc;

use forebay_wire::iscsi::reply::LoginStatus;

use super::authentication::{Authenticator, Credentials, value};
use super::context::Context;
use super::errors::Refusal;
use crate::attempts::Account;
use crate::targets::{Chap, IqnName, Target};

/// What the leading request of a login settles.
pub(super) struct Leading {
    pub initiator: IqnName,
    pub isid: [u8; 6],
    /// The target; `None` for discovery.
    pub target: Option<Arc<Target>>,
    pub authenticator: Authenticator,
}

/// The names in the leading request of a login.
pub(super) struct Named {
    pub initiator: IqnName,
    /// The target; `None` for discovery.
    pub target: Option<IqnName>,
}

impl Named {
    /// Parses the names in the keys of the request.
    ///
    /// # Errors
    /// A key is missing or invalid.
    pub fn parse(pairs: &[(&str, &str)]) -> Result<Named, Refusal> {
        let initiator = value(pairs, "InitiatorName").ok_or(LoginStatus::MissingParameter)?;
        let invalid = Refusal::new(LoginStatus::InitiatorError, "the name of the initiator is invalid");
        let parse = |name: &str| name.parse().ok().filter(|name: &IqnName| !name.is_nqn());
        let initiator = parse(initiator).ok_or(invalid)?;
        let target = match value(pairs, "SessionType").unwrap_or("Normal") {
            "Discovery" => None,
            "Normal" => {
                let name = value(pairs, "TargetName").ok_or(LoginStatus::MissingParameter)?;
                let invalid = Refusal::new(LoginStatus::NotFound, "the name of the target is invalid");
                Some(parse(name).ok_or(invalid)?)
            }
            _ => return Err(LoginStatus::SessionType.into()),
        };
        Ok(Named { initiator, target })
    }
}

impl Leading {
    /// Finds the initiator and the target that the keys of the request name.
    ///
    /// # Errors
    /// A key is missing or invalid, or the target does not exist. A target that does not admit the initiator
    /// is answered like one that does not exist.
    pub fn new(
        context: &Context,
        peer: IpAddr,
        isid: [u8; 6],
        pairs: &[(&str, &str)],
    ) -> Result<Leading, Refusal> {
        let Named { initiator, target } = Named::parse(pairs)?;
        let (target, credentials) = match target {
            None => (None, for_discovery(context, &initiator)),
            Some(name) => {
                let not_found = |reason| Refusal::new(context.unknown_target, reason);
                let target = context.targets.get(&name).ok_or(not_found("the target does not exist"))?;
                let credentials = for_target(&target, &initiator);
                let credentials = credentials.ok_or(not_found("the target does not admit this initiator"))?;
                (Some(target), credentials)
            }
        };
        let authenticator = Authenticator::new(peer, credentials, target.is_some());
        Ok(Leading { initiator, isid, target, authenticator })
    }
}

/// The credentials of an initiator for discovery: the credentials of all targets that admit it.
fn for_discovery(context: &Context, initiator: &IqnName) -> Credentials {
    let snapshot = context.targets.snapshot();
    let is_listed = snapshot.values().any(|t| t.lists(initiator));
    Credentials {
        chaps: snapshot.values().filter_map(|target| credentials_at(target, initiator)).collect(),
        account: Account { target: None, initiator: is_listed.then(|| initiator.clone()) },
    }
}

/// The credentials of an initiator at a target, and the credentials of the target; `None` if the initiator
/// needs none.
fn credentials_at(target: &Target, initiator: &IqnName) -> Option<(Chap, Option<Chap>)> {
    Some((target.admission(initiator)?.chap?.clone(), target.mutual.clone()))
}

/// The credentials of an initiator for a target; `None` if the target does not admit it.
fn for_target(target: &Target, initiator: &IqnName) -> Option<Credentials> {
    target.admission(initiator)?;
    Some(Credentials {
        chaps: credentials_at(target, initiator).into_iter().collect(),
        account: Account::at(target, initiator),
    })
}
