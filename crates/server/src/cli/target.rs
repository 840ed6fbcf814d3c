//! `forebay target …` and `forebay lun …`: iSCSI targets, initiator ACLs and LUNs.

use std::fs::File;
use std::path::{Path, PathBuf};

use forebay_api::client::Client;
use forebay_api::{
    AllowInitiator, Chap, ClusterView, CreateTarget, InitiatorView, LunView, MapLun, ReservationsView,
    ServerView, SessionView, TargetView,
};
use forebay_host::clock::unix_ms;
use forebay_text::{Secret, Size, counted};

use super::CliError;
use super::args::{ChapArgs, LunCommand, TargetCommand};
use super::output::{age, print_result, render, table};
use super::remove;

/// Runs `forebay target …`.
pub(super) async fn target(client: &Client, command: TargetCommand, as_json: bool) -> Result<(), CliError> {
    match command {
        TargetCommand::Create {
            name,
            open,
            chap: own,
            mutual_user,
            mutual_secret_file,
            dhchap_key_file,
            disk,
        } => {
            let mutual = ChapArgs { chap_user: mutual_user, chap_secret_file: mutual_secret_file };
            let files = [&own.chap_secret_file, &mutual.chap_secret_file, &dhchap_key_file];
            if files.into_iter().filter(|file| file.as_deref() == Some(Path::new("-"))).count() > 1 {
                return Err(CliError::TwoSecrets);
            }
            let (chap, mutual, dhchap_key) = (chap(own)?, chap(mutual)?, key(dhchap_key_file)?);
            let body = CreateTarget { name, open, chap, mutual, dhchap_key, disk };
            let created: TargetView = client.post(&["targets"], &body).await?;
            let is_served = is_served(client).await;
            print_result(&created, as_json, |created| created_text(created, is_served))
        }
        TargetCommand::List => {
            let targets: Vec<TargetView> = client.get(&["targets"]).await?;
            print_result(&targets, as_json, |targets| target_table(targets))
        }
        TargetCommand::Show { name } => {
            let target: TargetView = client.get(&["targets", &name]).await?;
            print_result(&target, as_json, target_details)
        }
        TargetCommand::Rm { name, all: _, force, yes } => {
            remove_target(client, name, (force, yes), as_json).await
        }
        TargetCommand::Disconnect { target, session } => {
            let done: serde_json::Value = client.delete(&["targets", &target, "sessions", &session]).await?;
            print_result(&done, as_json, |_| {
                format!("ended session {session} of target {}", target.to_lowercase())
            })
        }
        TargetCommand::Allow { target, initiator, chap: own, dhchap_key_file, lun } => {
            let luns = (!lun.is_empty()).then_some(lun);
            let files = [&own.chap_secret_file, &dhchap_key_file];
            if files.map(|file| file.as_deref()) == [Some(Path::new("-")); 2] {
                return Err(CliError::TwoSecrets);
            }
            let body = AllowInitiator { chap: chap(own)?, dhchap_key: key(dhchap_key_file)?, luns };
            let done: TargetView = client.put(&["targets", &target, "initiators", &initiator], &body).await?;
            print_result(&done, as_json, |done| {
                format!("target {} admits {}", done.name, initiator.to_lowercase())
            })
        }
        TargetCommand::Deny { target, initiator } => {
            let path = ["targets", &target, "initiators", &initiator];
            let done: TargetView = client.delete(&path).await?;
            print_result(&done, as_json, |done| denied_text(done, &initiator.to_lowercase()))
        }
    }
}

/// Runs `forebay target rm`; without a name, for all targets.
async fn remove_target(
    client: &Client,
    name: Option<String>,
    (force, yes): (bool, bool),
    as_json: bool,
) -> Result<(), CliError> {
    match (&name, yes) {
        (_, true) => {}
        (name, false) if remove::can_ask(as_json) => confirm_removal(client, name.as_deref()).await?,
        (None, false) => {
            return Err(CliError::Unconfirmed("'--all' would remove all targets".to_owned()));
        }
        (Some(_), false) => {}
    }
    let path: Vec<&str> = std::iter::once("targets").chain(name.as_deref()).collect();
    let done = client.remove(&path, force.then_some("force")).await?;
    print_result(&done, as_json, |_| match &name {
        Some(name) => format!("removed target {name}"),
        None => "removed all targets".into(),
    })
}

/// Whether the server, or the cluster, has a portal.
async fn is_served(client: &Client) -> bool {
    if let Ok(server) = client.get::<ServerView>(&["pool"]).await {
        return !(server.iscsi.is_empty() && server.nvme.is_empty());
    }
    let cluster = client.get::<ClusterView>(&["cluster"]).await;
    cluster.map_or(true, |cluster| cluster.nodes.iter().any(|node| !node.iscsi.is_empty()))
}

/// Requests confirmation before the removal of a target, or of all targets.
async fn confirm_removal(client: &Client, name: Option<&str>) -> Result<(), CliError> {
    let Some(name) = name else { return remove::ask("Remove all targets? Their disks are kept.") };
    let target: TargetView = client.get(&["targets", name]).await?;
    remove::ask(&removal_question(&target))
}

fn removal_question(t: &TargetView) -> String {
    let (luns, sessions) = (counted(t.luns.len(), "LUN"), counted(t.sessions.len(), "session"));
    format!("Remove target {} with {luns} and {sessions}? Its disks are kept.", t.name)
}

/// Runs `forebay lun …`.
pub(super) async fn lun(client: &Client, command: LunCommand, as_json: bool) -> Result<(), CliError> {
    match command {
        LunCommand::Map { target, disk, lun, read_only, write_back } => {
            let body = MapLun { disk, read_only, write_back };
            let path = ["targets", &target, "luns"];
            let mapped: LunView = match lun {
                None => client.post(&path, &body).await?,
                Some(lun) => client.put(&[path[0], path[1], path[2], &lun.to_string()], &body).await?,
            };
            print_result(&mapped, as_json, |m| {
                let how = if m.read_only && !read_only { ", read-only" } else { "" };
                format!("'{}' is LUN {} of target {}{how}", m.disk, m.lun, target.to_lowercase())
            })
        }
        LunCommand::Unmap { target, lun } => {
            let path = ["targets", &target, "luns", &lun.to_string()];
            let done: serde_json::Value = client.delete(&path).await?;
            print_result(&done, as_json, |_| {
                format!("unmapped LUN {lun} of target {}", target.to_lowercase())
            })
        }
        LunCommand::List { target } => {
            let target: TargetView = client.get(&["targets", &target]).await?;
            print_result(&target.luns, as_json, |luns| lun_table(luns))
        }
        LunCommand::Reservations { target, lun, clear } => {
            let path = ["targets", &target, "luns", &lun.to_string(), "reservations"];
            if clear {
                let done: serde_json::Value = client.delete(&path).await?;
                let cleared =
                    format!("cleared the reservations of LUN {lun} of target {}", target.to_lowercase());
                return print_result(&done, as_json, |_| cleared);
            }
            let found: ReservationsView = client.get(&path).await?;
            print_result(&found, as_json, reservation_table)
        }
    }
}

/// Reads the secret of the CHAP arguments; clap ensures that user and file are given together.
fn chap(args: ChapArgs) -> Result<Option<Chap>, CliError> {
    let (Some(user), Some(path)) = (args.chap_user, args.chap_secret_file) else { return Ok(None) };
    Ok(Some(Chap { user, secret: secret(path)? }))
}

/// Reads a DH-HMAC-CHAP key.
fn key(path: Option<PathBuf>) -> Result<Option<Secret>, CliError> {
    path.map(secret).transpose()
}

fn secret(path: PathBuf) -> Result<Secret, CliError> {
    let secret = match path.as_os_str().as_encoded_bytes() {
        b"-" => Secret::read(std::io::stdin().lock()),
        _ => {
            if let Some(warning) = forebay_host::modes::secret_warning(&path) {
                eprintln!("forebay: {}", forebay_text::one_line(&warning));
            }
            File::open(&path).and_then(Secret::read)
        }
    };
    secret.map_err(|e| CliError::Secret(path, e))
}

fn created_text(t: &TargetView, is_served: bool) -> String {
    let access = match (t.open, &t.chap_user) {
        (false, _) => format!("it admits no initiators yet: run 'forebay target allow {} INITIATOR'", t.name),
        (true, Some(user)) => format!("it admits any initiator that authenticates as '{user}'"),
        (true, None) => "it admits any initiator".into(),
    };
    let unserved = match is_served {
        true => "",
        false => {
            "\nno initiator can reach it: the server has no iSCSI or NVMe listener; start it with --iscsi HOST:PORT or --nvme HOST:PORT"
        }
    };
    format!("created target {}; {access}{unserved}", t.name)
}

fn denied_text(t: &TargetView, initiator: &str) -> String {
    if t.open {
        format!("removed the ACL entry of {initiator}; target {} is open and still admits it", t.name)
    } else {
        format!("target {} no longer admits {initiator}", t.name)
    }
}

fn target_table(targets: &[TargetView]) -> String {
    let mut t = table(&["NAME", "LUNS", "INITIATORS", "CHAP", "SESSIONS"], &[1, 4]);
    for target in targets {
        let initiators = match (target.open, target.initiators.len()) {
            (true, _) => "any".into(),
            (false, 0) => "none".into(),
            (false, count) => count.to_string(),
        };
        t.add_row([
            target.name.clone(),
            target.luns.len().to_string(),
            initiators,
            chap_text(target),
            target.sessions.len().to_string(),
        ]);
    }
    render(t)
}

/// Renders which initiators have to authenticate: `all`, `some` or `no`.
fn chap_text(target: &TargetView) -> String {
    let own = target.initiators.iter().filter(|i| i.chap_user.is_some() || i.has_dhchap_key).count();
    let text = if target.chap_user.is_some() || (own > 0 && own == target.initiators.len() && !target.open) {
        "all"
    } else if own > 0 {
        "some"
    } else {
        "no"
    };
    text.into()
}

fn target_details(target: &TargetView) -> String {
    let mut t = table(&[], &[]);
    let mut row = |name: &str, value: String| {
        t.add_row([name.to_owned(), value]);
    };
    row("name", target.name.clone());
    row("number", target.number.to_string());
    let admits = match (target.open, target.initiators.is_empty()) {
        (true, _) => "any initiator",
        (false, true) => "no initiators; see 'forebay target allow'",
        (false, false) => "the initiators below",
    };
    row("admits", admits.into());
    row("chap", target.chap_user.as_ref().map_or("none".into(), |user| format!("user '{user}'")));
    if let Some(user) = &target.mutual_user {
        row("mutual chap", format!("user '{user}'"));
    }
    if target.has_dhchap_key {
        row("dh-hmac-chap", "the target has a key".to_owned());
    }
    let mut parts = vec![render(t)];
    if !target.luns.is_empty() {
        parts.push(lun_table(&target.luns));
    }
    if !target.initiators.is_empty() {
        parts.push(initiator_table(&target.initiators));
    }
    if !target.sessions.is_empty() {
        parts.push(session_table(&target.sessions));
    }
    parts.join("\n\n")
}

fn lun_table(luns: &[LunView]) -> String {
    let mut t = table(&["LUN", "DISK", "SIZE", "ACCESS", "CACHE"], &[0, 2]);
    for lun in luns {
        t.add_row([
            lun.lun.to_string(),
            lun.disk.clone(),
            lun.size_bytes.map_or("removed".into(), |bytes| Size(bytes).to_string()),
            if lun.read_only { "read-only" } else { "read-write" }.into(),
            match (lun.read_only, lun.write_back) {
                (true, _) => "-",
                (false, true) => "write-back",
                (false, false) => "write-through",
            }
            .into(),
        ]);
    }
    render(t)
}

fn reservation_table(found: &ReservationsView) -> String {
    let mut t = table(&["INITIATOR", "TARGET", "ISID", "KEY", "RESERVATION"], &[]);
    let reserve = found.reserve.as_ref().map(|port| (port, "-".to_owned(), "reserve (SPC-2)".to_owned()));
    let registered = found.registrations.iter().map(|r| {
        let held = found.persistent.as_ref().filter(|held| held.holder == r.port);
        (&r.port, r.key.clone(), held.map_or("-".into(), |held| held.kind.replace('_', " ")))
    });
    for (port, key, reservation) in registered.chain(reserve) {
        t.add_row([port.initiator.clone(), port.target.clone(), port.isid.clone(), key, reservation]);
    }
    if t.is_empty() {
        return format!("'{}' has no reservations and no registrations", found.disk);
    }
    render(t)
}

fn initiator_table(initiators: &[InitiatorView]) -> String {
    let mut t = table(&["INITIATOR", "CHAP", "LUNS"], &[]);
    for initiator in initiators {
        let luns = match &initiator.luns {
            None => "all".into(),
            Some(luns) if luns.is_empty() => "none".into(),
            Some(luns) => luns.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        let user = initiator.chap_user.as_ref().map(|user| format!("user '{user}'"));
        let key = initiator.has_dhchap_key.then(|| "DH-HMAC-CHAP".to_owned());
        let chap: Vec<String> = user.into_iter().chain(key).collect();
        let chap = if chap.is_empty() { "-".to_owned() } else { chap.join(", ") };
        t.add_row([initiator.name.clone(), chap, luns]);
    }
    render(t)
}

fn session_table(sessions: &[SessionView]) -> String {
    let mut t = table(&["SESSION", "INITIATOR", "ADDRESS", "AGE"], &[0, 3]);
    for s in sessions {
        t.add_row([s.id.clone(), s.initiator.clone(), s.address.clone(), age(unix_ms(), s.since_ms)]);
    }
    render(t)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lun(lun: u16, disk: &str, read_only: bool) -> LunView {
        let size_bytes = (lun != 9).then_some(10 << 30);
        LunView { lun, disk: disk.into(), size_bytes, read_only, write_back: lun == 1 }
    }

    fn view() -> TargetView {
        let initiator = |name: &str, chap: Option<&str>, luns: Option<Vec<u16>>| InitiatorView {
            name: name.into(),
            chap_user: chap.map(str::to_owned),
            has_dhchap_key: false,
            luns,
        };
        TargetView {
            name: "iqn.2026-01.org.example:a".into(),
            number: 3,
            open: false,
            chap_user: Some("all".into()),
            mutual_user: Some("us".into()),
            has_dhchap_key: false,
            luns: vec![lun(0, "db", false), lun(1, "scratch", false), lun(9, "db@monday", true)],
            initiators: vec![
                initiator("iqn.1993-08.org.debian:01:x", None, None),
                initiator("iqn.1993-08.org.debian:01:longer", Some("one"), Some(vec![0, 9])),
                initiator("iqn.1993-08.org.debian:01:z", None, Some(vec![])),
            ],
            sessions: vec![SessionView {
                id: "8191".into(),
                initiator: "iqn.1993-08.org.debian:01:x".into(),
                address: "[::1]:4711".into(),
                since_ms: unix_ms(),
            }],
            shard: None,
        }
    }

    #[test]
    fn target_details_and_table_are_shown() {
        let lines = [
            "name         iqn.2026-01.org.example:a",
            "number       3",
            "admits       the initiators below",
            "chap         user 'all'",
            "mutual chap  user 'us'",
            "",
            "LUN  DISK          SIZE  ACCESS      CACHE",
            "  0  db          10 GiB  read-write  write-through",
            "  1  scratch     10 GiB  read-write  write-back",
            "  9  db@monday  removed  read-only   -",
            "",
            "INITIATOR                         CHAP        LUNS",
            "iqn.1993-08.org.debian:01:x       -           all",
            "iqn.1993-08.org.debian:01:longer  user 'one'  0, 9",
            "iqn.1993-08.org.debian:01:z       -           none",
            "",
            "SESSION  INITIATOR                    ADDRESS     AGE",
            "   8191  iqn.1993-08.org.debian:01:x  [::1]:4711  0 s",
        ];
        assert_eq!(target_details(&view()), lines.join("\n"));
        let lines = [
            "NAME                       LUNS  INITIATORS  CHAP  SESSIONS",
            "iqn.2026-01.org.example:a     3  3           all          1",
        ];
        assert_eq!(target_table(&[view()]), lines.join("\n"));
    }

    #[test]
    fn admission_and_chap_are_described() {
        let with = |change: fn(&mut TargetView)| {
            let mut view = view();
            change(&mut view);
            view
        };
        let question =
            "Remove target iqn.2026-01.org.example:a with 3 LUNs and 1 session? Its disks are kept.";
        assert_eq!(removal_question(&view()), question);
        let created = created_text(&view(), true);
        assert!(created.contains("no initiators yet: run 'forebay target allow iqn.2026-01.org.example:a"));
        assert!(created_text(&with(|t| t.open = true), true).ends_with("authenticates as 'all'"));
        let open = with(|t| (t.open, t.chap_user) = (true, None));
        assert!(created_text(&open, true).ends_with("admits any initiator"));
        assert!(created_text(&open, false).contains("no iSCSI or NVMe listener"));
        assert!(denied_text(&open, "x").contains("still admits it"));
        assert!(denied_text(&view(), "x").ends_with("no longer admits x"));
        assert_eq!(chap_text(&open), "some");
        assert_eq!(chap_text(&with(|t| (t.chap_user, t.initiators) = (None, vec![]))), "no");
        let own = with(|t| {
            t.chap_user = None;
            t.initiators.retain(|i| i.chap_user.is_some());
        });
        assert_eq!(chap_text(&own), "all");
    }
}
