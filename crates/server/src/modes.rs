//! Permissions of files that hold keys and secrets.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// All permissions of the group and of other users.
const OTHERS: u32 = 0o077;
const PERMISSIONS: u32 = 0o777;

/// The permissions of a file if users other than its owner can read or change it. `None` also if the file
/// cannot be inspected; opening it reports that error.
pub(crate) fn open_to_others(path: &Path) -> Option<u32> {
    of(&std::fs::metadata(path).ok()?)
}

fn of(found: &Metadata) -> Option<u32> {
    let mode = found.mode() & PERMISSIONS;
    (found.is_file() && mode & OTHERS != 0).then_some(mode)
}

/// A warning about a secret file that other users can access.
pub(crate) fn secret_warning(path: &Path) -> Option<String> {
    let mode = open_to_others(path)?;
    let shown = path.display();
    Some(format!(
        "the secret in {shown} can be read or changed by other users (mode {mode:03o}): chmod 600 {shown}"
    ))
}
