//! The owner of boot profiles: when they are recorded and prefetched, and the operations of administrators.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use forebay_format::{BLOCK, DiskId, Role};
use hashbrown::{HashMap, HashSet};
use roaring::RoaringTreemap;
use serde::Serialize;
use tokio::task::yield_now;

use crate::admin::{DiskMetadata, Metadata};
use crate::catalogue::{Catalogue, disk_by_id};
use crate::config::BootProfile;
use crate::context::Context;
use crate::disk::{Disk, blocks};
use crate::read::{Prefetched, Reader};
use crate::recordings::{Profile, Recorder, Recording, Recordings};
use crate::sync::{Mutex, RwLock};
use crate::text::shorten;
use crate::{Error, Result};

/// A boot has ended if it has read no new block for this long.
const QUIET_TIME: Duration = Duration::from_secs(30);
/// Maximum duration of a recording.
const MAX_RECORDING: Duration = Duration::from_secs(600);
/// How often a recording checks whether it has ended.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum number of blocks of a boot: a megabyte.
const MIN_BLOCKS: u64 = 256;
/// Minimum average length of a run, in blocks, that shows that a recording is of a copy of the disk.
const COPY_RUN: u64 = 2048;
/// Minimum interval between automatic prefetches of an image.
const PREFETCH_INTERVAL: Duration = Duration::from_secs(30);

/// Blocks that are registered, sorted and read together: 512 MiB, so most boots fit into one window. Blocks
/// that a boot reads in sequence are scattered over the store, so smaller windows would need many more reads.
/// A guest may have to wait for a whole window: some seconds of a slow disk at the beginning of its boot.
const WINDOW: usize = 1 << 17;

/// The boot profile of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ProfileInfo {
    /// Bytes that a boot reads; 0 without a profile.
    pub bytes: u64,
    /// Runs of adjacent blocks, in the order in which they were read.
    pub runs: u64,
    /// When the profile was recorded, in Unix milliseconds; `None` without a profile.
    pub recorded_ms: Option<u64>,
    /// Whether a boot is being recorded.
    pub recording: bool,
    /// Whether the next boot will be recorded.
    pub waiting: bool,
    /// Bytes of the profile that are in the read cache.
    pub cached_bytes: u64,
}

/// Records boot profiles, and prefetches them.
pub(crate) struct BootProfiles {
    cx: Arc<Context>,
    reader: Arc<Reader>,
    recordings: Arc<Recordings>,
    catalogue: Arc<RwLock<Catalogue>>,
    metadata: Arc<Metadata>,
    /// Images whose next boot is to be recorded, even if they have a profile.
    wanted: Mutex<HashSet<DiskId>>,
    /// Host time at which each image was prefetched last; `None` while a prefetch is under way.
    prefetched: Mutex<HashMap<DiskId, Option<Duration>>>,
}

impl BootProfiles {
    pub fn new(
        reader: Arc<Reader>,
        catalogue: Arc<RwLock<Catalogue>>,
        metadata: Arc<Metadata>,
    ) -> BootProfiles {
        BootProfiles {
            cx: reader.context().clone(),
            recordings: reader.recordings().clone(),
            reader,
            catalogue,
            metadata,
            wanted: Mutex::default(),
            prefetched: Mutex::default(),
        }
    }

    /// Called when a volume gets its first client: if it is a clone, prefetches its image, or records its
    /// boot.
    pub(crate) fn on_first_attach(self: &Arc<BootProfiles>, clone: &Arc<Disk>) {
        let Some(image) = clone.record().origin else { return };
        let wanted = self.wanted.lock().contains(&image);
        if clone.role() != Role::Volume || (self.cx.config.boot_profile == BootProfile::Off && !wanted) {
            return;
        }
        // In a boot storm, the profile is read only for the first of many clones.
        let prefetched = self.prefetched.lock().get(&image).copied();
        if !wanted && !may_prefetch(prefetched, self.cx.host.now(), false) {
            return;
        }
        let (profiles, clone) = (self.clone(), clone.clone());
        self.cx.host.spawn(
            "boot profile",
            Box::pin(async move {
                let Some(image) = disk_by_id(&profiles.catalogue, image) else { return };
                let known = if wanted { None } else { profiles.load_profile(&image).await };
                match known {
                    Some(profile) => drop(profiles.prefetch_profile(&image, &profile, false).await),
                    None => profiles.record(&image, &clone).await,
                }
            }),
        );
    }

    /// Prefetches the images of clones that are about to start, if the configuration enables it.
    pub(crate) fn prefetch_images(self: &Arc<BootProfiles>, images: impl IntoIterator<Item = DiskId>) {
        if self.cx.config.boot_profile != BootProfile::On {
            return;
        }
        let images: BTreeSet<_> = images.into_iter().collect();
        for image in images.into_iter().filter_map(|id| disk_by_id(&self.catalogue, id)) {
            let profiles = self.clone();
            let prefetch = async move {
                if let Some(profile) = profiles.load_profile(&image).await {
                    profiles.prefetch_profile(&image, &profile, false).await;
                }
            };
            self.cx.host.spawn("boot profile", Box::pin(prefetch));
        }
    }

    /// Prefetches all images that have clones, as [`BootProfiles::prefetch_images`].
    pub(crate) fn prefetch_all_images(self: &Arc<BootProfiles>) {
        let images: Vec<_> = self.catalogue.read().visible().filter_map(|d| d.record().origin).collect();
        self.prefetch_images(images);
    }

    /// The profile of an image; `None` if it cannot be read or decoded, since a boot does not require one.
    async fn load_profile(&self, image: &Disk) -> Option<Profile> {
        match self.metadata.get(image, DiskMetadata::Profile).await {
            Ok(bytes) => Profile::decode(&bytes?),
            Err(e) => {
                tracing::warn!(image = %image.record().name, "cannot read the boot profile: {e}");
                None
            }
        }
    }

    /// Records the boot of a clone and keeps the profile, unless another clone of the image is being
    /// recorded.
    async fn record(self: Arc<BootProfiles>, image: &Arc<Disk>, clone: &Arc<Disk>) {
        let now = self.cx.host.now();
        {
            let mut recordings = self.recordings.lock();
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
        clone.set_recorded(true);
        while !self.recording_has_ended(clone) && self.cx.check_running().is_ok() {
            self.cx.host.sleep(CHECK_INTERVAL).await;
        }
        clone.set_recorded(false);
        let profile = {
            let mut recordings = self.recordings.lock();
            let at = recordings.iter().position(|r| r.clone == clone.id());
            at.map(|at| recordings.swap_remove(at).recorder.finish(self.cx.host.unix_ms()))
        };
        let Some(profile) = profile.filter(is_boot) else { return };
        let (name, bytes) = (image.record().name.clone(), profile.blocks() * BLOCK as u64);
        match self.metadata.set(image, DiskMetadata::Profile, Some(&profile.encode())).await {
            Ok(()) => {
                self.wanted.lock().remove(&image.id());
                tracing::info!(image = name, bytes, runs = profile.runs.len(), "boot profile recorded");
            }
            Err(e) => tracing::warn!(image = name, "cannot keep the boot profile: {e}"),
        }
    }

    fn recording_has_ended(&self, clone: &Disk) -> bool {
        let now = self.cx.host.now();
        let recordings = self.recordings.lock();
        recordings.iter().find(|r| r.clone == clone.id()).is_none_or(|r| {
            let is_quiet = r.recorder.blocks() >= MIN_BLOCKS && now.saturating_sub(r.last_new) >= QUIET_TIME;
            let is_over = r.end || r.recorder.is_full() || now.saturating_sub(r.began) >= MAX_RECORDING;
            is_quiet || is_over || !clone.is_open()
        })
    }

    /// An image or a snapshot by name.
    fn find_image(&self, name: &str) -> Result<Arc<Disk>> {
        let disk = self.catalogue.read().find(name)?;
        match disk.role() {
            Role::Image | Role::Snapshot => Ok(disk),
            _ => {
                Err(Error::WrongKind { name: shorten(name), is: "a volume", needs: "an image or a snapshot" })
            }
        }
    }

    /// The boot profile of an image.
    ///
    /// # Errors
    /// [`Error::NotFound`], and [`Error::WrongKind`] for a volume.
    pub async fn info(&self, image: &str) -> Result<ProfileInfo> {
        let image = self.find_image(image)?;
        let profile = self.load_profile(&image).await;
        let recording = self.recordings.is_recorded(image.id());
        let wanted = self.wanted.lock().contains(&image.id());
        let auto = self.cx.config.boot_profile != BootProfile::Off && profile.is_none();
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

    /// Records the next boot of a clone, in place of the present profile.
    ///
    /// # Errors
    /// As [`BootProfiles::info`].
    pub fn record_next(&self, image: &str) -> Result<()> {
        let image = self.find_image(image)?;
        self.wanted.lock().insert(image.id());
        Ok(())
    }

    /// Ends a recording now: the blocks read so far are the profile, which is kept a moment later. Returns
    /// whether a recording was under way or requested.
    ///
    /// # Errors
    /// As [`BootProfiles::info`].
    pub fn end_recording(&self, image: &str) -> Result<bool> {
        let image = self.find_image(image)?;
        let was_wanted = self.wanted.lock().remove(&image.id());
        let mut recordings = self.recordings.lock();
        let recording = recordings.iter_mut().find(|r| r.image == image.id());
        Ok(recording.map(|r| r.end = true).is_some() || was_wanted)
    }

    /// Removes an image's boot profile.
    ///
    /// # Errors
    /// As [`BootProfiles::info`], and those of a write.
    pub async fn forget(&self, image: &str) -> Result<()> {
        let image = self.find_image(image)?;
        self.metadata.set(&image, DiskMetadata::Profile, None).await?;
        // The next boot is recorded, also if a prefetch was just made.
        self.prefetched.lock().remove(&image.id());
        Ok(())
    }

    /// Prefetches an image now; reads nothing if it has no profile.
    ///
    /// # Errors
    /// As [`BootProfiles::info`].
    pub async fn prefetch(&self, image: &str) -> Result<Prefetched> {
        let image = self.find_image(image)?;
        let Some(profile) = self.load_profile(&image).await else { return Ok(Prefetched::default()) };
        Ok(self.prefetch_profile(&image, &profile, true).await)
    }

    /// Prefetches the part of a profile that the read cache should hold. Does nothing if a prefetch of the
    /// image is under way; unless the prefetch was `requested`, also if one was made just before. Read errors
    /// are ignored: a guest that needs the block gets an error from its own read.
    async fn prefetch_profile(&self, image: &Disk, profile: &Profile, requested: bool) -> Prefetched {
        let mut done = Prefetched::default();
        // The other part of the cache is for blocks that the recorded boot did not read.
        let budget = self.reader.cache.stats().budget / 4 * 3 / BLOCK as u64;
        if budget == 0 || !self.begin_prefetch(image.id(), self.cx.host.now(), requested) {
            return done;
        }
        let _under_way = PrefetchUnderWay { profiles: self, image };
        let mut remaining = budget.min(profile.blocks()) as usize;
        let end = blocks(image.size());
        let runs = profile.runs.iter().map(|run| run.start.min(end)..run.end.min(end));
        let wanted: Vec<u64> = runs.flatten().take(remaining).collect();
        self.reader.load_map(image, &wanted).await;
        for window in wanted.chunks(WINDOW) {
            if remaining == 0 || self.cx.check_running().is_err() {
                break;
            }
            remaining -= window.len();
            match self.reader.prefetch_window(image, window).await {
                Ok(window) => done += window,
                Err(e) => {
                    tracing::warn!(image = %image.record().name, "cannot prefetch the boot profile: {e}")
                }
            }
            yield_now().await;
        }
        let Prefetched { bytes, reads, cached_bytes } = done;
        if bytes > 0 {
            tracing::info!(image = %image.record().name, bytes, reads, cached_bytes, "boot prefetched");
        }
        done
    }

    /// Blocks of a profile that are cached now, as far as the map can be looked up without waiting.
    async fn cached_of(&self, image: &Disk, profile: &Profile) -> Result<u64> {
        let mut cached = 0;
        for window in profile.runs.iter().cloned().flatten().collect::<Vec<_>>().chunks(WINDOW) {
            let stored = self.reader.stored_refs(image, window);
            cached += stored.iter().filter(|at| self.reader.cache.contains(at.addr)).count() as u64;
            yield_now().await;
        }
        Ok(cached)
    }

    /// Registers a prefetch of an image, and returns whether it may begin.
    fn begin_prefetch(&self, image: DiskId, now: Duration, requested: bool) -> bool {
        let mut prefetched = self.prefetched.lock();
        let may = may_prefetch(prefetched.get(&image).copied(), now, requested);
        if may {
            prefetched.insert(image, None);
        }
        may
    }
}

/// Whether a prefetch may begin, given the entry of its image in [`BootProfiles::prefetched`].
fn may_prefetch(last: Option<Option<Duration>>, now: Duration, requested: bool) -> bool {
    match last {
        None => true,
        Some(None) => false,
        Some(Some(last)) => requested || now.saturating_sub(last) >= PREFETCH_INTERVAL,
    }
}

/// Guard of a prefetch. When it is dropped, it records the time at which the prefetch ended.
struct PrefetchUnderWay<'a> {
    profiles: &'a BootProfiles,
    image: &'a Disk,
}

impl Drop for PrefetchUnderWay<'_> {
    fn drop(&mut self) {
        let now = self.profiles.cx.host.now();
        // The profile may have been removed.
        if let Some(last) = self.profiles.prefetched.lock().get_mut(&self.image.id()) {
            *last = Some(now);
        }
    }
}

/// Whether a recording looks like a boot.
fn is_boot(profile: &Profile) -> bool {
    let blocks = profile.blocks();
    blocks >= MIN_BLOCKS && blocks < profile.runs.len() as u64 * COPY_RUN
}
