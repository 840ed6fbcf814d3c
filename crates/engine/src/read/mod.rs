//! The read path: from a range of a disk to its bytes. Nothing in this folder can change a disk.
//!
//! Three owners, each above the one before: [`StoreReader`] locates, reads and verifies stored bytes;
//! [`NodeReader`] loads and caches the nodes of block maps; [`Reader`] reads disks through write buffer,
//! block map and read cache.

mod admission;
mod ahead;
mod bulk;
pub(crate) mod damage;
mod directory;
mod fetch;
mod gap;
mod locate;
mod nodes;
mod pieces;
mod prefetch;
mod reader;
mod relocation;
mod run;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use gap::{Gap, Gathered, Origin, ReadMode};
pub(crate) use nodes::{NodeReader, with_nodes};
pub use prefetch::Prefetched;
pub(crate) use reader::Reader;
pub(crate) use relocation::RelocationRef;
pub(crate) use store::StoreReader;
