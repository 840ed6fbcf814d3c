//! SCSI reservations of LUNs: their representation in the API, and the actions on them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Control, Reply, Result};
use crate::scsi::{Port, ReservationState};
use crate::targets::{IqnName, TargetError};

/// Reservations of the disk of a LUN, including those made through other targets that map the disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReservationsView {
    /// The LUN.
    pub lun: u16,
    /// Volume, image, or `volume@snapshot`.
    pub disk: String,
    /// Number of changes of registrations since the server started (PRGENERATION).
    pub generation: u32,
    /// Registrations persist over a restart of the server (APTPL).
    pub kept: bool,
    /// The persistent reservation (SPC-4).
    pub persistent: Option<PersistentView>,
    /// The holder of a RESERVE (SPC-2).
    pub reserve: Option<PortView>,
    /// Registered initiators.
    pub registrations: Vec<RegistrationView>,
}

/// A persistent reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PersistentView {
    /// The reservation type, such as `write_exclusive_registrants`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The holder; for a type that all registrants hold, the initiator that made the reservation.
    pub holder: PortView,
}

/// A registration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RegistrationView {
    /// The key: 16 hexadecimal digits.
    pub key: String,
    /// The registered initiator.
    #[serde(flatten)]
    pub port: PortView,
}

/// An initiator port and the target that it uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortView {
    /// Name of the initiator.
    pub initiator: String,
    /// ISID of the session: 12 hexadecimal digits.
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
    /// Returns the name of the disk that is mapped to a LUN.
    fn disk_of(&self, target: &str, lun: u16) -> Result<String> {
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

    pub(super) async fn clear_reservations(&self, target: &str, lun: u16) -> Result<Reply> {
        self.units().clear_reservations(self.pool(), &self.disk_of(target, lun)?).await?;
        Ok(Reply::Done {})
    }
}
