//! Exports: a disk is sent to a client as of one moment, as the body of a response.
//!
//! **One moment.** The engine makes a hidden copy of the disk ([`forebay_engine::Export`]), which ends with
//! the export: when the last byte was taken, the client disconnects, its token ends, the job is cancelled,
//! the server stops, or a read fails. A pool that is opened after a crash removes the copy.
//!
//! **Bounds.** [`MAX_EXPORTS`] run at a time, [`MAX_OF_CLIENT`] of them for one client. An export holds
//! [`IN_FLIGHT`] pieces of [`PIECE`] bytes, whatever the size of the disk. It reads one piece at a time, and
//! each read waits for its share of the store next to the reads of guests. An export ends if its client
//! receives no piece for [`STALL`], since the copy keeps blocks that could be freed.
//!
//! **Failures** before the first byte are ordinary errors. After a later failure the connection is closed
//! before the end of the response, and the job of the export has the reason.

mod qcow2;
mod stream;

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use forebay_api::export::{Exported, Format};
use forebay_api::{ErrorKind, JobKind, JobView};
use forebay_engine::Export;
use forebay_frontend::registry::{Registered, Registry};
use forebay_text::{Size, quoted, shortened};
use hyper::body::{Bytes, Frame, SizeHint};
use tokio::sync::{mpsc, oneshot};

use crate::operations::transfer::stream::Position;
use crate::operations::{Control, ControlError, Job, MAX_LOGGED, Result};
use stream::{DISCONNECTED, Plan, Sink};

/// Maximum number of exports that run at the same time.
const MAX_EXPORTS: usize = 8;
/// Maximum number of exports of one client.
const MAX_OF_CLIENT: usize = MAX_EXPORTS / 2;
/// Bytes that are read and sent at once.
const PIECE: u64 = 512 << 10;
/// Pieces that were read and not yet taken by the connection.
const IN_FLIGHT: usize = 4;
/// Time without progress of the client after which an export ends.
const STALL: Duration = Duration::from_secs(300);

/// The clients of the exports that run.
pub(crate) type Exports = Registry<String>;

/// An export that has begun.
pub(crate) struct Begun {
    /// The job of the export.
    pub job: JobView,
    /// Size of the disk in bytes.
    pub size: u64,
    /// The body of the response.
    pub body: ExportBody,
}

/// What a client requests.
pub(crate) struct Request<'a> {
    /// Name of a volume, an image, or `VOLUME@SNAPSHOT`.
    pub disk: &'a str,
    pub format: Format,
    /// The earlier disk, for [`Format::Changes`] and [`Format::Stream`].
    pub since: Option<&'a str>,
    /// Where a stream continues.
    pub position: Position,
    /// Name of the client.
    pub client: &'a str,
    /// The client to which the export is counted.
    pub owner: String,
}

/// Begins an export. It ends when the body is dropped. `is_valid` fails when the client loses its right.
///
/// # Errors
/// Those of [`forebay_engine::Pool::begin_export`] and of a read of the block map; [`ErrorKind::BadState`] if
/// too many exports run.
pub(crate) async fn start(
    control: &Control,
    request: Request<'_>,
    is_valid: impl Fn() -> Result<()> + Send + Sync + 'static,
) -> Result<Begun> {
    let Request { disk, format, since, position, client, owner } = request;
    let counted = admit(control.exports(), owner)?;
    let permit = control.job_permit().await?;
    if *control.stopping().borrow() {
        return Err(control.ended());
    }
    let (sender, pieces) = mpsc::channel(IN_FLIGHT);
    let sink = Sink::new(sender, STALL, Box::new(is_valid));
    let ((planned, plan), (ended, end)) = (oneshot::channel(), oneshot::channel());
    let (control, disk, by) = (control.clone(), disk.to_owned(), client.to_owned());
    let since = since.map(str::to_owned);
    // The future of the caller is dropped when the client disconnects. A copy that is being made then must
    // be removed, too.
    tokio::spawn(async move {
        let done = match control.pool().begin_export_since(&disk, since.as_deref()).await {
            Ok(export) => {
                let job = control.begin_job(JobKind::Export, Some(&disk), &by, true);
                Work { control, export, job, sink, format, position, by }.run(disk, planned).await
            }
            Err(e) => {
                drop(planned);
                Err(e.into())
            }
        };
        drop((permit, counted));
        // The client may have disconnected.
        let _ = ended.send(done);
    });
    match plan.await {
        Ok(Planned { job, size, len }) => {
            Ok(Begun { job, size, body: ExportBody { pieces, left: len, end: Some(end) } })
        }
        // There is no plan, so that the work has failed.
        Err(_) => Err(end.await.unwrap_or_else(|_| Err(panicked())).err().unwrap_or_else(panicked)),
    }
}

/// What is known before the first byte of a response.
struct Planned {
    job: JobView,
    /// Size of the disk in bytes.
    size: u64,
    /// Length of the response in bytes, if it is known.
    len: Option<u64>,
}

/// Counts an export of a client.
fn admit(exports: &Exports, owner: String) -> Result<Registered<String>> {
    let (all, of_client) = (exports.count(), exports.list(|other| *other == owner).len());
    if all >= MAX_EXPORTS || of_client >= MAX_OF_CLIENT {
        let why = format!(
            "{all} exports are running, {of_client} of them of this client; repeat the request when one has ended \
             ('forebay job list' shows them, 'forebay job cancel' ends one)"
        );
        return Err(ControlError::new(ErrorKind::BadState, why));
    }
    Ok(exports.begin(owner))
}

/// The task of an export.
struct Work {
    control: Control,
    export: Export,
    job: Job,
    sink: Sink,
    format: Format,
    position: Position,
    /// Name of the client.
    by: String,
}

impl Work {
    /// Sends what is known before the first byte to `planned`, then the response to the sink.
    async fn run(mut self, disk: String, planned: oneshot::Sender<Planned>) -> Result<()> {
        let (by, size) = (self.by.clone(), self.export.size());
        let sent = self.send(&disk, planned).await;
        if let Err(error) = self.control.pool().end_export(self.export).await {
            tracing::warn!(%error, "cannot remove the copy of a disk after its export; the next start removes it");
        }
        let format = self.format;
        let done = sent.map(|sent_bytes| Exported { format, size_bytes: size, sent_bytes });
        match &done {
            Ok(done) => {
                let bytes = Size(done.sent_bytes);
                tracing::info!(by, "exported {} as {}, {bytes} in all", quoted(&disk), format.name());
            }
            Err(e) => {
                let error = shortened(format_args!("{e}"), MAX_LOGGED);
                tracing::info!(by, error, "export failed: {}", quoted(&disk));
            }
        }
        // The client learns of a failure afterwards, when the sink is dropped, and then requests the job.
        self.job.end(&done);
        done.map(drop)
    }

    async fn send(&mut self, disk: &str, planned: oneshot::Sender<Planned>) -> Result<u64> {
        let Work { control, export, job, sink, format, position, .. } = self;
        let cancelled = |why: &str| Err(ControlError::new(ErrorKind::Cancelled, why));
        let client_gone = sink.client_gone();
        let work = async {
            let plan = match format {
                Format::Stream => Plan::stream(export, disk, *position)?,
                format => Plan::new(export, *format).await?,
            };
            // The client may have disconnected.
            let _ = planned.send(Planned { job: job.view(), size: export.size(), len: plan.len() });
            plan.send(export, sink, |done, total| job.progress("export", done, Some(total))).await
        };
        tokio::select! {
            biased;
            sent = work => sent,
            () = client_gone => cancelled(DISCONNECTED),
            () = job.cancelled() => cancelled("the export was cancelled"),
            () = control.stopped() => cancelled("the export was interrupted, since the server stops"),
        }
    }
}

fn panicked() -> ControlError {
    ControlError::internal("the export ended without a result; see the server's log")
}

/// The body of the response of an export.
pub(crate) struct ExportBody {
    pieces: mpsc::Receiver<Bytes>,
    /// The bytes that were not sent yet, if the length is known.
    left: Option<u64>,
    /// Reports the end of the export, after its last piece; `None` after this report was received.
    end: Option<oneshot::Receiver<Result<()>>>,
}

impl hyper::body::Body for ExportBody {
    type Data = Bytes;
    type Error = ControlError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>>>> {
        if let Some(piece) = ready!(self.pieces.poll_recv(cx)) {
            self.left = self.left.map(|left| left.saturating_sub(piece.len() as u64));
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let Some(end) = &mut self.end else { return Poll::Ready(None) };
        let done = ready!(Pin::new(end).poll(cx)).unwrap_or_else(|_| Err(panicked()));
        self.end = None;
        Poll::Ready(done.err().map(Err))
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_leaves_exports_to_other_clients() {
        let exports = Exports::default();
        let of_one: Vec<_> = std::iter::from_fn(|| admit(&exports, "one".into()).ok()).collect();
        assert_eq!(of_one.len(), MAX_OF_CLIENT);
        let of_two: Vec<_> = std::iter::from_fn(|| admit(&exports, "two".into()).ok()).collect();
        assert_eq!(of_two.len(), MAX_EXPORTS - MAX_OF_CLIENT);
        assert_eq!(admit(&exports, "three".into()).unwrap_err().kind, ErrorKind::BadState);
        drop(of_one);
        assert!(admit(&exports, "three".into()).is_ok());
    }
}
