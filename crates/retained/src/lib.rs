//! Pages in memory that outlives the process.

mod api;
mod bits;
mod memory;
mod open;
mod retained;
mod shared;
mod space;
mod words;

pub use api::{BlockRecord, Cover, Identity, Lost, RangeRecord, Stats};
pub use memory::{CHUNK, HeapMemory, Memory};
pub use open::Contents;
pub use retained::{DamagedPage, Flag, Page, Range, Reservation, Retained};
pub use shared::SharedFile;
#[cfg(feature = "test-util")]
pub use words::set_hook;

/// Bytes of a page.
pub const PAGE: usize = forebay_format::BLOCK;
