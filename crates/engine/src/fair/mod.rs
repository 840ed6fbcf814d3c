//! Fair use of a resource that many disks share: room in the write buffers, reads of the store.
//!
//! A [`Flow`] is one disk's use of one resource. A request is admitted at once while there is plenty of the
//! resource. When the resource is short, only disks wait that use more than their share.
//!
//! - [`queue`]: which requests are admitted, and the order of waiting requests. Plain data, without locks.
//! - [`gate`]: the same for requests of many threads, which wait asynchronously.

mod flow;
mod gate;
mod queue;
#[cfg(test)]
mod tests;

pub(crate) use flow::{DEFAULT_WEIGHT, Flow};
pub(crate) use gate::{Gate, Waiting};
pub(crate) use queue::Budget;
