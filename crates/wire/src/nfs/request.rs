//! The arguments of the procedures (RFC 1813, section 3.3).

use super::types::{FileKind, Guard, SetAttributes, Time};
use super::{HANDLE_MAX, NAME_MAX, PATH_MAX};
use crate::rpc::{Decoder, Garbage};

/// A procedure, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names of RFC 1813, section 3.3")]
pub enum Procedure {
    Null,
    GetAttr,
    SetAttr,
    Lookup,
    Access,
    ReadLink,
    Read,
    Write,
    Create,
    MkDir,
    Symlink,
    MkNod,
    Remove,
    RmDir,
    Rename,
    Link,
    ReadDir,
    ReadDirPlus,
    FsStat,
    FsInfo,
    PathConf,
    Commit,
}

impl Procedure {
    /// All procedures, in the order of their numbers.
    pub const ALL: [Procedure; 22] = [
        Procedure::Null,
        Procedure::GetAttr,
        Procedure::SetAttr,
        Procedure::Lookup,
        Procedure::Access,
        Procedure::ReadLink,
        Procedure::Read,
        Procedure::Write,
        Procedure::Create,
        Procedure::MkDir,
        Procedure::Symlink,
        Procedure::MkNod,
        Procedure::Remove,
        Procedure::RmDir,
        Procedure::Rename,
        Procedure::Link,
        Procedure::ReadDir,
        Procedure::ReadDirPlus,
        Procedure::FsStat,
        Procedure::FsInfo,
        Procedure::PathConf,
        Procedure::Commit,
    ];

    /// The procedure with a number.
    pub fn of(number: u32) -> Option<Procedure> {
        Procedure::ALL.get(number as usize).copied()
    }
}

/// When the data of a WRITE has to be durable (`stable_how`, 3.3.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Stable {
    /// When a later COMMIT is answered.
    Unstable = 0,
    /// The data when the WRITE is answered.
    Data = 1,
    /// The data and all attributes when the WRITE is answered.
    File = 2,
}

/// How a file is created (`createhow3`, 3.3.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Create {
    /// A file that exists is opened.
    Unchecked(SetAttributes),
    /// A file that exists is an error.
    Guarded(SetAttributes),
    /// A file that exists is an error, unless it was created with this verifier.
    Exclusive([u8; 8]),
}

/// What MKNOD creates (`mknoddata3`, 3.3.11).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// The type of the file.
    pub kind: FileKind,
}

/// A decoded call of NFS. Handles and names are as long as the client sent them, within the limits of
/// [`super`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of RFC 1813, section 3.3")]
pub enum Request<'a> {
    Null,
    GetAttr { file: &'a [u8] },
    SetAttr { file: &'a [u8], set: SetAttributes, guard: Guard },
    Lookup { dir: &'a [u8], name: &'a [u8] },
    Access { file: &'a [u8], wanted: u32 },
    ReadLink { file: &'a [u8] },
    Read { file: &'a [u8], offset: u64, count: u32 },
    Write { file: &'a [u8], offset: u64, stable: Stable, data: &'a [u8] },
    Create { dir: &'a [u8], name: &'a [u8], how: Create },
    MkDir { dir: &'a [u8], name: &'a [u8], set: SetAttributes },
    Symlink { dir: &'a [u8], name: &'a [u8], set: SetAttributes, target: &'a [u8] },
    MkNod { dir: &'a [u8], name: &'a [u8], device: Device },
    Remove { dir: &'a [u8], name: &'a [u8] },
    RmDir { dir: &'a [u8], name: &'a [u8] },
    Rename { from: (&'a [u8], &'a [u8]), to: (&'a [u8], &'a [u8]) },
    Link { file: &'a [u8], dir: &'a [u8], name: &'a [u8] },
    ReadDir { dir: &'a [u8], cookie: u64, verifier: [u8; 8], bytes: u32 },
    ReadDirPlus { dir: &'a [u8], cookie: u64, verifier: [u8; 8], name_bytes: u32, bytes: u32 },
    FsStat { file: &'a [u8] },
    FsInfo { file: &'a [u8] },
    PathConf { file: &'a [u8] },
    Commit { file: &'a [u8], offset: u64, count: u32 },
}

fn handle<'a>(xdr: &mut Decoder<'a>) -> Result<&'a [u8], Garbage> {
    xdr.opaque(HANDLE_MAX)
}

fn entry<'a>(xdr: &mut Decoder<'a>) -> Result<(&'a [u8], &'a [u8]), Garbage> {
    Ok((handle(xdr)?, xdr.opaque(NAME_MAX)?))
}

impl<'a> Request<'a> {
    /// Decodes the arguments of a procedure.
    ///
    /// # Errors
    /// The arguments are not valid.
    #[allow(clippy::too_many_lines, reason = "a flat table of the procedures")]
    pub fn decode(procedure: Procedure, args: &'a [u8]) -> Result<Request<'a>, Garbage> {
        let mut xdr = Decoder::new(args);
        let request = match procedure {
            Procedure::Null => Request::Null,
            Procedure::GetAttr => Request::GetAttr { file: handle(&mut xdr)? },
            Procedure::SetAttr => Request::SetAttr {
                file: handle(&mut xdr)?,
                set: SetAttributes::decode(&mut xdr)?,
                guard: if xdr.bool()? { Some(Time::decode(&mut xdr)?) } else { None },
            },
            Procedure::Lookup => {
                let (dir, name) = entry(&mut xdr)?;
                Request::Lookup { dir, name }
            }
            Procedure::Access => Request::Access { file: handle(&mut xdr)?, wanted: xdr.u32()? },
            Procedure::ReadLink => Request::ReadLink { file: handle(&mut xdr)? },
            Procedure::Read => {
                Request::Read { file: handle(&mut xdr)?, offset: xdr.u64()?, count: xdr.u32()? }
            }
            Procedure::Write => write(&mut xdr)?,
            Procedure::Create => {
                let (dir, name) = entry(&mut xdr)?;
                let how = match xdr.u32()? {
                    0 => Create::Unchecked(SetAttributes::decode(&mut xdr)?),
                    1 => Create::Guarded(SetAttributes::decode(&mut xdr)?),
                    2 => Create::Exclusive(xdr.fixed()?),
                    _ => return Err(Garbage("an unknown way to create a file")),
                };
                Request::Create { dir, name, how }
            }
            Procedure::MkDir => {
                let (dir, name) = entry(&mut xdr)?;
                Request::MkDir { dir, name, set: SetAttributes::decode(&mut xdr)? }
            }
            Procedure::Symlink => {
                let (dir, name) = entry(&mut xdr)?;
                let (set, target) = (SetAttributes::decode(&mut xdr)?, xdr.opaque(PATH_MAX)?);
                Request::Symlink { dir, name, set, target }
            }
            Procedure::MkNod => {
                let (dir, name) = entry(&mut xdr)?;
                let kind = FileKind::decode(&mut xdr)?;
                if !matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink) {
                    SetAttributes::decode(&mut xdr)?;
                }
                if matches!(kind, FileKind::BlockDevice | FileKind::CharacterDevice) {
                    xdr.u64()?;
                }
                Request::MkNod { dir, name, device: Device { kind } }
            }
            Procedure::Remove => {
                let (dir, name) = entry(&mut xdr)?;
                Request::Remove { dir, name }
            }
            Procedure::RmDir => {
                let (dir, name) = entry(&mut xdr)?;
                Request::RmDir { dir, name }
            }
            Procedure::Rename => Request::Rename { from: entry(&mut xdr)?, to: entry(&mut xdr)? },
            Procedure::Link => {
                let file = handle(&mut xdr)?;
                let (dir, name) = entry(&mut xdr)?;
                Request::Link { file, dir, name }
            }
            Procedure::ReadDir => Request::ReadDir {
                dir: handle(&mut xdr)?,
                cookie: xdr.u64()?,
                verifier: xdr.fixed()?,
                bytes: xdr.u32()?,
            },
            Procedure::ReadDirPlus => Request::ReadDirPlus {
                dir: handle(&mut xdr)?,
                cookie: xdr.u64()?,
                verifier: xdr.fixed()?,
                name_bytes: xdr.u32()?,
                bytes: xdr.u32()?,
            },
            Procedure::FsStat => Request::FsStat { file: handle(&mut xdr)? },
            Procedure::FsInfo => Request::FsInfo { file: handle(&mut xdr)? },
            Procedure::PathConf => Request::PathConf { file: handle(&mut xdr)? },
            Procedure::Commit => {
                Request::Commit { file: handle(&mut xdr)?, offset: xdr.u64()?, count: xdr.u32()? }
            }
        };
        // Some clients add bytes after the arguments, which have no meaning.
        Ok(request)
    }
}

fn write<'a>(xdr: &mut Decoder<'a>) -> Result<Request<'a>, Garbage> {
    let (file, offset, count) = (handle(xdr)?, xdr.u64()?, xdr.u32()?);
    let stable = match xdr.u32()? {
        0 => Stable::Unstable,
        1 => Stable::Data,
        2 => Stable::File,
        _ => return Err(Garbage("an unknown stability of a write")),
    };
    let data = xdr.opaque(super::TRANSFER_MAX as usize)?;
    // Both lengths are the same (3.3.7).
    if data.len() != count as usize {
        return Err(Garbage("a write of another length than its data"));
    }
    Ok(Request::Write { file, offset, stable, data })
}

#[cfg(test)]
mod tests {
    use super::super::types::SetTime;
    use super::*;
    use crate::rpc::Encoder;

    #[test]
    fn arguments_are_decoded_as_the_rfc_lays_them_out() {
        let mut xdr = Encoder::default();
        xdr.opaque(b"dir").opaque(b"name").u32(1);
        xdr.u32(1).u32(0o644).u32(0).u32(1).u32(7).u32(1).u64(9).u32(1).u32(2).u32(5).u32(6);
        let bytes = xdr.into_bytes();
        let Ok(Request::Create { dir, name, how: Create::Guarded(set) }) =
            Request::decode(Procedure::Create, &bytes)
        else {
            panic!("a guarded create");
        };
        assert_eq!((dir, name), (&b"dir"[..], &b"name"[..]));
        let wanted = SetAttributes {
            mode: Some(0o644),
            uid: None,
            gid: Some(7),
            size: Some(9),
            atime: SetTime::Now,
            mtime: SetTime::To(Time { seconds: 5, nanos: 6 }),
        };
        assert_eq!(set, wanted);
        for len in 0..bytes.len() {
            assert!(Request::decode(Procedure::Create, &bytes[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn the_length_of_a_write_is_that_of_its_data() {
        for (count, valid) in [(4, true), (3, false), (5, false)] {
            let mut xdr = Encoder::default();
            xdr.opaque(b"file").u64(1).u32(count).u32(2).opaque(b"data");
            let bytes = xdr.into_bytes();
            let decoded = Request::decode(Procedure::Write, &bytes);
            assert_eq!(decoded.is_ok(), valid, "{count}");
        }
    }

    #[test]
    fn procedures_have_the_numbers_of_the_rfc() {
        for (number, procedure) in Procedure::ALL.into_iter().enumerate() {
            assert_eq!(procedure as usize, number);
        }
        assert_eq!(Procedure::of(21), Some(Procedure::Commit));
        assert_eq!(Procedure::of(22), None);
    }
}
