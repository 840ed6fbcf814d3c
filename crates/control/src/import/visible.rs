//! The server's own view of the file system: systemd gives a service its own `/tmp` and `/var/tmp`
//! (`PrivateTmp=`), and hides directories from it. A path that exists for the user may not exist for the
//! server.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Part of the name of the directory that systemd mounts as a service's own `/tmp`.
const PRIVATE: &str = "systemd-private-";

/// Returns how the server's view of `path` differs from the view of other programs, as the continuation of a
/// sentence; empty if no difference is known.
pub(super) fn of_server(path: &Path) -> &'static str {
    // Without the table of mounts, nothing is known.
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    in_table(&String::from_utf8_lossy(&mounts), path)
}

/// Works like [`of_server`] for a table of mounts, `/proc/PID/mountinfo`. The fourth field of a line is the
/// mounted directory of the file system, the fifth is the mount point.
fn in_table(mounts: &str, path: &Path) -> &'static str {
    let lines = mounts.lines().map(|line| line.split(' ').skip(3).take(2).collect::<Vec<_>>());
    // Later mounts hide earlier mounts at the same place.
    let over = lines.filter(|fields| fields.len() == 2 && path.starts_with(fields[1]));
    let nearest = over.max_by_key(|fields| Path::new(fields[1]).as_os_str().as_bytes().len());
    match nearest.as_deref() {
        Some([root, _]) if root.contains(PRIVATE) => {
            "; its service has a private /tmp and /var/tmp (PrivateTmp=yes): put the file in another directory"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_tmp_is_named() {
        let mounts = "21 1 254:1 / / rw - ext4 /dev/vda rw\n\
            80 21 0:31 / /tmp/shared rw - tmpfs tmpfs rw\n\
            77 21 254:1 /tmp/systemd-private-1f-forebay.service-x/tmp /tmp rw - ext4 /dev/vda rw\n\
            78 21 254:1 /var/tmp/systemd-private-1f-forebay.service-y/tmp /var/tmp rw - ext4 /dev/vda rw\n";
        for (path, private) in [
            ("/tmp/disk.img", true),
            ("/var/tmp/a/disk.img", true),
            ("/tmp/shared/disk.img", false),
            ("/tmpx", false),
            ("/srv/disk.img", false),
        ] {
            assert_eq!(in_table(mounts, Path::new(path)).contains("PrivateTmp"), private, "{path}");
        }
        assert_eq!(in_table("", Path::new("/tmp/x")), "");
    }
}
