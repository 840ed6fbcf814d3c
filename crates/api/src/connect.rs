//! What a client needs in order to use a disk or a target.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Protocol;

/// A kind of client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum ClientKind {
    /// The address of the disk as an NBD URI
    Uri,
    /// Options of QEMU
    Qemu,
    /// The disk element of a libvirt domain
    Libvirt,
    /// The command that makes a block device of the host
    NbdClient,
    /// The commands that log in to the iSCSI target
    Iscsi,
    /// The commands that connect to the NVMe/TCP subsystem
    Nvme,
}

impl ClientKind {
    /// Its name for people.
    pub fn title(self) -> &'static str {
        match self {
            ClientKind::Uri => "NBD URI",
            ClientKind::Qemu => "QEMU",
            ClientKind::Libvirt => "libvirt",
            ClientKind::NbdClient => "nbd-client",
            ClientKind::Iscsi => "iSCSI",
            ClientKind::Nvme => "NVMe/TCP",
        }
    }

    /// The protocol by which it reaches the disk.
    pub fn protocol(self) -> Protocol {
        match self {
            ClientKind::Iscsi => Protocol::Iscsi,
            ClientKind::Nvme => Protocol::Nvme,
            _ => Protocol::Nbd,
        }
    }
}

/// One way to reach a disk or a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Way)]
pub struct WayView {
    /// The kind of client.
    #[serde(rename = "for")]
    pub client: ClientKind,
    /// The kind of client, for people.
    pub title: String,
    /// The address of the server: of a listener of NBD or NVMe, or an iSCSI portal.
    pub address: String,
    /// Name of the target, or of the subsystem; iSCSI and NVMe only.
    pub target: Option<String>,
    /// Number of the disk at the target; iSCSI and NVMe only. The namespace of NVMe has the next number.
    pub lun: Option<u16>,
    /// The lines to copy. Words in capital letters, such as `SECRET`, are to be replaced.
    pub text: String,
    /// What a client needs in addition, in sentences.
    pub notes: Vec<String>,
}

/// A protocol by which a disk or a target cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = MissingWay)]
pub struct MissingWayView {
    /// The protocol.
    pub protocol: Protocol,
    /// What the server lacks, and what to do.
    pub message: String,
}

/// What a client needs in order to use a disk or a target.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Connect, example = json!({"ways": [{"for": "uri", "title": "NBD URI", "address": "10.0.0.1:10809",
    "target": null, "lun": null, "text": "nbd://10.0.0.1:10809/pc-001", "notes": []}], "missing": []}))]
pub struct ConnectView {
    /// All ways, by protocol.
    pub ways: Vec<WayView>,
    /// The protocols without a way.
    pub missing: Vec<MissingWayView>,
}
