//! Execution of an import, with progress events.
//!
//! An import is rolled back when the receiver of its events is dropped or the server stops. The disk is
//! invisible until it is complete, and a pool that is opened after a crash removes incomplete imports. So a
//! failed import never leaves anything behind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_api::import::{Event, Format, Imported, Phase, Request, Source};
use forebay_api::{ErrorKind, JobKind, JobView};
use forebay_cluster::names::Kind;
use forebay_engine::{DiskHandle, DiskInfo, Error as EngineError, check_name};
use forebay_text::{Size, quoted, shortened};
use tokio::sync::mpsc;

use super::file::ImageFile;
use super::ova::Ova;
use super::pump::{self, Copied};
use super::spool::{KeepFree, Spool};
use super::unpack::{self, Packing};
use super::upload::{self, Uploads};
use super::{FetchPolicy, Image, ImportError, Result, decoders, detect, fetch};
use crate::operations::{Control, ControlError, Job, MAX_LOGGED};
use crate::view::disk_view;

/// Minimum interval between progress events.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum size of a file system that counts for the room that downloads keep free. A tenth of a larger disk
/// would be more than writes need while a download stops.
const KEPT_FREE_OF: u64 = 64 << 30;
/// Maximum length of the path or URL of a file, and of a redirect; errors repeat them. Signed URLs have a few
/// KiB.
pub(super) const MAX_SOURCE: usize = 16 << 10;
/// Maximum length of the number or name of a disk in an archive; errors repeat it.
const MAX_DISK: usize = 1024;
/// Capacity of the event channel; progress events beyond it are dropped.
const EVENT_CAPACITY: usize = 8;

/// An event, or the error that ended the import.
pub type EventResult = std::result::Result<Event, ControlError>;

/// The client that requests an import.
#[derive(Clone, Copy)]
pub struct Client<'a> {
    /// Name of the client.
    pub name: &'a str,
    /// All uploads, and the owner of the uploads of this client; `None` without uploads.
    pub uploads: Option<(&'a Uploads, &'a str)>,
    /// Whether the client uses the control socket: it can reach this machine itself.
    pub on_host: bool,
}

/// Starts an import. The import is rolled back when the receiver is dropped or its job is cancelled.
///
/// # Errors
/// The name is invalid or taken, the server stops, or a file on the server or an upload cannot be opened or
/// is no disk image. Later errors are events.
pub async fn start(
    control: &Control,
    request: Request,
    Client { name, uploads, on_host }: Client<'_>,
) -> crate::operations::Result<(JobView, mpsc::Receiver<EventResult>)> {
    // The job, its events and the log repeat them.
    check_name(&request.name)?;
    check_source(&request.source, request.disk.as_deref())?;
    let permit = control.job_permit().await?;
    if *control.stopping().borrow() {
        return Err(control.ended());
    }
    // The engine checks again.
    if control.pool().disk(&request.name).is_ok() {
        return Err(EngineError::Exists(request.name).into());
    }
    let choice = Choice { format: request.format, disk: request.disk };
    let (opened, upload) = match request.source {
        Source::Url(url) => (Opened::Url { url, on_host }, None),
        Source::File(path) => {
            let choice = choice.clone();
            (blocking(move || Opened::of_file(ImageFile::open(&path)?, &choice)).await?, None)
        }
        Source::Upload(id) => {
            let none = || ControlError::new(ErrorKind::NotFound, format!("there is no upload {id}"));
            let (all, owner) = uploads.ok_or_else(none)?;
            let (file, choice) = (upload::open(all, owner, id).await?, choice.clone());
            let opened = blocking(move || Opened::of_file(file, &choice)).await?;
            (opened, Some((all.clone(), owner.to_owned(), id)))
        }
    };
    let terms = Terms {
        name: request.name,
        choice,
        max_bytes: request.max_bytes.unwrap_or(u64::MAX).min(control.info().imports.max_bytes),
        dedup_domain: request.dedup_domain,
    };
    let (events, receiver) = mpsc::channel(EVENT_CAPACITY);
    let control = control.clone();
    let job = control.begin_job(JobKind::Import, Some(&terms.name), name, true);
    let view = job.view();
    let by = name.to_owned();
    tokio::spawn(async move {
        let name = terms.name.clone();
        let import = async { Ok(run(&control, opened, terms, &events, &job).await?) };
        let ended = control.create_named(&[&name], Kind::Image, import).await;
        let imported: crate::operations::Result<Imported> = match ended {
            Ok((info, format)) => {
                tracing::info!(by, "imported image {} of {}, from {format}", quoted(&name), Size(info.size));
                if let Some((all, owner, id)) = upload {
                    all.remove(id, Some(&owner));
                }
                let image = disk_view(&info).ok_or_else(|| EngineError::NotFound(info.name.clone()).into());
                image.map(|image| Imported { image, format })
            }
            Err(e) => {
                let error = shortened(format_args!("{e}"), MAX_LOGGED);
                tracing::info!(by, error, "import failed: image {}", quoted(&name));
                Err(e)
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

/// Checks the length of a URL or path, and of the name of a disk.
fn check_source(source: &Source, disk: Option<&str>) -> crate::operations::Result<()> {
    let len = match source {
        Source::File(path) => path.as_os_str().len(),
        Source::Url(url) => url.len(),
        Source::Upload(_) => 0,
    };
    if len > MAX_SOURCE {
        let why = format!("the source has {len} bytes; a path or URL has at most {MAX_SOURCE}");
        return Err(ControlError::bad_request(why));
    }
    if disk.is_some_and(|disk| disk.len() > MAX_DISK) {
        let why = format!("the number or name of the disk is longer than {MAX_DISK} bytes");
        return Err(ControlError::bad_request(why));
    }
    Ok(())
}

/// What the user has chosen about the file.
#[derive(Clone)]
struct Choice {
    format: Format,
    /// The disk of an archive.
    disk: Option<String>,
}

/// What an import makes of its source.
struct Terms {
    name: String,
    choice: Choice,
    /// Maximum length of a file that is downloaded or decompressed.
    max_bytes: u64,
    dedup_domain: u32,
}

/// The source of an import.
enum Opened {
    Url {
        url: String,
        /// Whether the client uses the control socket.
        on_host: bool,
    },
    Packed(ImageFile, Packing),
    Archive(Box<Ova>),
    Image(Format, Box<dyn Image>),
}

impl Opened {
    /// Detects what a file has.
    fn of_file(file: ImageFile, choice: &Choice) -> Result<Opened> {
        match Packing::detect(&file, choice.format)? {
            Some(packing) => Ok(Opened::Packed(file, packing)),
            None => Opened::of_unpacked(file, choice),
        }
    }

    /// Detects the format of a file that is not compressed as a whole.
    fn of_unpacked(file: ImageFile, choice: &Choice) -> Result<Opened> {
        Ok(match detect::open(file, choice.format, choice.disk.as_deref())? {
            detect::Opened::Image(format, image) => Opened::Image(format, image),
            detect::Opened::Archive(ova) => Opened::Archive(ova),
        })
    }
}

async fn run(
    control: &Control,
    opened: Opened,
    terms: Terms,
    events: &mpsc::Sender<EventResult>,
    job: &Job,
) -> Result<(DiskInfo, Format)> {
    let pool = control.pool();
    let mut reporter = Reporter::new(events, job);
    let prepared = prepare(control, opened, &terms, &mut reporter);
    let (format, image) = or_cancelled(control, events, job, prepared).await?;
    if image.size() == 0 {
        return Err(ImportError::Empty(terms.name));
    }
    let size = image.size().next_multiple_of(512);
    let disk = pool.begin_import(&terms.name, size, terms.dedup_domain).await?;
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

/// Downloads, decompresses and verifies a source, as far as it needs that, and opens the disk in it.
async fn prepare(
    control: &Control,
    mut opened: Opened,
    terms: &Terms,
    reporter: &mut Reporter<'_>,
) -> Result<(Format, Box<dyn Image>)> {
    let choice = terms.choice.clone();
    if let Opened::Url { url, on_host } = opened {
        let (file, choice) =
            (download(control, url, on_host, terms.max_bytes, reporter).await?, choice.clone());
        opened = blocking(move || Opened::of_file(file, &choice)).await?;
    }
    if let Opened::Packed(file, packing) = opened {
        let file = unpacked(control, file, packing, terms.max_bytes, reporter).await?;
        opened = blocking(move || Opened::of_unpacked(file, &choice)).await?;
    }
    match opened {
        Opened::Image(format, image) => Ok((format, image)),
        Opened::Archive(ova) => {
            let total = ova.len();
            let image = verified(*ova, |done| {
                reporter.report(Phase::Verify, Copied { done, written: 0 }, Some(total));
            });
            Ok((Format::Ova, image.await?))
        }
        Opened::Url { .. } | Opened::Packed(..) => Err(ImportError::Internal("a source was not opened")),
    }
}

/// Verifies the disk in an archive, and opens it. Calls `progress` with the bytes that are verified. Dropping
/// the future ends the verification.
async fn verified(ova: Ova, mut progress: impl FnMut(u64)) -> Result<Box<dyn Image>> {
    let (report, mut reports) = mpsc::channel(EVENT_CAPACITY);
    let work = tokio::task::spawn_blocking(move || {
        ova.verify(&report)?;
        ova.into_image()
    });
    while let Some(done) = reports.recv().await {
        progress(done);
    }
    work.await.unwrap_or(Err(ImportError::Internal("the verification panicked")))
}

async fn download(
    control: &Control,
    url: String,
    on_host: bool,
    max_bytes: u64,
    reporter: &mut Reporter<'_>,
) -> Result<ImageFile> {
    let server = control.info();
    let policy = FetchPolicy { max_bytes, ..server.imports };
    fetch::fetch(url, server.data.clone(), keep_free(control), policy, on_host, |done, total| {
        reporter.report(Phase::Download, Copied { done, written: done }, total);
    })
    .await
}

/// The room that files in the data directory leave free.
pub(super) fn keep_free(control: &Control) -> KeepFree {
    let pool = control.pool().clone();
    Box::new(move |total: u64| pool.low_threshold(total.min(KEPT_FREE_OF)))
}

/// Decompresses a file that is compressed as a whole.
async fn unpacked(
    control: &Control,
    file: ImageFile,
    packing: Packing,
    max_bytes: u64,
    reporter: &mut Reporter<'_>,
) -> Result<ImageFile> {
    let total = file.len();
    let (data, keep) = (control.info().data.clone(), keep_free(control));
    let spool = blocking(move || Spool::create(&data, keep)).await?;
    unpack::unpack(file, packing, spool, max_bytes, |progress| {
        let (phase, done) = match progress {
            decoders::Progress::Waits => (Phase::Wait, 0),
            decoders::Progress::Done(done) => (Phase::Unpack, done),
        };
        reporter.report(phase, Copied { done, written: done }, Some(total));
    })
    .await
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
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
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
                Phase::Wait => "waiting for another import to decompress",
                Phase::Unpack => "unpack",
                Phase::Verify => "verify",
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
