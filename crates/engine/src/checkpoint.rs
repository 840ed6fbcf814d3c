//! Checkpoints: maps, catalogue and segment table as of one batch, so that recovery need not read further back.
//!
//! A checkpoint is taken *between* groups, under the log's lock: there, maps and catalogue are what the log up
//! to its head says. Taking it copies root pointers and records only; writing it goes on beside commits, into
//! the map stream. It counts from the moment at which the superblock names it. Until then the one before
//! stands, and nothing that it needs has been freed ([`crate::reclaim`] sees to that).
//!
//! What is written for a checkpoint comes *after* the batch up to which it holds, so recovery reads it again
//! as part of the log, in which it changes nothing.

use std::sync::atomic::Ordering::Relaxed;

use forebay_format::{BlobRef, Checkpoint, DiskRecord, MAX_BLOBS, SegmentId, Stream, check64};

use crate::log::{Draft, Head, Item};
use crate::map::{Dirty, Tree, collect_dirty};
use crate::pool::Pool;
use crate::{Error, Mutation, Result};

/// A checkpoint that was taken.
pub(crate) struct Taken {
    pub head: Head,
    pub checkpoint: Checkpoint,
    /// The maps of its disks, in the same order.
    pub trees: Vec<Tree>,
    /// What [`crate::volume::Volume::map_damage`] was of them, in the same order.
    pub map_damage: Vec<u64>,
}

impl Pool {
    /// Makes a checkpoint now.
    ///
    /// # Errors
    /// [`Error::NoSpace`] and whatever the store reports; the one before stays in force.
    pub async fn checkpoint(&self) -> Result<()> {
        let _alone = self.upkeep.lock.lock().await;
        self.make_checkpoint().await.map(drop)
    }

    /// Makes a checkpoint that both superblock copies name, so that the loss of either copy does not lead back before
    /// it.
    pub(crate) async fn checkpoint_in_both_copies(&self) -> Result<()> {
        let _alone = self.upkeep.lock.lock().await;
        self.make_checkpoint().await?;
        self.renew_older_copy().await
    }

    /// Has the older superblock copy name the checkpoint of the newer one.
    pub(crate) async fn renew_older_copy(&self) -> Result<()> {
        let swapped = self.log.lock().await.swap_superblock(|_| {}).await;
        self.latching(swapped)
    }

    /// Makes a checkpoint, under the upkeep lock, and tells what it holds.
    pub(crate) async fn make_checkpoint(&self) -> Result<Taken> {
        self.check_latch()?;
        let mut taken = self.take().await?;
        let appended = self.appended.load(Relaxed);
        for group in collect_dirty(taken.trees.iter()) {
            self.write_nodes(&group).await?;
        }
        for (disk, tree) in taken.checkpoint.disks.iter_mut().zip(&taken.trees) {
            (disk.root, disk.height) =
                tree.record().expect("every node below the root was stored, and the root");
        }
        let bytes = taken.checkpoint.encode();
        let blobs = self.write_blobs(&bytes).await?;
        {
            let mut log = self.log.lock().await;
            let ahead = self.config.mutation == Mutation::CheckpointAhead;
            let Head { seq, chain } = if ahead { log.head() } else { taken.head };
            let swapped = log.swap_superblock(|s| (s.seq, s.chain, s.blobs) = (seq, chain, blobs)).await;
            self.latching(swapped)?;
        }
        self.upkeep.checkpointed.store(appended, Relaxed);
        self.counters.checkpoints.add(bytes.len() as u64);
        for disk in &taken.checkpoint.disks {
            if let Some(volume) = self.volume(disk.id) {
                volume.tree.write().settle(&self.nodes);
            }
        }
        Ok(taken)
    }

    async fn take(&self) -> Result<Taken> {
        let log = self.log.lock().await;
        // A commit that latched the pool may have left a group that the maps did not take.
        self.check_latch()?;
        let catalogue = self.catalogue.read();
        let (mut disks, mut trees, mut map_damage) = (Vec::new(), Vec::new(), Vec::new());
        for disk in catalogue.iter() {
            let damage = disk.map_damage();
            map_damage.push(damage);
            let record = (*disk.record()).clone();
            disks.push(DiskRecord { size: disk.size(), map_damaged: damage > 0, ..record });
            trees.push(disk.tree.read().clone());
        }
        let (warm, sampling) = {
            let dedup = self.dedup.lock();
            (dedup.warm(), dedup.sampling())
        };
        let checkpoint = Checkpoint {
            seq: log.head().seq,
            next_disk: catalogue.next_id(),
            next_segment: log.next_segment(),
            disks,
            segments: log.table().values().copied().collect(),
            warm,
            sampling,
        };
        Ok(Taken { head: log.head(), checkpoint, trees, map_damage })
    }

    /// Writes nodes that refer to none of each other, a batch at a time, so that commits get their turn.
    async fn write_nodes(&self, nodes: &[Dirty]) -> Result<()> {
        const NODES_AT_A_TIME: usize = 512;
        for nodes in nodes.chunks(NODES_AT_A_TIME) {
            let encoded: Vec<Vec<u8>> = nodes.iter().map(|n| n.encode().encode()).collect();
            let items: Vec<_> = encoded.iter().map(|content| Item::Node(content)).collect();
            let mut log = self.log.lock().await;
            let drafts = Draft::split(&items, log.batch_limit());
            let written = log.write_group(Stream::Map, &drafts, &mut |_, _, _| {}).await;
            let places = self.latching(written)?;
            nodes.iter().zip(places).for_each(|(node, at)| node.set_stored(at));
        }
        Ok(())
    }

    async fn write_blobs(&self, bytes: &[u8]) -> Result<Vec<BlobRef>> {
        let mut log = self.log.lock().await;
        // Room for header and entry of each batch.
        let piece = log.batch_limit() - 2 * forebay_format::BLOCK;
        let pieces: Vec<&[u8]> = bytes.chunks(piece).collect();
        if pieces.len() > MAX_BLOBS {
            tracing::error!(bytes = bytes.len(), "the catalogue has outgrown what a checkpoint can hold");
            return Err(Error::NoSpace);
        }
        let items: Vec<_> = pieces.iter().map(|p| Item::Blob(p)).collect();
        let drafts = Draft::split(&items, log.batch_limit());
        let written = log.write_group(Stream::Map, &drafts, &mut |_, _, _| {}).await;
        let places = self.latching(written)?;
        let refs = pieces.iter().zip(places).map(|(piece, at)| BlobRef {
            segment: at.addr.segment,
            offset: at.addr.slot.offset() as u32,
            len: piece.len() as u32,
            check: check64(piece),
        });
        Ok(refs.collect())
    }

    /// Latches the pool after a failure of the log, but for a want of room, which the log outlives.
    pub(crate) fn latching<T>(&self, result: std::result::Result<T, forebay_store::StoreError>) -> Result<T> {
        result.map_err(|e| {
            let e = Error::from(e);
            if !matches!(e, Error::NoSpace) {
                tracing::error!("the pool stops: {e}");
                self.latch(&e);
                self.commit.hurry();
            }
            e
        })
    }

    /// Reads the checkpoint that the superblock names.
    pub(crate) async fn read_checkpoint(&self, blobs: &[BlobRef]) -> Result<Option<Checkpoint>> {
        if blobs.is_empty() {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        for blob in blobs {
            let piece = self.read_exact(blob.segment, blob.offset as u64, blob.len as usize).await?;
            if check64(&piece) != blob.check {
                return Err(crate::fetch::damage(blob.segment, blob.offset as u64));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(Some(Checkpoint::decode(&bytes)?))
    }

    /// Segments in which pieces of the checkpoint lie.
    pub(crate) fn blob_segments(blobs: &[BlobRef]) -> impl Iterator<Item = SegmentId> {
        blobs.iter().map(|b| b.segment)
    }
}
