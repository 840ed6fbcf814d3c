//! The sessions of all threads: there is one for each initiator port and target, and not more than were allowed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_wire::iscsi::reply::LoginStatus;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::config::SessionLimits;
use crate::targets::IqnName;

/// How long a session that is to make room for its successor may take to end.
const HANDOVER: Duration = Duration::from_secs(10);

/// What identifies a session: an I_T nexus (RFC 7143, 4.4.1). Sessions of discovery have none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub initiator: IqnName,
    pub isid: [u8; 6],
    pub target: IqnName,
}

struct Live {
    tsih: u16,
    end: watch::Sender<bool>,
    /// Closed when the session is gone.
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

/// A session that is there until this is dropped.
pub(super) struct Registered {
    registry: Arc<Registry>,
    key: Key,
    /// Target session identifying handle.
    pub tsih: u16,
    /// Becomes true when another takes its place.
    pub end: watch::Receiver<bool>,
    _gone: watch::Sender<()>,
}

impl Registry {
    pub fn new(limits: SessionLimits) -> Arc<Registry> {
        Arc::new(Registry { inner: Mutex::default(), limits })
    }

    /// Whether a session with this handle is there.
    pub fn has(&self, tsih: u16) -> bool {
        self.inner.lock().sessions.values().any(|live| live.tsih == tsih)
    }

    /// Begins a session. One with the same key ends first: its initiator has lost it (RFC 7143, 6.3.5).
    pub async fn begin(self: &Arc<Self>, key: Key) -> Result<Registered, LoginStatus> {
        let handover = async {
            loop {
                let mut gone = match self.enter(&key)? {
                    Ok(registered) => return Ok(registered),
                    Err(gone) => gone,
                };
                // Nothing is ever sent: it ends when the session does.
                let _ = gone.changed().await;
            }
        };
        tokio::time::timeout(HANDOVER, handover).await.unwrap_or(Err(LoginStatus::OutOfResources))
    }

    /// A place for the session; or, where another has it, what tells of its end.
    #[allow(clippy::type_complexity)]
    fn enter(self: &Arc<Self>, key: &Key) -> Result<Result<Registered, watch::Receiver<()>>, LoginStatus> {
        let mut inner = self.inner.lock();
        if let Some(live) = inner.sessions.get(key) {
            live.end.send_replace(true);
            return Ok(Err(live.gone.clone()));
        }
        let of_initiator = inner.sessions.keys().filter(|k| k.initiator == key.initiator).count();
        if inner.sessions.len() >= self.limits.all || of_initiator >= self.limits.per_initiator {
            return Err(LoginStatus::OutOfResources);
        }
        let tsih = loop {
            inner.last_tsih = inner.last_tsih.wrapping_add(1);
            let tsih = inner.last_tsih;
            if tsih != 0 && inner.sessions.values().all(|live| live.tsih != tsih) {
                break tsih;
            }
        };
        let (end, end_rx) = watch::channel(false);
        let (gone, gone_rx) = watch::channel(());
        inner.sessions.insert(key.clone(), Live { tsih, end, gone: gone_rx });
        Ok(Ok(Registered { registry: self.clone(), key: key.clone(), tsih, end: end_rx, _gone: gone }))
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
        Key {
            initiator: initiator.parse().unwrap(),
            isid: [isid; 6],
            target: "iqn.2026-01.org.example:t".parse().unwrap(),
        }
    }

    #[tokio::test]
    async fn a_session_makes_room_for_its_successor() {
        let registry = Registry::new(SessionLimits { all: 9, per_initiator: 9 });
        let mut first = registry.begin(key("iqn.2026-01.org.example:a", 1)).await.unwrap();
        let ended = tokio::spawn(async move {
            first.end.wait_for(|end| *end).await.unwrap();
            first.tsih
        });
        let second = registry.begin(key("iqn.2026-01.org.example:a", 1)).await.unwrap();
        assert_ne!(ended.await.unwrap(), second.tsih);
        assert!(registry.has(second.tsih));
        drop(second);
        assert_eq!(registry.inner.lock().sessions.len(), 0);
    }

    #[tokio::test]
    async fn there_are_limits() {
        let registry = Registry::new(SessionLimits { all: 3, per_initiator: 2 });
        let a = "iqn.2026-01.org.example:a";
        let _one = registry.begin(key(a, 1)).await.unwrap();
        let _two = registry.begin(key(a, 2)).await.unwrap();
        assert!(registry.begin(key(a, 3)).await.is_err());
        let _three = registry.begin(key("iqn.2026-01.org.example:b", 1)).await.unwrap();
        assert!(registry.begin(key("iqn.2026-01.org.example:c", 1)).await.is_err());
    }
}
