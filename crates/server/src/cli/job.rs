//! `forebay job`: long work on the server.

use forebay_api::client::Client;
use forebay_api::{JobKind, JobState, JobView};
use forebay_host::clock::unix_ms;

use super::CliError;
use super::args::JobCommand;
use super::output::{age, print_result, render, table};

/// Maximum length of the reason of a failure in a list, in bytes.
const MAX_REASON: usize = 120;

/// Runs `forebay job`.
pub(super) async fn run(client: &Client, command: JobCommand, json: bool) -> Result<(), CliError> {
    match command {
        JobCommand::List => {
            let jobs: Vec<JobView> = client.get(&["jobs"]).await?;
            print_result(&jobs, json, |jobs| list(jobs))
        }
        JobCommand::Show { id } => {
            let job: JobView = client.get(&["jobs", &id.to_string()]).await?;
            print_result(&job, json, details)
        }
        JobCommand::Cancel { id } => {
            let job: JobView = client.delete(&["jobs", &id.to_string()]).await?;
            print_result(&job, json, |job| format!("cancelling job {}", job.id))
        }
    }
}

fn kind(job: &JobView) -> &'static str {
    match job.kind {
        JobKind::Import => "import",
        JobKind::Export => "export",
        JobKind::Gc => "gc",
        JobKind::Scan => "scan",
        JobKind::Record => "record",
        JobKind::Prefetch => "prefetch",
        JobKind::Upgrade => "upgrade",
        JobKind::Handover => "handover",
    }
}

fn state(job: &JobView) -> &'static str {
    match job.state {
        JobState::Running => "running",
        JobState::Cancelling => "cancelling",
        JobState::Done => "done",
        JobState::Failed => "failed",
        JobState::Cancelled => "cancelled",
    }
}

fn progress(job: &JobView) -> String {
    let p = &job.progress;
    let phase = p.phase.as_deref().unwrap_or_default();
    match p.total {
        Some(total) if total > 0 => format!("{phase} {} %", u128::from(p.done) * 100 / u128::from(total)),
        _ => phase.to_owned(),
    }
}

fn list(jobs: &[JobView]) -> String {
    let now = unix_ms();
    let mut rows = table(&["JOB", "KIND", "DISK", "STATE", "PROGRESS", "BEGAN", "BY", "REASON"], &[]);
    for job in jobs {
        let progress = if job.has_ended() { String::new() } else { progress(job) };
        let (id, began) = (job.id.to_string(), format!("{} ago", age(now, job.started_ms)));
        let disk = job.disk.as_deref().unwrap_or_default();
        let reason = job.error.as_ref().map_or("", |error| &*error.message);
        let reason = forebay_text::shorten(reason, MAX_REASON);
        rows.add_row([id.as_str(), kind(job), disk, state(job), &progress, &began, &job.owner, &*reason]);
    }
    render(rows)
}

fn details(job: &JobView) -> String {
    let mut text = format!("job {}: {} {}", job.id, kind(job), job.disk.as_deref().unwrap_or_default());
    text = format!("{}\nstate: {}\nbegun by: {}", text.trim_end(), state(job), job.owner);
    if !job.has_ended() {
        text += &format!("\nprogress: {}", progress(job));
    }
    if let Some(error) = &job.error {
        text += &format!("\nerror: {}", error.message);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_shown_with_and_without_a_total() {
        let json = serde_json::json!({"id": 7, "kind": "import", "disk": "a", "owner": "me", "state": "running",
            "started_ms": 0, "ended_ms": null, "progress": {"phase": "download", "done": 1, "total": 3},
            "cancellable": true, "result": null, "error": null});
        let mut job: JobView = serde_json::from_value(json).unwrap();
        assert_eq!(details(&job), "job 7: import a\nstate: running\nbegun by: me\nprogress: download 33 %");
        job.error = Some(forebay_api::ErrorDetail { code: "exists".into(), message: "'a' exists".into() });
        (job.state, job.ended_ms) = (JobState::Failed, Some(1));
        let listed = list(std::slice::from_ref(&job));
        assert!(listed.contains("failed") && listed.ends_with("me  'a' exists"), "{listed}");
        job.progress.total = None;
        assert_eq!(progress(&job), "download");
    }
}
