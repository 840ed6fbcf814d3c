//! Quotas: the bytes that the volumes of a tenant may occupy, with their snapshots. And the space that each
//! disk uses, with or without a quota ([`UsedCounter`]).
//!
//! A quota decides on each write, so it needs the exact set of blocks, which takes memory in proportion to
//! the data. The used space of a disk is only shown, so a number that is some seconds old suffices.
//!
//! **What is counted.** A volume *occupies* the blocks with data that it does not share with the snapshot or
//! image from which it was cloned; a volume without such an origin occupies all its blocks with data. So a
//! clone occupies nothing until it is written, and blocks of zeroes and discarded blocks occupy nothing.
//! Deduplication and compression do not matter: whether another tenant has stored the same content must not
//! decide whether a write succeeds. Images are not counted: only administrators make them.
//!
//! **Snapshots.** A snapshot counts the blocks that it *keeps*: those that its volume occupied when the
//! snapshot was made, and that neither the next snapshot nor the volume has any more. So the first overwrite
//! of a block after a snapshot is growth, and a discard of such a block frees nothing. A snapshot also counts
//! a fixed number of blocks. For this, a volume has the set of its blocks that were written since its newest
//! snapshot: when another block is replaced or freed, the newest snapshot keeps it from then on. This
//! begins when the group with the snapshot is frozen, so it includes exactly the writes before the snapshot.
//! When a snapshot is removed, the next older one may keep more than before: the volume is counted again.
//!
//! **Invariant.** The [set](crate::occupied_blocks::Blocks) of a volume of a tenant with a quota holds the
//! blocks that it occupies, and the use of the tenant's quota ([`crate::limit`]) is the sum of the numbers of
//! blocks in these sets. A set is changed under the lock of the
//! volume's write buffers, in the same step as the buffer: so a write is refused before it changes anything
//! and before it is answered, an acknowledged write is never affected, and no concurrent write exceeds the
//! quota. A write needs no look-up in the block map: whether a block is occupied already is in the set.
//!
//! **Counting.** The set is in memory only. [`Counter`] fills it when a tenant gets a quota or a volume, and
//! so after each start, from the maps: it reads the parts of a volume's map that the map of its origin does
//! not share. Until that is done, a volume counts with what was written since and what was found so far.
//! Writes that did not change a block (the content was stored there already) count as long as the set exists.
//!
//! **Memory.** Two bytes for each occupied block, and a bit for each block of a region of 256 MiB in which
//! more are occupied: 32 MiB for a full volume of 1 TB. Some 50 bytes for each region with few blocks.
//! Nothing for volumes without a quota.

mod counter;
mod used;

pub(crate) use counter::Counter;
pub(crate) use used::UsedCounter;
