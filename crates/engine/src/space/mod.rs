//! Room accounting: for the write buffers and for the store.
//!
//! [`SpaceGovernor`] owns all numbers about room and decides on requests for it. It composes the bytes in the
//! write buffers ([`buffer_room`]), the free room of the store ([`store_room`]), indications of garbage
//! ([`garbage`]) and the reclaims so far ([`reclaims`]). [`policy`] contains the decisions, as pure functions
//! of those numbers.

mod buffer_room;
mod garbage;
mod governor;
mod policy;
mod reclaims;
mod reserve;
mod store_room;

pub(crate) use governor::{Admission, SpaceGovernor};
pub(crate) use policy::SPACE_CHECK;
