//! SendTargets (RFC 7143, appendix C): the targets that an initiator can use, and their addresses.

use std::net::SocketAddr;

use forebay_wire::iscsi::text;

use super::context::{Context, Disks};
use crate::portals::reachable;
use crate::targets::{IqnName, Target};

/// Appends the answer to `SendTargets=wanted`. `current` is the target of the session; `None` for a discovery
/// session. With a target, an empty value and `All` select only this target. Targets that do not admit the
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
    // The portals of other servers, which serve the targets in the state standby.
    let others = context.groups.others();
    let named: Option<IqnName> = wanted.parse().ok();
    let is_wanted = |target: &Target| match (wanted, current) {
        ("All", None) => true,
        ("" | "All", Some(current)) => target.name == *current,
        _ => named.as_ref() == Some(&target.name),
    };
    let is_visible = |target: &Target| !target.name.is_nqn() && target.admission(initiator).is_some();
    for target in snapshot.values().filter(|t| is_wanted(t) && is_visible(t)) {
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

/// Maximum number of portals that an initiator discovers for a target of a cluster: some initiators log in to
/// each of them.
const MAX_OF_CLUSTER: usize = 16;

/// The addresses that an initiator connected to `local` discovers: those of this server, and at a node of a
/// cluster those of other nodes.
fn portals(context: &Context, local: SocketAddr) -> Vec<SocketAddr> {
    let mut portals = own_portals(context, local);
    if let Disks::OfCluster(cluster) = &context.disks {
        for portal in cluster.others() {
            if portals.len() < MAX_OF_CLUSTER && !portals.contains(&portal) {
                portals.push(portal);
            }
        }
    }
    portals
}

/// The addresses of this server: those that are configured for initiators,
/// such as the addresses of a router that translates addresses; otherwise the listening addresses, with
/// `local` in place of an unspecified address of its family.
fn own_portals(context: &Context, local: SocketAddr) -> Vec<SocketAddr> {
    if let Some(announced) = &context.announced {
        return announced.clone();
    }
    let listeners = context.portals.get().map_or(&[][..], |portals| portals);
    reachable(listeners, local)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Arc;

    use forebay_wire::iscsi::reply::LoginStatus;

    use super::super::groups::PortGroups;
    use super::super::registry::Registry;
    use super::super::standby::Standby;
    use super::*;
    use crate::iscsi::{ClusterPortals, ClusterTargets, SessionLimits, ShardOwners, WhileStandby};
    use crate::plane::ListenAddr;
    use crate::targets::ServedTargets;

    struct NoOwners;

    impl ShardOwners for NoOwners {
        fn refresh(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
            Box::pin(async { true })
        }

        fn owner(&self, _: u32) -> Pin<Box<dyn Future<Output = Option<Vec<SocketAddr>>> + Send + '_>> {
            Box::pin(async { None })
        }
    }

    fn discovered(announced: Option<&[&str]>) -> Vec<SocketAddr> {
        discovered_with(announced, Disks::OfOther(Standby::new(WhileStandby::Closed)))
    }

    fn discovered_with(announced: Option<&[&str]>, disks: Disks) -> Vec<SocketAddr> {
        let parse = |text: &&str| text.parse().unwrap();
        let context = Context {
            disks,
            targets: Arc::new(ServedTargets::new(Default::default())),
            groups: Arc::new(PortGroups::new(1)),
            registry: Registry::new(SessionLimits { all: 9, per_initiator: 9, per_address: 9 }),
            attempts: Default::default(),
            chap_algorithms: Vec::new(),
            announced: announced.map(|portals| portals.iter().map(parse).collect()),
            portals: Default::default(),
            unknown_target: LoginStatus::NotFound,
        };
        context.portals.set(vec![ListenAddr::Tcp("0.0.0.0:3260".into())]).unwrap();
        portals(&context, parse(&"172.17.0.2:3260"))
    }

    #[test]
    fn initiators_of_a_cluster_discover_the_portals_of_all_nodes() {
        let targets = Arc::new(ClusterTargets::default());
        let portal = |n: u8| SocketAddr::from(([10, 0, 0, n], 3260));
        targets.set_others((1..=40).map(portal).collect());
        let disks = Disks::OfCluster(ClusterPortals::new(targets, Arc::new(NoOwners)));
        let found = discovered_with(Some(&["10.0.0.3:3260"]), disks);
        assert_eq!(found[..4], [portal(3), portal(1), portal(2), portal(4)]);
        assert_eq!(found.len(), MAX_OF_CLUSTER);
    }

    #[test]
    fn initiators_discover_the_portals_that_are_configured_for_them() {
        assert_eq!(discovered(None), ["172.17.0.2:3260".parse().unwrap()]);
        let outside = ["203.0.113.7:13260", "[2001:db8::7]:3260"];
        assert_eq!(discovered(Some(&outside)), outside.map(|text| text.parse().unwrap()));
    }
}
