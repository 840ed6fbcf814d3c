//! Persistent reservations and RESERVE, between sessions.

use forebay_frontend::scsi::UnitAttention;
use forebay_wire::scsi::{ReservationType, SenseKey, codes};

use super::support::*;

pub const RESERVE: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const RELEASE: [u8; 6] = [0x17, 0, 0, 0, 0, 0];

/// Service actions of PERSISTENT RESERVE OUT.
pub const REGISTER: u8 = 0;
pub const DO_RESERVE: u8 = 1;
const DO_RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT_AND_ABORT: u8 = 5;
pub const REGISTER_AND_IGNORE: u8 = 6;

pub fn reserve_out(action: u8, kind: u8, key: u64, action_key: u64) -> ([u8; 10], Vec<u8>) {
    let mut list = [key.to_be_bytes(), action_key.to_be_bytes()].concat();
    list.extend_from_slice(&[0; 8]);
    ([0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
}

pub fn reserve_in(action: u8) -> [u8; 10] {
    [0x5e, action, 0, 0, 0, 0, 0, 1, 0, 0]
}

impl OnUnit {
    #[track_caller]
    fn out(&self, action: u8, kind: u8, key: u64, action_key: u64) {
        let (cdb, list) = reserve_out(action, kind, key, action_key);
        self.good(&cdb, &list);
    }
}

/// Commands to the unit: the CDB, its data, and whether it is a write for reservations.
fn commands() -> Vec<(Vec<u8>, Vec<u8>, bool)> {
    let mut compare = blocks(0x89, 0, 0, 0);
    compare[13] = 1;
    vec![
        (blocks(0x88, 0, 0, 1).to_vec(), vec![], false),
        (vec![0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], vec![], false),
        (blocks(0x8f, 0, 0, 1).to_vec(), vec![], false),
        (blocks(0x9e, 0x12, 0, 24).to_vec(), vec![], false),
        (vec![0x1a, 8, 0x3f, 0, 255, 0], vec![], false),
        (blocks(0x8a, 0, 0, 1).to_vec(), vec![0; 512], true),
        (blocks(0x93, 0, 0, 1).to_vec(), vec![0; 512], true),
        (compare.to_vec(), vec![0; 1024], true),
        (vec![0x42, 0, 0, 0, 0, 0, 0, 0, 8, 0], vec![0; 8], true),
        (blocks(0x91, 0, 0, 0).to_vec(), vec![], true),
    ]
}

#[test]
fn every_reservation_type_restricts_another_nexus_as_specified() {
    let world = World::new();
    let (one, two) = (world.session(1), world.session(2));
    for kind in ReservationType::ALL {
        let (code, registrants) = (kind as u8, kind as u8 >= 5);
        one.on(0).out(REGISTER_AND_IGNORE, 0, 0, 1);
        two.on(0).out(REGISTER_AND_IGNORE, 0, 0, 2);
        one.on(0).out(DO_RESERVE, code, 1, 0);
        let held = one.on(0).good(&reserve_in(1), &[]);
        let key = if kind.held_by_all() { 0 } else { 1 };
        assert_eq!((held.len(), held[15], held[21]), (24, key, code));
        let check = |registered: bool| {
            for (cdb, data, changes) in commands() {
                one.on(0).good(&cdb, &data);
                if (registered && registrants) || (!changes && kind.allows_reads()) {
                    two.on(0).good(&cdb, &data);
                } else {
                    two.on(0).conflicts(&cdb, &data);
                }
            }
            // These never conflict, nor do commands to the other unit.
            two.on(0).ready();
            two.on(0).good(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
            two.on(0).good(&reserve_in(0), &[]);
            two.on(1).write(0, &[0; 512]);
        };
        check(true);
        two.on(0).out(REGISTER, 0, 2, 0);
        check(false);
        let (cdb, list) = reserve_out(DO_RELEASE, code % 8 + 1, 1, 0);
        if ReservationType::decode(code % 8 + 1).is_some() {
            one.on(0).fails(&cdb, &list, SenseKey::IllegalRequest, codes::INVALID_RELEASE);
        }
        one.on(0).out(DO_RELEASE, code, 1, 0);
        two.on(0).write(0, &[0; 512]);
        one.on(0).out(REGISTER, 0, 1, 0);
    }
}

#[test]
fn registrations_outlive_their_session() {
    let world = World::new();
    let (one, two) = (world.session(1), world.session(2));
    one.on(0).out(REGISTER, 0, 0, 1);
    one.on(0).out(DO_RESERVE, ReservationType::ExclusiveAccess as u8, 1, 0);
    one.end();
    two.on(0).conflicts(&blocks(0x88, 0, 0, 1), &[]);
    two.end();
    // Without any session the reservation persists.
    let two = world.session(2);
    two.on(0).conflicts(&blocks(0x88, 0, 0, 1), &[]);
    // The same nexus in a new session.
    let one = world.session(1);
    one.on(0).read(0, 1);
    let keys = one.on(0).good(&reserve_in(0), &[]);
    assert_eq!(keys[4..], [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1]);
    one.on(0).out(CLEAR, 0, 1, 0);
    two.on(0).read(0, 1);
    one.end();
    two.end();
    // Without registrations the disk is released.
    world.runtime.block_on(world.pool.delete("a")).unwrap();
}

#[test]
fn preempt_and_abort_notifies_and_aborts() {
    let world = World::new();
    let (one, two, three) = (world.session(1), world.session(2), world.session(3));
    let kind = ReservationType::WriteExclusiveRegistrants as u8;
    for (n, session) in [&one, &two, &three].into_iter().enumerate() {
        session.on(0).out(REGISTER, 0, 0, 1 + n as u64);
    }
    one.on(0).out(DO_RESERVE, kind, 1, 0);
    two.on(0).out(PREEMPT_AND_ABORT, ReservationType::WriteExclusive as u8, 2, 1);
    one.on(0).attention(UnitAttention::RegistrationsPreempted);
    three.on(0).attention(UnitAttention::ReservationsReleased);
    for session in [&one, &two, &three] {
        session.on(0).ready();
    }
    assert_eq!((one.aborted(), two.aborted(), three.aborted()), (vec![0], vec![], vec![]));
    one.on(0).conflicts(&blocks(0x8a, 0, 0, 1), &[0; 512]);
    let full = two.on(0).good(&reserve_in(3), &[]);
    // PRGENERATION: three registrations and a preemption.
    assert_eq!(full[..4], [0, 0, 0, 4]);
    let (cdb, list) = reserve_out(CLEAR, 0, 9, 0);
    two.on(0).conflicts(&cdb, &list);
    two.on(0).out(CLEAR, 0, 2, 0);
    three.on(0).attention(UnitAttention::ReservationsPreempted);
    one.on(0).write(0, &[0; 512]);
}

#[test]
fn capabilities_are_reported_and_invalid_lists_refused() {
    let world = World::new();
    let session = world.session(1);
    let unit = session.on(0);
    assert_eq!(unit.good(&reserve_in(2), &[]), [0, 8, 1, 0x80, 0xea, 1, 0, 0]);
    let (cdb, mut list) = reserve_out(REGISTER, 0, 0, 1);
    // SPEC_I_PT and ALL_TG_PT.
    for bit in [8, 4] {
        list[20] = bit;
        let wrong = codes::INVALID_FIELD_IN_PARAMETER_LIST;
        unit.fails(&cdb, &list, SenseKey::IllegalRequest, wrong);
    }
    // APTPL.
    list[20] = 1;
    unit.good(&cdb, &list);
    assert_eq!(unit.good(&reserve_in(2), &[])[3], 0x81);
    let mut short = cdb;
    short[8] = 20;
    unit.fails(&short, &list[..20], SenseKey::IllegalRequest, codes::PARAMETER_LIST_LENGTH_ERROR);
    // A list beyond the allocation length is cut; its length field is not.
    let keys = unit.good(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0], &[]);
    assert_eq!(keys, [0, 0, 0, 1, 0, 0, 0, 8]);
}

#[test]
fn reserve_excludes_other_nexuses_until_release() {
    let world = World::new();
    let (one, two) = (world.session(1), world.session(2));
    one.on(0).good(&RESERVE, &[]);
    one.on(0).good(&RESERVE, &[]);
    two.on(0).conflicts(&RESERVE, &[]);
    two.on(0).good(&RELEASE, &[]);
    two.on(0).conflicts(&TEST_UNIT_READY, &[]);
    two.on(0).conflicts(&reserve_in(0), &[]);
    for (cdb, data, _) in commands() {
        one.on(0).good(&cdb, &data);
        two.on(0).conflicts(&cdb, &data);
    }
    two.on(0).good(&[0x12, 0, 0, 0, 96, 0], &[]);
    two.on(0).good(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
    // RESERVE ends with the session.
    one.end();
    two.on(0).good(&RESERVE, &[]);
    two.on(0).good(&RELEASE, &[]);
    // It conflicts with registrations.
    two.on(0).out(REGISTER, 0, 0, 2);
    two.on(0).conflicts(&RESERVE, &[]);
    two.on(0).conflicts(&RELEASE, &[]);
}
