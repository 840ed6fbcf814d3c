//! Boot profiles: their representation in the API, and the actions on them.

use std::time::Duration;

use forebay_engine::{Prefetched, ProfileInfo};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Control, ControlError, ErrorKind, Job, JobKind, Reply, Result};

/// Body of `POST /images/{name}/profile`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"action": "record"}))]
pub struct ChangeProfile {
    /// The action.
    pub action: ProfileAction,
}

/// An action on a boot profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProfileAction {
    /// Record the next boot of a clone.
    Record,
    /// Stop recording; the blocks read so far become the profile.
    Stop,
    /// Read the blocks of the profile into the cache now.
    Prefetch,
}

/// A boot profile: the blocks that a boot of an image's clones reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfileView {
    /// Bytes of the disk that a boot reads; 0 without a profile.
    pub bytes: u64,
    /// Number of contiguous ranges of the disk.
    pub runs: u64,
    /// When the profile was recorded, in Unix milliseconds.
    pub recorded_ms: Option<u64>,
    /// A boot is being recorded.
    pub recording: bool,
    /// The next boot of a clone will be recorded.
    pub waiting: bool,
    /// Bytes of the profile in the read cache.
    pub cached_bytes: u64,
}

impl Control {
    pub(super) async fn show_profile(&self, image: &str) -> Result<Reply> {
        Ok(Reply::Profile(self.pool().profile(image).await?.into()))
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
                let done = pool.prefetch(image).await.map_err(ControlError::from).map(PrefetchedView::from);
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
        match control.pool().profile(&image).await.map(ProfileView::from) {
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

impl From<ProfileInfo> for ProfileView {
    fn from(p: ProfileInfo) -> ProfileView {
        let ProfileInfo { bytes, runs, recorded_ms, recording, waiting, cached_bytes } = p;
        ProfileView { bytes, runs, recorded_ms, recording, waiting, cached_bytes }
    }
}

/// The result of a prefetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct PrefetchedView {
    /// Bytes of the disk that were read.
    pub bytes: u64,
    /// Store reads, without those of the block map.
    pub reads: u64,
    /// Bytes of the disk that were already in the cache.
    pub cached_bytes: u64,
}

impl From<Prefetched> for PrefetchedView {
    fn from(Prefetched { bytes, reads, cached_bytes }: Prefetched) -> PrefetchedView {
        PrefetchedView { bytes, reads, cached_bytes }
    }
}
