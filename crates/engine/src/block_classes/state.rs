//! The classes of one disk: its map, the traffic of each class, and the look-up of a block's class.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_format::{BLOCK, DiskId};
use forebay_guest::{Class, ClassMap, Content};

use crate::ClassReads;
use crate::sync::RwLock;

/// Number of reads of which one is counted by class: counting all reads would cost more than it is worth.
const READ_SAMPLE: u64 = 16;

/// The result of scanning a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Learned {
    pub(crate) map: ClassMap,
    /// The contents of the disk's partitions.
    pub(crate) file_systems: Vec<Content>,
    /// Time of the scan, in Unix milliseconds.
    pub(crate) learned_ms: u64,
}

impl Learned {
    /// Whether any block has a class other than the default.
    fn is_useful(&self) -> bool {
        self.map.runs().any(|(_, class)| class != Class::Other)
    }
}

/// The block classes of one disk.
#[derive(Default)]
pub(crate) struct Classes {
    state: RwLock<State>,
    /// Incremented when the disk gets other contents. The result of a scan that began before is then invalid.
    contents_version: AtomicU64,
    /// Bytes written since the last scan to blocks that belonged to no file.
    changed_bytes: AtomicU64,
    counters: [Counters; Class::COUNT],
}

#[derive(Default)]
struct State {
    /// The map results from a scan of this disk, even if the scan found nothing useful; otherwise the map is
    /// inherited.
    is_separate: bool,
    learned: Option<Arc<Learned>>,
}

/// Traffic of guests to blocks of one class.
#[derive(Default)]
struct Counters {
    written: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Classes {
    pub fn learned(&self) -> Option<Arc<Learned>> {
        self.state.read().learned.clone()
    }

    /// Whether this disk itself was scanned, even if the scan found nothing useful.
    pub fn is_scanned(&self) -> bool {
        self.state.read().is_separate
    }

    /// Bytes of the class map, if no other disk shares it.
    pub fn separate_bytes(&self) -> usize {
        let state = self.state.read();
        let separate = state.learned.as_ref().filter(|_| state.is_separate);
        separate.map_or(0, |learned| learned.map.len() * size_of::<u64>())
    }

    /// A number that changes when the disk gets other contents.
    pub fn contents_version(&self) -> u64 {
        self.contents_version.load(Relaxed)
    }

    /// Bytes written since the last scan to blocks that belonged to no file.
    pub fn changed_bytes(&self) -> u64 {
        self.changed_bytes.load(Relaxed)
    }

    /// Resets [`Self::changed_bytes`], because a scan was requested.
    pub fn forget_changed_bytes(&self) {
        self.changed_bytes.store(0, Relaxed);
    }

    /// Shares a map, unless the disk was scanned or shares another map.
    pub fn share_if_none(&self, learned: Option<Arc<Learned>>) {
        let mut state = self.state.write();
        if !state.is_separate && state.learned.is_none() {
            state.learned = learned;
        }
    }

    /// Shares the map of the disk whose contents this disk gets.
    pub fn inherit(&self, from: &Classes) {
        let learned = from.learned();
        self.contents_version.fetch_add(1, Relaxed);
        self.changed_bytes.store(0, Relaxed);
        *self.state.write() = State { is_separate: false, learned };
    }

    /// Replaces the map by the result of a scan of this disk.
    pub fn set(&self, learned: Learned) {
        self.changed_bytes.store(0, Relaxed);
        let learned = learned.is_useful().then(|| Arc::new(learned));
        *self.state.write() = State { is_separate: true, learned };
    }

    /// Samples reads. If `before`, the number of earlier reads of the disk, is a multiple of the sample
    /// interval, counts this read here and in `total`. `hit`: it was served from RAM.
    pub fn record_read(&self, before: u64, offset: u64, hit: bool, total: &ReadsByClass) {
        if before.is_multiple_of(READ_SAMPLE) {
            self.sample_read(offset / BLOCK as u64, hit, total);
        }
    }

    #[cold]
    fn sample_read(&self, block: u64, hit: bool, total: &ReadsByClass) {
        let state = self.state.read();
        if let Some(learned) = &state.learned {
            let class = learned.map.class_of(block) as usize;
            for counters in [&self.counters, &total.0] {
                let Counters { hits, misses, .. } = &counters[class];
                if hit { hits } else { misses }.fetch_add(1, Relaxed);
            }
        }
    }
}

/// Sampled reads of all disks since the pool was opened.
#[derive(Default)]
pub(crate) struct ReadsByClass([Counters; Class::COUNT]);

impl ReadsByClass {
    /// Estimates of the reads of each class.
    pub fn get(&self) -> Vec<ClassReads> {
        let of = |class: Class| {
            let Counters { hits, misses, .. } = &self.0[class as usize];
            let [hits, misses] = [hits, misses].map(|sampled| sampled.load(Relaxed) * READ_SAMPLE);
            ClassReads { class, hits, misses }
        };
        Class::ALL.into_iter().map(of).collect()
    }
}

/// Looks up the classes of blocks. It is fast if blocks are looked up disk by disk, and mostly in ascending
/// order.
#[derive(Default)]
pub(crate) struct Classifier {
    disk: Option<DiskId>,
    learned: Option<Arc<Learned>>,
    /// The run of blocks around the block that was looked up last; all have the class `last`.
    run: Range<u64>,
    last: Option<Class>,
}

impl Classifier {
    /// The class of a block; `Other` without a map.
    pub fn of(&mut self, disk: DiskId, classes: &Classes, block: u64) -> Class {
        if self.disk != Some(disk) {
            let learned = classes.learned();
            *self = Classifier { disk: Some(disk), learned, ..Classifier::default() };
        }
        if !self.run.contains(&block) {
            let run = self.learned.as_ref().and_then(|learned| learned.map.runs_in(block..u64::MAX).next());
            (self.run, self.last) =
                run.map_or((block..u64::MAX, None), |(range, class)| (range, Some(class)));
        }
        self.last.unwrap_or(Class::Other)
    }

    /// The class of a block that is written: a free block becomes part of a new file, whose class is unknown.
    pub fn of_written(&mut self, disk: DiskId, classes: &Classes, block: u64) -> Class {
        match self.of(disk, classes, block) {
            Class::Free => Class::Other,
            class => class,
        }
    }

    /// Counts a block that is written.
    pub fn count_written(&mut self, disk: DiskId, classes: &Classes, block: u64) {
        let class = self.of(disk, classes, block);
        if self.learned.is_some() {
            classes.counters[class as usize].written.fetch_add(BLOCK as u64, Relaxed);
        }
        if matches!(self.last, None | Some(Class::Free)) {
            classes.changed_bytes.fetch_add(BLOCK as u64, Relaxed);
        }
    }
}

/// The classes of a disk's blocks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClassesInfo {
    /// Time of the scan, in Unix milliseconds; `None` without a map.
    pub learned_ms: Option<u64>,
    /// The contents of the disk's partitions.
    pub file_systems: Vec<Content>,
    /// Figures of each class; empty without a map.
    pub classes: Vec<ClassStats>,
}

/// Figures of one block class of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassStats {
    /// Class of the block.
    pub class: Class,
    /// Bytes of the disk in blocks of this class.
    pub bytes: u64,
    /// Bytes written to these blocks since the pool was opened.
    pub written_bytes: u64,
    /// Sampled reads of these blocks that were served from RAM.
    pub read_hits: u64,
    /// Sampled reads of these blocks that were not served from RAM.
    pub read_misses: u64,
}

impl Classes {
    /// The classes of the disk, and the traffic of each.
    pub fn info(&self) -> ClassesInfo {
        let Some(learned) = self.learned() else { return ClassesInfo::default() };
        let bytes = learned.map.bytes_per_class();
        let stats = |class: Class| {
            let Counters { written, hits, misses } = &self.counters[class as usize];
            ClassStats {
                class,
                bytes: bytes[class as usize],
                written_bytes: written.load(Relaxed),
                read_hits: hits.load(Relaxed),
                read_misses: misses.load(Relaxed),
            }
        };
        ClassesInfo {
            learned_ms: Some(learned.learned_ms),
            file_systems: learned.file_systems.clone(),
            classes: Class::ALL.map(stats).into(),
        }
    }
}
