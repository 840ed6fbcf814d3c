use super::*;

pub(super) fn port(n: u8) -> Arc<Port> {
    Arc::new(Port {
        initiator: format!("iqn.2026-11.example:host{n}"),
        isid: [0x80, 0, 0, 0, 0, n],
        target: "iqn.2026-11.example:disks".into(),
        tpgt: 1,
        relative_port: 1,
        host_id: None,
    })
}

pub(super) fn with(key: u64, action_key: u64) -> ReserveParameters {
    ReserveParameters { key, action_key, keep: false }
}

/// Hosts 1 to 3 are registered with keys 1 to 3.
fn three() -> Reservations {
    let mut state = Reservations::default();
    for n in 1..=3 {
        state.change(&port(n), ReserveOut::Register, &with(0, n.into())).unwrap();
    }
    state
}

fn notified(effects: &Effects) -> Vec<(u8, UnitAttention)> {
    effects.attentions.iter().map(|(port, attention)| (port.isid[5], *attention)).collect()
}

#[test]
fn each_type_allows_reads_and_writes_as_specified() {
    for kind in ReservationType::ALL {
        let mut state = three();
        state.change(&port(1), ReserveOut::Reserve(kind), &with(1, 0)).unwrap();
        let reads = |n| !state.conflicts(&port(n), Access::Read);
        let writes = |n| !state.conflicts(&port(n), Access::Write);
        let registrants = kind as u8 >= 5;
        let readable = kind.allows_reads();
        assert_eq!((reads(1), writes(1)), (true, true), "{kind:?}, the holder");
        assert_eq!((reads(2), writes(2)), (registrants || readable, registrants), "{kind:?}, registered");
        assert_eq!((reads(9), writes(9)), (readable, false), "{kind:?}, not registered");
        assert!(!state.conflicts(&port(9), Access::Status));
    }
}

#[test]
fn a_wrong_key_is_a_conflict_and_changes_nothing() {
    let mut state = three();
    let before = state.generation;
    for action in [
        ReserveOut::Register,
        ReserveOut::Reserve(ReservationType::WriteExclusive),
        ReserveOut::Release(ReservationType::WriteExclusive),
        ReserveOut::Clear,
        ReserveOut::Preempt(ReservationType::WriteExclusive),
    ] {
        assert_eq!(state.change(&port(1), action, &with(7, 8)).unwrap_err(), Refusal::Conflict);
        assert_eq!(state.change(&port(9), action, &with(7, 8)).unwrap_err(), Refusal::Conflict);
    }
    assert_eq!((state.generation, state.registrations.len()), (before, 3));
    state.change(&port(1), ReserveOut::RegisterAndIgnore, &with(7, 8)).unwrap();
    assert_eq!((state.generation, state.key(&port(1))), (before + 1, Some(8)));
    // Unregistering a nexus that is not registered has no effect.
    state.change(&port(9), ReserveOut::RegisterAndIgnore, &with(0, 0)).unwrap();
    assert_eq!((state.generation, state.registrations.len()), (before + 1, 3));
}

#[test]
fn unregistering_the_holder_releases_unless_all_registrants_hold_it() {
    for kind in ReservationType::ALL {
        let mut state = three();
        state.change(&port(1), ReserveOut::Reserve(kind), &with(1, 0)).unwrap();
        let effects = state.change(&port(1), ReserveOut::Register, &with(1, 0)).unwrap();
        assert_eq!(state.is_reserved(), kind.held_by_all(), "{kind:?}");
        let released = UnitAttention::ReservationsReleased;
        let expected = if kind.includes_registrants() && !kind.held_by_all() {
            vec![(2, released), (3, released)]
        } else {
            vec![]
        };
        assert_eq!(notified(&effects), expected);
        for n in 2..=3 {
            state.change(&port(n), ReserveOut::Register, &with(n.into(), 0)).unwrap();
        }
        assert!(!state.is_reserved() && state.is_empty());
    }
}

#[test]
fn only_the_holder_releases_and_only_with_the_right_type() {
    use ReservationType::*;
    let mut state = three();
    state.change(&port(1), ReserveOut::Reserve(WriteExclusive), &with(1, 0)).unwrap();
    state.change(&port(2), ReserveOut::Release(WriteExclusive), &with(2, 0)).unwrap();
    assert!(state.is_reserved());
    let wrong = state.change(&port(1), ReserveOut::Release(ExclusiveAccess), &with(1, 0));
    assert_eq!(wrong.unwrap_err(), Refusal::Check(Sense::illegal(codes::INVALID_RELEASE)));
    let again = state.change(&port(1), ReserveOut::Reserve(WriteExclusive), &with(1, 0));
    assert!(again.is_ok());
    for (n, kind) in [(1, ExclusiveAccess), (2, WriteExclusive)] {
        let other = state.change(&port(n), ReserveOut::Reserve(kind), &with(n.into(), 0));
        assert_eq!(other.unwrap_err(), Refusal::Conflict);
    }
    assert!(
        notified(&state.change(&port(1), ReserveOut::Release(WriteExclusive), &with(1, 0)).unwrap())
            .is_empty()
    );
    state.change(&port(3), ReserveOut::Reserve(ExclusiveAccessAll), &with(3, 0)).unwrap();
    let effects = state.change(&port(1), ReserveOut::Release(ExclusiveAccessAll), &with(1, 0)).unwrap();
    let released = UnitAttention::ReservationsReleased;
    assert_eq!(notified(&effects), [(2, released), (3, released)]);
}

#[test]
fn preempting_removes_registrations_and_takes_the_reservation() {
    use ReservationType::*;
    let preempted = UnitAttention::RegistrationsPreempted;
    // The holder's key removes its registration and takes the reservation.
    let mut state = three();
    state.change(&port(1), ReserveOut::Reserve(WriteExclusive), &with(1, 0)).unwrap();
    let action = ReserveOut::PreemptAndAbort(ExclusiveAccess);
    let effects = state.change(&port(2), action, &with(2, 1)).unwrap();
    let released = UnitAttention::ReservationsReleased;
    assert_eq!(notified(&effects), [(1, preempted), (3, released)]);
    assert_eq!(effects.aborted.len(), 1);
    assert_eq!(state.holds(&port(2)), Some(ExclusiveAccess));
    assert_eq!(state.key(&port(1)), None);
    // Another key removes only registrations; an unknown key is a conflict, and 0 is no key.
    let effects = state.change(&port(2), ReserveOut::Preempt(WriteExclusive), &with(2, 3)).unwrap();
    assert_eq!(notified(&effects), [(3, preempted)]);
    assert_eq!(state.holds(&port(2)), Some(ExclusiveAccess));
    let unknown = state.change(&port(2), ReserveOut::Preempt(WriteExclusive), &with(2, 3));
    assert_eq!(unknown.unwrap_err(), Refusal::Conflict);
    let zero = state.change(&port(2), ReserveOut::Preempt(WriteExclusive), &with(2, 0));
    assert_eq!(zero.unwrap_err(), Refusal::Check(Sense::parameter(8)));
    // Its own key changes the type.
    state.change(&port(2), ReserveOut::Preempt(WriteExclusive), &with(2, 2)).unwrap();
    assert_eq!(state.holds(&port(2)), Some(WriteExclusive));
    // Key 0 removes all other holders of a reservation that all registrants hold.
    let mut state = three();
    state.change(&port(1), ReserveOut::Reserve(WriteExclusiveAll), &with(1, 0)).unwrap();
    let effects = state.change(&port(3), ReserveOut::Preempt(WriteExclusive), &with(3, 0)).unwrap();
    assert_eq!(notified(&effects), [(1, preempted), (2, preempted)]);
    assert_eq!((state.registrations.len(), state.holds(&port(3))), (1, Some(WriteExclusive)));
}

#[test]
fn clear_removes_everything_and_notifies_the_others() {
    let mut state = three();
    state.change(&port(1), ReserveOut::Reserve(ReservationType::WriteExclusive), &with(1, 0)).unwrap();
    let before = state.generation;
    let effects = state.change(&port(2), ReserveOut::Clear, &with(2, 0)).unwrap();
    let preempted = UnitAttention::ReservationsPreempted;
    assert_eq!(notified(&effects), [(1, preempted), (3, preempted)]);
    assert_eq!((state.is_empty(), state.is_reserved(), state.generation), (true, false, before + 1));
}

#[test]
fn registrations_are_bounded() {
    let mut state = Reservations::default();
    let numbered = |n: usize| {
        let mut port = (*port(0)).clone();
        port.isid[3..5].copy_from_slice(&(n as u16).to_be_bytes());
        Arc::new(port)
    };
    for n in 0..REGISTRATIONS_MAX {
        state.change(&numbered(n), ReserveOut::Register, &with(0, 5)).unwrap();
    }
    let full = state.change(&port(9), ReserveOut::Register, &with(0, 5));
    assert_eq!(full.unwrap_err(), Refusal::Check(Sense::illegal(codes::INSUFFICIENT_REGISTRATIONS)));
}
