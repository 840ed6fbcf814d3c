//! The map against a simple model, through checkpoints that the writes overtake, evictions and restarts.

use std::collections::{BTreeMap, HashMap, HashSet};

use forebay_format::{Address, BlockRef, FANOUT, Form, MapNode, MapValue, NodeEntries, SegmentId, Slot};

use super::*;

/// SplitMix64: enough for tests, and the same everywhere.
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
    /// A stored block; mostly of a segment near the others, at times of any.
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

/// A store of nodes, a cache, and a count of what was loaded, by level.
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
        self.loads[usize::from(need.place.level())] += 1;
        let node = need.accept(&self.store[&need.at.addr.to_u64()]).expect("what was stored is whole");
        self.cache.insert(need.at, node);
    }

    fn retry<R>(&mut self, mut op: impl FnMut(&NodeCache) -> Result<R, NeedNode>) -> R {
        for _ in 0..2000 {
            match op(&self.cache) {
                Ok(r) => return r,
                Err(need) => self.load(need),
            }
        }
        panic!("an operation does not get on");
    }

    /// Appends a node and returns where it is; sees to the layout's bounds.
    fn append(&mut self, node: &MapNode) -> BlockRef {
        let bytes = node.encode();
        let key = self.store.len() as u32;
        let addr = Address { segment: SegmentId(1 + key / 1000), slot: Slot(key % 1000) };
        let at = BlockRef { addr, form: Form::raw(bytes.len()), crc: key };
        assert_eq!(is_full(at), matches!(node.entries, NodeEntries::Full(_)), "a length tells a full node");
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

    /// A whole checkpoint at rest; returns the nodes that it stored.
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

/// A disk, as the map has it and as it must be.
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
            // Around a few places again and again, so that leaves fill and merge.
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
                // A model of single blocks bears only so many zeroes.
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

    /// Everything: by runs over the whole disk, and each block that the model has.
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
            // A checkpoint takes its copies; writes go on; then it is written; writes go on; then it is done.
            2 | 3 => match under_way.take() {
                None => under_way = Some(disks.clone()),
                Some(copies) => {
                    let trees: Vec<_> = copies.iter().map(|t| t.tree.clone()).collect();
                    world.write_out(&trees);
                    drop(trees);
                    disks[i].change(&mut world, &mut rng);
                    disks.iter_mut().for_each(|d| d.tree.settle(&world.cache));
                    if rng.chance(3) {
                        // What a restart finds is what the checkpoint copied, through an empty cache.
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
