//! Procedures on the data of files: READ, WRITE, COMMIT, READLINK; and FSSTAT.

use std::rc::Rc;

use forebay_engine::ReadFrom;
use forebay_files::{Caller, Error, FILES_MAX, Files};
use forebay_wire::nfs::results;
use forebay_wire::nfs::{FsStat, Request, Stable, Status, TRANSFER_MAX, Wcc};
use forebay_wire::rpc::Reply;

use super::attributes::{attributes_of, wcc_of};
use super::errors::status_of;
use super::job::Done;
use super::lookups::{REPLY, object, post_op};
use super::session::Shared;
use crate::exec::read_whole;
use crate::plane::{Backlog, Served};

/// Bytes that are read before other tasks of the thread have their turn.
const PIECE: usize = 256 << 10;

/// Performs one of the procedures of this file.
pub(super) async fn perform(
    shared: &Shared,
    xid: u32,
    request: &Request<'_>,
    caller: &Caller,
    backlog: &Rc<Backlog>,
) -> Done {
    let files = &*shared.context.files;
    let failed = |file: &[u8], error: &Error| {
        Done::failed(error, || {
            let mut reply = Reply::success(xid, REPLY);
            results::failed(reply.xdr(), status_of(error), post_op(files, file).as_ref());
            reply
        })
    };
    match *request {
        Request::Read { file, offset, count } => {
            match read(files, xid, (file, offset, count), caller, backlog).await {
                Ok(done) => done,
                Err(error) => failed(file, &error),
            }
        }
        Request::Write { file, offset, stable, data } => {
            write(shared, xid, (file, offset, stable, data), caller).await
        }
        Request::Commit { file, .. } => {
            let committed = match files.object(file) {
                _ if shared.permitted.read_only => Err(None),
                Ok(id) => files.commit(id).await.map_err(Some),
                Err(error) => Err(Some(error)),
            };
            let mut reply = Reply::success(xid, REPLY);
            match committed {
                Ok(attributes) => {
                    let wcc = Wcc { before: None, after: Some(attributes_of(files, &attributes)) };
                    results::commit(reply.xdr(), Ok(verifier(files)), &wcc);
                    Done { served: Some(Served::Durable), ..Done::reply(reply) }
                }
                Err(Some(error)) => Done::failed(&error, || {
                    let wcc = Wcc { before: None, after: post_op(files, file) };
                    results::commit(reply.xdr(), Err(status_of(&error)), &wcc);
                    reply
                }),
                Err(None) => {
                    let wcc = Wcc { before: None, after: post_op(files, file) };
                    results::commit(reply.xdr(), Err(Status::ReadOnly), &wcc);
                    Done::reply(reply)
                }
            }
        }
        Request::ReadLink { file } => {
            let found = match files.object(file) {
                Ok(id) => files.target(id).await,
                Err(error) => Err(error),
            };
            match found {
                Ok((target, attributes)) => {
                    let mut reply = Reply::success(xid, REPLY + target.len());
                    results::readlink(reply.xdr(), Ok(&target), Some(&attributes_of(files, &attributes)));
                    Done::reply(reply)
                }
                Err(error) => failed(file, &error),
            }
        }
        Request::FsStat { file } => match room(files, file).await {
            Ok((attributes, stat)) => {
                let mut reply = Reply::success(xid, REPLY);
                results::fsstat(reply.xdr(), Some(&attributes), &stat);
                Done::reply(reply)
            }
            Err(error) => failed(file, &error),
        },
        _ => Done::default(),
    }
}

/// The write verifier.
fn verifier(files: &Files) -> [u8; 8] {
    files.verifier().to_be_bytes()
}

async fn room(files: &Files, file: &[u8]) -> Result<(forebay_wire::nfs::Attributes, FsStat), Error> {
    let (_, attributes) = object(files, file)?;
    let room = files.pool().check_room().await?;
    let free_files = FILES_MAX.saturating_sub(files.used()) as u64;
    let stat = FsStat {
        total_bytes: room.total,
        free_bytes: room.free,
        available_bytes: room.free,
        total_files: FILES_MAX as u64,
        free_files,
        available_files: free_files,
    };
    Ok((attributes, stat))
}

async fn read(
    files: &Files,
    xid: u32,
    (file, offset, count): (&[u8], u64, u32),
    caller: &Caller,
    backlog: &Rc<Backlog>,
) -> Result<Done, Error> {
    let count = count.min(TRANSFER_MAX);
    backlog.room().await;
    let charge = backlog.account().take_shared(REPLY + count as usize).await;
    let reading = files.read(files.object(file)?, caller).await?;
    let (len, eof) = reading.extent(offset, count);
    let mut reply = Reply::success(xid, REPLY + len);
    let at = results::read(reply.xdr(), Some(&attributes_of(files, &reading.attributes)), len, eof);
    let mut from = ReadFrom::Ram;
    if len > 0 {
        let (disk, place) = reading.place(offset);
        from = read_whole(disk, place, &mut reply.xdr().bytes_mut(at)[..len], PIECE, |_| ()).await?;
    }
    let served = if from == ReadFrom::Store { Served::Store } else { Served::Ram };
    Ok(Done { charge: Some(charge), served: Some(served), ..Done::reply(reply) })
}

async fn write(
    shared: &Shared,
    xid: u32,
    (file, offset, stable, data): (&[u8], u64, Stable, &[u8]),
    caller: &Caller,
) -> Done {
    let files = &*shared.context.files;
    let mut reply = Reply::success(xid, REPLY);
    if shared.permitted.read_only {
        let wcc = Wcc { before: None, after: post_op(files, file) };
        results::write(reply.xdr(), Err(Status::ReadOnly), &wcc);
        return Done::reply(reply);
    }
    let is_stable = stable != Stable::Unstable;
    // Read before the write: if the buffers are lost in between, the client sees another verifier later.
    let verifier = verifier(files);
    let written = match files.object(file) {
        Ok(id) => files.write(id, offset, data, is_stable, caller).await,
        Err(error) => Err(error),
    };
    match written {
        Ok(written) => {
            let committed = if is_stable { Stable::File } else { Stable::Unstable };
            let wcc = wcc_of(files, &written.file);
            results::write(reply.xdr(), Ok((data.len() as u32, committed, verifier)), &wcc);
            Done { served: Some(Served::change(is_stable)), ..Done::reply(reply) }
        }
        Err(error) => Done::failed(&error, || {
            let wcc = Wcc { before: None, after: post_op(files, file) };
            results::write(reply.xdr(), Err(status_of(&error)), &wcc);
            reply
        }),
    }
}
