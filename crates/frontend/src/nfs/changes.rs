//! Procedures that change names and attributes.

use std::net::IpAddr;

use forebay_files::{Begun, Caller, Changed, Created, Error, FileId, Files, RequestKey, Ticket};
use forebay_wire::nfs::results;
use forebay_wire::nfs::{Create, FileKind, Request, Status, Wcc};
use forebay_wire::rpc::{Call, Reply};
use sha2::{Digest, Sha256};

use super::attributes::{attributes_of, nanos_of, set_of, wcc_of};
use super::errors::status_of;
use super::job::Done;
use super::lookups::{REPLY, post_op};
use super::session::Shared;

/// What a procedure has changed.
enum Effect {
    /// An object was created.
    Created(Created),
    /// An object was changed.
    Changed(Changed),
    /// An object got another name.
    Renamed(Changed, Changed),
    /// The call was performed before, and its reply named this object.
    Repeated(Option<FileId>),
}

/// Why a procedure has changed nothing.
enum Refusal {
    Status(Status),
    Error(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Error(error)
    }
}

/// Identity of a call.
fn key(client: IpAddr, call: &Call<'_>) -> RequestKey {
    let client = match client {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let digest = Sha256::digest(call.args);
    let digest = digest.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
    RequestKey { client, number: call.xid, procedure: call.procedure, digest }
}

/// Performs one of the procedures of this file.
pub(super) async fn perform(
    shared: &Shared,
    call: &Call<'_>,
    request: &Request<'_>,
    caller: &Caller,
) -> Done {
    let files = &*shared.context.files;
    let effect = match refused(shared, request) {
        Some(status) => Err(Refusal::Status(status)),
        None => match files.begin(key(shared.client, call)).await {
            Ok(Begun::New(ticket)) => change(files, request, caller, &ticket).await.map_err(Refusal::Error),
            Ok(Begun::Repeated(object)) => Ok(Effect::Repeated(object)),
            Err(error) => Err(Refusal::Error(error)),
        },
    };
    let mut reply = Reply::success(call.xid, 2 * REPLY);
    match effect {
        Ok(effect) => {
            succeeded(files, request, &effect, &mut reply);
            Done::reply(reply)
        }
        Err(Refusal::Status(status)) => {
            failed(files, request, status, &mut reply);
            Done::reply(reply)
        }
        Err(Refusal::Error(error)) => Done::failed(&error, || {
            failed(files, request, status_of(&error), &mut reply);
            reply
        }),
    }
}

/// Why a call is refused whatever the namespace has.
fn refused(shared: &Shared, request: &Request<'_>) -> Option<Status> {
    match request {
        // Devices and sockets have no use in a datastore.
        Request::MkNod { device, .. } => Some(match device.kind {
            FileKind::Regular | FileKind::Directory | FileKind::Symlink => Status::BadType,
            _ => Status::NotSupported,
        }),
        _ if shared.permitted.read_only => Some(Status::ReadOnly),
        _ => None,
    }
}

async fn change(
    files: &Files,
    request: &Request<'_>,
    caller: &Caller,
    ticket: &Ticket<'_>,
) -> Result<Effect, Error> {
    let by = (caller, Some(ticket));
    Ok(match *request {
        Request::SetAttr { file, set, guard } => {
            let id = files.object(file)?;
            let expected = guard.map(nanos_of);
            Effect::Changed(files.set_attributes(id, &set_of(&set), expected, by).await?)
        }
        Request::Create { dir, name, how } => {
            let (how, set) = match how {
                Create::Unchecked(set) => (forebay_files::Create::Unchecked, set_of(&set)),
                Create::Guarded(set) => (forebay_files::Create::Guarded, set_of(&set)),
                Create::Exclusive(verifier) => {
                    (forebay_files::Create::Exclusive(verifier), forebay_files::SetAttributes::default())
                }
            };
            Effect::Created(files.create(files.object(dir)?, name, how, &set, by).await?)
        }
        Request::MkDir { dir, name, set } => {
            Effect::Created(files.make_directory(files.object(dir)?, name, &set_of(&set), by).await?)
        }
        Request::Symlink { dir, name, set, target } => {
            Effect::Created(files.make_link(files.object(dir)?, name, target, &set_of(&set), by).await?)
        }
        Request::Link { file, dir, name } => {
            Effect::Created(files.link(files.object(file)?, files.object(dir)?, name, by).await?)
        }
        Request::Remove { dir, name } => Effect::Changed(files.remove(files.object(dir)?, name, by).await?),
        Request::RmDir { dir, name } => {
            Effect::Changed(files.remove_directory(files.object(dir)?, name, by).await?)
        }
        Request::Rename { from, to } => {
            let (from, to) = ((files.object(from.0)?, from.1), (files.object(to.0)?, to.1));
            let (from, to) = files.rename(from, to, by).await?;
            Effect::Renamed(from, to)
        }
        _ => return Err(Error::Invalid),
    })
}

/// The directory or object whose change the reply describes.
fn subject<'a>(request: &Request<'a>) -> &'a [u8] {
    match *request {
        Request::SetAttr { file, .. } => file,
        Request::Create { dir, .. }
        | Request::MkDir { dir, .. }
        | Request::Symlink { dir, .. }
        | Request::MkNod { dir, .. }
        | Request::Remove { dir, .. }
        | Request::RmDir { dir, .. }
        | Request::Link { dir, .. } => dir,
        Request::Rename { from, .. } => from.0,
        _ => &[],
    }
}

/// Attributes after a call, without those before.
fn after(files: &Files, handle: &[u8]) -> Wcc {
    Wcc { before: None, after: post_op(files, handle) }
}

fn succeeded(files: &Files, request: &Request<'_>, effect: &Effect, reply: &mut Reply) {
    let xdr = reply.xdr();
    match (request, effect) {
        (Request::Link { file, dir, .. }, effect) => {
            let dir = match effect {
                Effect::Created(created) => wcc_of(files, &created.dir),
                _ => after(files, dir),
            };
            results::link(xdr, Status::Ok, post_op(files, file).as_ref(), &dir);
        }
        (Request::Rename { .. }, Effect::Renamed(from, to)) => {
            results::rename(xdr, Status::Ok, &wcc_of(files, from), &wcc_of(files, to));
        }
        (Request::Rename { from, to }, _) => {
            results::rename(xdr, Status::Ok, &after(files, from.0), &after(files, to.0));
        }
        (_, Effect::Created(created)) => {
            let (handle, attributes) =
                (files.handle(created.object.id), attributes_of(files, &created.object));
            results::created(xdr, Ok((&handle, Some(&attributes))), &wcc_of(files, &created.dir));
        }
        (_, Effect::Repeated(Some(id))) => {
            let attributes = files.attributes(*id).ok().map(|found| attributes_of(files, &found));
            let dir = after(files, subject(request));
            results::created(xdr, Ok((&files.handle(*id), attributes.as_ref())), &dir);
        }
        (_, Effect::Changed(changed)) => results::changed(xdr, Status::Ok, &wcc_of(files, changed)),
        (_, Effect::Repeated(None) | Effect::Renamed(..)) => {
            results::changed(xdr, Status::Ok, &after(files, subject(request)));
        }
    }
}

fn failed(files: &Files, request: &Request<'_>, status: Status, reply: &mut Reply) {
    let xdr = reply.xdr();
    let of_subject = after(files, subject(request));
    match request {
        Request::Rename { to, .. } => results::rename(xdr, status, &of_subject, &after(files, to.0)),
        Request::Link { file, .. } => results::link(xdr, status, post_op(files, file).as_ref(), &of_subject),
        Request::Create { .. } | Request::MkDir { .. } | Request::Symlink { .. } | Request::MkNod { .. } => {
            results::created(xdr, Err(status), &of_subject);
        }
        _ => results::changed(xdr, status, &of_subject),
    }
}
