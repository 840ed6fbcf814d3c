//! `forebay gc`: has the server reclaim space, and shows how that goes.
//!
//! On a terminal a bar, otherwise a line now and then; both on standard error. Ctrl-C ends the command and not
//! the work: the server goes on with it.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::client::{Client, ClientError, Lines};
use super::{CliError, output};
use crate::control::{GcEvent, GcPhaseView, Reclaimed};
use crate::size::Size;

/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Reclaims space.
pub(super) async fn run(client: &Client, json: bool) -> Result<(), CliError> {
    let begun = Instant::now();
    let work = async {
        let lines = client.post_lines(&["pool", "gc"], &json!({})).await?;
        follow(lines, Display::new(json)).await
    };
    let done = tokio::select! {
        done = work => done?,
        _ = tokio::signal::ctrl_c() => return Err(CliError::Interrupted("goes on reclaiming space")),
    };
    if json { output::json(&done) } else { output::line(&summary(done, begun.elapsed())) }
}

fn summary(r: Reclaimed, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    match r.moved_bytes {
        0 => format!("freed {} in {seconds:.1} s", Size(r.freed_bytes)),
        moved => format!("freed {} in {seconds:.1} s, by moving {}", Size(r.freed_bytes), Size(moved)),
    }
}

/// Reads events to the last.
async fn follow(mut lines: Lines, mut display: Display) -> Result<Reclaimed, CliError> {
    let last = loop {
        match lines.next().await {
            Ok(Some(GcEvent::Progress { phase, done, total, so_far })) => {
                display.show(phase, done, total, so_far);
            }
            Ok(Some(GcEvent::Done(done))) => break Ok(done),
            Ok(Some(GcEvent::Failed { error })) => {
                let status = StatusCode::OK;
                break Err(ClientError::Refused { status, code: error.code, message: error.message });
            }
            Ok(None) => break Err(ClientError::Broken("it hung up; run 'forebay gc' again".into())),
            Err(e) => break Err(e),
        }
    };
    display.clear();
    Ok(last?)
}

/// Where progress is shown.
enum Display {
    Bar(ProgressBar),
    Lines { last: Instant },
    Nothing,
}

impl Display {
    fn new(json: bool) -> Display {
        match (json, std::io::stderr().is_terminal()) {
            (true, _) => Display::Nothing,
            (false, true) => Display::Bar(bar()),
            (false, false) => Display::Lines { last: Instant::now() },
        }
    }

    fn show(&mut self, phase: GcPhaseView, done: u64, total: u64, so_far: Reclaimed) {
        let (verb, steps) = match phase {
            GcPhaseView::Mark => ("finding what is needed", "disks"),
            GcPhaseView::Clean | GcPhaseView::Done => ("cleaning", "segments"),
        };
        let freed = Size(so_far.freed_bytes);
        match self {
            Display::Nothing => (),
            Display::Bar(bar) => {
                bar.set_length(total);
                bar.set_position(done);
                bar.set_message(format!("{verb}, {freed} freed"));
            }
            Display::Lines { last } if last.elapsed() >= LINE_EVERY => {
                *last = Instant::now();
                eprintln!("{verb}: {done} of {total} {steps}, {freed} freed");
            }
            Display::Lines { .. } => (),
        }
    }

    fn clear(&self) {
        if let Display::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::no_length();
    // A template that indicatif does not like is no reason to fail: a plain bar it is then.
    match ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_says_what_it_cost() {
        let took = Duration::from_millis(1500);
        let freed = Reclaimed { freed_bytes: 1 << 30, moved_bytes: 0 };
        assert_eq!(summary(freed, took), "freed 1 GiB in 1.5 s");
        let moved = Reclaimed { moved_bytes: 1 << 20, ..freed };
        assert_eq!(summary(moved, took), "freed 1 GiB in 1.5 s, by moving 1 MiB");
    }
}
