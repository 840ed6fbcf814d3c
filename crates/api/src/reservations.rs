//! SCSI reservations of LUNs in the API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
