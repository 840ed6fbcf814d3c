//! The types of the interface: handles, attributes, callers.

use crate::layout::{u32_at, u64_at};

/// The type of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A regular file.
    File = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
}

/// An object, as long as it exists: its number is used again after its removal, with another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Number of the inode.
    pub number: u32,
    /// Number of objects that have had this inode.
    pub generation: u32,
}

/// Bytes of a handle.
pub const HANDLE: usize = 20;
const HANDLE_VERSION: u32 = 0xfb01_0001;

/// The handle of an object, which clients keep. It is valid until the object is removed, also after a restart
/// of the server and in another server.
pub fn handle(identity: u64, id: FileId) -> [u8; HANDLE] {
    let mut out = [0; HANDLE];
    out[..4].copy_from_slice(&HANDLE_VERSION.to_le_bytes());
    out[4..12].copy_from_slice(&identity.to_le_bytes());
    out[12..16].copy_from_slice(&id.number.to_le_bytes());
    out[16..].copy_from_slice(&id.generation.to_le_bytes());
    out
}

/// The object of a handle; `None` if the handle is not one of this namespace.
pub fn object(identity: u64, handle: &[u8]) -> Option<FileId> {
    let is_valid =
        handle.len() == HANDLE && u32_at(handle, 0) == HANDLE_VERSION && u64_at(handle, 4) == identity;
    is_valid.then(|| FileId { number: u32_at(handle, 12), generation: u32_at(handle, 16) })
}

/// The attributes of an object. Times are nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// The object.
    pub id: FileId,
    /// Type of the object.
    pub kind: Kind,
    /// Permissions: the lower twelve bits of a UNIX mode.
    pub mode: u16,
    /// Number of names.
    pub links: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Last access, as far as clients have set it.
    pub accessed: u64,
    /// Last change of the contents.
    pub modified: u64,
    /// Last change of contents or attributes. It increases with each change.
    pub changed: u64,
}

/// Attributes of an object before and after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// Before the change.
    pub before: Attributes,
    /// After the change.
    pub after: Attributes,
}

/// A time to be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetTime {
    /// The time is not changed.
    #[default]
    Keep,
    /// The present time.
    Now,
    /// This time, in nanoseconds since 1970.
    To(u64),
}

/// Attributes to be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// Permissions.
    pub mode: Option<u16>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub accessed: SetTime,
    /// Last change of the contents.
    pub modified: SetTime,
}

/// The user for whom a client acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The user; 0 may do everything.
    pub uid: u32,
    /// The user's primary group.
    pub gid: u32,
    /// The user's further groups.
    pub groups: Vec<u32>,
}

impl Caller {
    /// The user with all permissions.
    pub fn root() -> Caller {
        Caller { uid: 0, gid: 0, groups: Vec::new() }
    }

    /// Whether the user is root.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether the user is in a group.
    pub fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }
}

/// How a file is created whose name may exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Create {
    /// A file that exists is opened; its size is changed if a size is given.
    Unchecked,
    /// A file that exists is an error.
    Guarded,
    /// A file that exists is an error, unless it was created with this verifier.
    Exclusive([u8; 8]),
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: Vec<u8>,
    /// Position of the entry; a listing continues after it.
    pub cookie: u64,
    /// The object.
    pub attributes: Attributes,
}

/// Identity of a request that changes the namespace, by which a repeated request is recognized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestKey {
    /// Address of the client.
    pub client: [u8; 16],
    /// Number of the request, which the client chose.
    pub number: u32,
    /// The procedure.
    pub procedure: u32,
    /// Digest of the arguments.
    pub digest: u64,
}
