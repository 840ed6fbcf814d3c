//! What the file systems of a guest say of the blocks of its disk.
//!
//! A server of virtual disks sees blocks, not files. But how a block is treated best depends on what it is: nobody
//! will ever want to share or cache a page file, and the code that all guests run should stay in RAM. So this crate
//! reads a disk as its guest does, through partition table and file system, and gives every block a [`Class`]. The
//! result is a [`ClassMap`]; a [`Policy`] says what follows from it.
//!
//! A map is **advice**. The guest is running while its disk is read, and it goes on afterwards: the map was never
//! exact and grows old. Nothing that depends on it may be a matter of correctness.
//!
//! A disk is **hostile**. Its guest may write to it whatever it likes. Parsers here check before they use, skip what
//! makes no sense, cannot panic, and pay for every read and every step from a budget ([`Limits`]), so that a scan ends
//! and its memory is bounded whatever a disk claims.
//!
//! In the order in which a disk is scanned:

mod disk;
mod scan;

mod partition;

mod magic;
mod ntfs;

mod linux;

mod ext;
mod xfs;

mod bitmap;
mod bytes;
mod paths;

mod class;
mod map;
mod policy;

#[doc(hidden)]
pub mod fuzzing;

pub use class::{BLOCK, Class};
pub use disk::{Blocks, Limits, ReadError};
pub use map::{ClassMap, DecodeError, MAX_BLOCKS};
pub use paths::Temporary;
pub use policy::{CachePriority, Change, Policy, Treatment};
pub use scan::{Content, Options, Scan, scan};
