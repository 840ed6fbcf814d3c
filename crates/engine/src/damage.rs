//! Reads on which a change depends: retries, and what counts as damage.
//!
//! A commit reads the map nodes that it changes, and the blocks beneath sectors that it completes. The writes behind
//! it were acknowledged, so it can neither refuse them nor leave them out. A read that fails is judged:
//!
//! - **Damage** is of one place and stays: a wrong checksum, a format that no writer produces, an object that is gone,
//!   and an error of the medium (EIO and its kind) that is still there after [`READ_PATIENCE`] while the store answers
//!   elsewhere. An unreadable sector under one map node must not keep a pool with a thousand disks from opening, so
//!   it costs what is below that node and nothing else. A wrong checksum is read once more, since the bytes may have
//!   been damaged on their way.
//! - **Anything else** (ENOMEM, EMFILE, a path that is down, a store that does not answer at all) says nothing about
//!   the stored bytes. If it lasts longer than the pauses it latches the pool, or fails its opening, and no disk is
//!   marked for it.
//!
//! Should a whole store fail in a way that looks like damage of one place, then nothing durable comes of it: what a
//! change puts in the place of the damage becomes durable by appends, syncs and a superblock write, which must
//! succeed on that very store.
//!
//! # What a checkpoint covers
//!
//! *A checkpoint covers a batch only if the maps have taken all that the batch says.* For
//!
//! 1. what a batch says reaches maps and catalogue only by [`crate::apply`], from the commit, which holds the log, or
//!    from recovery, before the pool is open. It says that it is done only when every change is made: each node that
//!    one needs is loaded, or is damaged and has a stand-in, which takes the change ([`Pool::bring`]);
//! 2. where it is not done, the commit latches the pool before it gives up the log, and recovery fails. A checkpoint is
//!    taken while holding the log, and not of a pool that has latched; so none is taken between a group and its changes,
//!    nor after one that failed. The group is durable in the log, so the next recovery applies it;
//! 3. a stand-in is part of the map, and goes into the checkpoint with it, together with the mark of the disk that its
//!    map is damaged. No checkpoint names a map that forgets the damage or what was written over it.
//!
//! Commit and recovery may judge one node differently, since it may rot or be readable again in between. The outcomes
//! differ only in which blocks below it read as damaged, never in what is served.
//!
//! # The mark of a damaged disk
//!
//! [`Volume::note_map_damage`] is called where a node of the map is found damaged: a change, a read, the mark of a
//! reclaim. It stays over restarts, and such a disk is not copied from: no clone, snapshot, image, rollback or reset,
//! and ranges are copied by reading them. Where that could not be refused any more, when the log says so already, the
//! copy has the same stand-ins and the same mark. A reclaim that reads the whole map without meeting damage takes the mark away: so to
//! discard or overwrite the damaged range is a cure. Desktops are reset to a damaged image all the same: they stand on
//! it anyway, and the next user must not see the last one's data.
//!
//! # Partial writes
//!
//! **A block that was written in part** cannot be completed where the block beneath is damaged. To fill it up would
//! invent data, and to drop the write would bring the former contents back should the damage heal (an EIO may). So
//! the block is *lost*: the log gives it a reference that no reader accepts ([`lost`]), at the address of what could
//! not be read. All of it reads as damaged until it is written as a whole, zeroed or discarded, and the next flush of
//! each client of the disk fails, once, as the failed write of a disk with a volatile cache is reported.

use std::time::Duration;

use forebay_format::{BLOCK, BlockRef, Codec, Form, SegmentId, Slot};
use forebay_store::Store;

use crate::buffer::Page;
use crate::limits::{READ_PATIENCE, READ_PAUSE, READ_TRIES};
use crate::map::{NeedNode, Node};
use crate::pool::Pool;
use crate::volume::Volume;
use crate::{Error, Result};

/// How often a read was tried, and since when.
#[derive(Default)]
pub(crate) struct Tries {
    count: u32,
    began: Option<Duration>,
}

/// A reference to what should be at `at` and cannot be read. A block is stored raw only as a whole, so no reader takes
/// these bytes for one, whatever they are.
pub(crate) fn lost(at: BlockRef) -> BlockRef {
    BlockRef { form: Form::raw(Slot::UNIT), ..at }
}

/// Whether a block reference is one by [`lost`].
pub(crate) fn is_lost(at: &BlockRef) -> bool {
    at.form.codec() == Some(Codec::Raw) && at.form != Form::RAW_BLOCK
}

/// The error of a reader that meets a lost block.
pub(crate) fn lost_block(at: &BlockRef) -> Error {
    Error::Damaged(format!("{} (lost with what it depended on)", place(at)))
}

fn place(at: &BlockRef) -> String {
    format!("segment {}, offset {}", at.addr.segment, at.addr.slot.offset())
}

impl Pool {
    /// Judges a failed read of `at` on which a change depends. `None`: it is to be tried again. An error inside: `at` is
    /// damaged.
    ///
    /// # Errors
    /// The error, where it says nothing about `at`.
    pub(crate) async fn judge(&self, at: &BlockRef, e: Error, tries: &mut Tries) -> Result<Option<Error>> {
        let now = self.host.now();
        let began = *tries.began.get_or_insert(now);
        tries.count += 1;
        let goes_on = tries.count < READ_TRIES || now.saturating_sub(began) < READ_PATIENCE;
        match self.lost(e) {
            Error::Damaged(_) | Error::Format(_) if tries.count == 1 => Ok(None),
            e @ (Error::Damaged(_) | Error::Format(_)) => Ok(Some(e)),
            Error::Store(why) if goes_on => {
                tracing::warn!("a read that a commit needs failed, and is tried again: {why}");
                self.host.sleep(Duration::from_millis(1 << tries.count.min(16) >> 1).min(READ_PAUSE)).await;
                Ok(None)
            }
            Error::Store(why) if why.concerns_one_place() && self.store_answers(at.addr.segment).await => {
                Ok(Some(Error::Damaged(format!("{} ({why})", place(at)))))
            }
            other => Err(other),
        }
    }

    /// Whether the store can be read elsewhere than where it failed, in `segment`: a superblock, and the begin of one of
    /// some objects.
    pub(crate) async fn store_answers(&self, segment: SegmentId) -> bool {
        const OBJECTS: usize = 8;
        let superblock = self.store.read_superblock().await;
        if !superblock.is_ok_and(|copies| copies.iter().any(Option::is_some)) {
            return false;
        }
        let Ok(mut objects) = self.store.list().await else { return false };
        // An object may be damaged as a whole, so others come first.
        objects.sort_by_key(|o| o.id == segment);
        for object in objects.iter().filter(|o| o.len > 0).take(OBJECTS) {
            if self.store.read(object.id, 0, BLOCK).await.is_ok() {
                return true;
            }
        }
        false
    }

    /// Sees to a node that a change to a map needs: brings it into RAM, or, where it is damaged, has `stand_in` put
    /// something in its place ([`crate::map::Tree::stand_in`]). The change is to be tried again then.
    ///
    /// # Errors
    /// Those that say nothing about the node: the change cannot be made now.
    pub(crate) async fn bring(
        &self,
        need: NeedNode,
        mut stand_in: impl FnMut(NeedNode, &Error) -> std::result::Result<bool, NeedNode>,
    ) -> Result<()> {
        let mut need = need;
        loop {
            let Some(why) = self.load_for_change(need).await? else { return Ok(()) };
            match stand_in(need, &why) {
                Ok(true) => return Ok(()),
                // No map refers to it, so that the change would need it for ever.
                Ok(false) => return Err(why),
                Err(above) => need = above,
            }
        }
    }

    /// Loads a node; an error inside where it is damaged.
    async fn load_for_change(&self, need: NeedNode) -> Result<Option<Error>> {
        let mut tries = Tries::default();
        loop {
            let Err(e) = self.load_node(need).await else { return Ok(None) };
            // It was judged before: to wait again for each change below it would stop everyone's commits.
            if self.is_damaged(&need.at) {
                return Ok(Some(e));
            }
            if let Some(why) = self.judge(&need.at, e, &mut tries).await? {
                self.note_damaged(&need.at);
                return Ok(Some(why));
            }
        }
    }

    /// Loads a node for a reader of a disk, which is marked where the node is damaged.
    pub(crate) async fn load_for_read(&self, volume: &Volume, need: NeedNode) -> Result<Node> {
        let node = self.load_node(need).await;
        if let Err(e @ (Error::Damaged(_) | Error::Format(_))) = &node {
            volume.note_map_damage(e);
        }
        node
    }

    /// The block beneath a partial write; a reference inside that marks the block as lost where it is damaged.
    ///
    /// # Errors
    /// Those that say nothing about the block: see the module.
    pub(crate) async fn base_of(
        &self,
        volume: &Volume,
        block: u64,
    ) -> Result<std::result::Result<Page, BlockRef>> {
        let mut tries = Tries::default();
        loop {
            let (at, e) = match self.read_base(volume, block).await {
                Ok(page) => return Ok(Ok(page)),
                Err(failed) => failed,
            };
            if let Some(why) = self.judge(&at, e, &mut tries).await? {
                volume.note_lost_write();
                let disk = &volume.record().name;
                tracing::error!(disk, block, "a write of a part of this block is lost: {why}");
                return Ok(Err(lost(at)));
            }
        }
    }
}
