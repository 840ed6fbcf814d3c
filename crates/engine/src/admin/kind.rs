//! The kinds of metadata that a disk may have.

use forebay_format::{DiskRecord, Role};

/// A kind of metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskMetadata {
    /// The blocks that the first boot of an image's clones reads; see [`crate::profile`].
    Profile,
    /// The classes of the disk's blocks; see [`crate::classes`].
    Classes,
    /// SCSI persistent reservations of the disk, which a front end defines.
    Reservations,
}

impl DiskMetadata {
    /// The name of the hidden disk that stores this metadata.
    pub fn name(self) -> &'static str {
        match self {
            DiskMetadata::Profile => "boot profile",
            DiskMetadata::Classes => "block classes",
            DiskMetadata::Reservations => "reservations",
        }
    }

    /// Whether a disk stores this kind of metadata.
    pub fn is(self, record: &DiskRecord) -> bool {
        record.role == Role::Metadata && record.name == self.name()
    }
}
