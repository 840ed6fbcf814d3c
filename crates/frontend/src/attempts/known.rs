//! The addresses from which hosts have proved their credentials, by account.
//!
//! An attempt from such an address does not wait for attempts from other addresses ([`super::Attempts`]). So
//! that a host is known after a restart of the server, and to a server that takes the pool over, the table is
//! a document of the pool. It changes only when a host succeeds from a new address, and is written some time
//! later by [`remember`]. A crash loses at most the addresses of the last moments: their hosts then wait like
//! unknown hosts.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::Pool;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::targets::{IqnName, ServedTargets, Target};

/// Name of the document.
const NAME: &str = "iscsi-hosts";
const VERSION: u32 = 1;
/// Maximum number of addresses of an account. One more address displaces the address that succeeded first.
const ADDRESSES: usize = 8;
/// Delay between a change and the writing of the document, so that many first logins cost one document.
const WRITE_AFTER: Duration = Duration::from_secs(1);

/// The account that an attempt tries.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Account {
    /// The target; `None` for discovery.
    pub target: Option<IqnName>,
    /// The initiator; `None` for an initiator without an entry, which only an open target admits.
    pub initiator: Option<IqnName>,
}

impl Account {
    /// The account of an initiator at a target.
    pub fn at(target: &Target, initiator: &IqnName) -> Account {
        let listed = target.lists(initiator).then(|| initiator.clone());
        Account { target: Some(target.name.clone()), initiator: listed }
    }
}

/// The addresses from which accounts have logged in.
#[derive(Debug, Default)]
pub struct KnownHosts {
    hosts: Mutex<HashMap<Account, Vec<IpAddr>>>,
    changed: Notify,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    hosts: Vec<Host>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Host {
    target: Option<IqnName>,
    initiator: Option<IqnName>,
    addresses: Vec<IpAddr>,
}

impl KnownHosts {
    /// Reads the table of a pool. A table that cannot be read is reported, and counts as empty: it only
    /// shortens waits.
    pub async fn load(pool: &Pool) -> Arc<KnownHosts> {
        let decode = |bytes: &[u8]| crate::document::decode(bytes, VERSION, ["it is", "it has"]);
        let document: Document = crate::document::load(pool, NAME, decode).await.unwrap_or_else(|why| {
            tracing::warn!("cannot read from which addresses iSCSI hosts logged in before: {why}");
            Document::default()
        });
        Arc::new(KnownHosts { hosts: Mutex::new(document.into_hosts()), changed: Notify::new() })
    }

    /// Whether the account has logged in from this address before.
    pub(super) fn contains(&self, account: &Account, address: IpAddr) -> bool {
        self.hosts.lock().get(account).is_some_and(|known| known.contains(&address))
    }

    /// Records a successful login of an account from an address.
    pub(super) fn insert(&self, account: &Account, address: IpAddr) {
        let mut hosts = self.hosts.lock();
        let known = hosts.entry(account.clone()).or_default();
        if known.contains(&address) {
            return;
        }
        if known.len() >= ADDRESSES {
            known.remove(0);
        }
        known.push(address);
        self.changed.notify_one();
    }

    /// The document, without the accounts of targets that do not exist any more.
    fn document(&self, targets: &ServedTargets) -> Document {
        let targets = targets.snapshot();
        let mut hosts = self.hosts.lock();
        hosts.retain(|account, _| account.target.as_ref().is_none_or(|target| targets.contains_key(target)));
        let host = |(Account { target, initiator }, addresses): (&Account, &Vec<IpAddr>)| Host {
            target: target.clone(),
            initiator: initiator.clone(),
            addresses: addresses.clone(),
        };
        Document { version: VERSION, hosts: hosts.iter().map(host).collect() }
    }
}

impl Document {
    fn into_hosts(self) -> HashMap<Account, Vec<IpAddr>> {
        let known = |Host { target, initiator, mut addresses }: Host| {
            addresses.truncate(ADDRESSES);
            (Account { target, initiator }, addresses)
        };
        self.hosts.into_iter().map(known).collect()
    }
}

/// Writes the table to the pool when it has changed. Never returns.
pub async fn remember(known: Arc<KnownHosts>, pool: Arc<Pool>, targets: Arc<ServedTargets>) {
    loop {
        known.changed.notified().await;
        tokio::time::sleep(WRITE_AFTER).await;
        let document = serde_json::to_vec(&known.document(&targets)).expect("names are valid JSON");
        if let Err(error) = pool.set_document(NAME, Some(&document)).await {
            tracing::warn!(%error, "cannot store from which addresses iSCSI hosts log in");
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_engine::PoolConfig;
    use forebay_store::MemoryStore;

    use super::*;
    use crate::targets::TargetMap;
    use forebay_host::EngineThread;

    fn account(target: Option<&str>) -> Account {
        let target = target.map(|name| name.parse().unwrap());
        Account { target, initiator: Some("iqn.2026-11.example:host".parse().unwrap()) }
    }

    #[test]
    fn addresses_survive_in_the_document_as_long_as_their_target_exists() {
        let (known, targets) = (KnownHosts::default(), ServedTargets::new(TargetMap::new()));
        let address = |n| IpAddr::from([192, 0, 2, n]);
        for n in 0..=ADDRESSES as u8 {
            known.insert(&account(None), address(n));
        }
        known.insert(&account(Some("iqn.2026-11.example:removed")), address(1));
        let bytes = serde_json::to_vec(&known.document(&targets)).unwrap();
        let read: Document = crate::document::decode(&bytes, VERSION, ["", ""]).unwrap();
        let read = KnownHosts { hosts: Mutex::new(read.into_hosts()), changed: Notify::new() };
        assert!(read.contains(&account(None), address(1)) && read.contains(&account(None), address(8)));
        assert!(!read.contains(&account(None), address(0)), "the oldest of nine");
        assert_eq!(read.hosts.lock().len(), 1);
    }

    #[tokio::test]
    async fn the_pool_keeps_the_addresses() {
        let engine = EngineThread::start(1).unwrap();
        let store = Arc::new(MemoryStore::new());
        let config = PoolConfig { read_cache: 16 << 20, map_cache: 4 << 20, ..Default::default() };
        let pool = engine.run(Pool::open(store, engine.host(), config)).await.unwrap();
        let (known, address) = (KnownHosts::load(&pool).await, IpAddr::from([192, 0, 2, 1]));
        let targets = Arc::new(ServedTargets::new(TargetMap::new()));
        let writer = tokio::spawn(remember(known.clone(), pool.clone(), targets));
        known.insert(&account(None), address);
        let written = async {
            while !KnownHosts::load(&pool).await.contains(&account(None), address) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), written).await.unwrap();
        writer.abort();
        engine.run(async move { pool.close().await }).await.unwrap();
    }
}
