//! The boots that are being recorded; [`crate::profile`] states what boot profiles are.

mod list;
mod recording;

pub(crate) use list::{Profile, Recorder};
pub(crate) use recording::{Recording, Recordings};
