//! The store contract and its backends.
//!
//! The contract, the counting wrapper that every pool puts around its store, wrappers that limit a store or
//! slow it down, and the backends. Groups of modules, lowest first.

mod buf;
mod contract;
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

/// Types of the contract, for [`forward_store`].
#[doc(hidden)]
pub use forebay_format::{SegmentId, Superblock};

pub use buf::IoBuf;
pub use contract::{BoxFuture, Capacity, ObjectStat, Result, Selection, Store, StoreError, for_good};
pub use directory::{DirectoryOptions, DirectoryStore, IoMode, SUPERBLOCK};
#[cfg(feature = "test-util")]
pub use faulty::{Crash, Fault, FaultyOp, FaultyStore, Image, When};
pub use limited::Limited;
pub use mean::{Mean, next_mean};
#[cfg(feature = "test-util")]
pub use memory::MemoryStore;
pub use metered::{Clock, Metered, OpCount, StoreCounts};
pub use slow::{DiskArray, Sleep, Slow};
