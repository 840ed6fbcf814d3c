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
pub struct UploadView {
    /// Number of the upload.
    pub id: u64,
    /// Name of the file.
    pub file_name: String,
    /// Length of the file in bytes.
    pub len_bytes: u64,
    /// Bytes received: the offset at which the upload continues.
    pub received_bytes: u64,
}
