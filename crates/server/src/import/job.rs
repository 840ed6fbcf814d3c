//! An import from its start to its end, told as events.
//!
//! It lasts as long as someone receives its events: when they have gone, or the server stops, it is undone.
//! The disk is invisible until it is whole, and a pool that is opened after a crash drops what it finds half
//! imported; so in no case anything is left.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::{Disk, DiskInfo, Error as EngineError};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::file::ImageFile;
use super::pump::{self, Moved};
use super::{Format, Image, ImportError, Result, detect, fetch};
use crate::control::{Control, ControlError, DiskView, ErrorDetail, ServerInfo};

/// Between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_millis(200);
/// Events that wait for a slow receiver; reports of progress beyond are dropped.
const EVENTS: usize = 8;

/// Body of `POST /images`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Name of the new image.
    pub name: String,
    /// Where the file is.
    pub source: Source,
    /// What it is.
    #[serde(default)]
    pub format: Format,
    /// Only disks of the same domain share blocks that they wrote alike.
    #[serde(default)]
    pub dedup_domain: u32,
}

/// Where an image file is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// An absolute path on the server's machine.
    File(PathBuf),
    /// `http://…` or `https://…`
    Url(String),
}

/// What an import does at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The file is fetched; sizes are those of the file.
    Download,
    /// The disk is copied; sizes are those of the disk.
    Import,
}

/// What is told of an import. The last one is `Done` or `Failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// It goes on.
    Progress {
        /// What is done.
        phase: Phase,
        /// Bytes done.
        done_bytes: u64,
        /// Bytes in all, where that is known.
        total_bytes: Option<u64>,
        /// Bytes that were not holes or zeroes.
        written_bytes: u64,
    },
    /// The image is there.
    Done {
        /// The image.
        image: DiskView,
    },
    /// It failed, and nothing is left of it.
    Failed {
        /// Why.
        error: ErrorDetail,
    },
}

/// An event, or the error with its HTTP status: for an import that fails before it began.
pub type Told = std::result::Result<Event, ControlError>;

/// Starts an import. It is undone when the receiver is dropped.
pub async fn start(control: &Control, request: Request) -> crate::control::Result<mpsc::Receiver<Told>> {
    let place = control.begin().await?;
    if *control.stopping().borrow() {
        return Err(ControlError::closed());
    }
    let (tell, told) = mpsc::channel(EVENTS);
    let control = control.clone();
    tokio::spawn(async move {
        let name = request.name.clone();
        let last = match run(&control, request, &tell).await {
            Ok(info) => {
                tracing::info!(name, bytes = info.size, "imported");
                DiskView::new(&info)
                    .map(|image| Event::Done { image })
                    .ok_or_else(|| EngineError::NotFound(info.name.clone()).into())
            }
            Err(e) => {
                tracing::info!(name, error = %e, "import failed");
                Err(ControlError::from(e))
            }
        };
        drop(place);
        // Whoever has gone does not hear how it ended.
        let _ = tell.send(last).await;
    });
    Ok(told)
}

async fn run(control: &Control, request: Request, tell: &mpsc::Sender<Told>) -> Result<DiskInfo> {
    let pool = control.pool();
    // The commonest mistake is said before anything is fetched; the engine has the last word.
    if pool.disk(&request.name).is_ok() {
        return Err(EngineError::Exists(request.name).into());
    }
    let mut reporter = Reporter::new(tell);
    let file =
        or_cancelled(control, tell, open_source(request.source, control.info(), &mut reporter)).await?;
    let format = request.format;
    let image = blocking(move || detect::open(file, format)).await?;
    if image.size() == 0 {
        return Err(ImportError::Empty(request.name));
    }
    let size = image.size().next_multiple_of(512);
    let disk = pool.begin_import(&request.name, size, request.dedup_domain).await?;
    match or_cancelled(control, tell, fill(image, &disk, size, &mut reporter)).await {
        Ok(()) => Ok(pool.finish_import(disk).await?),
        Err(e) => {
            if let Err(undo) = pool.abandon_import(disk).await {
                // The next start of the server drops it.
                tracing::warn!(error = %undo, "an import could not be undone");
            }
            Err(e)
        }
    }
}

async fn open_source(source: Source, server: &ServerInfo, reporter: &mut Reporter<'_>) -> Result<ImageFile> {
    match source {
        Source::File(path) => blocking(move || ImageFile::open(&path)).await,
        Source::Url(url) => {
            fetch::fetch(url, server.data.clone(), server.imports, |done, total| {
                reporter.report(Phase::Download, Moved { done, written: done }, total);
            })
            .await
        }
    }
}

async fn fill(image: Box<dyn Image>, disk: &Arc<Disk>, size: u64, reporter: &mut Reporter<'_>) -> Result<()> {
    pump::copy(image, disk, |moved| reporter.report(Phase::Import, moved, Some(size))).await
}

/// Runs `work` until it ends, or nobody wants it any more.
async fn or_cancelled<T>(
    control: &Control,
    tell: &mpsc::Sender<Told>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut stopping = control.stopping();
    tokio::select! {
        result = work => result,
        () = tell.closed() => Err(ImportError::Cancelled),
        _ = stopping.wait_for(|stopping| *stopping) => Err(ImportError::Cancelled),
    }
}

/// Runs what may block on a thread where it may.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or(Err(ImportError::Internal("reading the file went wrong")))
}

/// Reports progress, but not too often.
struct Reporter<'a> {
    tell: &'a mpsc::Sender<Told>,
    last: Option<(Instant, Phase)>,
}

impl<'a> Reporter<'a> {
    fn new(tell: &'a mpsc::Sender<Told>) -> Self {
        Reporter { tell, last: None }
    }

    fn report(&mut self, phase: Phase, moved: Moved, total: Option<u64>) {
        let now = Instant::now();
        let due = self.last.is_none_or(|(at, p)| p != phase || now - at >= REPORT_EVERY);
        if due || total == Some(moved.done) {
            self.last = Some((now, phase));
            let event = Event::Progress {
                phase,
                done_bytes: moved.done,
                total_bytes: total,
                written_bytes: moved.written,
            };
            // A receiver that is behind misses a report, not an event that matters.
            let _ = self.tell.try_send(Ok(event));
        }
    }
}
