//! Where bytes rest: the store contract and its backends.
//!
//! In the order in which a byte meets them: the contract, the counting wrapper that every pool puts around
//! its store, those that limit it or slow it down, then the backends.
mod buf;
mod contract;
mod limited;
mod metered;
mod slow;
mod superblock;

mod directory;
mod faulty;
mod memory;

pub use buf::IoBuf;
pub use contract::{BoxFuture, Capacity, ObjectStat, Result, Store, StoreError};
pub use directory::{DirectoryOptions, DirectoryStore, IoMode};
pub use faulty::{Crash, Fault, FaultyOp, FaultyStore, Image, When};
pub use limited::Limited;
pub use memory::MemoryStore;
pub use metered::{Clock, Metered, OpCount, StoreCounts};
pub use slow::{DiskArray, Sleep, Slow};
