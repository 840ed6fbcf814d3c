//! `forebay image import`: starts an import on the server and shows its progress.
//!
//! Ctrl-C closes the connection, and the server rolls the import back.

use std::time::Instant;

use super::client::{Client, ClientError, Lines};
use super::progress::{Progress, Step};
use super::{CliError, output};
use crate::control::DiskView;
use crate::import::{Event, Phase, Request, Source};
use crate::size::Size;

/// Runs `forebay image import`.
pub(super) async fn run(client: &Client, request: &Request, json: bool) -> Result<(), CliError> {
    let begun = Instant::now();
    let work = async {
        let lines = client.post_lines(&["images"], request).await?;
        follow(lines, Progress::new(json)).await
    };
    let (image, written) = tokio::select! {
        done = work => done?,
        _ = tokio::signal::ctrl_c() => return Err(CliError::Interrupted("rolls the import back")),
    };
    if json {
        return output::json(&image);
    }
    let (size, written) = (Size(image.size_bytes), Size(written));
    let seconds = begun.elapsed().as_secs_f64();
    output::line(&format!("imported image '{}': {size}, {written} of data, in {seconds:.1} s", image.name))
}

/// Parses the source: an `http://` or `https://` URL, otherwise a path, which is made absolute because the
/// server's working directory differs.
pub(super) fn source(file: &str) -> Result<Source, CliError> {
    if file.starts_with("http://") || file.starts_with("https://") {
        return Ok(Source::Url(file.to_owned()));
    }
    let absolute = std::path::absolute(file);
    absolute.map(Source::File).map_err(|e| CliError::FileName(file.to_owned(), e.to_string()))
}

/// Reads events up to the last one and shows progress. Returns the image and the number of bytes written.
async fn follow(mut lines: Lines, mut progress: Progress) -> Result<(DiskView, u64), CliError> {
    let mut written = 0;
    while let Some(event) = lines.next().await? {
        match event {
            Event::Progress { phase, done_bytes, total_bytes, written_bytes } => {
                written = written_bytes;
                show(&mut progress, phase, done_bytes, total_bytes);
            }
            Event::Done { image } => {
                progress.clear();
                return Ok((image, written));
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
        Phase::Download => "downloading",
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
