//! What administrators see of a unit's reservations, and how they end them.

use std::sync::Arc;

use forebay_engine::{Error, Pool, Result};
use forebay_wire::scsi::ReservationType;

use super::reserve::Reservations;
use super::unit::{LogicalUnit, Port, Units};

/// Reservations of a unit, as of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservationState {
    /// PRGENERATION: how often registrations changed since the server started.
    pub generation: u32,
    /// They outlive a restart of the server (APTPL).
    pub keep: bool,
    /// The persistent reservation, and who holds it; of a type that all registrants hold, who made it.
    pub persistent: Option<(ReservationType, Arc<Port>)>,
    /// Who is registered, with the key.
    pub registrations: Vec<(Arc<Port>, u64)>,
    /// Who has RESERVE in force (SPC-2).
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
    /// The reservations of a disk as of now. A disk that no session uses is not opened for it.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Damaged`] where what is kept of them cannot be read; those of a read.
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

    /// Ends all reservations of a disk and removes all registrations, durably; also what cannot be read of them.
    ///
    /// # Errors
    /// [`Error::NotFound`]; those of a write; nothing is changed then.
    pub async fn clear_reservations(&self, pool: &Arc<Pool>, disk: &str) -> Result<()> {
        let units = self.lock().await;
        match units.find(disk) {
            Some(unit) => unit.clear_reservations().await,
            None => pool.set_reservations(disk, None).await,
        }
    }
}

impl LogicalUnit {
    /// Initiators that were registered are told, as after a CLEAR of another one.
    async fn clear_reservations(self: &Arc<Self>) -> Result<()> {
        let mut kept = self.kept.lock().await;
        let mut new = self.reservations.lock().clone();
        let effects = new.clear_all();
        self.keep_reservations(&mut kept, new).await?;
        drop(kept);
        self.end_reserve(|_| true);
        self.tell_all(&effects.attentions);
        Ok(())
    }
}
