//! The governor without a pool: admission, what the store reports, and reclaims, as tables.

use std::sync::Arc;
use std::time::Duration;

use forebay_store::Capacity;

use super::*;
use crate::sync::atomic::AtomicU64;

const MIB: u64 = 1 << 20;
const SEGMENT: u64 = 4 * MIB;

fn governor() -> SpaceGovernor {
    let config = PoolConfig { write_buffer: 8 * MIB, ..PoolConfig::default() };
    SpaceGovernor::new(&config, SEGMENT, Arc::new(AtomicU64::new(0)), Arc::default())
}

/// A store of 1 GiB. The reserve is 24 MiB: two segments and two write buffers.
fn observe(governor: &SpaceGovernor, free_mib: u64) -> bool {
    governor.observe(Capacity { free: free_mib * MIB, total: 1024 * MIB }, false, Duration::ZERO)
}

#[test]
fn a_request_fits_next_to_dirty_and_admitted_bytes() {
    // Dirty MiB, admitted MiB, the request's MiB (0: a zeroed range), whether it is admitted.
    let rows = [
        (0, 0, 8, true),
        (0, 0, 64, true), // An empty buffer takes a request of any size.
        (1, 0, 64, false),
        (4, 0, 4, true),
        (4, 1, 4, false),
        (0, 1, 64, false),
        (8, 0, 0, false),
        (7, 0, 0, true),
    ];
    for (dirty, admitted, len, expected) in rows {
        let governor = governor();
        observe(&governor, 1000);
        let _held = (admitted > 0).then(|| governor.admit(admitted * MIB).unwrap().unwrap());
        governor.buffered((dirty * MIB) as i64);
        let row = (dirty, admitted, len);
        assert_eq!(governor.may_buffer(len * MIB).unwrap(), expected, "{row:?}");
        assert_eq!(governor.admit(len * MIB).unwrap().is_some(), expected, "{row:?}");
    }
}

#[test]
fn an_admission_gives_back_the_bytes_that_were_not_spent() {
    let governor = governor();
    observe(&governor, 1000);
    let mut admission = governor.admit(8 * MIB).unwrap().unwrap();
    assert!(!governor.may_buffer(MIB).unwrap());
    admission.spend(3 * MIB);
    governor.buffered((3 * MIB) as i64);
    assert!(!governor.may_buffer(MIB).unwrap(), "spent bytes are dirty now");
    drop(admission);
    assert!(governor.may_buffer(5 * MIB).unwrap() && !governor.may_buffer(6 * MIB).unwrap());
}

#[test]
fn an_admission_that_ends_over_empty_buffers_wakes_the_requests_that_wait() {
    // Bytes admitted, bytes spent, bytes that become dirty, whether a request waits, whether it is woken.
    let rows = [
        (MIB, MIB, 0, true, true), // The write failed, for example.
        (MIB, 0, 0, true, true),
        (MIB, MIB, MIB, true, false), // The commit will wake the request.
        (MIB, MIB, 0, false, false),
        (0, 0, 0, true, false),
    ];
    for (admitted, spent, dirty, waits, woken) in rows {
        let governor = governor();
        observe(&governor, 1000);
        let mut admission = governor.admit(admitted).unwrap().unwrap();
        let _waiting = waits.then(|| governor.wait());
        let mut progress = governor.progress.subscribe();
        progress.mark_unchanged();
        admission.spend(spent);
        governor.buffered(dirty as i64);
        drop(admission);
        assert_eq!(progress.has_changed().unwrap(), woken, "{:?}", (admitted, spent, dirty, waits));
        assert!(governor.may_buffer(8 * MIB - dirty).unwrap(), "nothing is left admitted");
    }
}

#[test]
fn the_room_of_the_store_decides_what_is_accepted() {
    // Free MiB; room reported; whether that is a change between full and not full.
    let governor = governor();
    let rows = [
        (1000, Room::Ok, false),
        (120, Room::Low, false),
        (130, Room::Low, false), // Within the slack: no new message at the threshold.
        (20, Room::Full, true),
        (23, Room::Full, false),
        (120, Room::Low, true),
        (500, Room::Ok, false),
    ];
    for (free, room, changed) in rows {
        assert_eq!((observe(&governor, free), governor.room()), (changed, room), "{free} MiB free");
    }
}

#[test]
fn a_store_that_refused_data_is_full_until_it_accepts_some_or_nobody_tries() {
    let governor = governor();
    observe(&governor, 1000);
    governor.refused();
    assert!(governor.is_full());
    assert!(!observe(&governor, 1000), "the same room as when it refused");
    assert!(observe(&governor, 1001), "more room than when it refused");
    governor.refused();
    assert!(
        governor.observe(Capacity { free: 900 * MIB, total: 1024 * MIB }, true, Duration::ZERO),
        "no write waits"
    );
}

#[test]
fn writers_of_a_full_store_wait_while_a_reclaim_may_help_and_then_fail() {
    let governor = governor();
    observe(&governor, 1000);
    observe(&governor, 10);
    assert!(!governor.may_buffer(MIB).unwrap(), "nothing was reclaimed yet");
    assert!(governor.may_buffer(0).unwrap(), "a zeroed range uses the reserve of the buffer");
    // Reclaims that free nothing use up the patience.
    let mut reclaims = 0;
    while governor.reclaim_may_help() {
        governor.begin_reclaim(Duration::from_secs(reclaims)).end(Duration::from_secs(reclaims + 1), true);
        reclaims += 1;
        assert!(reclaims <= u64::from(PATIENCE), "the wait has an end");
    }
    assert!(matches!(governor.may_buffer(MIB), Err(Error::NoSpace)));
    assert!(matches!(governor.admit(MIB), Err(Error::NoSpace)));
    // A deletion is worth the wait for one more.
    governor.reclaim_is_due();
    assert!(!governor.may_buffer(MIB).unwrap());
}

#[test]
fn a_reclaim_that_is_cancelled_is_not_under_way_any_more() {
    let governor = governor();
    let reclaim = governor.begin_reclaim(Duration::ZERO);
    assert!(governor.situation().cleaning);
    drop(reclaim);
    assert!(!governor.situation().cleaning);
}

#[test]
fn changes_before_a_mark_are_not_counted_after_it() {
    let governor = governor();
    governor.wrote(5 * MIB);
    governor.committed_discards(3 * MIB);
    let before = governor.before_mark();
    governor.wrote(MIB);
    governor.committed_discards(2 * MIB);
    governor.mark_begins(&before);
    let situation = governor.situation();
    assert_eq!((situation.written, situation.discarded), (MIB, 2 * MIB));
}

#[test]
fn a_mark_without_a_checkpoint_leaves_the_reclaim_due() {
    let governor = governor();
    governor.reclaim_is_due();
    let before = governor.before_mark();
    assert!(!governor.situation().due);
    governor.mark_failed(&before);
    assert!(governor.situation().due);
}

#[test]
fn writes_are_paced_where_room_is_short() {
    let governor = governor();
    observe(&governor, 1000);
    assert!(!governor.is_pacing());
    assert_eq!(governor.pacing_delay(MIB, Duration::ZERO), Duration::ZERO);
    observe(&governor, 26);
    assert!(governor.is_pacing());
    let first = governor.pacing_delay(MIB, Duration::ZERO);
    let second = governor.pacing_delay(MIB, Duration::ZERO);
    assert_eq!(first, Duration::ZERO, "the first begins at once");
    assert!(second > first && second <= MAX_DELAY, "{second:?}");
    assert_eq!(governor.pacing_delay(0, Duration::ZERO), Duration::ZERO, "zeroed ranges are not delayed");
}
