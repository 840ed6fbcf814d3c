//! Receives: a disk is filled with what another pool has sent, and becomes visible when it is complete.
//!
//! **Identity.** The UUID of a snapshot or image identifies its contents, which do not change. A snapshot or
//! image that was received has the UUID of its source. So a later stream of changes names the disk from which
//! it starts by its UUID, in whatever pool this disk is, and a pool has at most one disk with a UUID.
//!
//! **All or nothing.** The data is written to a hidden disk, which has the role of an import: a pool that is
//! opened after a crash removes it. One commit at the end makes everything visible: the new volume with its
//! snapshot; or, of a volume that exists, the new contents and the snapshot, and the hidden disk is removed.
//! Whatever fails before this commit leaves the destination as it was.
//!
//! **A volume that exists** is replaced only if it is unchanged since the snapshot from which the stream
//! starts, so that no write is rolled back. This is checked when the receive begins, and again at the end,
//! when no client has the volume open and no other administrative operation runs: its map must be the same as
//! the map of the snapshot, and its buffers are committed before. A volume that was written, even with equal
//! contents, counts as changed.

use std::sync::Arc;

use forebay_format::{CatalogueOp, DiskId, DiskRecord, Mark, Role, SyncMode};

use super::admin::DiskInfo;
use super::limits::count_again;
use super::pool::Pool;
use crate::catalogue::{check_name, check_size, disk_by_id};
use crate::disk::{Disk, check_persistent};
use crate::handle::DiskHandle;
use crate::text::shorten;
use crate::{Error, Result};

/// What a stream contains, and where it is received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// Name of the volume that receives a snapshot, or of the new image.
    pub name: String,
    /// Name of the snapshot that is made; `None` to receive an image.
    pub snapshot: Option<String>,
    /// Identity of the snapshot or image that was sent.
    pub uuid: [u8; 16],
    /// Identity of the disk from whose contents the stream starts; `None` for a stream with all contents.
    pub parent: Option<[u8; 16]>,
    /// Size of the disk in bytes.
    pub size: u64,
}

/// Why a stream is not received.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReceiveError {
    /// An error of the pool.
    #[error(transparent)]
    Pool(#[from] Error),
    /// The pool has the snapshot or image already.
    #[error("this pool has the snapshot or image already, as '{0}'")]
    Known(String),
    /// The pool does not have the disk from which the stream starts.
    #[error(
        "this pool does not have the snapshot or image from which the stream starts; send all contents, or the \
         changes since a snapshot that was received"
    )]
    NoParent,
    /// The disk from which the stream starts is not a snapshot of the volume.
    #[error("the stream starts from '{parent}', which is not a snapshot of the volume '{volume}'")]
    OtherParent {
        /// Export name of the disk from which the stream starts.
        parent: String,
        /// The volume that should receive the stream.
        volume: String,
    },
    /// The volume was written, resized or rolled back since the snapshot.
    #[error(
        "the volume '{volume}' has changed since '{parent}'; roll it back to this snapshot with 'forebay \
         snapshot rollback', or receive into another volume"
    )]
    Changed {
        /// The volume that should receive the stream.
        volume: String,
        /// Export name of the snapshot.
        parent: String,
    },
}

type Outcome<T> = std::result::Result<T, ReceiveError>;

/// A receive that has begun. The caller ends it with [`Pool::finish_receive`] or [`Pool::abandon_receive`].
pub struct Receiving {
    handle: Arc<DiskHandle>,
    request: ReceiveRequest,
    /// The volume that gets the contents; `None` if the hidden disk becomes the volume or image.
    replaces: Option<DiskId>,
}

impl Receiving {
    /// What is received.
    pub fn request(&self) -> &ReceiveRequest {
        &self.request
    }

    pub(super) fn into_hidden(self) -> Arc<DiskHandle> {
        self.handle
    }

    /// Writes data that was received.
    ///
    /// # Errors
    /// The errors of a write.
    pub async fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.handle.write(offset, data, false).await
    }

    /// Zeroes a range.
    ///
    /// # Errors
    /// The errors of a write.
    pub async fn zero(&self, offset: u64, len: u64) -> Result<()> {
        self.handle.discard(offset, len, false).await
    }
}

/// The visible disk with this UUID.
fn by_uuid(pool: &Pool, uuid: [u8; 16]) -> Option<(Arc<Disk>, String)> {
    let catalogue = pool.components.catalogue.read();
    let disk = catalogue.visible().find(|disk| disk.record().uuid == uuid)?;
    Some((disk.clone(), catalogue.export_name(disk)))
}

/// Checks that a volume has the contents and the size of its snapshot, after a commit of its buffers.
async fn check_unchanged(pool: &Pool, volume: &Arc<Disk>, parent: &(Arc<Disk>, String)) -> Outcome<()> {
    pool.components.intake.flush_disk(volume).await?;
    let now = volume.tree.read().clone();
    let is_same = volume.size() == parent.0.size() && now.is_same(&parent.0.tree.read());
    match is_same {
        true => Ok(()),
        false => {
            Err(ReceiveError::Changed { volume: shorten(&volume.record().name), parent: shorten(&parent.1) })
        }
    }
}

/// Checks that the disk with this UUID is not in the pool.
fn check_unknown(pool: &Pool, uuid: [u8; 16]) -> Outcome<()> {
    by_uuid(pool, uuid).map_or(Ok(()), |(_, name)| Err(ReceiveError::Known(shorten(&name))))
}

/// Begins a receive; see [`Pool::begin_receive`].
pub(super) async fn begin(pool: &Pool, request: ReceiveRequest) -> Outcome<Receiving> {
    let components = &pool.components;
    let ReceiveRequest { name, snapshot, uuid, parent, size } = &request;
    check_name(name)?;
    snapshot.as_deref().map(check_name).transpose()?;
    check_size(*size)?;
    let _admin = components.editor.lock.lock().await;
    check_unknown(pool, *uuid)?;
    pool.check_count(2)?;
    let parent = match parent {
        Some(parent) => Some(by_uuid(pool, *parent).ok_or(ReceiveError::NoParent)?),
        None => None,
    };
    let mut record = components.editor.new_record(name, *size, Role::Import);
    let mut replaces = None;
    if let Some((disk, parent_name)) = &parent {
        disk.check_map(parent_name)?;
        record.dedup_domain = disk.record().dedup_domain;
    }
    let existing = components.catalogue.read().find(name).ok();
    match (existing, &parent) {
        // A new disk reserves its name. Deleting its parent is refused as long as it has a clone.
        (None, parent) => {
            components.catalogue.read().check_free(name)?;
            record.origin = parent.as_ref().map(|(parent, _)| parent.id());
        }
        (Some(_), None) => return Err(Error::Exists(shorten(name)).into()),
        (Some(volume), Some(parent)) => {
            let Some(snapshot) = snapshot else { return Err(Error::Exists(shorten(name)).into()) };
            let of_volume =
                parent.0.role() == Role::Snapshot && parent.0.record().parent == Some(volume.id());
            if !of_volume {
                let (parent, volume) = (shorten(&parent.1), shorten(name));
                return Err(ReceiveError::OtherParent { parent, volume });
            }
            check_persistent(&volume, name)?;
            // A client that stays connected would make the end of the receive fail.
            drop(volume.exclude_clients(name)?);
            components.catalogue.read().check_free(&format!("{name}@{snapshot}"))?;
            check_unchanged(pool, &volume, parent).await?;
            // No user can choose a name with '/', so the name of the hidden disk blocks no other name.
            record.name = format!("receive/{}", record.id.0);
            replaces = Some(volume.id());
        }
    }
    let (id, hidden_name) = (record.id, record.name.clone());
    let from = parent.as_ref().map(|(parent, _)| parent.id());
    let mut ops = Vec::new();
    if let Some((parent, _)) = parent.as_ref().filter(|(parent, _)| parent.size() != *size) {
        record.size = parent.size();
        ops.push(CatalogueOp::Resize { disk: id, size: *size });
    }
    ops.insert(0, CatalogueOp::Create { disk: record, from });
    components.intake.commit_ops(ops).await?;
    let disk = disk_by_id(&components.catalogue, id).ok_or_else(|| Error::NotFound(shorten(name)))?;
    let handle = pool.open_without_client(disk, hidden_name)?;
    Ok(Receiving { handle, request, replaces })
}

/// Makes what was received visible; see [`Pool::finish_receive`].
pub(super) async fn finish(pool: &Arc<Pool>, receiving: Receiving) -> Outcome<DiskInfo> {
    let hidden = receiving.handle.clone();
    match publish(pool, receiving).await {
        Ok(info) => Ok(info),
        Err(e) => {
            // The first error is returned, since it is more useful. If the pool has latched, its next opening
            // removes the hidden disk.
            let _ = pool.abandon_import(hidden).await;
            Err(e)
        }
    }
}

async fn publish(pool: &Arc<Pool>, receiving: Receiving) -> Outcome<DiskInfo> {
    let components = &pool.components;
    let Receiving { handle, request, replaces } = receiving;
    let _admin = components.editor.lock.lock().await;
    check_unknown(pool, request.uuid)?;
    handle.flush().await?;
    let hidden = disk_by_id(&components.catalogue, handle.id()).filter(|disk| disk.role() == Role::Import);
    let hidden = hidden.ok_or_else(|| Error::NotFound(shorten(&handle.name())))?;
    hidden.check_map(&handle.name())?;
    let record = (*hidden.record()).clone();
    let Some(snapshot) = &request.snapshot else {
        let disk = DiskRecord { role: Role::Image, uuid: request.uuid, ..record };
        hidden.guest.clear();
        components.intake.commit_ops(vec![CatalogueOp::Update { disk }]).await?;
        return Ok(pool.disk(&request.name)?);
    };
    let of_snapshot = |volume: &DiskRecord| DiskRecord {
        sync: volume.sync,
        parent: Some(volume.id),
        dedup_domain: volume.dedup_domain,
        uuid: request.uuid,
        ..components.editor.new_record(snapshot, request.size, Role::Snapshot)
    };
    let full = format!("{}@{snapshot}", request.name);
    match replaces {
        None => {
            components.catalogue.read().check_free(&full)?;
            let made = of_snapshot(&record);
            let volume = DiskRecord { role: Role::Volume, sync: SyncMode::Flush, ..record };
            let from = Some(volume.id);
            let ops = vec![CatalogueOp::Update { disk: volume }, CatalogueOp::Create { disk: made, from }];
            hidden.guest.clear();
            components.intake.commit_ops(ops).await?;
        }
        Some(id) => {
            let volume = components.editor.find_volume(&request.name)?;
            let parent = request.parent.and_then(|parent| by_uuid(pool, parent));
            let parent = parent.filter(|_| volume.id() == id).ok_or(ReceiveError::NoParent)?;
            components.catalogue.read().check_free(&full)?;
            volume.occupied.check_snapshot()?;
            let _exclusive = volume.exclude_clients(&request.name)?;
            check_unchanged(pool, &volume, &parent).await?;
            components.marks.ensure_settled().await?;
            let disk = of_snapshot(&volume.record());
            let ops = vec![
                CatalogueOp::Copy { disk: id, from: hidden.id() },
                CatalogueOp::Mark { disk: id, mark: Mark::None },
                CatalogueOp::Create { disk, from: Some(id) },
                CatalogueOp::Delete { disk: hidden.id() },
            ];
            components.editor.copy_contents(ops).await?;
            count_again(pool, &volume);
        }
    }
    Ok(pool.disk(&full)?)
}
