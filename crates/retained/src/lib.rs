//! Pages in memory that outlives the process.

mod api;
mod memory;
mod retained;

pub use api::{BlockRecord, Contents, Cover, Identity, Lost, RangeRecord, Stats};
pub use memory::{CHUNK, HeapMemory, Memory};
pub use retained::{Flag, Page, Range, Reservation, Retained};

/// Bytes of a page.
pub const PAGE: usize = forebay_format::BLOCK;
