//! MOUNT: the handles of directories, and the list of mounts. The list is for people: a client that does not
//! unmount stays in it until newer mounts take its place.

use std::collections::VecDeque;
use std::net::IpAddr;

use forebay_files::{Caller, Error, FileId, Files, Kind};
use forebay_wire::nfs::mount::{self, Refused, Request};
use forebay_wire::rpc::Encoder;
use parking_lot::Mutex;

use super::access::AccessRule;
use super::errors::refused_of;

/// Maximum number of mounts in the list.
const MOUNTS_MAX: usize = 1024;

/// The list of mounts.
#[derive(Default)]
pub(super) struct Mounts(Mutex<VecDeque<(IpAddr, Vec<u8>)>>);

impl Mounts {
    fn add(&self, client: IpAddr, path: &[u8]) {
        let mut mounts = self.0.lock();
        if mounts.iter().any(|(of, mounted)| *of == client && mounted == path) {
            return;
        }
        if mounts.len() >= MOUNTS_MAX {
            mounts.pop_front();
        }
        mounts.push_back((client, path.to_vec()));
    }

    fn remove(&self, client: IpAddr, path: Option<&[u8]>) {
        let is_meant = |mounted: &[u8]| path.is_none_or(|path| path == mounted);
        self.0.lock().retain(|(of, mounted)| *of != client || !is_meant(mounted));
    }
}

/// The directory of a path.
fn directory(files: &Files, path: &[u8]) -> Result<FileId, Error> {
    let (mut at, root) = (files.root(), Caller::root());
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        at = files.look_up(at, name, &root)?.id;
    }
    match files.attributes(at)?.kind {
        Kind::Directory => Ok(at),
        _ => Err(Error::NotDirectory),
    }
}

/// Serves a call of MOUNT.
pub(super) fn serve(
    request: &Request<'_>,
    (files, mounts, rules): (&Files, &Mounts, &[AccessRule]),
    client: IpAddr,
    xdr: &mut Encoder,
) {
    match request {
        Request::Null => {}
        Request::Mount { path } => match directory(files, path) {
            Ok(found) => {
                mounts.add(client, path);
                mount::mounted(xdr, Ok(&files.handle(found)));
            }
            Err(error) => mount::mounted(xdr, Err::<&[u8], Refused>(refused_of(&error))),
        },
        Request::Dump => {
            let mounts = mounts.0.lock();
            let named: Vec<_> = mounts.iter().map(|(client, path)| (client.to_string(), path)).collect();
            mount::dump(xdr, named.iter().map(|(client, path)| (client.as_str(), path.as_slice())));
        }
        Request::Unmount { path } => mounts.remove(client, Some(path)),
        Request::UnmountAll => mounts.remove(client, None),
        Request::Export => {
            let networks: Vec<_> = rules.iter().map(|rule| rule.network.to_string()).collect();
            mount::exports(xdr, b"/", networks.iter().map(String::as_str));
        }
    }
}
