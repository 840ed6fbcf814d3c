//! Disks (volumes, snapshots, images) as recorded in the catalogue, and the catalogue changes in the log.

use crate::layout::*;
use crate::{BlockRef, FormatError, MAX_BLOCKS, MAX_LEVEL, MapValue, Result, SECTOR};

/// Maximum length of the name of a disk, in bytes.
pub const MAX_NAME: usize = 255;

/// Number of a disk; starts at 1 and is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct DiskId(pub u32);

/// The role of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// The disk is writable.
    Volume = 1,
    /// An immutable point in time of a volume, its parent.
    Snapshot = 2,
    /// An immutable disk for cloning.
    Image = 3,
    /// An import in progress; opening a pool removes it.
    Import = 4,
    /// Metadata of the pool about its parent, or about no disk if it has none; not visible to users.
    Metadata = 5,
    /// An image of the cluster to which the pool belongs. The disk is the origin of the clones that the pool
    /// has of the image; it is not visible to users.
    ClusterImage = 6,
}

impl Role {
    /// Whether disks of this role are visible to users.
    pub fn is_visible(self) -> bool {
        !matches!(self, Role::Import | Role::Metadata | Role::ClusterImage)
    }
}

/// When a write to the disk is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum SyncMode {
    /// A volatile write cache: flush and FUA are honoured, and dirty data is never older than a second.
    #[default]
    Flush = 1,
    /// Every acknowledged write is durable.
    Always = 2,
    /// Writes have no guarantee; flushes are answered immediately.
    Never = 3,
}

/// Whether clients may hold answers to writes that are not durable yet, and whether such writes are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mark {
    /// All writes that were answered are durable.
    #[default]
    None,
    /// Clients of the host that serves the disk may hold answers to writes that are not durable.
    Local,
    /// Clients of any host may hold answers to writes that are not durable.
    Remote,
    /// Answered writes that were not durable are lost.
    Lost {
        /// Clients of other hosts may have received answers to the lost writes.
        remote: bool,
        /// When the loss was detected, in milliseconds since the boot of the host.
        since_ms: u64,
    },
}

impl Mark {
    /// The byte and the time of a record.
    fn encode(self) -> (u8, u64) {
        match self {
            Mark::None => (0, 0),
            Mark::Local => (1, 0),
            Mark::Remote => (2, 0),
            Mark::Lost { remote, since_ms } => (3 + u8::from(remote), since_ms),
        }
    }

    /// The mark of a byte and a time; `None` if no writer produces them.
    fn decode(mark: u8, since_ms: u64) -> Option<Mark> {
        match (mark, since_ms) {
            (0, 0) => Some(Mark::None),
            (1, 0) => Some(Mark::Local),
            (2, 0) => Some(Mark::Remote),
            (3 | 4, _) => Some(Mark::Lost { remote: mark == 4, since_ms }),
            _ => None,
        }
    }
}

layout!(disk, "disk record", 96, {
    ID @ 0, 4, "disk id";
    ROLE @ 4, 1, "1 volume, 2 snapshot, 3 image, 4 import in progress, 5 metadata, 6 image of the cluster";
    SYNC @ 5, 1, "1 flush, 2 always, 3 never";
    HEIGHT @ 6, 1, "levels of the block map above its leaves";
    NAME_LEN @ 7, 1, "bytes of the name, which follows the record";
    SIZE_BYTES @ 8, 8, "size in bytes, a multiple of 512";
    CREATED_MS @ 16, 8, "creation time, Unix milliseconds";
    PARENT @ 24, 4, "of a snapshot: its volume; of metadata: the disk that it describes, 0 for a document of the pool; otherwise 0";
    ORIGIN @ 28, 4, "of a clone: the snapshot or image it started from; else 0";
    WRITE_CACHE @ 32, 8, "of a desktop: bytes of its RAM write cache; else 0";
    UUID @ 40, 16, "identity that guests and initiators see, random";
    ROOT @ 56, 12, "root of the block map, as a block reference: a node, a hole, or allocated zeroes";
    DEDUP_DOMAIN @ 68, 4, "blocks are shared with disks of the same domain only";
    FLAGS @ 72, 1, "1: a desktop that is reset when its guest leaves";
    MAP_DAMAGED @ 73, 1, "1: a node of its block map could not be read";
    MARK @ 74, 1, "writes answered before they are durable: 0 none, 1 to local clients, 2 to remote clients; 3 and 4: such writes of local, of remote clients are lost";
    LOST_MS @ 80, 8, "of a mark of 3 or 4: when the loss was detected, milliseconds since boot; else 0";
});

/// The record of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskRecord {
    /// Number of the disk.
    pub id: DiskId,
    /// Role of the disk.
    pub role: Role,
    /// When writes to the disk are durable.
    pub sync: SyncMode,
    /// Its name: at most [`MAX_NAME`] bytes of UTF-8. A snapshot's name does not include the volume's.
    pub name: String,
    /// Size of the disk in bytes.
    pub size: u64,
    /// Creation time in Unix milliseconds.
    pub created_ms: u64,
    /// For a snapshot: its volume. For a note: the disk that it describes; `None` if it describes the pool.
    pub parent: Option<DiskId>,
    /// For a clone: the snapshot or image from which it was created.
    pub origin: Option<DiskId>,
    /// For a desktop: bytes of its RAM write cache.
    pub write_cache: u64,
    /// Identity reported to guests and initiators.
    pub uuid: [u8; 16],
    /// Levels of the block map above its leaves.
    pub height: u8,
    /// Root of the block map: a node, or the value of all blocks of the disk.
    pub root: MapValue,
    /// Deduplication domain: blocks are shared only among disks with the same number.
    pub dedup_domain: u32,
    /// For a desktop: it is reset when its guest disconnects.
    pub reset_at_disconnect: bool,
    /// A node of the disk's block map could not be read.
    pub map_damaged: bool,
    /// Whether clients may hold answers to writes that are not durable.
    pub mark: Mark,
}

fn optional(id: u32) -> Option<DiskId> {
    (id != 0).then_some(DiskId(id))
}

/// Whether a disk can have this size.
fn is_size(bytes: u64) -> bool {
    bytes.is_multiple_of(SECTOR as u64) && bytes.div_ceil(crate::BLOCK as u64) <= MAX_BLOCKS
}

impl DiskRecord {
    /// A field with a value that writers never produce, if any.
    fn bad_field(&self) -> Option<&'static str> {
        if self.id.0 == 0 {
            Some("id")
        } else if self.name.is_empty() || self.name.len() > MAX_NAME || self.name.contains(char::is_control) {
            Some("name")
        } else if !is_size(self.size) {
            Some("size_bytes")
        } else if self.height > MAX_LEVEL {
            Some("height")
        } else if !self.is_parent_valid() {
            Some("parent")
        } else if self.origin == Some(self.id) {
            Some("origin")
        } else {
            None
        }
    }

    /// Whether the disk has a parent exactly if its role requires or permits a parent, and the parent is
    /// another disk.
    fn is_parent_valid(&self) -> bool {
        match (self.role, self.parent) {
            (Role::Snapshot | Role::Metadata, Some(parent)) => parent != self.id,
            (Role::Snapshot, None) => false,
            (_, parent) => parent.is_none(),
        }
    }

    /// Appends the record, then the name, then zeroes up to a multiple of eight.
    pub fn encode(&self, out: &mut Vec<u8>) {
        use disk as l;
        assert_eq!(self.bad_field(), None, "names and sizes must be validated by the caller");
        let start = out.len();
        out.resize(start + l::SIZE, 0);
        let b = &mut out[start..];
        put_u32(b, l::ID, self.id.0);
        put_u8(b, l::ROLE, self.role as u8);
        put_u8(b, l::SYNC, self.sync as u8);
        put_u8(b, l::HEIGHT, self.height);
        put_u8(b, l::NAME_LEN, self.name.len() as u8);
        put_u64(b, l::SIZE_BYTES, self.size);
        put_u64(b, l::CREATED_MS, self.created_ms);
        put_u32(b, l::PARENT, self.parent.map_or(0, |d| d.0));
        put_u32(b, l::ORIGIN, self.origin.map_or(0, |d| d.0));
        put_u64(b, l::WRITE_CACHE, self.write_cache);
        put_bytes(b, l::UUID, &self.uuid);
        put_bytes(b, l::ROOT, &self.root.encode());
        put_u32(b, l::DEDUP_DOMAIN, self.dedup_domain);
        put_u8(b, l::FLAGS, u8::from(self.reset_at_disconnect));
        put_u8(b, l::MAP_DAMAGED, u8::from(self.map_damaged));
        let (mark, since_ms) = self.mark.encode();
        put_u8(b, l::MARK, mark);
        put_u64(b, l::LOST_MS, since_ms);
        out.extend_from_slice(self.name.as_bytes());
        out.resize(crate::align_up(out.len() - start, 8) + start, 0);
    }

    /// Decodes one record at the front of `bytes` and advances `bytes` past it.
    pub fn decode(bytes: &mut &[u8]) -> Result<DiskRecord> {
        use disk as l;
        const WHAT: &str = "disk record";
        let bad = |field| FormatError::Value { what: WHAT, field };
        let b = *bytes;
        if b.len() < l::SIZE {
            return Err(FormatError::Truncated(WHAT));
        }
        let name_len = get_u8(b, l::NAME_LEN) as usize;
        let len = crate::align_up(l::SIZE + name_len, 8);
        if b.len() < len {
            return Err(FormatError::Truncated(WHAT));
        }
        let name = std::str::from_utf8(&b[l::SIZE..l::SIZE + name_len]).map_err(|_| bad("name"))?;
        let record = DiskRecord {
            id: DiskId(get_u32(b, l::ID)),
            role: match get_u8(b, l::ROLE) {
                1 => Role::Volume,
                2 => Role::Snapshot,
                3 => Role::Image,
                4 => Role::Import,
                5 => Role::Metadata,
                6 => Role::ClusterImage,
                _ => return Err(bad("role")),
            },
            sync: match get_u8(b, l::SYNC) {
                1 => SyncMode::Flush,
                2 => SyncMode::Always,
                3 => SyncMode::Never,
                _ => return Err(bad("sync")),
            },
            name: name.to_owned(),
            size: get_u64(b, l::SIZE_BYTES),
            created_ms: get_u64(b, l::CREATED_MS),
            parent: optional(get_u32(b, l::PARENT)),
            origin: optional(get_u32(b, l::ORIGIN)),
            write_cache: get_u64(b, l::WRITE_CACHE),
            uuid: get_array(b, l::UUID),
            height: get_u8(b, l::HEIGHT),
            root: MapValue::decode(&get_array(b, l::ROOT)).ok_or(bad("root"))?,
            dedup_domain: get_u32(b, l::DEDUP_DOMAIN),
            reset_at_disconnect: match get_u8(b, l::FLAGS) {
                0 => false,
                1 => true,
                _ => return Err(bad("flags")),
            },
            map_damaged: match get_u8(b, l::MAP_DAMAGED) {
                0 => false,
                1 => true,
                _ => return Err(bad("map_damaged")),
            },
            mark: Mark::decode(get_u8(b, l::MARK), get_u64(b, l::LOST_MS)).ok_or(bad("mark"))?,
        };
        if let Some(field) = record.bad_field() {
            return Err(bad(field));
        }
        *bytes = &b[len..];
        Ok(record)
    }
}

layout!(op, "catalogue change", 24, {
    KIND @ 0, 1, "1 create, 2 delete, 3 copy contents, 4 resize, 5 update, 6 copy range, 7 mark, 8 attach";
    DISK @ 4, 4, "disk id";
    FROM @ 8, 4, "of create, copy and copy range: the disk whose contents it takes; else 0";
    SIZE_BYTES @ 16, 8, "of resize: the new size in bytes";
});
layout!(range, "copied range", 24, {
    BLOCK_INDEX @ 0, 8, "first logical block number in the disk that is changed";
    SOURCE_BLOCK @ 8, 8, "first logical block number in the disk that is copied from";
    COUNT @ 16, 8, "blocks";
});
layout!(mark, "changed mark", 16, {
    MARK @ 0, 1, "as in a disk record";
    LOST_MS @ 8, 8, "as in a disk record";
});

layout!(attached, "attached root", 16, {
    ROOT @ 0, 12, "root of the block map, as a block reference: a node in a segment of an image of the cluster";
});

/// One catalogue change. Create and update are followed by a disk record, whose root is not used; copy range
/// is followed by the range, mark by the changed mark, attach by the attached root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CatalogueOp {
    /// Creates a disk, empty or with the contents of `from` at this position of the log.
    Create {
        /// The disk; its root and height are not used.
        disk: DiskRecord,
        /// The disk with whose contents the new disk starts.
        from: Option<DiskId>,
    },
    /// The entry deletes a disk.
    Delete {
        /// The disk that is deleted.
        disk: DiskId,
    },
    /// Replaces contents and size of the disk by those of the disk `from`, as a rollback and a reset do.
    Copy {
        /// The disk that is changed.
        disk: DiskId,
        /// The disk whose contents are copied.
        from: DiskId,
    },
    /// Resizes a disk; blocks beyond a smaller size are discarded.
    Resize {
        /// The disk.
        disk: DiskId,
        /// The new size of the disk in bytes.
        size: u64,
    },
    /// Replaces everything except size, contents and mark.
    Update {
        /// The new record; its size, root, height and mark are not used.
        disk: DiskRecord,
    },
    /// Copies a range of `from`, with its contents at this position of the log, to a range of a disk. If both
    /// disks are the same, the ranges must not overlap.
    CopyRange {
        /// The disk that is changed.
        disk: DiskId,
        /// First logical block of the destination.
        block: u64,
        /// The disk to copy from; may be the same disk.
        from: DiskId,
        /// First logical block of the source.
        source_block: u64,
        /// Number of blocks in the range.
        count: u64,
    },
    /// Replaces the mark of a disk. Has no effect on a disk that was deleted.
    Mark {
        /// The disk.
        disk: DiskId,
        /// The new mark of the disk.
        mark: Mark,
    },
    /// Replaces the contents of a disk by those of an image of the cluster. The size of the disk is the size
    /// of the image.
    Attach {
        /// The disk.
        disk: DiskId,
        /// Root of the block map of the image.
        root: BlockRef,
    },
}

impl CatalogueOp {
    /// A field with a value that writers never produce; `None` if all fields are valid. Fields of a disk
    /// record are not checked.
    fn bad_field(&self) -> Option<&'static str> {
        match self {
            CatalogueOp::Create { disk, from } if *from == Some(disk.id) => Some("from"),
            CatalogueOp::Copy { disk, from } if disk == from || from.0 == 0 => Some("from"),
            CatalogueOp::Delete { disk } | CatalogueOp::Copy { disk, .. } if disk.0 == 0 => Some("disk"),
            CatalogueOp::Resize { disk, .. } | CatalogueOp::Attach { disk, .. } if disk.0 == 0 => {
                Some("disk")
            }
            CatalogueOp::Attach { root, .. }
                if !root.addr.segment.is_of_image() || root.form.of_node().is_none() =>
            {
                Some("root")
            }
            CatalogueOp::Resize { size, .. } if !is_size(*size) => Some("size_bytes"),
            CatalogueOp::CopyRange { disk, .. } | CatalogueOp::Mark { disk, .. } if disk.0 == 0 => {
                Some("disk")
            }
            CatalogueOp::CopyRange { from, .. } if from.0 == 0 => Some("from"),
            CatalogueOp::CopyRange { block, source_block, count, .. }
                if *count == 0
                    || block.max(source_block).checked_add(*count).is_none_or(|end| end > MAX_BLOCKS) =>
            {
                Some("count")
            }
            CatalogueOp::CopyRange { disk, block, from, source_block, count }
                if disk == from && block.abs_diff(*source_block) < *count =>
            {
                Some("source_block")
            }
            _ => None,
        }
    }

    /// Appends the encoded change, a multiple of eight bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        assert_eq!(self.bad_field(), None, "the encoded change would be rejected when decoded");
        let start = out.len();
        out.resize(start + op::SIZE, 0);
        let b = &mut out[start..];
        let mut head = |kind, disk: DiskId, from: Option<DiskId>, size| {
            put_u8(b, op::KIND, kind);
            put_u32(b, op::DISK, disk.0);
            put_u32(b, op::FROM, from.map_or(0, |d| d.0));
            put_u64(b, op::SIZE_BYTES, size);
        };
        match self {
            CatalogueOp::Create { disk, from } => {
                head(1, disk.id, *from, 0);
                disk.encode(out);
            }
            CatalogueOp::Delete { disk } => head(2, *disk, None, 0),
            CatalogueOp::Copy { disk, from } => head(3, *disk, Some(*from), 0),
            CatalogueOp::Resize { disk, size } => head(4, *disk, None, *size),
            CatalogueOp::Update { disk } => {
                head(5, disk.id, None, 0);
                disk.encode(out);
            }
            CatalogueOp::CopyRange { disk, block, from, source_block, count } => {
                head(6, *disk, Some(*from), 0);
                out.resize(start + op::SIZE + range::SIZE, 0);
                let b = &mut out[start + op::SIZE..];
                put_u64(b, range::BLOCK_INDEX, *block);
                put_u64(b, range::SOURCE_BLOCK, *source_block);
                put_u64(b, range::COUNT, *count);
            }
            CatalogueOp::Mark { disk, mark: changed } => {
                head(7, *disk, None, 0);
                out.resize(start + op::SIZE + mark::SIZE, 0);
                let b = &mut out[start + op::SIZE..];
                let (value, since_ms) = changed.encode();
                put_u8(b, mark::MARK, value);
                put_u64(b, mark::LOST_MS, since_ms);
            }
            CatalogueOp::Attach { disk, root } => {
                head(8, *disk, None, 0);
                out.resize(start + op::SIZE + attached::SIZE, 0);
                let b = &mut out[start + op::SIZE..];
                put_bytes(b, attached::ROOT, &MapValue::At(*root).encode());
            }
        }
    }

    /// Decodes exactly one change from `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<CatalogueOp> {
        const WHAT: &str = "catalogue change";
        let bad = |field| FormatError::Value { what: WHAT, field };
        let (b, mut rest) = bytes.split_at_checked(op::SIZE).ok_or(FormatError::Truncated(WHAT))?;
        let disk = optional(get_u32(b, op::DISK)).ok_or(bad("disk"))?;
        let from = optional(get_u32(b, op::FROM));
        let mut record = || {
            let r = DiskRecord::decode(&mut rest)?;
            if r.id == disk { Ok(r) } else { Err(bad("disk")) }
        };
        let change = match get_u8(b, op::KIND) {
            1 => CatalogueOp::Create { disk: record()?, from },
            2 => CatalogueOp::Delete { disk },
            3 => CatalogueOp::Copy { disk, from: from.ok_or(bad("from"))? },
            4 => CatalogueOp::Resize { disk, size: get_u64(b, op::SIZE_BYTES) },
            5 => CatalogueOp::Update { disk: record()? },
            6 => {
                let b;
                (b, rest) = rest.split_at_checked(range::SIZE).ok_or(FormatError::Truncated(WHAT))?;
                CatalogueOp::CopyRange {
                    disk,
                    block: get_u64(b, range::BLOCK_INDEX),
                    from: from.ok_or(bad("from"))?,
                    source_block: get_u64(b, range::SOURCE_BLOCK),
                    count: get_u64(b, range::COUNT),
                }
            }
            7 => {
                let b;
                (b, rest) = rest.split_at_checked(mark::SIZE).ok_or(FormatError::Truncated(WHAT))?;
                let changed = Mark::decode(get_u8(b, mark::MARK), get_u64(b, mark::LOST_MS));
                CatalogueOp::Mark { disk, mark: changed.ok_or(bad("mark"))? }
            }
            8 => {
                let b;
                (b, rest) = rest.split_at_checked(attached::SIZE).ok_or(FormatError::Truncated(WHAT))?;
                let Some(MapValue::At(root)) = MapValue::decode(&get_array(b, attached::ROOT)) else {
                    return Err(bad("root"));
                };
                CatalogueOp::Attach { disk, root }
            }
            _ => return Err(bad("kind")),
        };
        if !rest.is_empty() {
            return Err(bad("length"));
        }
        match change.bad_field() {
            Some(field) => Err(bad(field)),
            None => Ok(change),
        }
    }
}
