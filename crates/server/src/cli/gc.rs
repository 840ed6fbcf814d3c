//! `forebay gc`: starts a reclaim on the server and shows its progress.
//!
//! Ctrl-C ends the command only: the server continues the reclaim.

use std::time::{Duration, Instant};

use forebay_api::client::{Client, ClientError, Lines};
use forebay_api::{GcEvent, GcPhaseView, Reclaimed};
use forebay_text::Size;
use serde_json::json;

use super::progress::{Progress, Step};
use super::{CliError, output};

/// Runs `forebay gc`.
pub(super) async fn run(client: &Client, json: bool) -> Result<(), CliError> {
    let begun = Instant::now();
    let work = async {
        let lines = client.post_lines(&["pool", "gc"], &json!({})).await?;
        follow(lines, Progress::new(json)).await
    };
    let done = tokio::select! {
        done = work => done?,
        _ = tokio::signal::ctrl_c() => return Err(CliError::Interrupted("continues to reclaim space")),
    };
    if json { output::json(&done) } else { output::line(&summary(done, begun.elapsed())) }
}

fn summary(r: Reclaimed, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    match r.moved_bytes {
        0 => format!("freed {} in {seconds:.1} s", Size(r.freed_bytes)),
        moved => format!("freed {} in {seconds:.1} s, moved {}", Size(r.freed_bytes), Size(moved)),
    }
}

/// Reads events up to the last one and shows progress.
async fn follow(mut lines: Lines, mut progress: Progress) -> Result<Reclaimed, CliError> {
    let last = loop {
        match lines.next().await {
            Ok(Some(GcEvent::Progress { phase, done, total, so_far })) => {
                show(&mut progress, phase, done, total, so_far);
            }
            Ok(Some(GcEvent::Done(done))) => break Ok(done),
            Ok(Some(GcEvent::Failed { error })) => break Err(error.into()),
            Ok(None) => {
                break Err(ClientError::Broken("connection closed; run 'forebay gc' again".into()));
            }
            Err(e) => break Err(e),
        }
    };
    progress.clear();
    Ok(last?)
}

fn show(progress: &mut Progress, phase: GcPhaseView, done: u64, total: u64, so_far: Reclaimed) {
    let freed = Size(so_far.freed_bytes);
    let (template, total, message) = match phase {
        // The number of nodes to be read is unknown.
        GcPhaseView::Mark => ("{spinner} {pos} {msg}", None, "map nodes read".to_owned()),
        GcPhaseView::Clean | GcPhaseView::Done => {
            ("{bar:30} {pos}/{len} {msg}", Some(total), format!("cleaning segments, {freed} freed"))
        }
    };
    let step = Step { template, done, total, message: &message };
    progress.show(&step, || match total {
        None => format!("marking live blocks: {done} map nodes read"),
        Some(total) => format!("cleaning segments: {done} of {total} segments, {freed} freed"),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_shows_freed_and_moved_bytes() {
        let took = Duration::from_millis(1500);
        let freed = Reclaimed { freed_bytes: 1 << 30, moved_bytes: 0 };
        assert_eq!(summary(freed, took), "freed 1 GiB in 1.5 s");
        let moved = Reclaimed { moved_bytes: 1 << 20, ..freed };
        assert_eq!(summary(moved, took), "freed 1 GiB in 1.5 s, moved 1 MiB");
    }
}
