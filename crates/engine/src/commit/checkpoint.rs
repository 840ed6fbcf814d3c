//! Checkpoints: maps, catalogue and segment table as of one batch. Recovery reads the log from that batch on.
//!
//! A checkpoint is taken *between* groups, under the log's lock: at that moment, maps and catalogue include
//! exactly the changes in the log up to its head. Under the lock, only root pointers are copied; the
//! checkpoint is written concurrently with commits, to the map stream. It takes effect when the superblock
//! references it. Until then the previous checkpoint is in effect, and [`crate::reclaim`] ensures that
//! nothing that the previous checkpoint needs has been freed.
//!
//! A checkpoint writes what changed since the previous checkpoint: map nodes, and the pages of its tables
//! ([`crate::tables`]).
//!
//! The batches of the checkpoint itself are *after* the batch up to which it is valid, so recovery reads them
//! again as part of the log, where they have no effect.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_format::{BLOCK, BlobRef, CheckpointRoot, DiskRecord, MAX_BLOBS, SegmentId, Stream, check64};
use tokio::task::yield_now;

use super::committer::Committer;
use crate::disk::blocks;
use crate::limits::PIECES_BYTES;
use crate::log::{Head, Item};
use crate::map::{Dirty, Tree, collect_dirty};
use crate::sync::atomic::Ordering::Relaxed;
use crate::tables::{Contents, PageId, PagedTable, StoredTables};
use crate::yield_counter::YieldCounter;
use crate::{Error, Mutation, Result};

/// The state of the pool for a checkpoint, as it was taken.
pub(crate) struct Taken {
    pub head: Head,
    pub checkpoint: Contents,
    /// The maps of the checkpoint's disks, in the order of the disks.
    pub trees: Vec<Tree>,
    /// The values of [`crate::disk::Disk::map_damage`] when the checkpoint was taken, in the order of the
    /// disks.
    pub map_damage: Vec<u64>,
}

/// A disk at the moment of a checkpoint: its record, with the size and the damage of that moment.
type TakenDisk = (Arc<DiskRecord>, u64, u64);

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
        self.take_checkpoint(0).await.map(drop)
    }

    /// Works like [`Committer::checkpoint`]. Also stores up to `renew` of the oldest pages of the tables,
    /// which have not changed. Returns the checkpoint, and the objects that hold its pages.
    pub async fn take_checkpoint(&self, renew: usize) -> Result<(Taken, BTreeSet<SegmentId>)> {
        let _alone = self.checkpoint_lock.lock().await;
        let taken = self.make_checkpoint(renew).await?;
        let with_pages = self.tables.lock().objects().collect();
        Ok((taken, with_pages))
    }

    /// Makes a checkpoint and references it in both superblock copies, so that the loss of either copy does
    /// not return to an earlier checkpoint.
    pub async fn checkpoint_in_both_copies(&self) -> Result<()> {
        let _alone = self.checkpoint_lock.lock().await;
        self.make_checkpoint(0).await?;
        self.renew_older_copy().await
    }

    /// Rewrites the older superblock copy, so that both copies reference the newest checkpoint.
    pub async fn renew_older_copy(&self) -> Result<()> {
        let swapped = self.write_log().await?.swap_superblock(|_| {}).await;
        self.latching(swapped)
    }

    /// Makes a checkpoint and returns it. The caller holds `checkpoint_lock`. `renew` is as in
    /// [`Committer::take_checkpoint`].
    async fn make_checkpoint(&self, renew: usize) -> Result<Taken> {
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
        let begin = self.appended.load(Relaxed);
        let tables = self.store_tables(&taken.checkpoint, renew).await?;
        let blobs = self.write_root(&taken, &tables).await?;
        {
            let mut log = self.write_log().await?;
            let ahead = self.cx.config.mutation == Mutation::CheckpointAhead;
            let Head { seq, chain } = if ahead { log.head() } else { taken.head };
            let swapped = log.swap_superblock(|s| (s.seq, s.chain, s.blobs) = (seq, chain, blobs)).await;
            self.latching(swapped)?;
        }
        *self.tables.lock() = tables;
        self.checkpointed.store(appended, Relaxed);
        self.checkpoints.add(self.appended.load(Relaxed) - begin);
        let mut yields = YieldCounter::default();
        for record in &taken.checkpoint.disks {
            yields.step().await;
            if let Some(disk) = self.applier.disk(record.id) {
                disk.tree.write().settle(&self.reader.nodes.cache);
                let stored = Tree::from_record(record.root, record.height, blocks(record.size));
                if stored.is_ok_and(|map| disk.used.checkpointed(map)) && disk.role().is_visible() {
                    self.used.request(record.id);
                }
            }
        }
        Ok(taken)
    }

    async fn take(&self) -> Result<Taken> {
        // Writing fails if a commit has latched the pool: it may have left a group in the log that the maps
        // lack.
        let log = self.write_log().await?;
        let (mut disks, mut trees): (Vec<TakenDisk>, _) = (Vec::new(), Vec::new());
        let next_disk = {
            let catalogue = self.applier.catalogue.read();
            for disk in catalogue.iter() {
                disks.push((disk.record(), disk.size(), disk.map_damage()));
                trees.push(disk.tree.read().clone());
            }
            catalogue.next_id()
        };
        let (warm, sampling) = {
            let dedup = self.reducer.dedup.lock();
            (dedup.warm(), dedup.sampling())
        };
        let (head, next_segment, segments) = (log.head(), log.next_segment(), log.table().clone());
        drop(log);
        let map_damage = disks.iter().map(|(.., damage)| *damage).collect();
        let (mut records, mut yields) = (Vec::with_capacity(disks.len()), YieldCounter::default());
        for (record, size, damage) in disks {
            yields.step().await;
            records.push(DiskRecord { size, map_damaged: damage > 0, ..(*record).clone() });
        }
        let checkpoint = Contents { next_disk, next_segment, disks: records, segments, warm, sampling };
        Ok(Taken { head, checkpoint, trees, map_damage })
    }

    /// Writes nodes that do not reference each other. The log is locked for one batch at a time, so that
    /// commits run in between.
    async fn write_nodes(&self, nodes: &[Dirty]) -> Result<()> {
        const NODES_AT_A_TIME: usize = 512;
        for nodes in nodes.chunks(NODES_AT_A_TIME) {
            let encoded: Vec<Vec<u8>> = nodes.iter().map(|n| n.encode().encode()).collect();
            let items: Vec<_> = encoded.iter().map(|content| Item::Node(content)).collect();
            let mut log = self.write_log().await?;
            let written = log.write_group(Stream::Map, &items, self.cx.host.workers()).await;
            let refs = self.latching(written)?;
            nodes.iter().zip(refs).for_each(|(node, at)| node.set_stored(at));
        }
        Ok(())
    }

    /// Stores the pages in which the tables of a checkpoint differ from the tables of the current checkpoint,
    /// and up to `renew` unchanged pages.
    async fn store_tables(&self, contents: &Contents, renew: usize) -> Result<StoredTables> {
        let mut tables = self.tables.lock().clone();
        let pages = tables.replace(contents, renew).await;
        let mut paged = tables.tables.clone();
        self.store_pages(&mut paged, &pages, |page| tables.encode(page)).await?;
        self.store_directories(&mut paged).await?;
        tables.tables = paged;
        Ok(tables)
    }

    /// Stores pages of tables, which `encode` encodes, or removes pages without records. The log is locked
    /// for some pages at a time, so that commits run in between. To be followed by
    /// [`Committer::store_directories`].
    pub async fn store_pages(
        &self,
        tables: &mut [PagedTable],
        pages: &[PageId],
        encode: impl Fn(PageId) -> Option<Vec<u8>>,
    ) -> Result<()> {
        let mut pages = pages.iter();
        while !pages.as_slice().is_empty() {
            let (mut encoded, mut bytes) = (Vec::new(), 0);
            while bytes < PIECES_BYTES
                && let Some((table, number)) = pages.next()
            {
                match encode((*table, *number)) {
                    None => tables[*table].set(*number, None),
                    Some(page) => {
                        bytes += page.len();
                        encoded.push((*table, *number, page));
                    }
                }
            }
            let pieces: Vec<&[u8]> = encoded.iter().map(|(.., page)| &page[..]).collect();
            for ((table, number, _), at) in encoded.iter().zip(self.write_pieces(&pieces).await?) {
                tables[*table].set(*number, Some(at));
            }
            // Yields explicitly, since a store in memory never waits.
            yield_now().await;
        }
        Ok(())
    }

    /// Stores the directory pages of tables that changed.
    pub async fn store_directories(&self, tables: &mut [PagedTable]) -> Result<()> {
        let changed: Vec<_> = tables.iter().map(PagedTable::changed_directories).collect();
        let pieces: Vec<&[u8]> = changed.iter().flatten().filter_map(|(_, page)| page.as_deref()).collect();
        let mut stored = self.write_pieces(&pieces).await?.into_iter();
        for (table, changed) in tables.iter_mut().zip(&changed) {
            for (number, page) in changed {
                table.set_directory(*number, page.as_ref().and_then(|_| stored.next()));
            }
        }
        Ok(())
    }

    /// Writes the root of a checkpoint in pieces that are no longer than a batch.
    async fn write_root(&self, taken: &Taken, tables: &StoredTables) -> Result<Vec<BlobRef>> {
        let Contents { next_disk, next_segment, warm, sampling, .. } = &taken.checkpoint;
        let root = CheckpointRoot {
            seq: taken.head.seq,
            next_disk: *next_disk,
            next_segment: *next_segment,
            directories: tables.tables.iter().flat_map(PagedTable::directories).collect(),
            warm: warm.clone(),
            sampling: *sampling,
        };
        let bytes = root.encode();
        // Each batch needs room for its header and an entry.
        let piece = self.read_log().await.batch_limit() - 2 * BLOCK;
        let pieces: Vec<&[u8]> = bytes.chunks(piece).collect();
        if pieces.len() > MAX_BLOBS {
            tracing::error!(bytes = bytes.len(), "the root of the checkpoint is too large");
            return Err(Error::NoSpace);
        }
        self.write_pieces(&pieces).await
    }

    /// Writes pieces as a group; returns their references.
    async fn write_pieces(&self, pieces: &[&[u8]]) -> Result<Vec<BlobRef>> {
        if pieces.is_empty() {
            return Ok(Vec::new());
        }
        let items: Vec<_> = pieces.iter().map(|p| Item::Blob(p)).collect();
        let mut log = self.write_log().await?;
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
            }
            e
        })
    }
}
