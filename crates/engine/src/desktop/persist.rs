//! Conversion of a desktop to a persistent volume; [`super`] argues why no acknowledged write is lost.

use forebay_format::{CatalogueOp, DiskRecord, SyncMode};

use super::desktops::Desktops;
use crate::disk::Disk;
use crate::limits::OVERFLOW_BYTES;
use crate::text::shorten;
use crate::{Error, Result};

impl Desktops {
    /// Converts a desktop to a persistent volume, which keeps everything written to it. Its guest may
    /// continue to use it. The caller holds the lock of the catalogue's editor.
    ///
    /// # Errors
    /// [`Error::WrongKind`] if it is not a desktop; [`Error::NoSpace`]: it is still a desktop.
    pub async fn persist(&self, name: &str, sync: SyncMode) -> Result<()> {
        let desktop = self.editor.find_volume(name)?;
        let record = desktop.record();
        if record.write_cache == 0 {
            let (is, needs) = ("already a persistent volume", "a desktop");
            return Err(Error::WrongKind { name: shorten(name), is, needs });
        }
        let persisting = Persisting::begin(self, &desktop, name)?;
        // Most of the cache overflows before the conversion, so that the last group is small even if guests
        // write at the same time.
        let mut remaining = desktop.cached();
        while remaining > OVERFLOW_BYTES as u64 {
            match self.overflow(&desktop).await? {
                0 => break,
                bytes => remaining = remaining.saturating_sub(bytes),
            }
        }
        if desktop.cached() > 0 {
            self.overflow_bytes()?;
        }
        {
            let _log = self.committer.read_log().await;
            self.intake.leave_desktops(&desktop);
        }
        let disk = DiskRecord { sync, write_cache: 0, reset_at_disconnect: false, ..(*record).clone() };
        let done = self.intake.commit_ops(vec![CatalogueOp::Update { disk }]).await;
        if matches!(done, Err(Error::NoSpace)) {
            self.revert_to_desktop(&desktop, record.write_cache).await;
        }
        done?;
        persisting.end();
        Ok(())
    }

    /// Reverts the switch to ordinary commits. Blocks that were committed in the meantime count as
    /// overflowed.
    async fn revert_to_desktop(&self, disk: &Disk, write_cache: u64) {
        let _log = self.committer.read_log().await;
        self.intake.join_desktops(disk, write_cache);
    }
}

/// A desktop that is becoming a persistent volume. It stays a desktop if this guard is dropped before
/// [`Persisting::end`].
struct Persisting<'a> {
    desktops: &'a Desktops,
    disk: &'a Disk,
    kept: bool,
}

impl<'a> Persisting<'a> {
    fn begin(desktops: &'a Desktops, disk: &'a Disk, name: &str) -> Result<Persisting<'a>> {
        disk.begin_persist(&shorten(name))?;
        Ok(Persisting { desktops, disk, kept: false })
    }

    /// Completes the conversion: the disk is a persistent volume.
    fn end(mut self) {
        self.kept = true;
    }
}

impl Drop for Persisting<'_> {
    fn drop(&mut self) {
        self.disk.end_persist(self.kept);
        self.desktops.caches.wake_resets();
        // A client may be waiting to attach.
        self.desktops.progress.wake_waiters();
    }
}
