//! Uploads of image files in the API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Body of `POST /uploads`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"image": "debian", "file_name": "debian.qcow2", "len_bytes": 367656960}))]
pub struct CreateUpload {
    /// Name of the image that will be imported. The upload is refused if the name is taken.
    pub image: String,
    /// Name of the file, without a directory.
    pub file_name: String,
    /// Length of the file in bytes.
    pub len_bytes: u64,
}

/// An upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Upload, example = json!({"id": 1767225600000u64, "image": "debian", "file_name": "debian.qcow2",
    "len_bytes": 367656960, "received_bytes": 1048576, "client": "admin", "last_received_ms": 1767225600000u64}))]
pub struct UploadView {
    /// Number of the upload: the time in Unix milliseconds when it began, or a greater number.
    pub id: u64,
    /// Name of the image that will be imported.
    pub image: String,
    /// Name of the file.
    pub file_name: String,
    /// Length of the file in bytes.
    pub len_bytes: u64,
    /// Bytes received: the offset at which the upload continues.
    pub received_bytes: u64,
    /// Name of the client that began the upload.
    pub client: String,
    /// When the last new byte arrived, in Unix milliseconds.
    pub last_received_ms: u64,
}
