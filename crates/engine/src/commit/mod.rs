//! The commit: from dirty buffers to the log, and from the log to the maps.
//!
//! [`Intake`] is the part that writers use. [`Committer`] owns the log and runs one commit at a time:
//! [`warm`] reads the nodes and blocks that it needs, [`Reducer`] decides which blocks are stored,
//! [`Applier`] applies durable changes to the maps, and [`checkpoint`] bounds recovery.

pub(crate) mod apply;
pub(crate) mod checkpoint;
mod cold;
mod committer;
mod conversion;
mod copy;
mod driver;
mod examine;
mod figures;
mod group;
mod group_changes;
mod index;
mod intake;
mod reduce;
#[cfg(test)]
mod tests;
pub(crate) mod warm;

pub(crate) use apply::{Applier, Change};
pub(crate) use checkpoint::Taken;
pub(crate) use committer::Committer;
pub use driver::{commit_here, may_commit_here};
pub(crate) use group::Group;
pub(crate) use index::segments_with_blocks;
pub(crate) use intake::{Admitted, Answer, Intake};
pub(crate) use reduce::Reducer;
pub(crate) use warm::by_leaf;
