//! Classes: what a guest's file systems say of the blocks of its disk, and what is done on account of it.
//!
//! A disk has a map of its classes ([`ClassMap`]), made by reading it as its guest does; a policy says how blocks of
//! each class are treated: whether they go through the index of fingerprints and are compressed ([`crate::reduce`]),
//! and where they stand in the read cache ([`crate::fetch`], [`crate::commit`]).
//!
//! **The invariant: a map that is wrong or stale costs room or time, never data.** What a block holds is stored and
//! read back whatever its class; a class only chooses between ways to do so that are all right for any block. So
//! nothing here is locked against the guest, and whatever cannot be read or makes no sense is done without.
//!
//! **Where a map comes from.** A disk has one of its own, or the one of the disk that it came from: clones and
//! snapshots share a single copy until they are scanned themselves, and have it again after a reset. A map of its own
//! is a note of the disk ([`crate::notes`]), but for desktops, whose contents do not outlive the server either. Notes
//! are read after the pool was opened, while it serves.
//!
//! **When a disk is scanned** is decided here ([`learn`]), by what is written to blocks that held no file; the scan
//! itself blocks, so whoever runs the pool does it, through a [`Peek`].

mod learn;
mod note;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_format::{BLOCK, DiskId};
use forebay_guest::{CachePriority, Class, ClassMap, Content};

use crate::Result;
use crate::cache::Rank;
use crate::pool::Pool;
use crate::sync::RwLock;
use crate::volume::Volume;

pub(crate) use learn::Learning;
pub use learn::Peek;

/// One in so many reads is counted by class: what all of them would cost is more than they are worth.
const READ_SAMPLE: u64 = 16;

/// What is known of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    map: ClassMap,
    /// What its partitions hold.
    file_systems: Vec<Content>,
    /// When that was found out, in Unix milliseconds.
    learned_ms: u64,
}

impl Known {
    /// Whether there is anything to gain from it.
    fn says_something(&self) -> bool {
        self.map.runs().any(|(_, class)| class != Class::Other)
    }
}

/// The classes of one disk.
#[derive(Default)]
pub(crate) struct Classes {
    state: RwLock<State>,
    /// Goes up when the disk gets other contents: what was read of the former ones says nothing of these.
    contents: AtomicU64,
    /// Bytes written since the last scan to blocks that held no file.
    news: AtomicU64,
    counters: [Counters; Class::COUNT],
}

#[derive(Default)]
struct State {
    /// It was found out of this disk itself, be it that nothing is known.
    own: bool,
    known: Option<Arc<Known>>,
}

/// What guests did to blocks of one class.
#[derive(Default)]
struct Counters {
    written: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Classes {
    fn known(&self) -> Option<Arc<Known>> {
        self.state.read().known.clone()
    }

    /// Takes over what is known of the disk that this one is a copy of from now on.
    pub fn inherit(&self, from: &Classes) {
        let known = from.known();
        self.contents.fetch_add(1, Relaxed);
        self.news.store(0, Relaxed);
        *self.state.write() = State { own: false, known };
    }

    /// Has what was found out of this disk.
    fn set(&self, known: Known) {
        self.news.store(0, Relaxed);
        let known = known.says_something().then(|| Arc::new(known));
        *self.state.write() = State { own: true, known };
    }

    /// Counts a read that has `before` others before it, and was served from RAM or not.
    pub fn note_read(&self, before: u64, offset: u64, hit: bool) {
        if before.is_multiple_of(READ_SAMPLE) {
            self.sample_read(offset / BLOCK as u64, hit);
        }
    }

    #[cold]
    fn sample_read(&self, block: u64, hit: bool) {
        let state = self.state.read();
        if let Some(known) = &state.known {
            let counters = &self.counters[known.map.class_of(block) as usize];
            if hit { &counters.hits } else { &counters.misses }.fetch_add(1, Relaxed);
        }
    }
}

/// Tells classes of blocks that are asked for disk by disk, and in rising order most of the time.
#[derive(Default)]
pub(crate) struct Classifier {
    disk: Option<DiskId>,
    known: Option<Arc<Known>>,
    /// The blocks that are known to be of the class that was told last.
    run: Range<u64>,
    last: Option<Class>,
}

impl Classifier {
    /// The class of a block; `Other` where nothing is known.
    pub fn of(&mut self, volume: &Volume, block: u64) -> Class {
        if self.disk != Some(volume.id()) {
            let known = volume.classes.known();
            *self = Classifier { disk: Some(volume.id()), known, ..Classifier::default() };
        }
        if !self.run.contains(&block) {
            let run = self.known.as_ref().and_then(|known| known.map.runs_in(block..u64::MAX).next());
            (self.run, self.last) =
                run.map_or((block..u64::MAX, None), |(range, class)| (range, Some(class)));
        }
        self.last.unwrap_or(Class::Other)
    }

    /// The class of a block that is written: where nothing was is a new file now.
    pub fn of_written(&mut self, volume: &Volume, block: u64) -> Class {
        match self.of(volume, block) {
            Class::Free => Class::Other,
            class => class,
        }
    }

    /// Counts a block that is written.
    pub fn count_written(&mut self, volume: &Volume, block: u64) {
        let class = self.of(volume, block);
        if self.known.is_some() {
            volume.classes.counters[class as usize].written.fetch_add(BLOCK as u64, Relaxed);
        }
        if matches!(self.last, None | Some(Class::Free)) {
            volume.classes.news.fetch_add(BLOCK as u64, Relaxed);
        }
    }
}

/// What is known of the classes of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClassesInfo {
    /// When it was learned, in Unix milliseconds; `None` where nothing is known.
    pub learned_ms: Option<u64>,
    /// What the partitions of the disk hold.
    pub file_systems: Vec<Content>,
    /// Each class; none where nothing is known.
    pub classes: Vec<ClassStats>,
}

/// A class of one disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassStats {
    /// The class.
    pub class: Class,
    /// Bytes of the disk that are of it.
    pub bytes: u64,
    /// Bytes that were written to such blocks since the pool was opened.
    pub written_bytes: u64,
    /// Of a sample of the reads, those that were served from RAM ...
    pub read_hits: u64,
    /// ... and those that were not.
    pub read_misses: u64,
}

impl Pool {
    /// Where blocks of a class stand in the read cache.
    pub(crate) fn rank(&self, class: Class) -> Rank {
        match self.config.classes.of(class).cache {
            CachePriority::Never => Rank::Never,
            CachePriority::Low => Rank::Low,
            CachePriority::Normal => Rank::Normal,
            CachePriority::High => Rank::High,
        }
    }

    /// What is known of the classes of a disk, and what was done to them.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`].
    pub fn classes(&self, name: &str) -> Result<ClassesInfo> {
        let disk = self.catalogue.read().find(name)?;
        let Some(known) = disk.classes.known() else { return Ok(ClassesInfo::default()) };
        let bytes = known.map.bytes_per_class();
        let stats = |class: Class| {
            let Counters { written, hits, misses } = &disk.classes.counters[class as usize];
            ClassStats {
                class,
                bytes: bytes[class as usize],
                written_bytes: written.load(Relaxed),
                read_hits: hits.load(Relaxed),
                read_misses: misses.load(Relaxed),
            }
        };
        Ok(ClassesInfo {
            learned_ms: Some(known.learned_ms),
            file_systems: known.file_systems.clone(),
            classes: Class::ALL.map(stats).into(),
        })
    }
}
