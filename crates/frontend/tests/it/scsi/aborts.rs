//! A request to abort commands of another nexus is answered after the last of them has made its changes.

use std::sync::Arc;
use std::time::Duration;

use forebay_frontend::scsi::Nexus;
use forebay_wire::scsi::Status;

use super::support::*;

/// Key of a registration.
const KEY: u64 = 1;

/// PERSISTENT RESERVE OUT.
async fn reserve_out(nexus: &Nexus, action: u8, key: u64, action_key: u64) {
    let list = [key.to_be_bytes(), action_key.to_be_bytes(), [0; 8]].concat();
    let admitted = nexus.admit(&[0x5f, action, 1, 0, 0, 0, 0, 0, 24, 0]).ok().unwrap();
    assert_eq!(nexus.perform(&admitted.request, &list).await.status, Status::Good);
}

/// The ways to abort the commands of another host.
async fn abort(way: usize, nexus: Arc<Nexus>) {
    match way {
        0 => nexus.reset().await,
        1 => nexus.clear_task_set().await,
        _ => reserve_out(&nexus, 5, 2 * KEY, KEY).await,
    }
}

#[test]
fn an_abort_waits_for_commands_that_change_the_unit() {
    for way in 0..3 {
        let world = World::new();
        let (one, two) = (world.session(1), world.session(2));
        let (a, b) = (one.on(0).nexus, two.on(0).nexus);
        world.runtime.block_on(async {
            reserve_out(&a, 0, 0, KEY).await;
            reserve_out(&b, 0, 0, 2 * KEY).await;
        });
        let write_block = blocks(0x8a, 0, 0, 1);
        let write = a.admit(&write_block).ok().unwrap();
        let read = a.admit(&blocks(0x88, 0, 0, 1)).ok().unwrap();
        let aborting = world.runtime.spawn(abort(way, b));
        while one.aborted().is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(!aborting.is_finished(), "way {way}: a write is under way");
        // The abort waits neither for later commands nor for reads.
        assert!(a.admit(&TEST_UNIT_READY).is_err(), "a unit attention is pending");
        let later = a.admit(&write_block).ok().unwrap();
        assert!(a.has_aborted(write.arrival) && a.has_aborted(read.arrival), "way {way}");
        assert!(!a.has_aborted(later.arrival), "way {way}: a later command would get no response");
        drop(write);
        world.runtime.block_on(aborting).unwrap();
        drop((read, later));
    }
}
