//! Reservations of a unit, as administrators see and clear them.

use std::sync::Arc;

use forebay_engine::{Error, Pool, Result};
use forebay_wire::scsi::ReservationType;

use super::port::Port;
use super::reserve::Reservations;
use super::unit::LogicalUnit;
use super::units::Units;

/// Reservations of a unit at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservationState {
    /// PRGENERATION: number of changes of registrations since the server started.
    pub generation: u32,
    /// The registrations survive a restart of the server (APTPL).
    pub keep: bool,
    /// The type and the holder of the persistent reservation. For a type that all registrants hold, the nexus
    /// that made the reservation.
    pub persistent: Option<(ReservationType, Arc<Port>)>,
    /// Registered nexuses, with their keys.
    pub registrations: Vec<(Arc<Port>, u64)>,
    /// The port that holds RESERVE (SPC-2).
    pub reserve: Option<Arc<Port>>,
}

impl ReservationState {
    fn new(state: &Reservations, reserve: Option<Arc<Port>>) -> ReservationState {
        ReservationState {
            generation: state.generation,
            keep: state.keep,
            persistent: state.held.as_ref().map(|(kind, holder)| (*kind, holder.clone())),
            registrations: state.registrations.iter().map(|r| (r.port.clone(), r.key)).collect(),
            reserve,
        }
    }
}

impl Units {
    /// Returns the current reservations of a disk. Does not open a unit for a disk that no session uses.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Damaged`] if the stored reservations cannot be decoded; those of a read.
    pub async fn reservations(&self, pool: &Arc<Pool>, disk: &str) -> Result<ReservationState> {
        let units = self.lock().await;
        if let Some(unit) = units.find(disk) {
            let reserve = unit.reserver_port();
            return Ok(ReservationState::new(&unit.reservations.lock(), reserve));
        }
        let state = match pool.reservations(disk).await? {
            None => Reservations::default(),
            Some(kept) => Reservations::decode(&kept)
                .ok_or_else(|| Error::Damaged(format!("the reservations of '{disk}'")))?,
        };
        Ok(ReservationState::new(&state, None))
    }

    /// Removes all reservations and registrations of a disk durably, also those that cannot be decoded.
    ///
    /// # Errors
    /// [`Error::NotFound`]; those of a write. Nothing is changed in these cases.
    pub async fn clear_reservations(&self, pool: &Arc<Pool>, disk: &str) -> Result<()> {
        let units = self.lock().await;
        match units.find(disk) {
            Some(unit) => unit.clear_reservations().await,
            None => pool.set_reservations(disk, None).await,
        }
    }
}

impl LogicalUnit {
    /// Registered initiators receive a unit attention, as after a CLEAR by another initiator.
    async fn clear_reservations(self: &Arc<Self>) -> Result<()> {
        let mut kept = self.kept.lock().await;
        let mut new = self.reservations.lock().clone();
        let effects = new.clear_all();
        self.keep_reservations(&mut kept, new).await?;
        drop(kept);
        self.end_reserve(|_| true);
        self.notify_ports(&effects.attentions);
        Ok(())
    }
}
