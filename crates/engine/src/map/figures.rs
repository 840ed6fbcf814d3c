//! Measures the figures in the module documentation: `cargo test --release -p forebay-engine map::figures --
//! --ignored --nocapture --test-threads 1`. They are printed and not asserted, since timing must not fail a
//! test. Times are processor time.

use std::hint::black_box;

use forebay_format::{Address, BlockRef, Form, MapNode, MapValue, SegmentId, Slot};

use super::cache::*;
use super::checkpoint::*;
use super::tree::*;

const BLOCKS: u64 = (40 << 30) / 4096;

/// The reference of the `n`th block that a log stores: raw, in segments of 64 MiB.
fn nth(n: u64) -> MapValue {
    let addr = Address { segment: SegmentId(1 + (n >> 14) as u32), slot: Slot((n & 0x3fff) as u32 * 64) };
    MapValue::At(BlockRef { addr, form: Form::RAW_BLOCK, crc: n as u32 })
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Gives a tree's nodes addresses and inserts the nodes into the cache, as a checkpoint does.
fn store(tree: &mut Tree, cache: &NodeCache, next: &mut u32) -> (usize, usize) {
    let (mut nodes, mut bytes) = (0, 0);
    for group in collect_dirty([&*tree].into_iter()) {
        for node in &group {
            let form = MapNode::form(&node.encode().encode());
            let addr = Address { segment: SegmentId(1 << 20), slot: Slot(*next) };
            node.set_stored(BlockRef { addr, form, crc: 0 });
            (*next, nodes, bytes) = (*next + 1, nodes + 1, bytes + form.stored_len());
        }
    }
    tree.settle(cache);
    (nodes, bytes)
}

fn full_image(cache: &NodeCache, next: &mut u32) -> Tree {
    let mut tree = Tree::new(BLOCKS);
    (0..BLOCKS).for_each(|b| tree.set(cache, b, nth(b)).unwrap());
    store(&mut tree, cache, next);
    tree
}

/// All blocks in a pseudo-random order: a permutation of 24 bits, without the numbers that are out of range.
fn scattered() -> impl Iterator<Item = u64> {
    let mix = |i: u32| {
        let i = i.wrapping_mul(0x9e_3779b1) & 0xff_ffff;
        let i = (i ^ (i >> 11)).wrapping_mul(0x85_ebca6b) & 0xff_ffff;
        u64::from(i ^ (i >> 13))
    };
    (0..1 << 24).map(mix).filter(|b| *b < BLOCKS)
}

/// Processor time of this thread in nanoseconds: not affected by other load on the machine.
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

fn time(what: &str, blocks: &[u64], mut op: impl FnMut(u64)) {
    let start = cpu_ns();
    blocks.iter().for_each(|b| op(*b));
    println!("{what}: {:.0} ns", (cpu_ns() - start) as f64 / blocks.len() as f64);
}

#[test]
#[ignore = "prints figures"]
fn time_of_lookups() {
    let (lock, memory) = (parking_lot::Mutex::new(0), vec![1u8; 110 << 20]);
    time("for comparison: a lock acquired and released", &[0; 1_000_000], |b| *black_box(&lock).lock() += b);
    let (mut at, step) = (0, memory.len() / 2 - 4099);
    time("for comparison: a read in 110 MB that depends on the previous one", &[0; 1_000_000], |_| {
        at = (at * 5 + step * usize::from(memory[at])) % memory.len();
    });
    black_box(at);
    let (cache, mut next) = (NodeCache::new(1 << 30), 0);
    let tree = full_image(&cache, &mut next);
    println!("map of a full 40 GiB image: {:?}", cache.stats());
    let random: Vec<u64> = scattered().take(4_000_000).collect();
    let get = |tree: &Tree, b| _ = black_box(tree.get(&cache, b).expect("cached"));
    time("get, random", &random, |b| get(&tree, b));
    time("get, sequential", &(0..4_000_000).collect::<Vec<_>>(), |b| get(&tree, b));
    let mut out = [MapValue::Hole; 32];
    time("get_range of 32, random", &random[..1_000_000], |b| {
        tree.get_range(&cache, b & !31, &mut out);
    });
    time("run over all 40 GiB", &[0], |b| _ = black_box(tree.run(&cache, b, BLOCKS)));
    let mut clone = tree.clone();
    let written = scattered().take(BLOCKS as usize / 10).zip(BLOCKS..);
    written.for_each(|(b, n)| clone.set(&cache, b, nth(n)).unwrap());
    let random: Vec<u64> = scattered().skip(500_000).take(4_000_000).collect();
    time("get, random, clone with 10 % in memory", &random, |b| get(&clone, b));
    store(&mut clone, &cache, &mut next);
    time("get, random, clone with 10 % stored", &random, |b| get(&clone, b));
}

#[test]
#[ignore = "prints figures"]
fn memory_of_clones() {
    let (cache, mut next) = (NodeCache::new(4 << 30), 0);
    let image = full_image(&cache, &mut next);
    println!("idle clone: {} bytes", size_of::<Tree>());
    for percent in [1, 5, 10, 20, 30, 50] {
        let mut clone = image.clone();
        let count = BLOCKS * percent / 100;
        let (resident_before, cached_before) = (resident(), cache.stats().bytes);
        let start = cpu_ns();
        let written = scattered().take(count as usize).zip(BLOCKS..);
        written.for_each(|(b, n)| clone.set(&cache, b, nth(n)).unwrap());
        let took = (cpu_ns() - start) as f64 / count as f64;
        let per = |bytes: u64| bytes as f64 / count as f64;
        let grown = per(resident().saturating_sub(resident_before));
        let (nodes, bytes) = store(&mut clone, &cache, &mut next);
        println!(
            "{percent:2} % random: {grown:.1} B per block resident while dirty, {:.1} cached, \
             {:.1} on the store in {nodes} nodes; set {took:.0} ns",
            per(cache.stats().bytes - cached_before),
            per(bytes as u64),
        );
    }
}
