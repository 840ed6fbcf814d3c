//! SendTargets (RFC 7143, appendix C): the targets that an initiator can use, and their addresses.

use std::net::{IpAddr, SocketAddr};

use forebay_wire::iscsi::text;

use super::context::Context;
use crate::plane::ListenAddr;
use crate::targets::{IqnName, Target};

/// Appends the answer to `SendTargets=wanted`. `current` is the target of the session; `None` for a discovery
/// session. With a target, an empty value and `All` select only this one. Targets that do not admit the
/// initiator are omitted.
pub(super) fn send_targets(
    context: &Context,
    initiator: &IqnName,
    current: Option<&IqnName>,
    wanted: &str,
    local: SocketAddr,
    out: &mut Vec<u8>,
) {
    let (snapshot, portals) = (context.targets.snapshot(), portals(context, local));
    // Portals of servers that serve the targets in the state standby.
    let others = context.groups.others();
    let named: Option<IqnName> = wanted.parse().ok();
    let is_wanted = |target: &Target| match (wanted, current) {
        ("All", None) => true,
        ("" | "All", Some(current)) => target.name == *current,
        _ => named.as_ref() == Some(&target.name),
    };
    for target in snapshot.values().filter(|t| is_wanted(t) && t.admission(initiator).is_some()) {
        text::push(out, "TargetName", target.name.as_str());
        for (group, portals) in [(context.groups.own(), &portals)]
            .into_iter()
            .chain(others.iter().map(|(group, portals)| (*group, portals)))
        {
            for portal in portals {
                text::push(out, "TargetAddress", &format!("{portal},{group}"));
            }
        }
    }
}

/// The addresses that an initiator connected to `local` discovers: the listening addresses, with `local` in
/// place of an unspecified address of its family.
fn portals(context: &Context, local: SocketAddr) -> Vec<SocketAddr> {
    let mut portals = Vec::new();
    for listen in context.portals.get().into_iter().flatten() {
        let ListenAddr::Tcp(address) = listen else { continue };
        let Ok(address) = address.parse::<SocketAddr>() else { continue };
        let portal = match address.ip() {
            ip if !ip.is_unspecified() => address,
            IpAddr::V4(_) if local.is_ipv4() => SocketAddr::new(local.ip(), address.port()),
            IpAddr::V6(_) if local.is_ipv6() => SocketAddr::new(local.ip(), address.port()),
            _ => continue,
        };
        if !portals.contains(&portal) {
            portals.push(portal);
        }
    }
    if portals.is_empty() {
        portals.push(local);
    }
    portals
}
