//! Pages in memory that outlives the process. What a page means is the caller's business.
//!
//! [`SharedFile`] is a file on tmpfs that is mapped shared: however the process ends, its last stores remain.
//! [`Retained`] publishes pages, zeroed ranges and flags in it, each with a *record*, and finds them again
//! when the next process opens the memory. `docs/format.md` documents the layout.
//!
//! **Invariant.** At every instruction of the process, the memory is sound, and holds every record that was
//! published and not dropped, with the bytes of its page.
//!
//! # Why a kill loses nothing
//!
//! A kill stops each thread after a prefix of its stores; the kernel keeps all of these and none of the rest
//! (`words.rs`). There are no torn words: each store is of eight aligned bytes, or to bytes that no record
//! describes yet. So it suffices that each prefix is sound. By operation:
//!
//! - **Publish.** The slot is free: its tag is 0, so nothing refers to its page and to the rest of its
//!   record. Page and record are written, then the tag. Before the tag the record does not exist, after it
//!   the record is complete. The caller answers its client only after the call returns.
//! - **Clear.** The tag becomes 0, then the slot is given to the allocator, and only then can the next owner
//!   write to it. The lock of the allocator orders this between threads.
//! - **Overwrite.** The caller publishes the new page, then drops the old one. Between the two, both records
//!   exist; the larger order wins. Nothing modifies a page in place.
//! - **Add a chunk.** Its memory is taken and zeroed, then its entry in the chunk table is set with one
//!   store, then its slots are used. A chunk without entry is given back by the next opening.
//! - **Release a chunk.** No slot is used. The entry becomes 0, then the memory is given back.
//! - **State a cover.** There are two slots; the older one is overwritten, tag first cleared and last set.
//!   The other slot holds the previous statement.
//! - **Format.** The tag of the header becomes 0, everything else is cleared, then the header is written, its
//!   tag last. Before that the memory is empty to the next opening, and its contents were given up already.
//! - **Open.** Nothing is changed before everything has been read and found sound.
//!
//! # Damage
//!
//! Bytes that no kill can leave are damage: a tag that does not match its structure, a number that no writer
//! reaches or that occurs twice, a record in a chunk of the other kind, or a chunk that is in the table and
//! has no memory. Then the memory is neither used nor changed, since it cannot be known which records are
//! missing. Only damage to the bytes of a page leaves the rest of the memory usable: it affects only the disk
//! of the page.
//!
//! Two kinds of damage look like the work of a writer: a tag or an entry of the chunk table that became 0,
//! and another version of a structure with its matching tag. Neither has a cause but a program that writes
//! to this file on purpose. What records mean, such as disks and blocks that do not exist, is for the caller
//! to check.
//!
//! A file that another process truncates or punches while it is mapped raises SIGBUS at the next access. Only
//! this user and root can do this, and the lock keeps servers from doing it. So the signal is not handled.

mod api;
mod bits;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod mapping;
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
pub use shared::{Examined, Peeked, SharedFile, effective_user};
#[cfg(feature = "test-util")]
pub use words::set_hook;

/// Bytes of a page.
pub const PAGE: usize = forebay_format::BLOCK;
