//! `forebay image import`: starts an import on the server and shows its progress. A file that the server
//! cannot read, but this user can, is uploaded first.
//!
//! Ctrl-C closes the connection, and the server rolls the import back.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Instant;

use forebay_api::ErrorKind;
use forebay_api::client::{Client, ClientError, Lines};
use forebay_api::import::{Event, Imported, Phase, Request, Source};
use forebay_text::{Size, one_line};
use percent_encoding::percent_decode_str;

use super::progress::{Progress, Step};
use super::upload::{self, Readable};
use super::{CliError, output};

/// Runs `forebay image import`.
pub(super) async fn run(client: &Client, request: &Request, json: bool) -> Result<(), CliError> {
    let begun = Instant::now();
    let (imported, written) = match import(client, request, json).await {
        Err(CliError::Client(e)) if e.code() == Some(ErrorKind::SourceUnreadable.code()) => {
            let Source::File(path) = &request.source else { return Err(e.into()) };
            let Some(file) = Readable::open(path) else { return Err(e.into()) };
            if !json {
                eprintln!("forebay: {}", one_line(&format!("{e}; this user can read it: uploading it")));
            }
            let id = upload::send(client, &request.name, &file, &mut Progress::new(json)).await?;
            let request = Request { source: Source::Upload(id), ..request.clone() };
            let imported = import(client, &request, json).await;
            if imported.is_err() {
                upload::discard(client, id).await;
            }
            imported?
        }
        imported => imported?,
    };
    if json {
        return output::json(&imported);
    }
    let Imported { image, format } = imported;
    let (size, written) = (Size(image.size_bytes), Size(written));
    let seconds = begun.elapsed().as_secs_f64();
    let name = &image.name;
    output::line(&format!("imported image '{name}' ({format}): {size}, {written} of data, in {seconds:.1} s"))
}

/// Imports from a source that the server can read, and shows the progress.
async fn import(client: &Client, request: &Request, json: bool) -> Result<(Imported, u64), CliError> {
    let work = async {
        let lines = client.post_lines(&["images"], request).await?;
        follow(lines, Progress::new(json)).await
    };
    tokio::select! {
        done = work => done,
        _ = tokio::signal::ctrl_c() => Err(CliError::Interrupted("rolls the import back")),
    }
}

/// Parses the source: a URL, whose scheme may be in any letter case; otherwise a path, which is made absolute
/// because the server's working directory differs. The server refuses the schemes that it does not support.
pub(super) fn source(file: &str) -> Result<Source, CliError> {
    let (scheme, rest) = file.split_once(':').unwrap_or_default();
    if scheme.eq_ignore_ascii_case("file") && rest.starts_with('/') {
        return local(rest).map(Source::File).ok_or_else(|| {
            CliError::FileName(file.to_owned(), "a file:// URL names no other host than localhost".into())
        });
    }
    let is_scheme = |b: u8| b.is_ascii_alphanumeric() || b"+-.".contains(&b);
    if rest.starts_with("//") && !scheme.is_empty() && scheme.bytes().all(is_scheme) {
        return Ok(Source::Url(file.to_owned()));
    }
    let absolute = std::path::absolute(file);
    absolute.map(Source::File).map_err(|e| CliError::FileName(file.to_owned(), e.to_string()))
}

/// Returns the path of a `file:` URL (RFC 8089) without its scheme; `None` if it names another host.
fn local(rest: &str) -> Option<PathBuf> {
    let path = match rest.strip_prefix("//") {
        Some(rest) => {
            let (host, path) = rest.split_at(rest.find('/')?);
            (host.is_empty() || host.eq_ignore_ascii_case("localhost")).then_some(path)?
        }
        None => rest,
    };
    Some(OsString::from_vec(percent_decode_str(path).collect()).into())
}

/// Reads events up to the last one and shows progress. Returns the image and the number of bytes written.
async fn follow(mut lines: Lines, mut progress: Progress) -> Result<(Imported, u64), CliError> {
    let mut written = 0;
    while let Some(event) = lines.next().await? {
        match event {
            Event::Progress { phase, done_bytes, total_bytes, written_bytes } => {
                written = written_bytes;
                show(&mut progress, phase, done_bytes, total_bytes);
            }
            Event::Done { image, format } => {
                progress.clear();
                return Ok((Imported { image, format }, written));
            }
            Event::Failed { error } => {
                progress.clear();
                return Err(ClientError::from(error).into());
            }
        }
    }
    progress.clear();
    Err(ClientError::Broken("connection closed; the import was rolled back".into()).into())
}

fn show(progress: &mut Progress, phase: Phase, done: u64, total: Option<u64>) {
    let message = match phase {
        Phase::Download if done == 0 => "waiting for the server of the URL",
        Phase::Download => "downloading",
        Phase::Wait => "waiting for another import to decompress",
        Phase::Unpack => "decompressing",
        Phase::Verify => "verifying",
        Phase::Import => "importing",
    };
    let template = match total {
        Some(_) => "{msg} {bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left",
        None => "{msg} {binary_bytes} {binary_bytes_per_sec}",
    };
    progress.show(&Step { template, done, total, message }, || match total {
        Some(total) => format!("{message}: {} of {}", Size(done), Size(total)),
        None => format!("{message}: {}", Size(done)),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_any_scheme_and_paths_are_told_apart() {
        let path = |text: &str| match source(text) {
            Ok(Source::File(path)) => Some(path),
            _ => None,
        };
        for text in ["http://h/x", "HTTPS://h/x", "Ftp://h/x", "s3://bucket/x"] {
            assert_eq!(source(text).unwrap(), Source::Url(text.to_owned()));
        }
        assert_eq!(path("file:///srv/a%20b.img"), Some("/srv/a b.img".into()));
        assert_eq!(path("FILE://localhost/srv/a"), Some("/srv/a".into()));
        assert_eq!(path("file:/srv/a"), Some("/srv/a".into()));
        assert!(source("file://elsewhere/srv/a").is_err() && source("file://elsewhere").is_err());
        for relative in ["disk.img", "c:disk.img", "a b://c"] {
            assert_eq!(path(relative), std::path::absolute(relative).ok(), "{relative}");
        }
    }
}
