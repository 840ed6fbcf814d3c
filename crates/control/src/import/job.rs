//! Execution of an import, with progress events.
//!
//! An import is rolled back when the receiver of its events is dropped or the server stops. The disk is
//! invisible until it is complete, and a pool that is opened after a crash removes incomplete imports. So a
//! failed import never leaves anything behind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_api::import::{Event, Format, Imported, Phase, Request, Source};
use forebay_api::{JobKind, JobView};
use forebay_engine::{DiskHandle, DiskInfo, Error as EngineError, check_name};
use forebay_text::{Size, quoted};
use tokio::sync::mpsc;

use super::file::ImageFile;
use super::pump::{self, Copied};
use super::{Image, ImportError, Result, detect, fetch};
use crate::operations::{Control, ControlError, Job};
use crate::view::disk_view;

/// Minimum interval between progress events.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum size of a file system that counts for the room that downloads keep free. A tenth of a larger disk
/// would be more than writes need while a download stops.
const KEPT_FREE_OF: u64 = 64 << 30;
/// Maximum length of the path or URL of a file, and of a redirect; errors repeat them. Signed URLs have a few
/// KiB.
pub(super) const MAX_SOURCE: usize = 16 << 10;
/// Capacity of the event channel; progress events beyond it are dropped.
const EVENT_CAPACITY: usize = 8;

/// An event, or the error that ended the import.
pub type EventResult = std::result::Result<Event, ControlError>;

/// The client that requests an import.
#[derive(Debug, Clone, Copy)]
pub struct Client<'a> {
    /// Name of the client.
    pub name: &'a str,
    /// Whether the client uses the control socket: it can reach this machine itself.
    pub on_host: bool,
}

/// Starts an import. The import is rolled back when the receiver is dropped or its job is cancelled.
///
/// # Errors
/// Errors of the name and of the length of the source; an error if the server stops. Later errors are events.
pub async fn start(
    control: &Control,
    request: Request,
    Client { name: owner, on_host }: Client<'_>,
) -> crate::operations::Result<(JobView, mpsc::Receiver<EventResult>)> {
    // The job, its events and the log repeat them.
    check_name(&request.name)?;
    check_source(&request.source)?;
    let permit = control.job_permit().await?;
    if *control.stopping().borrow() {
        return Err(control.ended());
    }
    let (events, receiver) = mpsc::channel(EVENT_CAPACITY);
    let control = control.clone();
    let job = control.begin_job(JobKind::Import, Some(&request.name), owner, true);
    let view = job.view();
    let by = owner.to_owned();
    tokio::spawn(async move {
        let name = request.name.clone();
        let imported: crate::operations::Result<Imported> =
            match run(&control, request, on_host, &events, &job).await {
                Ok((info, format)) => {
                    tracing::info!(
                        by,
                        "imported image {} of {}, from {format}",
                        quoted(&name),
                        Size(info.size)
                    );
                    let image =
                        disk_view(&info).ok_or_else(|| EngineError::NotFound(info.name.clone()).into());
                    image.map(|image| Imported { image, format })
                }
                Err(e) => {
                    let error = e.to_string();
                    tracing::info!(by, error, "import failed: image {}", quoted(&name));
                    Err(ControlError::from(e))
                }
            };
        drop(permit);
        job.end(&imported);
        // The receiver may be dropped.
        let done = imported.map(|Imported { image, format }| Event::Done { image, format });
        let _ = events.send(done).await;
    });
    Ok((view, receiver))
}

/// Checks the length of a URL or path.
fn check_source(source: &Source) -> crate::operations::Result<()> {
    let len = match source {
        Source::File(path) => path.as_os_str().len(),
        Source::Url(url) => url.len(),
    };
    if len > MAX_SOURCE {
        let why = format!("the source has {len} bytes; a path or URL has at most {MAX_SOURCE}");
        return Err(ControlError::bad_request(why));
    }
    Ok(())
}

async fn run(
    control: &Control,
    request: Request,
    on_host: bool,
    events: &mpsc::Sender<EventResult>,
    job: &Job,
) -> Result<(DiskInfo, Format)> {
    let pool = control.pool();
    // Fails early for an existing name, before the download. The engine checks again.
    if pool.disk(&request.name).is_ok() {
        return Err(EngineError::Exists(request.name).into());
    }
    let mut reporter = Reporter::new(events, job);
    let limit = request.max_bytes;
    let opened = open_source(request.source, limit, on_host, control, &mut reporter);
    let file = or_cancelled(control, events, job, opened).await?;
    let detected = blocking(move || detect::open(file, request.format));
    let (format, image) = or_cancelled(control, events, job, detected).await?;
    if image.size() == 0 {
        return Err(ImportError::Empty(request.name));
    }
    let size = image.size().next_multiple_of(512);
    let disk = pool.begin_import(&request.name, size, request.dedup_domain).await?;
    match or_cancelled(control, events, job, fill(image, &disk, size, &mut reporter)).await {
        Ok(()) => Ok((pool.finish_import(disk).await?, format)),
        Err(e) => {
            if let Err(undo) = pool.abandon_import(disk).await {
                tracing::warn!(error = %undo, "cannot roll back an import; the next server start removes it");
            }
            Err(e)
        }
    }
}

async fn open_source(
    source: Source,
    max_bytes: Option<u64>,
    on_host: bool,
    control: &Control,
    reporter: &mut Reporter<'_>,
) -> Result<ImageFile> {
    match source {
        Source::File(path) => blocking(move || ImageFile::open(&path)).await,
        Source::Url(url) => {
            let (server, pool) = (control.info(), control.pool().clone());
            let mut policy = server.imports;
            policy.max_bytes = max_bytes.unwrap_or(u64::MAX).min(policy.max_bytes);
            let keep_free = Box::new(move |total: u64| pool.low_threshold(total.min(KEPT_FREE_OF)));
            fetch::fetch(url, server.data.clone(), keep_free, policy, on_host, |done, total| {
                reporter.report(Phase::Download, Copied { done, written: done }, total);
            })
            .await
        }
    }
}

async fn fill(
    image: Box<dyn Image>,
    disk: &Arc<DiskHandle>,
    size: u64,
    reporter: &mut Reporter<'_>,
) -> Result<()> {
    pump::copy(image, disk, |copied| reporter.report(Phase::Import, copied, Some(size))).await?;
    // At this point an import can still be cancelled, and other commands can run. The write buffer may hold
    // the whole import.
    Ok(disk.flush().await?)
}

/// Runs `work` until it ends, the receiver of events is dropped, the job is cancelled, or the server stops.
async fn or_cancelled<T>(
    control: &Control,
    events: &mpsc::Sender<EventResult>,
    job: &Job,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::select! {
        result = work => result,
        () = events.closed() => Err(ImportError::Cancelled),
        () = job.cancelled() => Err(ImportError::Cancelled),
        () = control.stopped() => Err(ImportError::Cancelled),
    }
}

/// Runs `work` on a blocking thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or(Err(ImportError::Internal("the thread that opens the file panicked")))
}

/// Sends progress events at a limited rate.
struct Reporter<'a> {
    events: &'a mpsc::Sender<EventResult>,
    job: &'a Job,
    last_event: Option<(Instant, Phase)>,
}

impl<'a> Reporter<'a> {
    fn new(events: &'a mpsc::Sender<EventResult>, job: &'a Job) -> Self {
        Reporter { events, job, last_event: None }
    }

    fn report(&mut self, phase: Phase, copied: Copied, total: Option<u64>) {
        let now = Instant::now();
        let due = self.last_event.is_none_or(|(at, p)| p != phase || now - at >= REPORT_INTERVAL);
        if due || total == Some(copied.done) {
            self.last_event = Some((now, phase));
            let name = match phase {
                Phase::Download => "download",
                Phase::Import => "import",
            };
            self.job.progress(name, copied.done, total);
            let event = Event::Progress {
                phase,
                done_bytes: copied.done,
                total_bytes: total,
                written_bytes: copied.written,
            };
            // A slow receiver misses progress events only.
            let _ = self.events.try_send(Ok(event));
        }
    }
}
