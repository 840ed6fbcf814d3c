//! The state of a logical unit that is handed over to another process.
//!
//! Everything is handed over that an initiator can observe and that is not stored with the disk:
//! registrations and reservations that do not persist through power loss, RESERVE, mode parameters, the
//! pending unit attentions of each nexus, and whether it was informed of a volatile write cache. So a session
//! that continues sees no power-on condition, and no other session gets a command past a reservation in
//! between. Tokens are not handed over: they become unknown, and initiators copy the data themselves.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use forebay_engine::{Error, Result};
use forebay_wire::scsi::{ModeState, ReservationType};
use serde::{Deserialize, Serialize};

use super::attention::UnitAttention;
use super::member::Member;
use super::port::Port;
use super::reserve::{REGISTRATIONS_MAX, Registration, Reservations};
use super::unit::{LogicalUnit, RESERVED};

/// The state of a unit that is handed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitState {
    pub(super) disk: String,
    /// The size in bytes that was last reported to initiators.
    size: u64,
    low: bool,
    descriptor_sense: bool,
    write_protect: bool,
    generation: u32,
    /// Whether registrations persist through a loss of power.
    keep: bool,
    registrations: Vec<(u64, Port)>,
    /// Type and holder of the reservation.
    held: Option<(u8, Port)>,
    /// Index of the nexus that holds RESERVE.
    reserver: Option<usize>,
    nexuses: Vec<NexusState>,
}

/// The state that a unit keeps for a nexus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NexusState {
    port: Port,
    lun: u16,
    attentions: Vec<UnitAttention>,
    /// The initiator was informed that the write cache is volatile.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    told_volatile: bool,
}

impl UnitState {
    pub(super) fn of(unit: &LogicalUnit) -> UnitState {
        let reservations = unit.reservations.lock().clone();
        let reserver = *unit.reserver.lock();
        let mut members = unit.members.lock().clone();
        // NVMe hosts connect again.
        members.retain(|member| member.port.host_id.is_none());
        let mode = unit.mode(false);
        UnitState {
            disk: unit.disk().name(),
            size: unit.size.load(Relaxed),
            low: unit.low.load(Relaxed),
            descriptor_sense: mode.descriptor_sense,
            write_protect: mode.write_protect,
            generation: reservations.generation,
            keep: reservations.keep,
            registrations: reservations.registrations.iter().map(|r| (r.key, Port::clone(&r.port))).collect(),
            held: reservations.held.as_ref().map(|(kind, holder)| (*kind as u8, Port::clone(holder))),
            reserver: members.iter().position(|m| Some(m.id) == reserver),
            nexuses: members.iter().map(|m| NexusState::of(m)).collect(),
        }
    }

    /// Gives a unit that was just opened this state.
    pub(super) fn install(&self, unit: &Arc<LogicalUnit>) -> Result<()> {
        let reservations = self.reservations()?;
        unit.size.store(self.size, Relaxed);
        unit.low.store(self.low, Relaxed);
        let (descriptor_sense, write_protect) = (self.descriptor_sense, self.write_protect);
        unit.set_mode(&ModeState { descriptor_sense, write_protect, write_back: false });
        let mut reserver = None;
        for (n, nexus) in self.nexuses.iter().enumerate() {
            let id = unit.next_member.fetch_add(1, Relaxed);
            let port = Arc::new(nexus.port.clone());
            let member = Member::not_resumed(id, port, nexus.lun, &nexus.attentions);
            member.told_volatile.store(nexus.told_volatile, Relaxed);
            unit.change_members(|members| members.push(Arc::new(member)));
            if self.reserver == Some(n) {
                reserver = Some(id);
            }
        }
        *unit.reserver.lock() = reserver;
        unit.set_flag(RESERVED, reserver.is_some());
        unit.install(reservations);
        Ok(())
    }

    fn reservations(&self) -> Result<Reservations> {
        let invalid = || Error::Damaged(format!("the reservations of '{}' that were handed over", self.disk));
        if self.registrations.len() > REGISTRATIONS_MAX {
            return Err(invalid());
        }
        let held = match &self.held {
            Some((kind, holder)) => {
                let kind = ReservationType::decode(*kind).ok_or_else(invalid)?;
                Some((kind, Arc::new(holder.clone())))
            }
            None => None,
        };
        let registration =
            |(key, port): &(u64, Port)| Registration { key: *key, port: Arc::new(port.clone()) };
        Ok(Reservations {
            generation: self.generation,
            keep: self.keep,
            registrations: self.registrations.iter().map(registration).collect(),
            held,
        })
    }
}

impl NexusState {
    fn of(member: &Member) -> NexusState {
        NexusState {
            port: Port::clone(&member.port),
            lun: member.lun,
            attentions: member.pending(),
            told_volatile: member.told_volatile.load(Relaxed),
        }
    }
}

/// Units with the state of another process, some of whose sessions have not resumed yet. When this value is
/// dropped, the nexuses of these sessions are removed.
#[derive(Default)]
pub struct ResumedUnits(pub(super) Vec<Arc<LogicalUnit>>);

impl Drop for ResumedUnits {
    fn drop(&mut self) {
        for unit in &self.0 {
            let left: Vec<_> = unit.members.lock().iter().filter(|m| m.resumes).cloned().collect();
            left.iter().for_each(|member| unit.remove_member(member));
        }
    }
}
