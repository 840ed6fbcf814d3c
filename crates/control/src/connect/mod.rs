//! What a client needs in order to use a disk or a target: addresses, options and commands to copy.
//!
//! An administrator copies these texts, and a user with fewer rights may have chosen the names in them: so
//! each name is quoted for the place where it is inserted (`quote.rs`). No text has a secret.

mod iscsi;
mod nbd;
mod nvme;
mod quote;
#[cfg(test)]
mod tests;

use forebay_api::{ConnectView, MissingWayView, PortalsView, Protocol, WayView};
use forebay_frontend::nbd::ServedListener;
use forebay_frontend::targets::{Target, TargetMap};

use crate::operations::ServerInfo;

/// A disk that a client is to use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Disk<'a> {
    pub name: &'a str,
    /// It is an image or a snapshot.
    pub is_read_only: bool,
    /// The names of the certificates that may use the disk are shown. They concern other tenants of the
    /// server.
    pub shows_certificates: bool,
}

/// Where clients connect: to a server, or to a node of a cluster.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places {
    pub nbd: Vec<ServedListener>,
    pub iscsi: Vec<String>,
    pub nvme: Vec<String>,
    /// The addresses of other nodes, for NBD.
    other_nbd: Vec<String>,
    /// The portals of other nodes.
    other_iscsi: Vec<String>,
}

impl Places {
    pub fn of_server(server: &ServerInfo) -> Places {
        Places {
            nbd: server.nbd.clone(),
            iscsi: server.iscsi.clone(),
            nvme: server.nvme.clone(),
            ..Places::default()
        }
    }

    /// The nodes of a cluster, the one that was asked first. A node without an address for other hosts names
    /// those of the other nodes.
    pub fn of_cluster(nodes: &[PortalsView]) -> Places {
        let Some((own, others)) = nodes.split_first() else { return Places::default() };
        let is_remote = |address: &String| !address.starts_with("unix:");
        let all = |addresses: fn(&PortalsView) -> &Vec<String>| {
            others.iter().flat_map(move |node| addresses(node).iter()).filter(|one| is_remote(one)).cloned()
        };
        let mut other_nbd: Vec<String> = all(|node| &node.nbd).collect();
        let mut other_iscsi: Vec<String> = all(|node| &node.iscsi).collect();
        let (mut nbd, mut iscsi) = (own.nbd.clone(), own.iscsi.clone());
        if !nbd.iter().any(is_remote) && !other_nbd.is_empty() {
            nbd.push(other_nbd.remove(0));
        }
        if iscsi.is_empty() && !other_iscsi.is_empty() {
            iscsi.push(other_iscsi.remove(0));
        }
        let nbd = nbd.iter().filter_map(|address| address.parse().ok()).map(ServedListener::plain).collect();
        // Nodes serve no NVMe hosts.
        Places { nbd, iscsi, nvme: Vec::new(), other_nbd, other_iscsi }
    }

    /// Notes the addresses of other nodes, for clients of other hosts.
    fn note_others(&self, ways: &mut [WayView]) {
        for way in ways.iter_mut().filter(|way| !way.address.starts_with("unix:")) {
            let others = match way.client.protocol() {
                Protocol::Nbd => &self.other_nbd,
                Protocol::Iscsi => &self.other_iscsi,
                // Nodes serve no NVMe hosts.
                Protocol::Nvme => continue,
            };
            if !others.is_empty() {
                way.notes.push(format!("Other nodes serve it as well: {}.", others.join(", ")));
            }
        }
    }
}

/// The ways to a disk.
pub(crate) fn to_disk(disk: Disk<'_>, server: &Places, targets: &TargetMap) -> ConnectView {
    let offering = |listener: &&ServedListener| listener.access.offers(disk.name);
    let nbd: Vec<WayView> =
        server.nbd.iter().filter(offering).flat_map(|listener| nbd::ways(disk, listener)).collect();
    let luns: Vec<_> =
        targets.values().filter_map(|target| Some((&**target, target.lun_of(disk.name)?))).collect();
    let all = luns.iter();
    let iscsi: Vec<WayView> =
        all.clone().flat_map(|(target, lun)| iscsi::ways(&server.iscsi, target, Some(*lun))).collect();
    let nvme: Vec<WayView> =
        all.flat_map(|(target, lun)| nvme::ways(&server.nvme, target, Some(*lun))).collect();
    let mut missing = Vec::new();
    if nbd.is_empty() {
        missing.push(MissingWayView {
            protocol: Protocol::Nbd,
            message: match server.nbd.is_empty() {
                true => "the server has no NBD listener: start it with --nbd ADDRESS".to_owned(),
                false => {
                    "no NBD listener exports this disk: see [[nbd.listener]] in the configuration".to_owned()
                }
            },
        });
    }
    if iscsi.is_empty() {
        missing.push(if server.iscsi.is_empty() {
            without_iscsi()
        } else {
            let map = format!("forebay lun map TARGET {}", quote::shell(disk.name));
            MissingWayView {
                protocol: Protocol::Iscsi,
                message: format!("the disk is not mapped to an iSCSI target: {map}"),
            }
        });
    }
    if nvme.is_empty() {
        missing.push(if server.nvme.is_empty() {
            without_nvme()
        } else {
            let map = format!("forebay lun map TARGET {}", quote::shell(disk.name));
            let message = format!("the disk is not mapped to a target whose name NVMe can have: {map}");
            MissingWayView { protocol: Protocol::Nvme, message }
        });
    }
    let mut ways: Vec<WayView> = nbd.into_iter().chain(iscsi).chain(nvme).collect();
    server.note_others(&mut ways);
    ConnectView { ways, missing }
}

/// The ways to a target.
pub(crate) fn to_target(server: &Places, target: &Target) -> ConnectView {
    let mut missing = Vec::new();
    let mut ways = iscsi::ways(&server.iscsi, target, None);
    if ways.is_empty() && !target.name.is_nqn() {
        missing.push(without_iscsi());
    }
    let nvme = nvme::ways(&server.nvme, target, None);
    if nvme.is_empty() && target.name.subsystem().is_some() {
        missing.push(without_nvme());
    }
    ways.extend(nvme);
    server.note_others(&mut ways);
    ConnectView { ways, missing }
}

fn without_nvme() -> MissingWayView {
    let message = "the server has no NVMe listener: start it with --nvme HOST:PORT".to_owned();
    MissingWayView { protocol: Protocol::Nvme, message }
}

fn without_iscsi() -> MissingWayView {
    let message = "the server has no iSCSI listener: start it with --iscsi HOST:PORT".to_owned();
    MissingWayView { protocol: Protocol::Iscsi, message }
}

/// Host and port for a client. A client cannot use an address that stands for all addresses of the server.
fn reachable(address: &str) -> (&str, &str) {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    (if matches!(host, "0.0.0.0" | "[::]" | "*") { SERVER } else { host }, port)
}

/// Stands for the name of the server.
const SERVER: &str = "SERVER";

/// Explains [`SERVER`], if the text has it.
fn note_on_server(host: &str) -> Option<String> {
    (host == SERVER).then(|| format!("Replace {SERVER} by a name or an address of this server."))
}
