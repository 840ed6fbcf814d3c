//! The ways to a target over NVMe/TCP, where it is a subsystem.

use forebay_api::{ClientKind, WayView};
use forebay_frontend::targets::{Initiator, Target};

use super::quote::shell;
use super::{note_on_server, reachable};

/// Maximum number of hosts that a note names.
const MAX_NAMES: usize = 5;

/// The ways to a target, or to one of its disks. A target whose name NVMe does not have has none.
pub(super) fn ways(addresses: &[String], target: &Target, lun: Option<u16>) -> Vec<WayView> {
    let Some(subsystem) = target.name.subsystem() else { return Vec::new() };
    addresses.iter().map(|address| way(address, &subsystem, target, lun)).collect()
}

fn way(address: &str, subsystem: &str, target: &Target, lun: Option<u16>) -> WayView {
    let (host, port) = reachable(address);
    let access = Access::of(target, lun);
    let mut connect = format!("nvme connect -t tcp -a {host} -s {port} -n {}", shell(subsystem));
    connect += " --reconnect-delay=1";
    if access.keys {
        connect += " --dhchap-secret=KEY";
        if target.dhchap.is_some() {
            connect += " --dhchap-ctrl-secret=TARGET-KEY";
        }
    }
    let mut lines = vec!["modprobe nvme-tcp".to_owned(), connect];
    let mut notes = vec![access.who(lun)];
    notes.extend(note_on_server(host));
    if access.keys {
        let target = if target.dhchap.is_some() { " and TARGET-KEY by that of the target" } else { "" };
        notes.push(format!("Replace KEY by the key of the host{target}: the server does not show keys."));
        notes.push(
            "To connect at each start, keep what nvme connect --dump-config prints in /etc/nvme/config.json, \
             and enable nvmf-autoconnect.service."
                .to_owned(),
        );
    } else {
        // systemd and udev connect to what is discovered there.
        lines.push(format!("echo '-t tcp -a {host} -s {port}' >>/etc/nvme/discovery.conf"));
        lines.push("systemctl enable nvmf-autoconnect.service".to_owned());
    }
    if let Some(lun) = lun {
        notes.push(format!("The disk is namespace {}.", u32::from(lun) + 1));
    }
    WayView {
        client: ClientKind::Nvme,
        title: ClientKind::Nvme.title().to_owned(),
        address: format!("{host}:{port}"),
        target: Some(subsystem.to_owned()),
        lun,
        text: lines.join("\n"),
        notes,
    }
}

/// The hosts that may use a target or one of its disks.
struct Access<'a> {
    target: &'a Target,
    hosts: Vec<&'a Initiator>,
    /// A host has to state a key.
    keys: bool,
}

impl<'a> Access<'a> {
    fn of(target: &'a Target, lun: Option<u16>) -> Access<'a> {
        let sees = |host: &Initiator| match (&host.luns, lun) {
            (Some(luns), Some(lun)) => luns.contains(&lun),
            _ => true,
        };
        // CHAP is for iSCSI: a host of NVMe needs a key in place of it.
        let may = |host: &Initiator| host.dhchap.is_some() || host.chap.is_none() && target.chap.is_none();
        let hosts = target.initiators.iter().filter(|host| host.name.is_nqn() && sees(host) && may(host));
        let hosts: Vec<_> = hosts.collect();
        let keys = hosts.iter().any(|host| host.dhchap.is_some());
        Access { target, hosts, keys }
    }

    /// The sentence about the hosts.
    fn who(&self, lun: Option<u16>) -> String {
        let what = lun.map_or_else(|| "the target".to_owned(), |lun| format!("LUN {lun}"));
        let mut names: Vec<String> =
            self.hosts.iter().take(MAX_NAMES + 1).map(|host| host.name.to_string()).collect();
        if names.len() > MAX_NAMES {
            names[MAX_NAMES] = "…".to_owned();
        }
        if self.target.open && self.target.chap.is_none() {
            return format!("Every host may use {what}, unless the access list restricts it.");
        }
        if names.is_empty() {
            return format!(
                "No host may use {what} yet: forebay target allow {} HOST (the name is in /etc/nvme/hostnqn of the \
                 host).",
                self.target.name
            );
        }
        format!("Only these hosts may use {what}: {}.", names.join(", "))
    }
}
