//! Receives in the API: streams of other pools that a client sends in pieces.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::DiskView;

/// Body of `POST /receives`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "db"}))]
pub struct CreateReceive {
    /// Name of the volume that receives the stream, or of the new image.
    pub name: String,
}

/// A stream that is being received.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct ReceiveView {
    /// Its number.
    pub id: u64,
    /// Name of the volume or image.
    pub name: String,
    /// Name of the snapshot that the stream has; absent before its header, and for an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Size of the disk in bytes.
    pub size_bytes: u64,
    /// Bytes of the stream that were received, from which the next piece continues.
    pub received_bytes: u64,
    /// The end of the last complete record on the disk, in bytes.
    pub offset_bytes: u64,
    /// Number of complete records.
    pub records: u64,
    /// Bytes of data in these records.
    pub data_bytes: u64,
    /// Name of the client that sends the stream.
    pub client: String,
    /// The snapshot or image, when the stream is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskView>,
}

impl ReceiveView {
    /// Where a sender continues after an interruption: the value of `--resume` of `forebay volume send`.
    pub fn position(&self) -> String {
        format!("{}:{}:{}", self.offset_bytes, self.records, self.data_bytes)
    }
}
