//! The map cache: clean nodes by address, within a budget of bytes.
//!
//! Split into shards by a hash of the address; each shard has its share of the budget and evicts by CLOCK over
//! the buckets of its table: a look-up sets a node's mark, the hand clears marks and takes what has none. A node
//! that is being used stays alive through its own count, in the cache or not.

use forebay_format::BlockRef;
use hashbrown::{HashMap, HashSet, HashTable};

use super::{NeedNode, Node};
use crate::CacheStats;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const SHARDS: usize = 16;
/// The least budget of a shard: a few nodes more than one descent needs, so that loading always gets on. A budget of
/// less than sixteen of these has fewer shards.
const LEAST: usize = 32 << 10;
/// Bytes that a node's place in a table takes, with the table's spare places.
const PER_NODE: usize = 28;
/// Set in an entry's key when it was looked up since the hand came by. Addresses have 56 bits.
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

/// Clean nodes by address.
pub(crate) struct NodeCache {
    /// Of these, the first `used`.
    shards: [Mutex<Shard>; SHARDS],
    used: usize,
    /// Of each shard.
    budget: usize,
    /// Nodes that must not go, with how many hold each; see [`super::Held`].
    pinned: Mutex<HashMap<u64, (Node, usize)>>,
    /// How many these are: mostly none, so that a miss need not look.
    pins: AtomicUsize,
}

fn hash(key: u64) -> u64 {
    let h = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    h ^ (h >> 32)
}

impl NodeCache {
    /// An empty cache of so many bytes.
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

    /// What `f` makes of the node that is asked for, or the wish to load it. `f` runs under the shard's lock.
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

    /// Keeps a node whatever is evicted.
    pub(super) fn pin(&self, key: u64, node: &Node) {
        let mut pinned = self.pinned.lock();
        pinned.entry(key).or_insert_with(|| (node.clone(), 0)).1 += 1;
        self.pins.store(pinned.len(), Relaxed);
    }

    /// Ends that, once for each.
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
        // Freed after the lock is.
        drop(pinned);
    }

    /// The node that is asked for, or the wish to load it.
    pub(super) fn get(&self, need: NeedNode) -> Result<Node, NeedNode> {
        self.look(need, Node::clone)
    }

    /// The node, if it is here; counts as neither hit nor miss.
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

    /// Takes in a node that is on the store at `at`; makes room for it.
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
        // Freed after the lock is.
        drop(shard);
    }

    /// Hits, misses, bytes.
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
    /// Moves the hand until the shard is within its budget; never takes `keep`, which has just come.
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
