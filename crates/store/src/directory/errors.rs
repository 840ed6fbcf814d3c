//! From errno to [`StoreError`]: the one table.

use std::io;

use crate::StoreError;

/// What failed, and why: `what` names the operation and its object.
pub(super) fn store_error(what: impl FnOnce() -> String, error: &io::Error) -> StoreError {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => StoreError::Full,
        Some(libc::EROFS) => StoreError::ReadOnly,
        errno => StoreError::Io { what: what(), reason: error.to_string(), errno: errno.unwrap_or(0) },
    }
}

/// The directory was deleted, or its file system is gone, while the store was open.
pub(super) fn vanished(what: impl FnOnce() -> String) -> StoreError {
    StoreError::Io {
        what: what(),
        reason: "the store's directory was deleted while it was in use".into(),
        errno: libc::ENOENT,
    }
}

/// An earlier append or sync of the same object failed: whatever it is asked now, it must not succeed.
pub(super) fn failed_before(what: impl FnOnce() -> String) -> StoreError {
    let reason = "an earlier write or sync of it failed, so its last bytes are unknown".into();
    StoreError::Io { what: what(), reason, errno: libc::EIO }
}
