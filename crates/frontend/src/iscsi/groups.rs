//! The target port groups of a pool: one for each server that can serve it. Its number is also the portal
//! group tag of the server's portals (RFC 7143, 4.4.1).
//!
//! One group is active: the group of the server that has the pool. Each target has one port in each group.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use forebay_wire::scsi::{AccessState, PortGroup};
use parking_lot::RwLock;

/// Distance between the relative target port identifiers of the groups of a target. Identifiers of different
/// targets differ as well, up to this number of targets.
const PORTS_OF_A_GROUP: u32 = 4096;

/// The target port groups that were announced.
pub struct PortGroups {
    own: u16,
    known: RwLock<Known>,
}

struct Known {
    active: u16,
    /// The portals of the other servers.
    others: Arc<BTreeMap<u16, Vec<SocketAddr>>>,
}

impl PortGroups {
    /// The group of this server alone, which is active.
    pub fn new(own: u16) -> PortGroups {
        PortGroups { own, known: RwLock::new(Known { active: own, others: Arc::default() }) }
    }

    /// The group of this server.
    pub fn own(&self) -> u16 {
        self.own
    }

    /// Sets which group is active.
    pub fn activate(&self, active: u16) {
        self.known.write().active = active;
    }

    /// Replaces the portals of the other servers.
    pub fn set_others(&self, mut others: BTreeMap<u16, Vec<SocketAddr>>) {
        others.remove(&self.own);
        let mut known = self.known.write();
        if *known.others != others {
            known.others = Arc::new(others);
        }
    }

    /// The portals of the other servers, by group.
    pub(super) fn others(&self) -> Arc<BTreeMap<u16, Vec<SocketAddr>>> {
        self.known.read().others.clone()
    }

    /// The groups of a target, with their states.
    pub(super) fn of_target(&self, number: u16) -> Vec<PortGroup> {
        let known = self.known.read();
        let mut groups: Vec<u16> = known.others.keys().copied().chain([self.own, known.active]).collect();
        groups.sort_unstable();
        groups.dedup();
        let state = |group| match group == known.active {
            true => AccessState::Optimized,
            false => AccessState::Standby,
        };
        let relative_port = |group| relative_port(number, group);
        groups
            .into_iter()
            .map(|group| PortGroup { group, state: state(group), relative_port: relative_port(group) })
            .collect()
    }
}

/// The relative target port identifier of a target in a group. It never changes; in group 1 it is the number
/// of the target.
pub(super) fn relative_port(target: u16, group: u16) -> u16 {
    // The result is from 1 to 65535, as the groups are less than 16 apart; it differs for each group.
    let shift = u32::from(group.saturating_sub(1)) * PORTS_OF_A_GROUP;
    let port = (u32::from(target.saturating_sub(1)) + shift) % u32::from(u16::MAX);
    port as u16 + 1
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn relative_ports_are_unique() {
        assert_eq!((relative_port(1, 1), relative_port(65535, 1)), (1, 65535));
        for target in [1, 2, 4095, 4096, 30_000, 61_440, 65_535] {
            let ports: HashSet<u16> = (1..=16).map(|group| relative_port(target, group)).collect();
            assert!(ports.len() == 16 && !ports.contains(&0), "{target}: {ports:?}");
        }
        let all: HashSet<u16> = (1..=4095).flat_map(|t| (1..=16).map(move |g| relative_port(t, g))).collect();
        assert_eq!(all.len(), 4095 * 16);
    }

    #[test]
    fn exactly_one_group_is_active() {
        let groups = PortGroups::new(2);
        let one = PortGroup { group: 2, state: AccessState::Optimized, relative_port: 4103 };
        assert_eq!(groups.of_target(7), [one]);
        groups.set_others([(2, vec![]), (5, vec![])].into());
        groups.activate(1);
        let states: Vec<_> = groups.of_target(7).iter().map(|g| (g.group, g.state as u8)).collect();
        assert_eq!(states, [(1, 0), (2, 2), (5, 2)]);
        assert_eq!(groups.others().keys().collect::<Vec<_>>(), [&5]);
    }
}
