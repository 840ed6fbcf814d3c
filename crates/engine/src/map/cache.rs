//! The map cache: clean nodes by address, within a budget of bytes.
//!
//! It is split into shards by a hash of the address; each shard has its share of the budget and evicts by
//! CLOCK over the buckets of its table: a look-up sets a node's mark, the hand clears marks and evicts
//! unmarked nodes. A node in use stays alive through its reference count, in the cache or not.

use forebay_format::BlockRef;
use hashbrown::{HashMap, HashSet, HashTable};

use super::need::NeedNode;
use super::node::Node;
use crate::CacheStats;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const SHARDS: usize = 16;
/// Minimum budget of a shard: a few nodes more than one descent needs, so that loading always makes progress.
/// A cache with a budget under sixteen times this has fewer shards.
const LEAST: usize = 32 << 10;
/// Bytes that a node takes in a table, including the table's share of spare buckets.
const PER_NODE: usize = 28;
/// Flag in an entry's key: the entry was looked up since the hand last passed. Addresses have 56 bits.
const USED: u64 = 1 << 63;

struct Entry {
    key: u64,
    node: Node,
}

impl Entry {
    fn is(&self, key: u64) -> bool {
        self.key & !USED == key
    }
}

#[derive(Default)]
struct Shard {
    table: HashTable<Entry>,
    bytes: usize,
    hand: usize,
    hits: u64,
    misses: u64,
}

/// A cache of clean nodes, by address.
pub(crate) struct NodeCache {
    /// Only the first `used` shards are in use.
    shards: [Mutex<Shard>; SHARDS],
    used: usize,
    /// Budget of each shard.
    budget: usize,
    /// Nodes that must not be evicted, each with the number of its holders; see [`super::Held`].
    pinned: Mutex<HashMap<u64, (Node, usize)>>,
    /// Number of pinned nodes. It is usually zero, and then a miss need not search them.
    pins: AtomicUsize,
}

fn hash(key: u64) -> u64 {
    let h = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    h ^ (h >> 32)
}

impl NodeCache {
    /// Returns an empty cache with a budget of `budget` bytes.
    pub(crate) fn new(budget: u64) -> NodeCache {
        let budget = usize::try_from(budget).unwrap_or(usize::MAX).max(LEAST);
        let used = (budget / LEAST).min(SHARDS);
        NodeCache {
            shards: Default::default(),
            used,
            budget: budget / used,
            pinned: Mutex::default(),
            pins: AtomicUsize::new(0),
        }
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        &self.shards[(hash >> 24) as usize % self.used]
    }

    /// Applies `f` to the needed node, under the shard's lock; returns the need if the node is not in memory.
    pub(super) fn look<R>(&self, need: NeedNode, f: impl FnOnce(&Node) -> R) -> Result<R, NeedNode> {
        let key = need.at.addr.to_u64();
        let hash = hash(key);
        let mut shard = self.shard(hash).lock();
        let shard = &mut *shard;
        match shard.table.find_mut(hash, |e| e.is(key)) {
            Some(entry) if need.fits(&entry.node) => {
                shard.hits += 1;
                entry.key |= USED;
                Ok(f(&entry.node))
            }
            _ => match self.pinned(need) {
                Some(node) => {
                    shard.hits += 1;
                    Ok(f(&node))
                }
                None => {
                    shard.misses += 1;
                    Err(need)
                }
            },
        }
    }

    fn pinned(&self, need: NeedNode) -> Option<Node> {
        if self.pins.load(Relaxed) == 0 {
            return None;
        }
        let pinned = self.pinned.lock();
        let (node, _) = pinned.get(&need.at.addr.to_u64())?;
        need.fits(node).then(|| node.clone())
    }

    /// Pins a node: it stays in memory regardless of eviction.
    pub(super) fn pin(&self, key: u64, node: &Node) {
        let mut pinned = self.pinned.lock();
        pinned.entry(key).or_insert_with(|| (node.clone(), 0)).1 += 1;
        self.pins.store(pinned.len(), Relaxed);
    }

    /// Removes one pin of each node.
    pub(super) fn unpin(&self, keys: &HashSet<u64>) {
        let mut gone = Vec::new();
        let mut pinned = self.pinned.lock();
        for key in keys {
            if let hashbrown::hash_map::Entry::Occupied(mut entry) = pinned.entry(*key) {
                entry.get_mut().1 -= 1;
                if entry.get().1 == 0 {
                    gone.push(entry.remove());
                }
            }
        }
        self.pins.store(pinned.len(), Relaxed);
        // Nodes are freed after the lock is released.
        drop(pinned);
    }

    /// Returns the needed node, or the need if the node is not in memory.
    pub(super) fn get(&self, need: NeedNode) -> Result<Node, NeedNode> {
        self.look(need, Node::clone)
    }

    /// Returns the node if it is cached; counts neither a hit nor a miss.
    pub(super) fn peek(&self, need: NeedNode) -> Option<Node> {
        let key = need.at.addr.to_u64();
        let hash = hash(key);
        let found = {
            let shard = self.shard(hash).lock();
            let entry = shard.table.find(hash, |e| e.is(key));
            entry.filter(|e| need.fits(&e.node)).map(|e| e.node.clone())
        };
        found.or_else(|| self.pinned(need))
    }

    /// Inserts a node that is stored at `at`; evicts other nodes to make room.
    pub(crate) fn insert(&self, at: BlockRef, node: Node) {
        node.set_stored(at);
        let key = at.addr.to_u64();
        let hash = hash(key);
        let mut dropped = Vec::new();
        let mut shard = self.shard(hash).lock();
        let new = Entry { key: key | USED, node };
        shard.bytes += new.node.bytes() + PER_NODE;
        match shard.table.find_mut(hash, |e| e.is(key)) {
            Some(old) => dropped.push(std::mem::replace(old, new).node),
            None => {
                shard.table.insert_unique(hash, new, |e| self::hash(e.key & !USED));
            }
        }
        shard.bytes -= dropped.iter().map(|n| n.bytes() + PER_NODE).sum::<usize>();
        shard.evict(self.budget, key, &mut dropped);
        // Nodes are freed after the lock is released.
        drop(shard);
    }

    /// Returns the number of hits and misses, and the bytes of the cache.
    pub(crate) fn stats(&self) -> CacheStats {
        let mut stats = CacheStats { budget: (self.budget * self.used) as u64, ..CacheStats::default() };
        for shard in &self.shards {
            let shard = shard.lock();
            stats.hits += shard.hits;
            stats.misses += shard.misses;
            stats.bytes += shard.bytes as u64;
        }
        stats
    }

    /// Drops every node.
    #[cfg(test)]
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.table.clear();
            shard.bytes = 0;
        }
    }
}

impl Shard {
    /// Moves the hand until the shard is within its budget; never evicts `keep`, the newest node.
    fn evict(&mut self, budget: usize, keep: u64, dropped: &mut Vec<Node>) {
        while self.bytes > budget && self.table.len() > 1 {
            self.hand = (self.hand + 1) % self.table.num_buckets();
            let Ok(mut entry) = self.table.get_bucket_entry(self.hand) else { continue };
            let e = entry.get_mut();
            if e.is(keep) || e.key & USED != 0 {
                e.key &= !USED;
                continue;
            }
            let (entry, _) = entry.remove();
            self.bytes -= entry.node.bytes() + PER_NODE;
            dropped.push(entry.node);
        }
    }
}
