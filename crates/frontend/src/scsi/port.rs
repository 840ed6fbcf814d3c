//! The two ends of an I_T nexus, and how a unit is mapped for it.

use forebay_wire::scsi::PortIdentity;

/// An I_T nexus: an initiator port and a target port.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// iSCSI name of the initiator.
    pub initiator: String,
    /// ISID of the initiator's session.
    pub isid: [u8; 6],
    /// iSCSI name of the target.
    pub target: String,
    /// Target portal group tag.
    pub tpgt: u16,
    /// Relative target port identifier.
    pub relative_port: u16,
}

impl Port {
    /// The target port of the nexus, as initiators see it.
    pub(super) fn identity(&self) -> PortIdentity<'_> {
        PortIdentity { target: &self.target, group: self.tpgt, relative: self.relative_port }
    }

    /// Whether both ports are the same nexus; a new session can establish the same nexus again (RFC 7143,
    /// "SCSI architecture model").
    pub(super) fn is(&self, other: &Port) -> bool {
        (&self.initiator, self.isid, &self.target, self.tpgt)
            == (&other.initiator, other.isid, &other.target, other.tpgt)
    }
}

/// How a unit is mapped for an initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Number of the logical unit.
    pub lun: u16,
    /// Whether changes of the unit are refused.
    pub read_only: bool,
    /// Writes to the unit may be acknowledged before they are durable.
    pub write_back: bool,
}
