//! Upload of an image file that the server cannot read, in pieces over the control socket; and `forebay
//! upload`, which lists and ends uploads of all clients.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use clap::Subcommand;
use forebay_api::client::{Client, ClientError};
use forebay_api::{CreateUpload, UploadView};
use forebay_host::clock::unix_ms;
use forebay_text::Size;
use hyper::body::Bytes;

use super::CliError;
use super::output::{age, print_result, render, table};
use super::progress::{Progress, Step};

/// Bytes per request: the longest body that the server accepts.
const PIECE: u64 = 1 << 20;
/// Attempts to send a piece, and the delay between them.
const ATTEMPTS: u32 = 10;
const DELAY: Duration = Duration::from_millis(500);

/// `forebay upload …`
#[derive(Debug, Subcommand)]
pub enum UploadCommand {
    /// List the uploads of all clients: image files that are sent to be imported
    #[command(alias = "ls")]
    List,
    /// End uploads, and discard what was received
    #[command(aliases = ["delete", "remove", "del"])]
    Rm {
        /// Numbers of the uploads
        #[arg(value_name = "ID", required = true)]
        ids: Vec<u64>,
    },
}

/// Runs `forebay upload`.
pub(super) async fn run(client: &Client, command: UploadCommand, json: bool) -> Result<(), CliError> {
    match command {
        UploadCommand::List => {
            let uploads: Vec<UploadView> = client.get(&["uploads"]).await?;
            print_result(&uploads, json, |uploads| list(uploads))
        }
        UploadCommand::Rm { ids } => {
            for id in &ids {
                client.delete::<serde_json::Value>(&["uploads", &id.to_string()]).await?;
            }
            print_result(&ids, json, |ids| match ids.as_slice() {
                [id] => format!("ended upload {id}"),
                many => format!("ended {} uploads", many.len()),
            })
        }
    }
}

fn list(uploads: &[UploadView]) -> String {
    let now = unix_ms();
    let mut rows = table(&["ID", "IMAGE", "FILE", "RECEIVED", "OF", "CLIENT", "LAST BYTE"], &[3, 4]);
    for upload in uploads {
        let (received, len) = (Size(upload.received_bytes).to_string(), Size(upload.len_bytes).to_string());
        let last = format!("{} ago", age(now, upload.last_received_ms));
        let id = upload.id.to_string();
        rows.add_row([&id, &upload.image, &upload.file_name, &received, &len, &upload.client, &last]);
    }
    render(rows)
}

/// A file that this user can read.
pub(super) struct Readable {
    file: File,
    len: u64,
    name: String,
}

impl Readable {
    /// Opens a regular file or a block device; `None` if this user cannot read it either.
    pub fn open(path: &Path) -> Option<Readable> {
        use std::io::{Seek, SeekFrom};
        use std::os::unix::fs::FileTypeExt;
        let kind = std::fs::metadata(path).ok()?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return None;
        }
        let mut file = File::open(path).ok()?;
        // The metadata of a block device has no length.
        let len = file.seek(SeekFrom::End(0)).ok()?;
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some(Readable { file, len, name })
    }

    fn piece(&self, offset: u64) -> Result<Bytes, CliError> {
        let mut piece = vec![0; (self.len - offset).min(PIECE) as usize];
        match self.file.read_exact_at(&mut piece, offset) {
            Ok(()) => Ok(piece.into()),
            Err(e) => {
                Err(CliError::FileName(self.name.clone(), format!("byte {offset} cannot be read: {e}")))
            }
        }
    }
}

/// Uploads a file for the import of `image`. Returns the number of the upload.
pub(super) async fn send(
    client: &Client,
    image: &str,
    from: &Readable,
    progress: &mut Progress,
) -> Result<u64, CliError> {
    let (len_bytes, file_name) = (from.len, from.name.clone());
    let request = CreateUpload { image: image.to_owned(), file_name, len_bytes };
    let upload: UploadView = client.post(&["uploads"], &request).await?;
    let id = upload.id;
    let ended = tokio::select! {
        sent = pieces(client, upload, from, progress) => sent,
        _ = tokio::signal::ctrl_c() => Err(CliError::Interrupted("discards the upload")),
    };
    progress.clear();
    if ended.is_err() {
        discard(client, id).await;
    }
    ended.map(|()| id)
}

/// Ends an upload. The server ends it later if this fails.
pub(super) async fn discard(client: &Client, id: u64) {
    let _ = client.delete::<serde_json::Value>(&["uploads", &id.to_string()]).await;
}

async fn pieces(
    client: &Client,
    mut upload: UploadView,
    from: &Readable,
    progress: &mut Progress,
) -> Result<(), CliError> {
    let id = upload.id.to_string();
    let mut attempts = 0;
    while upload.received_bytes < from.len {
        let (done, total) = (upload.received_bytes, Some(from.len));
        let template =
            "{msg} {bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left";
        progress.show(&Step { template, done, total, message: "uploading" }, || {
            format!("uploading: {} of {}", Size(done), Size(from.len))
        });
        let piece = from.piece(done)?;
        match client.put_bytes(&["uploads", &id, &done.to_string()], piece).await {
            Ok(next) => (upload, attempts) = (next, 0),
            // The connection failed. The server may have received the piece.
            Err(ClientError::Broken(_) | ClientError::Unreachable { .. }) if attempts < ATTEMPTS => {
                attempts += 1;
                tokio::time::sleep(DELAY).await;
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}
