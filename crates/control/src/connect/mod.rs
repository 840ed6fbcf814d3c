//! What a client needs in order to use a disk or a target: addresses, options and commands to copy.
//!
//! An administrator copies these texts, and a user with fewer rights may have chosen the names in them: so
//! each name is quoted for the place where it is inserted (`quote.rs`). No text has a secret.

mod iscsi;
mod nbd;
mod quote;
#[cfg(test)]
mod tests;

use forebay_api::{ConnectView, MissingWayView, Protocol, WayView};
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

/// The ways to a disk.
pub(crate) fn to_disk(disk: Disk<'_>, server: &ServerInfo, targets: &TargetMap) -> ConnectView {
    let offering = |listener: &&ServedListener| listener.access.offers(disk.name);
    let nbd: Vec<WayView> =
        server.nbd.iter().filter(offering).flat_map(|listener| nbd::ways(disk, listener)).collect();
    let luns = targets.values().filter_map(|target| Some((&**target, target.lun_of(disk.name)?)));
    let iscsi: Vec<WayView> =
        luns.flat_map(|(target, lun)| iscsi::ways(&server.iscsi, target, Some(lun))).collect();
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
    ConnectView { ways: nbd.into_iter().chain(iscsi).collect(), missing }
}

/// The ways to a target.
pub(crate) fn to_target(server: &ServerInfo, target: &Target) -> ConnectView {
    let ways = iscsi::ways(&server.iscsi, target, None);
    let missing = if ways.is_empty() { vec![without_iscsi()] } else { Vec::new() };
    ConnectView { ways, missing }
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
