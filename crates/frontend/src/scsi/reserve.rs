//! Persistent reservations (SPC-4, "Persistent reservations"): the registrations and the reservation of a
//! unit, and the service actions of PERSISTENT RESERVE OUT on them.
//!
//! Pure state: a change is made on a copy, which the unit first stores with the disk and then installs.

mod host;

use std::sync::Arc;

use forebay_wire::scsi::{
    Access, FullStatus, ReservationType, ReserveIn, ReserveOut, ReserveParameters, Sense, codes, full_status,
    keys, reservation, reservation_capabilities,
};

use super::attention::UnitAttention;
use super::port::Port;

pub use host::{HostAction, HostChange};

/// Maximum number of registrations of a unit. An initiator that does not reuse its ISID adds a registration
/// with each login.
pub(super) const REGISTRATIONS_MAX: usize = 1024;

/// A nexus with a persistent registration.
#[derive(Debug, Clone)]
pub(super) struct Registration {
    pub key: u64,
    pub port: Arc<Port>,
}

/// Registrations and persistent reservation of a unit.
#[derive(Debug, Clone, Default)]
pub(super) struct Reservations {
    pub generation: u32,
    /// The registrations persist through power loss (APTPL of the last registration).
    pub keep: bool,
    pub registrations: Vec<Registration>,
    /// Type and holder of the reservation. For a type that all registrants hold, the nexus that made the
    /// reservation.
    pub held: Option<(ReservationType, Arc<Port>)>,
}

/// Why a persistent reservation command fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The service action fails with RESERVATION CONFLICT.
    Conflict,
    /// The service action fails with CHECK CONDITION and this sense data.
    Check(Sense),
}

/// The effects of a service action on other nexuses.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// Unit attentions that other nexuses get.
    pub attentions: Vec<(Arc<Port>, UnitAttention)>,
    /// Nexuses whose commands are aborted.
    pub aborted: Vec<Arc<Port>>,
}

impl Reservations {
    /// Whether there are no registrations.
    pub fn is_empty(&self) -> bool {
        self.registrations.is_empty()
    }

    /// Whether there is a reservation.
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

    /// Whether a command of this nexus conflicts with the reservation.
    pub fn conflicts(&self, port: &Port, access: Access) -> bool {
        let Some((kind, holder)) = &self.held else { return false };
        let excluded = match access {
            Access::Always | Access::Status | Access::Reserve | Access::Release => false,
            Access::Read => !kind.allows_reads(),
            Access::Write => true,
        };
        let exempt = || {
            if kind.includes_registrants() { self.key(port).is_some() } else { holder.is(port) }
        };
        excluded && !exempt()
    }

    /// The data of PERSISTENT RESERVE IN, with the nexuses that are `visible` to the initiator.
    pub fn report(&self, action: ReserveIn, visible: impl Fn(&Port) -> bool) -> Vec<u8> {
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

    /// Executes a service action of PERSISTENT RESERVE OUT of the nexus `port`.
    pub fn change(
        &mut self,
        port: &Arc<Port>,
        action: ReserveOut,
        parameters: &ReserveParameters,
    ) -> Result<Effects, Refusal> {
        let own = self.key(port);
        let key_matches = match action {
            ReserveOut::RegisterAndIgnore => true,
            ReserveOut::Register => own.unwrap_or(0) == parameters.key,
            _ => own == Some(parameters.key),
        };
        if !key_matches {
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
            // There is no registration that could be removed.
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

    /// Ends the reservation. Registrants that had access through it receive a unit attention, except `by`.
    fn end(&mut self, by: &Port, effects: &mut Effects) {
        if let Some((kind, _)) = self.held.take()
            && kind.includes_registrants()
        {
            self.notify_others(by, UnitAttention::ReservationsReleased, effects);
        }
    }

    fn notify_others(&self, but: &Port, attention: UnitAttention, effects: &mut Effects) {
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
        self.notify_others(port, UnitAttention::ReservationsPreempted, &mut effects);
        self.remove_all();
        effects
    }

    /// Removes all registrations at an administrator's request. Each registered nexus receives a unit
    /// attention.
    pub fn clear_all(&mut self) -> Effects {
        let preempted = |r: &Registration| (r.port.clone(), UnitAttention::ReservationsPreempted);
        let attentions = self.registrations.iter().map(preempted).collect();
        let effects = Effects { attentions, aborted: Vec::new() };
        self.remove_all();
        effects
    }

    fn remove_all(&mut self) {
        self.held = None;
        self.registrations.clear();
        self.generation = self.generation.wrapping_add(1);
    }

    /// Removes the registrations with `key`. If it is the key of the reservation's holder, `port` takes the
    /// reservation. Key 0 stands for a reservation that all registrants hold.
    fn preempt(
        &mut self,
        port: &Arc<Port>,
        kind: ReservationType,
        key: u64,
        abort: bool,
    ) -> Result<Effects, Refusal> {
        let takes_reservation = match &self.held {
            Some((held, _)) if held.held_by_all() => key == 0,
            Some((_, holder)) => key != 0 && self.key(holder) == Some(key),
            None => false,
        };
        if key == 0 && !takes_reservation {
            return Err(Refusal::Check(Sense::parameter(8)));
        }
        // The nexus that takes the reservation stays registered, even if its own key is `key`.
        let is_removed = |r: &Registration| {
            if takes_reservation { !r.port.is(port) && (key == 0 || r.key == key) } else { r.key == key }
        };
        let (removed, kept): (Vec<_>, Vec<_>) = self.registrations.drain(..).partition(is_removed);
        self.registrations = kept;
        if removed.is_empty() && !takes_reservation {
            return Err(Refusal::Conflict);
        }
        let mut effects = Effects::default();
        for registration in removed.iter().filter(|r| !r.port.is(port)) {
            effects.attentions.push((registration.port.clone(), UnitAttention::RegistrationsPreempted));
        }
        if takes_reservation {
            let before = self.held.replace((kind, port.clone()));
            if before.is_some_and(|(held, _)| held != kind) {
                self.notify_others(port, UnitAttention::ReservationsReleased, &mut effects);
            }
        } else if self.is_empty() {
            // All holders of the reservation are removed, including `port`.
            self.held = None;
        }
        if abort {
            effects.aborted = removed.into_iter().map(|r| r.port).collect();
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }
}

#[cfg(test)]
mod tests;
