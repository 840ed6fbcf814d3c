//! Desktops: clones whose writes are kept in RAM, and are discarded by a reset, a crash or a restart.
//!
//! The writes of a desktop stay in its write buffer, within a budget for each desktop and one for all; a
//! flush is answered at once. Rewriting a block reuses its page, a discard frees it. When a budget is nearly
//! spent, the least recently written blocks *overflow*: they are committed as a group of the log, like other
//! writes, but to the `short` stream, some megabytes at a time. So they are deduplicated and compressed like
//! other data, are referenced by the desktop's block map, and are reclaimed by mark and cleaner.
//!
//! **A desktop never mixes contents from before and after a crash.** Blocks overflow in any order, so after a
//! crash the map of a desktop holds an arbitrary part of its writes. Therefore opening a pool resets every
//! desktop to its origin before a client can attach it ([`reset`]). The reset is durable, because it is
//! recorded in the log: otherwise blocks that are committed for a desktop later could be recovered on top of
//! its previous contents.
//!
//! **Conversion to a persistent volume** first switches the desktop's writes to ordinary commits, and records
//! it as a persistent volume only after that. After a crash in between it is still a desktop, and is reset;
//! after a crash that follows the record it has all writes that were acknowledged before, because these were
//! committed no later than the record.
//!
//! **Locking.** An overflow holds the lock of the log from the freeze to the end, as a commit does. Each step
//! in this folder that changes whether a disk is a desktop holds this lock as well. So none of these
//! operations run concurrently.

mod desktops;
mod persist;
mod reset;

pub(crate) use desktops::Desktops;
