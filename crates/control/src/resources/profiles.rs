//! `/images/{name}/profile`: boot profiles of images and snapshots.

use std::time::Duration;

use forebay_api::{self as api, ErrorKind, JobKind, PrefetchedView, ProfileAction, ProfileView};
use forebay_engine::{Prefetched, ProfileInfo};
use forebay_text::quoted;
use serde::Serialize;

use super::run;
use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::{Body, Param};
use crate::http::route::{Content, Route};
use crate::operations::{Change, Changes, Control, ControlError, Disks, Done, Job, Operation, Reply, Result};
use crate::view::View;

/// Interval at which the state of a recording is polled, while a job waits for its end.
const RECORDING_INTERVAL: Duration = Duration::from_secs(2);

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/images/{name}/profile",
            "Show the boot profile of an image or VOLUME@SNAPSHOT",
            Right::Read,
            |c: Caller, Param(image)| run(c, ShowProfile { image }),
        )
        .returns::<ProfileView>(),
        Route::post(
            "/images/{name}/profile",
            "Record the next boot of a clone, stop recording, or read the profile's blocks into the cache",
            Right::Administer,
            |c: Caller, Param(image), Body(b): Body<api::ChangeProfile>| {
                run(c, ChangeProfile { image, action: b.action })
            },
        )
        .takes::<api::ChangeProfile>()
        .content(Content::Document),
        Route::delete(
            "/images/{name}/profile",
            "Delete a boot profile",
            Right::Administer,
            |c: Caller, Param(image)| run(c, RemoveProfile { image }),
        ),
    ]
}

impl Reply for ProfileView {}

struct ShowProfile {
    image: String,
}

impl Operation for ShowProfile {
    type Reply = ProfileView;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |op| vec![op.image.clone()];

    async fn execute(&self, control: &Control, _: &str) -> Result<ProfileView> {
        Ok(control.pool().profile(&self.image).await?.view())
    }
}

/// The reply to a change of a profile: what was prefetched, or nothing.
#[derive(Serialize)]
#[serde(untagged)]
enum Changed {
    Prefetched(PrefetchedView),
    Done(Done),
}

impl Reply for Changed {}

struct ChangeProfile {
    image: String,
    action: ProfileAction,
}

impl Operation for ChangeProfile {
    type Reply = Changed;
    const CHANGE: Changes<Self> = Some(|op| {
        let image = quoted(&op.image);
        match op.action {
            ProfileAction::Record => {
                Change::new("record", "began to record", format_args!("a boot of {image}"))
            }
            ProfileAction::Stop => {
                Change::new("stop", "stopped", format_args!("recording the boot of {image}"))
            }
            ProfileAction::Prefetch => {
                Change::new("prefetch", "prefetched", format_args!("the boot profile of {image}"))
            }
        }
    });
    const DISKS: Disks<Self> = |op| vec![op.image.clone()];

    async fn execute(&self, control: &Control, owner: &str) -> Result<Changed> {
        let (pool, image) = (control.pool(), self.image.as_str());
        match self.action {
            ProfileAction::Record => {
                pool.record_profile(image)?;
                if !control.jobs().is_recording(image) {
                    let job = control.begin_job(JobKind::Record, Some(image), owner, true);
                    tokio::spawn(follow_recording(control.clone(), image.to_owned(), job));
                }
            }
            ProfileAction::Stop => {
                if !pool.end_recording(image)? {
                    let message =
                        format!("'{image}' is not recording a boot, and no recording was requested");
                    return Err(ControlError::bad_request(message));
                }
                control.jobs().cancel_recording(image);
            }
            ProfileAction::Prefetch => {
                let job = control.begin_job(JobKind::Prefetch, Some(image), owner, false);
                let done = pool.prefetch(image).await.map_err(ControlError::from).map(View::view);
                job.end(&done);
                return Ok(Changed::Prefetched(done?));
            }
        }
        Ok(Changed::Done(Done {}))
    }
}

struct RemoveProfile {
    image: String,
}

impl Operation for RemoveProfile {
    type Reply = Done;
    const CHANGE: Changes<Self> =
        Some(|op| Change::remove(format_args!("the boot profile of {}", quoted(&op.image))));
    const DISKS: Disks<Self> = |op| vec![op.image.clone()];

    async fn execute(&self, control: &Control, _: &str) -> Result<Done> {
        control.pool().forget_profile(&self.image).await?;
        Ok(Done {})
    }
}

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
