//! The mapping of errno to [`StoreError`]. There is no other mapping.

use std::io;

use crate::StoreError;

/// Whether the file system refuses room.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// The error of a failed operation; `what` names the operation and its object.
pub(super) fn store_error(what: impl FnOnce() -> String, error: &io::Error) -> StoreError {
    match error.raw_os_error() {
        _ if is_full(error) => StoreError::Full,
        Some(libc::EROFS) => StoreError::ReadOnly,
        errno => StoreError::Io { what: what(), reason: error.to_string(), errno: errno.unwrap_or(0) },
    }
}

/// The error after the directory was deleted, or its file system unmounted, while the store was open.
pub(super) fn directory_deleted(what: impl FnOnce() -> String) -> StoreError {
    StoreError::Io {
        what: what(),
        reason: "the store's directory was deleted while it was in use".into(),
        errno: libc::ENOENT,
    }
}
