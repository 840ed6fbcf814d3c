//! Operations on a pool that no server has open: verification, inspection, and recovery without lost writes.

mod check;
mod footers;
mod inspect;
mod loss;

pub use check::{CheckReport, Problem, check};
pub use inspect::{
    BatchView, FeaturesView, SegmentView, SuperblockView, inspect_batches, inspect_segments,
    inspect_superblocks,
};
pub use loss::{LossReport, recover_log};
