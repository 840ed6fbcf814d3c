//! The two ends of an I_T nexus, and how a unit is mapped for it.

use forebay_wire::scsi::PortIdentity;

/// An I_T nexus: an initiator port and a target port.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Name of the initiator, or of the NVMe host.
    pub initiator: String,
    /// ISID of the initiator's session; of an NVMe host, the beginning of its identifier.
    pub isid: [u8; 6],
    /// Name of the target.
    pub target: String,
    /// Target portal group tag.
    pub tpgt: u16,
    /// Relative target port identifier.
    pub relative_port: u16,
    /// Identifier of the NVMe host; `None` for an iSCSI initiator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_id: Option<[u8; 16]>,
}

impl Port {
    /// The target port of the nexus, as initiators see it.
    pub(super) fn identity(&self) -> PortIdentity<'_> {
        PortIdentity { target: &self.target, group: self.tpgt, relative: self.relative_port }
    }

    /// Whether both ports are the same nexus; a new session can establish the same nexus again (RFC 7143,
    /// "SCSI architecture model"). All controllers of an NVMe host are the same nexus in this sense: the host
    /// is what registers and reserves (NVMe Base 8.19).
    pub(super) fn is(&self, other: &Port) -> bool {
        let is_same = match (self.host_id, other.host_id) {
            (None, None) => (self.isid, self.tpgt) == (other.isid, other.tpgt),
            (own, other) => own == other,
        };
        is_same && (&self.initiator, &self.target) == (&other.initiator, &other.target)
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
