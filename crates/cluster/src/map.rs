//! The map of a cluster: its members and its shards.
//!
//! ```text
//! object cluster     attribute version     number of the last change, 16 hexadecimal digits
//!                    attribute identity    identity of the cluster, and the version of the format
//!                    entry node.NNNNNNNN   a member
//!                    entry shard.NNNNNNNN  a shard
//!                    entry gone.ID         the number of a member that was removed
//!                    entry access.tokens   the tokens of the API; this module does not interpret them
//!                    entry log.VERSION     the keys that the change of this version has written
//! ```
//!
//! Every change requires that the version is still the version that its author has read, and raises the
//! version. So changes take place one after another, and the author of each change has read the state that it
//! changes. With the log, a node that has an older state reads only the changes: with 1,000 nodes, a full
//! read costs 500 KB, so full reads of all nodes after a change would cost 500 MB.
//!
//! The map contains the members, and not whether they are alive: whether the owner of a shard lives is
//! decided at the shard ([`forebay_store::rados`]). A node that takes a shard over from a dead owner marks
//! the owner's process as *suspect*, so that it is the home of no shard; a node that finds itself suspect,
//! and lives, removes the mark.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_store::rados::{Cluster, Entries, Errno, Step, Wanted, WhenFull, digits};
use serde::{Deserialize, Serialize};

use crate::entry::encode;
use crate::error::{ClusterError, Result};
use crate::placement::{self, Candidate, Place};

const OBJECT: &str = "cluster";
const VERSION: &str = "version";
const IDENTITY: &str = "identity";
const TOKENS: &str = "access.tokens";
/// The version of the format that this release writes, and the highest that it reads.
const FORMAT: u32 = 1;
/// Changes that the log has: a node that is further behind reads the whole map.
const LOGGED: u64 = 1024;
/// Maximum number of shards of a cluster.
pub const MAX_SHARDS: usize = 16_384;
/// Maximum number of members of a cluster.
pub const MAX_NODES: usize = 4_096;

/// What an administrator has decided about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It owns shards.
    Up,
    /// It hands its shards over, and gets none.
    Draining,
}

/// A member of the cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Number of the node. A number is not used again for another node.
    pub number: u32,
    /// Identity that the node keeps in its data directory.
    pub id: String,
    /// Name for people; no other member has it.
    pub name: String,
    /// The address at which clients of other hosts reach the shards of the node directly; empty if
    /// they cannot.
    pub address: String,
    /// The socket address of the node's links.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub links: String,
    /// The iSCSI portals of the node, which initiators discover.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub iscsi: Vec<String>,
    /// The addresses at which the node serves NBD clients of other hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nbd: Vec<String>,
    /// Its share of the shards, relative to other nodes.
    pub weight: f64,
    /// What an administrator has decided.
    pub state: NodeState,
    /// The process that has joined last.
    pub process: String,
    /// The process that did not answer when another node took a shard over from it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub suspect: String,
}

impl Node {
    /// Whether the present process of the node did not answer.
    pub fn is_suspect(&self) -> bool {
        self.suspect == self.process
    }

    /// Whether the node can get shards.
    pub fn is_eligible(&self) -> bool {
        self.state == NodeState::Up && !self.is_suspect()
    }
}

/// A shard of the cluster: a pool in a separate namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Number of the shard.
    pub number: u32,
    /// The RADOS namespace of the pool.
    pub namespace: String,
    /// The node whose server has opened the pool last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    /// The term of this server's ownership of the pool.
    #[serde(default)]
    pub term: u64,
    /// Where the owner serves NBD.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nbd: Vec<String>,
    /// The node that is to own the shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<u32>,
    /// The home that an administrator has chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    format: u32,
    id: String,
    /// Key and certificate of the links between the nodes.
    #[serde(default)]
    links: String,
}

/// The map as of one version.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Map {
    /// Identity of the cluster.
    pub id: String,
    /// Number of the last change.
    pub version: u64,
    /// The key and the certificate by which nodes recognize each other, as PEM text.
    pub links: String,
    /// The members by number.
    pub nodes: BTreeMap<u32, Node>,
    /// The shards by number.
    pub shards: BTreeMap<u32, Shard>,
    /// Identities of members that were removed, with their numbers.
    pub gone: BTreeMap<String, u32>,
    /// The document with the tokens of the API; empty before the first token was created.
    pub tokens: Vec<u8>,
}

/// Entries that a change writes.
#[derive(Debug, Clone, Default)]
pub struct Change {
    nodes: Vec<Node>,
    removed_nodes: Vec<Node>,
    shards: Vec<Shard>,
    links: Option<String>,
    tokens: Option<Vec<u8>>,
}

impl Change {
    /// Writes a member.
    pub fn set_node(mut self, node: Node) -> Change {
        self.nodes.push(node);
        self
    }

    /// Removes a member for good: its identity cannot join again.
    pub fn remove_node(mut self, node: Node) -> Change {
        self.removed_nodes.push(node);
        self
    }

    /// Replaces the key and the certificate of the links between nodes.
    pub fn set_links(mut self, links: String) -> Change {
        self.links = Some(links);
        self
    }

    /// Replaces the document with the tokens of the API.
    pub fn set_tokens(mut self, tokens: Vec<u8>) -> Change {
        self.tokens = Some(tokens);
        self
    }

    /// Writes a shard.
    pub fn set_shard(mut self, shard: Shard) -> Change {
        self.shards.push(shard);
        self
    }

    fn is_empty(&self) -> bool {
        self.nodes.is_empty()
            && self.removed_nodes.is_empty()
            && self.shards.is_empty()
            && self.links.is_none()
            && self.tokens.is_none()
    }
}

fn node_key(number: u32) -> String {
    format!("node.{number:08x}")
}

fn shard_key(number: u32) -> String {
    format!("shard.{number:08x}")
}

fn gone_key(id: &str) -> String {
    format!("gone.{id}")
}

fn log_key(version: u64) -> String {
    format!("log.{}", digits(version))
}

fn damaged(reason: impl ToString) -> ClusterError {
    ClusterError::Damaged { object: OBJECT.to_owned(), reason: reason.to_string() }
}

fn text(identity: &Identity) -> String {
    serde_json::to_string(identity).expect("a record consists of texts and numbers")
}

/// The namespace of a shard that a cluster creates.
pub fn namespace_of(cluster: &str, shard: u32) -> String {
    format!("{cluster}.{shard:05}")
}

/// The shards of a new cluster. `first` is the namespace of an existing pool that becomes the first shard.
pub fn new_shards(cluster: &str, count: u32, first: Option<&str>) -> Vec<Shard> {
    let namespace = |number| match (number, first) {
        (1, Some(first)) => first.to_owned(),
        _ => namespace_of(cluster, number),
    };
    (1..=count).map(|number| Shard::new(number, namespace(number))).collect()
}

impl Shard {
    fn new(number: u32, namespace: String) -> Shard {
        Shard { number, namespace, owner: None, term: 0, nbd: Vec::new(), home: None, pin: None }
    }
}

impl Map {
    /// The members that can own shards.
    pub fn candidates(&self) -> Vec<Candidate> {
        let eligible = self.nodes.values().filter(|node| node.is_eligible());
        eligible
            .map(|node| Candidate { node: node.number, weight: node.weight.max(f64::MIN_POSITIVE) })
            .collect()
    }

    /// All nodes in the order in which they take a shard. The first one is the shard's home. Members that can
    /// own no shards for now are last: there may be no others.
    pub fn ranking(&self, shard: &Shard) -> Vec<u32> {
        let mut ranking = placement::ranking(shard.number, shard.home, &self.candidates());
        let others = self.nodes.values().filter(|node| !node.is_eligible());
        ranking.extend(others.map(|node| node.number));
        ranking
    }

    /// The place of a node in [`Map::ranking`], without the ranking of the others; `None` for a node that is
    /// no member.
    pub fn place_in_ranking(&self, shard: &Shard, node: u32) -> Option<usize> {
        let candidates = self.candidates();
        placement::place(shard.number, shard.home, node, &candidates).or_else(|| {
            let mut others = self.nodes.values().filter(|other| !other.is_eligible());
            Some(candidates.len() + others.position(|other| other.number == node)?)
        })
    }

    /// The number of the next node that joins.
    pub fn next_number(&self) -> u32 {
        let used = self.nodes.keys().chain(self.gone.values());
        used.max().map_or(1, |last| last.saturating_add(1))
    }

    /// The shards whose home is this node.
    pub fn shards_of(&self, node: u32) -> impl Iterator<Item = &Shard> {
        self.shards.values().filter(move |shard| shard.home == Some(node))
    }

    /// Moves the homes that have to move. Returns the shards that have another home afterwards.
    fn move_homes(&mut self) -> Vec<Shard> {
        let places = self.shards.values().map(|s| (s.number, Place { home: s.home, pin: s.pin })).collect();
        let homes = placement::homes(&places, &self.candidates());
        let mut moved = Vec::new();
        for shard in self.shards.values_mut() {
            // Without a candidate, a shard keeps its home.
            let home = homes.get(&shard.number).copied().or(shard.home);
            if home != shard.home {
                shard.home = home;
                moved.push(shard.clone());
            }
        }
        moved
    }

    /// The member with this identity.
    pub fn node_with_id(&self, id: &str) -> Option<&Node> {
        self.nodes.values().find(|node| node.id == id)
    }

    /// The member of this name.
    pub fn node_named(&self, name: &str) -> Option<&Node> {
        self.nodes.values().find(|node| node.name == name)
    }

    fn parse(found: &Entries) -> Result<Map> {
        let Identity { id, links, .. } = identity_in(found)?;
        let mut map = Map { id, links, version: version_in(found)?, ..Map::default() };
        for (key, value) in &found.entries {
            map.take(key, value)?;
        }
        Ok(map)
    }

    /// Takes the value of an entry over.
    fn take(&mut self, key: &str, value: &[u8]) -> Result<()> {
        let broken = |e: serde_json::Error| damaged(format!("the entry {key} cannot be read: {e}"));
        let misplaced = || Err(damaged(format!("the entry {key} is that of another number")));
        if key.starts_with("node.") {
            let node: Node = serde_json::from_slice(value).map_err(broken)?;
            if node_key(node.number) != key {
                return misplaced();
            }
            self.nodes.insert(node.number, node);
        } else if key.starts_with("shard.") {
            let shard: Shard = serde_json::from_slice(value).map_err(broken)?;
            if shard_key(shard.number) != key {
                return misplaced();
            }
            self.shards.insert(shard.number, shard);
        } else if key == TOKENS {
            self.tokens = value.to_vec();
        } else if let Some(id) = key.strip_prefix("gone.") {
            self.gone.insert(id.to_owned(), serde_json::from_slice(value).map_err(broken)?);
        }
        Ok(())
    }

    /// Removes the record of a key.
    fn forget(&mut self, key: &str) {
        let number = |prefix| u32::from_str_radix(key.strip_prefix(prefix)?, 16).ok();
        if let Some(number) = number("node.") {
            self.nodes.remove(&number);
        }
        if let Some(number) = number("shard.") {
            self.shards.remove(&number);
        }
    }
}

/// The identity of the cluster, whose format this release supports.
fn identity_in(found: &Entries) -> Result<Identity> {
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    let identity = found.attribute(IDENTITY);
    if identity.is_empty() {
        return Err(damaged("it has no identity"));
    }
    let Format { format } = serde_json::from_str(&identity).map_err(damaged)?;
    match format {
        0..=FORMAT => serde_json::from_str(&identity).map_err(damaged),
        _ => Err(ClusterError::Unsupported),
    }
}

fn version_in(found: &Entries) -> Result<u64> {
    u64::from_str_radix(&found.attribute(VERSION), 16).map_err(|_| damaged("it has no version"))
}

/// The map of a cluster in its namespace.
#[derive(Clone)]
pub struct Maps(Arc<dyn Cluster>);

impl Maps {
    /// The map in this namespace.
    pub fn new(cluster: Arc<dyn Cluster>) -> Maps {
        Maps(cluster)
    }

    /// Creates the map of a cluster. `id` is a new identity, and `links` the key and the certificate of its
    /// links.
    ///
    /// # Errors
    /// [`ClusterError::Exists`] if the map exists; those of Ceph.
    pub async fn create(&self, name: &str, id: &str, links: &str, shards: &[Shard]) -> Result<()> {
        let entries = shards.iter().map(|shard| (shard_key(shard.number), encode(shard))).collect();
        let identity = text(&Identity { format: FORMAT, id: id.to_owned(), links: links.to_owned() });
        let steps = vec![
            Step::Create,
            Step::Set(VERSION, digits(1)),
            Step::Set(IDENTITY, identity),
            Step::SetEntries(entries),
        ];
        match self.0.operate(OBJECT, steps, WhenFull::Proceed).await {
            Ok(()) => Ok(()),
            Err(Errno(libc::EEXIST)) => Err(ClusterError::Exists(name.to_owned())),
            Err(e) => Err(e.into()),
        }
    }

    /// Reads the whole map.
    ///
    /// # Errors
    /// [`ClusterError::NoCluster`], [`ClusterError::Unsupported`], [`ClusterError::Damaged`]; those of Ceph.
    pub async fn read(&self) -> Result<Map> {
        // Several pages are not read as of one moment: a different version afterwards means that the map has
        // changed.
        loop {
            let mut found = self.entries(Wanted::Keys(vec![TOKENS.to_owned()])).await?;
            let (version, mut is_one_version) = (version_in(&found)?, true);
            // Without the log.
            for prefix in ["gone.", "node.", "shard."] {
                let part = self.entries(Wanted::Prefix(prefix.to_owned())).await?;
                is_one_version &= version_in(&part)? == version;
                found.entries.extend(part.entries);
            }
            let after = self.entries(Wanted::Keys(Vec::new())).await?;
            if is_one_version && version_in(&after)? == version {
                return Map::parse(&found);
            }
        }
    }

    /// Reads what has changed since `map`. `None` if nothing has.
    ///
    /// # Errors
    /// As [`Maps::read`].
    pub async fn refresh(&self, map: &Map) -> Result<Option<Map>> {
        let version = version_in(&self.entries(Wanted::Keys(Vec::new())).await?)?;
        if version == map.version {
            return Ok(None);
        }
        if version < map.version || version - map.version > LOGGED {
            return self.read().await.map(Some);
        }
        let wanted: Vec<String> = (map.version + 1..=version).map(log_key).collect();
        let expected = wanted.len();
        let log = self.entries(Wanted::Keys(wanted)).await?;
        if log.entries.len() < expected {
            // Further changes have removed the oldest ones.
            return self.read().await.map(Some);
        }
        let mut keys: Vec<String> = Vec::new();
        for (_, value) in &log.entries {
            keys.extend(String::from_utf8_lossy(value).lines().map(str::to_owned));
        }
        keys.sort();
        keys.dedup();
        let found = self.entries(Wanted::Keys(keys.clone())).await?;
        let identity = identity_in(&found)?;
        if version_in(&found)? != version || identity.id != map.id {
            return self.read().await.map(Some);
        }
        let mut new = Map { version, links: identity.links, ..map.clone() };
        keys.iter().for_each(|key| new.forget(key));
        for (key, value) in &found.entries {
            new.take(key, value)?;
        }
        Ok(Some(new))
    }

    /// Changes the map. `decide` gets the present map and returns what to change; it is called again if
    /// another node was faster. The homes that have to move because of the change move with it. Returns the
    /// map afterwards.
    ///
    /// # Errors
    /// Those of `decide`; as [`Maps::read`].
    pub async fn change(&self, mut decide: impl FnMut(&Map) -> Result<Change>) -> Result<Map> {
        loop {
            let mut map = self.read().await?;
            let change = decide(&map)?;
            if change.is_empty() {
                return Ok(map);
            }
            let version = map.version + 1;
            map.version = version;
            let mut entries: BTreeMap<String, Vec<u8>> = BTreeMap::new();
            for node in change.nodes {
                entries.insert(node_key(node.number), encode(&node));
                map.nodes.insert(node.number, node);
            }
            for shard in change.shards {
                entries.insert(shard_key(shard.number), encode(&shard));
                map.shards.insert(shard.number, shard);
            }
            for node in &change.removed_nodes {
                entries.insert(gone_key(&node.id), encode(&node.number));
                map.gone.insert(node.id.clone(), node.number);
                map.nodes.remove(&node.number);
            }
            for shard in map.move_homes() {
                entries.insert(shard_key(shard.number), encode(&shard));
            }
            if let Some(tokens) = change.tokens {
                entries.insert(TOKENS.to_owned(), tokens.clone());
                map.tokens = tokens;
            }
            let mut removed: Vec<_> = change.removed_nodes.iter().map(|node| node_key(node.number)).collect();
            let keys: Vec<_> = entries.keys().chain(&removed).cloned().collect();
            if map.nodes.len() > MAX_NODES || map.shards.len() > MAX_SHARDS {
                let why = format!("a cluster has at most {MAX_NODES} nodes and {MAX_SHARDS} shards");
                return Err(ClusterError::Refused(why));
            }
            entries.insert(log_key(version), keys.join("\n").into_bytes());
            removed.extend(version.checked_sub(LOGGED).map(log_key));
            let mut steps = vec![
                Step::Require(VERSION, digits(version - 1)),
                Step::Set(VERSION, digits(version)),
                Step::RemoveKeys(removed),
                Step::SetEntries(entries.into_iter().collect()),
            ];
            if let Some(links) = change.links {
                map.links.clone_from(&links);
                steps
                    .push(Step::Set(IDENTITY, text(&Identity { format: FORMAT, id: map.id.clone(), links })));
            }
            match self.0.operate(OBJECT, steps, WhenFull::Proceed).await {
                Ok(()) => return Ok(map),
                Err(Errno(libc::ECANCELED)) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    async fn entries(&self, wanted: Wanted) -> Result<Entries> {
        match self.0.entries(OBJECT, wanted).await {
            Ok(found) => Ok(found),
            Err(Errno(libc::ENOENT)) => Err(ClusterError::NoCluster),
            Err(e) => Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_store::rados::SimulatedRados;

    use super::*;
    use crate::testing::run;

    fn maps() -> Maps {
        let maps = Maps::new(SimulatedRados::immediate().client());
        let shards = new_shards("vdi", 4, None);
        run(maps.create("vdi", "id-1", "key 1", &shards)).unwrap();
        maps
    }

    fn node(number: u32) -> Node {
        Node {
            number,
            id: format!("id-{number}"),
            name: format!("node{number}"),
            address: String::new(),
            links: String::new(),
            iscsi: Vec::new(),
            nbd: Vec::new(),
            weight: 1.0,
            state: NodeState::Up,
            process: "p1".into(),
            suspect: String::new(),
        }
    }

    #[test]
    fn a_map_is_created_once_and_read_back() {
        let maps = maps();
        assert_eq!(run(maps.create("vdi", "id-2", "", &[])), Err(ClusterError::Exists("vdi".into())));
        let map = run(maps.read()).unwrap();
        assert_eq!((map.id.as_str(), map.version, map.shards.len()), ("id-1", 1, 4));
        assert_eq!(map.shards[&2].namespace, "vdi.00002");
        assert_eq!(new_shards("vdi", 2, Some("old"))[0].namespace, "old");
        let missing = Maps::new(SimulatedRados::immediate().client());
        assert_eq!(run(missing.read()), Err(ClusterError::NoCluster));
    }

    #[test]
    fn a_refresh_reads_what_has_changed() {
        let maps = maps();
        let first = run(maps.read()).unwrap();
        assert_eq!(run(maps.refresh(&first)).unwrap(), None);
        run(maps.change(|_| Ok(Change::default().set_node(node(1)).set_node(node(2))))).unwrap();
        let removal =
            || Change::default().remove_node(node(1)).set_links("key 2".into()).set_tokens(b"t".into());
        let second = run(maps.change(|_| Ok(removal()))).unwrap();
        assert_eq!((first.tokens.as_slice(), second.tokens.as_slice()), (&b""[..], &b"t"[..]));
        assert_eq!([first.links.as_str(), &second.links], ["key 1", "key 2"]);
        let refreshed = run(maps.refresh(&first)).unwrap().unwrap();
        assert_eq!(refreshed, second);
        assert_eq!(refreshed, run(maps.read()).unwrap());
        assert_eq!(refreshed.nodes.keys().collect::<Vec<_>>(), [&2]);
        assert_eq!((refreshed.gone.get("id-1"), refreshed.next_number()), (Some(&1), 3));
        // More changes than the log has.
        for n in 0..LOGGED + 10 {
            let weight = n as f64 + 1.0;
            run(maps.change(|_| Ok(Change::default().set_node(Node { weight, ..node(3) })))).unwrap();
        }
        let now = run(maps.read()).unwrap();
        for old in [&first, &second] {
            assert_eq!(run(maps.refresh(old)).unwrap().as_ref(), Some(&now));
        }
        let logged = run(maps.entries(Wanted::Prefix("log.".into()))).unwrap().entries.len();
        assert_eq!(logged as u64, LOGGED);
    }

    #[test]
    fn a_change_is_decided_on_the_state_that_it_changes() {
        let maps = maps();
        let mut asked = 0;
        let map = run(maps.change(|map| {
            asked += 1;
            if asked == 1 {
                // Another node is faster.
                run(Maps(maps.0.clone()).change(|_| Ok(Change::default().set_node(node(1))))).unwrap();
            }
            let number = map.nodes.keys().max().map_or(1, |last| last + 1);
            Ok(Change::default().set_node(node(number)))
        }))
        .unwrap();
        assert_eq!((asked, map.nodes.len()), (2, 2));
        assert_eq!(run(maps.read()).unwrap(), map);
    }

    #[test]
    fn a_node_that_drains_or_does_not_answer_gets_no_shards() {
        let maps = maps();
        let map =
            run(maps.change(|_| Ok((1..=3).fold(Change::default(), |c, n| c.set_node(node(n)))))).unwrap();
        let all = |map: &Map, node| map.shards_of(node).count();
        assert!((1..=3).all(|node| all(&map, node) > 0));
        let draining = Node { state: NodeState::Draining, ..node(1) };
        let suspect = Node { suspect: "p1".into(), ..node(2) };
        let change = Change::default().set_node(draining).set_node(suspect.clone());
        let map = run(maps.change(|_| Ok(change.clone()))).unwrap();
        assert_eq!([1, 2, 3].map(|node| all(&map, node)), [0, 0, 4]);
        assert_eq!(map.ranking(&map.shards[&1]), [3, 1, 2], "they are the last that take a shard");
        let places = [1, 2, 3, 4].map(|node| map.place_in_ranking(&map.shards[&1], node));
        assert_eq!(places, [Some(1), Some(2), Some(0), None]);
        // Another process of the node.
        let map =
            run(maps.change(|_| {
                Ok(Change::default().set_node(Node { process: "p2".into(), ..suspect.clone() }))
            }));
        assert!(all(&map.unwrap(), 2) > 0);
    }

    #[test]
    fn a_map_of_a_later_release_is_refused() {
        let maps = maps();
        let later = Step::Set(IDENTITY, r#"{"format":2,"id":"x","more":1}"#.to_owned());
        run(maps.0.operate(OBJECT, vec![later], WhenFull::Proceed)).unwrap();
        assert_eq!(run(maps.read()), Err(ClusterError::Unsupported));
        let broken = Step::Set(IDENTITY, "x".to_owned());
        run(maps.0.operate(OBJECT, vec![broken], WhenFull::Proceed)).unwrap();
        assert!(matches!(run(maps.read()), Err(ClusterError::Damaged { .. })));
    }
}
