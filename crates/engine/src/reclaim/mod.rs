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
//! - neither is done to a segment that may hold slots that damage hides from the mark: it stays as it is;
//! - an object is *deleted* if no segment is stored in it, the checkpoint covers all its batches, it holds no
//!   page of the checkpoint's tables ([`crate::tables`]), none of the live slots was written there (possible
//!   even if no table lists the object), and no reader holds a location in it any more ([`crate::read`]). An
//!   object that this reclaim emptied waits for a second checkpoint, which both superblock copies reference
//!   as well: its segment table has the segments at their new locations. So no deletion depends on batches
//!   after the checkpoint of either copy. If the log is damaged after the checkpoint and is abandoned from
//!   there on ([`crate::recovery`]), publications are lost with it, and the slots that they moved are still
//!   at their old locations.
//!
//! The emptied objects that wait are bounded: the second checkpoint is made when they add up to a few
//! segments' worth of bytes, when room is short, and at the end of the reclaim. Its cost is that of any
//! checkpoint: the map nodes that guests changed since the last one.
//!
//! A crash between any two of these steps leaves objects in which no segment is stored. Nothing refers to an
//! object that was deleted already; one that was not is found by the next reclaim, which goes through the
//! store's list of objects. No other state is needed, so nothing has to be resumed.
//!
//! Checkpoints are made concurrently with a reclaim, whenever they are due; they are always later than the
//! mark's. The segments that they write are not covered by the mark's checkpoint, so this reclaim leaves them
//! alone.

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
