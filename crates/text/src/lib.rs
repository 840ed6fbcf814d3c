//! What people read and type: text from peers and files, escaped where it leaves the program; patterns for
//! names, secrets, and sizes.

mod escape;
mod pattern;
mod plural;
mod secret;
mod size;

pub use escape::{is_active, is_relative_path, json, lines, one_line, quoted, shorten, shortened};
pub use pattern::{BadPattern, Glob, NamePattern};
pub use plural::counted;
pub use secret::{BYTE_ORDER_MARK, Secret};
pub use size::{Size, SizeError};
