//! The iSCSI portals of a node of a cluster: they list the targets of all shards, and redirect each login to
//! the owner of the shard that has the target.
//!
//! **Who learns what.** The answer depends on the name of the target, so it must not reveal targets. A login
//! is redirected only if the target admits the initiator by its access list. A login to an unknown target and
//! a login to a target that does not admit the initiator get the same answer, after the same work: both are
//! refused only after everything that the owners published was read again. The owner of the shard decides by
//! its own table, and authenticates the initiator; the node's knowledge of targets is older.
//!
//! **Which refusals are final.** Initiators give up when a target is not found, and repeat a login when the
//! service is unavailable. So a target is reported as not found only if the notices of all shards could be
//! read.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use forebay_wire::iscsi::reply::LoginStatus;
use parking_lot::RwLock;

use super::waiting::{WaitingLogins, portal_for};
use crate::targets::{IqnName, ServedTargets, TargetMap};

/// Interval between two looks at a shard without an owner that answers.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What the portals of a node need to know of the shards.
pub trait ShardOwners: Send + Sync + 'static {
    /// Reads what the owners of all shards have published, as of a moment after the call, into the
    /// [`ClusterTargets`]. False if some shard could not be read.
    fn refresh(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>>;

    /// Reads what the owner of one shard has published, and returns the owner's portals; `None` if no owner
    /// answers at present.
    fn owner(&self, shard: u32) -> Pin<Box<dyn Future<Output = Option<Vec<SocketAddr>>> + Send + '_>>;
}

/// The targets of all shards.
#[derive(Default)]
pub struct ClusterTargets {
    of_shards: RwLock<BTreeMap<u32, TargetMap>>,
    has_changed: AtomicBool,
    /// All of them as of the last [`ClusterTargets::publish`], for discovery.
    all: Arc<ServedTargets>,
    /// Portals of the other nodes.
    others: RwLock<Vec<SocketAddr>>,
}

impl ClusterTargets {
    /// Replaces what is known of a shard.
    pub fn learn(&self, shard: u32, targets: TargetMap) {
        let mut of_shards = self.of_shards.write();
        if of_shards.get(&shard).is_none_or(|known| *known != targets) {
            of_shards.insert(shard, targets);
            self.has_changed.store(true, Relaxed);
        }
    }

    /// Lets initiators discover what was learned. If two shards have a target of the same name, it is that of
    /// the shard with the lower number: the other one has no name in the cluster.
    pub fn publish(&self) {
        if !self.has_changed.swap(false, Relaxed) {
            return;
        }
        let mut all = TargetMap::new();
        for targets in self.of_shards.read().values() {
            for (name, target) in targets {
                all.entry(name.clone()).or_insert_with(|| target.clone());
            }
        }
        self.all.replace(all);
    }

    /// Replaces the portals of the other nodes, in the order in which initiators discover them.
    pub fn set_others(&self, portals: Vec<SocketAddr>) {
        *self.others.write() = portals;
    }

    /// The shard of a target that admits the initiator.
    fn shard_for(&self, target: &IqnName, initiator: &IqnName) -> Option<u32> {
        let of_shards = self.of_shards.read();
        let mut found = of_shards.iter().filter_map(|(shard, targets)| Some((*shard, targets.get(target)?)));
        let (shard, target) = found.next()?;
        target.admission(initiator)?;
        Some(shard)
    }
}

/// The state that the portals of a node share.
pub struct ClusterPortals {
    targets: Arc<ClusterTargets>,
    owners: Arc<dyn ShardOwners>,
    waiting: WaitingLogins,
}

impl ClusterPortals {
    /// Portals for these targets, which `owners` keeps up to date.
    pub fn new(targets: Arc<ClusterTargets>, owners: Arc<dyn ShardOwners>) -> Arc<ClusterPortals> {
        Arc::new(ClusterPortals { targets, owners, waiting: WaitingLogins::default() })
    }

    /// The targets of all shards, for discovery.
    pub(super) fn targets(&self) -> &Arc<ServedTargets> {
        &self.targets.all
    }

    /// The portals of other nodes.
    pub(super) fn others(&self) -> Vec<SocketAddr> {
        self.targets.others.read().clone()
    }

    /// Waits until the targets that existed when a discovery session began are known.
    pub(super) async fn discover(&self, peer: IpAddr) -> Result<(), LoginStatus> {
        let refreshed = async {
            // What is known is listed also if a shard cannot be read.
            self.owners.refresh().await;
            Ok(())
        };
        self.waiting.hold(peer, refreshed).await
    }

    /// The portal to which a login from `peer` is redirected. `local` is the address that the initiator
    /// connected to. Waits a bounded time while no owner of the target's shard answers.
    ///
    /// # Errors
    /// [`LoginStatus::NotFound`] if no target of this name admits the initiator;
    /// [`LoginStatus::ServiceUnavailable`] if this cannot be known, or no owner answers.
    pub(super) async fn portal_for(
        &self,
        (peer, local): (IpAddr, SocketAddr),
        initiator: &IqnName,
        target: &IqnName,
    ) -> Result<SocketAddr, LoginStatus> {
        let found = async {
            let mut is_refreshed = false;
            loop {
                let Some(shard) = self.targets.shard_for(target, initiator) else {
                    if std::mem::replace(&mut is_refreshed, true) {
                        return Err(LoginStatus::NotFound);
                    }
                    if !self.owners.refresh().await {
                        return Err(LoginStatus::ServiceUnavailable);
                    }
                    continue;
                };
                let portals = self.owners.owner(shard).await;
                // The target may have been removed, or the access of the initiator.
                let is_still = self.targets.shard_for(target, initiator) == Some(shard);
                match portals {
                    Some(portals) if is_still => return portal_for(&portals, local),
                    _ => {}
                }
                is_refreshed = false;
                if is_still {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
        };
        self.waiting.hold(peer, found).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use parking_lot::Mutex;

    use super::*;
    use crate::targets::{Initiator, Target};

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const FRIEND: &str = "iqn.2026-01.org.example:friend";
    const STRANGER: &str = "iqn.2026-01.org.example:stranger";

    /// What the owners have published, and where they answer.
    #[derive(Default)]
    struct World {
        targets: Arc<ClusterTargets>,
        published: Mutex<BTreeMap<u32, TargetMap>>,
        owners: Mutex<BTreeMap<u32, Vec<SocketAddr>>>,
        unreadable: Mutex<Vec<u32>>,
        refreshes: AtomicUsize,
    }

    impl ShardOwners for World {
        fn refresh(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
            Box::pin(async {
                self.refreshes.fetch_add(1, Relaxed);
                for (shard, targets) in self.published.lock().clone() {
                    self.targets.learn(shard, targets);
                }
                self.targets.publish();
                self.unreadable.lock().is_empty()
            })
        }

        fn owner(&self, shard: u32) -> Pin<Box<dyn Future<Output = Option<Vec<SocketAddr>>> + Send + '_>> {
            Box::pin(async move {
                let of_shard = self.published.lock().get(&shard).cloned().unwrap_or_default();
                self.targets.learn(shard, of_shard);
                self.owners.lock().get(&shard).cloned()
            })
        }
    }

    fn name(text: &str) -> IqnName {
        text.parse().unwrap()
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn target(suffix: &str, admitted: &[&str]) -> (IqnName, Arc<Target>) {
        let initiators = admitted.iter().map(|initiator| Initiator {
            name: name(initiator),
            chap: None,
            dhchap: None,
            luns: None,
        });
        let target = Target {
            name: name(&format!("iqn.2026-01.org.example:{suffix}")),
            number: 1,
            open: false,
            chap: None,
            mutual: None,
            dhchap: None,
            luns: Default::default(),
            initiators: initiators.collect(),
        };
        (target.name.clone(), Arc::new(target))
    }

    fn world() -> (Arc<World>, Arc<ClusterPortals>) {
        let world = Arc::new(World::default());
        world.published.lock().insert(1, [target("a", &[FRIEND])].into());
        world.published.lock().insert(2, [target("b", &[FRIEND, STRANGER])].into());
        world.owners.lock().insert(1, vec![address("10.0.0.1:1001")]);
        world.owners.lock().insert(2, vec![address("[fd00::2]:1002"), address("10.0.0.2:1002")]);
        let portals = ClusterPortals::new(world.targets.clone(), world.clone());
        (world, portals)
    }

    async fn login(
        portals: &ClusterPortals,
        initiator: &str,
        suffix: &str,
    ) -> Result<SocketAddr, LoginStatus> {
        let target = name(&format!("iqn.2026-01.org.example:{suffix}"));
        portals.portal_for((PEER, address("10.0.0.9:3260")), &name(initiator), &target).await
    }

    #[tokio::test(start_paused = true)]
    async fn logins_go_to_the_owner_of_the_shard_of_their_target() {
        let (world, portals) = world();
        assert_eq!(login(&portals, FRIEND, "a").await, Ok(address("10.0.0.1:1001")));
        assert_eq!(login(&portals, STRANGER, "b").await, Ok(address("10.0.0.2:1002")), "of its family");
        assert_eq!(world.refreshes.load(Relaxed), 1, "a known target needs no other shard");
        // A target that was created a moment ago.
        world.published.lock().insert(3, [target("c", &[FRIEND])].into());
        world.owners.lock().insert(3, vec![address("10.0.0.3:1003")]);
        assert_eq!(login(&portals, FRIEND, "c").await, Ok(address("10.0.0.3:1003")));
    }

    #[tokio::test(start_paused = true)]
    async fn an_invisible_target_is_answered_like_an_unknown_one() {
        let (world, portals) = world();
        for suffix in ["a", "unknown"] {
            let before = world.refreshes.load(Relaxed);
            assert_eq!(login(&portals, STRANGER, suffix).await, Err(LoginStatus::NotFound), "{suffix}");
            assert_eq!(world.refreshes.load(Relaxed), before + 1, "the same work");
        }
        // Without an owner as well.
        world.owners.lock().clear();
        let begun = tokio::time::Instant::now();
        assert_eq!(login(&portals, STRANGER, "a").await, Err(LoginStatus::NotFound));
        assert_eq!(begun.elapsed(), Duration::ZERO);
        // Access that was withdrawn is noticed before the redirection.
        assert_eq!(login(&portals, STRANGER, "b").await, Err(LoginStatus::ServiceUnavailable));
        world.owners.lock().insert(2, vec![address("10.0.0.2:1002")]);
        world.published.lock().insert(2, [target("b", &[FRIEND])].into());
        assert_eq!(login(&portals, STRANGER, "b").await, Err(LoginStatus::NotFound));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_reported_as_missing_while_a_shard_is_unknown() {
        let (world, portals) = world();
        world.unreadable.lock().push(7);
        for suffix in ["a", "unknown"] {
            assert_eq!(login(&portals, STRANGER, suffix).await, Err(LoginStatus::ServiceUnavailable));
        }
        assert_eq!(login(&portals, FRIEND, "a").await, Ok(address("10.0.0.1:1001")));
    }

    #[tokio::test(start_paused = true)]
    async fn logins_wait_for_the_next_owner() {
        let (world, portals) = world();
        world.owners.lock().remove(&1);
        let taken_over = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            world.owners.lock().insert(1, vec![address("10.0.0.3:1001")]);
        };
        assert_eq!(tokio::join!(login(&portals, FRIEND, "a"), taken_over).0, Ok(address("10.0.0.3:1001")));
        world.owners.lock().clear();
        let begun = tokio::time::Instant::now();
        assert_eq!(login(&portals, FRIEND, "a").await, Err(LoginStatus::ServiceUnavailable));
        assert_eq!(begun.elapsed(), super::super::waiting::HOLD);
    }

    #[test]
    fn notices_of_shards_are_merged() {
        let targets = ClusterTargets::default();
        let shard_of = |suffix: &str| {
            targets.shard_for(&name(&format!("iqn.2026-01.org.example:{suffix}")), &name(FRIEND))
        };
        let learn = |shard: u32, some: &[(IqnName, Arc<Target>)]| {
            targets.learn(shard, some.iter().cloned().collect());
            targets.publish();
            targets.all.snapshot().len()
        };
        assert_eq!(learn(2, &[target("a", &[FRIEND]), target("b", &[FRIEND])]), 2);
        // A target of the same name, which does not admit the initiator.
        assert_eq!(learn(1, &[target("a", &[])]), 2);
        assert_eq!((shard_of("a"), shard_of("b")), (None, Some(2)));
        let before = targets.all.last_change();
        learn(1, &[target("a", &[])]);
        assert_eq!(targets.all.last_change(), before, "nothing has changed");
        assert_eq!(learn(1, &[]), 2);
        assert_eq!(shard_of("a"), Some(2));
        assert_eq!(learn(2, &[]), 0);
        assert_eq!(shard_of("b"), None);
    }
}
