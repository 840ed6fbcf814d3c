//! The position of each field of each persisted structure on a medium.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_format::{
    BLOCK, Batch, BatchHeader, BlobRef, CatalogueOp, CheckpointRoot, Codec, DiskRecord, Entry, LAYOUTS,
    Layout, MapNode, NodeEntries, PageLevel, RelocationMap, SegmentFooter, SegmentHeader, SegmentId, Slot,
    Superblock, Table, decode_directory, decode_page,
};
use forebay_store::Image;

/// A part of the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Home {
    /// A copy of the superblock.
    Superblock(usize),
    /// The object of a segment.
    Object(SegmentId),
}

/// A range of bytes of the medium.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The part of the medium that contains the piece.
    pub home: Home,
    /// The range of bytes.
    pub range: Range<usize>,
}

impl Piece {
    /// Bytes of the piece.
    pub fn bytes<'a>(&self, image: &'a Image) -> &'a [u8] {
        match self.home {
            Home::Superblock(copy) => {
                &image.superblock[copy].as_ref().expect("it was there")[self.range.clone()]
            }
            Home::Object(id) => &image.objects[&id][self.range.clone()],
        }
    }

    /// Bytes of the piece, mutable.
    pub fn bytes_mut<'a>(&self, image: &'a mut Image) -> &'a mut [u8] {
        match self.home {
            Home::Superblock(copy) => {
                &mut image.superblock[copy].as_mut().expect("it was there")[self.range.clone()]
            }
            Home::Object(id) => &mut image.objects.get_mut(&id).expect("it was there")[self.range.clone()],
        }
    }

    fn part(&self, offset: usize, len: usize) -> Piece {
        let start = self.range.start + offset;
        Piece { home: self.home, range: start..start + len }
    }
}

/// The ranges covered by checksums, and the ranges that contain references.
#[derive(Default)]
pub struct Atlas {
    /// Fields by structure and name, without checksums and magic numbers.
    pub fields: BTreeMap<(&'static str, &'static str), Vec<Piece>>,
    /// Stored nodes, and blocks that are stored raw: their CRC-32C is in the structure that refers to them.
    pub referred: Vec<Piece>,
    /// The structures that refer to `referred`: nodes, checkpoints, entries, directories, relocation maps.
    pub referring: Vec<Piece>,
    /// Segment headers and footers.
    pub headers: Vec<Piece>,
    /// Footers with their directories.
    pub directories: Vec<(Piece, Piece)>,
    /// Pieces that are relocation maps.
    pub relocations: Vec<Piece>,
    /// Batches by sequence number.
    pub batches: Vec<(u64, Piece)>,
    /// Pages of records of checkpoints.
    pub pages: Vec<Piece>,
    /// Directory pages of checkpoints.
    pub page_directories: Vec<Piece>,
    /// Pieces of roots of checkpoints.
    pub blobs: Vec<Piece>,
    /// Pieces that are superblock copies.
    pub superblocks: Vec<Piece>,
}

fn layout(name: &str) -> &'static Layout {
    LAYOUTS.iter().find(|l| l.name == name).expect("a layout of that name")
}

impl Atlas {
    /// The atlas of an undamaged pool.
    pub fn of(image: &Image) -> Atlas {
        let mut atlas = Atlas::default();
        let mut pool = None;
        for (copy, bytes) in image.superblock.iter().enumerate() {
            let Some(superblock) = bytes.as_deref().and_then(|b| Superblock::decode(b).ok()) else {
                continue;
            };
            let piece = Piece { home: Home::Superblock(copy), range: 0..BLOCK };
            atlas.structure("superblock", &piece);
            pool = Some(superblock.pool);
            for (i, blob) in superblock.blobs.iter().enumerate() {
                atlas.structure("blob reference", &piece.part(128 + i * 24, 24));
                let start = blob.offset as usize;
                let range = start..start + blob.len as usize;
                let blob = Piece { home: Home::Object(blob.segment), range };
                let there = image.objects.get(&superblock.blobs[i].segment);
                if there.is_some_and(|o| o.len() >= blob.range.end) {
                    atlas.blobs.push(blob.clone());
                    atlas.referring.push(blob);
                }
            }
            if let [only] = &superblock.blobs[..]
                && let Some(object) = image.objects.get(&only.segment)
                && let Some(bytes) = object.get(only.offset as usize..(only.offset + only.len) as usize)
            {
                let start = only.offset as usize;
                let piece = Piece { home: Home::Object(only.segment), range: start..start + bytes.len() };
                atlas.checkpoint(image, &piece, bytes);
            }
            atlas.superblocks.push(piece);
        }
        let pool = pool.expect("a pool has a superblock");
        for (id, bytes) in &image.objects {
            if SegmentHeader::decode(bytes, pool, *id).is_ok() {
                atlas.segment(image, *id, bytes, pool);
            }
        }
        atlas.batches.sort_by_key(|(seq, _)| *seq);
        for list in atlas.fields.values_mut() {
            list.sort_by_key(|p| (p.home, p.range.start, p.range.end));
            list.dedup();
        }
        atlas
    }

    fn structure(&mut self, name: &'static str, piece: &Piece) {
        for field in layout(name).fields {
            if matches!(field.name, "MAGIC" | "CHECK") || field.name == "BLOBS" {
                continue;
            }
            let spot = piece.part(field.offset, field.len);
            self.fields.entry((name, field.name)).or_default().push(spot);
        }
    }

    fn checkpoint(&mut self, image: &Image, piece: &Piece, bytes: &[u8]) {
        let Ok(root) = CheckpointRoot::decode(bytes) else { return };
        self.structure("checkpoint root", piece);
        let mut at = 48;
        for directory in &root.directories {
            self.structure("directory reference", &piece.part(at, 32));
            self.structure("blob reference", &piece.part(at + 8, 24));
            at += 32;
            let tables = [Table::SEGMENTS, Table::DISKS];
            if let Some(table) = tables.into_iter().find(|t| t.id == directory.table) {
                self.page_directory(image, table, directory.number, &directory.at);
            }
        }
        self.fields
            .entry(("checkpoint root", "warm ids"))
            .or_default()
            .extend((0..root.warm.len()).map(|i| piece.part(at + 4 * i, 4)));
    }

    fn page_directory(&mut self, image: &Image, table: Table, number: u32, at: &BlobRef) {
        let Some(piece) = page_piece(image, at) else { return };
        let Ok(pages) = decode_directory(piece.bytes(image), table, number) else { return };
        self.structure("table page", &piece);
        for (i, (number, at)) in pages.iter().enumerate() {
            self.structure("table page record", &piece.part(32 + 32 * i, 8));
            self.structure("blob reference", &piece.part(32 + 32 * i + 8, 24));
            self.page(image, table, *number, at);
        }
        self.page_directories.push(piece);
    }

    fn page(&mut self, image: &Image, table: Table, number: u32, at: &BlobRef) {
        let Some(piece) = page_piece(image, at) else { return };
        let Ok(records) = decode_page(piece.bytes(image), table, PageLevel::Records, number) else { return };
        self.structure("table page", &piece);
        let mut at = 32;
        for (_, mut record) in records {
            self.structure("table page record", &piece.part(at, 8));
            let len = record.len();
            if table == Table::SEGMENTS {
                self.structure("segment record", &piece.part(at + 8, 40));
            } else if let Ok(disk) = DiskRecord::decode(&mut record) {
                self.record(&piece.part(at + 8, 0), &disk);
            }
            at += 8 + len.next_multiple_of(8);
        }
        self.referring.push(piece.clone());
        self.pages.push(piece);
    }

    /// A disk record; its length.
    fn record(&mut self, at: &Piece, disk: &DiskRecord) -> usize {
        let mut bytes = Vec::new();
        disk.encode(&mut bytes);
        self.structure("disk record", &at.part(0, bytes.len()));
        self.fields.entry(("disk record", "name")).or_default().push(at.part(96, disk.name.len()));
        bytes.len()
    }

    fn segment(&mut self, image: &Image, id: SegmentId, bytes: &[u8], pool: forebay_format::PoolId) {
        let whole = Piece { home: Home::Object(id), range: 0..bytes.len() };
        let header = whole.part(0, BLOCK);
        self.structure("segment header", &header);
        self.headers.push(header);
        let mut at = BLOCK;
        while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= BLOCK) {
            if let Ok(footer) = SegmentFooter::decode(rest, pool, id, at as u32) {
                let piece = whole.part(at, BLOCK);
                self.structure("segment footer", &piece);
                if footer.decode_directory(&rest[BLOCK..]).is_ok() {
                    let directory = whole.part(at + BLOCK, footer.directory_len());
                    let entries = directory.range.len() / 32;
                    (0..entries).for_each(|i| self.structure("directory entry", &directory.part(32 * i, 32)));
                    self.directories.push((piece.clone(), directory.clone()));
                    self.referring.push(directory);
                }
                self.headers.push(piece);
                return;
            }
            let Ok(batch) = Batch::decode(rest, pool, id, at as u32) else { return };
            let len = Batch::peek_len(rest).expect("it decodes");
            self.structure("batch header", &whole.part(at, 96));
            self.batches.push((batch.header.seq, whole.part(at, len)));
            let mut entry_at = at + 96;
            for entry in batch.entries().map_while(Result::ok) {
                let mut encoded = Vec::new();
                entry.encode(&mut encoded);
                self.entry(image, &whole, entry_at, encoded.len(), &entry);
                entry_at += encoded.len();
            }
            self.referring.push(whole.part(at + 96, BatchHeader::head_len(entry_at - at - 96) - 96));
            at += len;
        }
    }

    fn entry(&mut self, image: &Image, whole: &Piece, at: usize, len: usize, entry: &Entry) {
        let piece = whole.part(at, len);
        let at_slot = |slot: &Slot, len: usize| whole.part(slot.offset() as usize, len);
        match entry {
            Entry::Put { slot, form, .. } => {
                self.structure("entry: put", &piece);
                if form.codec() == Some(Codec::Raw) {
                    self.block(image, at_slot(slot, form.stored_len()));
                }
            }
            Entry::Reference { .. } => self.structure("entry: reference", &piece),
            Entry::Zero { .. } => self.structure("entry: zero", &piece),
            Entry::Node { slot, form, .. } => {
                self.structure("entry: map node", &piece);
                self.node(image, at_slot(slot, form.stored_len()));
            }
            Entry::Blob { .. } => self.structure("entry: piece", &piece),
            Entry::Catalogue(op) => {
                self.structure("entry: catalogue change", &piece);
                self.structure("catalogue change", &piece.part(8, 24));
                match op {
                    CatalogueOp::Create { disk, .. } | CatalogueOp::Update { disk } => {
                        self.record(&piece.part(32, 0), disk);
                    }
                    CatalogueOp::CopyRange { .. } => self.structure("copied range", &piece.part(32, 24)),
                    CatalogueOp::Mark { .. } => self.structure("changed mark", &piece.part(32, 16)),
                    _ => {}
                }
            }
            Entry::Relocate { segment, slot, len } => {
                self.structure("entry: relocation", &piece);
                self.relocation(image, *segment, at_slot(slot, *len as usize));
            }
        }
    }

    /// The head of a raw block; for a note this is its length and the front ends' data.
    fn block(&mut self, image: &Image, piece: Piece) {
        if image_has(image, &piece) {
            let fields = self.fields.entry(("block", "content")).or_default();
            fields.extend((0..8).map(|i| piece.part(8 * i, 8)));
            self.referred.push(piece);
        }
    }

    fn node(&mut self, image: &Image, piece: Piece) {
        if !image_has(image, &piece) {
            return;
        }
        let Ok(node) = MapNode::decode(piece.bytes(image)) else { return };
        self.structure("map node", &piece);
        let listed = match node.entries {
            NodeEntries::Full(_) => (32, 256),
            NodeEntries::Sparse { places, .. } => (32, places.len()),
        };
        // Keys, then values of about five bytes.
        let end = piece.range.len();
        let bytes = (listed.0..(listed.0 + 7 * listed.1).min(end)).map(|i| piece.part(i, 1));
        self.fields.entry(("map node", "places")).or_default().extend(bytes);
        self.referred.push(piece.clone());
        self.referring.push(piece);
    }

    fn relocation(&mut self, image: &Image, moved: SegmentId, piece: Piece) {
        let Home::Object(container) = piece.home else { return };
        if !image_has(image, &piece) {
            return;
        }
        let Ok(map) = RelocationMap::decode(piece.bytes(image), moved, container) else { return };
        self.structure("relocation map", &piece);
        for (i, entry) in map.entries.iter().enumerate() {
            self.structure("relocation map entry", &piece.part(32 + 40 * i, 40));
            let len = entry.units as usize * Slot::UNIT;
            let place = Piece { home: piece.home, range: 0..0 }.part(entry.place.offset() as usize, len);
            match (entry.kind, entry.place_form.codec()) {
                (forebay_format::SlotKind::Node, _) => self.node(image, place),
                (_, Some(Codec::Raw)) => self.block(image, place),
                (_, Some(Codec::ZstdGroup)) if image_has(image, &place) => {
                    self.structure("group of blocks", &place);
                }
                _ => {}
            }
        }
        self.relocations.push(piece.clone());
        self.referring.push(piece);
    }
}

/// A page of a table, if the medium holds it.
fn page_piece(image: &Image, at: &BlobRef) -> Option<Piece> {
    let start = at.offset as usize;
    let piece = Piece { home: Home::Object(at.segment), range: start..start + at.len as usize };
    image_has(image, &piece).then_some(piece)
}

fn image_has(image: &Image, piece: &Piece) -> bool {
    match piece.home {
        Home::Superblock(_) => true,
        Home::Object(id) => image.objects.get(&id).is_some_and(|o| o.len() >= piece.range.end),
    }
}

/// Batches after the checkpoint and before the last complete group: that group was started when they were
/// durable, so if one of them is damaged, the group proves the damage.
pub fn provable(image: &Image) -> Vec<(SegmentId, Range<usize>)> {
    let copies = image.superblock.each_ref().map(|copy| copy.as_deref());
    let Ok(superblock) = Superblock::choose(copies) else { return Vec::new() };
    type Found = (BatchHeader, u64, SegmentId, Range<usize>);
    let mut by_seq: BTreeMap<u64, Vec<Found>> = BTreeMap::new();
    for (_, piece) in &Atlas::of(image).batches {
        let Home::Object(id) = piece.home else { continue };
        let start = piece.range.start as u32;
        if let Ok(batch) = Batch::decode(piece.bytes(image), superblock.pool, id, start) {
            let found = (batch.header, batch.check, id, piece.range.clone());
            by_seq.entry(batch.header.seq).or_default().push(found);
        }
    }
    let (mut seq, mut chain, mut epoch) = (superblock.seq, superblock.chain, 0);
    let (mut whole, mut group) = (Vec::new(), Vec::new());
    let mut last_group = 0;
    while let Some(candidates) = by_seq.remove(&(seq + 1)) {
        let links = |c: &Found| c.0.chain == chain && c.0.epoch >= epoch;
        let Some(next) = candidates.into_iter().filter(links).max_by_key(|c| c.0.epoch) else { break };
        (seq, chain, epoch) = (next.0.seq, next.1, next.0.epoch);
        let ends = next.0.flags & forebay_format::GROUP_END != 0;
        group.push((next.2, next.3));
        if ends {
            last_group = group.len();
            whole.append(&mut group);
        }
    }
    whole.truncate(whole.len() - last_group);
    whole
}
