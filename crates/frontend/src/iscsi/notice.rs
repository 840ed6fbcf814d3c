//! The notice that the owner of a pool publishes for servers that wait for the pool: the owner's portals, and
//! the data that a standby needs to serve the targets in the state *standby*. The notice contains the secrets
//! of CHAP. It is protected like the pool, which contains these secrets as well.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use forebay_engine::{Client, Pool};
use serde::{Deserialize, Serialize};

use crate::scsi::UnitFacts;
use crate::targets::{ServedTargets, Target, TargetMap};

const VERSION: u32 = 1;
/// Maximum bytes of a server's announcement.
const MAX_RECORD: usize = 2048;

/// The notice that the owner of a pool publishes.
pub struct Notice {
    /// Target port group of the owner.
    pub group: u16,
    /// Portals of the owner.
    pub portals: Vec<SocketAddr>,
    /// The targets of the pool.
    pub targets: TargetMap,
    /// The mapped disks, by name.
    pub disks: BTreeMap<String, UnitFacts>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<T> {
    version: u32,
    group: u16,
    portals: Vec<SocketAddr>,
    targets: Vec<T>,
    disks: BTreeMap<String, UnitFacts>,
}

impl Notice {
    /// Encodes the notice of this server, which owns the pool.
    pub fn encode(group: u16, portals: &[SocketAddr], targets: &ServedTargets, pool: &Pool) -> Vec<u8> {
        let targets = targets.snapshot();
        let targets: Vec<&Target> = targets.values().map(|target| &**target).collect();
        let mapped: BTreeSet<&str> =
            targets.iter().flat_map(|target| target.luns.values().map(|lun| lun.disk.as_str())).collect();
        let facts = |name: &str| {
            let (uuid, size) = pool.identity(name).ok()?;
            let write_through = pool.is_write_through(name, Client::Remote).ok()?;
            Some((name.to_owned(), UnitFacts { uuid, size, write_through }))
        };
        let disks = mapped.into_iter().filter_map(facts).collect();
        let document = Document { version: VERSION, group, portals: portals.to_vec(), targets, disks };
        serde_json::to_vec(&document).expect("names and numbers can be represented in JSON")
    }

    /// Decodes the notice of another server; the error states the defect.
    pub fn decode(bytes: &[u8]) -> Result<Notice, String> {
        let document: Document<Target> = crate::document::decode(bytes, VERSION, ["it is", "it has"])?;
        let mut targets = TargetMap::new();
        for target in document.targets {
            target.check().map_err(|e| format!("it is damaged: {e}"))?;
            targets.insert(target.name.clone(), Arc::new(target));
        }
        let Document { group, portals, disks, .. } = document;
        Ok(Notice { group, portals, targets, disks })
    }
}

/// What a server announces: its portals, and its name, which differs for each server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Name of the server.
    pub server: String,
    /// Portals of the server.
    pub portals: Vec<SocketAddr>,
}

impl Record {
    /// Encodes the announcement as the text that is stored with the pool.
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("texts can be represented in JSON")
    }

    /// Decodes what another server announced; `None` if this release does not understand it.
    pub fn decode(text: &str) -> Option<Record> {
        if text.len() > MAX_RECORD { None } else { serde_json::from_str(text).ok() }
    }
}

/// The portals of all servers that announced themselves, by group.
pub fn portals_of(groups: &[(u16, String)]) -> BTreeMap<u16, Vec<SocketAddr>> {
    let known = |(group, text): &(u16, String)| Some((*group, Record::decode(text)?.portals));
    groups.iter().filter_map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"version":1,"group":2,"portals":["10.0.0.1:3260","[::1]:3260"],"targets":[
        {"name":"iqn.2026-01.org.example:a","number":7,"open":false,"chap":{"user":"u","secret":"twelve bytes"},
        "mutual":null,"luns":{"0":{"disk":"v","read_only":false,"write_back":true}},"initiators":[]}],
        "disks":{"v":{"uuid":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],"size":4096,"write_through":true}}}"#;

    #[test]
    fn notices_are_checked() {
        let notice = Notice::decode(GOOD.as_bytes()).unwrap();
        assert_eq!((notice.group, notice.portals.len(), notice.disks["v"].size), (2, 2, 4096));
        assert_eq!(notice.targets.len(), 1);
        for (from, to) in
            [("\"version\":1", "\"version\":2"), ("twelve bytes", "short"), ("\"group\":2", "\"group\":-2")]
        {
            assert!(GOOD.contains(from), "{from}");
            assert!(Notice::decode(GOOD.replacen(from, to, 1).as_bytes()).is_err(), "{to}");
        }
        assert!(Notice::decode(b"").is_err());
    }

    #[test]
    fn records_that_are_not_understood_are_left_out() {
        let record = Record { server: "a".into(), portals: vec!["10.0.0.1:3260".parse().unwrap()] };
        let told = [(1, record.encode()), (2, "?".into()), (3, "x".repeat(MAX_RECORD + 1))];
        assert_eq!(portals_of(&told), [(1, record.portals)].into());
    }
}
