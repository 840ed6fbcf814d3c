//! The pool: one log and one set of disks on one store. [`Pool`] opens, closes and attaches disks, and
//! delegates all other work to its [components](crate::components).

mod admin;
mod cluster_image;
mod export;
mod health;
mod image_copy;
mod internal;
mod limits;
#[allow(clippy::module_inception, reason = "the type that the folder is named after")]
mod pool;
mod receive;
mod services;

pub use admin::{CloneRequest, DiskInfo, VolumePage};
pub use cluster_image::{ClusterImage, ClusterImages, PoolImage};
pub use export::Export;
pub use health::{Affected, PoolHealth};
pub use image_copy::{ImageRoot, ImageSegments, WrittenImage, segments_of_image};
pub use internal::BlockRoom;
pub use limits::{DiskLimits, TenantInfo};
pub use pool::Pool;
pub use receive::{ReceiveError, ReceiveRequest, Receiving};
