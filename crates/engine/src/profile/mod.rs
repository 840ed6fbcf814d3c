//! Boot profiles: the blocks that the first boot of an image's clones reads are recorded with the image, and
//! prefetched when clones start.
//!
//! **Recording.** A recording ([`crate::recordings`]) lists the blocks that the first client of a clone reads
//! through the block map, in the order in which it reads them, if the clone's image has no profile yet. It
//! ends when no new block was read for some time. A list that is too short for a boot is discarded. So is the
//! list of a client that copies the disk, that is, reads it sequentially from end to end. The list is stored
//! as metadata of the image ([`crate::admin`]): it is durable, is deleted with the image, and is only advice.
//!
//! **Prefetching** sorts the blocks that are not cached by their location on the store, and reads them in few
//! large reads, including the gaps between them ([`crate::read`]); the read with the first recorded block is
//! made first. Before that, all blocks are registered as misses under way, so a guest that reads one of them
//! waits for the prefetch instead of reading it separately. Lists longer than a window are processed in
//! several windows, in the order of recording.

mod profiles;

pub(crate) use profiles::BootProfiles;
pub use profiles::ProfileInfo;
