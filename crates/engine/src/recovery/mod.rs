//! Recovery: restores the pool from the store when it is opened, after a crash or a clean stop.
//!
//! 1. The newer valid superblock copy is selected, and a superblock with the next epoch is written: from here
//!    on, a process that held the pool before is fenced out.
//! 2. The checkpoint is read: it contains catalogue, roots and segment table.
//! 3. The segments that may hold later batches are scanned: segments that the checkpoint lists as open, from
//!    the recorded end on, and segments with numbers that were not assigned yet when the checkpoint was made.
//! 4. History is determined ([`history`]); if it ends because of damage, the pool is not opened
//!    ([`crate::offline`]). The batches of history are applied in order, and their segments are synced: a
//!    batch that is only in a cache must not become part of the history on which later batches build.
//! 5. New batches are written to new segments. Batches after the end of history stay in the old segments and
//!    can never become history: the next batch has a higher epoch, and later batches link to it.
//!
//! **Moved segments.** All relocations in history are recorded before any batch is applied, regardless of
//! their position. The reason: to apply a batch, map nodes are read, and the object in which a node was
//! stored when the checkpoint was made may have been deleted since. The checkpoint reaches each node that is
//! read. The last relocation of the segment lists this node, for two reasons: the cleaner moves all slots
//! that its own mark found live; and it publishes and deletes only after both superblock copies reference the
//! checkpoint of that mark or a later checkpoint. So the checkpoint of either copy reaches no slot in a moved
//! segment that the mark had not found. If one copy referenced an earlier checkpoint, the maps of this
//! checkpoint could need nodes that the move left out.
//!
//! The objects of step 3 are found without listing all objects, of which a store may have millions; the
//! upkeep task finds the objects that a crash left behind ([`crate::reclaim`]).
//!
//! The duration of recovery is bounded by the bytes of log since the checkpoint, and by the preallocated room
//! in the segments that were open. Recovery deletes nothing.
//!
//! **Effects of damage.** "After the checkpoint" refers to batches that the checkpoint does not cover.
//!
//! | damaged or missing | effect on opening |
//! |---|---|
//! | one superblock copy | opens from the other copy. Its checkpoint may be older, but the log since that checkpoint is complete |
//! | both superblock copies | refuses: the checkpoint cannot be located |
//! | a piece or a page of the checkpoint | refuses: it contains catalogue and maps |
//! | after the checkpoint, a batch, a segment or a segment header, and a batch of a later group exists | refuses, and reports the loss ([`crate::offline`]); opens if only map nodes are affected |
//! | after the checkpoint, a location cannot be read that may hold the next group | as above: that group may have been durable |
//! | after the checkpoint, a batch, and no batch of a later group exists | opens in the state before that batch: the damage cannot be distinguished from a group that a crash interrupted |
//! | any data that the checkpoint covers | opens: reads and checks detect the damage |

mod checkpoint;
mod history;
mod loss;
mod memory;
mod plausible;
mod recover;
mod replay;
mod superblock;

pub(crate) use memory::{MemoryLoss, TakenOver};
pub(crate) use recover::{OnLoss, Recovered, recover};
pub(crate) use superblock::Mode;
