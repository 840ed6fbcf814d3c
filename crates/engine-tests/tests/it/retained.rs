//! Acknowledged writes survive the end of the process, in memory that outlives it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{CloneRequest, Error, Pool};
use forebay_retained::{BlockRecord, HeapMemory, Identity, RangeRecord, Retained};
use forebay_store::{Crash, Fault, FaultyOp, FaultyStore, MemoryStore, When};

use crate::common::machine::Machine;
use crate::common::*;

const BLOCK: usize = 4096;
const MIB: usize = 1 << 20;

async fn create(pool: &Pool, name: &str) {
    pool.create_volume(name, 16 << 20, forebay_engine::SyncMode::Flush, 0).await.unwrap();
}

/// An image of noise, and two desktops of it. The first is reset at disconnect.
async fn create_desktops(pool: &Arc<Pool>) {
    let image = pool.begin_import("golden", 8 << 20, 0).await.unwrap();
    image.write(0, &noise(1, 2 * MIB), false).await.unwrap();
    pool.finish_import(image).await.unwrap();
    let desktop = |name: &str, reset_at_disconnect| CloneRequest {
        name: name.into(),
        write_cache: 1 << 20,
        reset_at_disconnect,
        ..CloneRequest::default()
    };
    pool.clone_disk("golden", &[desktop("pc", true), desktop("other", false)]).await.unwrap();
}

#[tokio::test]
async fn acknowledged_writes_zeroes_and_discards_survive_a_kill() {
    let (machine, store) = (Machine::new(), Arc::new(MemoryStore::new()));
    let pool = machine.open(&store).await;
    create(&pool, "v").await;
    let disk = pool.attach("v").unwrap();
    disk.write(0, &noise(1, MIB), false).await.unwrap();
    disk.flush().await.unwrap();
    // From here on, nothing is flushed.
    disk.write(0, &noise(2, 5 * BLOCK), false).await.unwrap();
    disk.write(3 * BLOCK as u64 + 512, &noise(3, 1024), false).await.unwrap();
    disk.write(100 * BLOCK as u64 + 100, &noise(4, 5000), false).await.unwrap();
    disk.write_zeroes(10 * BLOCK as u64, 4 * BLOCK as u64, true, false).await.unwrap();
    disk.discard(20 * BLOCK as u64, 4 * BLOCK as u64, false).await.unwrap();
    disk.write(21 * BLOCK as u64, &noise(5, 512), false).await.unwrap();
    let expected = read(&disk, 0, MIB).await;
    let (mut machine, mut store) = machine.kill(&store).await;
    // Also if the next processes are killed as well, before and after they have committed.
    for flushed in [false, false, true] {
        let pool = machine.open(&store).await;
        let disk = pool.attach("v").unwrap();
        assert!(read(&disk, 0, MIB).await == expected, "flushed: {flushed}");
        if flushed {
            disk.flush().await.unwrap();
        }
        (machine, store) = machine.kill(&store).await;
    }
    let pool = machine.open(&store).await;
    assert!(read(&pool.attach("v").unwrap(), 0, MIB).await == expected);
    pool.close().await.unwrap();
    assert!(!pool.retains(), "everything is durable");
}

#[tokio::test]
async fn memory_from_before_another_opening_is_not_used() {
    let (machine, store) = (Machine::new(), Arc::new(MemoryStore::new()));
    let pool = machine.open(&store).await;
    create(&pool, "v").await;
    let disk = pool.attach("v").unwrap();
    disk.write(0, &noise(1, BLOCK), false).await.unwrap();
    let (machine, store) = machine.kill(&store).await;
    // Another machine opens the pool, and writes.
    let other = Machine { seed: 77, boot: 2, ..Machine::new() };
    let pool = other.open(&store).await;
    let disk = pool.attach("v").unwrap();
    disk.write(BLOCK as u64, &noise(2, BLOCK), false).await.unwrap();
    disk.flush().await.unwrap();
    let (_, store) = other.kill(&store).await;
    let pool = machine.open(&store).await;
    let out = read(&pool.attach("v").unwrap(), 0, 2 * BLOCK).await;
    assert!(out[..BLOCK].iter().all(|b| *b == 0), "stale memory was used");
    assert!(out[BLOCK..] == noise(2, BLOCK)[..]);
}

/// The store is replaced by an older copy: the log lacks what the memory gave up for it.
#[tokio::test]
async fn memory_is_not_used_with_an_older_copy_of_the_log() {
    let (machine, store) = (Machine::new(), Arc::new(MemoryStore::new()));
    let pool = machine.open(&store).await;
    create(&pool, "v").await;
    let disk = pool.attach("v").unwrap();
    disk.write(0, &noise(1, 2 * BLOCK), false).await.unwrap();
    disk.flush().await.unwrap();
    let mut copy = left_by_crash(&store).await;
    disk.write(0, &noise(2, BLOCK), false).await.unwrap();
    disk.flush().await.unwrap();
    disk.write(BLOCK as u64, &noise(3, BLOCK), false).await.unwrap();
    let (mut machine, _) = machine.kill(&store).await;
    // Also if the first opening does not live long.
    for _ in 0..2 {
        let pool = machine.open(&copy).await;
        assert!(matches!(pool.attach("v"), Err(Error::MemoryLost { .. })));
        (machine, copy) = machine.kill(&copy).await;
    }
    let pool = machine.open(&copy).await;
    pool.resume("v").await.unwrap();
    let disk = pool.attach("v").unwrap();
    assert!(read(&disk, 0, 2 * BLOCK).await == noise(1, 2 * BLOCK), "no prefix of history");
    // From here on, memory and log belong together again.
    disk.write(0, &noise(4, BLOCK), false).await.unwrap();
    let (machine, copy) = machine.kill(&copy).await;
    let pool = machine.open(&copy).await;
    assert!(read(&pool.attach("v").unwrap(), 0, BLOCK).await == noise(4, BLOCK));
}

/// Writers for which there is no memory try again from time to time, and do not wake each other without end.
#[tokio::test(start_paused = true)]
async fn writers_without_memory_sleep() {
    let (mut machine, store) = (Machine::new(), Arc::new(MemoryStore::new()));
    // The header, and one chunk of each kind: less than the writes.
    machine.memory = Arc::new(HeapMemory::new(3));
    let pool = machine.open(&store).await;
    create(&pool, "v").await;
    let disk = pool.attach("v").unwrap();
    let mut polls = 0;
    let data = noise(1, MIB);
    let write = || disk.write(0, &data, false);
    let mut both = Box::pin(futures_util::future::join(write(), write()));
    let counted = std::future::poll_fn(|cx| {
        polls += 1;
        assert!(polls < 1000, "writers do not sleep");
        both.as_mut().poll(cx)
    });
    assert!(tokio::time::timeout(Duration::from_secs(10), counted).await.is_err(), "there is no room");
    drop(both);
    disk.write(0, &noise(2, 16 * BLOCK), false).await.unwrap();
}

#[tokio::test]
async fn desktops_survive_a_kill_and_a_stop() {
    let (mut machine, mut store) = (Machine::new(), Arc::new(MemoryStore::new()));
    let pool = machine.open(&store).await;
    create_desktops(&pool).await;
    let (pc, other) = (pool.attach("pc").unwrap(), pool.attach("other").unwrap());
    // More than the write cache holds, so that a part overflows.
    for n in 0..48 {
        pc.write(n * 128 * 1024, &noise(100 + n, 64 << 10), false).await.unwrap();
    }
    other.write(0, &text(3, 64 << 10), false).await.unwrap();
    let expected = (read(&pc, 0, 8 * MIB).await, read(&other, 0, 8 * MIB).await);
    (machine, store) = machine.kill(&store).await;
    for stop in [false, true, true, false] {
        let pool = machine.open(&store).await;
        let (pc, other) = (pool.attach("pc").unwrap(), pool.attach("other").unwrap());
        let found = (read(&pc, 0, 8 * MIB).await, read(&other, 0, 8 * MIB).await);
        assert!(found == expected, "after a stop: {stop}");
        if stop {
            pool.close().await.unwrap();
            assert!(pool.retains());
        }
        (machine, store) = machine.kill(&store).await;
    }
    // The memory is lost, so the desktops are reset: none has contents of different times.
    machine.lose_memory();
    machine.boot += 1;
    let pool = machine.open(&store).await;
    assert!(read(&pool.attach("pc").unwrap(), 0, 2 * MIB).await == noise(1, 2 * MIB));
    assert!(read(&pool.attach("other").unwrap(), 0, 2 * MIB).await == noise(1, 2 * MIB));
}

#[tokio::test]
async fn a_desktop_whose_user_left_before_the_kill_is_reset() {
    let (machine, store) = (Machine::new(), Arc::new(MemoryStore::new()));
    let pool = machine.open(&store).await;
    create_desktops(&pool).await;
    let pc = pool.attach("pc").unwrap();
    pc.write(0, &noise(9, MIB), false).await.unwrap();
    // The handle is still there: its last requests are under way.
    pc.mark_clean_disconnect();
    let (machine, store) = machine.kill(&store).await;
    let pool = machine.open(&store).await;
    let pc = pool.attach_when_reset("pc").await.unwrap();
    assert!(read(&pc, 0, 2 * MIB).await == noise(1, 2 * MIB));
}

#[tokio::test]
async fn a_reset_or_deletion_is_not_undone_by_a_kill() {
    let (machine, store) = (Machine::new(), Arc::new(MemoryStore::new()));
    let pool = machine.open(&store).await;
    create_desktops(&pool).await;
    for name in ["pc", "other"] {
        let disk = pool.attach(name).unwrap();
        disk.write(0, &noise(9, MIB), false).await.unwrap();
    }
    pool.reset("other").await.unwrap();
    pool.delete("pc").await.unwrap();
    let (machine, store) = machine.kill(&store).await;
    let pool = machine.open(&store).await;
    assert!(matches!(pool.attach("pc").map(drop), Err(Error::NotFound(_))));
    assert!(read(&pool.attach("other").unwrap(), 0, 2 * MIB).await == noise(1, 2 * MIB));
}

#[tokio::test]
async fn writers_wait_while_there_is_no_memory() {
    // The header, and a few chunks for data.
    let machine = Machine { memory: Arc::new(HeapMemory::new(5)), ..Machine::new() };
    let store = Arc::new(MemoryStore::new());
    let pool = machine.open(&store).await;
    create(&pool, "v").await;
    let disk = pool.attach("v").unwrap();
    for n in 0..64 {
        disk.write(n % 16 * MIB as u64, &noise(n, MIB), false).await.unwrap();
    }
    for n in 48..64 {
        assert!(read(&disk, n % 16 * MIB as u64, MIB).await == noise(n, MIB), "MiB {n}");
    }
    pool.close().await.unwrap();
}

/// They are sound, but no server has written them.
#[tokio::test]
async fn records_that_fit_no_disk_are_ignored() {
    let (machine, store) = (Machine::new(), Arc::new(MemoryStore::new()));
    let pool = machine.open(&store).await;
    create(&pool, "v").await;
    let disk = pool.attach("v").unwrap();
    disk.write(0, &noise(1, MIB), false).await.unwrap();
    let expected = read(&disk, 0, 16 * MIB).await;
    let (machine, store) = machine.kill(&store).await;

    let header = machine.memory.content()[0].clone().unwrap();
    let (pool, boot) = (header[16..32].try_into().unwrap(), header[32..48].try_into().unwrap());
    let (retained, found) =
        Retained::open(machine.memory.clone(), &Identity { pool, boot }, 64 << 20).unwrap();
    let disk = found.pages[0].0.disk;
    let block = |disk, block, mask| BlockRecord { disk, block, mask, generation: 1 << 62 };
    let range = |disk, start, end| RangeRecord { disk, start, end, allocated: false, generation: 1 << 62 };
    let noises =
        [block(0, 0, 255), block(u32::MAX, 1, 255), block(disk, 4096, 255), block(disk, u64::MAX, 255)];
    let pages = noises.map(|of| retained.page(None, of, |page| page.fill(9)));
    // Of the disk, but without any sector; and zeroes over each other, where nothing was written.
    let empty = retained.page(None, block(disk, 7, 0), |page| page.fill(9));
    let ranges = [
        (disk, 0, 4097),
        (disk, 0, u64::MAX),
        (0, 0, 1),
        (u32::MAX, 0, 1),
        (disk, 1000, 3000),
        (disk, 2000, 4096),
    ]
    .map(|(disk, start, end)| retained.range(None, range(disk, start, end)));
    let flags = [retained.flag(disk, 1), retained.flag(disk, 255), retained.flag(u32::MAX, 1)];
    retained.leave();
    drop((found, pages, empty, ranges, flags, retained));

    let pool = machine.open(&store).await;
    let disk = pool.attach("v").unwrap();
    assert!(read(&disk, 0, 16 * MIB).await == expected);
    disk.write(MIB as u64, &noise(2, MIB), false).await.unwrap();
    pool.close().await.unwrap();
    assert!(!pool.retains(), "everything is durable, and the rest was dropped");
}

#[tokio::test]
async fn a_pool_does_not_open_without_memory() {
    // Nothing; room for the header only; room for pages, and none for the records of zeroed ranges.
    for chunks in 0..3 {
        let machine = Machine { memory: Arc::new(HeapMemory::new(chunks)), ..Machine::new() };
        let store = Arc::new(MemoryStore::new());
        let e = machine.try_open(&store).await.map(drop).unwrap_err();
        assert!(matches!(&e, Error::Memory(why) if why.contains("3 MiB")), "{e}");
    }
    let machine = Machine { memory: Arc::new(HeapMemory::new(3)), ..Machine::new() };
    machine.try_open(&Arc::new(MemoryStore::new())).await.map(drop).unwrap();
}

/// The reset cannot be made any more, and the next user must not get the contents.
#[tokio::test]
async fn a_desktop_whose_user_leaves_after_a_failure_is_reset() {
    let (mut machine, store) = (Machine::new(), FaultyStore::new(1));
    let pool = machine.open(&store).await;
    create_desktops(&pool).await;
    create(&pool, "v").await;
    let (pc, v) = (pool.attach("pc").unwrap(), pool.attach("v").unwrap());
    pc.write(0, &noise(10, MIB / 2), false).await.unwrap();
    v.write(0, &noise(11, BLOCK), false).await.unwrap();
    store.inject(FaultyOp::Append, Fault::Io, When::Every(1));
    let failed = v.flush().await;
    assert!(matches!(failed, Err(Error::Latched(_))), "{failed:?}");
    pc.mark_clean_disconnect();
    drop(pc);
    store.crash(Crash::Kill);
    store.clear_faults();
    machine.memory = Arc::new(machine.memory.snapshot());
    machine.seed += 1;
    let pool = machine.open(&store.reopen()).await;
    let pc = pool.attach_when_reset("pc").await.unwrap();
    assert!(read(&pc, 0, MIB).await == noise(1, 2 * MIB)[..MIB], "the next user sees the last one's data");
    let v = pool.attach("v").unwrap();
    assert!(read(&v, 0, BLOCK).await == noise(11, BLOCK), "the volume keeps what was acknowledged");
}
