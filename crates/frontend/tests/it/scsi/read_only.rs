//! Read-only initiators: they cannot affect other initiators that share the unit. Also the reservations that
//! administrators see.

use forebay_frontend::scsi::UnitAttention;
use forebay_wire::scsi::{SenseKey, codes};

use super::reservations::{DO_RESERVE, REGISTER, REGISTER_AND_IGNORE, RESERVE, reserve_in, reserve_out};
use super::support::*;

const READ_KEYS: u8 = 0;
const READ_RESERVATION: u8 = 1;
const READ_FULL_STATUS: u8 = 3;
const WRITE_EXCLUSIVE: u8 = 1;
const OTHER_TARGET: &str = "iqn.2026-11.example:other";

#[test]
fn a_read_only_initiator_cannot_register_or_reserve() {
    let world = World::new();
    let (writer, reader) = (world.session(1), world.session_with(2, true));
    for (action, key) in [(REGISTER, 5), (REGISTER_AND_IGNORE, 5), (DO_RESERVE, 0)] {
        let (cdb, list) = reserve_out(action, WRITE_EXCLUSIVE, 0, key);
        reader.on(0).fails(&cdb, &list, SenseKey::DataProtect, codes::WRITE_PROTECTED);
    }
    reader.on(0).fails(&RESERVE, &[], SenseKey::DataProtect, codes::WRITE_PROTECTED);
    assert_eq!(reader.on(0).good(&reserve_in(READ_KEYS), &[])[4..8], [0; 4], "a key is registered");
    writer.on(0).write(0, &[1; 512]);
    assert_eq!(reader.on(0).read(0, 1), [1; 512]);
}

#[test]
fn a_read_only_initiator_cannot_set_mode_parameters() {
    let world = World::new();
    let (writer, reader) = (world.session(1), world.session_with(2, true));
    // The control mode page with SWP, and with D_SENSE.
    for (flags2, flags4) in [(0, 8), (4, 0)] {
        let mut list = vec![0; 4];
        list.extend([0x0a, 0x0a, flags2, 0, flags4, 0, 0, 0, 0, 0, 0, 0]);
        let cdb = [0x15, 0x10, 0, 0, list.len() as u8, 0];
        reader.on(0).fails(&cdb, &list, SenseKey::DataProtect, codes::WRITE_PROTECTED);
    }
    writer.on(0).write(0, &[1; 512]);
}

#[test]
fn a_read_only_initiator_cannot_reset_or_clear_other_sessions() {
    let world = World::new();
    let (writer, reader) = (world.session(1), world.session_with(2, true));
    writer.on(0).good(&RESERVE, &[]);
    world.runtime.block_on(reader.on(0).nexus.clear_task_set());
    world.runtime.block_on(reader.on(0).nexus.reset());
    assert_eq!(writer.aborted(), Vec::<u16>::new(), "commands of the other session were aborted");
    writer.on(0).ready();
    reader.on(0).attention(UnitAttention::Reset);
    reader.on(0).conflicts(&blocks(0x88, 0, 0, 1), &[]);
}

#[test]
fn a_read_only_initiator_does_not_see_initiators_of_other_targets() {
    let world = World::new();
    let (writer, reader) = (world.session(1), world.session_with(2, true));
    let stranger = world.session_at(3, true, &["a"], OTHER_TARGET);
    let (cdb, list) = reserve_out(REGISTER, 0, 0, 0x77);
    writer.on(0).good(&cdb, &list);
    let (cdb, list) = reserve_out(DO_RESERVE, WRITE_EXCLUSIVE, 0x77, 0);
    writer.on(0).good(&cdb, &list);
    let name = b"iqn.2026-11.example:host1";
    for (session, knows) in [(&reader, true), (&stranger, false)] {
        let full = session.on(0).good(&reserve_in(READ_FULL_STATUS), &[]);
        assert_eq!(full.windows(name.len()).any(|window| window == name), knows);
        for action in [READ_KEYS, READ_RESERVATION] {
            let data = session.on(0).good(&reserve_in(action), &[]);
            assert_eq!(data[8..].starts_with(&0x77_u64.to_be_bytes()), knows, "service action {action}");
        }
    }
}

#[test]
fn administrators_see_and_clear_reservations() {
    let world = World::new();
    let (one, two) = (world.session(1), world.session(2));
    let seen = |disk| world.runtime.block_on(world.units.reservations(&world.pool, disk)).unwrap();
    let clear = |disk| world.runtime.block_on(world.units.clear_reservations(&world.pool, disk)).unwrap();
    two.on(1).good(&RESERVE, &[]);
    assert_eq!(seen("b").reserve.unwrap().initiator, "iqn.2026-11.example:host2");
    clear("b");
    one.on(1).good(&RESERVE, &[]);

    let (cdb, mut list) = reserve_out(REGISTER, 0, 0, 0x77);
    // APTPL.
    list[20] = 1;
    one.on(0).good(&cdb, &list);
    let (cdb, list) = reserve_out(DO_RESERVE, WRITE_EXCLUSIVE, 0x77, 0);
    one.on(0).good(&cdb, &list);
    two.on(0).conflicts(&blocks(0x8a, 0, 0, 1), &[0; 512]);
    let state = seen("a");
    assert!(state.keep && state.persistent.is_some());
    assert_eq!(state.registrations[0].1, 0x77);
    clear("a");
    one.on(0).attention(UnitAttention::ReservationsPreempted);
    two.on(0).write(0, &[2; 512]);
    assert!(seen("a").registrations.is_empty());
    assert_eq!(world.runtime.block_on(world.pool.reservations("a")).unwrap(), None, "cleared durably");
}

#[test]
fn reservations_of_an_unused_disk_are_seen_and_cleared() {
    let mut world = World::new();
    let one = world.session_on(1, false, &["a"]);
    let (cdb, mut list) = reserve_out(REGISTER, 0, 0, 0x77);
    list[20] = 1;
    one.on(0).good(&cdb, &list);
    one.end();
    // As after a restart: only the reservations stored with the disk remain.
    world.units = forebay_frontend::scsi::Units::new();
    let seen = || world.runtime.block_on(world.units.reservations(&world.pool, "a"));
    assert_eq!(seen().unwrap().registrations.len(), 1);
    world.runtime.block_on(world.pool.set_reservations("a", Some(b"damaged"))).unwrap();
    assert!(seen().is_err());
    world.runtime.block_on(world.units.clear_reservations(&world.pool, "a")).unwrap();
    assert!(seen().unwrap().registrations.is_empty());
    assert!(world.runtime.block_on(world.units.reservations(&world.pool, "none")).is_err());
}
