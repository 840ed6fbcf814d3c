//! SCSI reservations of LUNs: their representation in the API, and the actions on them.

use forebay_api::{PersistentView, PortView, RegistrationView, ReservationsView};
use forebay_frontend::scsi::{Port, ReservationState};
use forebay_frontend::targets::{IqnName, TargetError};

use super::{Control, Reply, Result};
use crate::view::View;

impl View for &Port {
    type View = PortView;

    fn view(self) -> PortView {
        PortView {
            initiator: self.initiator.clone(),
            isid: self.isid.iter().map(|byte| format!("{byte:02x}")).collect(),
            target: self.target.clone(),
        }
    }
}

fn reservations_view(lun: u16, disk: String, state: &ReservationState) -> ReservationsView {
    let registrations = state
        .registrations
        .iter()
        .map(|(port, key)| RegistrationView { key: format!("{key:016x}"), port: (**port).view() });
    ReservationsView {
        lun,
        disk,
        generation: state.generation,
        kept: state.keep,
        persistent: state
            .persistent
            .as_ref()
            .map(|(kind, holder)| PersistentView { kind: kind.name().to_owned(), holder: (**holder).view() }),
        reserve: state.reserve.as_deref().map(View::view),
        registrations: registrations.collect(),
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
        Ok(Reply::Reservations(reservations_view(lun, disk, &state)))
    }

    pub(super) async fn clear_reservations(&self, target: &str, lun: u16) -> Result<Reply> {
        self.units().clear_reservations(self.pool(), &self.disk_of(target, lun)?).await?;
        Ok(Reply::Done {})
    }
}
