//! Uploads: image files that clients send, in pieces of at most 1 MiB, each with its offset.
//!
//! A piece that was received can be sent again, so a client repeats a request whose response it has not
//! received. The next piece begins where the last one ended. After an interruption, the client requests this
//! offset.
//!
//! **Bounds.** The server keeps at most [`MAX_UPLOADS`] uploads, [`MAX_OF_CLIENT`] of them of one client.
//! The file is a [`Spool`], so it leaves the same room free as a download, and its length is at most the
//! maximum size of downloads. An upload that receives nothing for [`IDLE`] ends. All end with the process of
//! the server, also by an upgrade. The memory of a request contains one piece, as any other body.
//!
//! **A new upload** that exceeds a bound or the free room ends the upload that has received nothing for the
//! longest time, and further uploads if that does not suffice. It does not end an upload that received a byte
//! within [`ABANDONED_AFTER`]. So an abandoned upload holds its room only until the room is needed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_api::{CreateUpload, ErrorKind, UploadView};
use forebay_engine::check_name;
use forebay_host::clock::unix_ms;
use forebay_text::{Size, quoted};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::file::{Download, ImageFile};
use super::job::{blocking, keep_free};
use super::spool::{Spool, SpoolError};
use super::{ImportError, unpack};
use crate::operations::{Control, ControlError, Result};

/// Maximum number of uploads of all clients.
const MAX_UPLOADS: usize = 16;
/// Maximum number of uploads of one client.
const MAX_OF_CLIENT: usize = 4;
/// What a user can do about uploads that hold places or room.
const REMEDY: &str = "'forebay upload list' shows all uploads, and 'forebay upload rm ID' ends one";
/// Time without a new byte after which an upload ends.
const IDLE: Duration = Duration::from_secs(3600);
/// Time without a new byte after which an upload ends if another one needs its place or its room.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);
/// Maximum length of the name of a file, in bytes.
const MAX_FILE_NAME: usize = 255;

/// The uploads of all clients.
#[derive(Clone, Default)]
pub struct Uploads(Arc<Mutex<All>>);

#[derive(Default)]
struct All {
    uploads: BTreeMap<u64, Arc<Upload>>,
    /// Minimum for the number of the next upload. A number is not used again: a late piece must not reach
    /// another file.
    next: u64,
}

struct Upload {
    id: u64,
    owner: String,
    /// Name of the client, for people.
    client: String,
    image: String,
    file_name: String,
    len: u64,
    /// Bytes that the spool holds.
    received: AtomicU64,
    /// Locked while a piece is written, on a thread that may wait.
    spool: Mutex<Spool>,
    /// When the last piece arrived.
    used: Mutex<Instant>,
}

impl Upload {
    fn view(&self) -> UploadView {
        let idle_ms = u64::try_from(self.used.lock().elapsed().as_millis()).unwrap_or(u64::MAX);
        UploadView {
            id: self.id,
            image: self.image.clone(),
            file_name: self.file_name.clone(),
            len_bytes: self.len,
            received_bytes: self.received.load(Relaxed),
            client: self.client.clone(),
            last_received_ms: unix_ms().saturating_sub(idle_ms),
        }
    }

    /// Stores a piece; ignores the part that was received before.
    fn append(&self, offset: u64, piece: &[u8]) -> Result<UploadView> {
        let mut spool = self.spool.lock();
        let received = spool.len();
        if offset > received {
            let why = format!("the upload {} continues at byte {received}, not at byte {offset}", self.id);
            return Err(ControlError::new(ErrorKind::OutOfRange, why));
        }
        if offset.saturating_add(piece.len() as u64) > self.len {
            let why = format!("the upload {} has {} bytes, and the piece ends after them", self.id, self.len);
            return Err(ControlError::new(ErrorKind::OutOfRange, why));
        }
        let known = usize::try_from(received - offset).unwrap_or(usize::MAX);
        if let Some(rest) = piece.get(known..).filter(|rest| !rest.is_empty()) {
            let work = || format!("upload of {}", quoted(&self.file_name));
            spool.append_sparse(rest).map_err(|e| unpack::not_stored(e, work(), &spool))?;
            *self.used.lock() = Instant::now();
            self.received.store(spool.len(), Relaxed);
        }
        Ok(self.view())
    }
}

impl fmt::Debug for Uploads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

impl Uploads {
    /// Returns an upload of this client.
    fn find(&self, id: u64, owner: &str) -> Result<Arc<Upload>> {
        let found = self.0.lock().uploads.get(&id).filter(|upload| upload.owner == owner).cloned();
        found.ok_or_else(|| {
            let why = format!("there is no upload {id} of this client; it may have expired: begin again");
            ControlError::new(ErrorKind::NotFound, why)
        })
    }

    /// Ends an upload; does nothing if there is no such upload. Without `owner`, the upload may be of any
    /// client.
    pub fn remove(&self, id: u64, owner: Option<&str>) {
        let removed = {
            let mut all = self.0.lock();
            let is_meant = |upload: &Arc<Upload>| owner.is_none_or(|owner| upload.owner == owner);
            match all.uploads.get(&id).is_some_and(is_meant) {
                true => all.uploads.remove(&id),
                false => None,
            }
        };
        free(removed);
    }

    /// All uploads, the oldest first.
    pub fn list(&self) -> Vec<UploadView> {
        self.0.lock().uploads.values().map(|upload| upload.view()).collect()
    }

    /// Ends the upload that has received nothing for the longest time, of this client or of all; false if
    /// each of them received a byte within [`ABANDONED_AFTER`]. The room is free on return.
    async fn end_abandoned(&self, of: Option<&str>) -> bool {
        let removed = {
            let mut all = self.0.lock();
            let idle = |upload: &Arc<Upload>| upload.used.lock().elapsed();
            let meant = all.uploads.values().filter(|upload| of.is_none_or(|of| upload.owner == of));
            let abandoned = meant.filter(|upload| idle(upload) >= ABANDONED_AFTER).max_by_key(|u| idle(u));
            let id = abandoned.map(|upload| upload.id);
            id.and_then(|id| all.uploads.remove(&id))
        };
        let Some(upload) = removed else { return false };
        tracing::info!(by = upload.client, "ended the abandoned upload of {}", quoted(&upload.file_name));
        // Dropping the upload removes its file. For a large file this can take the file system seconds.
        let _ = tokio::task::spawn_blocking(move || drop(upload)).await;
        true
    }

    /// Makes a place for an upload of a client.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] if all uploads have received a byte within [`ABANDONED_AFTER`].
    async fn make_place(&self, owner: &str) -> Result<()> {
        loop {
            let (of_client, all) = {
                let all = self.0.lock();
                (all.uploads.values().filter(|upload| upload.owner == owner).count(), all.uploads.len())
            };
            let of = match (of_client >= MAX_OF_CLIENT, all >= MAX_UPLOADS) {
                (false, false) => return Ok(()),
                (true, _) => Some(owner),
                (false, true) => None,
            };
            if !self.end_abandoned(of).await {
                return Err(too_many());
            }
        }
    }

    /// Begins an upload, with a number that no other upload has.
    fn insert(
        &self,
        first_id: u64,
        spool: Spool,
        by: Uploader<'_>,
        request: CreateUpload,
    ) -> Result<Arc<Upload>> {
        let Uploader { owner, client } = by;
        let mut all = self.0.lock();
        let of_client = all.uploads.values().filter(|upload| upload.owner == owner).count();
        // Another upload may have begun since there was a place.
        if of_client >= MAX_OF_CLIENT || all.uploads.len() >= MAX_UPLOADS {
            return Err(too_many());
        }
        let id = all.next.max(first_id);
        all.next = id + 1;
        let upload = Arc::new(Upload {
            id,
            owner: owner.to_owned(),
            client: client.to_owned(),
            image: request.image,
            file_name: request.file_name,
            len: request.len_bytes,
            received: AtomicU64::new(0),
            spool: Mutex::new(spool),
            used: Mutex::new(Instant::now()),
        });
        all.uploads.insert(id, upload.clone());
        Ok(upload)
    }

    /// Ends an upload that receives nothing for [`IDLE`].
    async fn expire(self, id: u64) {
        loop {
            let Some(used) = self.0.lock().uploads.get(&id).map(|upload| *upload.used.lock()) else { return };
            let end = used + IDLE;
            if Instant::now() >= end {
                let removed = self.0.lock().uploads.remove(&id);
                return free(removed);
            }
            tokio::time::sleep_until(end).await;
        }
    }
}

/// A client that sends a file.
#[derive(Clone, Copy)]
pub(crate) struct Uploader<'a> {
    /// The client to which its uploads belong.
    pub owner: &'a str,
    /// Its name, for people.
    pub client: &'a str,
}

fn too_many() -> ControlError {
    let why = format!(
        "too many uploads: a client has at most {MAX_OF_CLIENT}, and all clients {MAX_UPLOADS}, and each of them \
         received data within {} s; {REMEDY}",
        ABANDONED_AFTER.as_secs()
    );
    ControlError::new(ErrorKind::BadState, why)
}

/// Closes the file of an upload on a thread that may wait: a file system frees a large file for seconds.
fn free(upload: Option<Arc<Upload>>) {
    if let (Some(upload), Ok(runtime)) = (upload, Handle::try_current()) {
        runtime.spawn_blocking(move || drop(upload));
    }
}

/// Begins an upload.
///
/// # Errors
/// The name of the image is invalid or taken, the file is too large, there is no room, or there are too many
/// uploads.
pub(crate) async fn create(
    control: &Control,
    uploads: &Uploads,
    by: Uploader<'_>,
    request: CreateUpload,
) -> Result<UploadView> {
    check_name(&request.image)?;
    if control.pool().disk(&request.image).is_ok() {
        return Err(forebay_engine::Error::Exists(request.image).into());
    }
    let name = &request.file_name;
    if name.is_empty() || name.len() > MAX_FILE_NAME || name.contains(|c: char| c == '/' || c.is_control()) {
        let why =
            format!("the name of a file has 1 to {MAX_FILE_NAME} bytes, no '/' and no control characters");
        return Err(ControlError::bad_request(why));
    }
    let (len, max) = (request.len_bytes, control.info().imports.max_bytes);
    if len == 0 {
        return Err(ImportError::Empty(name.clone()).into());
    }
    if len > max {
        let why = format!("the file is larger than {}, the limit set by --import-max-size", Size(max));
        return Err(ControlError::new(ErrorKind::BadSource, why));
    }
    uploads.make_place(by.owner).await?;
    let spool = loop {
        match new_spool(control, &request).await {
            Err(ImportError::NoRoom { .. }) if uploads.end_abandoned(None).await => {}
            Err(e @ ImportError::NoRoom { .. }) if !uploads.list().is_empty() => {
                let error = ControlError::from(e);
                let message = format!("{}; other uploads hold room: {REMEDY}", error.message);
                return Err(ControlError { message, ..error });
            }
            made => break made?,
        }
    };
    let upload = uploads.insert(unix_ms(), spool, by, request)?;
    tokio::spawn(uploads.clone().expire(upload.id));
    Ok(upload.view())
}

/// Creates the file of an upload, for which there is room now.
async fn new_spool(control: &Control, request: &CreateUpload) -> super::Result<Spool> {
    let (data, keep) = (control.info().data.clone(), keep_free(control));
    let (work, len) = (format!("upload of {}", quoted(&request.file_name)), request.len_bytes);
    blocking(move || {
        let spool = Spool::create(&data, keep)?;
        match spool.check_room(len) {
            Ok(()) => Ok(spool),
            Err(e) => Err(unpack::not_stored(e, work, &spool)),
        }
    })
    .await
}

/// Returns an upload.
///
/// # Errors
/// The client has no such upload.
pub(crate) fn show(uploads: &Uploads, owner: &str, id: u64) -> Result<UploadView> {
    Ok(uploads.find(id, owner)?.view())
}

/// Stores a piece of the file.
///
/// # Errors
/// The client has no such upload, bytes before the piece are missing, the piece ends after the end of the
/// file, or it cannot be stored.
pub(crate) async fn append(
    uploads: &Uploads,
    owner: &str,
    id: u64,
    offset: u64,
    piece: hyper::body::Bytes,
) -> Result<UploadView> {
    let upload = uploads.find(id, owner)?;
    let stored = tokio::task::spawn_blocking(move || upload.append(offset, &piece)).await;
    stored.unwrap_or_else(|_| Err(ImportError::Internal("the thread that stores a piece panicked").into()))
}

/// Opens the file of a complete upload, which remains until [`Uploads::remove`].
pub(super) async fn open(uploads: &Uploads, owner: &str, id: u64) -> Result<ImageFile> {
    let upload = uploads.find(id, owner)?;
    // A piece may be being written.
    let opened = tokio::task::spawn_blocking(move || open_complete(&upload)).await;
    opened.unwrap_or_else(|_| Err(ImportError::Internal("the thread that opens a file panicked").into()))
}

fn open_complete(upload: &Upload) -> Result<ImageFile> {
    let (spool, id) = (upload.spool.lock(), upload.id);
    // The upload is not abandoned: it is imported again with another format if the import fails.
    *upload.used.lock() = Instant::now();
    if spool.len() < upload.len {
        let why =
            format!("the upload {id} is not complete: {} of {} bytes were received", spool.len(), upload.len);
        return Err(ControlError::new(ErrorKind::BadState, why));
    }
    let file = spool
        .open_again()
        .map_err(|e| ControlError::from(unpack::not_stored(SpoolError::Storage(e), String::new(), &spool)))?;
    let stated = Download { file_name: upload.file_name.clone(), content_type: None };
    ImageFile::from_download(file, upload.file_name.clone(), stated).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 8;

    fn begun(uploads: &Uploads, directory: &tempfile::TempDir, owner: &str) -> Result<Arc<Upload>> {
        let spool = Spool::create(directory.path(), Box::new(|_| 0)).unwrap();
        let request = CreateUpload { image: "x".into(), file_name: "f".into(), len_bytes: LEN };
        uploads.insert(1, spool, Uploader { owner, client: owner }, request)
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_ends_an_hour_after_its_last_piece() {
        let (uploads, directory) = (Uploads::default(), tempfile::tempdir().unwrap());
        let upload = begun(&uploads, &directory, "a").unwrap();
        let expired = tokio::spawn(uploads.clone().expire(upload.id));
        tokio::time::sleep(IDLE / 2).await;
        upload.append(0, b"abc").unwrap();
        tokio::time::sleep(IDLE * 3 / 4).await;
        // A repetition does not prolong the upload.
        upload.append(0, b"abc").unwrap();
        assert!(uploads.find(upload.id, "a").is_ok());
        tokio::time::sleep(IDLE / 2).await;
        expired.await.unwrap();
        assert!(uploads.find(upload.id, "a").is_err());
    }

    #[test]
    fn clients_do_not_see_uploads_of_others_and_have_a_share() {
        let (uploads, directory) = (Uploads::default(), tempfile::tempdir().unwrap());
        let upload = begun(&uploads, &directory, "a").unwrap();
        assert!(uploads.find(upload.id, "b").is_err());
        uploads.remove(upload.id, Some("b"));
        assert!(uploads.find(upload.id, "a").is_ok());
        for _ in 1..MAX_OF_CLIENT {
            begun(&uploads, &directory, "a").unwrap();
        }
        assert!(begun(&uploads, &directory, "a").is_err());
        for n in MAX_OF_CLIENT..MAX_UPLOADS {
            begun(&uploads, &directory, &format!("client {}", n / 2)).unwrap();
        }
        assert!(begun(&uploads, &directory, "b").is_err(), "all clients together have no limit");
        let last = MAX_UPLOADS as u64;
        uploads.remove(last, None);
        assert_eq!(begun(&uploads, &directory, "b").unwrap().id, last + 1, "a number is not used again");
    }
    #[tokio::test(start_paused = true)]
    async fn a_new_upload_ends_the_idlest_abandoned_one() {
        let (uploads, directory) = (Uploads::default(), tempfile::tempdir().unwrap());
        let mut of_client = Vec::new();
        for _ in 0..MAX_OF_CLIENT {
            of_client.push(begun(&uploads, &directory, "a").unwrap());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let error = uploads.make_place("a").await.unwrap_err();
        assert!(error.message.contains("forebay upload list"), "{error}");
        uploads.make_place("b").await.unwrap();
        // The first upload has received a byte since, so that the second one is the idlest.
        of_client[0].append(0, b"abc").unwrap();
        let other = begun(&uploads, &directory, "b").unwrap();
        tokio::time::advance(ABANDONED_AFTER).await;
        uploads.make_place("a").await.unwrap();
        let left: Vec<u64> = uploads.list().iter().map(|upload| upload.id).collect();
        assert_eq!(left, [of_client[0].id, of_client[2].id, of_client[3].id, other.id]);
        assert_eq!((uploads.list()[0].received_bytes, &*uploads.list()[0].image), (3, "x"));
        // A client that needs room ends the uploads of all clients, but none that is in use.
        other.append(0, b"abc").unwrap();
        while uploads.end_abandoned(None).await {}
        assert_eq!(uploads.list().len(), 1);
    }
}
