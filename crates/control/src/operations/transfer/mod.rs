//! Sending disks to other pools, and receiving them: the format of the stream, and its two ends.

mod receive;
pub(crate) mod stream;

pub(crate) use receive::{Receives, append, begin, resume};
