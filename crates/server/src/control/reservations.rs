//! Reservations of a LUN as the API says them.

use serde::{Deserialize, Serialize};

use super::{Control, Reply, Result};
use crate::scsi::{Port, ReservationState};
use crate::targets::{IqnName, TargetError};

/// Reservations of the disk under a LUN: those made through other targets that map the disk included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationsView {
    /// Its number.
    pub lun: u16,
    /// Volume, image, or `volume@snapshot`.
    pub disk: String,
    /// Changes of registrations since the server started (PRGENERATION).
    pub generation: u32,
    /// Registrations outlive a restart of the server (APTPL).
    pub kept: bool,
    /// The persistent reservation (SPC-4).
    pub persistent: Option<PersistentView>,
    /// The initiator that has RESERVE in force (SPC-2), and the target through which.
    pub reserve: Option<PortView>,
    /// Initiators that are registered.
    pub registrations: Vec<RegistrationView>,
}

/// A persistent reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersistentView {
    /// Such as `write_exclusive_registrants`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Who holds it; of a type that all registrants hold, who made it.
    pub holder: PortView,
}

/// A registration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistrationView {
    /// 16 hexadecimal digits.
    pub key: String,
    /// Who is registered.
    #[serde(flatten)]
    pub port: PortView,
}

/// An initiator at a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortView {
    /// Name of the initiator.
    pub initiator: String,
    /// ISID of its session: 12 hexadecimal digits.
    pub isid: String,
    /// Name of the target.
    pub target: String,
}

impl From<&Port> for PortView {
    fn from(port: &Port) -> PortView {
        PortView {
            initiator: port.initiator.clone(),
            isid: port.isid.iter().map(|byte| format!("{byte:02x}")).collect(),
            target: port.target.clone(),
        }
    }
}

impl ReservationsView {
    fn new(lun: u16, disk: String, state: &ReservationState) -> ReservationsView {
        let registrations = state.registrations.iter().map(|(port, key)| RegistrationView {
            key: format!("{key:016x}"),
            port: PortView::from(&**port),
        });
        ReservationsView {
            lun,
            disk,
            generation: state.generation,
            kept: state.keep,
            persistent: state.persistent.as_ref().map(|(kind, holder)| PersistentView {
                kind: kind.name().to_owned(),
                holder: PortView::from(&**holder),
            }),
            reserve: state.reserve.as_deref().map(PortView::from),
            registrations: registrations.collect(),
        }
    }
}

impl Control {
    /// The disk under a LUN.
    pub(super) fn disk_of(&self, target: &str, lun: u16) -> Result<String> {
        let name: IqnName = target.parse().map_err(TargetError::from)?;
        let target = self.targets().get(&name).ok_or_else(|| TargetError::NoTarget(name.clone()))?;
        let mapped = target.luns.get(&lun).ok_or(TargetError::NoLun { target: name, lun })?;
        Ok(mapped.disk.clone())
    }

    pub(super) async fn show_reservations(&self, target: &str, lun: u16) -> Result<Reply> {
        let disk = self.disk_of(target, lun)?;
        let state = self.units().reservations(self.pool(), &disk).await?;
        Ok(Reply::Reservations(ReservationsView::new(lun, disk, &state)))
    }
}
