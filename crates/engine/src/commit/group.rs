//! A group: the content of one commit.

use std::sync::Arc;
use std::time::Duration;

use forebay_format::{BlockRef, CatalogueOp, DiskId};
use hashbrown::HashMap;

use super::intake::PendingOp;
use crate::buffer::{BlockBox, WriteBuffer};
use crate::disk::Disk;

/// Partial blocks that were completed. If the base of a block is damaged, a reference that marks the block as
/// lost.
pub(crate) type Completed = HashMap<(DiskId, u64), std::result::Result<BlockBox, BlockRef>>;

/// The buffers and catalogue changes of one commit.
#[derive(Default)]
pub(crate) struct Group {
    pub frozen: Vec<(Arc<Disk>, Arc<WriteBuffer>)>,
    pub ops: Vec<PendingOp>,
    /// A part of the group may be in the log.
    pub is_written: bool,
    /// Number of the freeze in which the group was frozen.
    pub freeze: u64,
    /// Bytes that guests discarded in this group.
    pub discarded: u64,
    /// Bytes that the group has added to the log.
    pub logged: u64,
    /// Time of the freeze; `None` for a group of a single disk.
    pub began: Option<Duration>,
}

impl Group {
    /// A group with the frozen buffer of one disk.
    pub fn of(disk: Arc<Disk>, frozen: Arc<WriteBuffer>) -> Group {
        Group { frozen: vec![(disk, frozen)], ..Group::default() }
    }

    /// Bytes of the group in the write buffers.
    pub fn buffered(&self) -> u64 {
        self.frozen.iter().map(|(_, frozen)| frozen.cost()).sum()
    }

    /// Changes of the group to the catalogue.
    pub fn catalogue_ops(&self) -> impl Iterator<Item = &CatalogueOp> + Clone {
        self.ops.iter().flat_map(|pending| &pending.ops)
    }
}
