//! The discovery subsystem: the subsystems that a host can use, and their addresses (Base 3.1.2.3).

use std::net::SocketAddr;

use forebay_wire::nvme::log::{Portal, discovery};

use super::context::Context;
use crate::portals::reachable;
use crate::targets::{IqnName, Target};

/// Maximum entries of the log page.
const MAX_ENTRIES: usize = 4096;

/// Whether a host can use a target as a subsystem. If the target requires CHAP of the host, only a host with
/// a key for DH-HMAC-CHAP can use it, since NVMe has no CHAP.
pub(super) fn admits(target: &Target, host: &IqnName) -> bool {
    target.admission(host).is_some_and(|admission| admission.chap.is_none() || admission.dhchap.is_some())
}

/// The log page of a host that is connected to `local`.
pub(super) fn log_page(context: &Context, host: &IqnName, local: SocketAddr) -> Vec<u8> {
    let generation = context.targets.last_change();
    let snapshot = context.targets.snapshot();
    let listeners = context.portals.get().map_or(&[][..], |portals| portals);
    let addresses = reachable(listeners, local);
    let admitted = snapshot.values().filter(|target| admits(target, host));
    let mut names: Vec<String> = admitted.filter_map(|target| target.name.subsystem()).collect();
    names.sort();
    names.dedup();
    let entries = names.iter().flat_map(|name| {
        addresses.iter().map(move |address| Portal { subsystem: name.as_str(), address: *address })
    });
    discovery(generation, &entries.take(MAX_ENTRIES).collect::<Vec<_>>())
}
