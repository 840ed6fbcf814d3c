//! Shared by administrative operations: the editor of the catalogue, and the metadata of disks.

mod editor;
mod kind;
mod metadata;

pub(crate) use editor::CatalogueEditor;
pub(crate) use kind::DiskMetadata;
pub(crate) use metadata::Metadata;
