//! Files that hold keys and secrets: the users that can read them, and how they are read.
//!
//! A file is accepted if only its owner can access it. A file of root is also accepted if a group can read
//! it that no other user is in: orchestrators provide secrets in this way. Kubernetes mounts a Secret as
//! files of root that the group of the pod can read (`fsGroup`); systemd grants the user of a service
//! access by an entry of the access control list, which the permissions show as those of the group.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// All permissions of the group and of other users.
const OTHERS: u32 = 0o077;
/// The permission of the group to read.
const GROUP_READS: u32 = 0o040;
const PERMISSIONS: u32 = 0o777;
const ROOT: u32 = 0;

/// The permissions of a file if users other than its owner, the server and root can read or change it. `None`
/// also if the file cannot be inspected; opening it reports that error.
pub fn open_to_others(path: &Path) -> Option<u32> {
    let table = |file| std::fs::read_to_string(file).unwrap_or_default();
    of(&std::fs::metadata(path).ok()?, |group| {
        is_only_of_user(
            group,
            forebay_retained::effective_user(),
            &table("/etc/group"),
            &table("/etc/passwd"),
        )
    })
}

/// Works like [`open_to_others`]; `is_alone` decides whether the server's user is the only user in a group.
fn of(found: &Metadata, is_alone: impl FnOnce(u32) -> bool) -> Option<u32> {
    let mode = found.mode() & PERMISSIONS;
    let is_closed = match mode & OTHERS {
        0 => true,
        GROUP_READS => found.uid() == ROOT && is_alone(found.gid()),
        _ => false,
    };
    (found.is_file() && !is_closed).then_some(mode)
}

/// Whether no user but `user` is in a group, according to tables of groups and of users (group(5),
/// passwd(5)). The group of root has rights of root.
fn is_only_of_user(group: u32, user: u32, groups: &str, users: &str) -> bool {
    let field = |line: &str, n| line.split(':').nth(n).unwrap_or_default().to_owned();
    let number = |line: &str, n| field(line, n).parse::<u32>().ok();
    let names = |line: &&str| number(line, 2) == Some(user);
    let own_names: Vec<String> = users.lines().filter(names).map(|line| field(line, 0)).collect();
    let is_other = |name: &str| !name.is_empty() && !own_names.iter().any(|own| own == name);
    let has_member = groups
        .lines()
        .filter(|line| number(line, 2) == Some(group))
        .any(|line| field(line, 3).split(',').any(is_other));
    let is_primary =
        users.lines().any(|line| number(line, 3) == Some(group) && number(line, 2) != Some(user));
    group == ROOT || !(has_member || is_primary)
}

/// A warning about a secret file that other users can access.
pub fn secret_warning(path: &Path) -> Option<String> {
    let mode = open_to_others(path)?;
    let shown = path.display();
    Some(format!(
        "the secret in {shown} can be read or changed by other users (mode {mode:03o}): chmod 600 {shown}"
    ))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    const GROUPS: &str = "root:x:0:\nbroken\nforebay:x:990:\nssl:x:991:forebay\nguests:x:992:forebay,alice\n";
    const USERS: &str =
        "root:x:0:0::/root:/bin/sh\nforebay:x:980:990::/:/bin/false\nbob:x:1000:993::/:/bin/sh\n";

    #[test]
    fn groups_with_other_users_are_recognised() {
        let of = |group| is_only_of_user(group, 980, GROUPS, USERS);
        assert!(of(990) && of(991) && of(0));
        assert!(of(1234), "a group without a name, such as that of a pod");
        assert!(!of(992) && !of(993));
        assert!(!is_only_of_user(991, 981, GROUPS, USERS), "it is the group of a user that has no name");
    }

    #[test]
    fn a_file_of_root_may_be_readable_through_a_group_without_other_users() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(&path, "").unwrap();
        let judged = |mode, is_alone: bool| {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            of(&fs::metadata(&path).unwrap(), |_| is_alone)
        };
        assert_eq!((judged(0o600, false), judged(0o400, false)), (None, None));
        for mode in [0o444, 0o644, 0o620, 0o460, 0o604, 0o450, 0o601] {
            assert_eq!(judged(mode, true), Some(mode), "{mode:o}");
        }
        assert_eq!(judged(0o440, false), Some(0o440));
        if forebay_retained::effective_user() != ROOT {
            assert_eq!(judged(0o440, true), Some(0o440), "the owner is not root");
            return println!("skipped in part: only root has files of root");
        }
        assert_eq!((judged(0o440, true), judged(0o640, true)), (None, None));
        chown(&path, Some(12_345), None).unwrap();
        assert_eq!((judged(0o440, true), judged(0o400, true)), (Some(0o440), None));
    }
}
