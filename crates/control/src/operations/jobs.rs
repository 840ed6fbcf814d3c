//! Jobs: long work with progress, a result, and for some kinds a way to cancel it.
//!
//! **Bounds.** Running jobs are bounded by the permits of the control plane, and recordings by the number of
//! images. Of the jobs that have ended, [`HISTORY`] are kept, in memory only. When there are more, the oldest
//! job of the client with the most ended jobs is forgotten.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use forebay_api::{ErrorDetail, ErrorKind, JobKind, JobState, JobView, ProgressView};
use forebay_frontend::shares::Shares;
use forebay_host::clock::unix_ms;
use forebay_text::shortened;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::ControlError;
use super::events::{EventDisk, Events, Topic};
use super::operation::MAX_LOGGED;

/// Number of ended jobs that are kept.
const HISTORY: usize = 256;
/// Minimum time between two events about the progress of a job.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

struct Shared {
    view: Mutex<JobView>,
    cancel: watch::Sender<bool>,
    tenant: Option<String>,
    events: Events,
    reported: Mutex<Option<(Instant, ProgressView)>>,
}

impl Shared {
    fn publish(&self, what: &str) {
        let view = self.view.lock().clone();
        let disk = view.disk.iter().map(|name| EventDisk { name: name.clone(), tenant: self.tenant.clone() });
        self.events.publish(&view.owner, Topic::Job, what, disk.collect(), json!(view));
    }
}

/// The jobs of a server.
#[derive(Default)]
pub struct Jobs {
    /// Jobs, by increasing id.
    all: Mutex<VecDeque<Arc<Shared>>>,
}

/// A new job.
pub struct NewJob<'a> {
    /// Kind of the job.
    pub kind: JobKind,
    /// The disk that the job concerns, and its tenant.
    pub disk: Option<EventDisk>,
    /// Name of the principal that begins the job.
    pub owner: &'a str,
    /// Whether the job can be cancelled.
    pub cancellable: bool,
}

impl Jobs {
    /// Begins a job.
    pub fn begin(&self, events: &Events, new: NewJob<'_>) -> Job {
        let mut all = self.all.lock();
        let now = unix_ms();
        let last = all.back().map_or(0, |job| job.view.lock().id);
        let (name, tenant) = new.disk.map_or((None, None), |disk| (Some(disk.name), disk.tenant));
        let view = JobView {
            id: now.max(last + 1),
            kind: new.kind,
            disk: name,
            owner: new.owner.to_owned(),
            state: JobState::Running,
            started_ms: now,
            ended_ms: None,
            progress: ProgressView::default(),
            cancellable: new.cancellable,
            result: None,
            error: None,
        };
        let job = Arc::new(Shared {
            view: Mutex::new(view),
            cancel: watch::Sender::new(false),
            tenant,
            events: events.clone(),
            reported: Mutex::default(),
        });
        all.push_back(job.clone());
        forget_oldest(&mut all);
        drop(all);
        job.publish("started");
        Job { shared: job, ended: false }
    }

    /// All jobs, the newest first.
    pub fn list(&self) -> Vec<JobView> {
        self.all.lock().iter().rev().map(|job| job.view.lock().clone()).collect()
    }

    /// The job with this id.
    pub fn get(&self, id: u64) -> Option<JobView> {
        self.find(id).map(|job| job.view.lock().clone())
    }

    fn find(&self, id: u64) -> Option<Arc<Shared>> {
        self.all.lock().iter().find(|job| job.view.lock().id == id).cloned()
    }

    fn recording(&self, image: &str) -> Option<Arc<Shared>> {
        let is_meant = |view: &JobView| {
            view.kind == JobKind::Record && view.disk.as_deref() == Some(image) && !view.has_ended()
        };
        self.all.lock().iter().find(|job| is_meant(&job.view.lock())).cloned()
    }

    /// Whether a job records the boot profile of an image, or waits for a boot.
    pub fn is_recording(&self, image: &str) -> bool {
        self.recording(image).is_some()
    }

    /// Cancels the job that records the boot profile of an image.
    pub fn cancel_recording(&self, image: &str) {
        if let Some(job) = self.recording(image) {
            job.cancel.send_replace(true);
        }
    }

    /// Requests the end of a job. Returns its state.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], and [`ErrorKind::BadState`] if it cannot be cancelled.
    pub fn cancel(&self, id: u64) -> super::Result<JobView> {
        let none = || ControlError::new(ErrorKind::NotFound, format!("there is no job {id}"));
        let job = self.find(id).ok_or_else(none)?;
        let mut view = job.view.lock();
        let refused = |why: &str| Err(ControlError::new(ErrorKind::BadState, format!("job {id} {why}")));
        if view.has_ended() {
            return refused("has ended");
        }
        if !view.cancellable {
            return refused("cannot be cancelled; wait for its end");
        }
        view.state = JobState::Cancelling;
        let found = view.clone();
        drop(view);
        job.cancel.send_replace(true);
        Ok(found)
    }
}

/// Forgets the oldest ended job of the client that has most ended jobs, if there are more than [`HISTORY`] of
/// them in all.
fn forget_oldest(all: &mut VecDeque<Arc<Shared>>) {
    // The owner of each job that has ended.
    let owner = |job: &Arc<Shared>| {
        let view = job.view.lock();
        view.has_ended().then(|| view.owner.clone())
    };
    let ended: Vec<Option<String>> = all.iter().map(owner).collect();
    if ended.iter().flatten().count() <= HISTORY {
        return;
    }
    let shares: Shares<&str> = ended.iter().flatten().map(|owner| (owner.as_str(), 1)).collect();
    let largest = shares.largest();
    let yields = |owner: &Option<String>| owner.as_deref().is_some_and(|owner| shares.of(owner) == largest);
    if let Some(oldest) = ended.iter().position(yields) {
        all.remove(oldest);
    }
}

/// A running job. When it is dropped without a result, it has failed.
pub struct Job {
    shared: Arc<Shared>,
    ended: bool,
}

impl Job {
    /// The state of the job.
    pub fn view(&self) -> JobView {
        self.shared.view.lock().clone()
    }

    /// Reports progress.
    pub fn progress(&self, phase: &str, done: u64, total: Option<u64>) {
        let progress = ProgressView { phase: Some(phase.to_owned()), done, total };
        self.shared.view.lock().progress = progress.clone();
        let mut reported = self.shared.reported.lock();
        let is_due =
            |(at, last): &(Instant, ProgressView)| at.elapsed() >= PROGRESS_INTERVAL && *last != progress;
        if reported.as_ref().is_none_or(is_due) {
            *reported = Some((Instant::now(), progress));
            drop(reported);
            self.shared.publish("progress");
        }
    }

    /// Completes when the job is cancelled.
    pub async fn cancelled(&self) {
        // The sender is in `self`.
        let _ = self.shared.cancel.subscribe().wait_for(|cancelled| *cancelled).await;
    }

    /// Ends the job.
    pub fn end<T: Serialize>(mut self, result: &Result<T, ControlError>) {
        self.finish(result.as_ref().map(|value| json!(value)));
    }

    fn finish(&mut self, result: Result<Value, &ControlError>) {
        self.ended = true;
        let mut view = self.shared.view.lock();
        view.ended_ms = Some(unix_ms());
        let what = match result {
            Ok(value) => {
                view.result = Some(value);
                view.state = JobState::Done;
                "done"
            }
            Err(e) if e.kind == ErrorKind::Cancelled => {
                view.state = JobState::Cancelled;
                "cancelled"
            }
            Err(e) => {
                let message = shortened(format_args!("{e}"), MAX_LOGGED);
                view.error = Some(ErrorDetail { code: e.kind.code().to_owned(), message });
                view.state = JobState::Failed;
                "failed"
            }
        };
        drop(view);
        self.shared.publish(what);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.ended {
            self.finish(Err(&ControlError::internal("the job ended without a result; see the server's log")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(cancellable: bool) -> NewJob<'static> {
        NewJob { kind: JobKind::Gc, disk: None, owner: "a", cancellable }
    }

    #[test]
    fn ids_increase_and_the_history_is_bounded() {
        let (jobs, events) = (Jobs::default(), Events::default());
        let running = jobs.begin(&events, new(false));
        for _ in 0..2 * HISTORY {
            jobs.begin(&events, new(false)).end(&Ok(()));
        }
        let all = jobs.list();
        assert!(all.len() <= HISTORY + 2, "{}", all.len());
        assert!(all.is_sorted_by(|a, b| a.id > b.id));
        let found = jobs.get(running.view().id).unwrap();
        assert_eq!(found.state, JobState::Running, "a running job is never forgotten");
    }

    #[test]
    fn the_error_of_a_job_is_short() {
        let (jobs, events) = (Jobs::default(), Events::default());
        let job = jobs.begin(&events, new(false));
        let id = job.view().id;
        job.end::<()>(&Err(ControlError::bad_request("n".repeat(1 << 20))));
        assert!(jobs.get(id).unwrap().error.unwrap().message.len() <= MAX_LOGGED + "…".len());
    }

    #[tokio::test]
    async fn a_job_is_cancelled_only_while_it_runs_and_if_it_can_be() {
        let (jobs, events) = (Jobs::default(), Events::default());
        let (job, other) = (jobs.begin(&events, new(true)), jobs.begin(&events, new(false)));
        let (id, other_id) = (job.view().id, other.view().id);
        assert_eq!(jobs.cancel(other_id).unwrap_err().kind, ErrorKind::BadState);
        assert_eq!(jobs.cancel(id).unwrap().state, JobState::Cancelling);
        job.cancelled().await;
        job.end::<()>(&Err(ControlError::new(ErrorKind::Cancelled, "cancelled")));
        assert_eq!(jobs.get(id).unwrap().state, JobState::Cancelled);
        assert_eq!(jobs.cancel(id).unwrap_err().kind, ErrorKind::BadState);
        assert_eq!(jobs.cancel(1).unwrap_err().kind, ErrorKind::NotFound);
        drop(other);
        assert_eq!(jobs.get(other_id).unwrap().state, JobState::Failed);
    }
}
