//! A unit whose acknowledged writes are lost, and when its write cache is volatile.

use std::sync::Arc;

use forebay_engine::{Pool, RemoteAnswers};
use forebay_frontend::scsi::UnitAttention;
use forebay_store::MemoryStore;
use forebay_wire::scsi::{SenseKey, codes};

use super::support::*;
use crate::host::{host, store_with_lost_writes};

const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 96, 0];
const REPORT_LUNS: [u8; 12] = [0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0];
const REQUEST_SENSE: [u8; 6] = [0x03, 0, 0, 0, 252, 0];
const READ_CAPACITY_10: [u8; 10] = [0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const PERSISTENT_RESERVE_IN: [u8; 10] = [0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0];
const CACHING_PAGE: [u8; 6] = [0x1a, 0x08, 0x08, 0, 64, 0];

#[track_caller]
fn not_ready(unit: &OnUnit, cdb: &[u8], data: &[u8]) {
    unit.fails(cdb, data, SenseKey::NotReady, codes::MANUAL_INTERVENTION_REQUIRED);
}

#[test]
fn a_unit_with_lost_writes_is_not_ready_until_it_is_resumed() {
    let world = World::with(store_with_lost_writes(&["a"]), RemoteAnswers::Durable);
    let (one, two) = (world.session(1), world.session_with(2, true));
    let unit = one.on(0);
    for _ in 0..2 {
        not_ready(&unit, &TEST_UNIT_READY, &[]);
        not_ready(&two.on(0), &TEST_UNIT_READY, &[]);
        not_ready(&unit, &blocks(0x88, 0, 0, 1), &[]);
        not_ready(&unit, &blocks(0x8a, 0, 0, 1), &[1; 512]);
        not_ready(&unit, &blocks(0x8a, 8, 0, 1), &[1; 512]);
        // WRITE SAME with UNMAP, SYNCHRONIZE CACHE, VERIFY, GET LBA STATUS.
        not_ready(&unit, &blocks(0x93, 8, 0, 8), &[0; 512]);
        not_ready(&unit, &blocks(0x91, 0, 0, 0), &[]);
        not_ready(&unit, &blocks(0x8f, 0, 0, 8), &[]);
        not_ready(&unit, &blocks(0x9e, 0x12, 0, 64), &[]);
        for describes in [&INQUIRY[..], &REPORT_LUNS, &REQUEST_SENSE, &READ_CAPACITY_10, &CACHING_PAGE] {
            unit.good(describes, &[]);
        }
        unit.good(&PERSISTENT_RESERVE_IN, &[]);
    }
    // The other unit lost nothing.
    one.on(1).ready();
    world.runtime.block_on(world.pool.resume("a")).unwrap();
    for session in [&one, &two] {
        session.on(0).attention(UnitAttention::Ready);
        session.on(0).ready();
        session.on(1).ready();
    }
    unit.write(0, &[7; 512]);
    assert_eq!(unit.read(0, 1), [7; 512]);
    world.session(3).on(0).ready();
}

/// Bit WCE of the caching mode page.
fn has_volatile_cache(unit: &OnUnit) -> bool {
    unit.good(&CACHING_PAGE, &[])[4 + 2] & 4 != 0
}

#[test]
fn the_cache_of_a_unit_is_volatile_only_by_choice() {
    for (answers, is_volatile) in [(RemoteAnswers::Durable, false), (RemoteAnswers::Memory, true)] {
        let store = Arc::new(MemoryStore::new());
        let world = World::with(store.clone(), answers);
        // Its mapping allows a volatile cache.
        let unit = world.session(1).on(0);
        assert_eq!(has_volatile_cache(&unit), is_volatile);
        unit.write(0, &[7; 4096]);
        let lost = world.runtime.block_on(async {
            let host = Arc::new(host(world.runtime.handle().clone()));
            let pool = Pool::open(store, host, Default::default()).await.unwrap();
            pool.disk("a").unwrap().memory_lost
        });
        assert_eq!(lost, is_volatile);
    }
}
