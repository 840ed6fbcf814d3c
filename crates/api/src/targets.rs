//! iSCSI targets in the API. No response contains a secret.

use forebay_text::Secret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A user name and secret (RFC 7143, section 12.1.3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Chap {
    /// `CHAP_N`: 1 to 255 bytes.
    pub user: String,
    /// The shared secret.
    #[schema(value_type = String, min_length = 12, max_length = 255)]
    pub secret: Secret,
}

/// Body of `POST /targets`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "iqn.2026-01.org.example:disks"}))]
pub struct CreateTarget {
    /// Name (IQN).
    pub name: String,
    /// Any initiator is admitted.
    #[serde(default)]
    pub open: bool,
    /// CHAP credentials of initiators whose ACL entry has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chap: Option<Chap>,
    /// CHAP credentials of the target, for mutual CHAP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual: Option<Chap>,
    /// DH-HMAC-CHAP key of the target, for NVMe hosts that authenticate it: `DHHC-1:…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub dhchap_key: Option<Secret>,
    /// Volume, image, or `volume@snapshot` that is to be mapped. A node of a cluster creates the target in
    /// the shard of this disk; all disks of a target are in one shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
}

/// Body of `POST /targets/{name}/luns`, which chooses the LUN, and of `PUT /targets/{name}/luns/{lun}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"disk": "db"}))]
pub struct MapLun {
    /// Volume, image, or `volume@snapshot`.
    pub disk: String,
    /// Writes are refused; always the case for images and snapshots.
    #[serde(default)]
    pub read_only: bool,
    /// Writes are acknowledged before they are durable; a flush makes them durable.
    #[serde(default)]
    pub write_back: bool,
}

/// Body of `PUT /targets/{name}/initiators/{initiator}`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"luns": [0]}))]
pub struct AllowInitiator {
    /// CHAP credentials of the initiator; those of the target if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chap: Option<Chap>,
    /// DH-HMAC-CHAP key with which the initiator, an NVMe host, must authenticate itself: `DHHC-1:…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub dhchap_key: Option<Secret>,
    /// LUNs exposed to the initiator; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub luns: Option<Vec<u16>>,
}

/// A target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetView {
    /// Name (IQN).
    pub name: String,
    /// Relative target port identifier; never reused for another target.
    pub number: u16,
    /// Any initiator is admitted.
    pub open: bool,
    /// CHAP user of initiators whose ACL entry has none; `None` if they need not authenticate.
    pub chap_user: Option<String>,
    /// CHAP user of the target, for mutual CHAP.
    pub mutual_user: Option<String>,
    /// The target has a DH-HMAC-CHAP key, and can authenticate itself to NVMe hosts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_dhchap_key: bool,
    /// Mapped disks.
    pub luns: Vec<LunView>,
    /// Initiator ACL.
    pub initiators: Vec<InitiatorView>,
    /// Sessions.
    pub sessions: Vec<SessionView>,
    /// The shard that has the target, in the list of a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
}

/// A LUN of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LunView {
    /// The LUN.
    pub lun: u16,
    /// Volume, image, or `volume@snapshot`.
    pub disk: String,
    /// Size of the disk; `None` if the disk does not exist any more.
    pub size_bytes: Option<u64>,
    /// Writes are refused.
    pub read_only: bool,
    /// Writes are acknowledged before they are durable; a flush makes them durable.
    pub write_back: bool,
}

/// An entry of a target's initiator ACL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InitiatorView {
    /// Name of the initiator.
    pub name: String,
    /// CHAP user of the initiator; `None` if that of the target applies.
    pub chap_user: Option<String>,
    /// The initiator, an NVMe host, must authenticate itself with a DH-HMAC-CHAP key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_dhchap_key: bool,
    /// LUNs exposed to the initiator; `None` for all.
    pub luns: Option<Vec<u16>>,
}

/// A session of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    /// Number of the session, by which it can be disconnected.
    #[serde(default)]
    pub id: String,
    /// Name of the initiator.
    pub initiator: String,
    /// Address of the initiator.
    pub address: String,
    /// Time of the login in Unix milliseconds.
    pub since_ms: u64,
}
