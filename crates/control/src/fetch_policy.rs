//! The policy for downloads of image files.

use std::time::Duration;

/// Policy for imports from URLs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchPolicy {
    /// Maximum size of a file in bytes.
    pub max_bytes: u64,
    /// Whether redirects may lead to private addresses, host names may resolve to addresses of this machine,
    /// and clients on other machines may name this machine in a URL.
    pub allow_private: bool,
    /// Maximum time from a request to the first byte of its response: some servers make images on demand.
    pub first_byte: Duration,
    /// Maximum time of a whole download.
    pub timeout: Duration,
}

impl Default for FetchPolicy {
    fn default() -> FetchPolicy {
        FetchPolicy {
            max_bytes: 1 << 40,
            allow_private: false,
            first_byte: Duration::from_secs(600),
            timeout: Duration::from_secs(24 * 3600),
        }
    }
}
