//! Samples of every structure, and strategies that generate them.
#![allow(dead_code, reason = "each test uses its part")]

use forebay_format::*;
use proptest::collection::vec;
use proptest::prelude::*;

pub const POOL: PoolId = PoolId(*b"0123456789abcdef");

pub fn block_ref(segment: u32, slot: u32) -> BlockRef {
    let addr = Address { segment: SegmentId(segment), slot: Slot(slot) };
    BlockRef { addr, form: Form::RAW_BLOCK, crc: 0xc0ff_ee00 | slot & 0xff }
}

pub fn superblock() -> Superblock {
    let blob = |n: u32| BlobRef {
        segment: SegmentId(2),
        offset: 8192 * n,
        len: 5000 + n,
        check: 0x1122_3344 + u64::from(n),
    };
    Superblock {
        pool: POOL,
        generation: 41,
        epoch: 7,
        fingerprint_key: *b"a key of thirty-two random bytes",
        created_ms: 1_760_000_000_000,
        segment_bytes: 64 << 20,
        seq: 1234,
        chain: 0xfeed_face_cafe_beef,
        memory: 0x0102_0304_0506_0708,
        boot: 0x1112_1314_1516_1718,
        blobs: (1..4).map(blob).collect(),
        features: Features::default(),
    }
}

/// The marks of all kinds.
pub const MARKS: [Mark; 5] = [
    Mark::None,
    Mark::Local,
    Mark::Remote,
    Mark::Lost { remote: false, since_ms: 123_456 },
    Mark::Lost { remote: true, since_ms: 789 },
];

pub fn disk(id: u32, name: &str, role: Role) -> DiskRecord {
    DiskRecord {
        id: DiskId(id),
        role,
        sync: SyncMode::Always,
        name: name.into(),
        size: (40 << 30) + 512,
        created_ms: 1_760_000_000_123,
        parent: (role == Role::Snapshot).then_some(DiskId(1)),
        origin: (role == Role::Volume).then_some(DiskId(77)),
        write_cache: 256 << 20,
        uuid: *b"uuid-of-sixteen!",
        height: 2,
        root: MapValue::At(BlockRef { form: Form::raw(49 * 64), ..block_ref(3, 4711) }),
        dedup_domain: 0,
        reset_at_disconnect: false,
        map_damaged: false,
        mark: Mark::None,
    }
}

/// A disk of each mark.
pub fn marked_disks() -> Vec<DiskRecord> {
    let marked =
        |(n, mark): (u32, &Mark)| DiskRecord { mark: *mark, ..disk(n, &format!("v{n}"), Role::Volume) };
    (1..).zip(&MARKS).map(marked).collect()
}

/// A sealed segment with a footer that was moved, an open one, and a sealed one without a footer.
pub fn segment_records() -> [SegmentRecord; 3] {
    let segment = |n: u32, stream, state| SegmentRecord {
        segment: SegmentId(n),
        stream,
        state,
        footer: false,
        container: n,
        written: 8192 * n,
        first_seq: u64::from(n) * 100,
        last_seq: u64::from(n) * 100 + 50,
        map: None,
    };
    let moved = Some((1 << 20, RelocationMap::encoded_len(3) as u32));
    [
        SegmentRecord {
            footer: true,
            container: 4,
            map: moved,
            ..segment(256, Stream::Data, SegmentState::Sealed)
        },
        segment(300, Stream::Map, SegmentState::Open),
        segment(383, Stream::Short, SegmentState::Sealed),
    ]
}

pub fn root() -> CheckpointRoot {
    let directory = |table, number| DirectoryRef {
        table,
        number,
        at: BlobRef {
            segment: SegmentId(3),
            offset: 8192 + 64 * number,
            len: 56 + number,
            check: 0x5566_7788,
        },
    };
    CheckpointRoot {
        seq: 1234,
        next_disk: 78,
        next_segment: 5,
        directories: vec![directory(1, 0), directory(1, 7), directory(2, 0)],
        warm: vec![SegmentId(4), SegmentId(2)],
        sampling: 3,
    }
}

/// A page of the segment table, and its records.
pub fn segment_page() -> (Vec<(u32, SegmentRecord)>, Vec<u8>) {
    let records: Vec<(u32, SegmentRecord)> =
        segment_records().into_iter().map(|record| (record.segment.0, record)).collect();
    let mut page = PageEncoder::new(Table::SEGMENTS, PageLevel::Records, 2);
    records.iter().for_each(|(key, record)| page.add(*key, |out| record.encode(out)));
    (records, page.finish().expect("it has records"))
}

/// A directory page of the catalogue, and the pages that it lists.
pub fn directory_page() -> (Vec<(u32, BlobRef)>, Vec<u8>) {
    let at = |n: u32| BlobRef { segment: SegmentId(9), offset: 64 * n, len: 100, check: u64::from(n) << 40 };
    let pages: Vec<(u32, BlobRef)> = [256, 257, 511].map(|n| (n, at(n))).to_vec();
    let mut page = PageEncoder::new(Table::DISKS, PageLevel::Directory, 1);
    pages.iter().for_each(|(key, at)| page.add(*key, |out| out.extend_from_slice(&at.encode())));
    (pages, page.finish().expect("it has records"))
}

pub fn relocation_map() -> RelocationMap {
    let member = |n: u8| Relocation {
        slot: Slot(128 + 64 * u32::from(n)),
        form: Form::RAW_BLOCK,
        kind: SlotKind::Block,
        crc: 0xdead_0000 + u32::from(n),
        fingerprint: Fingerprint([n; 16]),
        place: Slot(256),
        place_form: Form::member(n),
        units: 40,
    };
    let form = Form::raw(3104);
    let node = Relocation {
        slot: Slot(1024),
        form,
        kind: SlotKind::Node,
        fingerprint: Fingerprint::default(),
        place: Slot(320),
        place_form: form,
        units: 49,
        ..member(2)
    };
    RelocationMap {
        segment: SegmentId(2),
        container: SegmentId(4),
        entries: vec![member(0), member(1), node],
    }
}

/// The root of a map in a segment of an image of the cluster.
fn image_root(n: u32) -> BlockRef {
    let segment = SegmentId(SegmentId::FIRST_OF_IMAGES + n);
    BlockRef { addr: Address { segment, slot: Slot(n) }, form: Form::full_node(2048), crc: n }
}

pub fn ops() -> Vec<CatalogueOp> {
    vec![
        CatalogueOp::Create { disk: disk(5, "ci-0001", Role::Volume), from: Some(DiskId(77)) },
        CatalogueOp::Delete { disk: DiskId(6) },
        CatalogueOp::Copy { disk: DiskId(5), from: DiskId(77) },
        CatalogueOp::Resize { disk: DiskId(5), size: 1 << 40 },
        CatalogueOp::Update { disk: disk(5, "x", Role::Volume) },
        CatalogueOp::CopyRange {
            disk: DiskId(5),
            block: 1 << 20,
            from: DiskId(77),
            source_block: 300,
            count: 2_621_440,
        },
        CatalogueOp::Mark { disk: DiskId(5), mark: Mark::Remote },
        CatalogueOp::Mark { disk: DiskId(5), mark: Mark::Lost { remote: false, since_ms: 98_765 } },
        CatalogueOp::Attach { disk: DiskId(5), root: image_root(3) },
    ]
}

pub fn header() -> SegmentHeader {
    SegmentHeader { pool: POOL, segment: SegmentId(2), stream: Stream::Data, epoch: 7, first_seq: 200 }
}

pub fn footer() -> (SegmentFooter, Vec<DirectoryEntry>) {
    let footer = SegmentFooter {
        pool: POOL,
        segment: SegmentId(2),
        offset: 1 << 20,
        last_seq: 250,
        count: 0,
        directory_crc: 0,
    };
    let entry = |n: u32, kind| DirectoryEntry {
        slot: Slot(128 + 64 * n),
        form: Form::raw(4096 - 64 * n as usize),
        kind,
        crc: 0xdead_0000 + n,
        fingerprint: Fingerprint([n as u8; 16]),
    };
    (footer, vec![entry(0, SlotKind::Block), entry(1, SlotKind::Node), entry(2, SlotKind::Block)])
}

/// Every kind of entry; the payload is two blocks that begin at `slot`.
pub fn entries(slot: Slot) -> Vec<Entry> {
    let second = Slot(slot.0 + 64);
    let mut all = vec![
        Entry::Put {
            disk: DiskId(5),
            block: 123_456_789,
            slot,
            form: Form::RAW_BLOCK,
            crc: 1,
            fingerprint: Fingerprint([9; 16]),
        },
        Entry::Reference { disk: DiskId(5), block: 7, target: block_ref(2, 640) },
        Entry::Zero { disk: DiskId(5), block: 8, count: 1 << 30, allocated: true },
        Entry::Zero { disk: DiskId(5), block: 0, count: 1, allocated: false },
        Entry::Node { slot: second, form: Form::raw(3104), crc: 2 },
        Entry::Blob { slot: second, len: 4096 },
    ];
    // The golden batch was written when there were only these kinds.
    all.extend(ops().into_iter().take(5).map(Entry::Catalogue));
    all
}

pub const BATCH_OFFSET: u32 = 8192;

/// A complete batch with every kind of entry.
pub fn batch() -> Vec<u8> {
    let (mut bytes, mut len) = (Vec::new(), 0);
    // The slot of the payload depends on the length of the entries, which does not depend on the slot.
    for _ in 0..2 {
        bytes.clear();
        let slot = BatchHeader::payload_slot(u64::from(BATCH_OFFSET), len);
        entries(slot).iter().for_each(|e| e.encode(&mut bytes));
        len = bytes.len();
    }
    encode_batch(&bytes, &[0xa5; 2 * BLOCK])
}

/// A batch that is not the first one of its group.
pub fn batch_of_group() -> Vec<u8> {
    encode_batch_of(199, &[], &[0xa5; BLOCK])
}

pub fn encode_batch(entries: &[u8], payload: &[u8]) -> Vec<u8> {
    encode_batch_of(201, entries, payload)
}

fn encode_batch_of(group: u64, entries: &[u8], payload: &[u8]) -> Vec<u8> {
    let header = BatchHeader {
        pool: POOL,
        epoch: 7,
        seq: 201,
        chain: 0x0123_4567_89ab_cdef,
        segment: SegmentId(2),
        offset: BATCH_OFFSET,
        flags: GROUP_END,
        group,
    };
    let mut b = vec![0; BatchHeader::head_len(entries.len())];
    header.encode(&mut b, entries, Sum64::of(payload));
    b.extend_from_slice(payload);
    b
}

pub fn nodes() -> Vec<MapNode> {
    let value = |n: u32| match n % 3 {
        0 => MapValue::Hole,
        1 => MapValue::Zero,
        _ => MapValue::At(block_ref(1 + n, 64 * n)),
    };
    let full = NodeEntries::Full((0..256).map(value).collect());
    let some =
        |base| NodeEntries::Sparse { base, places: [0, 3, 7, 200, 255].map(|p| (p, value(p.into()))).into() };
    vec![
        MapNode { level: 0, index: 12_345, entries: full },
        MapNode { level: 2, index: 3, entries: some(Some(block_ref(9, 6400))) },
        MapNode { level: 6, index: 0, entries: some(None) },
    ]
}

pub fn any_ref() -> impl Strategy<Value = BlockRef> {
    // A member of a group may start at any slot; blocks must end within the segment.
    (1..=u32::MAX, 0..Slot::LIMIT - 64, 0..192_u8, any::<u32>()).prop_map(|(segment, slot, form, crc)| {
        BlockRef { addr: Address { segment: SegmentId(segment), slot: Slot(slot) }, form: Form(form), crc }
    })
}

pub fn any_value() -> impl Strategy<Value = MapValue> {
    prop_oneof![Just(MapValue::Hole), Just(MapValue::Zero), any_ref().prop_map(MapValue::At)]
}

pub fn any_disk() -> impl Strategy<Value = DiskRecord> {
    use Role::*;
    let role = prop_oneof![Just(Volume), Just(Snapshot), Just(Image), Just(Import), Just(Metadata)];
    let sync = prop_oneof![Just(SyncMode::Flush), Just(SyncMode::Always), Just(SyncMode::Never)];
    let name = "[^\\p{Cc}]{1,63}";
    let numbers = (1..u32::MAX, 0..1_u64 << 55, any::<u64>(), any::<u64>(), any::<[u8; 16]>());
    (role, sync, name, numbers, 0..=MAX_LEVEL, any_value()).prop_map(
        |(role, sync, name, (id, sectors, created_ms, write_cache, uuid), height, root)| DiskRecord {
            id: DiskId(id),
            role,
            sync,
            name,
            size: sectors * 512,
            created_ms,
            // A note may have no parent.
            parent: match role {
                Snapshot => Some(DiskId(id + 1)),
                Metadata => uuid[3].is_multiple_of(2).then_some(DiskId(id + 1)),
                _ => None,
            },
            origin: (uuid[0] > 127).then_some(DiskId(if id == 9 { 8 } else { 9 })),
            write_cache,
            uuid,
            height,
            root,
            dedup_domain: uuid[1].into(),
            reset_at_disconnect: uuid[2].is_multiple_of(2),
            map_damaged: uuid[3].is_multiple_of(2),
            mark: MARKS[usize::from(uuid[4]) % MARKS.len()],
        },
    )
}

pub fn any_op() -> impl Strategy<Value = CatalogueOp> {
    let id = (1..=u32::MAX).prop_map(DiskId);
    prop_oneof![
        any_disk().prop_map(|disk| CatalogueOp::Create { from: disk.origin, disk }),
        id.clone().prop_map(|disk| CatalogueOp::Delete { disk }),
        (1..u32::MAX).prop_map(|n| CatalogueOp::Copy { disk: DiskId(n), from: DiskId(n + 1) }),
        (id, 0..1_u64 << 55).prop_map(|(disk, n)| CatalogueOp::Resize { disk, size: n * 512 }),
        any_disk().prop_map(|disk| CatalogueOp::Update { disk }),
        (1..u32::MAX, 0..2_u32, 1..1_u64 << 50, 0..1_u64 << 50, 0..1_u64 << 50).prop_map(
            |(disk, other, count, block, behind)| CatalogueOp::CopyRange {
                disk: DiskId(disk),
                block,
                from: DiskId(disk + other),
                source_block: block + count + behind,
                count,
            }
        ),
        (1..u32::MAX, 0..3_usize, any::<bool>(), any::<u64>()).prop_map(|(disk, n, remote, since_ms)| {
            let lost = Mark::Lost { remote, since_ms };
            CatalogueOp::Mark { disk: DiskId(disk), mark: if disk % 2 == 0 { lost } else { MARKS[n] } }
        }),
        (1..u32::MAX, 0..1_u32 << 20)
            .prop_map(|(disk, n)| CatalogueOp::Attach { disk: DiskId(disk), root: image_root(n) }),
    ]
}

pub fn any_entry() -> impl Strategy<Value = Entry> {
    let disk = (1..=u32::MAX).prop_map(DiskId);
    prop_oneof![
        (disk.clone(), 0..MAX_BLOCKS, any_ref(), any::<[u8; 16]>()).prop_map(|(disk, block, at, print)| {
            Entry::Put {
                disk,
                block,
                slot: at.addr.slot,
                form: at.form,
                crc: at.crc,
                fingerprint: Fingerprint(print),
            }
        }),
        (disk.clone(), 0..MAX_BLOCKS, any_ref()).prop_map(|(disk, block, target)| Entry::Reference {
            disk,
            block,
            target
        }),
        (disk, 0..MAX_BLOCKS, 1..=MAX_BLOCKS, any::<bool>()).prop_map(|(disk, block, count, allocated)| {
            Entry::Zero { disk, block, count: count.min(MAX_BLOCKS - block), allocated }
        }),
        (any_ref(), 1..=4096_usize).prop_map(|(at, len)| Entry::Node {
            slot: at.addr.slot,
            form: Form::raw(len),
            crc: at.crc
        }),
        (0..Slot::LIMIT - 64, 0..=4096_u32).prop_map(|(slot, len)| Entry::Blob { slot: Slot(slot), len }),
        any_op().prop_map(Entry::Catalogue),
        (1..=u32::MAX, 0..Slot::LIMIT - 64, 1..=4096_u32).prop_map(|(segment, slot, len)| Entry::Relocate {
            segment: SegmentId(segment),
            slot: Slot(slot),
            len
        }),
    ]
}

pub fn any_node() -> impl Strategy<Value = MapNode> {
    let full = vec(any_value(), 256).prop_map(NodeEntries::Full);
    let places = proptest::collection::btree_map(any::<u8>(), any_value(), 0..=256);
    let sparse = (proptest::option::of(any_ref()), places)
        .prop_map(|(base, places)| NodeEntries::Sparse { base, places: places.into_iter().collect() });
    (0..=MAX_LEVEL, any::<u64>(), prop_oneof![full, sparse]).prop_map(|(level, index, entries)| {
        let nodes = MAX_BLOCKS.div_ceil(1 << (8 * (u32::from(level) + 1)));
        MapNode { level, index: index % nodes, entries }
    })
}

pub fn any_segment_record() -> impl Strategy<Value = SegmentRecord> {
    (1..u32::MAX, 0..4_usize, any::<bool>(), 0..=1_u32 << 30, any::<(u64, u64)>()).prop_map(
        |(n, stream, open, written, (first_seq, last_seq))| SegmentRecord {
            segment: SegmentId(n),
            stream: Stream::ALL[stream],
            state: if open { SegmentState::Open } else { SegmentState::Sealed },
            footer: !open && last_seq % 2 == 0,
            container: if first_seq % 2 == 0 { n } else { u32::MAX },
            written: written / 4096 * 4096,
            first_seq,
            last_seq,
            map: (first_seq % 2 != 0).then_some((4096, 72)),
        },
    )
}

pub fn any_superblock() -> impl Strategy<Value = Superblock> {
    let blob = (1..=u32::MAX, 0..1_u32 << 29, 1..1_u32 << 29, any::<u64>())
        .prop_map(|(n, offset, len, check)| BlobRef { segment: SegmentId(n), offset, len, check });
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    let keys = (any::<[u8; 16]>(), any::<[u8; 32]>());
    (keys, numbers, 1..=(1_u32 << 18), vec(blob, 0..=MAX_BLOBS)).prop_map(
        |((pool, fingerprint_key), (generation, epoch, created_ms, seq, chain), blocks, blobs)| Superblock {
            pool: PoolId(pool),
            generation,
            epoch,
            fingerprint_key,
            created_ms,
            segment_bytes: blocks * 4096,
            seq,
            chain,
            memory: epoch ^ created_ms,
            boot: seq ^ chain,
            blobs,
            features: Features { compatible: seq ^ epoch, ..Features::default() },
        },
    )
}

/// Every structure of retained memory.
pub fn retained() -> (RetainedHeader, RetainedCover, [RetainedChunk; 2], [RetainedRecord; 4]) {
    let header = RetainedHeader { pool: POOL.0, boot: *b"boot-of-16-bytes", id: 0x0123_4567_89ab_cdef };
    let cover = RetainedCover { number: 7, seq: 1_000_000, order: 2_000_000, floor: 999_000 };
    let page = RetainedKind::Page { block: 1 << 40, mask: 0x5a, crc: 0xdead_beef, generation: 77 };
    let range = |allocated| RetainedKind::Range { start: 5, end: 1 << 41, allocated, generation: 78 };
    let record = |order, kind| RetainedRecord { disk: 9, order, kind };
    let records = [
        record(11, page),
        record(12, range(false)),
        record(13, range(true)),
        record(1 << 33, RetainedKind::Flag { kind: 6 }),
    ];
    (header, cover, [RetainedChunk::Pages, RetainedChunk::Records], records)
}
