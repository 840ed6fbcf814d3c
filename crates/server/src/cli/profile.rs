//! `forebay image profile`: the boot profile of an image, that is, the blocks that a boot of its clones
//! reads.

use forebay_api::client::Client;
use forebay_api::{ChangeProfile, PrefetchedView, ProfileAction, ProfileView};
use forebay_host::clock::unix_ms;
use forebay_text::Size;

use super::CliError;
use super::args::ProfileChange;
use super::output::{age, print_result};

/// Shows or changes the profile.
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
            return print_result(&done, as_json, |_| format!("deleted the boot profile of '{image}'"));
        }
        ProfileChange { prefetch: true, .. } => {
            let body = ChangeProfile { action: ProfileAction::Prefetch };
            let done: PrefetchedView = client.post(&path, &body).await?;
            return print_result(&done, as_json, prefetched);
        }
        ProfileChange { record: true, .. } => {
            Some((ProfileAction::Record, "waiting for the next boot of a clone to record it"))
        }
        ProfileChange { stop: true, .. } => Some((ProfileAction::Stop, "stopped recording")),
        _ => None,
    };
    if let Some((action, text)) = action {
        let done: serde_json::Value = client.post(&path, &ChangeProfile { action }).await?;
        return print_result(&done, as_json, |_| text.to_owned());
    }
    let profile: ProfileView = client.get(&path).await?;
    print_result(&profile, as_json, describe)
}

fn prefetched(done: &PrefetchedView) -> String {
    match (done.bytes, done.cached_bytes) {
        (0, 0) => "nothing to prefetch: no boot profile, or a prefetch is running already".into(),
        (0, cached) => format!("all {} of the boot profile are cached already", Size(cached)),
        (bytes, cached) => {
            let reads = done.reads;
            format!("prefetched {} in {reads} store reads; {} were cached already", Size(bytes), Size(cached))
        }
    }
}

fn describe(p: &ProfileView) -> String {
    let mut lines = Vec::new();
    match p.recorded_ms {
        Some(when) => lines.push(format!(
            "boot profile: {} in {} extents; recorded {} ago; {} cached",
            Size(p.bytes),
            p.runs,
            age(unix_ms(), when),
            Size(p.cached_bytes)
        )),
        None if !p.recording && !p.waiting => lines.push("no boot profile".to_owned()),
        None => {}
    }
    if p.recording {
        lines.push("recording a boot now".to_owned());
    } else if p.waiting {
        lines.push("waiting for the next boot of a clone to record it".to_owned());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_described_in_one_line_for_each_state() {
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
            "waiting for the next boot of a clone to record it"
        );
        let known =
            ProfileView { bytes: 300 << 20, runs: 12, recorded_ms: Some(unix_ms()), recording: true, ..none };
        assert_eq!(
            describe(&known),
            "boot profile: 300 MiB in 12 extents; recorded 0 s ago; 0 B cached\nrecording a boot now"
        );
        let done = PrefetchedView { bytes: 1 << 20, reads: 3, cached_bytes: 4096 };
        assert_eq!(prefetched(&done), "prefetched 1 MiB in 3 store reads; 4 KiB were cached already");
    }
}
