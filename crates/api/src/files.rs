//! The files of the pool in the API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
}

/// A file or directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = File)]
pub struct FileView {
    /// Its name. Bytes that are not UTF-8 are shown as U+FFFD.
    pub name: String,
    /// Its type.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Permissions: the lower twelve bits of a UNIX mode.
    pub mode: u16,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Number of names.
    pub links: u32,
    /// Last change of the contents, in Unix milliseconds.
    pub modified_ms: u64,
}

/// A part of the entries of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Files)]
pub struct FilesView {
    /// The entries, in the order in which they were created.
    pub entries: Vec<FileView>,
    /// Position at which the list continues; `null` if there are no more entries.
    pub next: Option<u64>,
}

/// A clone of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"from": "/debian/disk.vmdk", "to": "/web/disk.vmdk"}))]
#[serde(deny_unknown_fields)]
pub struct CloneFile {
    /// Path of the file.
    pub from: String,
    /// Path of the new file, which does not exist.
    pub to: String,
}
