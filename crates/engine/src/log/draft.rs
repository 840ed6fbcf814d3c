//! The items of a batch, and their layout.

use forebay_format::{
    Address, BLOCK, BatchHeader, BlockRef, CatalogueOp, DirectoryEntry, DiskId, Entry, Fingerprint, Form,
    MapNode, SegmentId, Slot, SlotKind, Sum64, crc32c,
};

use crate::cache::{Owner, Rank, ReadCache};
use crate::workers::{Workers, map};

/// An item of a batch.
pub(crate) enum Item<'a> {
    /// A block of a disk, to be stored as `stored` in `form`.
    Block {
        disk: DiskId,
        block: u64,
        content: &'a [u8; BLOCK],
        stored: &'a [u8],
        form: Form,
        crc: u32,
        fingerprint: Fingerprint,
        /// Rank of the block in the read cache.
        rank: Rank,
    },
    /// A block of a disk that refers to a stored block.
    Reference { disk: DiskId, block: u64, target: BlockRef },
    /// A block of a disk with the same content as the `first`th block that this group stores.
    Same { disk: DiskId, block: u64, first: usize },
    /// A range that reads as zeroes.
    Zero { disk: DiskId, block: u64, count: u64, allocated: bool },
    /// An encoded map node.
    Node(&'a [u8]),
    /// A part of a checkpoint.
    Blob(&'a [u8]),
    /// The encoded relocation map of a segment: its live slots are located in this segment from now on.
    Relocate { segment: SegmentId, map: &'a [u8] },
    /// A change to the catalogue.
    Op(&'a CatalogueOp),
}

impl Item<'_> {
    fn payload(&self) -> &[u8] {
        match self {
            Item::Block { stored, .. } => stored,
            Item::Node(content) | Item::Blob(content) | Item::Relocate { map: content, .. } => content,
            Item::Reference { .. } | Item::Same { .. } | Item::Zero { .. } | Item::Op(_) => &[],
        }
    }

    /// Returns the entry of the item at `slot`; `placed` are the payload items of its group so far, including
    /// this item.
    fn entry(&self, slot: Slot, placed: &[BlockRef]) -> Entry {
        let crc = placed.last().map_or(0, |p| p.crc);
        match *self {
            Item::Block { disk, block, form, crc, fingerprint, .. } => {
                Entry::Put { disk, block, slot, form, crc, fingerprint }
            }
            Item::Reference { disk, block, target } => Entry::Reference { disk, block, target },
            Item::Same { disk, block, first } => Entry::Reference { disk, block, target: placed[first] },
            Item::Zero { disk, block, count, allocated } => Entry::Zero { disk, block, count, allocated },
            Item::Node(content) => Entry::Node { slot, form: MapNode::form(content), crc },
            Item::Blob(content) => Entry::Blob { slot, len: content.len() as u32 },
            Item::Relocate { segment, map } => Entry::Relocate { segment, slot, len: map.len() as u32 },
            Item::Op(op) => Entry::Catalogue(op.clone()),
        }
    }

    /// Length of the item's entry, measured by encoding it into `scratch`.
    fn entry_len(&self, scratch: &mut Vec<u8>) -> usize {
        scratch.clear();
        match *self {
            // The length does not depend on the target block.
            Item::Same { disk, block, .. } => {
                let addr = Address { segment: SegmentId(1), slot: Slot(0) };
                let target = BlockRef { addr, form: Form::RAW_BLOCK, crc: 0 };
                Entry::Reference { disk, block, target }.encode(scratch);
            }
            _ => self.entry(Slot::default(), &[]).encode(scratch),
        }
        scratch.len()
    }

    /// The reference to the item's payload if it is stored at `addr`.
    fn stored_at(&self, addr: Address) -> BlockRef {
        match *self {
            Item::Block { form, crc, .. } => BlockRef { addr, form, crc },
            // For a checkpoint part or a relocation map, only the address is used.
            Item::Blob(_) | Item::Relocate { .. } => BlockRef { addr, form: Form::default(), crc: 0 },
            _ => BlockRef { addr, form: MapNode::form(self.payload()), crc: crc32c(self.payload()) },
        }
    }

    fn directory(&self, at: &BlockRef) -> Option<DirectoryEntry> {
        let (kind, fingerprint) = match *self {
            Item::Block { fingerprint, .. } => (SlotKind::Block, fingerprint),
            Item::Node(_) => (SlotKind::Node, Fingerprint::default()),
            _ => return None,
        };
        let BlockRef { addr, form, crc } = *at;
        Some(DirectoryEntry { slot: addr.slot, form, kind, crc, fingerprint })
    }
}

/// A batch to be written: some consecutive items of a group.
pub(crate) struct Draft<'a> {
    items: &'a [Item<'a>],
    entries_len: usize,
    payload_len: usize,
}

impl<'a> Draft<'a> {
    /// Splits items into drafts of at most `limit` bytes. Returns at least one draft, since a group needs a
    /// batch that ends it.
    pub fn split(items: &'a [Item<'a>], limit: usize) -> Vec<Draft<'a>> {
        let (mut drafts, mut scratch) = (Vec::new(), Vec::new());
        let (mut first, mut entries_len, mut payload_len) = (0, 0, 0);
        for (i, item) in items.iter().enumerate() {
            let (entry, payload) =
                (item.entry_len(&mut scratch), item.payload().len().next_multiple_of(Slot::UNIT));
            let grown = batch_len(entries_len + entry, payload_len + payload);
            if grown > limit && i > first {
                drafts.push(Draft { items: &items[first..i], entries_len, payload_len });
                (first, entries_len, payload_len) = (i, 0, 0);
            }
            entries_len += entry;
            payload_len += payload;
        }
        drafts.push(Draft { items: &items[first..], entries_len, payload_len });
        drafts
    }

    /// Bytes of the batch.
    pub fn len(&self) -> usize {
        batch_len(self.entries_len, self.payload_len)
    }
}

fn batch_len(entries_len: usize, payload_len: usize) -> usize {
    BatchHeader::head_len(entries_len) + payload_len.next_multiple_of(BLOCK)
}

/// Bytes of payload that one thread lays out at a time.
const PIECE: usize = 384 << 10;

/// Consecutive items with payload, and the part of the batch for it.
struct Piece<'a> {
    out: &'a mut [u8],
    /// Each item, with its address.
    items: Vec<(&'a Item<'a>, Address)>,
}

/// Lays out one batch in `out`, which has the length of the batch. Appends its payload items to `placed`, the
/// list of its group; returns the batch's checksum and its entries for the segment's directory.
///
/// All remaining work on a block's content is done in one pass: the content of a group far exceeds the core's
/// caches, and fetching it from memory again costs more than copying it.
pub(super) fn fill(
    header: &BatchHeader,
    draft: &Draft<'_>,
    out: &mut [u8],
    placed: &mut Vec<BlockRef>,
    medium: &Medium<'_>,
) -> (u64, Vec<DirectoryEntry>) {
    let (head, payload) = out.split_at_mut(BatchHeader::head_len(draft.entries_len));
    let base = BatchHeader::payload_slot(header.offset as u64, draft.entries_len);
    let mut entries = Vec::with_capacity(draft.entries_len);
    let mut directory = Vec::with_capacity(draft.items.len());
    let (mut pieces, mut rest) = (Vec::new(), payload);
    let (mut items, mut len, mut at) = (Vec::new(), 0, 0);
    for item in draft.items {
        let slot = Slot(base.0 + (at / Slot::UNIT) as u32);
        let content = item.payload();
        if !content.is_empty() {
            let here = item.stored_at(Address { segment: header.segment, slot });
            items.push((item, here.addr));
            directory.extend(item.directory(&here));
            placed.push(here);
            let room = content.len().next_multiple_of(Slot::UNIT);
            (len, at) = (len + room, at + room);
        }
        item.entry(slot, placed).encode(&mut entries);
        if len >= PIECE {
            let (out, after) = rest.split_at_mut(len);
            pieces.push(Piece { out, items: std::mem::take(&mut items) });
            (rest, len) = (after, 0);
        }
    }
    pieces.push(Piece { out: rest, items });
    let sums = map(medium.workers, pieces, |piece| piece.fill(medium.cache));
    head.fill(0);
    let payload = sums.into_iter().fold(Sum64::of(&[]), Sum64::join);
    (header.encode(head, &entries, payload), directory)
}

/// The environment in which a batch is laid out.
pub(super) struct Medium<'a> {
    pub workers: &'a dyn Workers,
    /// The read cache into which blocks of disks are inserted; `None` for no cache.
    pub cache: Option<&'a ReadCache>,
}

impl Piece<'_> {
    /// Copies the items, and inserts the blocks of disks into the read cache. Returns the checksum of all
    /// bytes.
    fn fill(self, cache: Option<&ReadCache>) -> Sum64 {
        let mut at = 0;
        for (item, addr) in self.items {
            let stored = item.payload();
            self.out[at..at + stored.len()].copy_from_slice(stored);
            let end = (at + stored.len()).next_multiple_of(Slot::UNIT);
            self.out[at + stored.len()..end].fill(0);
            at = end;
            if let (Item::Block { disk, content, rank, .. }, Some(cache)) = (item, cache) {
                cache.insert_as(addr, content, *rank, Owner::of(*disk));
            }
        }
        self.out[at..].fill(0);
        Sum64::of(self.out)
    }
}

/// The reference to a block listed in a directory.
pub(crate) fn block_at(segment: SegmentId, entry: &DirectoryEntry) -> BlockRef {
    BlockRef { addr: Address { segment, slot: entry.slot }, form: entry.form, crc: entry.crc }
}

/// Returns the directory entry of a slot from its entry in a relocation map.
pub(crate) fn directory_entry(e: &forebay_format::Relocation) -> DirectoryEntry {
    DirectoryEntry { slot: e.slot, form: e.form, kind: e.kind, crc: e.crc, fingerprint: e.fingerprint }
}
