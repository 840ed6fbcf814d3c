//! The types of the namespace as those of NFS, and the reverse.

use forebay_files::{Attributes, Caller, Changed, Files, Kind, SetAttributes, SetTime};
use forebay_wire::nfs::{self, Before, FileKind, Time, Wcc};
use forebay_wire::rpc::Credential;

use super::access::{NOBODY, Permitted};

const SECOND: u64 = 1_000_000_000;

pub(super) fn time_of(nanos: u64) -> Time {
    Time { seconds: (nanos / SECOND) as u32, nanos: (nanos % SECOND) as u32 }
}

pub(super) fn nanos_of(time: Time) -> u64 {
    u64::from(time.seconds) * SECOND + u64::from(time.nanos)
}

pub(super) fn attributes_of(files: &Files, of: &Attributes) -> nfs::Attributes {
    nfs::Attributes {
        kind: match of.kind {
            Kind::File => FileKind::Regular,
            Kind::Directory => FileKind::Directory,
            Kind::Symlink => FileKind::Symlink,
        },
        mode: of.mode.into(),
        nlink: of.links,
        uid: of.uid,
        gid: of.gid,
        size: of.size,
        used: Files::occupied(of),
        fsid: files.identity(),
        fileid: of.id.number.into(),
        atime: time_of(of.accessed),
        mtime: time_of(of.modified),
        ctime: time_of(of.changed),
    }
}

pub(super) fn wcc_of(files: &Files, changed: &Changed) -> Wcc {
    let before = &changed.before;
    let before =
        Before { size: before.size, mtime: time_of(before.modified), ctime: time_of(before.changed) };
    Wcc { before: Some(before), after: Some(attributes_of(files, &changed.after)) }
}

fn set_time(time: nfs::SetTime) -> SetTime {
    match time {
        nfs::SetTime::Keep => SetTime::Keep,
        nfs::SetTime::Now => SetTime::Now,
        nfs::SetTime::To(time) => SetTime::To(nanos_of(time)),
    }
}

pub(super) fn set_of(set: &nfs::SetAttributes) -> SetAttributes {
    SetAttributes {
        mode: set.mode.map(|mode| (mode & 0o7777) as u16),
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        accessed: set_time(set.atime),
        modified: set_time(set.mtime),
    }
}

/// The user of a call.
pub(super) fn caller_of(credential: &Credential, permitted: Permitted) -> Caller {
    let Credential::Sys(user) = credential else {
        return Caller { uid: NOBODY, gid: NOBODY, groups: Vec::new() };
    };
    let squashed = |id: u32| if permitted.root_squash && id == 0 { NOBODY } else { id };
    Caller {
        uid: squashed(user.uid),
        gid: squashed(user.gid),
        groups: user.groups().iter().copied().map(squashed).collect(),
    }
}
