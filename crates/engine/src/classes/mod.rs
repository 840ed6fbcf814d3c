//! Block classes: the use of each block by the guest's file systems, and the policy that depends on it.
//!
//! A disk has a map of its classes ([`crate::block_classes`]), made by reading the disk as its guest does.
//! A policy determines how blocks of each class are treated: whether they are deduplicated and compressed
//! ([`crate::commit`]), and their priority in the read cache ([`crate::read`], [`crate::commit`]).
//!
//! **The invariant: a wrong or stale map costs room or time, never data.** A block is stored and read back
//! correctly whatever its class; a class only selects one of several ways to do so, each of which is correct
//! for any block. So no lock here excludes the guest, and maps that cannot be read or decoded are ignored.
//!
//! **Origin of a map.** A disk has a separate map, or shares the map of the disk from which it was made:
//! clones and snapshots share a single copy until they are scanned themselves, and get it again by a reset. A
//! separate map is stored as metadata of the disk ([`crate::admin`]), except for desktops, whose contents do
//! not survive a restart either. The stored maps are loaded after the pool was opened, while it serves
//! clients.
//!
//! **Scans.** [`crate::scan_queue`] decides when a disk is scanned, by the bytes written to blocks that
//! belonged to no file. The scan blocks its thread, so the server runs it, through a [`Peek`].

mod learn;

pub(crate) use learn::ClassLearner;
pub use learn::Peek;
