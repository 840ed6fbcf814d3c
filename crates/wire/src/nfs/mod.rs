//! NFS version 3 and MOUNT version 3 (RFC 1813), and the port mapper (RFC 1833), server side: decodes the
//! arguments of procedures and encodes their results, in the messages of [`crate::rpc`]. Comments cite the
//! sections of RFC 1813.

pub mod mount;
pub mod portmap;
mod request;
pub mod results;
mod types;

pub use request::{Create, Device, Procedure, Request, Stable};
pub use types::{
    Attributes, Before, FileKind, FsInfo, FsStat, Guard, PathConf, SetAttributes, SetTime, Status, Time, Wcc,
};

/// The program number of NFS.
pub const PROGRAM: u32 = 100_003;
/// The version of NFS, and of MOUNT.
pub const VERSION: u32 = 3;
/// Maximum bytes of a file handle (2.4).
pub const HANDLE_MAX: usize = 64;
/// Maximum bytes of a name that is decoded. Longer names than the file system permits are decoded too, since
/// their error is `NFS3ERR_NAMETOOLONG`.
pub const NAME_MAX: usize = 4096;
/// Maximum bytes of a path, and of the target of a symbolic link.
pub const PATH_MAX: usize = 4096;
/// Maximum bytes of data of a READ or a WRITE.
pub const TRANSFER_MAX: u32 = 1 << 20;
/// Maximum bytes of a call: the longest WRITE with its header.
pub const CALL_MAX: usize = TRANSFER_MAX as usize + 2048;

/// Bits of ACCESS (3.3.4).
pub mod access {
    /// Read data, or a directory.
    pub const READ: u32 = 0x01;
    /// Look up a name in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Rewrite existing data, or modify existing entries.
    pub const MODIFY: u32 = 0x04;
    /// Write new data, or add entries.
    pub const EXTEND: u32 = 0x08;
    /// Delete an existing entry.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
}
