//! The knowledge of a server that waits for the pool of another one, and its answer to logins.
//!
//! **Stale knowledge is harmless.** What a session can do here depends on what the owner published, which is
//! some seconds old. It reveals at most the identity and the size of units to an initiator that has lost its
//! access within these seconds. Blocks are not accessible, and when this server takes the pool over, each
//! session is checked by the targets and the secrets in the pool before its first command.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use forebay_wire::iscsi::reply::LoginStatus;
use parking_lot::RwLock;
use tokio::sync::watch;

use super::notice::Notice;
use crate::config::WhileStandby;
use crate::scsi::UnitFacts;
use crate::targets::ServedTargets;

/// Longest time for which a login waits for an owner.
const HOLD: Duration = Duration::from_secs(15);
/// Most logins that wait; others are refused at once.
const MAX_HELD: usize = 256;

/// What is known of the owner of the pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Owner {
    /// No server has the pool, the owner is dead, or it has not published anything yet.
    #[default]
    Unknown,
    /// It is alive, and has these portals.
    Alive(Vec<SocketAddr>),
}

/// The knowledge of a server that waits.
pub struct Standby {
    mode: WhileStandby,
    targets: Arc<ServedTargets>,
    disks: RwLock<Arc<BTreeMap<String, UnitFacts>>>,
    owner: watch::Sender<Owner>,
    /// Sessions in the state standby can be served.
    serves: watch::Sender<bool>,
    held: AtomicUsize,
}

impl Standby {
    /// A server that has read nothing yet.
    pub fn new(mode: WhileStandby) -> Arc<Standby> {
        Arc::new(Standby {
            mode,
            targets: Arc::new(ServedTargets::new(Default::default())),
            disks: RwLock::default(),
            owner: watch::Sender::new(Owner::Unknown),
            serves: watch::Sender::new(false),
            held: AtomicUsize::new(0),
        })
    }

    /// The targets that the owner published.
    pub(super) fn targets(&self) -> &Arc<ServedTargets> {
        &self.targets
    }

    /// What is known of a disk.
    pub(super) fn disk(&self, name: &str) -> Option<UnitFacts> {
        self.disks.read().get(name).copied()
    }

    /// The owner is alive, and published this.
    pub fn owner_is(&self, portals: &[SocketAddr]) {
        let new = Owner::Alive(portals.to_vec());
        self.owner.send_if_modified(|owner| std::mem::replace(owner, new.clone()) != new);
    }

    /// There is no owner, or it is dead.
    pub fn owner_is_unknown(&self) {
        self.owner.send_if_modified(|owner| std::mem::take(owner) != Owner::Unknown);
    }

    /// Replaces what is known of targets and disks.
    pub fn learn(&self, notice: Notice) {
        // Disks first: sessions open them when the targets change.
        *self.disks.write() = Arc::new(notice.disks);
        self.targets.replace(notice.targets);
        self.serves.send_replace(true);
    }

    /// Sessions are refused from now on, until the next notice.
    pub fn stop_serving(&self) {
        self.serves.send_replace(false);
    }

    /// Returns the portal to which a login has to be redirected, or `None` if it can proceed. `local` is the
    /// address that the initiator connected to. Waits a bounded time while the owner is unknown.
    pub(super) async fn admit(&self, local: SocketAddr) -> Result<Option<SocketAddr>, LoginStatus> {
        let _held = self.hold()?;
        let admitted = async {
            if self.mode == WhileStandby::Alua {
                // The sender is in `self`.
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
        tokio::time::timeout(HOLD, admitted).await.unwrap_or(Err(LoginStatus::ServiceUnavailable))
    }

    fn hold(&self) -> Result<Held<'_>, LoginStatus> {
        let held = Held(&self.held);
        match self.held.fetch_add(1, SeqCst) < MAX_HELD {
            true => Ok(held),
            false => Err(LoginStatus::ServiceUnavailable),
        }
    }
}

/// A portal, of the same address family if possible.
fn portal_for(portals: &[SocketAddr], local: SocketAddr) -> Result<SocketAddr, LoginStatus> {
    let alike = portals.iter().find(|portal| portal.is_ipv4() == local.is_ipv4());
    alike.or(portals.first()).copied().ok_or(LoginStatus::ServiceUnavailable)
}

/// Counts a login that may wait, until it is dropped.
struct Held<'a>(&'a AtomicUsize);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(tokio::join!(standby.admit(local), learns).0, Ok(Some(four)), "it was held");
        assert_eq!(standby.admit(address("[fd00::2]:3260")).await, Ok(Some(six)));
        standby.owner_is(&[six]);
        assert_eq!(standby.admit(local).await, Ok(Some(six)));
        standby.owner_is(&[]);
        assert_eq!(standby.admit(local).await, Err(LoginStatus::ServiceUnavailable));
        standby.owner_is_unknown();
        let begun = tokio::time::Instant::now();
        assert_eq!(standby.admit(local).await, Err(LoginStatus::ServiceUnavailable));
        assert_eq!(begun.elapsed(), HOLD);
    }

    #[tokio::test(start_paused = true)]
    async fn logins_that_wait_are_bounded() {
        let (standby, local) = (Standby::new(WhileStandby::Redirect), address("10.0.0.2:3260"));
        let waiting: Vec<_> = (0..MAX_HELD)
            .map(|_| {
                let standby = standby.clone();
                tokio::spawn(async move { standby.admit(local).await })
            })
            .collect();
        while standby.held.load(SeqCst) < MAX_HELD {
            tokio::task::yield_now().await;
        }
        let begun = tokio::time::Instant::now();
        assert_eq!(standby.admit(local).await, Err(LoginStatus::ServiceUnavailable));
        assert_eq!(begun.elapsed(), Duration::ZERO);
        for one in waiting {
            one.abort();
            let _ = one.await;
        }
        standby.owner_is(&[local]);
        assert_eq!(standby.admit(local).await, Ok(Some(local)));
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_in_standby_need_a_notice() {
        let (standby, local) = (Standby::new(WhileStandby::Alua), address("10.0.0.2:3260"));
        standby.owner_is(&[local]);
        assert_eq!(standby.admit(local).await, Err(LoginStatus::ServiceUnavailable));
        let (targets, disks) = Default::default();
        standby.learn(Notice { group: 1, portals: Vec::new(), targets, disks });
        standby.owner_is_unknown();
        assert_eq!(standby.admit(local).await, Ok(None), "also if the owner is dead");
        standby.stop_serving();
        assert_eq!(standby.admit(local).await, Err(LoginStatus::ServiceUnavailable));
    }
}
