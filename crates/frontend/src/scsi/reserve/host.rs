//! Reservations as NVMe hosts request and see them (NVMe Base 8.19), on the state that SCSI has too.
//!
//! A host is one registrant, whatever controllers it has ([`Port::is`]). The types have the same meaning in
//! both protocols. NVMe differs from SCSI in how a registration begins and is replaced, and in that a host
//! can omit its key. A change becomes the service action of SCSI that has the same effect.

use sha2::{Digest, Sha256};

use forebay_wire::nvme::reservation::{Registrant, status};
use forebay_wire::scsi::{ReservationType, ReserveOut, ReserveParameters, Sense, codes};

use super::{Effects, Refusal, Reservations};
use crate::scsi::port::Port;
use std::sync::Arc;

/// A change that a host requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostChange {
    /// The change.
    pub action: HostAction,
    /// The present key of the host; `None` if it is not checked.
    pub key: Option<u64>,
    /// Whether registrations and reservation persist through power loss; `None` for no change.
    pub keep: Option<bool>,
}

/// What a host requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostAction {
    /// Register with this key.
    Register(u64),
    /// Replace the key by this key.
    Replace(u64),
    /// Remove the registration.
    Unregister,
    /// Acquire a reservation.
    Acquire(ReservationType),
    /// Remove the registrations with a key.
    Preempt {
        /// The type that the reservation gets, if it is taken.
        kind: ReservationType,
        /// The key.
        key: u64,
        /// Commands of the removed registrants are aborted.
        abort: bool,
    },
    /// Release the reservation.
    Release(ReservationType),
    /// Remove all registrations and the reservation.
    Clear,
}

impl Reservations {
    /// Executes a change of the host `port`.
    pub fn change_by_host(&mut self, port: &Arc<Port>, change: &HostChange) -> Result<Effects, Refusal> {
        let own = self.key(port);
        let invalid = Refusal::Check(Sense::illegal(codes::INVALID_FIELD_IN_PARAMETER_LIST));
        let (action, key, action_key) = match (change.action, own) {
            // A key of 0 removes a registration in SCSI.
            (HostAction::Register(0) | HostAction::Replace(0), _) => return Err(invalid),
            (HostAction::Register(new), None) => (ReserveOut::Register, 0, new),
            // The host is registered already.
            (HostAction::Register(new), Some(own)) if new != own => return Err(Refusal::Conflict),
            (HostAction::Register(new), Some(own)) => (ReserveOut::Register, own, new),
            (_, None) => return Err(Refusal::Conflict),
            (action, Some(own)) => {
                let key = change.key.unwrap_or(own);
                match action {
                    HostAction::Replace(new) | HostAction::Register(new) => (ReserveOut::Register, key, new),
                    HostAction::Unregister => (ReserveOut::Register, key, 0),
                    HostAction::Acquire(kind) => (ReserveOut::Reserve(kind), key, 0),
                    HostAction::Preempt { kind, key: other, abort: false } => {
                        (ReserveOut::Preempt(kind), key, other)
                    }
                    HostAction::Preempt { kind, key: other, abort: true } => {
                        (ReserveOut::PreemptAndAbort(kind), key, other)
                    }
                    HostAction::Release(kind) => (ReserveOut::Release(kind), key, 0),
                    HostAction::Clear => (ReserveOut::Clear, key, 0),
                }
            }
        };
        let keep = change.keep.unwrap_or(self.keep);
        self.change(port, action, &ReserveParameters { key, action_key, keep })
    }

    /// The data of a report to a host, with the registrants that are `visible` to it.
    pub fn report_to_host(&self, visible: impl Fn(&Port) -> bool) -> Vec<u8> {
        let registrants: Vec<Registrant> = self
            .registrations
            .iter()
            .filter(|registration| visible(&registration.port))
            .map(|registration| Registrant {
                host_id: host_id(&registration.port),
                key: registration.key,
                holds: self.holds(&registration.port).is_some(),
            })
            .collect();
        status(self.generation, self.held.as_ref().map(|(kind, _)| *kind), self.keep, &registrants)
    }
}

/// The identifier by which a report names a registrant. A SCSI nexus has none: it gets one that is made of
/// its names.
fn host_id(port: &Port) -> [u8; 16] {
    port.host_id.unwrap_or_else(|| {
        let digest = Sha256::new().chain_update(&port.initiator).chain_update(port.isid).finalize();
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        id
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{port, with};
    use super::*;

    fn host(n: u8, controller: u8) -> Arc<Port> {
        Arc::new(Port {
            initiator: format!("nqn.2026-11.example:host{n}"),
            isid: [0, 0, 0, 0, 0, controller],
            host_id: Some([n; 16]),
            ..Port::clone(&port(n))
        })
    }

    fn change(action: HostAction, key: Option<u64>) -> HostChange {
        HostChange { action, key, keep: None }
    }

    const TYPE: ReservationType = ReservationType::WriteExclusiveRegistrants;

    #[test]
    fn a_host_is_one_registrant_with_all_of_its_controllers() {
        let mut state = Reservations::default();
        let register = change(HostAction::Register(5), Some(99));
        state.change_by_host(&host(1, 1), &register).unwrap();
        state.change_by_host(&host(1, 2), &register).unwrap();
        assert_eq!(state.registrations.len(), 1);
        let other = change(HostAction::Register(6), Some(5));
        assert_eq!(state.change_by_host(&host(1, 2), &other).unwrap_err(), Refusal::Conflict);
        state.change_by_host(&host(1, 2), &change(HostAction::Acquire(TYPE), Some(5))).unwrap();
        assert!(!state.conflicts(&host(1, 9), forebay_wire::scsi::Access::Write));
        assert!(state.conflicts(&host(2, 1), forebay_wire::scsi::Access::Write));
        let same_name = Port { host_id: Some([8; 16]), ..Port::clone(&host(1, 1)) };
        assert!(state.conflicts(&same_name, forebay_wire::scsi::Access::Write), "another host identifier");
    }

    #[test]
    fn keys_are_checked_unless_they_are_omitted() {
        let mut state = Reservations::default();
        let h = host(1, 1);
        for action in [HostAction::Replace(7), HostAction::Unregister, HostAction::Clear] {
            assert_eq!(state.change_by_host(&h, &change(action, None)).unwrap_err(), Refusal::Conflict);
        }
        state.change_by_host(&h, &change(HostAction::Register(5), None)).unwrap();
        for action in [HostAction::Replace(7), HostAction::Unregister, HostAction::Acquire(TYPE)] {
            assert_eq!(state.change_by_host(&h, &change(action, Some(4))).unwrap_err(), Refusal::Conflict);
        }
        assert!(matches!(
            state.change_by_host(&h, &change(HostAction::Replace(0), None)).unwrap_err(),
            Refusal::Check(_)
        ));
        state.change_by_host(&h, &change(HostAction::Replace(7), None)).unwrap();
        assert_eq!((state.key(&h), state.generation), (Some(7), 2));
        state
            .change_by_host(&h, &HostChange { keep: Some(true), ..change(HostAction::Replace(8), Some(7)) })
            .unwrap();
        assert!(state.keep);
        state.change_by_host(&h, &change(HostAction::Unregister, Some(8))).unwrap();
        assert!(state.is_empty());
    }

    #[test]
    fn hosts_and_nexuses_preempt_each_other() {
        let mut state = Reservations::default();
        state.change(&port(2), ReserveOut::Register, &with(0, 2)).unwrap();
        state.change(&port(2), ReserveOut::Reserve(TYPE), &with(2, 0)).unwrap();
        state.change_by_host(&host(1, 1), &change(HostAction::Register(1), None)).unwrap();
        let preempt = HostAction::Preempt { kind: ReservationType::ExclusiveAccess, key: 2, abort: true };
        let effects = state.change_by_host(&host(1, 1), &change(preempt, Some(1))).unwrap();
        assert!(effects.aborted.len() == 1 && effects.aborted[0].is(&port(2)));
        assert_eq!(state.holds(&host(1, 3)), Some(ReservationType::ExclusiveAccess));
        state.change(&port(2), ReserveOut::Register, &with(0, 3)).unwrap();
        let report = state.report_to_host(|_| true);
        assert_eq!((report[4], report[5], report[66], report[130]), (2, 2, 1, 0));
        assert_eq!(report[80..96], [1; 16]);
        assert_ne!(report[144..160], [0; 16], "the nexus has an identifier");
        assert_eq!(state.report_to_host(|port| port.host_id.is_some())[5], 1);
    }
}
