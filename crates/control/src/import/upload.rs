//! Uploads: image files that clients send, in pieces of at most 1 MiB, each with its offset.
//!
//! A piece that was received can be sent again, so a client repeats a request whose response it has not
//! received. The next piece begins where the last one ended. After an interruption, the client requests this
//! offset.
//!
//! **Bounds.** A listener keeps at most [`MAX_UPLOADS`] uploads, [`MAX_OF_CLIENT`] of them of one client.
//! The file is a [`Spool`], so it leaves the same room free as a download, and its length is at most the
//! maximum size of downloads. An upload that receives nothing for [`IDLE`] ends. All end with the process of
//! the server, also by an upgrade. The memory of a request contains one piece, as any other body.

use std::collections::BTreeMap;
use std::sync::Arc;
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

/// Maximum number of uploads of all clients of a listener.
const MAX_UPLOADS: usize = 16;
/// Maximum number of uploads of one client.
const MAX_OF_CLIENT: usize = 4;
/// Time without a new byte after which an upload ends.
const IDLE: Duration = Duration::from_secs(3600);
/// Maximum length of the name of a file, in bytes.
const MAX_FILE_NAME: usize = 255;

/// The uploads of the clients of a listener.
#[derive(Clone, Default)]
pub struct Uploads(Arc<Mutex<All>>);

#[derive(Default)]
struct All {
    uploads: BTreeMap<u64, Arc<Upload>>,
    /// Least number of the next upload. A number is not used again: a late piece must not reach another file.
    next: u64,
}

struct Upload {
    id: u64,
    owner: String,
    file_name: String,
    len: u64,
    /// Locked while a piece is written, on a thread that may wait.
    spool: Mutex<Spool>,
    /// When the last piece arrived.
    used: Mutex<Instant>,
}

impl Upload {
    fn view(&self, received_bytes: u64) -> UploadView {
        UploadView { id: self.id, file_name: self.file_name.clone(), len_bytes: self.len, received_bytes }
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
        }
        Ok(self.view(spool.len()))
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

    /// Ends an upload; does nothing if there is no such upload.
    pub fn remove(&self, id: u64, owner: &str) {
        let removed = {
            let mut all = self.0.lock();
            match all.uploads.get(&id).is_some_and(|upload| upload.owner == owner) {
                true => all.uploads.remove(&id),
                false => None,
            }
        };
        free(removed);
    }

    /// Begins an upload, with a number that no other upload has.
    fn insert(&self, first_id: u64, spool: Spool, owner: &str, request: CreateUpload) -> Result<Arc<Upload>> {
        let mut all = self.0.lock();
        let of_client = all.uploads.values().filter(|upload| upload.owner == owner).count();
        if of_client >= MAX_OF_CLIENT || all.uploads.len() >= MAX_UPLOADS {
            let why = format!(
                "too many uploads: a client has at most {MAX_OF_CLIENT}, and all clients {MAX_UPLOADS}; finish or \
                 delete one, or wait until one expires"
            );
            return Err(ControlError::new(ErrorKind::BadState, why));
        }
        let id = all.next.max(first_id);
        all.next = id + 1;
        let upload = Arc::new(Upload {
            id,
            owner: owner.to_owned(),
            file_name: request.file_name,
            len: request.len_bytes,
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
    owner: &str,
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
    let (data, keep) = (control.info().data.clone(), keep_free(control));
    let work = format!("upload of {}", quoted(name));
    let created = blocking(move || {
        let spool = Spool::create(&data, keep)?;
        match spool.check_room(len) {
            Ok(()) => Ok(spool),
            Err(e) => Err(unpack::not_stored(e, work, &spool)),
        }
    });
    let upload = uploads.insert(unix_ms(), created.await?, owner, request)?;
    tokio::spawn(uploads.clone().expire(upload.id));
    Ok(upload.view(0))
}

/// Returns an upload.
///
/// # Errors
/// The client has no such upload.
pub(crate) async fn show(uploads: &Uploads, owner: &str, id: u64) -> Result<UploadView> {
    let upload = uploads.find(id, owner)?;
    blocking(move || Ok(upload.view(upload.spool.lock().len()))).await.map_err(Into::into)
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
        uploads.insert(1, spool, owner, request)
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
        uploads.remove(upload.id, "b");
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
        uploads.remove(last, &format!("client {}", (MAX_UPLOADS - 1) / 2));
        assert_eq!(begun(&uploads, &directory, "b").unwrap().id, last + 1, "a number is not used again");
    }
}
