//! Classification of the blocks of a disk by the file systems of its guest.
//!
//! A virtual disk server sees blocks, not files, but the best treatment of a block depends on its use: a page
//! file is not worth deduplicating or caching, and the code that all guests run should stay in RAM. This
//! crate reads a disk as its guest does, through partition table and file system, and assigns a [`Class`] to
//! every block. The result is a [`ClassMap`]; a [`Policy`] maps each class to a treatment.
//!
//! A map is **advice**. The guest runs during and after the scan, so the map is never exact and becomes
//! outdated. Correctness must not depend on it.
//!
//! A disk is **untrusted**: its guest can write arbitrary data to it. The parsers validate before use, skip
//! invalid structures, cannot panic, and pay for every read and every step from a budget ([`Limits`]). So the
//! duration and the memory of a scan are bounded for every disk.

// The input is untrusted: nothing that decodes it may panic.
#![deny(clippy::expect_used, clippy::panic, clippy::unreachable, clippy::unwrap_used)]

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

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;

pub use class::{BLOCK, Class};
pub use disk::{Blocks, Limits, ReadError};
pub use map::{ClassMap, DecodeError, MAX_BLOCKS};
pub use paths::Temporary;
pub use policy::{CachePriority, Change, Policy, Treatment};
pub use scan::{Content, Options, Scan, scan};
