//! `rm` of images, volumes and snapshots: several names, and patterns.
//!
//! A name that is in use is never a pattern, whatever characters it has. Patterns are resolved before the
//! first removal, so the number of matches that is confirmed is the number that is removed.

use std::collections::HashSet;
use std::io::{self, IsTerminal, Write};

use forebay_api::client::{Client, ClientError};
use forebay_api::{DiskView, ErrorDetail, ErrorKind, Kind};
use forebay_text::{NamePattern, counted};
use serde::Serialize;

use super::args::RemoveArgs;
use super::{CliError, output};

/// Maximum number of names that a prompt lists.
const LISTED: usize = 5;

/// A disk that was to be removed, and the result.
#[derive(Debug, Serialize)]
struct Removal {
    /// Name of the disk; for a snapshot, without the name of its volume. Or a pattern that matches no disk.
    name: String,
    removed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorDetail>,
}

/// The disks among which names are looked up.
pub(super) struct Among<'a> {
    pub kind: Kind,
    /// Path of the disks' list in the API.
    pub path: &'a [&'a str],
    /// Whether the snapshots of a volume are removed, too.
    pub with_snapshots: bool,
}

/// The arguments after their patterns were resolved.
#[derive(Debug, Default)]
pub(super) struct Resolved {
    pub names: Vec<String>,
    /// The patterns, each with the names that only it selects.
    patterns: Vec<(String, Vec<String>)>,
    pub unmatched: Vec<String>,
}

/// What is done to disks, in the words of a prompt.
pub(super) struct Action<'a> {
    pub verb: &'a str,
    pub question: &'a str,
    pub noun: &'static str,
}

/// Removes disks. A disk that cannot be removed does not prevent the removal of the following disks.
pub(super) async fn run(
    client: &Client,
    among: Among<'_>,
    args: &RemoveArgs,
    json: bool,
) -> Result<(), CliError> {
    let resolved = look_up(client, among.path, &args.names, |_| true).await?;
    if !args.yes {
        let question = match among.with_snapshots {
            true => "Remove them with all of their snapshots?",
            false => "Remove them?",
        };
        confirm(&Action { verb: "remove", question, noun: among.noun(2) }, &resolved, json)?;
        confirm_snapshots(client, &among, &resolved, json).await?;
    }
    let mut removals: Vec<_> = resolved.unmatched.iter().map(|pattern| among.unmatched(pattern)).collect();
    let total = resolved.names.len() + removals.len();
    let (mut broken, mut printed) = (None, Ok(()));
    for name in resolved.names {
        let error = match among.remove(client, &name).await {
            Ok(()) => None,
            Err(ClientError::Refused { code, message, .. }) => Some(ErrorDetail { code, message }),
            // The following requests would fail, too.
            Err(e) => {
                broken = Some(e);
                break;
            }
        };
        // A reader that has left does not stop what was requested.
        if !json && error.is_none() && printed.is_ok() {
            let with = if among.with_snapshots { " and its snapshots" } else { "" };
            printed = output::line(&format!("removed {} '{}'{with}", among.noun(1), among.full_name(&name)));
        }
        removals.push(Removal { name, removed: error.is_none(), error });
    }
    if json {
        printed = output::json(&removals);
    }
    report(broken, removals, total, among.noun(total)).and(printed)
}

/// Resolves arguments to names. A pattern stands for the disks in this list of the API that `can_match`.
pub(super) async fn look_up(
    client: &Client,
    path: &[&str],
    args: &[String],
    can_match: impl Fn(&DiskView) -> bool,
) -> Result<Resolved, CliError> {
    if !args.iter().any(|name| is_pattern(name)) {
        return Ok(resolve(args, &[]));
    }
    let disks: Vec<DiskView> = client.get(path).await?;
    let present = disks.iter().filter(|disk| can_match(disk)).map(|disk| own_name(&disk.name).to_owned());
    Ok(resolve(args, &present.collect::<Vec<_>>()))
}

/// Reports the failures. If only one disk was to be removed, its failure is the error of the command.
fn report(
    broken: Option<ClientError>,
    removals: Vec<Removal>,
    total: usize,
    noun: &'static str,
) -> Result<(), CliError> {
    let mut failures: Vec<_> = removals.into_iter().filter_map(|removal| removal.error).collect();
    if let (None, 1) = (&broken, total)
        && let Some(only) = failures.pop()
    {
        return Err(ClientError::from(only).into());
    }
    for failure in &failures {
        eprintln!("forebay: {}", forebay_text::one_line(&failure.message));
    }
    match (broken, failures.len()) {
        (Some(e), _) => Err(e.into()),
        (None, 0) => Ok(()),
        (None, failed) => Err(CliError::NotAllRemoved { failed, total, noun }),
    }
}

impl Among<'_> {
    fn noun(&self, count: usize) -> &'static str {
        match (self.kind, count) {
            (Kind::Image, 1) => "image",
            (Kind::Image, _) => "images",
            (Kind::Volume, 1) => "volume",
            (Kind::Volume, _) => "volumes",
            (Kind::Snapshot, 1) => "snapshot",
            (Kind::Snapshot, _) => "snapshots",
        }
    }

    fn full_name(&self, name: &str) -> String {
        match (self.kind, self.path) {
            (Kind::Snapshot, [_, volume, ..]) => format!("{volume}@{name}"),
            _ => name.to_owned(),
        }
    }

    async fn remove(&self, client: &Client, name: &str) -> Result<(), ClientError> {
        let path: Vec<&str> = self.path.iter().copied().chain([name]).collect();
        client.remove(&path, self.with_snapshots.then_some("snapshots")).await.map(|_| ())
    }

    fn unmatched(&self, pattern: &str) -> Removal {
        let message = format!("no {} matches '{}'", self.noun(1), self.full_name(pattern));
        let error = ErrorDetail { code: ErrorKind::NotFound.code().to_owned(), message };
        Removal { name: pattern.to_owned(), removed: false, error: Some(error) }
    }
}

fn is_pattern(name: &str) -> bool {
    name.contains('*')
}

/// The name of a snapshot without the name of its volume; all other names have no `@`.
fn own_name(name: &str) -> &str {
    name.split_once('@').map_or(name, |(_, snapshot)| snapshot)
}

/// Resolves the arguments to names, each of them once, in the order in which they are given.
fn resolve(args: &[String], present: &[String]) -> Resolved {
    let mut resolved = Resolved::default();
    let given: HashSet<&str> = args.iter().map(String::as_str).collect();
    let mut seen = HashSet::new();
    for arg in args {
        if !is_pattern(arg) || present.contains(arg) {
            if seen.insert(arg.as_str()) {
                resolved.names.push(arg.clone());
            }
            continue;
        }
        let pattern: Option<NamePattern> = arg.parse().ok();
        let matches = |name: &&String| pattern.as_ref().is_some_and(|pattern| pattern.matches(name));
        let matching: Vec<_> = present.iter().filter(matches).collect();
        if matching.is_empty() {
            resolved.unmatched.push(arg.clone());
        }
        // A name that is also given alone needs no confirmation.
        let is_only = |name: &&&String| !given.contains(name.as_str()) && !seen.contains(name.as_str());
        let only = matching.iter().filter(is_only).map(|name| (*name).clone()).collect();
        resolved.names.extend(matching.into_iter().filter(|name| seen.insert(name.as_str())).cloned());
        resolved.patterns.push((arg.clone(), only));
    }
    resolved
}

/// Requests confirmation on a terminal before an action on what patterns match, if they match several disks.
///
/// # Errors
/// Without a terminal, [`CliError::Unconfirmed`].
pub(super) fn confirm(action: &Action<'_>, resolved: &Resolved, json: bool) -> Result<(), CliError> {
    let count: usize = resolved.patterns.iter().map(|(_, names)| names.len()).sum();
    if count < 2 {
        return Ok(());
    }
    if !can_ask(json) {
        let patterns: Vec<_> = resolved.patterns.iter().map(|(pattern, _)| format!("'{pattern}'")).collect();
        let patterns = patterns.join(", ");
        let Action { verb, noun, .. } = action;
        return Err(CliError::Unconfirmed(format!("{patterns} would {verb} {count} {noun}")));
    }
    for (pattern, names) in resolved.patterns.iter().filter(|(_, names)| !names.is_empty()) {
        let text = format!("'{pattern}' matches {} {}: {}", names.len(), action.noun, listed(names));
        eprintln!("{}", forebay_text::one_line(&text));
    }
    ask(action.question)
}

/// Requests confirmation on a terminal before it removes the snapshots of volumes that were given by name.
/// [`confirm`] asks for those that patterns match.
async fn confirm_snapshots(
    client: &Client,
    among: &Among<'_>,
    resolved: &Resolved,
    json: bool,
) -> Result<(), CliError> {
    if !among.with_snapshots || !can_ask(json) {
        return Ok(());
    }
    let matched: HashSet<&String> = resolved.patterns.iter().flat_map(|(_, names)| names).collect();
    let asked = if matched.len() < 2 { HashSet::new() } else { matched };
    for name in resolved.names.iter().filter(|name| !asked.contains(name)) {
        // The removal reports a volume that does not exist.
        let Ok(volume) = client.get::<DiskView>(&["volumes", name]).await else { continue };
        if volume.snapshots > 0 {
            ask(&format!("Remove '{name}' with its {}?", counted(volume.snapshots, "snapshot")))?;
        }
    }
    Ok(())
}

/// Whether a question can be answered: both ends are a terminal, and the output is not for a program.
pub(super) fn can_ask(json: bool) -> bool {
    !json && io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks on the terminal.
///
/// # Errors
/// [`CliError::Declined`], unless the answer is yes.
pub(super) fn ask(question: &str) -> Result<(), CliError> {
    eprint!("{} [y/N] ", forebay_text::one_line(question));
    let mut answer = String::new();
    io::stderr().flush().and_then(|()| io::stdin().read_line(&mut answer)).map_err(CliError::System)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(CliError::Declined),
    }
}

/// All names, or the first and the last names if there are many.
fn listed(names: &[String]) -> String {
    match names {
        [first @ .., last] if names.len() > LISTED => {
            format!("{}, ..., {last}", first[..LISTED - 1].join(", "))
        }
        all => all.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn names_and_patterns_are_resolved_in_order_and_once() {
        let present = strings(&["a*", "db", "pc-001", "pc-002", "web"]);
        let found = resolve(&strings(&["web", "pc-*", "pc-001", "db", "web"]), &present);
        assert_eq!(found.names, ["web", "pc-001", "pc-002", "db"]);
        assert_eq!(found.patterns, [("pc-*".to_owned(), strings(&["pc-002"]))]);
        let found = resolve(&strings(&["x*", "w*", "a@*", "none"]), &present);
        assert_eq!((found.names, found.unmatched), (strings(&["web", "none"]), strings(&["x*", "a@*"])));
        let found = resolve(&strings(&["a*", "*-00*", "pc-*"]), &present);
        assert_eq!(found.names, ["a*", "pc-001", "pc-002"], "a name in use is not a pattern");
        assert_eq!(found.patterns[1], ("pc-*".to_owned(), vec![]), "counted once");
    }

    #[test]
    fn a_prompt_lists_some_names() {
        let names: Vec<_> = (1..=7).map(|i| i.to_string()).collect();
        assert_eq!(listed(&names), "1, 2, 3, 4, ..., 7");
        assert_eq!(listed(&names[..5]), "1, 2, 3, 4, 5");
    }
}
