//! Commands that read, change and compare blocks.

use forebay_frontend::scsi::UnitAttention;
use forebay_wire::scsi::{SenseKey, Status, codes};

use super::support::*;

fn compare_and_write(lba: u64, count: u8) -> [u8; 16] {
    let mut cdb = blocks(0x89, 0, lba, 0);
    cdb[13] = count;
    cdb
}

#[test]
fn written_data_is_read_back() {
    let world = World::new();
    let (one, two) = (world.session(1), world.session(2));
    let data: Vec<u8> = (0..4096u32).map(|n| (n / 7) as u8).collect();
    one.on(0).write(3, &data);
    assert_eq!(two.on(0).read(3, 8), data);
    assert_eq!(two.on(1).read(3, 8), [0; 4096]);
    one.on(0).good(&[0x2a, 8, 0, 0, 0, 11, 0, 0, 1, 0], &[7; 512]);
    assert_eq!(one.on(0).good(&[0x08, 0, 0, 10, 2, 0], &[])[512..], [7; 512]);
}

#[test]
fn a_short_write_writes_the_blocks_that_were_sent() {
    let world = World::new();
    let session = world.session(1);
    let unit = session.on(0);
    unit.write(0, &[1; 1536]);
    let two = blocks(0x8a, 0, 0, 2);
    assert_eq!(unit.send(&two, &[2; 512]).status, Status::Good);
    assert_eq!(unit.send(&two, &[]).status, Status::Good);
    unit.fails(&two, &[3; 200], SenseKey::IllegalRequest, codes::INVALID_FIELD_IN_INFORMATION_UNIT);
    // Data beyond the length in the CDB is not written.
    unit.good(&blocks(0x8a, 0, 1, 1), &[4; 1024]);
    assert_eq!(unit.read(0, 3), [[2; 512], [4; 512], [1; 512]].concat());
}

#[test]
fn compare_and_write_changes_all_or_nothing() {
    let world = World::new();
    let session = world.session(1);
    let unit = session.on(0);
    unit.write(5, &[b'A'; 1024]);
    let cdb = compare_and_write(5, 2);
    unit.good(&cdb, &[[b'A'; 1024], [b'B'; 1024]].concat());
    assert_eq!(unit.read(5, 2), [b'B'; 1024]);
    for at in [0, 511, 512, 1023] {
        let mut data = [[b'B'; 1024], [b'C'; 1024]].concat();
        data[at] = b'Z';
        let sense = unit.fails(&cdb, &data, SenseKey::Miscompare, codes::MISCOMPARE_DURING_VERIFY);
        assert_eq!(sense[0], 0xf0);
        assert_eq!(sense[3..7], (at as u32).to_be_bytes());
    }
    assert_eq!(unit.read(5, 2), [b'B'; 1024]);
    unit.good(&compare_and_write(5, 0), &[]);
    for bytes in [0, 1024, 3072] {
        let data = vec![b'B'; bytes];
        unit.fails(&cdb, &data, SenseKey::IllegalRequest, codes::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn or_write_sets_bits() {
    let world = World::new();
    let session = world.session(1);
    let unit = session.on(0);
    unit.write(1, &[0xa5; 512]);
    unit.good(&blocks(0x8b, 0, 1, 2), &[0x0f; 1024]);
    assert_eq!(unit.read(1, 2), [[0xaf; 512], [0x0f; 512]].concat());
}

#[test]
fn verify_compares_blocks() {
    let world = World::new();
    let session = world.session(1);
    let unit = session.on(0);
    // Longer than one piece of the comparison.
    let blocks_count = 2500;
    let mut data: Vec<u8> = (0..blocks_count * 512).map(|n| (n / 512 % 251) as u8).collect();
    unit.write(1, &data);
    let verify = |bytchk: u8, count: u32| blocks(0x8f, bytchk << 1, 1, count);
    unit.good(&verify(0, blocks_count as u32), &[]);
    unit.good(&verify(1, blocks_count as u32), &data);
    *data.last_mut().unwrap() ^= 1;
    let mismatch = (SenseKey::Miscompare, codes::MISCOMPARE_DURING_VERIFY);
    unit.fails(&verify(1, blocks_count as u32), &data, mismatch.0, mismatch.1);
    unit.write(1, &[9; 1024]);
    unit.good(&verify(3, 2), &[9; 512]);
    unit.fails(&verify(3, 3), &[9; 512], mismatch.0, mismatch.1);
    unit.good(&blocks(0x8e, 2, 1, 1), &[8; 512]);
    assert_eq!(unit.read(1, 1), [8; 512]);
}

#[test]
fn write_same_maps_and_unmaps_blocks() {
    let world = World::new();
    let session = world.session(1);
    let unit = session.on(0);
    let status = |lba| {
        let data = unit.good(&blocks(0x9e, 0x12, lba, 24), &[]);
        assert_eq!((data.len(), &data[8..16]), (24, &u64::to_be_bytes(lba)[..]));
        (u32::from_be_bytes([data[16], data[17], data[18], data[19]]), data[20])
    };
    const MAPPED: u8 = 0;
    const DEALLOCATED: u8 = 1;
    assert_eq!(status(0), (SIZE as u32 / 512, DEALLOCATED));
    let mut block = [0; 512];
    block[100] = 5;
    unit.good(&blocks(0x93, 0, 8, 2500), &block);
    assert_eq!(unit.read(8, 2500), block.repeat(2500));
    assert_eq!(unit.read(2508, 1), [0; 512]);
    assert_eq!(status(9).1, MAPPED);
    // A block that is not zero is written also with UNMAP.
    unit.good(&blocks(0x93, 8, 16, 8), &block);
    assert_eq!((unit.read(16, 8), status(16).1), (block.repeat(8), MAPPED));
    // Zeroes with UNMAP, and no data (NDOB), unmap; a part of a stored block is zeroed.
    unit.good(&blocks(0x93, 8, 16, 8), &[0; 512]);
    assert_eq!(status(16), (8, DEALLOCATED));
    unit.good(&blocks(0x93, 9, 24, 9), &[]);
    assert_eq!((status(24), status(32).1), ((8, DEALLOCATED), MAPPED));
    assert_eq!(unit.read(32, 2), [&[0; 512][..], &block].concat());
    // Without UNMAP the blocks stay mapped.
    unit.good(&blocks(0x93, 0, 40, 8), &[0; 512]);
    assert_eq!((unit.read(40, 8), status(40).1), (vec![0; 4096], MAPPED));
    unit.fails(
        &blocks(0x93, 0, 0, 8),
        &[0; 1024],
        SenseKey::IllegalRequest,
        codes::INVALID_FIELD_IN_INFORMATION_UNIT,
    );
}

#[test]
fn lba_status_reports_unmapped_runs() {
    let world = World::new();
    let session = world.session(1);
    let unit = session.on(0);
    unit.write(0, &vec![b'a'; 64 * 512]);
    let mut list = vec![0, 6 + 48, 0, 48, 0, 0, 0, 0];
    for (lba, count) in [(8u64, 8u32), (33, 1), (48, 0)] {
        list.extend_from_slice(&lba.to_be_bytes());
        list.extend_from_slice(&count.to_be_bytes());
        list.extend_from_slice(&[0; 4]);
    }
    let unmap = |len: usize| [0x42, 0, 0, 0, 0, 0, 0, 0, len as u8, 0];
    unit.good(&unmap(list.len()), &list);
    let data = unit.read(0, 64);
    for (block, data) in data.chunks(512).enumerate() {
        let zero = (8..16).contains(&block) || block == 33;
        assert_eq!(data, if zero { [0; 512] } else { [b'a'; 512] }, "{block}");
    }
    let status = unit.good(&blocks(0x9e, 0x12, 4, 8 + 3 * 16), &[]);
    let runs: Vec<_> = status[8..].chunks(16).map(|d| (d[7], d[11], d[12])).collect();
    assert_eq!(runs, [(4, 4, 0), (8, 8, 1), (16, 48, 0)]);
    unit.good(&unmap(0), &[]);
    unit.fails(&unmap(30), &list[..30], SenseKey::IllegalRequest, codes::PARAMETER_LIST_LENGTH_ERROR);
    unit.fails(&unmap(list.len()), &list[..30], SenseKey::IllegalRequest, codes::PARAMETER_LIST_LENGTH_ERROR);
}

#[test]
fn cache_commands_succeed() {
    let world = World::new();
    let session = world.session(1);
    let unit = session.on(0);
    unit.good(&blocks(0x91, 0, 0, 0), &[]);
    unit.good(&[0x35, 2, 0, 0, 0, 8, 0, 0, 8, 0], &[]);
    unit.good(&blocks(0x90, 2, 0, 100), &[]);
    unit.good(&[0x34, 0, 0, 0, 0, 8, 3, 0, 0, 0], &[]);
}

#[test]
fn a_read_only_nexus_refuses_changes() {
    let world = World::new();
    let session = world.session_with(1, true);
    let unit = session.on(0);
    let protected = (SenseKey::DataProtect, codes::WRITE_PROTECTED);
    for opcode in [0x8a, 0x8b, 0x8e, 0x93] {
        unit.fails(&blocks(opcode, 0, 0, 1), &[0; 512], protected.0, protected.1);
    }
    unit.fails(&compare_and_write(0, 1), &[0; 1024], protected.0, protected.1);
    unit.fails(&[0x42, 0, 0, 0, 0, 0, 0, 0, 8, 0], &[0; 8], protected.0, protected.1);
    unit.read(0, 1);
    // WP and DPOFUA.
    assert_eq!(unit.good(&[0x1a, 8, 0x3f, 0, 4, 0], &[])[2], 0x90);
    // Another session can write.
    world.session(2).on(0).write(0, &[1; 512]);
}

#[test]
fn a_grown_unit_reports_the_new_capacity_first() {
    let world = World::new();
    let (one, two) = (world.session(1), world.session(2));
    let last = SIZE / 512;
    one.on(0).fails(&blocks(0x88, 0, last, 1), &[], SenseKey::IllegalRequest, codes::LBA_OUT_OF_RANGE);
    world.runtime.block_on(world.pool.resize("a", 2 * SIZE)).unwrap();
    one.on(0).attention(UnitAttention::CapacityChanged);
    two.on(0).attention(UnitAttention::CapacityChanged);
    two.on(1).ready();
    let capacity = two.on(0).good(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
    assert_eq!(capacity[..4], (2 * SIZE as u32 / 512 - 1).to_be_bytes());
    assert_eq!(one.on(0).read(last, 1), [0; 512]);
}
