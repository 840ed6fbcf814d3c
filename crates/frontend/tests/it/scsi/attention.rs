//! Unit attentions, sense data and mode parameters.

use std::sync::Arc;

use forebay_engine::RemoteAnswers;
use forebay_frontend::scsi::UnitAttention;
use forebay_store::MemoryStore;
use forebay_wire::scsi::{Sense, SenseKey, codes};

use super::support::*;

const RESERVE: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const RELEASE: [u8; 6] = [0x17, 0, 0, 0, 0, 0];
const REPORT_LUNS: [u8; 12] = [0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0];
const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 96, 0];

/// MODE SELECT(6) with a control page.
fn control(d_sense: u8, protect: u8) -> ([u8; 6], Vec<u8>) {
    let page = [0, 0, 0, 0, 0x0a, 10, 0x02 | d_sense, 0x10, protect, 0, 0, 0, 0xff, 0xff, 0, 0];
    ([0x15, 0x10, 0, 0, page.len() as u8, 0], page.to_vec())
}

#[test]
fn each_attention_is_reported_once_and_not_by_inquiry() {
    let world = World::new();
    let session = world.session(1);
    let unit = session.on(0);
    unit.nexus.note(UnitAttention::LunsChanged);
    unit.nexus.note(UnitAttention::LunsChanged);
    unit.nexus.note(UnitAttention::CapacityChanged);
    unit.good(&INQUIRY, &[]);
    unit.attention(UnitAttention::LunsChanged);
    unit.attention(UnitAttention::CapacityChanged);
    unit.ready();
    // REPORT LUNS clears the attention about changed LUNs.
    unit.nexus.note(UnitAttention::LunsChanged);
    assert_eq!(unit.good(&REPORT_LUNS, &[]).len(), 24);
    unit.ready();
    // REQUEST SENSE returns the attention as data.
    unit.nexus.note(UnitAttention::Threshold);
    let sense = unit.good(&[0x03, 0, 0, 0, 252, 0], &[]);
    assert_eq!(key_and_code(&sense), (6, codes::THIN_PROVISIONING_THRESHOLD));
    let none = unit.good(&[0x03, 1, 0, 0, 252, 0], &[]);
    assert_eq!((none[0], key_and_code(&none)), (0x72, (0, codes::NO_ADDITIONAL_SENSE)));
    unit.ready();
    // An attention precedes an error in the command.
    unit.nexus.note(UnitAttention::Threshold);
    unit.fails(&[0xff; 16], &[], SenseKey::UnitAttention, codes::THIN_PROVISIONING_THRESHOLD);
    unit.fails(&[0xff; 16], &[], SenseKey::IllegalRequest, codes::INVALID_OPERATION_CODE);
}

#[test]
fn a_reset_is_reported_to_all_nexuses() {
    let world = World::new();
    let (one, two) = (world.session(1), world.session(2));
    let (cdb, page) = control(4, 0);
    one.on(0).good(&cdb, &page);
    two.on(0).attention(UnitAttention::ModeChanged);
    one.on(0).good(&RESERVE, &[]);
    world.runtime.block_on(two.on(0).nexus.reset());
    assert_eq!((one.aborted(), two.aborted()), (vec![0], vec![]));
    for session in [&one, &two] {
        let response = session.on(0).send(&TEST_UNIT_READY, &[]);
        let expected = fixed(Sense::new(SenseKey::UnitAttention, codes::RESET_OCCURRED));
        assert_eq!(response.sense, expected, "D_SENSE was reset");
        session.on(0).ready();
        session.on(1).ready();
    }
    two.on(0).good(&RESERVE, &[]);
    two.on(0).good(&RELEASE, &[]);
}

#[test]
fn conflicts_take_precedence_over_all_attentions_but_resets() {
    let world = World::new();
    let (one, two) = (world.session(1), world.session(2));
    one.on(0).good(&RESERVE, &[]);
    two.on(0).nexus.note(UnitAttention::ModeChanged);
    two.on(0).conflicts(&RESERVE, &[]);
    two.on(0).nexus.note(UnitAttention::Reset);
    two.on(0).attention(UnitAttention::Reset);
    two.on(0).conflicts(&RESERVE, &[]);
    one.on(0).good(&RELEASE, &[]);
    two.on(0).attention(UnitAttention::ModeChanged);
    two.on(0).ready();
}

#[test]
fn the_sense_data_format_follows_the_mode_page() {
    let world = World::new();
    let (one, two) = (world.session(1), world.session(2));
    let beyond = blocks(0x88, 0, u64::MAX, 1);
    let format = |session: &TestSession| {
        session.on(0).fails(&beyond, &[], SenseKey::IllegalRequest, codes::LBA_OUT_OF_RANGE)[0] & 0x7f
    };
    assert_eq!(format(&one), 0x70);
    let (cdb, page) = control(4, 0);
    one.on(0).good(&cdb, &page);
    two.on(0).attention(UnitAttention::ModeChanged);
    assert_eq!((format(&one), format(&two)), (0x72, 0x72));
    assert_eq!(two.on(0).good(&[0x1a, 8, 0x0a, 0, 255, 0], &[])[6], 6);
    let (cdb, page) = control(0, 0);
    two.on(0).good(&cdb, &page);
    one.on(0).attention(UnitAttention::ModeChanged);
    assert_eq!(format(&one), 0x70);
    // A MODE SELECT without a change notes no attention.
    two.on(0).good(&cdb, &page);
    one.on(0).ready();
}

#[test]
fn software_write_protection_refuses_writes_of_all_nexuses() {
    let world = World::new();
    let (one, two) = (world.session(1), world.session(2));
    let (cdb, page) = control(0, 8);
    one.on(0).good(&cdb, &page);
    two.on(0).attention(UnitAttention::ModeChanged);
    let write = blocks(0x8a, 0, 0, 1);
    for session in [&one, &two] {
        let protected = codes::SOFTWARE_WRITE_PROTECTED;
        session.on(0).fails(&write, &[1; 512], SenseKey::DataProtect, protected);
        session.on(0).read(0, 1);
        session.on(1).write(0, &[1; 512]);
    }
    let (cdb, page) = control(0, 0);
    one.on(0).good(&cdb, &page);
    one.on(0).write(0, &[1; 512]);
}

/// MODE SENSE of the caching page, and whether it reports a write cache.
fn reads_volatile(unit: &OnUnit) -> bool {
    unit.good(&[0x1a, 8, 8, 0, 64, 0], &[])[6] & 4 != 0
}

#[test]
fn writes_of_an_initiator_that_was_told_of_no_cache_stay_durable() {
    let [durable, memory, again] = [RemoteAnswers::Durable, RemoteAnswers::Memory, RemoteAnswers::Memory]
        .map(|answers| World::with(Arc::new(MemoryStore::new()), answers));
    let session = durable.session(1);
    assert!(!reads_volatile(&session.on(0)) && session.on(0).nexus.durable(false));
    let hand_over = |from: &World, to: &World| {
        let states = from.runtime.block_on(from.units.hand_over());
        let states: Vec<_> = states
            .iter()
            .map(|s| serde_json::from_value(serde_json::to_value(s).unwrap()).unwrap())
            .collect();
        let resumed = to.runtime.block_on(to.units.resume(&to.pool, &states)).unwrap();
        let session = to.resumed_session(1);
        drop(resumed);
        session
    };
    let session = hand_over(&durable, &memory);
    session.on(0).attention(UnitAttention::ModeChanged);
    assert!(session.on(0).nexus.durable(false), "a write would be lost that the initiator does not flush");
    // The header alone does not report it.
    session.on(0).good(&[0x1a, 8, 8, 0, 4, 0], &[]);
    assert!(session.on(0).nexus.durable(false));
    assert!(reads_volatile(&session.on(0)) && !session.on(0).nexus.durable(false));
    // This is handed over; unit 1 was not read.
    let session = hand_over(&memory, &again);
    session.on(0).ready();
    assert!(!session.on(0).nexus.durable(false));
    session.on(1).attention(UnitAttention::ModeChanged);
    assert!(session.on(1).nexus.durable(false));
    // A new session reads the parameters; the new mapping of a number may not be read again.
    let new = again.session(2);
    assert!(!new.on(0).nexus.durable(false));
    new.on(0).nexus.replaces(false);
    new.on(0).attention(UnitAttention::ModeChanged);
    assert!(new.on(0).nexus.durable(false));
}

#[test]
fn another_disk_under_a_number_is_not_served_before_it_was_identified() {
    let world = World::new();
    let session = world.session(1);
    let unit = session.on(0);
    unit.nexus.replaces(true);
    unit.attention(UnitAttention::ModeChanged);
    unit.attention(UnitAttention::InquiryChanged);
    for _ in 0..2 {
        for cdb in
            [&TEST_UNIT_READY[..], &blocks(0x88, 0, 0, 1), &blocks(0x8a, 0, 0, 1), &[0x1a, 8, 8, 0, 64, 0]]
        {
            unit.fails(cdb, &[1; 512], SenseKey::IllegalRequest, codes::LOGICAL_UNIT_NOT_SUPPORTED);
        }
        unit.good(&INQUIRY, &[]);
        unit.good(&REPORT_LUNS, &[]);
    }
    assert!(!unit.nexus.is_identified());
    unit.good(&[0x12, 1, 0x83, 1, 0, 0], &[]);
    unit.ready();
    unit.write(0, &[1; 512]);
}
