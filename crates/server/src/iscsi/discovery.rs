//! SendTargets (RFC 7143, appendix C): which targets an initiator may come to, and where.

use std::net::SocketAddr;

use forebay_wire::iscsi::text;

use super::connection::{Context, portals};
use super::login::PORTAL_GROUP;
use crate::targets::{IqnName, Target};

/// The answer to `SendTargets=wanted`. `current` is the target of the session, if it has one: only that is told of
/// then. Targets that the initiator may not come to are not named.
pub(super) fn send_targets(
    context: &Context,
    initiator: &IqnName,
    current: Option<&IqnName>,
    wanted: &str,
    local: SocketAddr,
    out: &mut Vec<u8>,
) {
    let (snapshot, portals) = (context.targets.snapshot(), portals(context, local));
    let named: Option<IqnName> = wanted.parse().ok();
    let is_wanted = |target: &Target| match (wanted, current) {
        ("All", None) => true,
        ("" | "All", Some(current)) => target.name == *current,
        _ => named.as_ref() == Some(&target.name),
    };
    for target in snapshot.values().filter(|t| is_wanted(t) && t.admission(initiator).is_some()) {
        text::push(out, "TargetName", target.name.as_str());
        for portal in &portals {
            text::push(out, "TargetAddress", &format!("{portal},{PORTAL_GROUP}"));
        }
    }
}
