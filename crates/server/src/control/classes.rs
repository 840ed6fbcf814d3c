//! What the API says of the classes of a disk's blocks, and the scan by which they are learned.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use forebay_engine::{ClassStats, ClassesInfo, Peek};
use forebay_guest::{Blocks, Class, Content, Options, ReadError, scan};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};

use super::view::ratio;
use super::{Control, ControlError, Result};

/// How long a scan that nobody waits for works before it rests, and how many times as long it rests then.
const WORK: Duration = Duration::from_millis(10);
const REST: u32 = 3;

/// `GET /volumes/{name}/classes`: what guests' file systems say of a disk.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ClassesView {
    /// When that was learned, in Unix milliseconds; none where nothing is known.
    pub learned_ms: Option<u64>,
    /// What the partitions of the disk hold.
    pub file_systems: Vec<Content>,
    /// Each class; none where nothing is known.
    pub classes: Vec<ClassView>,
}

/// A class of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClassView {
    /// Which one.
    pub class: Class,
    /// Bytes of the disk that are of it.
    pub bytes: u64,
    /// Bytes that were written to such blocks since the pool was opened.
    pub written_bytes: u64,
    /// Of one in sixteen reads, those that were served from RAM.
    pub read_hits: u64,
    /// Of one in sixteen reads, those that had to wait for the store.
    pub read_misses: u64,
    /// Share of these that were served from RAM; none before the first.
    pub hit_rate: Option<f64>,
}

impl From<ClassStats> for ClassView {
    fn from(c: ClassStats) -> ClassView {
        let ClassStats { class, bytes, written_bytes, read_hits, read_misses } = c;
        let hit_rate = ratio(read_hits, read_hits + read_misses);
        ClassView { class, bytes, written_bytes, read_hits, read_misses, hit_rate }
    }
}

impl From<ClassesInfo> for ClassesView {
    fn from(info: ClassesInfo) -> ClassesView {
        let ClassesInfo { learned_ms, file_systems, classes } = info;
        ClassesView { learned_ms, file_systems, classes: classes.into_iter().map(Into::into).collect() }
    }
}

/// Scans, of which there is one at a time: each may take some 200 MiB.
#[derive(Default)]
pub(super) struct Scans {
    one: Mutex<()>,
    /// How many of those under way or in line somebody waits for.
    asked: AtomicUsize,
}

impl Control {
    /// Scans a disk now, because somebody asked for it.
    pub(super) async fn learn_now(&self, name: &str) -> Result<()> {
        let asked = &self.inner.scans.asked;
        asked.fetch_add(1, Relaxed);
        let done = match self.pool().peek(name) {
            Ok(peek) => self.learn(peek).await,
            Err(e) => Err(e.into()),
        };
        asked.fetch_sub(1, Relaxed);
        done
    }

    /// Scans a disk on a thread of its own, and keeps what was found.
    pub(crate) async fn learn(&self, peek: Peek) -> Result<()> {
        let _alone = self.inner.scans.one.lock().await;
        let began = Instant::now();
        let (control, runtime) = (self.clone(), Handle::current());
        let work = move || {
            let mut reader =
                Reader { stopping: control.stopping(), began: Instant::now(), peek, runtime, control };
            let scan = scan(&mut reader, &Options::default());
            (reader.peek, scan)
        };
        let failed = |e| ControlError::internal(format!("the scan failed: {e}"));
        let (peek, scan) = tokio::task::spawn_blocking(work).await.map_err(failed)?;
        if *self.stopping().borrow() {
            return Err(ControlError::closed());
        }
        let file_systems: Vec<Content> = scan.volumes.iter().map(|(_, content)| *content).collect();
        tracing::info!(
            disk = peek.name(),
            ?file_systems,
            runs = scan.map.len(),
            complete = scan.complete,
            failed_reads = scan.failed_reads,
            read_bytes = scan.read_bytes,
            ms = began.elapsed().as_millis(),
            "classes of blocks learned"
        );
        Ok(peek.keep(scan.map, file_systems).await?)
    }
}

/// A disk that is scanned, on a thread that may wait.
struct Reader {
    peek: Peek,
    runtime: Handle,
    control: Control,
    stopping: watch::Receiver<bool>,
    /// When it last rested.
    began: Instant,
}

impl Blocks for Reader {
    fn size(&self) -> u64 {
        self.peek.size()
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> std::result::Result<(), ReadError> {
        if *self.stopping.borrow() {
            return Err(ReadError { offset, source: None });
        }
        let read = self.runtime.block_on(self.peek.read(offset, out));
        self.rest();
        read.map_err(|e| ReadError { offset, source: Some(std::io::Error::other(e)) })
    }

    fn pause(&mut self) -> bool {
        self.rest();
        !*self.stopping.borrow()
    }
}

impl Reader {
    /// Rests if it is time to, whether the time went into reads or into what was read.
    fn rest(&mut self) {
        let worked = self.began.elapsed();
        if worked >= WORK {
            if self.control.inner.scans.asked.load(Relaxed) == 0 {
                thread::sleep(worked * REST);
            }
            self.began = Instant::now();
        }
    }
}
