//! The store contract and its backends.
//!
//! The contract, the counting wrapper that every pool puts around its store, wrappers that limit a store or
//! slow it down, and the backends. Groups of modules, lowest first.

mod buf;
mod completion;
mod contract;
mod error;
mod forward;
mod limited;
mod mean;
mod metered;
mod reserve;
mod slow;
mod superblock;

mod directory;
#[cfg(feature = "test-util")]
mod faulty;
#[cfg(feature = "test-util")]
mod memory;
pub mod rados;

/// Types in the signatures of [`Store`]; the macro [`forward_store`] names them through this crate.
#[doc(hidden)]
pub use forebay_format::{SegmentId, Superblock};

pub use buf::IoBuf;
pub use completion::{BoxFuture, Completion, Unsent};
pub use contract::{Capacity, ObjectStat, Selection, Store};
pub use directory::{DirectoryOptions, DirectoryStore, IoMode, SUPERBLOCK};
pub use error::{Result, StoreError, for_good};
#[cfg(feature = "test-util")]
pub use faulty::{Crash, Fault, FaultyOp, FaultyStore, Image, When};
pub use limited::Limited;
pub use mean::{Mean, next_mean};
#[cfg(feature = "test-util")]
pub use memory::MemoryStore;
pub use metered::{Clock, Metered, OpCount, StoreCounts};
pub use slow::{DiskArray, Sleep, Slow};
