//! Reads on which a change depends: retries, and which failures count as damage.
//!
//! A commit reads the map nodes that it changes and the base blocks of partial writes. The writes in it were
//! acknowledged, so it can neither refuse nor omit them. A failed read is therefore classified:
//!
//! - **Damage** is local and permanent: a wrong checksum, a format that no writer produces, a missing object,
//!   and an error of the medium (EIO and similar) that persists for [`READ_PATIENCE`], and in a last read
//!   after another location was read. An unreadable sector under one map node must not keep a pool with a
//!   thousand disks from opening, so it affects only the blocks below that node. After a wrong checksum the
//!   bytes are read a second time, since they may have been damaged in transfer.
//! - **Any other error** (ENOMEM, EMFILE, a failed path, a store that does not answer at all) does not
//!   concern the stored bytes. If it persists after the retries, it latches the pool or fails its opening,
//!   and no disk is marked damaged.
//!
//! If a whole store fails with errors that look like local damage, nothing durable results: the replacement
//! that a change creates for damaged data becomes durable only by appends, syncs and a superblock write,
//! which must succeed on that same store.
//!
//! # Batches covered by a checkpoint
//!
//! *A checkpoint covers a batch only if the maps include all changes of the batch.* Reasons:
//!
//! 1. Changes of a batch reach maps and catalogue only through [`crate::commit::apply`], which is called by
//!    the commit while it holds the log, or by recovery before the pool is open. It returns success only when
//!    every change is made: each node that a change needs is loaded, or is damaged and has a stand-in, which
//!    accepts the change ([`NodeReader::load_or_stand_in`]);
//! 2. if it fails, the commit latches the pool before it releases the log, and recovery fails. A checkpoint
//!    is taken while holding the log, and not of a latched pool; so none is taken between a group and its
//!    changes, nor after a change that failed. The group is durable in the log, so the next recovery applies
//!    it;
//! 3. a stand-in is part of the map and is included in the checkpoint with it, together with the disk's
//!    damage flag. No checkpoint references a map that omits the damage or later writes over it.
//!
//! Commit and recovery may classify one node differently, since it may decay or become readable again in
//! between. The outcomes differ only in which blocks below it read as damaged, never in the data that is
//! served.
//!
//! # The damage flag of a disk
//!
//! [`Disk::record_map_damage`] sets the flag when a node of the map is found damaged: by a change, a read, or
//! the mark phase of a reclaim. The flag persists over restarts. A disk with the flag is not copied by
//! reference: clones, snapshots, images, rollbacks and resets are refused, and ranges are copied by reading
//! them. If a copy can no longer be refused because it is in the log already, the copy has the same stand-ins
//! and the same flag. A reclaim that reads the whole map without finding damage clears the flag; so
//! discarding or overwriting the damaged range repairs the disk. Desktops are reset even to a damaged image:
//! they depend on it anyway, and the next user must not see the data of the previous user.
//!
//! # Partial writes
//!
//! A partially written block cannot be completed if its base, the block that the map has there, is damaged.
//! Filling the gaps with zeroes would invent data, and dropping the write would restore the former contents
//! if the damage disappears (an EIO may). So the block becomes *lost*: the log gives it a reference that no
//! reader accepts ([`crate::lost`]), with the address of the unreadable block. The whole block reads as
//! damaged until it is entirely written, zeroed or discarded. The next flush of each client of the disk
//! fails, once: a disk with a volatile cache reports failed writes that way.

use std::time::Duration;

use forebay_format::{BLOCK, BlockRef, SegmentId};
use forebay_store::Store;

use super::nodes::NodeReader;
use super::reader::Reader;
use super::store::StoreReader;
use crate::buffer::BlockBox;
use crate::disk::Disk;
use crate::limits::{READ_PATIENCE, READ_PAUSE, READ_TRIES};
use crate::lost::{location_text, lost};
use crate::map::NeedNode;
use crate::{Error, Result};

/// Number of attempts to read one location, and the time of the first attempt.
#[derive(Default)]
pub(crate) struct Tries {
    count: u32,
    began: Option<Duration>,
    /// After a failed attempt, the store answered a read of another location.
    store_answered: bool,
}

impl StoreReader {
    /// Classifies a failed read of `at` on which a change depends. Returns `None` if the read is to be
    /// retried, and the error in `Some` if `at` is damaged.
    ///
    /// # Errors
    /// `e`, if it does not concern the bytes at `at`.
    pub async fn classify_failure(
        &self,
        at: &BlockRef,
        e: Error,
        tries: &mut Tries,
    ) -> Result<Option<Error>> {
        let now = self.cx.host.now();
        let began = *tries.began.get_or_insert(now);
        tries.count += 1;
        let may_retry = tries.count < READ_TRIES || now.saturating_sub(began) < READ_PATIENCE;
        match self.not_found_is_corruption(e) {
            Error::Damaged(_) | Error::Format(_) if tries.count == 1 => Ok(None),
            e @ (Error::Damaged(_) | Error::Format(_)) => Ok(Some(e)),
            Error::Store(why) if may_retry => {
                tracing::warn!("a read that a commit needs failed; retrying: {why}");
                self.cx
                    .host
                    .sleep(Duration::from_millis(1 << tries.count.min(16) >> 1).min(READ_PAUSE))
                    .await;
                Ok(None)
            }
            Error::Store(why) if why.concerns_one_place() && self.store_answers(at.addr.segment).await => {
                // An outage of the whole store may have ended just now.
                if !std::mem::replace(&mut tries.store_answered, true) {
                    return Ok(None);
                }
                Ok(Some(Error::Damaged(format!("{} ({why})", location_text(at)))))
            }
            other => Err(other),
        }
    }

    /// Whether other locations of the store can be read after a failure in `segment`: a superblock copy, and
    /// the beginning of one of several objects.
    pub async fn store_answers(&self, segment: SegmentId) -> bool {
        const OBJECTS: usize = 8;
        let superblock = self.store.read_superblock().await;
        if !superblock.is_ok_and(|copies| copies.iter().any(Option::is_some)) {
            return false;
        }
        let Ok(mut objects) = self.store.list().await else { return false };
        // An object may be damaged as a whole, so other objects are tried first.
        objects.sort_by_key(|o| o.id == segment);
        for object in objects.iter().filter(|o| o.len > 0).take(OBJECTS) {
            if self.store.read(object.id, 0, BLOCK).await.is_ok() {
                return true;
            }
        }
        false
    }
}

impl NodeReader {
    /// Loads a node that a change to a map needs; if it is damaged, calls `stand_in` to replace it
    /// ([`crate::map::Tree::stand_in`]). The caller then retries the change.
    ///
    /// # Errors
    /// Those that do not concern the node itself: the change cannot be made now.
    pub async fn load_or_stand_in(
        &self,
        need: NeedNode,
        mut stand_in: impl FnMut(NeedNode, &Error) -> std::result::Result<bool, NeedNode>,
    ) -> Result<()> {
        let mut need = need;
        loop {
            let Some(why) = self.load_for_change(need).await? else { return Ok(()) };
            match stand_in(need, &why) {
                Ok(true) => return Ok(()),
                // No map references the node, so the change would request it forever.
                Ok(false) => return Err(why),
                Err(above) => need = above,
            }
        }
    }

    /// Loads a node; returns the error in `Some` if it is damaged.
    async fn load_for_change(&self, need: NeedNode) -> Result<Option<Error>> {
        let mut tries = Tries::default();
        loop {
            let Err(e) = self.load(need).await else { return Ok(None) };
            // The node was classified as damaged before. Retrying for each change below it would stall all
            // commits.
            if self.source.is_damaged(&need.at) {
                return Ok(Some(e));
            }
            if let Some(why) = self.source.classify_failure(&need.at, e, &mut tries).await? {
                self.source.record_damaged(&need.at);
                return Ok(Some(why));
            }
        }
    }
}

impl Reader {
    /// Reads the base of a partial write. If it is damaged, returns a reference that marks the block as lost.
    ///
    /// # Errors
    /// Those that do not concern the block itself: see the module documentation.
    pub async fn read_base_or_lose(
        &self,
        disk: &Disk,
        block: u64,
    ) -> Result<std::result::Result<BlockBox, BlockRef>> {
        let mut tries = Tries::default();
        loop {
            let (at, e) = match self.read_base(disk, block).await {
                Ok(page) => return Ok(Ok(page)),
                Err(failed) => failed,
            };
            if let Some(why) = self.source.classify_failure(&at, e, &mut tries).await? {
                disk.record_lost_write();
                let name = &disk.record().name;
                tracing::error!(disk = name, block, "a partial write to this block is lost: {why}");
                return Ok(Err(lost(at)));
            }
        }
    }
}
