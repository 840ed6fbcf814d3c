//! The knowledge of a server that waits for a pool which another server has, and its answers to logins.
//!
//! **Stale knowledge is harmless.** The rights of a session at a standby depend on the notice of the owner,
//! which is some seconds old. An initiator that has lost its access within these seconds sees at most the
//! identity and the size of units. Blocks are not accessible, and when this server takes the pool over, each
//! session is checked by the targets and the secrets in the pool before its first command.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use forebay_wire::iscsi::reply::LoginStatus;
use parking_lot::RwLock;
use serde::Deserialize;
use tokio::sync::watch;

use super::notice::Notice;
use super::waiting::{WaitingLogins, portal_for};
use crate::scsi::UnitFacts;
use crate::targets::ServedTargets;

/// What the portals of a server do while another server has the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhileStandby {
    /// The standby has not bound its portals.
    #[default]
    Closed,
    /// The portals redirect logins to the owner.
    Redirect,
    /// The portals serve sessions, whose units are in the state standby.
    Alua,
}

/// What is known about the owner of the pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Owner {
    /// No server has the pool, the owner is dead, or it has not published anything yet.
    #[default]
    Unknown,
    /// The owner is alive, and has these portals.
    Alive(Vec<SocketAddr>),
}

/// What is known about the pool to a server that waits for it.
pub struct Standby {
    mode: WhileStandby,
    targets: Arc<ServedTargets>,
    disks: RwLock<Arc<BTreeMap<String, UnitFacts>>>,
    owner: watch::Sender<Owner>,
    /// Sessions in the state standby can be served.
    serves: watch::Sender<bool>,
    waiting: WaitingLogins,
}

impl Standby {
    /// The knowledge of a server that has read nothing yet.
    pub fn new(mode: WhileStandby) -> Arc<Standby> {
        Arc::new(Standby {
            mode,
            targets: Arc::new(ServedTargets::new(Default::default())),
            disks: RwLock::default(),
            owner: watch::Sender::new(Owner::Unknown),
            serves: watch::Sender::new(false),
            waiting: WaitingLogins::default(),
        })
    }

    /// The targets that the owner published.
    pub(super) fn targets(&self) -> &Arc<ServedTargets> {
        &self.targets
    }

    /// Returns what the owner published about a disk.
    pub(super) fn disk(&self, name: &str) -> Option<UnitFacts> {
        self.disks.read().get(name).copied()
    }

    /// Records that the owner is alive, and has these portals.
    pub fn owner_is(&self, portals: &[SocketAddr]) {
        let new = Owner::Alive(portals.to_vec());
        self.owner.send_if_modified(|owner| std::mem::replace(owner, new.clone()) != new);
    }

    /// Records that there is no owner, or that it is dead.
    pub fn owner_is_unknown(&self) {
        self.owner.send_if_modified(|owner| std::mem::take(owner) != Owner::Unknown);
    }

    /// Replaces what is known about targets and disks.
    pub fn learn(&self, notice: Notice) {
        // Disks are replaced first: sessions open them when the targets change.
        *self.disks.write() = Arc::new(notice.disks);
        self.targets.replace_with_disks(notice.targets);
        self.serves.send_replace(true);
    }

    /// Refuses sessions from now on, until the next notice.
    pub fn stop_serving(&self) {
        self.serves.send_replace(false);
    }

    /// Returns the portal to which a login from `peer` has to be redirected, or `None` if it can proceed.
    /// `local` is the address that the initiator connected to. Waits a bounded time while the owner is
    /// unknown.
    pub(super) async fn admit(
        &self,
        peer: IpAddr,
        local: SocketAddr,
    ) -> Result<Option<SocketAddr>, LoginStatus> {
        let admitted = async {
            if self.mode == WhileStandby::Alua {
                // The sender is in `self`, so it cannot be dropped.
                let _ = self.serves.subscribe().wait_for(|serves| *serves).await;
                return Ok(None);
            }
            let mut owner = self.owner.subscribe();
            let known = owner.wait_for(|owner| *owner != Owner::Unknown).await;
            match known.as_deref() {
                Ok(Owner::Alive(portals)) => portal_for(portals, local).map(Some),
                _ => Err(LoginStatus::ServiceUnavailable),
            }
        };
        self.waiting.hold(peer, admitted).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::waiting::{HOLD, MAX_HELD};
    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn logins_are_redirected_to_a_living_owner() {
        let (standby, local) = (Standby::new(WhileStandby::Redirect), address("10.0.0.2:3260"));
        let (six, four) = (address("[fd00::1]:3260"), address("10.0.0.1:3260"));
        let learns = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            standby.owner_is(&[six, four]);
        };
        assert_eq!(tokio::join!(standby.admit(PEER, local), learns).0, Ok(Some(four)), "it was held");
        assert_eq!(standby.admit(PEER, address("[fd00::2]:3260")).await, Ok(Some(six)));
        standby.owner_is(&[six]);
        assert_eq!(standby.admit(PEER, local).await, Ok(Some(six)));
        standby.owner_is(&[]);
        assert_eq!(standby.admit(PEER, local).await, Err(LoginStatus::ServiceUnavailable));
        standby.owner_is_unknown();
        let begun = tokio::time::Instant::now();
        assert_eq!(standby.admit(PEER, local).await, Err(LoginStatus::ServiceUnavailable));
        assert_eq!(begun.elapsed(), HOLD);
    }

    #[tokio::test(start_paused = true)]
    async fn logins_that_wait_are_bounded_and_shared_by_addresses() {
        let (standby, local) = (Standby::new(WhileStandby::Redirect), address("10.0.0.2:3260"));
        let waiting: Vec<_> = (0..MAX_HELD)
            .map(|_| {
                let standby = standby.clone();
                tokio::spawn(async move { standby.admit(PEER, local).await })
            })
            .collect();
        while standby.waiting.len() < MAX_HELD {
            tokio::task::yield_now().await;
        }
        let begun = tokio::time::Instant::now();
        assert_eq!(standby.admit(PEER, local).await, Err(LoginStatus::ServiceUnavailable));
        let mut from_elsewhere = Box::pin(standby.admit([10, 0, 0, 9].into(), local));
        tokio::select! {
            biased;
            _ = &mut from_elsewhere => panic!("the owner is unknown"),
            () = std::future::ready(()) => {}
        }
        assert_eq!(standby.waiting.len(), MAX_HELD, "it took a place of the other address");
        assert_eq!(begun.elapsed(), Duration::ZERO);
        drop(from_elsewhere);
        for one in waiting {
            one.abort();
            let _ = one.await;
        }
        standby.owner_is(&[local]);
        assert_eq!(standby.admit(PEER, local).await, Ok(Some(local)));
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_in_standby_need_a_notice() {
        let (standby, local) = (Standby::new(WhileStandby::Alua), address("10.0.0.2:3260"));
        standby.owner_is(&[local]);
        assert_eq!(standby.admit(PEER, local).await, Err(LoginStatus::ServiceUnavailable));
        let (targets, disks) = Default::default();
        standby.learn(Notice { group: 1, portals: Vec::new(), targets, disks });
        standby.owner_is_unknown();
        assert_eq!(standby.admit(PEER, local).await, Ok(None), "also if the owner is dead");
        standby.stop_serving();
        assert_eq!(standby.admit(PEER, local).await, Err(LoginStatus::ServiceUnavailable));
    }
}
