//! Reading disk image files into the pool.
//!
//! An image file is hostile until proven otherwise: it may have come from anywhere. So what it is is told by
//! its first bytes and not by its name; every offset and size in it is checked against the file before it is
//! used; nothing is allocated that the file is not long enough to justify; and it cannot name other files,
//! except the extents of a VMDK descriptor, which are plain files named `*.vmdk` in the same directory. A
//! backing file is refused: following it would let an image read any file of the host.
//!
//! **The way of the bytes.** A thread of its own reads (and unpacks) windows of the disk in order, skips what
//! the file says is a hole, drops blocks that are all zero, and sends the rest, with several MiB in flight;
//! the other end writes them into a disk that nobody else can see. The disk becomes an image when the last
//! byte is durable. Whatever goes wrong before (the file, the connection, the server itself) leaves nothing.

mod compress;
mod detect;
mod error;
mod fetch;
mod file;
mod job;
mod pump;
mod qcow2;
mod raw;
mod reach;
mod vhdx;
mod vmdk;

pub use detect::Format;
pub use error::{ImportError, Result};
pub use job::{Event, Phase, Request, Source, Told, start};
pub use reach::FetchPolicy;

/// A run of bytes of the disk that an image file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    /// Bytes, at least one.
    len: u64,
    /// Whether there is anything to read; otherwise it is all zero.
    data: bool,
}

/// A disk, as some format holds it. Offsets are those of the disk, as its guest sees it.
trait Image: Send {
    /// Size of the disk in bytes.
    fn size(&self) -> u64;

    /// What lies at `offset`, which is within the disk: a run of one kind. It may end before the kind does.
    fn run(&mut self, offset: u64) -> Result<Run>;

    /// Reads from within one data run.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()>;
}
