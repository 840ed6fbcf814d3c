//! Map nodes: their cache, and loading them from the store.

use std::sync::Arc;

use forebay_format::{BlockRef, crc32c};
use forebay_store::IoBuf;

use super::relocation::Location;
use super::store::StoreReader;
use crate::cache::{Leader, MissRole, MissTable};
use crate::disk::Disk;
use crate::map::{NeedNode, Node, NodeCache};
use crate::{BoxFuture, Error, Result};

/// Loads the nodes of block maps.
pub(crate) struct NodeReader {
    pub source: Arc<StoreReader>,
    pub cache: NodeCache,
    misses: MissTable<()>,
}

/// Repeats `attempt` until it succeeds. After each failure, `load` loads what the attempt reports as missing,
/// usually a node.
pub(crate) async fn with_nodes<'a, T, N, E>(
    mut attempt: impl FnMut() -> std::result::Result<T, N>,
    load: impl Fn(N) -> BoxFuture<'a, std::result::Result<(), E>>,
) -> std::result::Result<T, E> {
    loop {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(missing) => load(missing).await?,
        }
    }
}

impl NodeReader {
    /// A reader with an empty cache of `map_cache` bytes
    /// ([`PoolConfig::map_cache`](crate::PoolConfig::map_cache)).
    pub fn new(source: Arc<StoreReader>) -> NodeReader {
        NodeReader { cache: NodeCache::new(source.cx.config.map_cache), source, misses: MissTable::default() }
    }

    /// Loads a node of a block map into RAM. The node is read once, even if several callers wait for it.
    pub async fn load(&self, need: NeedNode) -> Result<Node> {
        loop {
            if let Some(node) = self.cache.find(need) {
                return Ok(node);
            }
            match self.misses.enter(need.at.addr) {
                MissRole::Leader(leader) => {
                    let node = need.accept(&self.read_node_bytes(&need.at).await?)?;
                    self.cache.insert(need.at, node.clone());
                    leader.complete(());
                    return Ok(node);
                }
                // The node that the leader loaded may not satisfy this need, so it is looked up again.
                MissRole::Follower(f) => drop(f.await),
            }
        }
    }

    /// Loads nodes before they are requested: the first node, and with the same store read those nodes that
    /// are close to it. Returns whether the first node is in RAM now. Failures are not reported.
    pub async fn load_ahead(&self, needs: &[NeedNode]) -> bool {
        let Some(first) = needs.first() else { return false };
        let token = self.source.relocation.enter();
        let mut found: Vec<(Location, NeedNode, Leader<()>)> = Vec::new();
        for need in needs {
            let Some(location) = self.source.locate_cached(&token, &need.at) else { continue };
            match self.misses.enter(need.at.addr) {
                MissRole::Leader(leader) if self.cache.find(*need).is_none() => {
                    found.push((location, *need, leader));
                }
                MissRole::Follower(f) if need == first => drop(f.await),
                _ => {}
            }
        }
        found.sort_unstable_by_key(|(location, ..)| (location.object, location.offset));
        let at_first = found.iter().position(|(_, need, _)| need == first);
        if let Some(at) = at_first {
            let is_near = |pair: &[(Location, NeedNode, Leader<()>)]| pair[0].0.is_near(&pair[1].0);
            let begin = (0..at).rev().take_while(|n| is_near(&found[*n..*n + 2])).last().unwrap_or(at);
            let after = (at + 1..found.len()).take_while(|n| is_near(&found[*n - 1..*n + 1])).count();
            found.truncate(at + 1 + after);
            self.read_ahead(found.split_off(begin)).await;
        }
        self.cache.find(*first).is_some()
    }

    /// Reads nodes, which are ordered by location and close to each other, with one store read.
    async fn read_ahead(&self, nodes: Vec<(Location, NeedNode, Leader<()>)>) {
        let Some(((first, ..), (last, ..))) = nodes.first().zip(nodes.last()) else { return };
        let (object, begin) = (first.object, first.offset);
        let len = (last.offset - begin) as usize + last.len;
        let Ok(Some(bytes)) = self.source.read_if_whole(object, begin, len).await else { return };
        for (location, need, leader) in nodes {
            let bytes = &bytes[(location.offset - begin) as usize..][..location.len];
            if location.form == need.at.form
                && crc32c(bytes) == need.at.crc
                && let Ok(node) = need.accept(bytes)
            {
                self.cache.insert(need.at, node);
                leader.complete(());
            }
        }
    }

    /// Reads and verifies the bytes of a stored node.
    async fn read_node_bytes(&self, at: &BlockRef) -> Result<IoBuf> {
        let token = self.source.relocation.enter();
        let location = self.source.locate(&token, at).await?;
        let bytes = self.source.read_exact(location.object, location.offset, location.len).await?;
        self.source.verify_node(at, &location, &bytes)?;
        Ok(bytes)
    }

    /// Loads a node for a read of a disk; if the node is damaged, sets the disk's damage flag.
    pub async fn load_for_read(&self, disk: &Disk, need: NeedNode) -> Result<Node> {
        let node = self.load(need).await;
        if let Err(e @ (Error::Damaged(_) | Error::Format(_))) = &node {
            disk.record_map_damage(e);
        }
        node
    }
}
