//! Import of disk image files into the pool.
//!
//! Image files are untrusted input:
//!
//! - The format is detected from the contents, not from the name.
//! - Every offset and size in the file is checked against the length of the file before use, and no
//!   allocation is larger than the file justifies.
//! - An image cannot reference other files, except the extents of a VMDK descriptor, which must be plain
//!   files named `*.vmdk` in the same directory. Files with a backing file are refused: following it would
//!   let an image read any file of the host.
//!
//! **Data flow.** A reader thread reads (and decompresses) windows of the disk in order, skips holes, drops
//! zero blocks, and sends the rest, with several MiB in flight. The receiver writes them to a disk that no
//! client can see. The disk becomes an image when its last byte is durable. A failure before (of the file,
//! the connection or the server) leaves nothing behind.

mod address_filter;
mod authorities;
mod compress;
mod connect;
mod decoders;
mod detect;
mod error;
mod fetch;
mod file;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod job;
mod ova;
mod own_addresses;
mod proxy;
mod pump;
mod qcow2;
mod raw;
mod spool;
mod text;
mod unpack;
pub(crate) mod upload;
mod url;
mod vdi;
mod vhd;
mod vhdx;
mod visible;
mod vmdk;

pub use crate::fetch_policy::FetchPolicy;
pub(crate) use address_filter::names_this_server;
pub use error::{ImportError, Remedy, Result};
use job::MAX_SOURCE;
pub use job::{Client, EventResult, start};
pub use upload::Uploads;

/// A run of bytes of the disk that are all data or all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    /// Length of the range in bytes, at least one.
    len: u64,
    /// Whether the run has data; otherwise it is all zero.
    data: bool,
}

/// The disk in an image file. Offsets are guest offsets.
trait Image: Send {
    /// Size of the disk in bytes.
    fn size(&self) -> u64;

    /// Size of the sectors that guests saw, if the file states it.
    fn sector_size(&self) -> u64 {
        512
    }

    /// Returns the run that begins at `offset`, which is within the disk. The next run may be of the same
    /// kind.
    fn run(&mut self, offset: u64) -> Result<Run>;

    /// Reads from within one data run.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()>;
}
