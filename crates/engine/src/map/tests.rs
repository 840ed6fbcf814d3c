//! Tests the map against a simple model, with checkpoints concurrent to writes, evictions and restarts.

use std::collections::{BTreeMap, HashMap, HashSet};

use forebay_format::{
    Address, BlockRef, FANOUT, Form, FormatError, MapNode, MapValue, NodeEntries, SegmentId, Slot,
};

use super::cache::*;
use super::checkpoint::*;
use super::index::*;
use super::need::*;
use super::node::*;
use super::read::*;
use super::tree::*;

/// SplitMix64: sufficient for tests, and identical on every platform.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }
    /// A stored block; usually of a segment near the others, sometimes of any.
    fn at(&mut self) -> MapValue {
        let segment = match self.below(40) {
            0 => 1 + self.below(u64::from(u32::MAX)),
            1 => 100_000 + self.below(70_000),
            _ => 60_000 + self.below(300),
        };
        let addr = Address { segment: SegmentId(segment as u32), slot: Slot(self.below(1 << 24) as u32) };
        MapValue::At(BlockRef { addr, form: Form(self.below(192) as u8), crc: self.next() as u32 })
    }
    fn value(&mut self) -> MapValue {
        match self.below(10) {
            0 => MapValue::Hole,
            1 => MapValue::Zero,
            _ => self.at(),
        }
    }
}

/// A store of nodes, a cache, and counts of loaded nodes by level.
struct World {
    cache: NodeCache,
    store: HashMap<u64, Vec<u8>>,
    loads: [u64; MAX_HEIGHT as usize],
}

impl World {
    fn new() -> World {
        World { cache: NodeCache::new(0), store: HashMap::new(), loads: [0; MAX_HEIGHT as usize] }
    }

    fn load(&mut self, need: NeedNode) {
        self.loads[usize::from(need.index.level())] += 1;
        let node = need.accept(&self.store[&need.at.addr.to_u64()]).expect("stored nodes decode");
        self.cache.insert(need.at, node);
    }

    fn retry<R>(&mut self, mut op: impl FnMut(&NodeCache) -> Result<R, NeedNode>) -> R {
        for _ in 0..2000 {
            match op(&self.cache) {
                Ok(r) => return r,
                Err(need) => self.load(need),
            }
        }
        panic!("an operation makes no progress");
    }

    /// Appends a node and returns its reference; checks the layout's bounds.
    fn append(&mut self, node: &MapNode) -> BlockRef {
        let bytes = node.encode();
        let key = self.store.len() as u32;
        let addr = Address { segment: SegmentId(1 + key / 1000), slot: Slot(key % 1000) };
        let at = BlockRef { addr, form: MapNode::form(&bytes), crc: key };
        assert_eq!(is_full(at), matches!(node.entries, NodeEntries::Full(_)), "the form marks a full node");
        if let NodeEntries::Sparse { base: Some(base), places } = &node.entries {
            let base = MapNode::decode(&self.store[&base.addr.to_u64()]).unwrap();
            assert_eq!((base.level, base.index), (node.level, node.index));
            assert!(
                !matches!(base.entries, NodeEntries::Sparse { base: Some(_), .. }),
                "a chain of two steps"
            );
            assert!(places.len() <= SPARSE_MAX);
        }
        self.store.insert(addr.to_u64(), bytes);
        at
    }

    fn write_out(&mut self, trees: &[Tree]) -> usize {
        let groups = collect_dirty(trees.iter());
        for group in &groups {
            for node in group {
                let at = self.append(&node.encode());
                node.set_stored(at);
            }
        }
        groups.iter().map(Vec::len).sum()
    }

    /// A whole checkpoint without concurrent writes; returns the number of nodes that it stored.
    fn checkpoint<'a>(&mut self, trees: impl IntoIterator<Item = &'a mut Tree>) -> usize {
        let mut trees: Vec<_> = trees.into_iter().collect();
        let copies: Vec<_> = trees.iter().map(|t| (**t).clone()).collect();
        let stored = self.write_out(&copies);
        drop(copies);
        trees.iter_mut().for_each(|t| t.settle(&self.cache));
        stored
    }

    fn get(&mut self, tree: &Tree, block: u64) -> MapValue {
        self.retry(|cache| tree.get(cache, block))
    }

    fn set(&mut self, tree: &mut Tree, block: u64, value: MapValue) {
        self.retry(|cache| tree.set(cache, block, value));
    }

    fn range(&mut self, tree: &Tree, first: u64, count: usize) -> Vec<MapValue> {
        let mut out = vec![MapValue::Zero; count];
        let mut done = 0;
        loop {
            let (n, need) = tree.get_range(&self.cache, first + done as u64, &mut out[done..]);
            done += n;
            match need {
                Some(need) => self.load(need),
                None => break,
            }
        }
        assert_eq!(done, count);
        out
    }
}

/// A disk: its map, and the model that the map must match.
#[derive(Clone)]
struct Twin {
    tree: Tree,
    model: BTreeMap<u64, MapValue>,
}

impl Twin {
    fn new(blocks: u64) -> Twin {
        Twin { tree: Tree::new(blocks), model: BTreeMap::new() }
    }

    fn put(&mut self, block: u64, value: MapValue) {
        match value {
            MapValue::Hole => self.model.remove(&block),
            value => self.model.insert(block, value),
        };
    }

    fn change(&mut self, world: &mut World, rng: &mut Rng) {
        let blocks = self.tree.blocks();
        match rng.below(24) {
            // Repeatedly in a few regions, so that leaves fill up and merge.
            0..12 => {
                let first = (rng.below(4) * blocks / 4 + rng.below(600)).min(blocks - 1);
                for block in first..(first + 1 + rng.below(60)).min(blocks) {
                    let value = rng.value();
                    world.set(&mut self.tree, block, value);
                    self.put(block, value);
                }
            }
            12..20 => {
                let (block, value) = (rng.below(blocks), rng.value());
                world.set(&mut self.tree, block, value);
                self.put(block, value);
            }
            20..23 => {
                let first = rng.below(blocks);
                let longest = if rng.chance(3) { blocks - first } else { (blocks - first).min(700) };
                let count = 1 + rng.below(longest);
                // The model holds single blocks, so the number of zeroes is limited.
                let zero = count < 100_000 && rng.chance(2);
                let value = if zero { MapValue::Zero } else { MapValue::Hole };
                world.retry(|cache| self.tree.fill(cache, first, count, value));
                let mut tail = self.model.split_off(&first);
                self.model.append(&mut tail.split_off(&(first + count)));
                if zero {
                    (first..first + count).for_each(|b| self.put(b, value));
                }
            }
            _ => {
                let blocks = match rng.below(4) {
                    0 => 1 + rng.below(1 << 34),
                    1 => 1 + rng.below(300),
                    2 => 1 << (8 * (1 + rng.below(3))),
                    _ => 1 + rng.below(200_000),
                };
                world.retry(|cache| self.tree.resize(cache, blocks));
                self.model.split_off(&blocks);
                assert_eq!(self.tree.blocks(), blocks);
            }
        }
    }

    /// Copies a range from another disk, or from an earlier state of this one: to the same blocks, to a
    /// distance of a leaf or a subtree, or to any.
    fn copy(&mut self, source: &Twin, world: &mut World, rng: &mut Rng) {
        let (blocks, there) = (self.tree.blocks(), source.tree.blocks());
        let unit = 1 << (8 * rng.below(3));
        let (first, from) = (rng.below(blocks) / unit * unit, rng.below(there) / unit * unit);
        let from = if rng.chance(2) { first } else { from };
        if from >= there {
            return;
        }
        let longest = (blocks - first).min(there - from);
        let count = if rng.chance(2) { longest } else { 1 + rng.below(longest.min(2000)) };
        let mut done = 0;
        while done < count {
            let step =
                |cache: &_| self.tree.copy(cache, first + done, &source.tree, from + done, count - done);
            let n = world.retry(step);
            assert!(n > 0 && n <= count - done);
            done += n;
        }
        let mut tail = self.model.split_off(&first);
        self.model.append(&mut tail.split_off(&(first + count)));
        let copied = source.model.range(from..from + count);
        self.model.extend(copied.map(|(block, value)| (block - from + first, *value)));
    }

    fn expect(&self, block: u64) -> MapValue {
        self.model.get(&block).copied().unwrap_or_default()
    }

    fn check_some(&self, world: &mut World, rng: &mut Rng) {
        let blocks = self.tree.blocks();
        for _ in 0..4 {
            let block = rng.below(blocks);
            assert_eq!(world.get(&self.tree, block), self.expect(block));
        }
        let first = rng.below(blocks);
        let count = (1 + rng.below(900)).min(blocks - first);
        let range = world.range(&self.tree, first, count as usize);
        (first..).zip(&range).for_each(|(b, v)| assert_eq!(*v, self.expect(b), "block {b}"));
    }

    /// Checks everything: by runs over the whole disk, and each block of the model.
    fn check_all(&self, world: &mut World) {
        let (mut at, mut data, mut zero) = (0, 0, 0);
        while at < self.tree.blocks() {
            let left = self.tree.blocks() - at;
            let (kind, len) = world.retry(|cache| self.tree.run(cache, at, left));
            match kind {
                RunKind::Hole => assert!(self.model.range(at..at + len).next().is_none()),
                RunKind::Zero => zero += len,
                RunKind::Data => data += len,
            }
            at += len;
        }
        assert_eq!(at, self.tree.blocks());
        let zeroes = self.model.values().filter(|v| **v == MapValue::Zero).count() as u64;
        assert_eq!((data, zero), (self.model.len() as u64 - zeroes, zeroes));
        for (block, value) in &self.model {
            assert_eq!(world.get(&self.tree, *block), *value, "block {block}");
        }
    }
}

/// One history: several disks that are cloned from each other, changed, checkpointed, evicted, restarted.
fn history(seed: u64, steps: u64) {
    let mut rng = Rng(seed);
    let mut world = World::new();
    let mut disks = vec![Twin::new(70_000), Twin::new(200), Twin::new(1 << 34)];
    let mut under_way: Option<Vec<Twin>> = None;
    for _ in 0..steps {
        let i = rng.below(disks.len() as u64) as usize;
        match rng.below(40) {
            0 if disks.len() < 6 => {
                let clone = disks[i].clone();
                disks.push(clone);
            }
            1 if disks.len() > 3 => drop(disks.swap_remove(i)),
            // A checkpoint copies the trees; writes continue; it is written; writes continue; it is
            // completed.
            2 | 3 => match under_way.take() {
                None => under_way = Some(disks.clone()),
                Some(copies) => {
                    let trees: Vec<_> = copies.iter().map(|t| t.tree.clone()).collect();
                    world.write_out(&trees);
                    drop(trees);
                    disks[i].change(&mut world, &mut rng);
                    disks.iter_mut().for_each(|d| d.tree.settle(&world.cache));
                    if rng.chance(3) {
                        // After a restart, the state is that of the checkpoint's copies, read through an
                        // empty cache.
                        world.cache.clear();
                        for copy in &copies {
                            let (root, height) = copy.tree.record().expect("stored");
                            let tree = Tree::from_record(root, height, copy.tree.blocks()).unwrap();
                            Twin { tree, model: copy.model.clone() }.check_all(&mut world);
                        }
                    }
                }
            },
            4 => world.cache.clear(),
            5..8 => {
                let source = disks[rng.below(disks.len() as u64) as usize].clone();
                disks[i].copy(&source, &mut world, &mut rng);
            }
            _ => disks[i].change(&mut world, &mut rng),
        }
        disks[i % disks.len()].check_some(&mut world, &mut rng);
    }
    disks.iter().for_each(|d| d.check_all(&mut world));
    world.checkpoint(disks.iter_mut().map(|d| &mut d.tree));
    world.cache.clear();
    disks.iter().for_each(|d| d.check_all(&mut world));
}

#[test]
fn behaves_as_the_model() {
    (0..24).for_each(|seed| history(seed, 400));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 16, failure_persistence: None, ..Default::default() })]
    #[test]
    fn a_leaf_keeps_what_it_is_given(seed: u64, places in proptest::collection::vec(0u8.., 0..400)) {
        let mut rng = Rng(seed);
        let mut world = World::new();
        let mut twin = Twin::new(256);
        for (n, place) in places.into_iter().enumerate() {
            let value = rng.value();
            world.set(&mut twin.tree, place.into(), value);
            twin.put(place.into(), value);
            if n % 50 == 49 {
                world.checkpoint([&mut twin.tree]);
            }
            twin.check_some(&mut world, &mut rng);
        }
        twin.check_all(&mut world);
    }
}

/// A disk of full leaves that is stored completely, with no node in memory.
fn image(world: &mut World, leaves: u64) -> Tree {
    let mut rng = Rng(7);
    let mut tree = Tree::new(leaves * FANOUT as u64);
    for block in 0..tree.blocks() {
        world.set(&mut tree, block, rng.at());
    }
    world.checkpoint([&mut tree]);
    world.cache.clear();
    tree
}

#[test]
fn a_base_counts_only_where_it_is_not_covered() {
    let mut world = World::new();
    let tree = image(&mut world, 1);
    let mut clone = tree.clone();
    world.set(&mut clone, 3, MapValue::Hole);
    world.set(&mut clone, 200, MapValue::Zero);
    world.checkpoint([&mut clone]);
    let Some(Ref::Node(need)) = clone.root() else { panic!("a stored root") };
    let leaf = world.retry(|cache| cache.get(need));
    let mut base = None;
    leaf.references(|r| match r {
        Ref::Base(need) => base = Some(need),
        other => panic!("expected no listed block, found a reference to {other:?}"),
    });
    let base = world.retry(|cache| cache.get(base.expect("the leaf is based on the image's leaf")));
    let mut rest = Vec::new();
    leaf.uncovered(&base, |at| rest.push(MapValue::At(at)));
    let visible: Vec<_> = (0..256).filter(|b| ![3, 200].contains(b)).map(|b| world.get(&tree, b)).collect();
    assert_eq!(rest, visible);
}

/// Number of distinct stored nodes below some trees, bases included.
fn distinct<'a>(world: &mut World, trees: impl IntoIterator<Item = &'a Tree>) -> usize {
    let mut seen = HashSet::new();
    let mut todo: Vec<Ref> = trees.into_iter().filter_map(Tree::root).collect();
    while let Some(reference) = todo.pop() {
        match reference {
            Ref::Block(_) => {}
            Ref::Memory(_) => panic!("all is stored"),
            Ref::Node(need) | Ref::Base(need) => {
                if seen.insert(need.at.addr) {
                    let node = need.accept(&world.store[&need.at.addr.to_u64()]).unwrap();
                    node.references(|r| todo.push(r));
                }
            }
        }
    }
    seen.len()
}

#[test]
fn clones_share_all_that_they_have_not_written() {
    let mut world = World::new();
    let image = image(&mut world, 300);
    // 300 leaves, two nodes above them, the root.
    assert_eq!(distinct(&mut world, [&image]), 303);
    let mut clones = vec![image.clone(); 50];
    for (i, clone) in clones.iter_mut().enumerate() {
        world.set(clone, i as u64 * 100, MapValue::Zero);
    }
    // Each clone adds a leaf, an inner node and a root.
    assert_eq!(world.checkpoint(&mut clones), 50 * 3);
    assert_eq!(distinct(&mut world, clones.iter().chain([&image])), 303 + 50 * 3);
    // Nodes that a clone shares with its own clone are stored once.
    let (a, mut b) = (clones[0].clone(), clones[0].clone());
    world.set(&mut b, 70_000, MapValue::Hole);
    let mut c = b.clone();
    assert_eq!(world.checkpoint([&mut b, &mut c]), 3);
    assert_eq!(b.record(), c.record());
    assert_eq!(a.record(), clones[0].record());
}

/// Copying to the same blocks of another disk: nodes that neither rewrites are stored once, and copied
/// unread.
#[test]
fn a_copy_to_the_same_place_shares_whole_subtrees() {
    let mut world = World::new();
    let source = image(&mut world, 600);
    let blocks = source.blocks();
    let mut tree = Tree::new(1 << 30);
    world.loads = Default::default();
    let (mut done, mut steps) = (0, 0);
    while done < blocks {
        done += world.retry(|cache| tree.copy(cache, done, &source, done, blocks - done));
        steps += 1;
    }
    assert!(steps <= 4 + 2 * 256, "{steps} steps");
    assert_eq!(world.loads[0], 0, "no leaf is read");
    assert!(world.checkpoint([&mut tree]) <= 4, "only the path to them is new");
    for block in [0, 65_535, 65_536, blocks - 1] {
        assert_eq!(world.get(&tree, block), world.get(&source, block));
    }
    assert_eq!(world.get(&tree, blocks), MapValue::Hole);
}

#[test]
fn the_first_write_to_a_full_leaf_reads_no_leaf() {
    let mut world = World::new();
    let image = image(&mut world, 300);
    let mut clone = image.clone();
    world.loads = Default::default();
    for block in [5, 6, 5, 255, 256, 60_000] {
        world.set(&mut clone, block, MapValue::Zero);
    }
    assert_eq!(world.loads[..3], [0, 1, 1], "two entries of one inner node, below the root");
    let groups = collect_dirty([&clone].into_iter());
    assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [3, 1, 1]);
    for leaf in &groups[0] {
        assert!(leaf.encode().encode().len() <= 128, "a few entries take little space on the store");
    }
    assert_eq!(world.get(&clone, 6), MapValue::Zero);
    assert_eq!(world.loads[0], 0, "written entries are in memory");
    assert_eq!(world.get(&clone, 7), world.get(&image, 7));
    assert_eq!(world.loads[0], 1);
}

#[test]
fn a_leaf_that_may_have_a_base_is_read_before_it_is_changed() {
    let mut world = World::new();
    let mut clone = image(&mut world, 2);
    let before: Vec<_> = (0..256).map(|b| world.get(&clone, b)).collect();
    for block in 0..150 {
        world.set(&mut clone, block, MapValue::Zero);
        // Cold each time: the list grows beyond the size at which it merges with a base in memory.
        world.checkpoint([&mut clone]);
        world.cache.clear();
    }
    let expected: Vec<_> = (0..256).map(|b| if b < 150 { MapValue::Zero } else { before[b] }).collect();
    assert_eq!(world.range(&clone, 0, 256), expected);
}

#[test]
fn huge_holes_and_zeroes_cost_nothing() {
    let mut world = World::new();
    let mut tree = Tree::new(1 << 34);
    assert_eq!(tree.run(&world.cache, 0, u64::MAX), Ok((RunKind::Hole, 1 << 34)));
    world.retry(|cache| tree.fill(cache, 1, (1 << 34) - 1, MapValue::Zero));
    let nodes: usize = collect_dirty([&tree].into_iter()).iter().map(Vec::len).sum();
    assert_eq!(nodes, 5, "one for each level");
    assert_eq!(tree.run(&world.cache, 0, u64::MAX), Ok((RunKind::Hole, 1)));
    assert_eq!(tree.run(&world.cache, 1, 1000), Ok((RunKind::Zero, 1000)));
    world.retry(|cache| tree.fill(cache, 0, 1 << 34, MapValue::Hole));
    assert_eq!(tree.record(), Some((MapValue::Hole, 5)));
    assert_eq!(collect_dirty([&tree].into_iter()).len(), 0);
}

#[test]
fn shrunk_and_grown_again_reads_holes() {
    let mut world = World::new();
    let mut tree = image(&mut world, 300);
    for blocks in [70_000, 10, 76_800, 0, 76_800] {
        world.retry(|cache| tree.resize(cache, blocks));
    }
    assert_eq!(tree.record(), Some((MapValue::Hole, 3)));
    let mut tree = image(&mut world, 300);
    world.retry(|cache| tree.resize(cache, 10));
    let kept = world.range(&tree, 0, 10);
    world.retry(|cache| tree.resize(cache, 1 << 34));
    assert_eq!(world.range(&tree, 0, 10), kept);
    assert_eq!(world.range(&tree, 10, 300), [MapValue::Hole; 300]);
    assert_eq!(world.get(&tree, (1 << 34) - 1), MapValue::Hole);
}

#[test]
fn a_node_of_another_place_is_refused() {
    let mut world = World::new();
    let tree = image(&mut world, 300);
    let need = tree.get(&world.cache, 0).unwrap_err();
    world.load(need);
    let need = tree.get(&world.cache, 0).unwrap_err();
    let other = tree.get(&world.cache, 70_000).unwrap_err();
    let bytes = &world.store[&other.at.addr.to_u64()];
    assert_eq!(need.accept(bytes).unwrap_err(), FormatError::Foreign { what: "map node", field: "index" });
    assert!(other.accept(bytes).is_ok());
    // It is not used either if it is cached under the address of the other.
    let node = other.accept(bytes).unwrap();
    world.cache.insert(need.at, node);
    assert_eq!(tree.get(&world.cache, 0), Err(need));
}

#[test]
fn a_base_with_a_base_is_refused() {
    let places = vec![(1, MapValue::Zero)];
    let at = |slot| BlockRef {
        addr: Address { segment: SegmentId(1), slot: Slot(slot) },
        form: Form::raw(64),
        crc: 0,
    };
    let sparse = |base, level| MapNode {
        level,
        index: 0,
        entries: NodeEntries::Sparse { base, places: places.clone() },
    };
    let need = NeedNode::base(at(2), NodeIndex::root(1));
    assert!(need.accept(&sparse(None, 0).encode()).is_ok());
    let error = need.accept(&sparse(Some(at(3)), 0).encode()).unwrap_err();
    assert_eq!(error, FormatError::Value { what: "map node", field: "base" });
    // Also refused: bases above the leaves, levels above the fifth, numbers beyond the level's.
    assert!(Node::from_format(sparse(Some(at(3)), 1)).is_err());
    assert!(Node::from_format(sparse(None, MAX_HEIGHT)).is_err());
    assert!(Node::from_format(MapNode { index: 1 << 26, ..sparse(None, 0) }).is_err());
    assert!(Tree::from_record(MapValue::Hole, 1, 257).is_err());
}

#[test]
fn the_cache_keeps_to_its_budget() {
    let mut world = World::new();
    let tree = image(&mut world, 1500);
    world.range(&tree, 0, 1500 * FANOUT);
    let stats = world.cache.stats();
    assert!(stats.bytes <= stats.budget && stats.bytes > stats.budget / 2, "{stats:?}");
    assert!(stats.misses >= 1500 && stats.hits > 0, "{stats:?}");
    world.cache.clear();
    assert_eq!(world.cache.stats().bytes, 0);
}

#[test]
fn a_tree_lets_go_of_what_was_stored() {
    let mut world = World::new();
    let mut tree = image(&mut world, 300);
    let mut clone = tree.clone();
    for block in (0..76_800).step_by(5) {
        world.set(&mut clone, block, MapValue::Zero);
    }
    // A clone of an unstored tree, changed before, during and after the checkpoint that stores it.
    let mut second = clone.clone();
    world.set(&mut second, 1, MapValue::Hole);
    let copies = [clone.clone(), second.clone()];
    world.set(&mut second, 2, MapValue::Hole);
    world.write_out(&copies);
    drop(copies);
    world.set(&mut second, 3, MapValue::Hole);
    [&mut clone, &mut second, &mut tree].into_iter().for_each(|t| t.settle(&world.cache));
    assert!(clone.record().is_some() && collect_dirty([&clone].into_iter()).is_empty());
    let left: usize = collect_dirty([&second].into_iter()).iter().map(Vec::len).sum();
    assert_eq!(left, 3, "later writes: a leaf, and the nodes above it");
    world.cache.clear();
    assert_eq!(world.get(&second, 5), MapValue::Zero);
    assert_eq!(world.range(&second, 1, 3), [MapValue::Hole; 3]);
}
