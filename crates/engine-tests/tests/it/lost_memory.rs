//! The memory that holds answered writes is lost: clients that may have the answers are refused, and only
//! these. Time is tokio's paused clock, so that the load of the machine has no effect.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_engine::{
    Client, CloneRequest, Coalesce, DiskHandle, Error, Fast, OnMemoryLoss, Pool, RemoteAnswers, Result,
    SyncMode,
};
use forebay_store::{FaultyStore, MemoryStore};

use crate::common::machine::Machine;
use crate::common::*;

const BLOCK: usize = 4096;
/// A client of the same host that is older than every loss.
const OLD: Client = Client::Local { started_ms: Some(1) };
const UNKNOWN: Client = Client::Local { started_ms: None };

async fn create(pool: &Pool, name: &str) {
    pool.create_volume(name, 1 << 20, SyncMode::Flush, 0).await.unwrap();
}

/// An empty image of 1 MiB, and a desktop of it.
async fn create_desktop(pool: &Arc<Pool>, image: &str, name: &str) {
    let import = pool.begin_import(image, 1 << 20, 0).await.unwrap();
    pool.finish_import(import).await.unwrap();
    let desktop = CloneRequest { name: name.into(), write_cache: 1 << 20, ..CloneRequest::default() };
    pool.clone_disk(image, &[desktop]).await.unwrap();
}

/// Writes a block that is not flushed.
async fn write(disk: &DiskHandle) {
    disk.write(0, &noise(1, BLOCK), false).await.unwrap();
}

/// Long enough for commits and for marks to be removed.
async fn rest() {
    tokio::time::sleep(Duration::from_secs(6)).await;
}

#[track_caller]
fn refused<T>(found: Result<T>, command: &str) {
    match found.map(drop) {
        Err(e @ Error::MemoryLost { .. }) => assert!(e.to_string().contains(command), "{e}"),
        other => panic!("{other:?}"),
    }
}

/// A pool with the volume `v`, to which this client has just written.
async fn with_write(machine: &Machine, client: Client) -> (Arc<MemoryStore>, Arc<Pool>, Arc<DiskHandle>) {
    let store = Arc::new(MemoryStore::new());
    let pool = machine.open(&store).await;
    create(&pool, "v").await;
    let disk = pool.attach_as("v", client).unwrap();
    write(&disk).await;
    (store, pool, disk)
}

fn remote_in_memory() -> Machine {
    let mut machine = Machine::new();
    machine.config.remote_answers = RemoteAnswers::Memory;
    machine
}

#[tokio::test(start_paused = true)]
async fn the_disk_is_marked_before_the_first_answer() {
    let (machine, store) = (Machine::new(), Arc::new(MemoryStore::new()));
    let pool = machine.open(&store).await;
    create(&pool, "v").await;
    let disk = pool.attach("v").unwrap();
    assert_eq!(disk.try_write(0, &[1; BLOCK]).unwrap(), Fast::Wait, "the mark is a commit");
    disk.write(0, &[1; BLOCK], false).await.unwrap();
    assert_eq!(disk.try_write(0, &[2; BLOCK]).unwrap(), Fast::Done);
    let (machine, store) = machine.lose(&store).await;
    let pool = machine.open(&store).await;
    for client in [UNKNOWN, OLD, Client::Remote] {
        refused(pool.attach_as("v", client), "forebay volume resume v");
        refused(pool.attach_when_reset_as("v", client).await, "forebay volume resume v");
    }
    assert!(pool.disk("v").unwrap().memory_lost);
}

/// Each kind of change, on a disk with a volatile write buffer, one without flushes, and a desktop.
#[tokio::test(start_paused = true)]
async fn every_kind_of_change_marks() {
    for kind in 0..6 {
        let (machine, store) = (Machine::new(), Arc::new(MemoryStore::new()));
        let pool = machine.open(&store).await;
        create(&pool, "flush").await;
        create(&pool, "source").await;
        pool.create_volume("never", 1 << 20, SyncMode::Never, 0).await.unwrap();
        create_desktop(&pool, "golden", "desk").await;
        let source = pool.attach("source").unwrap();
        source.write(0, &noise(7, 2 * BLOCK), true).await.unwrap();
        for name in ["flush", "never", "desk"] {
            let disk = pool.attach(name).unwrap();
            // On a disk without durable flushes, forced unit access is not durable either.
            let fua = name != "flush";
            match kind {
                0 => disk.write(0, &[1; BLOCK], fua).await.unwrap(),
                1 => disk.write(100, &[1; 77], fua).await.unwrap(),
                2 => disk.write_zeroes(0, 1 << 16, true, fua).await.unwrap(),
                3 => disk.discard(0, 1 << 16, fua).await.unwrap(),
                4 => {
                    let put = |bytes: &mut [u8]| {
                        bytes.fill(3);
                        ControlFlow::<()>::Continue(())
                    };
                    assert!(disk.update(0, 512, fua, put).await.unwrap().is_continue());
                }
                _ => {
                    disk.copy_from(0, &source, 0, BLOCK as u64).await.unwrap();
                    disk.copy_from(BLOCK as u64, &source, 100, 1000).await.unwrap();
                }
            }
        }
        let (machine, store) = machine.lose(&store).await;
        let pool = machine.open(&store).await;
        // A copy to a disk with durable flushes is durable.
        match kind {
            5 => drop(pool.attach("flush").unwrap()),
            _ => refused(pool.attach("flush"), "resume flush"),
        }
        refused(pool.attach("never"), "resume never");
        refused(pool.attach("desk"), "reset desk");
    }
}

#[tokio::test(start_paused = true)]
async fn durable_answers_do_not_mark() {
    for coalesce in [Coalesce::Adaptive, Coalesce::Off] {
        let (mut machine, store) = (Machine::new(), Arc::new(MemoryStore::new()));
        machine.config.coalesce = coalesce;
        let pool = machine.open(&store).await;
        pool.create_volume("always", 1 << 20, SyncMode::Always, 0).await.unwrap();
        for name in ["fua", "remote", "read"] {
            create(&pool, name).await;
        }
        let disk = pool.attach_as("remote", Client::Remote).unwrap();
        assert!(disk.write_through(), "the default over the network");
        assert_eq!(disk.try_write(0, &[1; BLOCK]).unwrap(), Fast::Wait);
        disk.write(0, &noise(1, BLOCK), false).await.unwrap();
        disk.write(BLOCK as u64 + 5, &[7; 77], false).await.unwrap();
        disk.write_zeroes(1 << 16, BLOCK as u64, true, false).await.unwrap();
        disk.discard(1 << 17, BLOCK as u64, false).await.unwrap();
        pool.attach("always").unwrap().write(0, &noise(2, BLOCK), false).await.unwrap();
        pool.attach("fua").unwrap().write(0, &noise(3, BLOCK), true).await.unwrap();
        let reader = pool.attach("read").unwrap();
        assert_eq!(read(&reader, 0, BLOCK).await, [0; BLOCK]);
        reader.flush().await.unwrap();
        pool.create_snapshot("read", "s").await.unwrap();
        assert!(pool.attach("read@s").unwrap().write(0, &[1; 512], false).await.is_err());
        if coalesce == Coalesce::Off {
            write(&pool.attach("read").unwrap()).await;
            pool.create_volume("never", 1 << 20, SyncMode::Never, 0).await.unwrap();
            pool.attach("never").unwrap().copy_from(0, &disk, 100, BLOCK as u64).await.unwrap();
        }
        let (machine, store) = machine.lose(&store).await;
        let pool = machine.open(&store).await;
        for (number, name) in [(1, "remote"), (2, "always"), (3, "fua")] {
            for client in [UNKNOWN, Client::Remote] {
                let disk = pool.attach_as(name, client).unwrap();
                assert!(read(&disk, 0, BLOCK).await == noise(number, BLOCK), "{name}");
            }
        }
        assert_eq!(read(&pool.attach("remote").unwrap(), BLOCK as u64 + 5, 77).await, [7; 77]);
        drop(pool.attach("read").unwrap());
        if coalesce == Coalesce::Off {
            let copied = read(&pool.attach("never").unwrap(), 0, 512).await;
            assert!(copied == noise(1, BLOCK)[100..612], "a copy is as durable as a write");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn marks_are_removed_from_idle_disks_and_made_again() {
    let machine = Machine::new();
    let (store, _pool, disk) = with_write(&machine, UNKNOWN).await;
    rest().await;
    {
        let (machine, store) = machine.lose(&store).await;
        let pool = machine.open(&store).await;
        assert!(read(&pool.attach("v").unwrap(), 0, BLOCK).await == noise(1, BLOCK));
    }
    assert_eq!(disk.try_write(0, &[2; BLOCK]).unwrap(), Fast::Wait, "the mark was removed");
    disk.write(0, &[2; BLOCK], false).await.unwrap();
    {
        let (machine, store) = machine.lose(&store).await;
        refused(machine.open(&store).await.attach("v"), "resume v");
    }
    // A client that writes again and again keeps the mark.
    for n in 0..20 {
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert_eq!(disk.try_write(0, &[n; BLOCK]).unwrap(), Fast::Done);
    }
    let (machine, store) = machine.lose(&store).await;
    refused(machine.open(&store).await.attach("v"), "resume v");
}

#[tokio::test(start_paused = true)]
async fn a_desktop_keeps_its_mark_until_it_is_reset_or_persistent() {
    let (machine, store) = (Machine::new(), Arc::new(MemoryStore::new()));
    let pool = machine.open(&store).await;
    for (image, name) in [("a", "reset"), ("b", "persistent"), ("c", "desk")] {
        create_desktop(&pool, image, name).await;
        write(&pool.attach(name).unwrap()).await;
    }
    pool.reset("reset").await.unwrap();
    pool.persist("persistent", SyncMode::Flush).await.unwrap();
    rest().await;
    let (machine, store) = machine.lose(&store).await;
    let pool = machine.open(&store).await;
    assert_eq!(read(&pool.attach("reset").unwrap(), 0, BLOCK).await, [0; BLOCK]);
    assert!(read(&pool.attach("persistent").unwrap(), 0, BLOCK).await == noise(1, BLOCK));
    // Although its contents are those of its image again.
    refused(pool.attach("desk"), "forebay volume reset desk");
    pool.reset("desk").await.unwrap();
    assert_eq!(read(&pool.attach("desk").unwrap(), 0, BLOCK).await, [0; BLOCK]);
}

#[tokio::test(start_paused = true)]
async fn desktops_with_clients_are_marked_in_one_commit() {
    let machine = Machine::new();
    let store = Arc::new(MemoryStore::new());
    let pool = machine.open(&store).await;
    for (image, name) in [("a", "one"), ("b", "two"), ("c", "unused")] {
        create_desktop(&pool, image, name).await;
    }
    let (one, two) = (pool.attach("one").unwrap(), pool.attach("two").unwrap());
    let commits = pool.stats().await.commits;
    write(&one).await;
    assert_eq!(two.try_write(0, &[2; BLOCK]).unwrap(), Fast::Done, "it is marked");
    assert_eq!(pool.stats().await.commits, commits + 1);
    let (machine, store) = machine.lose(&store).await;
    let pool = machine.open(&store).await;
    refused(pool.attach("one"), "forebay volume reset one");
    refused(pool.attach("two"), "forebay volume reset two");
    drop(pool.attach("unused").unwrap());
}

#[tokio::test(start_paused = true)]
async fn closing_removes_marks() {
    let machine = remote_in_memory();
    let (store, pool, disk) = with_write(&machine, Client::Remote).await;
    pool.close().await.unwrap();
    drop(disk);
    let (machine, store) = machine.lose(&store).await;
    let pool = machine.open(&store).await;
    assert!(read(&pool.attach_as("v", Client::Remote).unwrap(), 0, BLOCK).await == noise(1, BLOCK));
}

#[tokio::test(start_paused = true)]
async fn memory_that_is_kept_refuses_no_client() {
    let machine = remote_in_memory();
    let (store, _pool, _disk) = with_write(&machine, Client::Remote).await;
    let (machine, store) = machine.kill(&store).await;
    let pool = machine.open(&store).await;
    assert!(read(&pool.attach_as("v", Client::Remote).unwrap(), 0, BLOCK).await == noise(1, BLOCK));
    // The mark is still there: this memory holds the write.
    let (machine, store) = machine.lose(&store).await;
    refused(machine.open(&store).await.attach("v"), "resume v");
}

#[tokio::test(start_paused = true)]
async fn local_clients_die_with_the_host_and_remote_ones_do_not() {
    let machine = remote_in_memory();
    let (store, pool, _disk) = with_write(&machine, UNKNOWN).await;
    create(&pool, "both").await;
    write(&pool.attach("both").unwrap()).await;
    write(&pool.attach_as("both", Client::Remote).unwrap()).await;
    let (machine, store) = machine.reboot(&store).await;
    let pool = machine.open(&store).await;
    drop(pool.attach("v").unwrap());
    drop(pool.attach_as("v", Client::Remote).unwrap());
    refused(pool.attach_as("both", Client::Remote), "resume both");
    refused(pool.attach("both"), "resume both");
    // Every client whose start is known has started since.
    drop(pool.attach_as("both", OLD).unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_loss_of_local_clients_ends_with_the_boot() {
    let machine = remote_in_memory();
    let (store, pool, _disk) = with_write(&machine, UNKNOWN).await;
    create(&pool, "remote").await;
    write(&pool.attach_as("remote", Client::Remote).unwrap()).await;
    let (machine, store) = machine.lose(&store).await;
    let pool = machine.open(&store).await;
    refused(pool.attach("v"), "resume v");
    refused(pool.attach("remote"), "resume remote");
    let (machine, store) = machine.reboot(&store).await;
    let pool = machine.open(&store).await;
    drop(pool.attach_as("v", Client::Remote).unwrap());
    refused(pool.attach_as("remote", Client::Remote), "resume remote");
}

#[tokio::test(start_paused = true)]
async fn a_local_client_that_started_after_the_loss_is_admitted() {
    let machine = Machine::new();
    let (store, _pool, _disk) = with_write(&machine, OLD).await;
    machine.boot_ms.store(5000, Relaxed);
    let (machine, store) = machine.lose(&store).await;
    let pool = machine.open(&store).await;
    let started = |ms| Client::Local { started_ms: Some(ms) };
    refused(pool.attach_as("v", started(5000)), "resume v");
    let newer = pool.attach_as("v", started(5001)).unwrap();
    write(&newer).await;
    // The loss of its writes concerns it too, also if the first loss was not resolved.
    machine.boot_ms.store(7000, Relaxed);
    let (machine, store) = machine.lose(&store).await;
    let pool = machine.open(&store).await;
    refused(pool.attach_as("v", started(5001)), "resume v");
    drop(pool.attach_as("v", started(7001)).unwrap());
    // A kill alone changes nothing.
    machine.boot_ms.store(9000, Relaxed);
    let (machine, store) = machine.kill(&store).await;
    drop(machine.open(&store).await.attach_as("v", started(7001)).unwrap());
}

/// The server removes memory that is empty when it stops. The next opening does not take that for a loss.
#[tokio::test(start_paused = true)]
async fn a_clean_restart_after_a_loss_admits_the_clients_that_were_admitted_before_it() {
    let machine = Machine::new();
    let (store, _pool, _disk) = with_write(&machine, OLD).await;
    machine.boot_ms.store(5000, Relaxed);
    let (machine, store) = machine.lose(&store).await;
    let pool = machine.open(&store).await;
    let newer = Client::Local { started_ms: Some(5001) };
    let disk = pool.attach_as("v", newer).unwrap();
    write(&disk).await;
    drop(disk);
    pool.close().await.unwrap();
    assert!(!pool.retains());
    machine.boot_ms.store(7000, Relaxed);
    let (machine, store) = machine.lose(&store).await;
    let pool = machine.open(&store).await;
    drop(pool.attach_as("v", newer).unwrap());
    refused(pool.attach_as("v", OLD), "resume v");
}

/// The loss itself is not recorded where the store has no room: the next opening has to find it again.
#[tokio::test(start_paused = true)]
async fn a_clean_stop_does_not_forget_a_loss_that_is_not_recorded() {
    let machine = Machine::new();
    let store = FaultyStore::new(1);
    let pool = machine.open(&store).await;
    create(&pool, "v").await;
    write(&pool.attach_as("v", UNKNOWN).unwrap()).await;
    store.crash(forebay_store::Crash::Kill);
    let (store, mut machine) = (store.reopen(), machine);
    machine.lose_memory();
    machine.seed += 1;
    store.set_capacity(0);
    let pool = machine.open(&store).await;
    refused(pool.attach("v"), "resume v");
    // Whether a stop without room succeeds does not matter here.
    let _ = pool.close().await;
    store.crash(forebay_store::Crash::Kill);
    let store = store.reopen();
    store.set_capacity(1 << 40);
    machine.lose_memory();
    machine.seed += 1;
    refused(machine.open(&store).await.attach("v"), "resume v");
}

/// The loss itself is not recorded where the store has no room. When there is room again, each remedy is
/// accepted at once, and recording the loss does not undo it.
#[tokio::test(start_paused = true)]
async fn a_loss_that_is_recorded_late_does_not_undo_its_remedy() {
    let disks = ["resumed", "rolled", "desk"];
    for (first, pause_ms) in [0, 1, 2].into_iter().flat_map(|first| [(first, 0), (first, 150)]) {
        let (mut machine, store) = (Machine::new(), FaultyStore::new(1));
        let pool = machine.open(&store).await;
        for name in ["resumed", "rolled"] {
            create(&pool, name).await;
        }
        pool.create_snapshot("rolled", "s").await.unwrap();
        create_desktop(&pool, "golden", "desk").await;
        for name in disks {
            write(&pool.attach_as(name, UNKNOWN).unwrap()).await;
        }
        store.crash(forebay_store::Crash::Kill);
        let store = store.reopen();
        machine.lose_memory();
        machine.seed += 1;
        store.set_capacity(0);
        let pool = machine.open(&store).await;
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        refused(pool.attach("resumed"), "resume resumed");
        assert!(matches!(pool.resume("resumed").await, Err(Error::NoSpace)), "the store is full");
        store.set_capacity(1 << 40);
        for name in disks.into_iter().cycle().skip(first).take(disks.len()) {
            match name {
                "resumed" => pool.resume(name).await.map(drop),
                "rolled" => pool.rollback(name, "s").await,
                _ => pool.reset(name).await,
            }
            .unwrap();
        }
        rest().await;
        for name in disks {
            drop(pool.attach_as(name, UNKNOWN).unwrap());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn resume_rollback_and_removal_end_a_loss() {
    let (machine, store) = (remote_in_memory(), Arc::new(MemoryStore::new()));
    let pool = machine.open(&store).await;
    for name in ["resumed", "used", "rolled", "removed"] {
        create(&pool, name).await;
        pool.create_snapshot(name, "s").await.unwrap();
        write(&pool.attach_as(name, Client::Remote).unwrap()).await;
    }
    let (machine, store) = machine.lose(&store).await;
    let pool = machine.open(&store).await;
    let newer = pool.attach_as("used", Client::Local { started_ms: Some(5000) }).unwrap();
    write(&newer).await;
    for name in ["resumed", "used"] {
        assert!(!pool.resume(name).await.unwrap().memory_lost);
    }
    pool.rollback("rolled", "s").await.unwrap();
    pool.delete("removed@s").await.unwrap();
    pool.delete("removed").await.unwrap();
    for name in ["resumed", "used", "rolled"] {
        drop(pool.attach_as(name, Client::Remote).unwrap());
        // Without effect on a disk that lost nothing.
        pool.resume(name).await.unwrap();
    }
    assert!(matches!(pool.resume("removed").await, Err(Error::NotFound(_))));
    assert!(matches!(pool.resume("rolled@s").await, Err(Error::WrongKind { .. })));
    let (machine, store) = machine.lose(&store).await;
    let pool = machine.open(&store).await;
    drop(pool.attach("resumed").unwrap());
    drop(pool.attach("rolled").unwrap());
    // Its client had an answer that was not durable when the disk was resumed.
    refused(pool.attach("used"), "resume used");
}

#[tokio::test(start_paused = true)]
async fn a_resumed_disk_with_clients_is_unmarked_when_it_is_idle() {
    let machine = Machine::new();
    let (store, _pool, _disk) = with_write(&machine, UNKNOWN).await;
    let (machine, store) = machine.lose(&store).await;
    let pool = machine.open(&store).await;
    let newer = pool.attach_as("v", Client::Local { started_ms: Some(5000) }).unwrap();
    write(&newer).await;
    pool.resume("v").await.unwrap();
    rest().await;
    let (machine, store) = machine.lose(&store).await;
    drop(machine.open(&store).await.attach("v").unwrap());
}

#[tokio::test(start_paused = true)]
async fn an_accepted_loss_refuses_no_client() {
    let machine = remote_in_memory();
    let (store, _pool, _disk) = with_write(&machine, Client::Remote).await;
    let (mut machine, store) = machine.lose(&store).await;
    {
        let (machine, store) = machine.lose(&store).await;
        refused(machine.open(&store).await.attach("v"), "resume v");
    }
    machine.config.on_memory_loss = OnMemoryLoss::Accept;
    let pool = machine.open(&store).await;
    drop(pool.attach_as("v", Client::Remote).unwrap());
    assert!(!pool.disk("v").unwrap().memory_lost);
}

/// A front end that shows the disk to a refused client.
#[tokio::test(start_paused = true)]
async fn a_visible_disk_fails_requests_until_it_is_resumed() {
    let machine = remote_in_memory();
    let (store, _pool, _disk) = with_write(&machine, Client::Remote).await;
    let (machine, store) = machine.lose(&store).await;
    let pool = machine.open(&store).await;
    let disk = pool.attach_visible("v", Client::Remote).unwrap();
    let other = pool.attach_visible("v", Client::Remote).unwrap();
    assert_eq!(disk.size(), 1 << 20);
    let mut block = [0; BLOCK];
    refused(disk.check_ready(), "resume v");
    refused(disk.try_read(0, &mut block), "resume v");
    refused(disk.read(0, &mut block).await, "resume v");
    refused(disk.try_write(0, &block), "resume v");
    refused(disk.write(0, &block, true).await, "resume v");
    refused(disk.write_zeroes(0, 4096, false, true).await, "resume v");
    refused(disk.discard(0, 4096, true).await, "resume v");
    refused(disk.extents(0, 4096, 1).await, "resume v");
    refused(disk.zeroes(0, 4096), "resume v");
    refused(disk.update(0, 512, true, |_| ControlFlow::<()>::Continue(())).await, "resume v");
    refused(disk.prefetch(0, 4096).await, "resume v");
    refused(other.copy_from(0, &disk, 8192, 4096).await, "resume v");
    create(&pool, "w").await;
    let w = pool.attach("w").unwrap();
    refused(w.copy_from(0, &disk, 0, 4096).await, "resume v");
    pool.resume("v").await.unwrap();
    disk.check_ready().unwrap();
    write(&disk).await;
    w.copy_from(0, &disk, 0, 4096).await.unwrap();
    assert!(read(&other, 0, BLOCK).await == noise(1, BLOCK));
}

/// A store without room for the marks: nothing is answered that is not durable, and the pool opens.
#[tokio::test(start_paused = true)]
async fn without_room_for_a_mark_nothing_is_answered() {
    let (machine, store) = (Machine::new(), FaultyStore::new(1));
    let pool = machine.open(&store).await;
    create_desktop(&pool, "golden", "desk").await;
    let desk = pool.attach("desk").unwrap();
    store.set_capacity(0);
    let full = desk.write(0, &[1; BLOCK], false).await;
    assert!(matches!(full, Err(Error::NoSpace)), "{full:?}");
    store.set_capacity(1 << 40);
    desk.write(0, &[1; BLOCK], false).await.unwrap();
}
