//! Persistent reservations (SPC-4, "Persistent reservations"): who is registered with a unit, who has
//! reserved it, and what the service actions of PERSISTENT RESERVE OUT make of that.
//!
//! Pure state: a change is made on a copy, which the unit keeps with the disk first and then installs.

use std::sync::Arc;

use forebay_wire::scsi::{
    Access, FullStatus, ReservationType, ReserveIn, ReserveOut, ReserveParameters, Sense, codes, full_status,
    keys, reservation, reservation_capabilities,
};

use super::attention::UnitAttention;
use super::unit::Port;

/// Most registrations of a unit. An initiator that does not remember its session's ISID makes one with each
/// login.
pub(super) const REGISTRATIONS_MAX: usize = 1024;

/// A nexus that is registered.
#[derive(Debug, Clone)]
pub(super) struct Registration {
    pub key: u64,
    pub port: Arc<Port>,
}

/// Registrations and reservation of a unit.
#[derive(Debug, Clone, Default)]
pub(super) struct Reservations {
    pub generation: u32,
    /// They are kept when the power is lost (APTPL of the last registration).
    pub keep: bool,
    pub registrations: Vec<Registration>,
    /// The type, and who holds it; of a type that all hold, who made it.
    pub held: Option<(ReservationType, Arc<Port>)>,
}

/// Why a service action is not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION.
    Check(Sense),
}

/// What follows from a service action.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// Who has to be told what.
    pub attentions: Vec<(Arc<Port>, UnitAttention)>,
    /// Whose commands are aborted.
    pub aborted: Vec<Arc<Port>>,
}

impl Reservations {
    /// Nobody is registered.
    pub fn is_empty(&self) -> bool {
        self.registrations.is_empty()
    }

    /// There is a reservation.
    pub fn is_reserved(&self) -> bool {
        self.held.is_some()
    }

    /// The key of a nexus, if it is registered.
    fn key(&self, port: &Port) -> Option<u64> {
        self.registrations.iter().find(|r| r.port.is(port)).map(|r| r.key)
    }

    /// The type of the reservation, if this nexus holds it.
    fn holds(&self, port: &Port) -> Option<ReservationType> {
        let (kind, holder) = self.held.as_ref()?;
        let holds = if kind.held_by_all() { self.key(port).is_some() } else { holder.is(port) };
        holds.then_some(*kind)
    }

    /// Whether a command of this nexus conflicts.
    pub fn conflicts(&self, port: &Port, access: Access) -> bool {
        let Some((kind, holder)) = &self.held else { return false };
        let shut_out = match access {
            Access::Always | Access::Status | Access::Reserve | Access::Release => false,
            Access::Read => !kind.allows_reads(),
            Access::Write => true,
        };
        let exempt = || {
            if kind.includes_registrants() { self.key(port).is_some() } else { holder.is(port) }
        };
        shut_out && !exempt()
    }

    /// PERSISTENT RESERVE IN data, with those nexuses that are `visible` to the initiator.
    pub fn tell(&self, action: ReserveIn, visible: impl Fn(&Port) -> bool) -> Vec<u8> {
        let registrations = || self.registrations.iter().filter(|r| visible(&r.port));
        match action {
            ReserveIn::Keys => keys(self.generation, registrations().map(|r| r.key)),
            ReserveIn::Reservation => {
                let held = self.held.as_ref().map(|(kind, holder)| {
                    let shown = !kind.held_by_all() && visible(holder);
                    let key = if shown { self.key(holder) } else { None };
                    (key.unwrap_or(0), *kind)
                });
                reservation(self.generation, held)
            }
            ReserveIn::Capabilities => reservation_capabilities(self.keep),
            ReserveIn::FullStatus => {
                let all = registrations().map(|r| FullStatus {
                    key: r.key,
                    holds: self.holds(&r.port),
                    relative_port: r.port.relative_port,
                    initiator: &r.port.initiator,
                    isid: r.port.isid,
                });
                full_status(self.generation, all)
            }
        }
    }

    /// Carries out a service action of PERSISTENT RESERVE OUT that `port` asks for.
    pub fn change(
        &mut self,
        port: &Arc<Port>,
        action: ReserveOut,
        parameters: &ReserveParameters,
    ) -> Result<Effects, Refusal> {
        let own = self.key(port);
        let may = match action {
            ReserveOut::RegisterAndIgnore => true,
            ReserveOut::Register => own.unwrap_or(0) == parameters.key,
            _ => own == Some(parameters.key),
        };
        if !may {
            return Err(Refusal::Conflict);
        }
        match action {
            ReserveOut::Register | ReserveOut::RegisterAndIgnore => self.register(port, parameters),
            ReserveOut::Reserve(kind) => self.reserve(port, kind),
            ReserveOut::Release(kind) => self.release(port, kind),
            ReserveOut::Clear => Ok(self.clear(port)),
            ReserveOut::Preempt(kind) => self.preempt(port, kind, parameters.action_key, false),
            ReserveOut::PreemptAndAbort(kind) => self.preempt(port, kind, parameters.action_key, true),
        }
    }

    fn register(&mut self, port: &Arc<Port>, parameters: &ReserveParameters) -> Result<Effects, Refusal> {
        let at = self.registrations.iter().position(|r| r.port.is(port));
        let mut effects = Effects::default();
        match (at, parameters.action_key) {
            // Nothing to remove.
            (None, 0) => return Ok(effects),
            (Some(at), 0) => {
                let held = self.holds(port);
                self.registrations.remove(at);
                if let Some(kind) = held
                    && (!kind.held_by_all() || self.is_empty())
                {
                    self.end(port, &mut effects);
                }
            }
            (Some(at), key) => self.registrations[at].key = key,
            (None, _) if self.registrations.len() >= REGISTRATIONS_MAX => {
                return Err(Refusal::Check(Sense::illegal(codes::INSUFFICIENT_REGISTRATIONS)));
            }
            (None, key) => self.registrations.push(Registration { key, port: port.clone() }),
        }
        self.keep = parameters.keep;
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }

    /// The reservation ends; those that it let in are told, except who ends it.
    fn end(&mut self, by: &Port, effects: &mut Effects) {
        if let Some((kind, _)) = self.held.take()
            && kind.includes_registrants()
        {
            self.tell_others(by, UnitAttention::ReservationsReleased, effects);
        }
    }

    fn tell_others(&self, but: &Port, attention: UnitAttention, effects: &mut Effects) {
        let others = self.registrations.iter().filter(|r| !r.port.is(but));
        effects.attentions.extend(others.map(|r| (r.port.clone(), attention)));
    }

    fn reserve(&mut self, port: &Arc<Port>, kind: ReservationType) -> Result<Effects, Refusal> {
        match &self.held {
            None => self.held = Some((kind, port.clone())),
            Some(_) if self.holds(port) == Some(kind) => {}
            Some(_) => return Err(Refusal::Conflict),
        }
        Ok(Effects::default())
    }

    fn release(&mut self, port: &Port, kind: ReservationType) -> Result<Effects, Refusal> {
        let mut effects = Effects::default();
        match self.holds(port) {
            None => {}
            Some(held) if held == kind => self.end(port, &mut effects),
            Some(_) => return Err(Refusal::Check(Sense::illegal(codes::INVALID_RELEASE))),
        }
        Ok(effects)
    }

    fn clear(&mut self, port: &Port) -> Effects {
        let mut effects = Effects::default();
        self.tell_others(port, UnitAttention::ReservationsPreempted, &mut effects);
        self.remove_all();
        effects
    }

    /// Removes all registrations, at an administrator's request; every nexus that had one is to be told.
    pub fn clear_all(&mut self) -> Effects {
        let told = self.registrations.iter().map(|r| (r.port.clone(), UnitAttention::ReservationsPreempted));
        let effects = Effects { attentions: told.collect(), aborted: Vec::new() };
        self.remove_all();
        effects
    }

    fn remove_all(&mut self) {
        self.held = None;
        self.registrations.clear();
        self.generation = self.generation.wrapping_add(1);
    }

    /// Removes the registrations with `key`; with the reservation, if it is the holder's, which goes to
    /// `port`. Of a reservation that all hold, key 0 stands for it.
    fn preempt(
        &mut self,
        port: &Arc<Port>,
        kind: ReservationType,
        key: u64,
        abort: bool,
    ) -> Result<Effects, Refusal> {
        let takes_over = match &self.held {
            Some((held, _)) if held.held_by_all() => key == 0,
            Some((_, holder)) => key != 0 && self.key(holder) == Some(key),
            None => false,
        };
        if key == 0 && !takes_over {
            return Err(Refusal::Check(Sense::parameter(8)));
        }
        // Who takes the reservation over stays, though its key may be the one.
        let goes = |r: &Registration| {
            if takes_over { !r.port.is(port) && (key == 0 || r.key == key) } else { r.key == key }
        };
        let (gone, stay): (Vec<_>, Vec<_>) = self.registrations.drain(..).partition(goes);
        self.registrations = stay;
        if gone.is_empty() && !takes_over {
            return Err(Refusal::Conflict);
        }
        let mut effects = Effects::default();
        for registration in gone.iter().filter(|r| !r.port.is(port)) {
            effects.attentions.push((registration.port.clone(), UnitAttention::RegistrationsPreempted));
        }
        if takes_over {
            let before = self.held.replace((kind, port.clone()));
            if before.is_some_and(|(held, _)| held != kind) {
                self.tell_others(port, UnitAttention::ReservationsReleased, &mut effects);
            }
        } else if self.is_empty() {
            // All that held it are gone, who asked for that among them.
            self.held = None;
        }
        if abort {
            effects.aborted = gone.into_iter().map(|r| r.port).collect();
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(n: u8) -> Arc<Port> {
        Arc::new(Port {
            initiator: format!("iqn.2026-11.example:host{n}"),
            isid: [0x80, 0, 0, 0, 0, n],
            target: "iqn.2026-11.example:disks".into(),
            tpgt: 1,
            relative_port: 1,
        })
    }

    fn with(key: u64, action_key: u64) -> ReserveParameters {
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

    fn told(effects: &Effects) -> Vec<(u8, UnitAttention)> {
        effects.attentions.iter().map(|(port, attention)| (port.isid[5], *attention)).collect()
    }

    #[test]
    fn who_may_what_under_each_type() {
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
    fn keys_are_checked() {
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
        // Who is not registered has nothing to unregister.
        state.change(&port(9), ReserveOut::RegisterAndIgnore, &with(0, 0)).unwrap();
        assert_eq!((state.generation, state.registrations.len()), (before + 1, 3));
    }

    #[test]
    fn unregistering_the_holder_releases_unless_all_hold() {
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
            assert_eq!(told(&effects), expected);
            for n in 2..=3 {
                state.change(&port(n), ReserveOut::Register, &with(n.into(), 0)).unwrap();
            }
            assert!(!state.is_reserved() && state.is_empty());
        }
    }

    #[test]
    fn releasing_needs_the_holder_and_the_type() {
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
            told(&state.change(&port(1), ReserveOut::Release(WriteExclusive), &with(1, 0)).unwrap())
                .is_empty()
        );
        state.change(&port(3), ReserveOut::Reserve(ExclusiveAccessAll), &with(3, 0)).unwrap();
        let effects = state.change(&port(1), ReserveOut::Release(ExclusiveAccessAll), &with(1, 0)).unwrap();
        let released = UnitAttention::ReservationsReleased;
        assert_eq!(told(&effects), [(2, released), (3, released)]);
    }

    #[test]
    fn preempting() {
        use ReservationType::*;
        let preempted = UnitAttention::RegistrationsPreempted;
        // The holder's key: its registration and the reservation.
        let mut state = three();
        state.change(&port(1), ReserveOut::Reserve(WriteExclusive), &with(1, 0)).unwrap();
        let action = ReserveOut::PreemptAndAbort(ExclusiveAccess);
        let effects = state.change(&port(2), action, &with(2, 1)).unwrap();
        let released = UnitAttention::ReservationsReleased;
        assert_eq!(told(&effects), [(1, preempted), (3, released)]);
        assert_eq!(effects.aborted.len(), 1);
        assert_eq!(state.holds(&port(2)), Some(ExclusiveAccess));
        assert_eq!(state.key(&port(1)), None);
        // Another key: only registrations; one that nobody has is a conflict, and 0 names nobody.
        let effects = state.change(&port(2), ReserveOut::Preempt(WriteExclusive), &with(2, 3)).unwrap();
        assert_eq!(told(&effects), [(3, preempted)]);
        assert_eq!(state.holds(&port(2)), Some(ExclusiveAccess));
        let nobody = state.change(&port(2), ReserveOut::Preempt(WriteExclusive), &with(2, 3));
        assert_eq!(nobody.unwrap_err(), Refusal::Conflict);
        let zero = state.change(&port(2), ReserveOut::Preempt(WriteExclusive), &with(2, 0));
        assert_eq!(zero.unwrap_err(), Refusal::Check(Sense::parameter(8)));
        // Itself: the type changes.
        state.change(&port(2), ReserveOut::Preempt(WriteExclusive), &with(2, 2)).unwrap();
        assert_eq!(state.holds(&port(2)), Some(WriteExclusive));
        // Of a reservation that all hold, all others go with key 0.
        let mut state = three();
        state.change(&port(1), ReserveOut::Reserve(WriteExclusiveAll), &with(1, 0)).unwrap();
        let effects = state.change(&port(3), ReserveOut::Preempt(WriteExclusive), &with(3, 0)).unwrap();
        assert_eq!(told(&effects), [(1, preempted), (2, preempted)]);
        assert_eq!((state.registrations.len(), state.holds(&port(3))), (1, Some(WriteExclusive)));
    }

    #[test]
    fn clearing() {
        let mut state = three();
        state.change(&port(1), ReserveOut::Reserve(ReservationType::WriteExclusive), &with(1, 0)).unwrap();
        let before = state.generation;
        let effects = state.change(&port(2), ReserveOut::Clear, &with(2, 0)).unwrap();
        let preempted = UnitAttention::ReservationsPreempted;
        assert_eq!(told(&effects), [(1, preempted), (3, preempted)]);
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
}
