//! `forebay image profile`: what the boot of an image's clones reads.

use super::CliError;
use super::args::ProfileChange;
use super::client::Client;
use super::output::{age, say};
use crate::clock::unix_ms;
use crate::control::{ChangeProfile, PrefetchedView, ProfileAction, ProfileView};
use crate::size::Size;

/// Shows the profile, or changes it.
pub(super) async fn run(
    client: &Client,
    image: &str,
    change: &ProfileChange,
    as_json: bool,
) -> Result<(), CliError> {
    let path = ["images", image, "profile"];
    let action = match *change {
        ProfileChange { clear: true, .. } => {
            let done: serde_json::Value = client.delete(&path).await?;
            return say(&done, as_json, |_| format!("forgot the boot profile of '{image}'"));
        }
        ProfileChange { prefetch: true, .. } => {
            let body = ChangeProfile { action: ProfileAction::Prefetch };
            let done: PrefetchedView = client.post(&path, &body).await?;
            return say(&done, as_json, prefetched);
        }
        ProfileChange { record: true, .. } => {
            Some((ProfileAction::Record, "the next boot of a clone is recorded"))
        }
        ProfileChange { stop: true, .. } => Some((ProfileAction::Stop, "the recording ends")),
        _ => None,
    };
    if let Some((action, text)) = action {
        let done: serde_json::Value = client.post(&path, &ChangeProfile { action }).await?;
        return say(&done, as_json, |_| text.to_owned());
    }
    let profile: ProfileView = client.get(&path).await?;
    say(&profile, as_json, describe)
}

fn prefetched(done: &PrefetchedView) -> String {
    match (done.bytes, done.cached_bytes) {
        (0, 0) => "nothing to prefetch: it has no boot profile, or that is being prefetched".into(),
        (0, cached) => format!("all of it is cached already: {}", Size(cached)),
        (bytes, cached) => {
            format!("read {} in {} reads of the store; {} was cached", Size(bytes), done.reads, Size(cached))
        }
    }
}

fn describe(p: &ProfileView) -> String {
    let mut lines = Vec::new();
    match p.recorded_ms {
        Some(when) => lines.push(format!(
            "a boot reads {} in {} pieces; recorded {} ago; {} of it is cached",
            Size(p.bytes),
            p.runs,
            age(unix_ms(), when),
            Size(p.cached_bytes)
        )),
        None if !p.recording && !p.waiting => lines.push("no boot profile".to_owned()),
        None => {}
    }
    if p.recording {
        lines.push("a boot is being recorded".to_owned());
    } else if p.waiting {
        lines.push("the next boot of a clone will be recorded".to_owned());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_read() {
        let none = ProfileView {
            bytes: 0,
            runs: 0,
            recorded_ms: None,
            recording: false,
            waiting: false,
            cached_bytes: 0,
        };
        assert_eq!(describe(&none), "no boot profile");
        assert_eq!(
            describe(&ProfileView { waiting: true, ..none }),
            "the next boot of a clone will be recorded"
        );
        let known =
            ProfileView { bytes: 300 << 20, runs: 12, recorded_ms: Some(unix_ms()), recording: true, ..none };
        assert_eq!(
            describe(&known),
            "a boot reads 300 MiB in 12 pieces; recorded 0 s ago; 0 B of it is cached\na boot is being recorded"
        );
        let done = PrefetchedView { bytes: 1 << 20, reads: 3, cached_bytes: 4096 };
        assert_eq!(prefetched(&done), "read 1 MiB in 3 reads of the store; 4 KiB was cached");
    }
}
