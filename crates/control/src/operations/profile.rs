//! Boot profiles: their representation in the API, and the actions on them.

use std::time::Duration;

use forebay_api::{ErrorKind, JobKind, PrefetchedView, ProfileAction, ProfileView};
use forebay_engine::{Prefetched, ProfileInfo};

use super::{Control, ControlError, Job, Reply, Result};
use crate::view::View;

impl Control {
    pub(super) async fn show_profile(&self, image: &str) -> Result<Reply> {
        Ok(Reply::Profile(self.pool().profile(image).await?.view()))
    }

    pub(super) async fn change_profile(
        &self,
        image: &str,
        action: ProfileAction,
        owner: &str,
    ) -> Result<Reply> {
        let pool = self.pool();
        match action {
            ProfileAction::Record => {
                pool.record_profile(image)?;
                if !self.jobs().is_recording(image) {
                    let job = self.begin_job(JobKind::Record, Some(image), owner, true);
                    tokio::spawn(follow_recording(self.clone(), image.to_owned(), job));
                }
            }
            ProfileAction::Stop => {
                if !pool.end_recording(image)? {
                    let message =
                        format!("'{image}' is not recording a boot, and no recording was requested");
                    return Err(ControlError::bad_request(message));
                }
                self.jobs().cancel_recording(image);
            }
            ProfileAction::Prefetch => {
                let job = self.begin_job(JobKind::Prefetch, Some(image), owner, false);
                let done = pool.prefetch(image).await.map_err(ControlError::from).map(View::view);
                job.end(&done);
                return Ok(Reply::Prefetched(done?));
            }
        }
        Ok(Reply::Done {})
    }

    pub(super) async fn remove_profile(&self, image: &str) -> Result<Reply> {
        self.pool().forget_profile(image).await?;
        Ok(Reply::Done {})
    }
}

/// How often the state of a recording is looked at, while a job waits for its end.
const RECORDING_INTERVAL: Duration = Duration::from_secs(2);

/// Ends the job of a recording when the recording has ended, or is cancelled.
async fn follow_recording(control: Control, image: String, job: Job) {
    let ended = loop {
        let cancelled = tokio::select! {
            () = tokio::time::sleep(RECORDING_INTERVAL) => false,
            () = job.cancelled() => true,
            () = control.stopped() => break Err(control.ended()),
        };
        if cancelled {
            let stopped = control.pool().end_recording(&image).map_err(ControlError::from);
            break stopped.and_then(|_| {
                let why = "the recording was stopped; the blocks read so far are the profile";
                Err(ControlError::new(ErrorKind::Cancelled, why))
            });
        }
        match control.pool().profile(&image).await.map(View::view) {
            Ok(profile) if profile.recording || profile.waiting => {
                let phase = if profile.recording { "recording" } else { "waiting" };
                job.progress(phase, profile.bytes, None);
            }
            Ok(profile) => break Ok(profile),
            Err(e) => break Err(e.into()),
        }
    };
    job.end(&ended);
}

impl View for ProfileInfo {
    type View = ProfileView;

    fn view(self) -> ProfileView {
        let ProfileInfo { bytes, runs, recorded_ms, recording, waiting, cached_bytes } = self;
        ProfileView { bytes, runs, recorded_ms, recording, waiting, cached_bytes }
    }
}

impl View for Prefetched {
    type View = PrefetchedView;

    fn view(self) -> PrefetchedView {
        let Prefetched { bytes, reads, cached_bytes } = self;
        PrefetchedView { bytes, reads, cached_bytes }
    }
}
