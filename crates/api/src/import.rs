//! Imports of image files in the API.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{DiskView, ErrorDetail};

/// Body of `POST /images`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ImportRequest, example = json!({"name": "debian", "source": {"url": "https://example.org/debian.qcow2"}}))]
pub struct Request {
    /// Name of the new image.
    pub name: String,
    /// The image file.
    pub source: Source,
    /// The format of the file.
    #[serde(default)]
    pub format: Format,
    /// The disk of an OVA: its number, from 1 on, its id, or the name of its file. Not needed if the OVA has
    /// only one disk.
    #[serde(default)]
    pub disk: Option<String>,
    /// Maximum size of the file that a URL may deliver, and of a decompressed file, in bytes; the server's
    /// limit applies in any case.
    #[serde(default)]
    pub max_bytes: Option<u64>,
    /// Deduplication domain: identical blocks are deduplicated only among disks of the same domain.
    #[serde(default)]
    pub dedup_domain: u32,
}

/// The location of an image file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ImportSource)]
pub enum Source {
    /// An absolute path on the server.
    #[schema(value_type = String)]
    File(PathBuf),
    /// `http://…` or `https://…`
    Url(String),
    /// The number of a complete upload of the client. A successful import ends the upload.
    Upload(u64),
}

/// A phase of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ImportPhase)]
pub enum Phase {
    /// The file is downloaded; sizes are those of the file.
    Download,
    /// The compressed file waits until another file was decompressed; sizes are those of the compressed file.
    Wait,
    /// The compressed file is decompressed; sizes are those of the compressed file.
    Unpack,
    /// The checksum of the disk in an archive is verified; sizes are those of the file of the disk.
    Verify,
    /// The disk is copied; sizes are those of the disk.
    Import,
}

/// An event of an import. The last one is `Done` or `Failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "lowercase")]
#[schema(as = ImportEvent, example = json!({"event": "progress", "phase": "import", "done_bytes": 268435456,
    "total_bytes": 3221225472u64, "written_bytes": 201326592}))]
pub enum Event {
    /// Progress.
    Progress {
        /// The current phase.
        phase: Phase,
        /// Bytes done.
        done_bytes: u64,
        /// Total bytes, if known.
        total_bytes: Option<u64>,
        /// Bytes that were not holes or zeroes.
        written_bytes: u64,
    },
    /// The import has finished.
    Done {
        /// The image.
        image: DiskView,
        /// The format of the file, which was detected or given.
        format: Format,
    },
    /// The import failed and was rolled back.
    Failed {
        /// The error.
        error: ErrorDetail,
    },
}

/// The result of an import.
#[derive(Debug, Serialize)]
pub struct Imported {
    /// The image.
    #[serde(flatten)]
    pub image: DiskView,
    /// The format of the file.
    pub format: Format,
}

/// The format of an image file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
#[schema(as = ImageFormat)]
pub enum Format {
    /// Detect the format from the contents of the file
    #[default]
    Auto,
    /// Raw disk contents
    Raw,
    /// QEMU, version 2 or 3
    Qcow2,
    /// VMware: sparse, stream-optimised, or a descriptor with its extents
    Vmdk,
    /// Virtual PC, Hyper-V and Azure: fixed or dynamic
    #[cfg_attr(feature = "clap", value(alias = "vpc"))]
    Vhd,
    /// Hyper-V: fixed or dynamic
    Vhdx,
    /// VirtualBox: fixed or dynamic
    Vdi,
    /// Appliance: a tar archive with an OVF descriptor and VMDK disks
    Ova,
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Format::Auto => "auto",
            Format::Raw => "raw",
            Format::Qcow2 => "qcow2",
            Format::Vmdk => "vmdk",
            Format::Vhd => "vhd",
            Format::Vhdx => "vhdx",
            Format::Vdi => "vdi",
            Format::Ova => "ova",
        })
    }
}
