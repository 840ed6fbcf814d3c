//! Disk handles: an open disk, and the requests of its client.

mod changes;
pub(crate) mod copy;
mod extents;
#[allow(clippy::module_inception, reason = "the type that the folder is named after")]
mod handle;
pub(crate) mod update;

pub use changes::{Changed, Since};
pub use extents::Extent;
pub(crate) use handle::is_write_through;
pub use handle::{DiskHandle, Fast, ReadFrom};
