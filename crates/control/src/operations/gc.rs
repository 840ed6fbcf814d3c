//! Reclaim on request, with progress events.

use std::sync::Arc;
use std::time::Duration;

use forebay_api::{GcEvent, JobKind, JobView, Reclaimed};
use forebay_engine::{GcPhase, GcProgress};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Control, ControlError, Job, Result};
use crate::view::View;

/// Minimum interval between progress events of the same phase.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// Capacity of the event channel; progress events beyond it are dropped.
const EVENT_CAPACITY: usize = 8;

/// An event, or the error that ended the reclaim.
pub type GcResult = std::result::Result<GcEvent, ControlError>;

impl Control {
    /// Reclaims unused space. The reclaim runs to its end even if the receiver is dropped.
    pub async fn reclaim(&self, owner: &str) -> Result<(JobView, mpsc::Receiver<GcResult>)> {
        let permit = self.job_permit().await?;
        if *self.stopping().borrow() {
            return Err(self.ended());
        }
        let (events, receiver) = mpsc::channel(EVENT_CAPACITY);
        let pool = Arc::clone(self.pool());
        let job = self.begin_job(JobKind::Gc, None, owner, false);
        let view = job.view();
        tokio::spawn(async move {
            let reporter = Reporter { events: events.clone(), job: &job, state: Mutex::default() };
            let freed = pool.reclaim(&|progress| reporter.report(progress)).await;
            drop(permit);
            let moved_bytes = reporter.state.lock().moved_bytes;
            let done = freed.map(|freed_bytes| Reclaimed { freed_bytes, moved_bytes }).map_err(|e| {
                tracing::info!(error = %e, "reclaim failed");
                ControlError::from(e)
            });
            job.end(&done);
            // The receiver may be dropped.
            let _ = events.send(done.map(GcEvent::Done)).await;
        });
        Ok((view, receiver))
    }
}

/// Sends progress events at a limited rate.
struct Reporter<'a> {
    job: &'a Job,
    events: mpsc::Sender<GcResult>,
    state: Mutex<ReporterState>,
}

#[derive(Default)]
struct ReporterState {
    last_event: Option<(Instant, GcPhase)>,
    moved_bytes: u64,
}

impl Reporter<'_> {
    fn report(&self, progress: GcProgress) {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.moved_bytes = state.moved_bytes.max(progress.moved_bytes);
        let last = state.last_event;
        if last.is_none_or(|(at, phase)| phase != progress.phase || now - at >= REPORT_INTERVAL) {
            state.last_event = Some((now, progress.phase));
            let phase = match progress.phase {
                GcPhase::Mark => "mark",
                GcPhase::Clean => "clean",
                GcPhase::Done => "done",
            };
            self.job.progress(phase, progress.done, (progress.total > 0).then_some(progress.total));
            // A slow receiver misses progress events only.
            let _ = self.events.try_send(Ok(progress.view()));
        }
    }
}
