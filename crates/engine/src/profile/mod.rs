//! Boot profiles: what the first boot of an image's clones reads is recorded with the image, and prefetched when
//! clones start.
//!
//! **Recording.** The first client of a clone whose image has no profile is watched: the blocks that it reads out of
//! the block map are listed in the order in which it reads them, until it has read nothing new for a while. What is too
//! short to be a boot is thrown away, and so is a copy, which reads from one end to the other. The list is a note of the
//! image ([`crate::notes`]): durable, gone with the image, and never more than advice.
//!
//! **Prefetching** sorts what is not cached by where it rests and reads it in few large reads, over what lies in between
//! ([`prefetch`]); the read with the block that was recorded first comes first. All of it is announced as misses under
//! way before that, so a guest that wants some of it waits for that read instead of making one of its own. Lists longer
//! than a window are taken in several, in the order in which they were recorded.

mod list;
mod prefetch;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_format::{BLOCK, DiskId, MapValue, Role};
use hashbrown::{HashMap, HashSet};
use roaring::RoaringTreemap;
use serde::Serialize;

use crate::catalogue::shorten;
use crate::notes::Note;
use crate::pool::Pool;
use crate::sync::Mutex;
use crate::volume::Volume;
use crate::{Error, Result};
use list::{Profile, Recorder};
pub use prefetch::Prefetched;

/// When boot profiles are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BootProfile {
    /// Nothing is recorded or prefetched, unless somebody asks for it.
    Off,
    /// Recorded when the first clone boots; prefetched when a clone gets its first client.
    #[default]
    Auto,
    /// As `Auto`; prefetched also when the pool is opened and when clones are made or reset, so before they start.
    On,
}

/// A boot has ended when it has read nothing new for so long.
const QUIET: Duration = Duration::from_secs(30);
/// And after so long in any case.
const LONGEST: Duration = Duration::from_secs(600);
/// How often that is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// What reads fewer blocks is not a boot: a megabyte.
const LEAST_BLOCKS: u64 = 256;
/// What reads so many blocks in a row, on average, copies the disk.
const COPY_RUN: u64 = 2048;
/// An image is not prefetched again by itself sooner than this.
const AGAIN: Duration = Duration::from_secs(30);

/// A boot that is being watched.
struct Recording {
    image: DiskId,
    clone: DiskId,
    recorder: Recorder,
    /// Blocks that the clone has written since it began.
    written: RoaringTreemap,
    began: Duration,
    last_new: Duration,
    /// Somebody wants it to end.
    end: bool,
}

/// Boot profiles at work.
#[derive(Default)]
pub(crate) struct Profiles {
    recordings: Mutex<Vec<Recording>>,
    /// Images whose next boot is to be recorded, whatever is there already.
    wanted: Mutex<HashSet<DiskId>>,
    /// When images were prefetched last; `None` while that is under way.
    prefetched: Mutex<HashMap<DiskId, Option<Duration>>>,
}

/// What is known of an image's boot profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ProfileInfo {
    /// Bytes of the disk that its boot reads; 0 without a profile.
    pub bytes: u64,
    /// Runs of neighbouring blocks, as they were read.
    pub runs: u64,
    /// When it was recorded, in Unix milliseconds.
    pub recorded_ms: Option<u64>,
    /// A boot is being recorded.
    pub recording: bool,
    /// The next boot will be recorded.
    pub waiting: bool,
    /// Bytes of it that are in the read cache.
    pub cached_bytes: u64,
}

impl Profiles {
    /// Notes what a recorded clone writes: these blocks are no longer its image's, also when they have left the write
    /// buffer.
    pub fn note_written(&self, clone: &Volume, blocks: &Range<u64>) {
        let mut recordings = self.recordings.lock();
        if let Some(recording) = recordings.iter_mut().find(|r| r.clone == clone.id()) {
            recording.written.insert_range(blocks.clone());
        }
    }

    /// Notes what a recorded clone reads: the blocks from `first` on that its map has, that it has not written, and that
    /// `have` says its write buffer has not.
    pub fn note(&self, clone: &Volume, now: Duration, first: u64, values: &[MapValue], have: &[u8]) {
        let mut recordings = self.recordings.lock();
        let Some(recording) = recordings.iter_mut().find(|r| r.clone == clone.id()) else { return };
        for ((block, value), have) in (first..).zip(values).zip(have) {
            if matches!(value, MapValue::At(_))
                && *have == 0
                && !recording.written.contains(block)
                && recording.recorder.note(block)
            {
                recording.last_new = now;
            }
        }
    }

    fn is_recorded(&self, image: DiskId) -> bool {
        self.recordings.lock().iter().any(|r| r.image == image)
    }

    /// Whether prefetching an image may begin; it has then.
    fn begin_prefetch(&self, image: DiskId, now: Duration, asked: bool) -> bool {
        let mut prefetched = self.prefetched.lock();
        let may = match prefetched.get(&image) {
            None => true,
            Some(None) => false,
            Some(Some(last)) => asked || now.saturating_sub(*last) >= AGAIN,
        };
        if may {
            prefetched.insert(image, None);
        }
        may
    }
}

impl Pool {
    /// A volume has got its first client: if it is a clone, its image is prefetched or its boot is recorded.
    pub(crate) fn guest_came(self: &Arc<Pool>, clone: &Arc<Volume>) {
        let Some(image) = clone.record().origin else { return };
        let wanted = self.profiles.wanted.lock().contains(&image);
        if clone.role() != Role::Volume || (self.config.boot_profile == BootProfile::Off && !wanted) {
            return;
        }
        let (pool, clone) = (self.clone(), clone.clone());
        self.host.spawn(
            "boot profile",
            Box::pin(async move {
                let Some(image) = pool.volume(image) else { return };
                let known = if wanted { None } else { pool.known_profile(&image).await };
                match known {
                    Some(profile) => drop(pool.prefetch_profile(&image, &profile, false).await),
                    None => pool.record(&image, &clone).await,
                }
            }),
        );
    }

    /// Prefetches the images of clones before they start, if the pool is to.
    pub(crate) fn clones_may_start(self: &Arc<Pool>, images: impl IntoIterator<Item = DiskId>) {
        if self.config.boot_profile != BootProfile::On {
            return;
        }
        let images: BTreeSet<_> = images.into_iter().collect();
        for image in images.into_iter().filter_map(|id| self.volume(id)) {
            let pool = self.clone();
            let prefetch = async move {
                if let Some(profile) = pool.known_profile(&image).await {
                    pool.prefetch_profile(&image, &profile, false).await;
                }
            };
            self.host.spawn("boot profile", Box::pin(prefetch));
        }
    }

    /// [`Pool::clones_may_start`] for all images that have clones.
    pub(crate) fn all_clones_may_start(self: &Arc<Pool>) {
        let images: Vec<_> = self.catalogue.read().visible().filter_map(|d| d.record().origin).collect();
        self.clones_may_start(images);
    }

    /// The profile of an image; none where it cannot be read or makes no sense, for a boot needs none.
    async fn known_profile(&self, image: &Volume) -> Option<Profile> {
        match self.note(image, Note::Profile).await {
            Ok(bytes) => Profile::decode(&bytes?),
            Err(e) => {
                tracing::warn!(image = %image.record().name, "cannot read its boot profile: {e}");
                None
            }
        }
    }

    /// Watches a clone boot, and keeps what it reads; unless another one of the same image is watched.
    async fn record(self: Arc<Pool>, image: &Arc<Volume>, clone: &Arc<Volume>) {
        let now = self.host.now();
        {
            let mut recordings = self.profiles.recordings.lock();
            if recordings.iter().any(|r| r.image == image.id() || r.clone == clone.id()) {
                return;
            }
            recordings.push(Recording {
                image: image.id(),
                clone: clone.id(),
                recorder: Recorder::default(),
                written: RoaringTreemap::new(),
                began: now,
                last_new: now,
                end: false,
            });
        }
        clone.is_recorded.store(true, Relaxed);
        while !self.recording_has_ended(clone) && self.check_running().is_ok() {
            self.host.sleep(LOOK).await;
        }
        clone.is_recorded.store(false, Relaxed);
        let profile = {
            let mut recordings = self.profiles.recordings.lock();
            let at = recordings.iter().position(|r| r.clone == clone.id());
            at.map(|at| recordings.swap_remove(at).recorder.finish(self.host.unix_ms()))
        };
        let Some(profile) = profile.filter(is_boot) else { return };
        let (name, bytes) = (image.record().name.clone(), profile.blocks() * BLOCK as u64);
        match self.set_note(image, Note::Profile, Some(&profile.encode())).await {
            Ok(()) => {
                self.profiles.wanted.lock().remove(&image.id());
                tracing::info!(image = name, bytes, runs = profile.runs.len(), "boot profile recorded");
            }
            Err(e) => tracing::warn!(image = name, "cannot keep its boot profile: {e}"),
        }
    }

    fn recording_has_ended(&self, clone: &Volume) -> bool {
        let now = self.host.now();
        let recordings = self.profiles.recordings.lock();
        recordings.iter().find(|r| r.clone == clone.id()).is_none_or(|r| {
            let is_quiet = r.recorder.blocks() >= LEAST_BLOCKS && now.saturating_sub(r.last_new) >= QUIET;
            let is_over = r.end || r.recorder.is_full() || now.saturating_sub(r.began) >= LONGEST;
            is_quiet || is_over || clone.clients() == 0
        })
    }

    /// An image, or a snapshot, of which there may be clones.
    fn find_image(&self, name: &str) -> Result<Arc<Volume>> {
        let disk = self.catalogue.read().find(name)?;
        match disk.role() {
            Role::Image | Role::Snapshot => Ok(disk),
            _ => {
                Err(Error::WrongKind { name: shorten(name), is: "a volume", needs: "an image or a snapshot" })
            }
        }
    }

    /// What is known of an image's boot profile.
    ///
    /// # Errors
    /// [`Error::NotFound`], and [`Error::WrongKind`] of a volume.
    pub async fn profile(&self, image: &str) -> Result<ProfileInfo> {
        let image = self.find_image(image)?;
        let profile = self.known_profile(&image).await;
        let recording = self.profiles.is_recorded(image.id());
        let wanted = self.profiles.wanted.lock().contains(&image.id());
        let auto = self.config.boot_profile != BootProfile::Off && profile.is_none();
        let mut info =
            ProfileInfo { recording, waiting: !recording && (wanted || auto), ..ProfileInfo::default() };
        if let Some(profile) = profile {
            info.bytes = profile.blocks() * BLOCK as u64;
            info.runs = profile.runs.len() as u64;
            info.recorded_ms = Some(profile.recorded_ms);
            info.cached_bytes = self.cached_of(&image, &profile).await? * BLOCK as u64;
        }
        Ok(info)
    }

    /// Has the next boot of a clone be recorded, in the place of what is there.
    ///
    /// # Errors
    /// As [`Pool::profile`].
    pub fn record_profile(&self, image: &str) -> Result<()> {
        let image = self.find_image(image)?;
        self.profiles.wanted.lock().insert(image.id());
        Ok(())
    }

    /// Ends a recording now: what was read so far is the profile. Whether there was one; it is kept a moment later.
    ///
    /// # Errors
    /// As [`Pool::profile`].
    pub fn end_recording(&self, image: &str) -> Result<bool> {
        let image = self.find_image(image)?;
        let was_wanted = self.profiles.wanted.lock().remove(&image.id());
        let mut recordings = self.profiles.recordings.lock();
        let recording = recordings.iter_mut().find(|r| r.image == image.id());
        Ok(recording.map(|r| r.end = true).is_some() || was_wanted)
    }

    /// Forgets an image's boot profile.
    ///
    /// # Errors
    /// As [`Pool::profile`], and those of a write.
    pub async fn forget_profile(&self, image: &str) -> Result<()> {
        let image = self.find_image(image)?;
        self.set_note(&image, Note::Profile, None).await
    }

    /// Prefetches an image now, and tells what that took; nothing where it has no profile.
    ///
    /// # Errors
    /// As [`Pool::profile`].
    pub async fn prefetch(&self, image: &str) -> Result<Prefetched> {
        let image = self.find_image(image)?;
        let Some(profile) = self.known_profile(&image).await else { return Ok(Prefetched::default()) };
        Ok(self.prefetch_profile(&image, &profile, true).await)
    }
}

/// Whether what was recorded looks like a boot.
fn is_boot(profile: &Profile) -> bool {
    let blocks = profile.blocks();
    blocks >= LEAST_BLOCKS && blocks < profile.runs.len() as u64 * COPY_RUN
}
