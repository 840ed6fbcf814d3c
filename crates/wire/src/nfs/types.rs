//! Data types (RFC 1813, section 2.5 and 2.6).

use crate::rpc::{Decoder, Encoder, Garbage};

/// The status of a procedure (`nfsstat3`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names of RFC 1813, section 2.6")]
pub enum Status {
    Ok = 0,
    Perm = 1,
    NoEntry = 2,
    Io = 5,
    Access = 13,
    Exists = 17,
    CrossDevice = 18,
    NotDirectory = 20,
    IsDirectory = 21,
    Invalid = 22,
    TooBig = 27,
    NoSpace = 28,
    ReadOnly = 30,
    TooManyLinks = 31,
    NameTooLong = 63,
    NotEmpty = 66,
    Quota = 69,
    Stale = 70,
    BadHandle = 10001,
    NotSync = 10002,
    BadCookie = 10003,
    NotSupported = 10004,
    TooSmall = 10005,
    ServerFault = 10006,
    BadType = 10007,
    Jukebox = 10008,
}

/// The type of a file (`ftype3`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names of the types of files")]
pub enum FileKind {
    Regular = 1,
    Directory = 2,
    BlockDevice = 3,
    CharacterDevice = 4,
    Symlink = 5,
    Socket = 6,
    Fifo = 7,
}

impl FileKind {
    pub(super) fn decode(xdr: &mut Decoder<'_>) -> Result<FileKind, Garbage> {
        Ok(match xdr.u32()? {
            1 => FileKind::Regular,
            2 => FileKind::Directory,
            3 => FileKind::BlockDevice,
            4 => FileKind::CharacterDevice,
            5 => FileKind::Symlink,
            6 => FileKind::Socket,
            7 => FileKind::Fifo,
            _ => return Err(Garbage("an unknown type of file")),
        })
    }
}

/// A time (`nfstime3`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time {
    /// Seconds since 1970.
    pub seconds: u32,
    /// Nanoseconds of the second.
    pub nanos: u32,
}

impl Time {
    pub(super) fn decode(xdr: &mut Decoder<'_>) -> Result<Time, Garbage> {
        Ok(Time { seconds: xdr.u32()?, nanos: xdr.u32()? })
    }

    pub(super) fn encode(self, xdr: &mut Encoder) {
        xdr.u32(self.seconds).u32(self.nanos);
    }
}

/// The attributes of a file (`fattr3`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of RFC 1813, section 2.6")]
pub struct Attributes {
    pub kind: FileKind,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub used: u64,
    pub fsid: u64,
    pub fileid: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
}

impl Attributes {
    pub(super) fn encode(&self, xdr: &mut Encoder) {
        xdr.u32(self.kind as u32).u32(self.mode).u32(self.nlink).u32(self.uid).u32(self.gid);
        xdr.u64(self.size).u64(self.used).u64(0).u64(self.fsid).u64(self.fileid);
        self.atime.encode(xdr);
        self.mtime.encode(xdr);
        self.ctime.encode(xdr);
    }
}

/// Attributes before a change (`wcc_attr`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of RFC 1813, section 2.6")]
pub struct Before {
    pub size: u64,
    pub mtime: Time,
    pub ctime: Time,
}

/// Attributes before and after a change (`wcc_data`), for the client's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names of RFC 1813, section 2.6")]
pub struct Wcc {
    pub before: Option<Before>,
    pub after: Option<Attributes>,
}

/// A time to be set (`set_atime`, `set_mtime`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetTime {
    /// The time is not changed.
    #[default]
    Keep,
    /// The time of the server.
    Now,
    /// A time that the client gives.
    To(Time),
}

/// Attributes to be set (`sattr3`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names of RFC 1813, section 2.6")]
pub struct SetAttributes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: SetTime,
    pub mtime: SetTime,
}

impl SetAttributes {
    pub(super) fn decode(xdr: &mut Decoder<'_>) -> Result<SetAttributes, Garbage> {
        let mode = if xdr.bool()? { Some(xdr.u32()?) } else { None };
        let uid = if xdr.bool()? { Some(xdr.u32()?) } else { None };
        let gid = if xdr.bool()? { Some(xdr.u32()?) } else { None };
        let size = if xdr.bool()? { Some(xdr.u64()?) } else { None };
        let (atime, mtime) = (set_time(xdr)?, set_time(xdr)?);
        Ok(SetAttributes { mode, uid, gid, size, atime, mtime })
    }
}

fn set_time(xdr: &mut Decoder<'_>) -> Result<SetTime, Garbage> {
    Ok(match xdr.u32()? {
        0 => SetTime::Keep,
        1 => SetTime::Now,
        2 => SetTime::To(Time::decode(xdr)?),
        _ => return Err(Garbage("an unknown way to set a time")),
    })
}

/// The time of the last change that a client expects (`sattrguard3`).
pub type Guard = Option<Time>;

/// The result of FSSTAT (3.3.18).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of RFC 1813, section 3.3.18")]
pub struct FsStat {
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub available_bytes: u64,
    pub total_files: u64,
    pub free_files: u64,
    pub available_files: u64,
}

/// The result of FSINFO (3.3.19).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsInfo {
    /// Maximum and preferred bytes of a READ and of a WRITE.
    pub transfer: u32,
    /// Preferred bytes of a READDIR.
    pub directory: u32,
    /// Maximum size of a file.
    pub max_file_size: u64,
}

/// The result of PATHCONF (3.3.20).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathConf {
    /// Maximum number of hard links of a file.
    pub links: u32,
    /// Maximum bytes of a name.
    pub name: u32,
}
