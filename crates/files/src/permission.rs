//! Permissions, from the modes of files as POSIX defines them.

use crate::table::Inode;
use crate::types::{Caller, Kind};
use crate::{Error, Result};

/// Permission to read, write, and execute or search: the bits of a mode.
pub(crate) const READ: u16 = 4;
pub(crate) const WRITE: u16 = 2;
pub(crate) const SEARCH: u16 = 1;
/// The bits of a mode that change the user or the group of a program.
pub(crate) const SET_ID: u16 = 0o6000;
pub(crate) const SET_GROUP: u16 = 0o2000;
const STICKY: u16 = 0o1000;

/// The permissions of a user, as the bits of a mode.
pub(crate) fn permitted(inode: &Inode, caller: &Caller) -> u16 {
    if caller.is_root() {
        let is_program = inode.kind == Some(Kind::Directory) || inode.mode & 0o111 != 0;
        return if is_program { READ | WRITE | SEARCH } else { READ | WRITE };
    }
    let shift = match inode.uid == caller.uid {
        true => 6,
        false if caller.is_in(inode.gid) => 3,
        false => 0,
    };
    (inode.mode >> shift) & 7
}

/// Checks that a user has permissions.
pub(crate) fn check(inode: &Inode, caller: &Caller, wanted: u16) -> Result<()> {
    if permitted(inode, caller) & wanted == wanted { Ok(()) } else { Err(Error::Access) }
}

/// As [`check`], for the data of a file. The owner is always permitted: a client checks permissions when it
/// opens a file, and writes afterwards, even if the mode has changed. Data of programs can be read.
pub(crate) fn check_data(inode: &Inode, caller: &Caller, wanted: u16) -> Result<()> {
    if inode.uid == caller.uid || (wanted == READ && permitted(inode, caller) & SEARCH != 0) {
        return Ok(());
    }
    check(inode, caller, wanted)
}

/// Checks that a user is the owner or root.
pub(crate) fn check_owner(inode: &Inode, caller: &Caller) -> Result<()> {
    if caller.is_root() || inode.uid == caller.uid { Ok(()) } else { Err(Error::NotOwner) }
}

/// Checks that a user may remove the name of `child` from `dir`.
pub(crate) fn check_removal(dir: &Inode, child: &Inode, caller: &Caller) -> Result<()> {
    check(dir, caller, WRITE | SEARCH)?;
    let owns = caller.is_root() || [dir.uid, child.uid].contains(&caller.uid);
    if dir.mode & STICKY != 0 && !owns { Err(Error::Access) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_those_of_owner_group_or_others() {
        let inode = Inode { kind: Some(Kind::File), mode: 0o641, uid: 10, gid: 20, ..Inode::default() };
        let of = |uid, gid, groups: &[u32]| permitted(&inode, &Caller { uid, gid, groups: groups.to_vec() });
        assert_eq!(of(10, 20, &[]), 6);
        assert_eq!(of(11, 20, &[]), 4);
        assert_eq!(of(11, 21, &[19, 20]), 4);
        assert_eq!(of(11, 21, &[]), 1);
        assert_eq!(of(0, 0, &[]), 7);
        let plain = Inode { mode: 0o600, ..inode };
        assert_eq!(permitted(&plain, &Caller::root()), 6);
        let reader = Caller { uid: 11, gid: 20, groups: Vec::new() };
        assert!(check_data(&plain, &reader, READ).is_err());
        let none = Inode { mode: 0, ..plain };
        assert!(check_data(&none, &Caller { uid: 10, gid: 0, groups: Vec::new() }, WRITE).is_ok());
    }

    #[test]
    fn only_owners_remove_names_from_a_sticky_directory() {
        let dir = Inode { kind: Some(Kind::Directory), mode: 0o1777, uid: 10, ..Inode::default() };
        let child = Inode { kind: Some(Kind::File), uid: 11, ..Inode::default() };
        let caller = |uid| Caller { uid, gid: 99, groups: Vec::new() };
        for (uid, permitted) in [(0, true), (10, true), (11, true), (12, false)] {
            assert_eq!(check_removal(&dir, &child, &caller(uid)).is_ok(), permitted, "{uid}");
        }
    }
}
