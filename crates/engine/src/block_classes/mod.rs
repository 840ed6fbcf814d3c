//! The class of each block of a disk: the map, its encoding, and the look-up.
//!
//! [`crate::classes`] states what classes are for, and how the maps of disks are made.

mod encoding;
mod state;

pub use state::{ClassStats, ClassesInfo};
pub(crate) use state::{Classes, Classifier, Learned, ReadsByClass};
