//! Space reclamation: marks live slots, drops dead segments, moves live slots out of sparse objects, and
//! deletes objects.
//!
//! **Crash safety of a reclaim.** A reclaim begins with a checkpoint. Both superblock copies reference this
//! checkpoint or a later one before anything is dropped or moved: the loss of either copy is therefore
//! harmless, and recovery never begins from maps in which more was live than the mark found. The mark finds
//! everything that the checkpoint reaches ([`mark`]). Then
//!
//! - a segment is *dropped* if none of its slots is live, the checkpoint covers all its batches, and no
//!   reference to it was made since the mark began;
//! - a segment is *moved* out of an object that is worth cleaning ([`victims`], [`clean`]);
//! - a segment that may hold live slots that damage hides from the mark is neither dropped nor moved;
//! - an object is *deleted* if no segment is stored in it, the checkpoint covers all its batches, it holds no
//!   page of the checkpoint's tables ([`crate::tables`]), no live slot was written to it (possible even if no
//!   table lists the object), and no reader holds a location in it any more ([`crate::read`]). An object that
//!   this reclaim emptied waits for a second checkpoint, which both superblock copies reference as well. The
//!   segment table of the second checkpoint has the segments at their new locations, so no deletion depends
//!   on batches after the checkpoint of either copy. The log can be damaged after that checkpoint, and be
//!   abandoned from the damage on ([`crate::recovery`]). The publications in that part of the log are then
//!   lost, and the slots that they moved are still at their old locations.
//!
//! The number of emptied objects that wait is bounded: the second checkpoint is made when these objects have
//! as many bytes as a few segments, when room is short, and at the end of the reclaim. It costs as much as
//! any checkpoint: it writes the map nodes that guests changed since the previous checkpoint.
//!
//! A crash between any two of these steps leaves objects in which no segment is stored. Nothing refers to an
//! object that was already deleted. The next reclaim finds the objects that were not deleted, since it goes
//! through the store's list of objects. No other state is needed, so nothing has to be resumed.
//!
//! Other checkpoints are made concurrently with a reclaim, whenever they are due. They are always later than
//! the checkpoint of the mark. The mark's checkpoint does not cover the segments that they write, so this
//! reclaim neither drops nor moves these segments.

mod clean;
mod counts;
mod deltas;
#[cfg(test)]
mod figures;
mod mark;
mod reclaimer;
mod run;
mod scratch;
mod survey;
mod table;
#[cfg(test)]
mod tests;
mod upkeep;
mod varint;
mod victims;
mod walk;

pub(crate) use reclaimer::Reclaimer;
