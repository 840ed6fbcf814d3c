//! The results of the procedures (RFC 1813, section 3.3). Each function encodes the result of one procedure,
//! or of several procedures whose results have the same form. A status other than [`Status::Ok`] is encoded
//! with the attributes that such a result has.

use super::access;
use super::request::Stable;
use super::types::{Attributes, FsInfo, FsStat, PathConf, Status, Time, Wcc};
use crate::rpc::Encoder;

/// Properties of FSINFO: hard links, symbolic links, PATHCONF is the same for all files, times can be set.
const PROPERTIES: u32 = 0x1b;
/// Bytes of the end of a directory listing.
const LIST_END: usize = 8;

fn post_op(xdr: &mut Encoder, attributes: Option<&Attributes>) {
    xdr.bool(attributes.is_some());
    if let Some(attributes) = attributes {
        attributes.encode(xdr);
    }
}

fn wcc(xdr: &mut Encoder, wcc: &Wcc) {
    xdr.bool(wcc.before.is_some());
    if let Some(before) = &wcc.before {
        xdr.u64(before.size);
        before.mtime.encode(xdr);
        before.ctime.encode(xdr);
    }
    post_op(xdr, wcc.after.as_ref());
}

/// GETATTR: the status of a failure, or the attributes.
pub fn getattr(xdr: &mut Encoder, result: Result<&Attributes, Status>) {
    match result {
        Ok(attributes) => {
            xdr.u32(Status::Ok as u32);
            attributes.encode(xdr);
        }
        Err(status) => {
            xdr.u32(status as u32);
        }
    }
}

/// SETATTR, REMOVE, RMDIR.
pub fn changed(xdr: &mut Encoder, status: Status, object: &Wcc) {
    xdr.u32(status as u32);
    wcc(xdr, object);
}

/// LOOKUP: the handle and the attributes of the object, and the attributes of the directory.
pub fn lookup(
    xdr: &mut Encoder,
    result: Result<(&[u8], Option<&Attributes>), Status>,
    dir: Option<&Attributes>,
) {
    match result {
        Ok((handle, attributes)) => {
            xdr.u32(Status::Ok as u32).opaque(handle);
            post_op(xdr, attributes);
        }
        Err(status) => {
            xdr.u32(status as u32);
        }
    }
    post_op(xdr, dir);
}

/// ACCESS: the permitted accesses.
pub fn access(xdr: &mut Encoder, result: Result<u32, Status>, attributes: Option<&Attributes>) {
    xdr.u32(result.err().unwrap_or(Status::Ok) as u32);
    post_op(xdr, attributes);
    if let Ok(granted) = result {
        xdr.u32(granted & (access::EXECUTE * 2 - 1));
    }
}

/// READLINK: the target of the link.
pub fn readlink(xdr: &mut Encoder, result: Result<&[u8], Status>, attributes: Option<&Attributes>) {
    xdr.u32(result.err().unwrap_or(Status::Ok) as u32);
    post_op(xdr, attributes);
    if let Ok(target) = result {
        xdr.opaque(target);
    }
}

/// READ: `count` bytes of data, which the caller fills in. Returns their position.
pub fn read(xdr: &mut Encoder, attributes: Option<&Attributes>, count: usize, eof: bool) -> usize {
    xdr.u32(Status::Ok as u32);
    post_op(xdr, attributes);
    xdr.u32(count as u32).bool(eof);
    xdr.zeroes(count)
}

/// A procedure that has failed, whose result has the attributes of one object: READ, ACCESS, READDIR, FSINFO.
pub fn failed(xdr: &mut Encoder, status: Status, attributes: Option<&Attributes>) {
    xdr.u32(status as u32);
    post_op(xdr, attributes);
}

/// WRITE: the number of bytes written, how stable they are, and the write verifier.
pub fn write(xdr: &mut Encoder, result: Result<(u32, Stable, [u8; 8]), Status>, file: &Wcc) {
    xdr.u32(result.err().unwrap_or(Status::Ok) as u32);
    wcc(xdr, file);
    if let Ok((count, stable, verifier)) = result {
        xdr.u32(count).u32(stable as u32).fixed(&verifier);
    }
}

/// CREATE, MKDIR, SYMLINK and MKNOD: the handle and the attributes of the new object.
pub fn created(xdr: &mut Encoder, result: Result<(&[u8], Option<&Attributes>), Status>, dir: &Wcc) {
    match result {
        Ok((handle, attributes)) => {
            xdr.u32(Status::Ok as u32).bool(true).opaque(handle);
            post_op(xdr, attributes);
        }
        Err(status) => {
            xdr.u32(status as u32);
        }
    }
    wcc(xdr, dir);
}

/// RENAME.
pub fn rename(xdr: &mut Encoder, status: Status, from: &Wcc, to: &Wcc) {
    xdr.u32(status as u32);
    wcc(xdr, from);
    wcc(xdr, to);
}

/// LINK.
pub fn link(xdr: &mut Encoder, status: Status, file: Option<&Attributes>, dir: &Wcc) {
    xdr.u32(status as u32);
    post_op(xdr, file);
    wcc(xdr, dir);
}

/// An entry of a directory.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Number of the file.
    pub fileid: u64,
    /// The name.
    pub name: &'a [u8],
    /// Position of the entry.
    pub cookie: u64,
}

/// A list of entries that is being encoded, for READDIR or READDIRPLUS.
#[derive(Debug)]
pub struct Listing<'a> {
    xdr: &'a mut Encoder,
    /// Length of the message at which the list is full.
    end: usize,
    /// Length at which the names are full, counted from `names`.
    name_bytes: usize,
    names: usize,
    entries: usize,
}

impl<'a> Listing<'a> {
    /// Begins the result of a listing of at most `bytes` bytes, of which at most `name_bytes` are entries
    /// without their attributes.
    pub fn new(
        xdr: &'a mut Encoder,
        dir: Option<&Attributes>,
        verifier: [u8; 8],
        (name_bytes, bytes): (u32, u32),
    ) -> Listing<'a> {
        let end = xdr.len() + bytes as usize;
        xdr.u32(Status::Ok as u32);
        post_op(xdr, dir);
        xdr.fixed(&verifier);
        Listing { xdr, end, name_bytes: name_bytes as usize, names: 0, entries: 0 }
    }

    /// Adds an entry; `plus` are the attributes and the handle of READDIRPLUS. Returns false if the entry
    /// does not fit.
    pub fn add(&mut self, entry: &Entry<'_>, plus: Option<(&Attributes, &[u8])>) -> bool {
        let before = self.xdr.len();
        self.xdr.bool(true).u64(entry.fileid).opaque(entry.name).u64(entry.cookie);
        let names = self.names + self.xdr.len() - before;
        if let Some((attributes, handle)) = plus {
            post_op(self.xdr, Some(attributes));
            self.xdr.bool(true).opaque(handle);
        }
        let fits = self.xdr.len() + LIST_END <= self.end && names <= self.name_bytes;
        if fits {
            self.names = names;
            self.entries += 1;
        } else {
            self.xdr.truncate(before);
        }
        fits
    }

    /// Number of entries of the list.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Ends the list; `eof` if it has the last entry of the directory.
    pub fn finish(self, eof: bool) {
        self.xdr.bool(false).bool(eof);
    }
}

/// FSSTAT.
pub fn fsstat(xdr: &mut Encoder, attributes: Option<&Attributes>, stat: &FsStat) {
    xdr.u32(Status::Ok as u32);
    post_op(xdr, attributes);
    xdr.u64(stat.total_bytes).u64(stat.free_bytes).u64(stat.available_bytes);
    xdr.u64(stat.total_files).u64(stat.free_files).u64(stat.available_files);
    xdr.u32(0);
}

/// FSINFO.
pub fn fsinfo(xdr: &mut Encoder, attributes: Option<&Attributes>, info: &FsInfo) {
    xdr.u32(Status::Ok as u32);
    post_op(xdr, attributes);
    xdr.u32(info.transfer).u32(info.transfer).u32(4096);
    xdr.u32(info.transfer).u32(info.transfer).u32(4096);
    xdr.u32(info.directory).u64(info.max_file_size);
    Time { seconds: 0, nanos: 1 }.encode(xdr);
    xdr.u32(PROPERTIES);
}

/// PATHCONF. Names that are too long are an error, only root changes owners, names are case-sensitive.
pub fn pathconf(xdr: &mut Encoder, attributes: Option<&Attributes>, conf: &PathConf) {
    xdr.u32(Status::Ok as u32);
    post_op(xdr, attributes);
    xdr.u32(conf.links).u32(conf.name).bool(true).bool(true).bool(false).bool(true);
}

/// COMMIT: the write verifier.
pub fn commit(xdr: &mut Encoder, result: Result<[u8; 8], Status>, file: &Wcc) {
    xdr.u32(result.err().unwrap_or(Status::Ok) as u32);
    wcc(xdr, file);
    if let Ok(verifier) = result {
        xdr.fixed(&verifier);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_never_longer_than_the_client_permits() {
        for bytes in 0..600_u32 {
            let mut xdr = Encoder::default();
            let mut list = Listing::new(&mut xdr, None, [0; 8], (bytes, bytes));
            let mut fits = true;
            for n in 0..20 {
                let name = vec![b'n'; n as usize + 1];
                let added = list.add(&Entry { fileid: 1, name: &name, cookie: n }, None);
                assert!(fits || !added, "an entry follows one that did not fit");
                fits &= added;
            }
            let entries = list.entries();
            list.finish(fits);
            assert!(entries == 0 || xdr.len() <= bytes as usize, "{} bytes of {bytes}", xdr.len());
        }
    }
}
