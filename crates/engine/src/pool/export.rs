//! Exports: the contents of a disk as of one moment, for a program that copies the disk out of the pool.
//!
//! **The copy.** An export reads a hidden copy of the disk, made like a snapshot: it shares all blocks with
//! the disk, and contains every write acknowledged before. During the export the disk can be written, rolled
//! back and removed. The copy has the role of an import, so that no user sees it, and a pool that is opened
//! after a crash removes it, also if an earlier release opens the pool.
//!
//! **Changes.** An export can be compared with an earlier snapshot or image, which then is in use until the
//! export ends.
//!
//! **A full pool.** The copy needs a commit, for which a full pool has no room. A snapshot or an image, which
//! does not change, is then read itself, and is in use until the export ends.

use std::sync::Arc;

use forebay_format::{CatalogueOp, DiskRecord, Role};

use super::pool::Pool;
use crate::catalogue::disk_by_id;
use crate::disk::{Disk, check_persistent};
use crate::handle::{Changed, DiskHandle, Extent, Since};
use crate::text::shorten;
use crate::{Error, Result};

/// The contents of a disk as of one moment; the caller ends it with [`Pool::end_export`].
pub struct Export {
    handle: Arc<DiskHandle>,
    /// The handle is to a hidden copy of the disk.
    is_copy: bool,
    /// The earlier disk with which the contents are compared.
    since: Option<Since>,
    /// The role and the UUID of the exported disk.
    source: (Role, [u8; 16]),
}

impl Export {
    /// Size of the disk in bytes.
    pub fn size(&self) -> u64 {
        self.handle.size()
    }

    /// Returns the extents of `len` bytes from `offset` on, at most `max` of them, but at least one unless
    /// the range is empty. Equal requests return equal extents.
    ///
    /// # Errors
    /// The errors of a read of the block map.
    pub async fn extents(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>> {
        self.handle.extents_without_flush(offset, len, max).await
    }

    /// The identity of the contents, if the exported disk is a snapshot or an image, which does not change.
    pub fn identity(&self) -> Option<[u8; 16]> {
        matches!(self.source.0, Role::Snapshot | Role::Image).then_some(self.source.1)
    }

    /// Whether the exported disk is an image.
    pub fn is_image(&self) -> bool {
        self.source.0 == Role::Image
    }

    /// The earlier disk; `None` if the export has all contents.
    pub fn since(&self) -> Option<&Since> {
        self.since.as_ref()
    }

    /// Returns which parts of `len` bytes from `offset` on have changed since the earlier disk, at most `max`
    /// of them, but at least one unless the range is empty. Without an earlier disk, all data has changed,
    /// and holes and zeroes have not.
    ///
    /// # Errors
    /// The errors of a read of the block map.
    pub async fn changes(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Changed>> {
        let Some(since) = &self.since else {
            let extents = self.extents(offset, len, max).await?.into_iter();
            // Holes and zeroes are separate extents; both have not changed.
            let mut changes: Vec<Changed> = Vec::new();
            for extent in extents {
                match changes.last_mut() {
                    Some(last) if last.changed != extent.zero => last.len += extent.len,
                    _ => changes.push(Changed { len: extent.len, changed: !extent.zero, zero: false }),
                }
            }
            return Ok(changes);
        };
        self.handle.changes_without_flush(since, offset, len, max).await
    }

    /// Reads the contents from `offset` into `out`. The read does not fill the read cache, and waits for its
    /// share of the store like the read of a client.
    ///
    /// # Errors
    /// The errors of a read.
    pub async fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.handle.read_in_background(offset, out).await
    }
}

/// Begins an export of a volume, an image, or `VOLUME@SNAPSHOT`; see [`Pool::begin_export`].
pub(super) async fn begin(pool: &Pool, name: &str, since: Option<&str>) -> Result<Export> {
    let _admin = pool.components.editor.lock.lock().await;
    let since = since.map(|earlier| compare(pool, name, earlier)).transpose()?;
    let from = pool.components.catalogue.read().find(name)?;
    check_persistent(&from, name)?;
    let source = (from.role(), from.record().uuid);
    match hidden_copy(pool, &from, name).await {
        Err(Error::NoSpace) if from.role() != Role::Volume => {
            Ok(Export { handle: pool.attach(name)?, is_copy: false, since, source })
        }
        made => Ok(Export { handle: made?, is_copy: true, since, source }),
    }
}

/// Opens an earlier disk for comparisons with the disk `name`; see [`Pool::since`].
pub(super) fn compare(pool: &Pool, name: &str, earlier: &str) -> Result<Since> {
    let (earlier, disk) = {
        let catalogue = pool.components.catalogue.read();
        let volume = name.split_once('@').map_or(name, |(volume, _)| volume);
        let of_volume = format!("{volume}@{earlier}");
        match catalogue.find(&of_volume) {
            Ok(disk) if !earlier.contains('@') => (of_volume, disk),
            _ => (earlier.to_owned(), catalogue.find(earlier)?),
        }
    };
    if !matches!(disk.role(), Role::Snapshot | Role::Image) {
        let (is, needs) = ("a volume", "a snapshot or an image, which does not change");
        return Err(Error::WrongKind { name: shorten(&earlier), is, needs });
    }
    disk.check_map(&earlier)?;
    Ok(Since::new(pool.open_without_client(disk, earlier)?))
}

/// Makes a hidden copy of a disk, and opens the copy.
pub(super) async fn hidden_copy(pool: &Pool, from: &Arc<Disk>, name: &str) -> Result<Arc<DiskHandle>> {
    let components = &pool.components;
    pool.check_count(1)?;
    from.check_map(name)?;
    let record = components.editor.new_record("", from.size(), Role::Import);
    // No user can choose a name with '/', so the name of the copy blocks no other name.
    let copy_name = format!("export/{}", record.id.0);
    let disk = DiskRecord { name: copy_name.clone(), dedup_domain: from.record().dedup_domain, ..record };
    let id = disk.id;
    components.intake.commit_ops(vec![CatalogueOp::Create { disk, from: Some(from.id()) }]).await?;
    let copy = disk_by_id(&components.catalogue, id).ok_or_else(|| Error::NotFound(shorten(name)))?;
    pool.open_without_client(copy, copy_name)
}

/// Ends an export; see [`Pool::end_export`].
pub(super) async fn end(pool: &Arc<Pool>, export: Export) -> Result<()> {
    match export.is_copy {
        true => pool.abandon_import(export.handle).await,
        false => Ok(()),
    }
}
