//! Map nodes: their cache, and loading them from the store.

use std::sync::Arc;

use forebay_format::BlockRef;
use forebay_store::IoBuf;

use super::store::StoreReader;
use crate::cache::{MissTable, Turn};
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

    /// Loads a node of a block map into RAM. It is read once, even if several callers wait for it.
    pub async fn load(&self, need: NeedNode) -> Result<Node> {
        loop {
            if let Some(node) = self.cache.find(need) {
                return Ok(node);
            }
            match self.misses.enter(need.at.addr) {
                Turn::Leader(leader) => {
                    let node = need.accept(&self.read_node_bytes(&need.at).await?)?;
                    self.cache.insert(need.at, node.clone());
                    leader.complete(());
                    return Ok(node);
                }
                // The node that the leader loaded may not satisfy this need, so it is looked up again.
                Turn::Follower(f) => drop(f.await),
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
