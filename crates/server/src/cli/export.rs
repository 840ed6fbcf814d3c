//! `forebay volume export`, `forebay image export`: writes a disk to a file or to standard output.
//!
//! A file appears under its name when it is complete and durable. Until then it has another name in the same
//! directory, and is removed after a failure. A raw disk is received as its extents, so that holes are
//! neither sent nor written.

use std::fs::{self, File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::builder::NonEmptyStringValueParser as Name;
use clap::{Args, ValueEnum};
use forebay_api::client::{Client, ClientError, path};
use forebay_api::export::{ExtentHeader, Format, JOB_HEADER, SIZE_HEADER};
use forebay_api::{ErrorDetail, ErrorKind, JobState, JobView};
use forebay_text::Size;
use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Response, header};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use super::progress::{Progress, Step};
use super::{CliError, output};

/// The name of standard output.
const STDOUT: &str = "-";
/// Pieces that were received and not written yet.
const IN_FLIGHT: usize = 4;
/// Zeroes that are written at once to what cannot have holes.
const ZEROES: usize = 1 << 20;

/// Options of `volume export` and `image export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Path of the new file, or - for standard output
    #[arg(value_name = "FILE|-", value_parser = Name::new())]
    pub file: String,
    /// Format of the file [default: qcow2 if its name ends with .qcow2, otherwise raw]
    #[arg(long, value_enum)]
    pub format: Option<FileFormat>,
    /// Replace an existing file, or overwrite a block device
    #[arg(long)]
    pub force: bool,
}

/// The format of an exported file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileFormat {
    /// The bytes of the disk; holes and zeroes do not occupy space in the file
    Raw,
    /// QEMU, version 3, without unallocated clusters
    Qcow2,
}

impl ExportArgs {
    fn format(&self) -> FileFormat {
        let is_qcow2 = self.file.to_ascii_lowercase().ends_with(".qcow2");
        self.format.unwrap_or(if is_qcow2 { FileFormat::Qcow2 } else { FileFormat::Raw })
    }
}

/// What was exported.
#[derive(Debug, Serialize)]
struct Done<'a> {
    disk: &'a str,
    file: &'a str,
    format: FileFormat,
    size_bytes: u64,
    /// Bytes that were received: without holes.
    received_bytes: u64,
}

/// Runs the command for a volume, an image, or `VOLUME@SNAPSHOT`.
pub(super) async fn run(client: &Client, disk: &str, args: &ExportArgs, json: bool) -> Result<(), CliError> {
    let (begun, format) = (Instant::now(), args.format());
    let mut target = Target::open(args)?;
    let mut progress = Progress::new(json);
    let ended = tokio::select! {
        ended = receive(client, disk, format, &mut target, &mut progress) => ended,
        _ = tokio::signal::ctrl_c() => Err(CliError::Interrupted("ends the export")),
    };
    progress.clear();
    let (size_bytes, received_bytes) = ended?;
    target.complete().await?;
    let done = Done { disk, file: &args.file, format, size_bytes, received_bytes };
    // Standard output has the disk.
    if args.file == STDOUT {
        return Ok(());
    }
    output::print_result(&done, json, |done| {
        let (size, received) = (Size(done.size_bytes), Size(done.received_bytes));
        let seconds = begun.elapsed().as_secs_f64();
        let name = match done.format {
            FileFormat::Raw => "raw",
            FileFormat::Qcow2 => "qcow2",
        };
        format!("exported '{disk}' ({name}): {size}, {received} received, in {seconds:.1} s")
    })
}

/// Receives a disk. Returns its size, and the number of bytes that were received.
async fn receive(
    client: &Client,
    disk: &str,
    format: FileFormat,
    target: &mut Target,
    progress: &mut Progress,
) -> Result<(u64, u64), CliError> {
    let wire = match format {
        FileFormat::Raw => Format::Extents,
        FileFormat::Qcow2 => Format::Qcow2,
    };
    let path = format!("{}?format={}", path(&["volumes", disk, "export"]), wire.name());
    let response = client.send(Method::GET, path, None::<&()>).await?;
    let number = |name: &str| response.headers().get(name)?.to_str().ok()?.parse::<u64>().ok();
    let (job, size, len) = (number(JOB_HEADER), number(SIZE_HEADER), number(header::CONTENT_LENGTH.as_str()));
    let size = size.ok_or_else(|| ClientError::Foreign("the size of the disk is missing".into()))?;
    let mut pieces = Pieces::new(response);
    let received = match format {
        FileFormat::Raw => receive_extents(&mut pieces, size, target, progress).await,
        FileFormat::Qcow2 => receive_file(&mut pieces, len, target, progress).await,
    };
    match received {
        Ok(()) => Ok((size, pieces.received)),
        // The server closes the connection when an export fails; its job has the reason.
        Err(CliError::Client(e @ ClientError::Broken(_))) => {
            Err(reason(client, job).await.unwrap_or(e).into())
        }
        Err(e) => Err(e),
    }
}

/// The error of a job that has failed or was cancelled.
pub(super) async fn reason(client: &Client, job: Option<u64>) -> Option<ClientError> {
    let job: JobView = client.get(&["jobs", &job?.to_string()]).await.ok()?;
    if job.state == JobState::Cancelled {
        let (code, message) = (ErrorKind::Cancelled.code().to_owned(), "the export was cancelled".to_owned());
        return Some(ErrorDetail { code, message }.into());
    }
    job.error.map(ClientError::from)
}

async fn receive_file(
    pieces: &mut Pieces,
    len: Option<u64>,
    target: &mut Target,
    progress: &mut Progress,
) -> Result<(), CliError> {
    while let Some(piece) = pieces.next().await? {
        target.append(piece).await?;
        show(progress, pieces.received, len.unwrap_or(pieces.received));
    }
    Ok(())
}

async fn receive_extents(
    pieces: &mut Pieces,
    size: u64,
    target: &mut Target,
    progress: &mut Progress,
) -> Result<(), CliError> {
    let mut at = 0;
    loop {
        let ExtentHeader { offset, len } = pieces.header().await?;
        let is_valid = offset >= at && len <= ExtentHeader::MAX_DATA && offset.saturating_add(len) <= size;
        if !is_valid || (len == 0 && offset != size) {
            return Err(ClientError::Foreign("the extents are not in order".into()).into());
        }
        target.skip(offset - at).await?;
        if len == 0 {
            return Ok(());
        }
        let mut left = len;
        while left > 0 {
            let piece = pieces.up_to(left).await?;
            left -= piece.len() as u64;
            target.append(piece).await?;
        }
        at = offset + len;
        show(progress, at, size);
    }
}

fn show(progress: &mut Progress, done: u64, total: u64) {
    let template = "{msg} {bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left";
    progress.show(&Step { template, done, total: Some(total), message: "exporting" }, || {
        format!("exporting: {} of {}", Size(done), Size(total))
    });
}

/// The bytes of a response.
struct Pieces {
    body: Incoming,
    buffer: Bytes,
    received: u64,
}

impl Pieces {
    fn new(response: Response<Incoming>) -> Pieces {
        Pieces { body: response.into_body(), buffer: Bytes::new(), received: 0 }
    }

    /// The next bytes; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, CliError> {
        while self.buffer.is_empty() {
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            let frame = frame.map_err(|e| ClientError::Broken(e.to_string()))?;
            self.buffer = frame.into_data().unwrap_or_default();
            self.received += self.buffer.len() as u64;
        }
        Ok(Some(std::mem::take(&mut self.buffer)))
    }

    /// At least one of the next bytes, and at most `most`.
    async fn up_to(&mut self, most: u64) -> Result<Bytes, CliError> {
        let broken = || ClientError::Broken("the connection was closed before the end of the disk".into());
        let mut piece = self.next().await?.ok_or_else(broken)?;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        if piece.len() > most {
            self.buffer = piece.split_off(most);
        }
        Ok(piece)
    }

    async fn header(&mut self) -> Result<ExtentHeader, CliError> {
        let mut bytes = [0; ExtentHeader::LEN];
        let mut at = 0;
        while at < bytes.len() {
            let piece = self.up_to((bytes.len() - at) as u64).await?;
            bytes[at..at + piece.len()].copy_from_slice(&piece);
            at += piece.len();
        }
        Ok(ExtentHeader::decode(&bytes))
    }
}

/// Where a disk is written, from its beginning to its end.
#[derive(Debug)]
enum Target {
    /// A new file, which gets its name when it is complete.
    File(NewFile),
    /// Standard output, a device or a pipe, which have no holes.
    Stream(Stream),
}

impl Target {
    /// Opens the target. Nothing that exists is changed.
    fn open(args: &ExportArgs) -> Result<Target, CliError> {
        let failed = |e: std::io::Error| CliError::FileName(args.file.clone(), e.to_string());
        let refused = |why: &str| Err(CliError::FileName(args.file.clone(), why.to_owned()));
        if args.file == STDOUT {
            if std::io::stdout().is_terminal() {
                return refused("standard output is a terminal; redirect it to a file or a program");
            }
            let out = std::io::stdout().as_fd().try_clone_to_owned().map_err(CliError::Output)?;
            return Stream::begin(out.into(), args.file.clone()).map(Target::Stream);
        }
        let kind = match fs::metadata(&args.file) {
            Ok(metadata) => metadata.file_type(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return NewFile::create(Path::new(&args.file), false).map(Target::File).map_err(failed);
            }
            Err(e) => return Err(failed(e)),
        };
        let keeps_data = kind.is_file() || kind.is_block_device();
        if keeps_data && !args.force {
            return Err(CliError::FileExists(args.file.clone()));
        }
        if kind.is_dir() {
            return refused("it is a directory");
        }
        if kind.is_file() {
            // A symbolic link remains, and the file to which it leads is replaced.
            let path = fs::canonicalize(&args.file).map_err(failed)?;
            return NewFile::create(&path, true).map(Target::File).map_err(failed);
        }
        let device = OpenOptions::new().write(true).open(&args.file).map_err(failed)?;
        Stream::begin(device, args.file.clone()).map(Target::Stream)
    }

    /// Writes the next bytes.
    async fn append(&mut self, bytes: Bytes) -> Result<(), CliError> {
        match self {
            Target::File(file) => file.append(&bytes),
            Target::Stream(stream) => stream.append(bytes).await,
        }
    }

    /// Leaves a hole, or writes zeroes where holes are impossible.
    async fn skip(&mut self, mut len: u64) -> Result<(), CliError> {
        let stream = match self {
            Target::File(file) => {
                file.len += len;
                return Ok(());
            }
            Target::Stream(stream) => stream,
        };
        let zeroes = Bytes::from(vec![0; ZEROES.min(usize::try_from(len).unwrap_or(ZEROES))]);
        while len > 0 {
            let piece = zeroes.slice(..zeroes.len().min(usize::try_from(len).unwrap_or(ZEROES)));
            len -= piece.len() as u64;
            stream.append(piece).await?;
        }
        Ok(())
    }

    /// Makes the contents durable, and gives the file its name.
    async fn complete(self) -> Result<(), CliError> {
        match self {
            Target::File(file) => file.complete(),
            Target::Stream(stream) => stream.complete().await,
        }
    }
}

/// A thread that writes to standard output, a device or a pipe. A write may wait for the reader of a pipe for
/// any time; the thread does not keep the process from ending.
#[derive(Debug)]
pub(super) struct Stream {
    pieces: mpsc::Sender<Bytes>,
    written: oneshot::Receiver<std::io::Result<()>>,
    /// Name of the file, for messages. If the reader of standard output ends early, the export has failed.
    name: String,
}

impl Stream {
    pub(super) fn begin(mut file: File, name: String) -> Result<Stream, CliError> {
        let (pieces, mut received) = mpsc::channel::<Bytes>(IN_FLIGHT);
        let (ended, written) = oneshot::channel();
        let write = move || {
            let mut write_all = || {
                while let Some(piece) = received.blocking_recv() {
                    file.write_all(&piece)?;
                }
                match file.sync_all() {
                    // A pipe cannot be synced.
                    Err(e) if e.raw_os_error() != Some(libc::EINVAL) => Err(e),
                    _ => Ok(()),
                }
            };
            let done = write_all();
            // The receiver of the pieces must not end before the error is known.
            let _ = ended.send(done);
            drop(received);
        };
        std::thread::Builder::new().name("export".into()).spawn(write).map_err(CliError::System)?;
        Ok(Stream { pieces, written, name })
    }

    pub(super) async fn append(&mut self, bytes: Bytes) -> Result<(), CliError> {
        match self.pieces.send(bytes).await {
            Ok(()) => Ok(()),
            Err(_) => self.ended().await,
        }
    }

    pub(super) async fn complete(mut self) -> Result<(), CliError> {
        // Without a sender, the thread ends after the last piece.
        self.pieces = mpsc::channel(1).0;
        self.ended().await
    }

    /// Waits for the end of the thread.
    async fn ended(&mut self) -> Result<(), CliError> {
        let panicked = || Err(std::io::Error::other("the thread that writes has ended"));
        let written = (&mut self.written).await.unwrap_or_else(|_| panicked());
        written.map_err(|e| CliError::FileName(self.name.clone(), e.to_string()))
    }
}

/// A file that is removed unless it is completed.
#[derive(Debug)]
struct NewFile {
    file: File,
    path: PathBuf,
    /// The name until the file is complete.
    temporary: Option<PathBuf>,
    /// A file with this name is replaced.
    replaces: bool,
    len: u64,
}

impl NewFile {
    fn create(path: &Path, replaces: bool) -> std::io::Result<NewFile> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".part-{}", std::process::id()));
        let temporary = PathBuf::from(temporary);
        // The file has all data of a guest, so other users cannot read it.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        Ok(NewFile { file, path: path.to_owned(), temporary: Some(temporary), replaces, len: 0 })
    }

    fn failed(&self, e: &std::io::Error) -> CliError {
        CliError::FileName(self.path.display().to_string(), e.to_string())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.file.write_all_at(bytes, self.len).map_err(|e| self.failed(&e))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn complete(mut self) -> Result<(), CliError> {
        // The disk may end with a hole.
        let durable = self.file.set_len(self.len).and_then(|()| self.file.sync_all());
        durable.map_err(|e| self.failed(&e))?;
        if !self.replaces && fs::symlink_metadata(&self.path).is_ok() {
            return Err(CliError::FileExists(self.path.display().to_string()));
        }
        if let Some(temporary) = &self.temporary {
            fs::rename(temporary, &self.path).map_err(|e| self.failed(&e))?;
            self.temporary = None;
        }
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        // The name is durable, too; some file systems cannot sync a directory.
        let _ = File::open(directory.unwrap_or(Path::new("."))).and_then(|directory| directory.sync_all());
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = fs::remove_file(temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use super::*;

    fn args(file: &Path, force: bool) -> ExportArgs {
        ExportArgs { file: file.display().to_string(), format: None, force }
    }

    #[test]
    fn the_name_of_a_file_determines_its_format() {
        for (name, format, expected) in [
            ("disk.QCOW2", None, FileFormat::Qcow2),
            ("disk.raw", None, FileFormat::Raw),
            ("-", None, FileFormat::Raw),
            ("-", Some(FileFormat::Qcow2), FileFormat::Qcow2),
            ("disk.qcow2", Some(FileFormat::Raw), FileFormat::Raw),
        ] {
            let args = ExportArgs { file: name.into(), format, force: false };
            assert_eq!(args.format(), expected, "{name}");
        }
    }

    #[tokio::test]
    async fn a_file_appears_when_it_is_complete_and_replaces_another_only_on_request() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let names = || fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
        let write = async |force: bool| {
            let mut target = Target::open(&args(&path, force))?;
            target.skip(4096).await?;
            target.append(Bytes::from_static(b"data")).await?;
            target.skip(4096).await?;
            Ok::<_, CliError>(target)
        };
        drop(write(false).await.unwrap());
        assert!(names().is_empty(), "the file of a failed export remains");
        let (first, second) = (write(false).await.unwrap(), write(false).await.unwrap_err());
        assert!(matches!(second, CliError::FileName(..)), "the temporary name is taken: {second}");
        assert_eq!(names().len(), 1);
        fs::write(&path, "other").unwrap();
        assert!(matches!(first.complete().await, Err(CliError::FileExists(_))));
        assert!(matches!(write(false).await, Err(CliError::FileExists(_))));
        assert_eq!((fs::read(&path).unwrap(), names().len()), (b"other".to_vec(), 1));
        write(true).await.unwrap().complete().await.unwrap();
        let written = fs::read(&path).unwrap();
        assert_eq!((written.len(), &written[4096..4100], names().len()), (8196, &b"data"[..], 1));
    }

    #[tokio::test]
    async fn a_stream_gets_zeroes_in_place_of_holes() {
        let mut written = tempfile::tempfile().unwrap();
        let mut target = Target::Stream(Stream::begin(written.try_clone().unwrap(), STDOUT.into()).unwrap());
        target.skip(3 << 20).await.unwrap();
        target.append(Bytes::from_static(b"data")).await.unwrap();
        target.complete().await.unwrap();
        let mut found = Vec::new();
        written.rewind().unwrap();
        written.read_to_end(&mut found).unwrap();
        assert!(found.len() == (3 << 20) + 4 && found.ends_with(b"\0\0data"));

        let target = Target::open(&args(Path::new("/dev/null"), false)).unwrap();
        assert!(matches!(target, Target::Stream(_)));
        target.complete().await.unwrap();
        let mut full = Target::open(&args(Path::new("/dev/full"), false)).unwrap();
        full.append(Bytes::from_static(b"data")).await.unwrap();
        let error = full.complete().await.unwrap_err().to_string();
        assert!(error.contains("/dev/full") && error.contains("No space"), "{error}");
        let directory = Target::open(&args(Path::new("/"), true)).map(drop).unwrap_err();
        assert!(directory.to_string().contains("directory"), "{directory}");
    }
}
