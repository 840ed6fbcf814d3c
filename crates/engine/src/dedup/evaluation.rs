//! How many duplicates a bounded index finds, on traces of fingerprints in the shapes of virtual machines.
//!
//! `cargo test --release --lib dedup::evaluation -- --ignored --nocapture` prints a table; `BLOCKS` is the
//! size of an image (default: 1 million), `BUDGETS` are the bytes of index for each MB of stored data.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use forebay_format::{Address, Form, SlotKind};

use super::*;
use crate::stats::ReductionStats;

/// Stored bytes of a block of a system's files: a third, as in the benchmark.
const STORED: u64 = 1344;
const SEGMENT_BYTES: u64 = 64 << 20;

/// A splitmix64 generator.
struct Random(u64);

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Approximately normally distributed, with a mean of 0 and a deviation of 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.next() as f64 / u64::MAX as f64).sum::<f64>() - 6.0
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        (1..items.len()).rev().for_each(|i| items.swap(i, self.below(i + 1)));
    }
}

/// A file: its number, and its blocks. The content of a block is a number too.
#[derive(Clone)]
struct File(Vec<u64>);

type Package = Vec<File>;

struct Generator {
    random: Random,
    next: u64,
}

impl Generator {
    fn new_block(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn file(&mut self) -> File {
        let blocks = (1.0 + 1.6 * self.random.normal()).exp().clamp(1.0, 4096.0) as usize;
        File((0..blocks).map(|_| self.new_block()).collect())
    }

    fn packages(&mut self, blocks: usize) -> Vec<Package> {
        let (mut packages, mut total) = (Vec::new(), 0);
        while total < blocks {
            let files = (3.0 + 1.2 * self.random.normal()).exp().clamp(1.0, 3000.0) as usize;
            let package: Package = (0..files).map(|_| self.file()).collect();
            total += package.iter().map(|f| f.0.len()).sum::<usize>();
            packages.push(package);
        }
        packages
    }

    /// The blocks of an image: data, and some metadata that is different in each image.
    fn image<'a>(&mut self, files: impl Iterator<Item = &'a File>) -> Vec<u64> {
        let mut image = Vec::new();
        for block in files.flat_map(|f| &f.0) {
            if image.len().is_multiple_of(32) {
                image.push(self.new_block());
            }
            image.push(*block);
        }
        image
    }

    /// In one of 15 files everything from some block on is different.
    fn release(&mut self, packages: &[Package]) -> Vec<Package> {
        let mut packages = packages.to_vec();
        for file in packages.iter_mut().flatten() {
            if self.random.below(15) == 0 {
                let from = self.random.below(file.0.len());
                file.0[from..].iter_mut().for_each(|block| *block = self.new_block());
            }
        }
        packages
    }
}

/// A part of a trace. Its groups have `group` blocks each.
struct Phase {
    name: &'static str,
    group: usize,
    blocks: Vec<u64>,
}

/// The benchmark's imports, then clones that receive the same files, then harder shapes.
fn trace(image: usize) -> Vec<Phase> {
    let mut g = Generator { random: Random(7), next: 0 };
    let common = g.packages(image / 5 * 4);
    let (one, other) = (g.packages(image / 5), g.packages(image / 5));
    let mut phases = Vec::new();
    let mut add = |name, group, blocks| phases.push(Phase { name, group, blocks });
    let first: Vec<Package> = [common.clone(), one].concat();
    add("first image", 8192, g.image(first.iter().flatten()));
    let mut second = [common, other].concat();
    g.random.shuffle(&mut second);
    add("other packages, other order", 8192, g.image(second.iter().flatten()));
    let mut release = g.release(&first);
    add("point release", 8192, g.image(release.iter().flatten()));
    release = g.release(&release);
    g.random.shuffle(&mut release);
    add("next one, other order", 8192, g.image(release.iter().flatten()));
    let update: Vec<Package> = g.packages(image / 12);
    let mut files: Vec<&File> = update.iter().flatten().collect();
    for name in ["update of a clone", "same files in 19 clones"] {
        let times = if name.starts_with("same") { 19 } else { 1 };
        let mut blocks = Vec::new();
        for _ in 0..times {
            blocks.extend(g.image(files.iter().copied()));
            g.random.shuffle(&mut files);
        }
        add(name, 1024, blocks);
    }
    let mut parts: Vec<&Package> = first.iter().collect();
    g.random.shuffle(&mut parts);
    add("packages of it, small commits", 128, g.image(parts[..parts.len() / 8].iter().copied().flatten()));
    add("other data", 4096, (0..image / 4).map(|_| g.new_block()).collect());
    let mut files: Vec<&File> = first.iter().flatten().collect();
    g.random.shuffle(&mut files);
    add("its files, shuffled", 4096, g.image(files[..files.len() / 4].iter().copied()));
    let mut scattered = first.iter().flatten().flat_map(|f| f.0.iter().copied()).collect::<Vec<_>>();
    g.random.shuffle(&mut scattered);
    scattered.truncate(image / 16);
    add("its blocks, shuffled", 4096, scattered);
    phases
}

/// The fingerprint of a block.
pub(super) fn print(block: u64) -> Fingerprint {
    let mut fingerprint = Fingerprint::default();
    fingerprint.0[..8].copy_from_slice(&mix(block ^ 0x1234_5678_9abc_def0).to_le_bytes());
    fingerprint.0[8..].copy_from_slice(&mix(block.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes());
    fingerprint
}

#[derive(Default)]
struct Figures {
    findable: u64,
    found: u64,
    reads: u64,
    read_bytes: u64,
    time: Duration,
}

/// A pool that consists of an index and the directories of its segments.
struct Model {
    index: Dedup,
    segments: Vec<Vec<DirectoryEntry>>,
    seen: HashSet<u64>,
}

impl Model {
    fn new(budget: u64) -> Model {
        Model { index: Dedup::new(budget, 0), segments: vec![Vec::new()], seen: HashSet::new() }
    }

    fn store(&mut self, block: u64) {
        let most = (SEGMENT_BYTES / STORED) as usize;
        if self.segments.last().is_none_or(|open| open.len() >= most) {
            self.segments.push(Vec::new());
        }
        let segment = SegmentId(self.segments.len() as u32);
        let Some(open) = self.segments.last_mut() else { return };
        let slot = Slot(64 + (open.len() as u64 * STORED / Slot::UNIT as u64) as u32);
        let (form, crc, fingerprint) = (Form::lz4(STORED as usize), block as u32, print(block));
        open.push(DirectoryEntry { slot, form, kind: SlotKind::Block, crc, fingerprint });
        self.index.insert(fingerprint, BlockRef { addr: Address { segment, slot }, form, crc });
    }

    /// Looks up a group as the reducer does, and stores what was not found.
    fn commit(&mut self, group: &[u64], figures: &mut Figures) {
        let begin = Instant::now();
        let prints: Vec<_> = group.iter().map(|block| print(*block)).collect();
        let open = SegmentId(self.segments.len() as u32);
        let directory = |segment: SegmentId| Some(&self.segments[segment.0 as usize - 1][..]);
        let (known, read) = look_up(&mut self.index, &prints, open, directory);
        figures.time += begin.elapsed();
        figures.reads += read.len() as u64;
        figures.read_bytes +=
            read.iter().map(|s| self.segments[s.0 as usize - 1].len() as u64 * 32).sum::<u64>();
        let mut same = HashSet::new();
        for (block, known) in group.iter().zip(&known) {
            assert!(known.is_none_or(|at| at.crc == *block as u32), "a hit is correct");
            figures.findable += u64::from(!self.seen.insert(*block));
            if known.is_some() || !same.insert(*block) {
                figures.found += 1;
            } else {
                self.store(*block);
            }
        }
    }
}

/// What `Reducer::look_up` does with the index and the directories; `None` is the directory of a segment that
/// does not exist. Returns the directories that were read, too.
pub(super) fn look_up<'d>(
    index: &mut Dedup,
    prints: &[Fingerprint],
    open: SegmentId,
    directory: impl Fn(SegmentId) -> Option<&'d [DirectoryEntry]>,
) -> (Vec<Option<BlockRef>>, Vec<SegmentId>) {
    let exists = |at: &BlockRef| directory(at.addr.segment).is_some();
    let mut known: Vec<_> = prints.iter().map(|print| index.find(print).filter(exists)).collect();
    let leads = index.leads(prints.iter().zip(known.iter().copied()));
    let found = leads.into_iter().filter(|segment| directory(*segment).is_some());
    let affordable = found.filter(|segment| *segment == open || index.afford(SEGMENT_BYTES / 64));
    let mut chosen: Vec<_> = affordable.take(4 + prints.len() / 1024).collect();
    let misses = Misses::new(prints.iter().enumerate().filter(|(i, _)| known[*i].is_none()));
    for segment in &chosen {
        let Some(directory) = directory(*segment) else { continue };
        let mut new_hits = 0;
        misses.search(*segment, directory, |i, at| {
            new_hits += usize::from(known[i].is_none());
            known[i] = known[i].or(Some(at));
        });
        if *segment != open {
            let hits = known.iter().flatten().filter(|at| at.addr.segment == *segment);
            let hits: Vec<_> = hits.copied().collect();
            index.keep(*segment, directory, &hits, new_hits);
        }
    }
    chosen.retain(|segment| *segment != open);
    (known, chosen)
}

/// Replays a trace; returns the figures of each phase, and the largest size of the index, in bytes.
fn replay(phases: &[Phase], budget: u64) -> (Vec<Figures>, u64) {
    let mut model = Model::new(budget);
    let mut all = Vec::new();
    let mut most = 0;
    for phase in phases {
        let mut figures = Figures::default();
        for group in phase.blocks.chunks(phase.group) {
            model.commit(group, &mut figures);
            let mut stats = ReductionStats::default();
            model.index.stats(&mut stats);
            most = most.max(stats.index_bytes);
        }
        all.push(figures);
    }
    (all, most)
}

fn stored_bytes(phases: &[Phase]) -> u64 {
    phases.iter().flat_map(|p| &p.blocks).collect::<HashSet<_>>().len() as u64 * STORED
}

fn percent(of: impl Iterator<Item = u64>, total: impl Iterator<Item = u64>) -> f64 {
    100.0 * of.sum::<u64>() as f64 / total.sum::<u64>().max(1) as f64
}

/// This test checks the promised share at a small scale.
#[test]
fn a_ten_thousandth_of_the_stored_bytes_finds_nearly_all_duplicates() {
    let mut phases = trace(150_000);
    phases.truncate(6);
    let budget = stored_bytes(&phases) / 10_000;
    let (figures, most) = replay(&phases, budget);
    let found = percent(figures.iter().map(|f| f.found), figures.iter().map(|f| f.findable));
    assert!(found >= 97.0, "{found}");
    assert!(most <= budget, "{most} of {budget}");
    let reads: u64 = figures.iter().map(|f| f.reads).sum();
    assert!(reads * 500 < figures.iter().map(|f| f.found).sum(), "{reads} directories were read");
}

#[test]
#[ignore = "prints a table; takes minutes"]
fn table() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse().ok());
    let image: usize = number("BLOCKS").unwrap_or(1_000_000);
    let phases = trace(image);
    let stored = stored_bytes(&phases);
    let budgets = std::env::var("BUDGETS").unwrap_or_else(|_| "50 100 200 1000".to_owned());
    println!(
        "{} GB written, {} GB stored",
        phases.iter().map(|p| p.blocks.len()).sum::<usize>() / 262_144,
        stored >> 30
    );
    for part in budgets.split(' ').filter_map(|p| p.parse::<u64>().ok()) {
        let budget = stored * part / 1_000_000;
        let (figures, most) = replay(&phases, budget);
        println!("\n{part} MB per TB: {} KiB, at most {} KiB used", budget >> 10, most >> 10);
        println!(
            "{:32} {:>9} {:>7} {:>12} {:>10} {:>8}",
            "", "findable", "found", "reads/1000", "MB read", "ns each"
        );
        for (phase, f) in phases.iter().zip(&figures) {
            println!(
                "{:32} {:9} {:6.2}% {:12.3} {:10} {:8}",
                phase.name,
                f.findable,
                percent([f.found].into_iter(), [f.findable].into_iter()),
                1000.0 * f.reads as f64 / f.found.max(1) as f64,
                f.read_bytes >> 20,
                f.time.as_nanos() / phase.blocks.len() as u128,
            );
        }
        let usual = || figures.iter().take(8);
        println!(
            "all but the last two: {:.2} %",
            percent(usual().map(|f| f.found), usual().map(|f| f.findable))
        );
    }
}
