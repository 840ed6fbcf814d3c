//! `/files`: the files that are served over NFS.

use std::sync::Arc;

use forebay_api::{CloneFile, ErrorKind, FileKind, FileView, FilesView};
use forebay_files::{Attributes, Caller as User, Error, FileId, Files, Kind};
use forebay_text::quoted;

use super::{create, run};
use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::{Body, Param};
use crate::http::route::Route;
use crate::operations::{Change, Changes, Control, ControlError, Disks, Operation, Reply, Result};

/// Maximum number of entries of a page.
const PAGE: usize = 1000;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/files/{path}/entries/{after}",
            "List a directory that is served over NFS, from a position on (0: from the beginning)",
            Right::ReadServer,
            |c: Caller, Param((path, after))| run(c, ListFiles { path, after }),
        )
        .returns::<FilesView>(),
        Route::post(
            "/files",
            "Clone a file that is served over NFS; the clone shares all data with it",
            Right::Administer,
            |c: Caller, Body(b): Body<CloneFile>| create(c, CloneOf(b)),
        )
        .takes::<CloneFile>()
        .returns::<FileView>(),
    ]
}

impl Reply for FilesView {}
impl Reply for FileView {}

fn files(control: &Control) -> Result<&Arc<Files>> {
    let why = "this server does not serve files; start it with --nfs HOST:PORT";
    control.files().ok_or_else(|| ControlError::new(ErrorKind::BadState, why))
}

fn failed(path: &str, error: Error) -> ControlError {
    let kind = match error {
        Error::Engine(error) => return error.into(),
        Error::NoEntry | Error::Stale => ErrorKind::NotFound,
        Error::Exists => ErrorKind::Exists,
        Error::NotDirectory | Error::IsDirectory => ErrorKind::WrongKind,
        Error::TooManyFiles => ErrorKind::Full,
        Error::Damaged(_) => ErrorKind::Damaged,
        _ => ErrorKind::BadRequest,
    };
    ControlError::new(kind, format!("{}: {error}", quoted(path)))
}

/// The object of a path.
fn find(files: &Files, path: &str) -> Result<FileId> {
    let mut at = files.root();
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let found = files.look_up(at, name.as_bytes(), &User::root());
        at = found.map_err(|error| failed(path, error))?.id;
    }
    Ok(at)
}

fn view(name: &[u8], of: &Attributes) -> FileView {
    FileView {
        name: String::from_utf8_lossy(name).into_owned(),
        kind: match of.kind {
            Kind::File => FileKind::File,
            Kind::Directory => FileKind::Directory,
            Kind::Symlink => FileKind::Link,
        },
        size: of.size,
        mode: of.mode,
        uid: of.uid,
        gid: of.gid,
        links: of.links,
        modified_ms: of.modified / 1_000_000,
    }
}

struct ListFiles {
    path: String,
    after: String,
}

impl Operation for ListFiles {
    type Reply = FilesView;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |_| Vec::new();

    async fn execute(&self, control: &Control, _: &str) -> Result<FilesView> {
        let files = files(control)?;
        let not_a_number = |_| ControlError::bad_request("the position of a listing is a number");
        let after: u64 = self.after.parse().map_err(not_a_number)?;
        let dir = find(files, &self.path)?;
        // The entries of the directory itself and its parent are left out.
        let page = files.list(dir, after.max(2), PAGE, &User::root());
        let page = page.map_err(|error| failed(&self.path, error))?;
        let next = page.entries.last().filter(|_| !page.is_last).map(|entry| entry.cookie);
        let entries = page.entries.iter().map(|entry| view(&entry.name, &entry.attributes)).collect();
        Ok(FilesView { entries, next })
    }
}

struct CloneOf(CloneFile);

impl Operation for CloneOf {
    type Reply = FileView;
    const CHANGE: Changes<Self> = Some(|op| {
        let object = format_args!("file {} to {}", quoted(&op.0.from), quoted(&op.0.to));
        Change::new("clone", "cloned", object)
    });
    const DISKS: Disks<Self> = |_| Vec::new();

    async fn execute(&self, control: &Control, _: &str) -> Result<FileView> {
        let (files, CloneFile { from, to }) = (files(control)?, &self.0);
        let (dir, name) = to.rsplit_once('/').unwrap_or(("", to));
        let (source, dir) = (find(files, from)?, find(files, dir)?);
        let made = files.clone_file(source, dir, name.as_bytes(), &User::root()).await;
        Ok(view(name.as_bytes(), &made.map_err(|error| failed(to, error))?.object))
    }
}
