//! Secrets that people type, or keep in files.

use std::fmt;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};

/// The byte-order mark that some editors write at the beginning of a file.
pub const BYTE_ORDER_MARK: &str = "\u{feff}";

/// A secret, which is masked in debug output. It is serialised only in the pool's document
/// and in requests; no response of the API has a field of this type.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Takes any text.
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    /// Reads a secret from a source that contains only the secret and at most one line end. A byte-order mark
    /// at its beginning is skipped.
    ///
    /// # Errors
    /// Those of `from`; `InvalidData` if the text is not UTF-8 or too long.
    pub fn read(from: impl Read) -> io::Result<Secret> {
        // Longer than any secret with its line end.
        const MOST: u64 = 1024;
        let mut text = String::new();
        if from.take(MOST).read_to_string(&mut text)? as u64 == MOST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the secret is too long"));
        }
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text);
        let line = text.strip_suffix('\n').unwrap_or(text);
        Ok(Secret(line.strip_suffix('\r').unwrap_or(line).to_owned()))
    }

    /// The secret, which must not be displayed or logged.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
