//! Room accounting: for the write buffers and for the store.
//!
//! [`SpaceGovernor`] owns all numbers about room and decides on requests for it; [`policy`] contains the
//! decisions, as pure functions of those numbers.

mod governor;
mod policy;

pub(crate) use governor::{Admission, SpaceGovernor};
pub(crate) use policy::SPACE_CHECK;
