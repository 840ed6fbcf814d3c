//! Tests the governor without a pool, by tables: admission, observations of the store, and reclaims.

use std::sync::Arc;
use std::time::Duration;

use forebay_store::Capacity;

use super::super::policy::PATIENCE;
use super::*;
use crate::Room;
use crate::pacing::GroupBytes;

const MIB: u64 = 1 << 20;
const SEGMENT: u64 = 4 * MIB;

fn governor() -> SpaceGovernor {
    let config = PoolConfig { write_buffer: 8 * MIB, ..PoolConfig::default() };
    SpaceGovernor::new(&config, SEGMENT, Arc::new(AtomicU64::new(0)), Arc::default(), Arc::default())
}

/// A store of 1 GiB. The reserve is 24 MiB: two segments and two write buffers.
fn observe(governor: &SpaceGovernor, free_mib: u64) -> bool {
    governor.observe(Capacity::new(1024 * MIB, free_mib * MIB), false, Duration::ZERO)
}

fn flow(id: u64) -> Arc<Flow> {
    Arc::new(Flow::new(id))
}

#[test]
fn a_request_fits_next_to_dirty_and_admitted_bytes() {
    // Dirty MiB, admitted MiB, both of another disk; the request's MiB (0: a zeroed range); whether it is
    // admitted: of a disk that has nothing in the buffers, and of the other disk. An eighth is left free for
    // the former.
    let rows = [
        (0, 0, 8, true, true),
        (0, 0, 64, true, true), // An empty buffer takes a request of any size.
        (1, 0, 64, false, false),
        (4, 0, 4, true, false),
        (4, 0, 3, true, true),
        (4, 1, 4, false, false),
        (0, 1, 64, false, false),
        (8, 0, 0, false, false),
        (7, 0, 0, true, false),
        (7, 0, 1, true, false),
        (6, 0, 0, true, true),
    ];
    for (dirty, admitted, len, first, further) in rows {
        let governor = governor();
        observe(&governor, 1000);
        let (own, other) = (flow(1), flow(2));
        let _held = (admitted > 0).then(|| governor.admit(&other, admitted * MIB).unwrap().unwrap());
        governor.buffered(&other, (dirty * MIB) as i64);
        let row = (dirty, admitted, len);
        for (flow, expected) in [(&own, first), (&other, further)] {
            assert_eq!(
                governor.may_buffer(flow, len * MIB).unwrap(),
                expected,
                "{row:?}, disk {}",
                flow.id()
            );
            assert_eq!(governor.admit(flow, len * MIB).unwrap().is_some(), expected, "{row:?}");
        }
    }
}

#[test]
fn an_admission_gives_back_the_bytes_that_were_not_spent() {
    let governor = governor();
    observe(&governor, 1000);
    let flow = flow(1);
    let mut admission = governor.admit(&flow, 8 * MIB).unwrap().unwrap();
    assert!(!governor.may_buffer(&flow, MIB).unwrap());
    admission.spend(3 * MIB);
    governor.buffered(&flow, (3 * MIB) as i64);
    assert!(!governor.may_buffer(&flow, MIB).unwrap(), "spent bytes are dirty now");
    drop(admission);
    assert!(governor.may_buffer(&flow, 4 * MIB).unwrap() && !governor.may_buffer(&flow, 5 * MIB).unwrap());
}

/// Whether a queued request is admitted now.
fn is_admitted<'a>(queued: &mut std::pin::Pin<Box<impl Future<Output = Result<Admission<'a>>>>>) -> bool {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    queued.as_mut().poll(&mut cx).is_ready()
}

#[test]
fn bytes_that_are_given_back_admit_the_requests_that_wait() {
    // Bytes admitted, bytes spent, bytes that become dirty, whether a waiting request is admitted.
    let rows = [
        (8 * MIB, 8 * MIB, 0, true), // The write failed, for example.
        (8 * MIB, 0, 0, true),
        (8 * MIB, 8 * MIB, 8 * MIB, false), // The commit will admit it.
    ];
    for (admitted, spent, dirty, expected) in rows {
        let governor = governor();
        observe(&governor, 1000);
        let (own, other) = (flow(1), flow(2));
        let mut admission = governor.admit(&other, admitted).unwrap().unwrap();
        let mut queued = Box::pin(governor.enqueue(&own, MIB).unwrap().admitted());
        assert!(!is_admitted(&mut queued) && governor.has_waiting());
        admission.spend(spent);
        governor.buffered(&other, dirty as i64);
        drop(admission);
        assert_eq!(is_admitted(&mut queued), expected, "{:?}", (admitted, spent, dirty));
        governor.buffered(&other, -(dirty as i64));
        drop(queued);
        assert!(!governor.has_waiting());
        assert!(governor.may_buffer(&other, 8 * MIB).unwrap(), "nothing is left admitted");
    }
}

#[test]
fn requests_that_wait_are_refused_when_no_room_is_expected_or_the_pool_stops() {
    let governor = governor();
    observe(&governor, 1000);
    let (own, other) = (flow(1), flow(2));
    governor.buffered(&other, (8 * MIB) as i64);
    let mut queued = Box::pin(governor.enqueue(&own, MIB).unwrap().admitted());
    observe(&governor, 10);
    assert!(!is_admitted(&mut queued), "a reclaim may help");
    for _ in 0..PATIENCE {
        governor.begin_reclaim(Duration::ZERO).end(Duration::ZERO, true);
    }
    let refused = poll_once(&mut queued);
    assert!(matches!(refused, std::task::Poll::Ready(Err(Error::NoSpace))));
    observe(&governor, 1000);
    let mut queued = Box::pin(governor.enqueue(&own, MIB).unwrap().admitted());
    governor.refuse_waiting();
    assert!(matches!(poll_once(&mut queued), std::task::Poll::Ready(Err(Error::Closed))));
    assert!(matches!(governor.enqueue(&own, MIB), Err(Error::Closed)));
}

fn poll_once<F: Future>(future: &mut std::pin::Pin<Box<F>>) -> std::task::Poll<F::Output> {
    future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}

/// Records a commit of `bytes` that took `took`, and has ended now.
fn record_group(governor: &SpaceGovernor, bytes: u64, took: Duration) {
    governor.pacing.record_group(&GroupBytes { buffered: bytes, logged: bytes }, took, took, false);
}

#[test]
fn a_flush_of_another_disk_bounds_the_buffers() {
    let governor = governor();
    observe(&governor, 1000);
    let (own, other) = (flow(1), flow(2));
    let ms = Duration::from_millis(1);
    record_group(&governor, 4 * MIB, 8 * ms);
    governor.buffered(&own, (2 * MIB) as i64);
    assert!(governor.may_buffer(&own, MIB).unwrap());
    governor.pacing.record_flush(other.id(), 9 * ms);
    assert!(!governor.may_buffer(&own, MIB).unwrap());
    assert!(governor.may_buffer(&other, MIB).unwrap());
    assert!(!governor.may_buffer(&flow(3), MIB).unwrap(), "it is admitted in pieces");
    // The bound is 512 KiB.
    governor.buffered(&own, -(2 * MIB as i64) + (400 << 10));
    assert!(!governor.may_buffer(&own, 64 << 10).unwrap());
    assert!(governor.may_buffer(&flow(3), 128 << 10).unwrap(), "it has nothing in the buffers");
    governor.buffered(&other, 7 * MIB as i64);
    assert!(governor.may_buffer(&flow(3), 4096).unwrap(), "the disk that flushes may buffer much");
}

#[test]
fn the_room_of_the_store_decides_what_is_accepted() {
    // Columns: free MiB; room reported; whether that is a change between full and not full.
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
        assert_eq!((observe(&governor, free), governor.store.state()), (changed, room), "{free} MiB free");
    }
}

#[test]
fn a_store_that_refused_data_is_full_until_it_accepts_some_or_nobody_tries() {
    let governor = governor();
    observe(&governor, 1000);
    governor.refused();
    assert!(governor.store.is_full());
    assert!(!observe(&governor, 1000), "the same room as when it refused");
    assert!(observe(&governor, 1001), "more room than when it refused");
    governor.refused();
    assert!(governor.observe(Capacity::new(1024 * MIB, 900 * MIB), true, Duration::ZERO), "no write waits");
}

#[test]
fn writers_of_a_full_store_wait_while_a_reclaim_may_help_and_then_fail() {
    let governor = governor();
    observe(&governor, 1000);
    observe(&governor, 10);
    let flow = &flow(1);
    assert!(!governor.may_buffer(flow, MIB).unwrap(), "nothing was reclaimed yet");
    assert!(governor.may_buffer(flow, 0).unwrap(), "a zeroed range uses the reserve of the buffer");
    // Reclaims that free nothing use up the patience.
    let mut reclaims = 0;
    while governor.reclaim_may_help() {
        governor.begin_reclaim(Duration::from_secs(reclaims)).end(Duration::from_secs(reclaims + 1), true);
        reclaims += 1;
        assert!(reclaims <= u64::from(PATIENCE), "the wait has an end");
    }
    assert!(matches!(governor.may_buffer(flow, MIB), Err(Error::NoSpace)));
    assert!(matches!(governor.admit(flow, MIB), Err(Error::NoSpace)));
    // After a deletion, one more reclaim is worth the wait.
    governor.reclaim_is_due();
    assert!(!governor.may_buffer(flow, MIB).unwrap());
}

/// A zeroed range frees room, so on a full store it must not wait behind requests that wait for room.
#[test]
fn a_discard_on_a_full_store_does_not_wait_for_its_share() {
    let governor = governor();
    observe(&governor, 1000);
    let (large, small) = (&flow(1), &flow(2));
    governor.buffered(large, 7 * MIB as i64);
    governor.buffered(small, MIB as i64);
    governor.refused();
    assert!(governor.store.is_full());
    assert!(governor.admit(large, 0).unwrap().is_some());
    assert!(matches!(governor.admit(large, MIB), Ok(None) | Err(Error::NoSpace)));
}

/// Without this rule, writers of little data would wait for the end of a commit whenever they have reached
/// the bound.
#[test]
fn a_commit_begins_when_half_of_what_may_be_buffered_is_used() {
    const MS: Duration = Duration::from_millis(1);
    let governor = governor();
    observe(&governor, 1000);
    let (own, other) = (&flow(1), &flow(2));
    let half = |flow: &Flow, bytes: u64| {
        let begins_at_half = !governor.buffered(flow, bytes as i64 / 2 - 1) && governor.buffered(flow, 1);
        let once = !governor.buffered(flow, bytes as i64 / 2);
        governor.buffered(flow, -(bytes as i64));
        begins_at_half && once
    };
    assert!(half(own, 8 * MIB) && half(other, 8 * MIB));
    // A store that takes 4 ms and 1 ms for each further 256 KiB: its bound is 2 MiB.
    for _ in 0..40 {
        record_group(&governor, 4096, 4 * MS);
        record_group(&governor, 8 * MIB, 36 * MS);
    }
    governor.pacing.record_flush(own.id(), MS);
    let bound = governor.pacing.buffer_bound(other.id()) / 2 * 2;
    assert!((MIB..3 * MIB).contains(&bound), "{bound}");
    assert!(half(other, bound), "next to the flushes of another disk");
    assert!(half(own, 8 * MIB), "its own flushes do not bound its data");
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
    assert!(second > first && second <= Duration::from_secs(1), "{second:?}");
    assert_eq!(governor.pacing_delay(0, Duration::ZERO), Duration::ZERO, "zeroed ranges are not delayed");
}
