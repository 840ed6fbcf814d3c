//! EXTENDED COPY, and copies by token.

use forebay_wire::scsi::{ROD_TYPE_ZERO, SenseKey, Status, TOKEN, codes};

use super::support::*;

/// The first designator of a unit, as a target descriptor.
fn target(unit: &OnUnit) -> Vec<u8> {
    let page = unit.good(&[0x12, 1, 0x83, 1, 0, 0], &[]);
    assert_eq!(page[5] & 0x3f, 3, "NAA");
    let mut descriptor = vec![0xe4, 0, 0, 0];
    descriptor.extend_from_slice(&page[4..16]);
    descriptor.resize(30, 0);
    descriptor.extend_from_slice(&[2, 0]);
    descriptor
}

fn extended_copy(targets: &[Vec<u8>], segments: &[(u16, u16, u16, u64, u64)]) -> ([u8; 16], Vec<u8>) {
    let mut list = vec![1, 0, 0, 32 * targets.len() as u8, 0, 0, 0, 0, 0, 0, 0, 28 * segments.len() as u8];
    list.extend_from_slice(&[0; 4]);
    targets.iter().for_each(|t| list.extend_from_slice(t));
    for (source, destination, count, from, to) in segments {
        list.extend_from_slice(&[2, 0, 0, 24]);
        list.extend_from_slice(&source.to_be_bytes());
        list.extend_from_slice(&destination.to_be_bytes());
        list.extend_from_slice(&[0, 0]);
        list.extend_from_slice(&count.to_be_bytes());
        list.extend_from_slice(&from.to_be_bytes());
        list.extend_from_slice(&to.to_be_bytes());
    }
    let mut cdb = [0; 16];
    cdb[0] = 0x83;
    cdb[12..14].copy_from_slice(&(list.len() as u16).to_be_bytes());
    (cdb, list)
}

const COPY_STATUS: [u8; 16] = [0x84, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0];

#[test]
fn extended_copy_copies_between_units() {
    let world = World::new();
    let session = world.session(1);
    let (a, b) = (session.on(0), session.on(1));
    let data: Vec<u8> = (0..3000u32 * 512).map(|n| (n / 512 % 250) as u8 + 1).collect();
    a.write(5, &data);
    a.fails(&COPY_STATUS, &[], SenseKey::IllegalRequest, codes::INVALID_FIELD_IN_CDB);
    let targets = [target(&a), target(&b)];
    let (cdb, list) = extended_copy(&targets, &[(0, 1, 3000, 5, 16), (1, 0, 1, 16, 0)]);
    a.good(&cdb, &list);
    assert_eq!(b.read(16, 3000), data);
    assert_eq!(a.read(0, 1), data[..512]);
    let status = a.good(&COPY_STATUS, &[]);
    assert_eq!(status[4..], [1, 0, 2, 0, 0, 23, 114, 0]);
    // The other unit received no copy command.
    b.fails(&COPY_STATUS, &[], SenseKey::IllegalRequest, codes::INVALID_FIELD_IN_CDB);
    let mut none = cdb;
    none[12..14].fill(0);
    a.good(&none, &[]);
    // RECEIVE COPY OPERATING PARAMETERS.
    assert_eq!(a.good(&[0x84, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], &[]).len(), 46);
}

#[test]
fn a_refused_copy_changes_no_block() {
    let world = World::new();
    let (session, reader) = (world.session(1), world.session_with(2, true));
    let a = session.on(0);
    a.write(0, &[7; 4096]);
    let end = SIZE / 512;
    let mut unknown = target(&a);
    unknown[15] ^= 1;
    let targets = [target(&a), unknown];
    let good = (0, 0, 8, 0, 100);
    for (bad, code) in [
        ((0, 2, 8, 0, 100), codes::COPY_TARGET_NOT_REACHABLE),
        ((1, 0, 8, 0, 100), codes::COPY_TARGET_NOT_REACHABLE),
        ((0, 0, 8, 0, end - 7), codes::NO_ADDITIONAL_SENSE),
        ((0, 0, 8, end, 100), codes::NO_ADDITIONAL_SENSE),
        ((0, 0, 8, u64::MAX >> 9, 100), codes::NO_ADDITIONAL_SENSE),
    ] {
        let (cdb, list) = extended_copy(&targets, &[good, bad]);
        a.fails(&cdb, &list, SenseKey::CopyAborted, code);
        assert_eq!(a.read(100, 8), [0; 4096]);
        assert_eq!(a.good(&COPY_STATUS, &[])[4..7], [2, 0, 0]);
    }
    let (cdb, list) = extended_copy(&targets[..1], &[good]);
    reader.on(0).fails(&cdb, &list, SenseKey::CopyAborted, codes::THIRD_PARTY_DEVICE_FAILURE);
    let (overlap, ranges) = extended_copy(&targets[..1], &[(0, 0, 8, 0, 7)]);
    a.fails(&overlap, &ranges, SenseKey::IllegalRequest, codes::INVALID_FIELD_IN_PARAMETER_LIST);
    a.fails(&cdb, &list[..40], SenseKey::IllegalRequest, codes::PARAMETER_LIST_LENGTH_ERROR);
}

fn with_ranges(mut list: Vec<u8>, ranges: &[(u64, u32)]) -> Vec<u8> {
    list.extend_from_slice(&(16 * ranges.len() as u16).to_be_bytes());
    for (lba, count) in ranges {
        list.extend_from_slice(&lba.to_be_bytes());
        list.extend_from_slice(&count.to_be_bytes());
        list.extend_from_slice(&[0; 4]);
    }
    let len = (list.len() - 2) as u16;
    list[..2].copy_from_slice(&len.to_be_bytes());
    list
}

fn token_cdb(action: u8, list: u32, len: usize) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x83, action);
    cdb[6..10].copy_from_slice(&list.to_be_bytes());
    cdb[10..14].copy_from_slice(&(len as u32).to_be_bytes());
    cdb
}

fn information(unit: &OnUnit, list: u32) -> Vec<u8> {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[12]) = (0x84, 7, 4);
    cdb[2..6].copy_from_slice(&list.to_be_bytes());
    unit.good(&cdb, &[])
}

/// Creates a token.
fn populate(unit: &OnUnit, ranges: &[(u64, u32)]) -> Vec<u8> {
    let list = with_ranges(vec![0; 14], ranges);
    unit.good(&token_cdb(0x10, 77, list.len()), &list);
    let data = information(unit, 77);
    let blocks: u32 = ranges.iter().map(|r| r.1).sum();
    assert_eq!((data[4], data[5], &data[20..24]), (0x10, 1, &blocks.to_be_bytes()[..]));
    assert_eq!(data.len(), 38 + TOKEN);
    data[38..].to_vec()
}

fn write_list(token: &[u8], flags: u8, offset: u64, ranges: &[(u64, u32)]) -> Vec<u8> {
    let mut list = vec![0, 0, flags, 0, 0, 0, 0, 0];
    list.extend_from_slice(&offset.to_be_bytes());
    list.extend_from_slice(token);
    list.extend_from_slice(&[0; 6]);
    with_ranges(list, ranges)
}

#[test]
fn a_token_copies_its_ranges_to_any_unit_and_session() {
    let world = World::new();
    let (one, two) = (world.session(1), world.session(2));
    let a = one.on(0);
    let data: Vec<u8> = (0..16u32 * 512).map(|n| (n / 100) as u8).collect();
    a.write(8, &data);
    let token = populate(&a, &[(16, 8), (8, 8)]);
    let b = two.on(1);
    let list = write_list(&token, 0, 4, &[(100, 2), (200, 10)]);
    b.good(&token_cdb(0x11, 1, list.len()), &list);
    let whole = [&data[4096..], &data[..4096]].concat();
    assert_eq!([b.read(100, 2), b.read(200, 10)].concat(), whole[2048..2048 + 6144]);
    assert_eq!(
        information(&b, 1)[4..24],
        {
            let mut head = vec![0x11, 1, 0, 1, 255, 255, 255, 255, 0, 0, 0, 0xf1];
            head.extend_from_slice(&12u64.to_be_bytes());
            head
        }[..]
    );
    // A range beyond the end of the token.
    let list = write_list(&token, 0, 10, &[(100, 7)]);
    let wrong = codes::INVALID_FIELD_IN_PARAMETER_LIST;
    b.fails(&token_cdb(0x11, 2, list.len()), &list, SenseKey::IllegalRequest, wrong);
    // A forged token, and a deleted one.
    let mut forged = token.clone();
    forged[140] ^= 1;
    let list = write_list(&forged, 0, 0, &[(100, 7)]);
    b.fails(&token_cdb(0x11, 2, list.len()), &list, SenseKey::IllegalRequest, codes::TOKEN_UNKNOWN);
    let list = write_list(&token, 2, 0, &[(100, 1)]);
    b.good(&token_cdb(0x11, 2, list.len()), &list);
    b.fails(&token_cdb(0x11, 2, list.len()), &list, SenseKey::IllegalRequest, codes::TOKEN_UNKNOWN);
}

#[test]
fn a_change_of_its_ranges_revokes_a_token() {
    let world = World::new();
    let session = world.session(1);
    let (a, b) = (session.on(0), session.on(1));
    let mut unmap = vec![0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 15, 0, 0, 0, 2];
    unmap.extend_from_slice(&[0; 4]);
    let mut compare = blocks(0x89, 0, 8, 0);
    compare[13] = 1;
    let (copy, copy_list) = extended_copy(&[target(&a)], &[(0, 0, 4, 1000, 14)]);
    let changes: [(&[u8], &[u8]); 6] = [
        (&blocks(0x8a, 0, 15, 1), &[1; 512]),
        (&[0x2a, 0, 0, 0, 0, 0, 0, 0, 9, 0], &[1; 9 * 512]),
        (&blocks(0x93, 9, 12, 1), &[]),
        (&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &unmap),
        (&compare, &[1; 1024]),
        (&copy, &copy_list),
    ];
    let revoked = codes::TOKEN_REVOKED;
    for (cdb, data) in changes {
        a.write(8, &[1; 4096]);
        let token = populate(&a, &[(8, 8)]);
        // Writes next to its range, and to another unit, do not revoke it.
        a.write(16, &[2; 512]);
        a.write(7, &[2; 512]);
        b.write(8, &[2; 512]);
        let list = write_list(&token, 0, 0, &[(64, 8)]);
        let write = token_cdb(0x11, 3, list.len());
        b.good(&write, &list);
        a.good(cdb, data);
        b.fails(&write, &list, SenseKey::IllegalRequest, revoked);
        let failed = information(&b, 3);
        assert_eq!((failed[5], failed[32] & 0x7f, failed[34]), (2, 0x72, 0x23));
    }
    // Writing a token onto its own range revokes it.
    a.write(8, &[1; 4096]);
    a.write(16, &[2; 512]);
    let token = populate(&a, &[(8, 8)]);
    let list = write_list(&token, 0, 0, &[(12, 8)]);
    a.fails(&token_cdb(0x11, 3, list.len()), &list, SenseKey::IllegalRequest, revoked);
    assert_eq!(a.read(16, 1), [2; 512]);
}

#[test]
fn the_zero_token_writes_zeroes() {
    let world = World::new();
    let session = world.session(1);
    let a = session.on(0);
    a.write(0, &[1; 8192]);
    let mut token = ROD_TYPE_ZERO.to_be_bytes().to_vec();
    token.resize(TOKEN, 0);
    let list = write_list(&token, 0, 0, &[(1, 4), (8, 8)]);
    a.good(&token_cdb(0x11, 9, list.len()), &list);
    let read = a.read(0, 16);
    for (block, data) in read.chunks(512).enumerate() {
        let zero = (1..5).contains(&block) || block >= 8;
        assert_eq!(data, if zero { [0; 512] } else { [1; 512] }, "{block}");
    }
}

#[test]
fn a_token_ends_with_the_access_on_which_it_was_made() {
    let world = World::new();
    let (one, two) = (world.session(1), world.session(2));
    one.on(0).write(0, &[7; 4096]);
    let token = populate(&one.on(0), &[(0, 8)]);
    let b = two.on(1);
    let list = write_list(&token, 0, 0, &[(100, 8)]);
    let write = token_cdb(0x11, 1, list.len());
    b.good(&write, &list);
    b.write(100, &[1; 4096]);
    // As `target deny`, `lun unmap` and `target rm --force` do.
    drop(one.on(0).nexus.withdraw());
    b.fails(&write, &list, SenseKey::IllegalRequest, codes::TOKEN_REVOKED);
    one.end();
    b.fails(&write, &list, SenseKey::IllegalRequest, codes::TOKEN_UNKNOWN);
    assert_eq!(b.read(100, 8), [1; 4096]);
}

#[test]
fn a_token_copies_only_while_its_initiator_may_read() {
    let world = World::new();
    let (one, two) = (world.session(1), world.session(2));
    one.on(0).write(0, &[7; 4096]);
    let token = populate(&one.on(0), &[(0, 8)]);
    let (other, b) = (two.on(0), one.on(1));
    let list = write_list(&token, 0, 0, &[(100, 8)]);
    let write = token_cdb(0x11, 1, list.len());
    // RESERVE and RELEASE by another initiator.
    other.good(&[0x16, 0, 0, 0, 0, 0], &[]);
    b.fails(&write, &list, SenseKey::CopyAborted, codes::THIRD_PARTY_DEVICE_FAILURE);
    assert_eq!(b.read(100, 8), [0; 4096]);
    other.good(&[0x17, 0, 0, 0, 0, 0], &[]);
    b.good(&write, &list);
    assert_eq!(b.read(100, 8), [7; 4096]);
}

#[test]
fn an_extended_copy_needs_access_to_both_units() {
    let world = World::new();
    let session = world.session(1);
    let (a, b) = (session.on(0), session.on(1));
    let targets = [target(&a), target(&b)];
    for segment in [(0, 1, 8, 0, 0), (1, 0, 8, 0, 0)] {
        let (cdb, list) = extended_copy(&targets, &[segment]);
        a.good(&cdb, &list);
    }
    drop(b.nexus.withdraw());
    for segment in [(0, 1, 8, 0, 0), (1, 0, 8, 0, 0)] {
        let (cdb, list) = extended_copy(&targets, &[segment]);
        a.fails(&cdb, &list, SenseKey::CopyAborted, codes::THIRD_PARTY_DEVICE_FAILURE);
    }
}

#[test]
fn too_many_tokens_replace_those_of_the_initiator_that_has_most() {
    let world = World::new();
    let (greedy, other) = (world.session(1), world.session_at(2, false, &["a"], "iqn.2026-11.example:other"));
    let others = populate(&other.on(0), &[(0, 8)]);
    let tokens: Vec<_> = (0..70).map(|_| populate(&greedy.on(0), &[(0, 8)])).collect();
    let b = greedy.on(1);
    let copy = |token: &[u8]| {
        let list = write_list(token, 0, 0, &[(100, 8)]);
        b.send(&token_cdb(0x11, 1, list.len()), &list).status
    };
    assert_eq!(copy(&others), Status::Good, "the token of another target");
    let valid = tokens.iter().filter(|token| copy(token) == Status::Good).count();
    assert_eq!(valid, 63, "a unit has 64 tokens");
    assert_eq!(copy(&tokens[6]), Status::CheckCondition, "the oldest ones were replaced");
    assert_eq!(copy(&tokens[69]), Status::Good);
}
