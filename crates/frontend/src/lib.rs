//! The data plane and its protocols: NBD, iSCSI, NVMe over TCP, SCSI, and NFS.
//!
//! The front ends [`nbd`], [`iscsi`], [`nvme`] and [`nfs`] share the data plane ([`plane`]): threads,
//! sockets, and the memory of clients. [`scsi`] has the logical units of targets, which are the namespaces of
//! NVMe; [`targets`] decides which initiators and hosts can access these units.
//!
//! Disks and the durability of writes are the engine's responsibility. The control plane uses these modules
//! through their handles, and is not known here.

mod attempts;
pub mod document;
mod exec;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod iscsi;
pub mod nbd;
pub mod nfs;
pub mod nvme;
pub mod peer;
pub mod pem;
pub mod plane;
mod portals;
pub mod registry;
pub mod scsi;
pub mod shares;
mod socket_option;
pub mod targets;
mod throttle;
