//! The sessions of all threads: at most one for each initiator port and target, within the configured limits.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_wire::iscsi::reply::LoginStatus;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::config::SessionLimits;
use crate::plane::network;
use crate::targets::IqnName;

/// Time limit for the end of a session that a new one replaces.
const HANDOVER: Duration = Duration::from_secs(10);

/// The identity of a session: an I_T nexus (RFC 7143, 4.4.1). Discovery sessions have none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub initiator: IqnName,
    pub isid: [u8; 6],
    pub target: IqnName,
}

struct Live {
    tsih: u16,
    /// The address that counts.
    address: IpAddr,
    end: watch::Sender<bool>,
    /// Closed when the session has ended.
    gone: watch::Receiver<()>,
}

#[derive(Default)]
struct Inner {
    sessions: HashMap<Key, Live>,
    last_tsih: u16,
}

/// All sessions.
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
    /// Becomes true when a new session is to replace this one.
    pub end: watch::Receiver<bool>,
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
    /// `OutOfResources` if a limit is reached, or the existing session does not end in time.
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
        let (end, end_rx) = watch::channel(false);
        let (gone, gone_rx) = watch::channel(());
        inner.sessions.insert(key.clone(), Live { tsih, address, end, gone: gone_rx });
        Registered { registry: self.clone(), key, tsih, end: end_rx, _gone: gone }
    }

    /// Registers a session; or, if one with the same key exists, ends that and returns the signal of its end.
    #[allow(clippy::type_complexity)]
    fn enter(
        self: &Arc<Self>,
        key: &Key,
        peer: IpAddr,
    ) -> Result<Result<Registered, watch::Receiver<()>>, LoginStatus> {
        let mut inner = self.inner.lock();
        if let Some(live) = inner.sessions.get(key) {
            live.end.send_replace(true);
            return Ok(Err(live.gone.clone()));
        }
        let address = network(peer);
        let of_initiator = |k: &&Key| (&k.initiator, &k.target) == (&key.initiator, &key.target);
        let of_initiator = inner.sessions.keys().filter(of_initiator).count();
        let of_address = inner.sessions.values().filter(|live| live.address == address).count();
        if inner.sessions.len() >= self.limits.all
            || of_initiator >= self.limits.per_initiator
            || of_address >= self.limits.per_address
        {
            return Err(LoginStatus::OutOfResources);
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
            first.end.wait_for(|end| *end).await.unwrap();
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
        // A peer that claims the name at one target does not exclude the initiator from another one.
        let _other = registry.begin(at_target("a", 3, "u"), host(1)).await.unwrap();
        let _last = registry.begin(key("b", 1), host(1)).await.unwrap();
        assert!(registry.begin(key("c", 1), host(1)).await.is_err());
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
