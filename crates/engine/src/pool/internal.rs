//! Internal disks: disks of a front end that presents the pool in another form than as disks, such as the
//! files of an NFS export.
//!
//! No user sees an internal disk or can name it. Its role is that of the pool's documents, so every release
//! keeps it: the names of internal disks contain a `/`, which no document has. The front end finds its disks
//! by their ids, which are never reused.
//!
//! **Order.** A commit freezes the buffers of all disks at one moment (`commit/intake.rs`), and recovery
//! applies a group as a whole or not at all. So after a crash the changes of all internal disks are a prefix
//! of the changes in the order in which they were made. Several front ends' structures can therefore refer to
//! each other across disks without a flush in between.
//!
//! **Retained memory.** If the process ends and the write buffers are retained, the changes of the last
//! moment are a prefix as well, block by block: a block is replaced as a whole, in the order of the program.
//! The blocks of one [`DiskHandle::write_blocks`] are in one group after a loss of the memory, but only some
//! of them may be in retained memory.

use std::sync::Arc;

use forebay_format::{BLOCK, CatalogueOp, DiskId, DiskRecord, Role};

use super::pool::Pool;
use crate::catalogue::{Relation, check_size, disk_by_id};
use crate::commit::{Admitted, Intake};
use crate::disk::{Disk, INTERNAL};
use crate::handle::DiskHandle;
use crate::{Error, Result};

/// Room in the write buffers for a change of several blocks of one disk ([`DiskHandle::admit_blocks`]).
pub struct BlockRoom<'a> {
    admitted: Admitted<'a>,
    blocks: usize,
}

/// The internal disks of a purpose.
pub(super) fn find(pool: &Pool, purpose: &str) -> Vec<DiskId> {
    let name = internal_name(purpose);
    let catalogue = pool.components.catalogue.read();
    let hidden = catalogue.related(None, Relation::Metadata);
    hidden.filter(|disk| disk.record().name == name).map(|disk| disk.id()).collect()
}

/// Creates an internal disk; see [`Pool::create_internal`].
pub(super) async fn create(
    pool: &Pool,
    purpose: &str,
    size: u64,
    from: Option<&DiskHandle>,
) -> Result<Arc<DiskHandle>> {
    check_size(size)?;
    let components = &pool.components;
    if let Some(from) = from {
        from.disk.check_map(&from.name())?;
    }
    let record = components.editor.new_record("", size, Role::Metadata);
    let disk = DiskRecord { name: internal_name(purpose), ..record };
    let id = disk.id;
    let from = from.map(DiskHandle::id);
    components.intake.commit_ops(vec![CatalogueOp::Create { disk, from }]).await?;
    open(pool, id)
}

/// Opens an internal disk; see [`Pool::open_internal`].
pub(super) fn open(pool: &Pool, id: DiskId) -> Result<Arc<DiskHandle>> {
    let disk = disk_by_id(&pool.components.catalogue, id).filter(|disk| disk.is_internal());
    let disk = disk.ok_or_else(|| Error::NotFound(format!("internal disk {}", id.0)))?;
    let name = disk.record().name.clone();
    pool.open_without_client(disk, name)
}

/// Deletes internal disks; see [`Pool::remove_internal`].
pub(super) async fn remove(pool: &Pool, ids: &[DiskId]) -> Result<()> {
    let catalogue = &pool.components.catalogue;
    let exists = |id: &DiskId| disk_by_id(catalogue, *id).is_some_and(|disk| disk.is_internal());
    let ops: Vec<_> = ids.iter().copied().filter(exists).map(|disk| CatalogueOp::Delete { disk }).collect();
    if ops.is_empty() {
        return Ok(());
    }
    pool.components.intake.commit_ops(ops).await?;
    pool.components.space.reclaim_is_due();
    Ok(())
}

/// The name of the internal disks of a purpose.
fn internal_name(purpose: &str) -> String {
    format!("{INTERNAL}{purpose}")
}

impl DiskHandle {
    /// Waits until the write buffers have room for `blocks` blocks of the disk.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; the errors of a pool that does not run.
    pub async fn admit_blocks(&self, blocks: usize) -> Result<BlockRoom<'_>> {
        let mut admitted = self.intake.admit(&self.disk, (blocks * BLOCK) as u64).await?;
        admitted.spend((blocks * BLOCK) as u64);
        Ok(BlockRoom { admitted, blocks })
    }

    /// Replaces whole blocks in this order. All of them are in the same group of the log. Does not wait.
    ///
    /// # Errors
    /// The errors of a pool that does not run: nothing was written, or the pool stops without a further
    /// commit.
    ///
    /// # Panics
    /// More blocks than were admitted, or a block beyond the end of the disk.
    pub fn write_blocks(&self, room: &mut BlockRoom<'_>, blocks: &[(u64, &[u8; BLOCK])]) -> Result<()> {
        assert!(blocks.len() <= room.blocks, "{} blocks, admitted {}", blocks.len(), room.blocks);
        assert!(blocks.iter().all(|(at, _)| (at + 1) * BLOCK as u64 <= self.size()), "beyond the disk");
        room.blocks -= blocks.len();
        write_together(&self.intake, &self.disk, &mut room.admitted, blocks)
    }
}

fn write_together(
    intake: &Arc<Intake>,
    disk: &Arc<Disk>,
    admitted: &mut Admitted<'_>,
    blocks: &[(u64, &[u8; BLOCK])],
) -> Result<()> {
    let first = blocks.iter().map(|(at, _)| *at).min();
    let (Some(first), Some(last)) = (first, blocks.iter().map(|(at, _)| *at).max()) else {
        return Ok(());
    };
    let room = &mut admitted.room;
    intake.change(disk, first..last + 1, |buffers, _| {
        let write = |(at, data): &(u64, &[u8; BLOCK])| {
            buffers.change(*at..*at + 1, |buffer| buffer.write_whole(*at, *data, None, Some(room)))
        };
        blocks.iter().map(write).sum()
    })?;
    for (at, _) in blocks {
        intake.record_cold(disk, *at..*at + 1, std::iter::empty());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use forebay_store::MemoryStore;

    use super::*;
    use crate::testing::TokioHost;
    use crate::{PoolConfig, SyncMode};

    #[tokio::test]
    async fn internal_disks_are_hidden_and_survive_the_next_opening() {
        let store = Arc::new(MemoryStore::new());
        let pool = Pool::open(store.clone(), TokioHost::new(), PoolConfig::default()).await.unwrap();
        pool.set_document("table", Some(b"a document")).await.unwrap();
        let disk = pool.create_internal("table", 1 << 20, None).await.unwrap();
        let other = pool.create_internal("data", 1 << 20, None).await.unwrap();
        let (one, two) = ([1; BLOCK], [2; BLOCK]);
        let mut room = disk.admit_blocks(3).await.unwrap();
        disk.write_blocks(&mut room, &[(7, &one), (0, &two), (7, &two)]).unwrap();
        drop(room);
        other.write(100, b"data", false).await.unwrap();
        disk.flush().await.unwrap();
        other.flush().await.unwrap();
        assert_eq!(pool.internal_disks("table"), [disk.id()]);
        assert!(pool.disks().is_empty());
        assert!(pool.attach("internal/table").is_err());
        pool.create_volume("internal", 1 << 20, SyncMode::Flush, 0).await.unwrap();
        let ids = (disk.id(), other.id());
        let copy = pool.create_internal("data", 1 << 20, Some(&other)).await.unwrap().id();
        other.write(100, b"more", true).await.unwrap();
        drop((disk, other));
        pool.close().await.unwrap();
        let pool = Pool::open(store, TokioHost::new(), PoolConfig::default()).await.unwrap();
        assert_eq!(pool.document("table").await.unwrap().unwrap(), b"a document");
        let disk = pool.open_internal(ids.0).unwrap();
        let mut block = [0; BLOCK];
        for (at, wanted) in [(0, 2), (1, 0), (7, 2)] {
            disk.read(at * BLOCK as u64, &mut block).await.unwrap();
            assert_eq!(block, [wanted; BLOCK]);
        }
        for (id, wanted) in [(ids.1, b"more"), (copy, b"data")] {
            let mut found = [0; 4];
            pool.open_internal(id).unwrap().read(100, &mut found).await.unwrap();
            assert_eq!(&found, wanted);
        }
        pool.remove_internal(&[ids.1, copy]).await.unwrap();
        assert!(pool.internal_disks("data").is_empty());
        assert!(pool.open_internal(ids.1).is_err());
        let volume = pool.disk("internal").unwrap();
        assert!(pool.open_internal(volume.id).is_err(), "a volume is not an internal disk");
    }
}
