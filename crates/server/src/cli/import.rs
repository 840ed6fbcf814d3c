//! `forebay image import`: starts the import and shows how it goes.
//!
//! On a terminal a bar, otherwise a line now and then; both on standard error, so that standard output has the
//! result alone. Ctrl-C hangs up, and the server undoes what it did.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use indicatif::{ProgressBar, ProgressStyle};

use super::client::{Client, ClientError, Lines};
use super::{CliError, output};
use crate::control::DiskView;
use crate::import::{Event, Phase, Request, Source};
use crate::size::Size;

/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Imports an image.
pub(super) async fn run(client: &Client, request: &Request, json: bool) -> Result<(), CliError> {
    let begun = Instant::now();
    let work = async {
        let lines = client.post_lines(&["images"], request).await?;
        follow(lines, Display::new(json)).await
    };
    let (image, written) = tokio::select! {
        done = work => done?,
        _ = tokio::signal::ctrl_c() => return Err(CliError::Interrupted("undoes the import")),
    };
    if json {
        return output::json(&image);
    }
    let (size, written) = (Size(image.size_bytes), Size(written));
    let seconds = begun.elapsed().as_secs_f64();
    output::line(&format!("imported image '{}': {size}, {written} of data, in {seconds:.1} s", image.name))
}

/// What looks like a URL is one; all else is a path, made absolute because the server has another directory.
pub(super) fn source(file: &str) -> Result<Source, CliError> {
    if file.starts_with("http://") || file.starts_with("https://") {
        return Ok(Source::Url(file.to_owned()));
    }
    let absolute = std::path::absolute(file);
    absolute.map(Source::File).map_err(|e| CliError::FileName(file.to_owned(), e.to_string()))
}

/// Reads events to the last; the image, and how many bytes were written.
async fn follow(mut lines: Lines, mut display: Display) -> Result<(DiskView, u64), CliError> {
    let mut written = 0;
    while let Some(event) = lines.next().await? {
        match event {
            Event::Progress { phase, done_bytes, total_bytes, written_bytes } => {
                written = written_bytes;
                display.show(phase, done_bytes, total_bytes);
            }
            Event::Done { image } => {
                display.clear();
                return Ok((image, written));
            }
            Event::Failed { error } => {
                display.clear();
                let status = StatusCode::OK;
                let refused = ClientError::Refused { status, code: error.code, message: error.message };
                return Err(refused.into());
            }
        }
    }
    display.clear();
    Err(ClientError::Broken("it hung up; nothing of the import is left".into()).into())
}

/// Where progress is shown.
enum Display {
    Bar { bar: ProgressBar, phase: Option<Phase> },
    Lines { last: Instant },
    Nothing,
}

impl Display {
    fn new(json: bool) -> Display {
        match (json, std::io::stderr().is_terminal()) {
            (true, _) => Display::Nothing,
            (false, true) => Display::Bar { bar: ProgressBar::no_length(), phase: None },
            (false, false) => Display::Lines { last: Instant::now() },
        }
    }

    fn show(&mut self, phase: Phase, done: u64, total: Option<u64>) {
        let verb = match phase {
            Phase::Download => "downloading",
            Phase::Import => "importing",
        };
        match self {
            Display::Nothing => (),
            Display::Bar { bar, phase: shown } => {
                if *shown != Some(phase) {
                    *shown = Some(phase);
                    bar.set_style(style(total.is_some()));
                    bar.set_message(verb);
                    bar.reset_eta();
                }
                if let Some(total) = total {
                    bar.set_length(total);
                }
                bar.set_position(done);
            }
            Display::Lines { last } if last.elapsed() >= LINE_EVERY => {
                *last = Instant::now();
                match total {
                    Some(total) => eprintln!("{verb}: {} of {}", Size(done), Size(total)),
                    None => eprintln!("{verb}: {}", Size(done)),
                }
            }
            Display::Lines { .. } => (),
        }
    }

    fn clear(&self) {
        if let Display::Bar { bar, .. } = self {
            bar.finish_and_clear();
        }
    }
}

fn style(has_total: bool) -> ProgressStyle {
    let template = if has_total {
        "{msg} {bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} to go"
    } else {
        "{msg} {binary_bytes} {binary_bytes_per_sec}"
    };
    // A template that indicatif does not like is no reason to fail: a plain bar it is then.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
