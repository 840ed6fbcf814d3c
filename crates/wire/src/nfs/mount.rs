//! MOUNT version 3 (RFC 1813, appendix I).

use crate::rpc::{Decoder, Encoder, Garbage};

/// The program number of MOUNT.
pub const PROGRAM: u32 = 100_005;
/// Maximum bytes of a path (`MNTPATHLEN`).
pub const PATH_MAX: usize = 1024;
/// The flavor of authentication that mounts accept.
const AUTH_SYS: u32 = 1;

/// A decoded call of MOUNT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of RFC 1813, appendix I")]
pub enum Request<'a> {
    Null,
    Mount { path: &'a [u8] },
    Dump,
    Unmount { path: &'a [u8] },
    UnmountAll,
    Export,
}

impl<'a> Request<'a> {
    /// Decodes the arguments of a procedure; `None` if there is no such procedure.
    ///
    /// # Errors
    /// The arguments are not valid.
    pub fn decode(procedure: u32, args: &'a [u8]) -> Result<Option<Request<'a>>, Garbage> {
        let mut xdr = Decoder::new(args);
        Ok(Some(match procedure {
            0 => Request::Null,
            1 => Request::Mount { path: xdr.opaque(PATH_MAX)? },
            2 => Request::Dump,
            3 => Request::Unmount { path: xdr.opaque(PATH_MAX)? },
            4 => Request::UnmountAll,
            5 => Request::Export,
            _ => return Ok(None),
        }))
    }
}

/// Why a mount is refused (`mountstat3`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names of RFC 1813, appendix I")]
pub enum Refused {
    NoEntry = 2,
    Io = 5,
    Access = 13,
    NotDirectory = 20,
    NameTooLong = 63,
}

/// MNT: the handle of the directory.
pub fn mounted(xdr: &mut Encoder, result: Result<&[u8], Refused>) {
    match result {
        Ok(handle) => {
            xdr.u32(0).opaque(handle).u32(1).u32(AUTH_SYS);
        }
        Err(refused) => {
            xdr.u32(refused as u32);
        }
    }
}

/// DUMP: the mounts, each a host name and a path.
pub fn dump<'a>(xdr: &mut Encoder, mounts: impl Iterator<Item = (&'a str, &'a [u8])>) {
    for (host, path) in mounts {
        xdr.bool(true).opaque(host.as_bytes()).opaque(path);
    }
    xdr.bool(false);
}

/// EXPORT: the exported directory `path`, and the networks that may mount it.
pub fn exports<'a>(xdr: &mut Encoder, path: &[u8], networks: impl Iterator<Item = &'a str>) {
    xdr.bool(true).opaque(path);
    for network in networks {
        xdr.bool(true).opaque(network.as_bytes());
    }
    xdr.bool(false).bool(false);
}
