//! Properties that units report, and commands to LUNs without a unit.

use std::collections::HashSet;
use std::sync::Arc;

use forebay_frontend::scsi::absent;
use forebay_wire::scsi::{Code, SenseKey, Status, codes};

use super::support::*;

fn page(unit: &OnUnit, code: u8) -> Vec<u8> {
    unit.good(&[0x12, 1, code, 4, 0, 0], &[])
}

#[test]
fn a_unit_has_one_identity_for_all_sessions() {
    let world = World::new();
    let (one, two) = (world.session(1), world.session(2));
    assert!(std::ptr::eq(&**one.on(0).nexus.unit(), &**two.on(0).nexus.unit()));
    for code in page(&one.on(0), 0)[4..].to_vec() {
        assert_eq!(page(&one.on(0), code), page(&two.on(0), code));
    }
    for code in [0x80, 0x83] {
        assert_ne!(page(&one.on(0), code), page(&one.on(1), code));
    }
    one.on(0).fails(&[0x12, 1, 0xb5, 0, 255, 0], &[], SenseKey::IllegalRequest, codes::INVALID_FIELD_IN_CDB);
}

#[test]
fn data_is_cut_to_the_allocation_length() {
    let world = World::new();
    let session = world.session(1);
    let unit = session.on(0);
    let whole = unit.good(&[0x12, 0, 0, 1, 0, 0], &[]);
    assert_eq!(whole.len(), 96);
    for len in 0..=96 {
        assert_eq!(unit.good(&[0x12, 0, 0, 0, len, 0], &[]), whole[..usize::from(len)]);
    }
    let capacity = unit.good(&blocks(0x9e, 0x10, 0, 32), &[]);
    assert_eq!(capacity[..12], [0, 0, 0, 0, 0, 0, 0x3f, 0xff, 0, 0, 2, 0]);
    assert_eq!(unit.good(&blocks(0x9e, 0x10, 0, 12), &[]), capacity[..12]);
    let opcodes = [0xa3, 0x0c, 0x80, 0, 0, 0, 0, 0, 0, 100, 0, 0];
    assert_eq!(unit.good(&opcodes, &[]).len(), 100);
    assert_eq!(unit.good(&[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[]).len(), 16);
    assert_eq!(unit.good(&[0xa3, 0x0d, 0x80, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[]).len(), 16);
    unit.good(&[0x1b, 0, 0, 0, 1, 0], &[]);
}

#[test]
fn a_lun_without_unit_is_answered_as_specified() {
    let inquiry = absent(&[0x12, 0, 0, 0, 36, 0], &[0, 3]);
    assert_eq!((inquiry.status, inquiry.data_in[0], inquiry.data_in.len()), (Status::Good, 0x7f, 36));
    let luns = absent(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0], &[0, 3]);
    assert_eq!((luns.data_in.len(), luns.data_in[17]), (24, 3));
    let missing: (u8, Code) = (5, codes::LOGICAL_UNIT_NOT_SUPPORTED);
    let sense = absent(&[0x03, 0, 0, 0, 18, 0], &[]);
    assert_eq!((sense.status, key_and_code(&sense.data_in)), (Status::Good, missing));
    for cdb in [&TEST_UNIT_READY[..], &blocks(0x88, 0, 5, 1), &[0xff; 16], &[]] {
        let response = absent(cdb, &[0]);
        assert_eq!((response.status, key_and_code(&response.sense)), (Status::CheckCondition, missing));
    }
}

#[test]
fn the_last_session_releases_the_disk() {
    let world = World::new();
    let session = world.session(1);
    assert!(world.runtime.block_on(world.pool.delete("b")).is_err());
    session.end();
    world.runtime.block_on(world.pool.delete("b")).unwrap();
    assert!(world.runtime.block_on(world.units.open(&world.pool, "b")).is_err());
    // Registrations hold the disk, until it is no longer mapped.
    let session = world.session_on(1, false, &["a"]);
    session.on(0).good(&[0x5f, 6, 0, 0, 0, 0, 0, 0, 24, 0], &[&[0; 15][..], &[1], &[0; 8]].concat());
    session.end();
    assert!(world.runtime.block_on(world.pool.delete("a")).is_err());
    world.runtime.block_on(world.units.keep(|| HashSet::from(["b".to_owned()])));
    world.runtime.block_on(world.pool.delete("a")).unwrap();
}

#[test]
fn a_disk_that_is_mapped_again_has_the_unit_whose_commands_have_not_ended() {
    let world = World::new();
    let session = world.session_on(1, false, &["a"]);
    let unit = session.on(0).nexus.unit().clone();
    session.on(0).good(&[0x5f, 6, 0, 0, 0, 0, 0, 0, 24, 0], &[&[0; 15][..], &[1], &[0; 8]].concat());
    world.runtime.block_on(world.units.keep(HashSet::new));
    let again = world.runtime.block_on(world.units.open(&world.pool, "a")).unwrap();
    assert!(Arc::ptr_eq(&unit, &again), "the disk has two units");
    drop((unit, again));
    session.end();
    assert!(world.runtime.block_on(world.pool.delete("a")).is_err(), "registrations hold the disk again");
}

#[test]
fn a_command_that_was_admitted_fails_after_the_access_was_ended() {
    let world = World::new();
    let session = world.session(1);
    let write = blocks(0x8a, 0, 0, 1);
    let admitted = session.on(0).nexus.admit(&write).ok().unwrap();
    session.on(0).nexus.withdraw();
    let response = session.on(0).perform(&admitted.request, &[7; 512]);
    let aborted = (SenseKey::AbortedCommand as u8, codes::COMMANDS_CLEARED_BY_SERVER);
    assert_eq!(key_and_code(&response.sense), aborted);
    assert_eq!(world.session(2).on(0).read(0, 1), [0; 512]);
}
