//! Reclaiming space on demand, told as events.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{GcPhase, GcProgress};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Control, ControlError, GcEvent, Reclaimed, Result};

/// Between two reports of the same phase.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// Events that wait for a slow receiver; reports of progress beyond are dropped.
const EVENTS: usize = 8;

/// An event, or the error with its HTTP status: for a reclaiming that fails before it began.
pub type GcTold = std::result::Result<GcEvent, ControlError>;

impl Control {
    /// Frees what nothing needs. It runs to its end, whether or not somebody still listens.
    pub async fn reclaim(&self) -> Result<mpsc::Receiver<GcTold>> {
        let place = self.begin().await?;
        if *self.stopping().borrow() {
            return Err(ControlError::closed());
        }
        let (tell, told) = mpsc::channel(EVENTS);
        let pool = Arc::clone(self.pool());
        tokio::spawn(async move {
            let reporter = Reporter { tell: tell.clone(), last: Mutex::default() };
            let freed = pool.reclaim(&|progress| reporter.report(progress)).await;
            drop(place);
            let last = match freed {
                Ok(freed_bytes) => {
                    let moved_bytes = reporter.last.lock().moved_bytes;
                    Ok(GcEvent::Done(Reclaimed { freed_bytes, moved_bytes }))
                }
                Err(e) => {
                    tracing::info!(error = %e, "reclaiming space failed");
                    Err(e.into())
                }
            };
            // Whoever has gone does not hear how it ended.
            let _ = tell.send(last).await;
        });
        Ok(told)
    }
}

/// Reports progress, but not too often.
struct Reporter {
    tell: mpsc::Sender<GcTold>,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    told: Option<(Instant, GcPhase)>,
    moved_bytes: u64,
}

impl Reporter {
    fn report(&self, progress: GcProgress) {
        let now = Instant::now();
        let mut last = self.last.lock();
        last.moved_bytes = last.moved_bytes.max(progress.moved_bytes);
        let told = last.told;
        if told.is_none_or(|(at, phase)| phase != progress.phase || now - at >= REPORT_EVERY) {
            last.told = Some((now, progress.phase));
            // A receiver that is behind misses a report, not an event that matters.
            let _ = self.tell.try_send(Ok(progress.into()));
        }
    }
}
