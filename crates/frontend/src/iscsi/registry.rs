//! The sessions of all threads: at most one for each initiator port and target, within the configured limits.
//!
//! **Shares.** Any client can begin sessions at a target without CHAP. So when a limit is reached, a new
//! session is not simply refused. It replaces a session of the target that has most sessions, and of these a
//! session of the address that has most. It is refused if it belongs to this target and address itself. The
//! hosts of other targets, and other hosts of the same target, keep their sessions and can begin new ones.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_wire::iscsi::reply::LoginStatus;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::plane::network;
use crate::targets::IqnName;

/// Time limit for the end of a session that a new session replaces.
const HANDOVER: Duration = Duration::from_secs(10);

/// The identity of a session: an I_T nexus (RFC 7143, 4.4.1). Discovery sessions have no identity.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub initiator: IqnName,
    pub isid: [u8; 6],
    pub target: IqnName,
}

struct Live {
    tsih: u16,
    /// The address or network under which the session is counted.
    address: IpAddr,
    /// Number of the session; larger for a session that began later.
    number: u64,
    end: watch::Sender<Option<&'static str>>,
    /// Closed when the session has ended.
    gone: watch::Receiver<()>,
}

impl Live {
    /// Ends the session. Returns the signal of its end.
    fn make_place(&self, why: &'static str) -> watch::Receiver<()> {
        self.end.send_replace(Some(why));
        self.gone.clone()
    }
}

#[derive(Default)]
struct Inner {
    sessions: HashMap<Key, Live>,
    last_tsih: u16,
    last_number: u64,
}

impl Inner {
    /// Returns the session whose place a new session takes, among the sessions for which `is_meant` is true;
    /// `None` if the new session belongs to the target and the address that have most of them. Of an address,
    /// the session that began last is chosen.
    fn displaced(&self, key: &Key, address: IpAddr, is_meant: impl Fn(&Key) -> bool) -> Option<&Live> {
        let meant = || self.sessions.iter().filter(|(other, _)| is_meant(other));
        let of_targets = count(meant().map(|(other, _)| &other.target));
        let (most, sessions) = of_targets.iter().max_by_key(|(_, sessions)| **sessions)?;
        let own = of_targets.get(&key.target).copied().unwrap_or(0);
        let is_elsewhere = *sessions > own + 1;
        let target = if is_elsewhere { *most } else { &key.target };
        let at_target = || meant().filter(|(other, _)| other.target == *target).map(|(_, live)| live);
        let of_addresses = count(at_target().map(|live| live.address));
        let (most, sessions) = of_addresses.iter().max_by_key(|(_, sessions)| **sessions)?;
        let own = of_addresses.get(&address).copied().unwrap_or(0);
        if !is_elsewhere && *sessions <= own + 1 {
            return None;
        }
        at_target().filter(|live| live.address == *most).max_by_key(|live| live.number)
    }
}

fn count<T: Eq + Hash>(all: impl Iterator<Item = T>) -> HashMap<T, usize> {
    let mut counts = HashMap::new();
    all.for_each(|one| *counts.entry(one).or_default() += 1);
    counts
}

/// Limits on sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// Maximum number of sessions in total.
    pub all: usize,
    /// Maximum number of sessions of one initiator at one target. The name of an initiator is no proof of its
    /// identity: with one number for all targets, sessions at an open target could exclude the initiator from
    /// the others.
    pub per_initiator: usize,
    /// Maximum number of sessions from one address, or one /64 network of IPv6.
    pub per_address: usize,
}

/// The registry of all sessions.
pub(super) struct Registry {
    inner: Mutex<Inner>,
    limits: SessionLimits,
}

/// A registered session. Dropping it ends the registration.
pub(super) struct Registered {
    registry: Arc<Registry>,
    key: Key,
    /// Target session identifying handle.
    pub tsih: u16,
    /// Set to the reason when this session has to end because a new session replaces it.
    pub end: watch::Receiver<Option<&'static str>>,
    _gone: watch::Sender<()>,
}

impl Registry {
    pub fn new(limits: SessionLimits) -> Arc<Registry> {
        Arc::new(Registry { inner: Mutex::default(), limits })
    }

    /// Whether a session with this handle exists.
    pub fn has(&self, tsih: u16) -> bool {
        self.inner.lock().sessions.values().any(|live| live.tsih == tsih)
    }

    /// Begins a session from an address. An existing session with the same key ends first (session
    /// reinstatement, RFC 7143, 6.3.5).
    ///
    /// # Errors
    /// `OutOfResources` if a limit is reached, or the session whose place it takes does not end in time.
    pub async fn begin(self: &Arc<Self>, key: Key, peer: IpAddr) -> Result<Registered, LoginStatus> {
        let handover = async {
            loop {
                let mut gone = match self.enter(&key, peer)? {
                    Ok(registered) => return Ok(registered),
                    Err(gone) => gone,
                };
                // No value is ever sent: this returns when the session ends.
                let _ = gone.changed().await;
            }
        };
        tokio::time::timeout(HANDOVER, handover).await.unwrap_or(Err(LoginStatus::OutOfResources))
    }

    /// Registers a session of another process under its handle; `None` if the session exists.
    pub fn resume(self: &Arc<Self>, key: Key, peer: IpAddr, tsih: u16) -> Option<Registered> {
        let mut inner = self.inner.lock();
        if tsih == 0 || inner.sessions.contains_key(&key) || inner.sessions.values().any(|l| l.tsih == tsih) {
            return None;
        }
        inner.last_tsih = inner.last_tsih.max(tsih);
        Some(self.register(&mut inner, key, network(peer), tsih))
    }

    fn register(self: &Arc<Self>, inner: &mut Inner, key: Key, address: IpAddr, tsih: u16) -> Registered {
        let (end, end_rx) = watch::channel(None);
        let (gone, gone_rx) = watch::channel(());
        inner.last_number += 1;
        let live = Live { tsih, address, number: inner.last_number, end, gone: gone_rx };
        inner.sessions.insert(key.clone(), live);
        Registered { registry: self.clone(), key, tsih, end: end_rx, _gone: gone }
    }

    /// Registers a session. If the session with the same key or another session has to make place for it,
    /// ends that session and returns the signal of its end.
    #[allow(clippy::type_complexity)]
    fn enter(
        self: &Arc<Self>,
        key: &Key,
        peer: IpAddr,
    ) -> Result<Result<Registered, watch::Receiver<()>>, LoginStatus> {
        let mut inner = self.inner.lock();
        if let Some(live) = inner.sessions.get(key) {
            return Ok(Err(live.make_place("a new session of the same initiator replaced it")));
        }
        let address = network(peer);
        let is_of_initiator = |k: &Key| (&k.initiator, &k.target) == (&key.initiator, &key.target);
        let of_initiator = inner.sessions.keys().filter(|k| is_of_initiator(k)).count();
        let of_address = inner.sessions.values().filter(|live| live.address == address).count();
        if of_address >= self.limits.per_address {
            return Err(LoginStatus::OutOfResources);
        }
        let is_full_for_initiator = of_initiator >= self.limits.per_initiator;
        if is_full_for_initiator || inner.sessions.len() >= self.limits.all {
            let is_meant = |other: &Key| !is_full_for_initiator || is_of_initiator(other);
            let displaced = inner.displaced(key, address, is_meant).ok_or(LoginStatus::OutOfResources)?;
            return Ok(
                Err(displaced.make_place("its address has most sessions, and another host needs one")),
            );
        }
        let tsih = loop {
            inner.last_tsih = inner.last_tsih.wrapping_add(1);
            let tsih = inner.last_tsih;
            if tsih != 0 && inner.sessions.values().all(|live| live.tsih != tsih) {
                break tsih;
            }
        };
        Ok(Ok(self.register(&mut inner, key.clone(), address, tsih)))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.registry.inner.lock().sessions.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    fn key(initiator: &str, isid: u8) -> Key {
        at_target(initiator, isid, "t")
    }

    fn at_target(initiator: &str, isid: u8, target: &str) -> Key {
        let [initiator, target] = [initiator, target].map(|name| format!("iqn.2026-01.org.example:{name}"));
        Key { initiator: initiator.parse().unwrap(), isid: [isid; 6], target: target.parse().unwrap() }
    }

    fn host(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    #[tokio::test]
    async fn a_new_session_replaces_one_with_the_same_key() {
        let registry = Registry::new(SessionLimits { all: 9, per_initiator: 9, per_address: 9 });
        let mut first = registry.begin(key("a", 1), host(1)).await.unwrap();
        let ended = tokio::spawn(async move {
            first.end.wait_for(Option::is_some).await.unwrap();
            first.tsih
        });
        let second = registry.begin(key("a", 1), host(1)).await.unwrap();
        assert_ne!(ended.await.unwrap(), second.tsih);
        assert!(registry.has(second.tsih));
        drop(second);
        assert_eq!(registry.inner.lock().sessions.len(), 0);
    }

    #[tokio::test]
    async fn sessions_are_limited_in_all_and_per_initiator_and_target() {
        let registry = Registry::new(SessionLimits { all: 4, per_initiator: 2, per_address: 9 });
        let _one = registry.begin(key("a", 1), host(1)).await.unwrap();
        let _two = registry.begin(key("a", 2), host(1)).await.unwrap();
        assert!(registry.begin(key("a", 3), host(1)).await.is_err());
        // A peer that claims the initiator's name at one target does not exclude the initiator from another
        // target.
        let _other = registry.begin(at_target("a", 3, "u"), host(1)).await.unwrap();
        let _last = registry.begin(key("b", 1), host(1)).await.unwrap();
        assert!(registry.begin(key("c", 1), host(1)).await.is_err());
    }

    /// Holds sessions that end when they have to make place; the channel reports their initiators.
    async fn hold(
        registry: &Arc<Registry>,
        sessions: &[(Key, IpAddr)],
        ended: &mpsc::UnboundedSender<IqnName>,
    ) {
        for (key, peer) in sessions {
            let mut one = registry.begin(key.clone(), *peer).await.unwrap();
            let ended = ended.clone();
            tokio::spawn(async move {
                one.end.wait_for(Option::is_some).await.unwrap();
                ended.send(one.key.initiator.clone()).unwrap();
            });
        }
    }

    #[tokio::test]
    async fn a_new_session_takes_the_place_of_the_target_and_address_with_most() {
        let registry = Registry::new(SessionLimits { all: 6, per_initiator: 9, per_address: 9 });
        let (ended, mut reported) = mpsc::unbounded_channel();
        let flood = [("a", 1), ("b", 1), ("c", 2), ("d", 2), ("e", 2)].map(|(i, h)| (key(i, 1), host(h)));
        hold(&registry, &flood, &ended).await;
        hold(&registry, &[(at_target("f", 1, "u"), host(3))], &ended).await;
        // The next sessions are at another target, and of another host at the same target.
        let _one = registry.begin(at_target("g", 1, "u"), host(3)).await.unwrap();
        assert_eq!(reported.recv().await, Some(key("e", 1).initiator), "the last one of host 2");
        hold(&registry, &[(key("h", 1), host(4))], &ended).await;
        let displaced = reported.recv().await;
        assert!(
            [key("b", 1).initiator, key("d", 1).initiator].map(Some).contains(&displaced),
            "{displaced:?}"
        );
        // Host 2 has as many sessions as any host, so it is refused.
        assert!(registry.begin(key("i", 1), host(2)).await.is_err());
        assert!(reported.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_claimed_name_does_not_exclude_the_initiator_from_its_target() {
        let registry = Registry::new(SessionLimits { all: 99, per_initiator: 3, per_address: 9 });
        let (ended, mut reported) = mpsc::unbounded_channel();
        let claimed: Vec<_> = (1..=3).map(|isid| (key("a", isid), host(1))).collect();
        hold(&registry, &claimed, &ended).await;
        hold(&registry, &[(key("b", 1), host(1))], &ended).await;
        let _real = registry.begin(key("a", 9), host(2)).await.unwrap();
        assert_eq!(reported.recv().await, Some(key("a", 1).initiator));
        assert!(registry.begin(key("a", 8), host(1)).await.is_err());
    }

    #[tokio::test]
    async fn sessions_are_limited_per_address() {
        let registry = Registry::new(SessionLimits { all: 9, per_initiator: 9, per_address: 2 });
        let _one = registry.begin(key("a", 1), host(1)).await.unwrap();
        let _two = registry.resume(key("b", 1), host(1), 7).unwrap();
        assert!(registry.begin(key("c", 1), host(1)).await.is_err());
        let _three = registry.begin(key("c", 1), host(2)).await.unwrap();
        let networks = ["2001:db8::1", "2001:db8::2", "2001:db8::3"].map(|ip| ip.parse().unwrap());
        let _four = registry.begin(key("d", 1), networks[0]).await.unwrap();
        let _five = registry.begin(key("e", 1), networks[1]).await.unwrap();
        assert!(registry.begin(key("f", 1), networks[2]).await.is_err());
    }
}
