//! Procedures that are answered from memory, without a wait.

use forebay_files::{Caller, Error, FileId, Files, Kind, LINKS_MAX, NAME_MAX};
use forebay_wire::nfs::results::{self, Entry, Listing};
use forebay_wire::nfs::{Attributes, FsInfo, PathConf, Request, Status, TRANSFER_MAX, access};
use forebay_wire::rpc::Reply;

use super::attributes::attributes_of;
use super::errors::status_of;
use super::session::Shared;
use crate::exec::Executor;

/// Maximum bytes of the result of a listing.
const LISTING_MAX: u32 = 64 << 10;
/// Minimum bytes of an entry in a listing, and of its attributes and its handle in READDIRPLUS.
const ENTRY_MIN: u32 = 28;
const PLUS: u32 = 116;
/// Bytes of a reply without its data.
pub(super) const REPLY: usize = 256;

/// The object of a handle, with its attributes for a reply.
pub(super) fn object(files: &Files, handle: &[u8]) -> Result<(FileId, Attributes), Error> {
    let id = files.object(handle)?;
    Ok((id, attributes_of(files, &files.attributes(id)?)))
}

/// The attributes of the object of a handle, if it exists.
pub(super) fn post_op(files: &Files, handle: &[u8]) -> Option<Attributes> {
    object(files, handle).ok().map(|(_, attributes)| attributes)
}

/// The accesses that the permissions include.
fn granted(kind: Kind, permissions: u16, read_only: bool) -> u32 {
    let (can_read, can_write, can_execute) =
        (permissions & 4 != 0, permissions & 2 != 0 && !read_only, permissions & 1 != 0);
    let bits = |condition: bool, bits: u32| if condition { bits } else { 0 };
    let common = bits(can_read, access::READ) | bits(can_write, access::MODIFY | access::EXTEND);
    match kind {
        Kind::Directory => common | bits(can_execute, access::LOOKUP) | bits(can_write, access::DELETE),
        _ => common | bits(can_execute, access::EXECUTE),
    }
}

/// Serves a procedure; `None` if it may have to wait.
pub(super) fn serve(shared: &Shared, xid: u32, request: &Request<'_>, caller: &Caller) -> Option<Vec<u8>> {
    let files = &*shared.context.files;
    let mut reply = Reply::success(xid, REPLY);
    let xdr = reply.xdr();
    match *request {
        Request::Null => {}
        Request::GetAttr { file } => {
            let found = object(files, file);
            results::getattr(xdr, found.as_ref().map(|(_, attributes)| attributes).map_err(status_of));
        }
        Request::Lookup { dir, name } => {
            let found = files.object(dir).and_then(|dir| files.look_up(dir, name, caller));
            let of_dir = post_op(files, dir);
            match found {
                Ok(found) => {
                    let (handle, attributes) = (files.handle(found.id), attributes_of(files, &found));
                    results::lookup(xdr, Ok((&handle, Some(&attributes))), of_dir.as_ref());
                }
                Err(error) => results::lookup(xdr, Err(status_of(&error)), of_dir.as_ref()),
            }
        }
        Request::Access { file, wanted } => {
            match files.object(file).and_then(|id| files.permissions(id, caller)) {
                Ok((permissions, attributes)) => {
                    let granted = granted(attributes.kind, permissions, shared.permitted.read_only);
                    let attributes = attributes_of(files, &attributes);
                    results::access(xdr, Ok(granted & wanted), Some(&attributes));
                }
                Err(error) => results::access(xdr, Err(status_of(&error)), None),
            }
        }
        Request::ReadDir { dir, cookie, bytes, .. } => {
            list(files, dir, (cookie, bytes, bytes, false), caller, &mut reply);
        }
        Request::ReadDirPlus { dir, cookie, name_bytes, bytes, .. } => {
            list(files, dir, (cookie, name_bytes, bytes, true), caller, &mut reply);
        }
        Request::FsInfo { file } => match object(files, file) {
            Ok((_, attributes)) => {
                let info = FsInfo {
                    transfer: TRANSFER_MAX,
                    directory: LISTING_MAX,
                    max_file_size: forebay_files::FILE_MAX,
                };
                results::fsinfo(xdr, Some(&attributes), &info);
            }
            Err(error) => results::failed(xdr, status_of(&error), None),
        },
        Request::PathConf { file } => match object(files, file) {
            Ok((_, attributes)) => {
                let conf = PathConf { links: LINKS_MAX, name: NAME_MAX as u32 };
                results::pathconf(xdr, Some(&attributes), &conf);
            }
            Err(error) => results::failed(xdr, status_of(&error), None),
        },
        _ => return None,
    }
    Some(reply.finish())
}

fn list(
    files: &Files,
    handle: &[u8],
    (cookie, name_bytes, bytes, plus): (u64, u32, u32, bool),
    caller: &Caller,
    reply: &mut Reply,
) {
    let bytes = bytes.min(LISTING_MAX);
    let most = (bytes / (ENTRY_MIN + if plus { PLUS } else { 0 })) as usize + 1;
    let page = files.object(handle).and_then(|dir| files.list(dir, cookie, most, caller));
    let page = match page {
        Ok(page) => page,
        Err(error) => {
            return results::failed(reply.xdr(), status_of(&error), post_op(files, handle).as_ref());
        }
    };
    let of_dir = attributes_of(files, &page.dir);
    let start = reply.xdr().len();
    let mut listing = Listing::new(reply.xdr(), Some(&of_dir), [0; 8], (name_bytes, bytes));
    let mut all = true;
    for listed in &page.entries {
        let attributes = attributes_of(files, &listed.attributes);
        let handle = files.handle(listed.attributes.id);
        let entry = Entry { fileid: attributes.fileid, name: &listed.name, cookie: listed.cookie };
        if !listing.add(&entry, plus.then_some((&attributes, &handle[..]))) {
            all = false;
            break;
        }
    }
    if listing.entries() == 0 && !page.entries.is_empty() {
        let xdr = reply.xdr();
        xdr.truncate(start);
        results::failed(xdr, Status::TooSmall, Some(&of_dir));
    } else {
        listing.finish(all && page.is_last);
    }
}

/// Serves a READ of at most `most` bytes whose data is in RAM.
pub(super) fn read_now(
    shared: &Shared,
    xid: u32,
    (file, offset, count): (&[u8], u64, u32),
    most: usize,
    caller: &Caller,
    executor: &Executor,
) -> Option<Vec<u8>> {
    let files = &*shared.context.files;
    if count as usize > most {
        return None;
    }
    let reading = files.object(file).and_then(|id| files.try_read(id, caller)).ok()??;
    let (len, eof) = reading.extent(offset, count);
    let mut reply = Reply::success(xid, REPLY + len);
    let attributes = attributes_of(files, &reading.attributes);
    let at = results::read(reply.xdr(), Some(&attributes), len, eof);
    if len > 0 {
        let (disk, place) = reading.place(offset);
        match executor.read_now(disk, place, &mut reply.xdr().bytes_mut(at)[..len]) {
            Ok(true) => {}
            Ok(false) | Err(_) => return None,
        }
    }
    Some(reply.finish())
}
