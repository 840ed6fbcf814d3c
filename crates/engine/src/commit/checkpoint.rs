//! Checkpoints: maps, catalogue and segment table as of one batch. Recovery reads the log from that batch on.
//!
//! A checkpoint is taken *between* groups, under the log's lock: at that moment, maps and catalogue include
//! exactly the changes in the log up to its head. Taking it copies root pointers and records only; it is
//! written concurrently with commits, to the map stream. It takes effect when the superblock references it.
//! Until then the previous checkpoint is in effect, and nothing that it needs has been freed (ensured by
//! [`crate::reclaim`]).
//!
//! The batches of the checkpoint itself are *after* the batch up to which it is valid, so recovery reads them
//! again as part of the log, where they have no effect.

use forebay_format::{BlobRef, Checkpoint, DiskRecord, MAX_BLOBS, Stream, check64};

use super::committer::Committer;
use crate::log::{Head, Item};
use crate::map::{Dirty, Tree, collect_dirty};
use crate::sync::atomic::Ordering::Relaxed;
use crate::{Error, Mutation, Result};

/// A checkpoint that was taken.
pub(crate) struct Taken {
    pub head: Head,
    pub checkpoint: Checkpoint,
    /// The maps of its disks, in the same order.
    pub trees: Vec<Tree>,
    /// Their values of [`crate::disk::Disk::map_damage`] at that time, in the same order.
    pub map_damage: Vec<u64>,
}

impl Committer {
    /// Whether enough was appended to the log since the last checkpoint.
    pub fn checkpoint_due(&self) -> bool {
        let since = self.appended.load(Relaxed) - self.checkpointed.load(Relaxed);
        since >= self.cx.config.checkpoint_bytes
    }

    /// Makes a checkpoint now.
    ///
    /// # Errors
    /// [`Error::NoSpace`] and errors of the store; the previous checkpoint stays in effect.
    pub async fn checkpoint(&self) -> Result<()> {
        self.take_checkpoint().await.map(drop)
    }

    /// As [`Committer::checkpoint`]; returns the checkpoint.
    pub async fn take_checkpoint(&self) -> Result<Taken> {
        let _alone = self.checkpoint_lock.lock().await;
        self.make_checkpoint().await
    }

    /// Makes a checkpoint and references it in both superblock copies, so that the loss of either copy does
    /// not return to an earlier checkpoint.
    pub async fn checkpoint_in_both_copies(&self) -> Result<()> {
        let _alone = self.checkpoint_lock.lock().await;
        self.make_checkpoint().await?;
        self.renew_older_copy().await
    }

    /// Rewrites the older superblock copy, so that both copies reference the newest checkpoint.
    pub async fn renew_older_copy(&self) -> Result<()> {
        let swapped = self.log.lock().await.swap_superblock(|_| {}).await;
        self.latching(swapped)
    }

    /// Makes a checkpoint and returns it. The caller holds `checkpoint_lock`.
    async fn make_checkpoint(&self) -> Result<Taken> {
        self.cx.check_latch()?;
        let mut taken = self.take().await?;
        let appended = self.appended.load(Relaxed);
        for group in collect_dirty(taken.trees.iter()) {
            self.write_nodes(&group).await?;
        }
        for (record, tree) in taken.checkpoint.disks.iter_mut().zip(&taken.trees) {
            (record.root, record.height) =
                tree.record().expect("the root and all nodes below it were stored");
        }
        let bytes = taken.checkpoint.encode();
        let blobs = self.write_blobs(&bytes).await?;
        {
            let mut log = self.log.lock().await;
            let ahead = self.cx.config.mutation == Mutation::CheckpointAhead;
            let Head { seq, chain } = if ahead { log.head() } else { taken.head };
            let swapped = log.swap_superblock(|s| (s.seq, s.chain, s.blobs) = (seq, chain, blobs)).await;
            self.latching(swapped)?;
        }
        self.checkpointed.store(appended, Relaxed);
        self.checkpoints.add(bytes.len() as u64);
        for record in &taken.checkpoint.disks {
            if let Some(disk) = self.applier.disk(record.id) {
                disk.tree.write().settle(&self.reader.nodes.cache);
            }
        }
        Ok(taken)
    }

    async fn take(&self) -> Result<Taken> {
        let log = self.log.lock().await;
        // A commit that latched the pool may have left a group in the log that was not applied to the maps.
        self.cx.check_latch()?;
        let catalogue = self.applier.catalogue.read();
        let (mut disks, mut trees, mut map_damage) = (Vec::new(), Vec::new(), Vec::new());
        for disk in catalogue.iter() {
            let damage = disk.map_damage();
            map_damage.push(damage);
            let record = (*disk.record()).clone();
            disks.push(DiskRecord { size: disk.size(), map_damaged: damage > 0, ..record });
            trees.push(disk.tree.read().clone());
        }
        let (warm, sampling) = {
            let dedup = self.reducer.dedup.lock();
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

    /// Writes nodes that do not reference each other. The log is locked for one batch at a time, so that
    /// commits run in between.
    async fn write_nodes(&self, nodes: &[Dirty]) -> Result<()> {
        const NODES_AT_A_TIME: usize = 512;
        for nodes in nodes.chunks(NODES_AT_A_TIME) {
            let encoded: Vec<Vec<u8>> = nodes.iter().map(|n| n.encode().encode()).collect();
            let items: Vec<_> = encoded.iter().map(|content| Item::Node(content)).collect();
            let mut log = self.log.lock().await;
            let written = log.write_group(Stream::Map, &items, self.cx.host.workers()).await;
            let refs = self.latching(written)?;
            nodes.iter().zip(refs).for_each(|(node, at)| node.set_stored(at));
        }
        Ok(())
    }

    /// Writes the encoded checkpoint as blobs; returns their references.
    async fn write_blobs(&self, bytes: &[u8]) -> Result<Vec<BlobRef>> {
        let mut log = self.log.lock().await;
        // Room for header and entry of each batch.
        let piece = log.batch_limit() - 2 * forebay_format::BLOCK;
        let pieces: Vec<&[u8]> = bytes.chunks(piece).collect();
        if pieces.len() > MAX_BLOBS {
            tracing::error!(bytes = bytes.len(), "the catalogue is too large for a checkpoint");
            return Err(Error::NoSpace);
        }
        let items: Vec<_> = pieces.iter().map(|p| Item::Blob(p)).collect();
        let written = log.write_group(Stream::Map, &items, self.cx.host.workers()).await;
        let refs = self.latching(written)?;
        let refs = pieces.iter().zip(refs).map(|(piece, at)| BlobRef {
            segment: at.addr.segment,
            offset: at.addr.slot.offset() as u32,
            len: piece.len() as u32,
            check: check64(piece),
        });
        Ok(refs.collect())
    }

    /// Latches the pool after a failure of the log, except after [`Error::NoSpace`], which does not impair
    /// the log.
    pub fn latching<T>(&self, result: std::result::Result<T, forebay_store::StoreError>) -> Result<T> {
        result.map_err(|e| {
            let e = Error::from(e);
            if !matches!(e, Error::NoSpace) {
                tracing::error!("the pool stops: {e}");
                self.cx.latch(&e);
                self.intake.request_commit();
            }
            e
        })
    }
}
