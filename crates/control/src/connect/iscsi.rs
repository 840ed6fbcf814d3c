//! The ways to a target over iSCSI.

use forebay_api::{ClientKind, WayView};
use forebay_frontend::targets::{Chap, Initiator, Target};

use super::quote::shell;
use super::{note_on_server, reachable};

/// Maximum number of initiators that a note names.
const MAX_NAMES: usize = 5;

/// The ways to a target, or to one of its disks. A target with a name of NVMe has none.
pub(super) fn ways(portals: &[String], target: &Target, lun: Option<u16>) -> Vec<WayView> {
    let portals = if target.name.is_nqn() { &[] } else { portals };
    portals.iter().map(|portal| way(portal, target, lun)).collect()
}

fn way(portal: &str, target: &Target, lun: Option<u16>) -> WayView {
    let (host, port) = reachable(portal);
    let access = Access::of(target, lun);
    let node = format!("iscsiadm -m node -T {} -p {host}:{port}", target.name);
    let set = |name: &str, value: &str| format!("{node} -o update -n node.session.auth.{name} -v {value}");
    let mut lines = vec![format!("iscsiadm -m discovery -t sendtargets -p {host}:{port}")];
    if let Some(user) = access.user {
        lines.push(set("authmethod", "CHAP"));
        lines.push(set("username", &user.map_or_else(|| "USER".to_owned(), shell)));
        lines.push(set("password", "SECRET"));
        if let Some(mutual) = &target.mutual {
            lines.push(set("username_in", &shell(&mutual.user)));
            lines.push(set("password_in", "TARGET-SECRET"));
        }
    }
    lines.push(format!("{node} --login"));
    WayView {
        client: ClientKind::Iscsi,
        title: ClientKind::Iscsi.title().to_owned(),
        address: format!("{host}:{port}"),
        target: Some(target.name.to_string()),
        lun,
        text: lines.join("\n"),
        notes: note_on_server(host).into_iter().chain(access.notes).collect(),
    }
}

/// The initiators that may use a target or one of its disks, and their credentials.
struct Access<'a> {
    /// Whether a client authenticates itself; `None` inside if the initiators have different users.
    user: Option<Option<&'a str>>,
    notes: Vec<String>,
}

impl<'a> Access<'a> {
    fn of(target: &'a Target, lun: Option<u16>) -> Access<'a> {
        let may_use = |initiator: &&Initiator| match (&initiator.luns, lun) {
            (Some(luns), Some(lun)) => luns.contains(&lun),
            _ => true,
        };
        let (admitted, masked): (Vec<_>, Vec<_>) = target.initiators.iter().partition(may_use);
        let chap = |initiator: &&'a Initiator| initiator.chap.as_ref().or(target.chap.as_ref()).map(user);
        let mut users: Vec<Option<&str>> = admitted.iter().map(chap).collect();
        if target.open {
            users.push(target.chap.as_ref().map(user));
        }
        users.sort_unstable();
        users.dedup();
        let mut notes = vec![who(target, lun, &admitted, &masked)];
        let user = match users.as_slice() {
            [] | [None] => None,
            [Some(only)] => Some(Some(*only)),
            several => {
                notes.push(format!(
                    "Credentials depend on the initiator; CHAP users: {}.{}",
                    listed(several.iter().flatten().map(|user| shell(user))),
                    if several.contains(&None) { " Some initiators need none." } else { "" }
                ));
                Some(None)
            }
        };
        if user.is_some() {
            let mutual = if target.mutual.is_some() { " and TARGET-SECRET" } else { "" };
            notes.push(format!("Replace SECRET{mutual}: the server does not show secrets."));
        }
        Access { user, notes }
    }
}

fn user(chap: &Chap) -> &str {
    &chap.user
}

/// The sentence about the initiators that may use a target, or one of its disks.
fn who(target: &Target, lun: Option<u16>, admitted: &[&Initiator], masked: &[&Initiator]) -> String {
    let what = lun.map_or_else(|| "the target".to_owned(), |lun| format!("LUN {lun}"));
    let names = |initiators: &[&Initiator]| listed(initiators.iter().map(|one| one.name.to_string()));
    match (target.open, admitted, masked) {
        (true, _, []) => format!("Every initiator may use {what}."),
        (true, _, masked) => format!("Every initiator may use {what}, except {}.", names(masked)),
        (false, [], []) => format!(
            "No initiator may use {what} yet: forebay target allow {} INITIATOR (the name is in \
             /etc/iscsi/initiatorname.iscsi of the client).",
            target.name
        ),
        (false, [], masked) => {
            format!("No initiator may use {what}: the LUNs of {} do not include it.", names(masked))
        }
        (false, admitted, _) => format!("Only these initiators may use {what}: {}.", names(admitted)),
    }
}

/// The first names of a list.
fn listed(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = names.take(MAX_NAMES + 1).collect();
    if names.len() > MAX_NAMES {
        names[MAX_NAMES] = "…".to_owned();
    }
    names.join(", ")
}
